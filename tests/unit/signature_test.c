/* SPDX-License-Identifier: Apache-2.0 */
#include "domain/signature.h"

#include "base/digest.h"
#include "base/hex.h"
#include "base/json.h"
#include "support/check.h"

#include <openssl/hmac.h>
#include <pthread.h>

static struct str text_of(struct str object, const char *name, struct arena *a)
{
    struct str v = json_string(json_get(object, str_of(name), a), a);

    CHECKF(str_present(v), "no %s in a vector", name);
    return v;
}

static struct signed_request request_of(struct str vector, struct arena *a)
{
    return (struct signed_request){
        .method = text_of(vector, "method", a),
        .target = text_of(vector, "path", a),
        .timestamp = text_of(vector, "timestamp", a),
        .dispatch_id = text_of(vector, "dispatch_id", a),
        .attempt = text_of(vector, "attempt", a),
        .body = text_of(vector, "body", a),
    };
}

static void agrees_with_the_vectors(void **state)
{
    struct buf file = {0};
    struct arena a = {0};
    struct json_walk w = {0};
    struct str vector;
    char hex[SIGNATURE_HEX_LEN];
    size_t requests = 0, webhooks = 0;

    (void)state;
    read_file("tests/vectors/signature.json", &file);
    struct str list = json_get(buf_str(&file), STR("requests"), &a);
    for (; json_next_item(list, &w, &vector); requests++) {
        struct signed_request req = request_of(vector, &a);
        struct str secret = text_of(vector, "secret", &a), want = text_of(vector, "signature", &a);
        signature_request(secret, &req, hex);
        CHECK_STR(str_make(hex, sizeof hex), str_slice(want, 3, want.n));
        assert_true(signature_request_ok(secret, &req, want));
        if (req.dispatch_id.n == 0) { /* absent is the same as empty */
            req.dispatch_id = req.attempt = STR_NONE;
            assert_true(signature_request_ok(secret, &req, want));
        }
    }
    w = (struct json_walk){0};
    list = json_get(buf_str(&file), STR("webhooks"), &a);
    for (; json_next_item(list, &w, &vector); webhooks++) {
        struct str want = text_of(vector, "signature", &a);
        signature_webhook(text_of(vector, "secret", &a), text_of(vector, "body", &a), hex);
        CHECK_STR(str_make(hex, sizeof hex), str_slice(want, 7, want.n));
    }
    assert_true(requests >= 3 && webhooks >= 1);
    arena_free(&a);
    buf_free(&file);
}

static void notices_every_change(void **state)
{
    struct buf file = {0};
    struct arena a = {0};
    struct json_walk w = {0};
    struct str vector;

    (void)state;
    read_file("tests/vectors/signature.json", &file);
    assert_true(json_next_item(json_get(buf_str(&file), STR("requests"), &a), &w, &vector));
    const struct signed_request good = request_of(vector, &a);
    struct str secret = text_of(vector, "secret", &a), header = text_of(vector, "signature", &a);
    assert_true(signature_request_ok(secret, &good, header));
    assert_false(signature_request_ok(STR("test-secre"), &good, header));
    struct signed_request changed[] = {good, good, good, good, good, good, good};
    changed[0].method = STR("PUT");
    changed[1].target = STR("/v0/executions/018f3a2b-4c5d-7e6f-8a9b-0c1d2e3f4a5b/steps?");
    changed[2].timestamp = STR("1700000001");
    changed[3].dispatch_id = STR("");
    changed[4].attempt = STR("4");
    changed[5].body = str_slice(good.body, 0, good.body.n - 1);
    changed[6].timestamp =
        STR("1700000000\n01920000-0000-7000-8000-000000000001"); /* a field moved into another */
    changed[6].dispatch_id = STR("");
    for (size_t i = 0; i < COUNT(changed); i++)
        CHECKF(!signature_request_ok(secret, &changed[i], header), "change %zu", i);

    struct str headers[] = {
        STR_NONE,
        STR(""),
        STR("v1="),
        str_slice(header, 0, header.n - 1),
        str_slice(header, 3, header.n),
        arena_printf(&a, "v2=%.*s", STR_ARG(str_slice(header, 3, header.n))),
        arena_printf(&a, "%.*s ", STR_ARG(header)),
        arena_printf(&a, " %.*s", STR_ARG(header)),
    };
    for (size_t i = 0; i < COUNT(headers); i++)
        CHECKF(!signature_request_ok(secret, &good, headers[i]), "header %zu", i);
    struct buf flipped = {0};
    for (size_t i = 0; i < header.n; i++) {
        buf_clear(&flipped);
        buf_add(&flipped, header);
        flipped.p[i] ^= 1;
        CHECKF(!signature_request_ok(secret, &good, buf_str(&flipped)), "byte %zu", i);
    }
    buf_free(&flipped);
    arena_free(&a);
    buf_free(&file);
}

/* RFC 4231's cases 1 to 4, 6 and 7. */
static void hmac_is_rfc_4231_s(void **state)
{
    static const struct {
        unsigned char key_byte;
        size_t key_n;
        struct str key, data;
        const char *mac;
    } cases[] = {
        {0x0b, 20, STR_INIT(""), STR_INIT("Hi There"),
         "b0344c61d8db38535ca8afceaf0bf12b881dc200c9833da726e9376c2e32cff7"},
        {0, 0, STR_INIT("Jefe"), STR_INIT("what do ya want for nothing?"),
         "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843"},
        {0xaa, 20, STR_INIT(""),
         STR_INIT("\xdd\xdd\xdd\xdd\xdd\xdd\xdd\xdd\xdd\xdd\xdd\xdd\xdd\xdd\xdd\xdd\xdd\xdd\xdd\xdd"
                  "\xdd\xdd\xdd\xdd\xdd\xdd\xdd\xdd\xdd\xdd\xdd\xdd\xdd\xdd\xdd\xdd\xdd\xdd\xdd\xdd"
                  "\xdd\xdd\xdd\xdd\xdd\xdd\xdd\xdd\xdd\xdd"),
         "773ea91e36800e46854db8ebd09181a72959098b3ef8c122d9635514ced565fe"},
        {0xaa, 131, STR_INIT(""),
         STR_INIT("Test Using Larger Than Block-Size Key - Hash Key First"),
         "60e431591ee0b67f0d8a26aacbf5b77f8e0bc6213728c5140546040f0ee37f54"},
        {0xaa, 131, STR_INIT(""),
         STR_INIT("This is a test using a larger than block-size key and a larger than block-size "
                  "data. The key needs to "
                  "be hashed before being used by the HMAC algorithm."),
         "9b09ffa71b942fcb27635fbcd5b0e944bfdc63644f0713938a7f51535c3a35e2"},
    };

    (void)state;
    for (size_t i = 0; i < COUNT(cases); i++) {
        char key[131], hex[SIGNATURE_HEX_LEN];
        memset(key, cases[i].key_byte, sizeof key);
        struct str k = cases[i].key_n == 0 ? cases[i].key : (struct str){key, cases[i].key_n};
        signature_webhook(k, cases[i].data, hex);
        CHECK_STR(str_make(hex, sizeof hex), str_of(cases[i].mac));
    }
}

/* libcrypto's own HMAC over the parts put together, with sizes around the block and around what is
 * gathered. */
static void parts_do_not_matter(void **state)
{
    static const size_t sizes[] = {0,   1,   55,  56,  63,   64,   65,   127,
                                   128, 959, 960, 961, 1023, 1024, 1025, 5000};
    static char bytes[5000];

    (void)state;
    for (size_t i = 0; i < sizeof bytes; i++)
        bytes[i] = (char)(i * 7);
    for (size_t i = 0; i < COUNT(sizes); i++) {
        for (size_t j = 0; j < COUNT(sizes); j++) {
            for (size_t k = 0; k < 130; k += 43) { /* key lengths */
                struct str parts[] = {
                    {bytes, sizes[i]}, STR_INIT("|"), STR_NONE, {bytes, sizes[j]}};
                uint8_t got[DIGEST_LEN], want[DIGEST_LEN];
                struct buf whole = {0};
                for (size_t p = 0; p < COUNT(parts); p++)
                    buf_add(&whole, parts[p]);
                digest_hmac_sha256((struct str){bytes, k}, parts, COUNT(parts), got);
                assert_non_null(HMAC(EVP_sha256(), bytes, (int)k, (const uint8_t *)whole.p, whole.n,
                                     want, NULL));
                assert_memory_equal(got, want, sizeof got);
                buf_free(&whole);
            }
        }
    }
}

static void *sign_often(void *arg)
{
    char hex[SIGNATURE_HEX_LEN];
    size_t *bad = arg;

    for (int i = 0; i < 2000; i++) {
        signature_webhook(STR("Jefe"), STR("what do ya want for nothing?"), hex);
        *bad += memcmp(hex, "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843",
                       sizeof hex) != 0;
    }
    return NULL;
}

static void any_thread_may_sign(void **state)
{
    pthread_t threads[4];
    size_t bad[4] = {0};

    (void)state;
    for (size_t i = 0; i < COUNT(threads); i++)
        assert_int_equal(pthread_create(&threads[i], NULL, sign_often, &bad[i]), 0);
    for (size_t i = 0; i < COUNT(threads); i++) {
        pthread_join(threads[i], NULL);
        assert_int_equal(bad[i], 0);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(any_thread_may_sign), /* first, so that the threads meet in the set-up */
        cmocka_unit_test(agrees_with_the_vectors), cmocka_unit_test(notices_every_change),
        cmocka_unit_test(hmac_is_rfc_4231_s),      cmocka_unit_test(parts_do_not_matter),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
