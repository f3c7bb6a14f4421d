/* SPDX-License-Identifier: Apache-2.0 */
#include "domain/identity.h"

#include "support/check.h"
#include "support/naive_json.h"
#include "support/random_json.h"

#include <stdlib.h>

static struct str field(struct str object, const char *name, struct arena *a)
{
    struct str v = json_get(object, str_of(name), a);

    CHECKF(str_present(v), "no %s in a vector", name);
    return v;
}

static void agrees_with_the_vectors(void **state)
{
    struct buf file = {0};
    struct arena a = {0};
    struct json_walk w = {0};
    struct str vector;
    struct err e;
    size_t n = 0;

    (void)state;
    read_file("tests/vectors/identity.json", &file);
    assert_true(json_check(buf_str(&file), &e));
    struct str valid = field(buf_str(&file), "valid", &a);
    for (; json_next_item(valid, &w, &vector); n++) {
        struct str args = json_string(field(vector, "args_json", &a), &a);
        struct buf canonical = {0};
        struct uuid execution;
        struct hash hash, want, id;
        int64_t occurrence;
        CHECKF(canonical_json(args, &canonical, &e), "%.*s: %s", STR_ARG(args), e.message);
        CHECK_STR(buf_str(&canonical), json_string(field(vector, "canonical", &a), &a));
        assert_true(args_hash(args, &hash, &e));
        assert_true(hash_parse(json_string(field(vector, "args_hash", &a), &a), &want));
        CHECKF(hash_eq(&hash, &want), "%.*s", STR_ARG(vector));
        assert_true(uuid_parse(json_string(field(vector, "execution_id", &a), &a), &execution));
        assert_true(json_int64(field(vector, "occurrence", &a), &occurrence));
        struct call call = {json_string(field(vector, "kind", &a), &a),
                            json_string(field(vector, "target", &a), &a), hash};
        step_id(&execution, &call, occurrence, &id);
        assert_true(hash_parse(json_string(field(vector, "step_id", &a), &a), &want));
        CHECKF(hash_eq(&id, &want), "%.*s", STR_ARG(vector));
        buf_free(&canonical);
    }
    assert_true(n >= 18);
    arena_free(&a);
    buf_free(&file);
}

static void refuses_the_vectors_that_it_must(void **state)
{
    struct buf file = {0}, out = {0};
    struct arena a = {0};
    struct json_walk w = {0};
    struct str item;
    struct err e;
    size_t n = 0;

    (void)state;
    read_file("tests/vectors/identity.json", &file);
    for (struct str refused = field(buf_str(&file), "refused", &a);
         json_next_item(refused, &w, &item); n++) {
        struct str text = json_string(item, &a);
        struct hash h;
        CHECKF(!canonical_json(text, &out, &e), "%.*s", STR_ARG(text));
        assert_int_equal(e.code, ERR_VALIDATION);
        assert_false(args_hash(text, &h, &e));
    }
    assert_true(n >= 15);
    buf_free(&out);
    arena_free(&a);
    buf_free(&file);
}

/* Cases of the rules in docs/protocol.md that the vectors leave out. */
static void canonical_forms(void **state)
{
    static const struct {
        struct str text, want;
    } cases[] = {
        {STR_INIT("{\"a\\u0000\":1,\"a\":2}"), STR_INIT("{\"a\":2,\"a\\u0000\":1}")},
        {STR_INIT("{\"abcdefgh2\":1,\"abcdefgh1\":2,\"abcdefgh\":3}"),
         STR_INIT("{\"abcdefgh\":3,\"abcdefgh1\":2,\"abcdefgh2\":1}")},
        {STR_INIT("{\"b\":{\"y\":[{\"d\":1,\"c\":2}],\"x\":3},\"a\":[{}, {\"z\":{}}]}"),
         STR_INIT("{\"a\":[{},{\"z\":{}}],\"b\":{\"x\":3,\"y\":[{\"c\":2,\"d\":1}]}}")},
        {STR_INIT("[[],[[]],{},[{}]]"), STR_INIT("[[],[[]],{},[{}]]")},
        {STR_INIT("{\"<k>&\":\"\u2028\u2029\u2027\u202a\"}"),
         STR_INIT("{\"\\u003ck\\u003e\\u0026\":\"\\u2028\\u2029\u2027\u202a\"}")},
        {STR_INIT("{\"\\\"\\\\\\n\\u0007\":0}"), STR_INIT("{\"\\\"\\\\\\n\\u0007\":0}")},
        {STR_INIT("\"\\ud83d\\ud83d\\ude00\\ude00x\""), STR_INIT("\"\ufffd\U0001f600\ufffdx\"")},
        {STR_INIT("\"\\ud83d\\u0041\""), STR_INIT("\"\ufffdA\"")},
        {STR_INIT("\"\\uD83D\\uDE00\""), STR_INIT("\"\U0001f600\"")},
        {STR_INIT("\"\\u00E9\\u20ac\\u007f\\u0080\""), STR_INIT("\"\u00e9\u20ac\x7f\xc2\x80\"")},
        {STR_INIT("\"\\u003C\\/\\u002f\""), STR_INIT("\"\\u003c//\"")},
        {STR_INIT("\t-0.0e-0 "), STR_INIT("-0.0e-0")},
        {STR_INIT("1E400"), STR_INIT("1E400")},
        {STR_INIT("[1,\n 2 ,3]"), STR_INIT("[1,2,3]")},
    };
    struct err e;

    (void)state;
    for (size_t i = 0; i < COUNT(cases); i++) {
        struct buf out = {0};
        buf_add(&out, STR("before")); /* it appends */
        CHECKF(canonical_json(cases[i].text, &out, &e), "case %zu: %s", i, e.message);
        CHECK_STR(str_slice(buf_str(&out), 6, out.n), cases[i].want);
        buf_free(&out);
    }
    struct buf out = {0};
    assert_true(canonical_json(STR_NONE, &out, &e));
    CHECK_STR(buf_str(&out), STR("null"));
    buf_free(&out);
}

static void refuses_duplicates(void **state)
{
    static const struct {
        struct str text;
        const char *message; /* what it must hold */
    } cases[] = {
        {STR_INIT("{\"a\":1,\"b\":2,\"a\":1}"), "\"a\""},
        {STR_INIT("{\"\":1,\"\":2}"), "\"\""},
        {STR_INIT("{\"caf\u00e9\":1,\"caf\\u00e9\":1}"), "caf\u00e9"},
        {STR_INIT("{\"\\u0061\":1,\"a\":1}"), "\"a\""},
        {STR_INIT("{\"/\":1,\"\\/\":1}"), "\"/\""},
        {STR_INIT("{\"\\ud800\":1,\"\\udfff\":1}"), "\ufffd"}, /* as decoded, both are U+FFFD */
        {STR_INIT("[0,{\"x\":[{\"k\":1,\"j\":2,\"k\":3}]}]"), "\"k\""},
        {STR_INIT("{\"abcdefghi\":1,\"abcdefghj\":1,\"abcdefghi\":1}"), "\"abcdefghi\""},
    };
    struct err e;

    (void)state;
    for (size_t i = 0; i < COUNT(cases); i++) {
        struct buf out = {0};
        CHECKF(!canonical_json(cases[i].text, &out, &e), "case %zu", i);
        CHECKF(e.code == ERR_VALIDATION && strstr(e.message, cases[i].message) != NULL,
               "case %zu: %s", i, e.message);
        buf_free(&out);
    }
}

static void agrees_with_the_naive_one(void **state)
{
    enum { TEXTS = 4000 };
    struct prng r;
    size_t verdicts[3] = {0};
    struct buf text = {0}, got = {0}, want = {0}, again = {0};
    struct err e;

    (void)state;
    prng_seed(&r, 7);
    for (size_t i = 0; i < TEXTS; i++) {
        buf_clear(&text);
        buf_clear(&got);
        buf_clear(&want);
        buf_clear(&again);
        random_value(&r, &text, 4, i % 4 == 0);
        if (i % 4 == 1)
            random_damage(&r, &text);
        enum naive_verdict verdict = naive_canonical(buf_str(&text), &want);
        verdicts[verdict]++;
        bool ok = canonical_json(buf_str(&text), &got, &e);
        CHECKF(ok == (verdict == NAIVE_OK), "text %zu: %.*s: %s", i, STR_ARG(buf_str(&text)),
               ok ? "taken" : e.message);
        CHECKF(json_check(buf_str(&text), &e) == (verdict != NAIVE_INVALID), "text %zu: %.*s", i,
               STR_ARG(buf_str(&text)));
        if (!ok)
            continue;
        CHECK_STR(buf_str(&got), buf_str(&want));
        CHECKF(json_check(buf_str(&got), &e), "text %zu: %s", i, e.message);
        assert_true(canonical_json(buf_str(&got), &again, &e));
        CHECK_STR(buf_str(&again), buf_str(&got)); /* canonical of canonical is itself */
    }
    for (size_t i = 0; i < COUNT(verdicts); i++) /* the random texts are worth their while */
        CHECKF(verdicts[i] > TEXTS / 50, "verdict %zu only %zu times", i, verdicts[i]);
    buf_free(&text);
    buf_free(&got);
    buf_free(&want);
    buf_free(&again);
}

static int order_of_names(const void *a, const void *b)
{
    return strcmp(a, b);
}

/* Many members in orders that are bad for naive sorts; keys alike in their first bytes. The
 * expected text is qsort's. */
static void sorts_large_objects(void **state)
{
    enum { N = 10000, NAME = 24 };
    static char names[N][NAME];
    struct buf text = {0}, got = {0}, want = {0};
    struct prng r;
    struct err e;

    (void)state;
    prng_seed(&r, 8);
    for (int order = 0; order < 3; order++) { /* falling, rising, shuffled */
        for (size_t i = 0; i < N; i++)
            snprintf(names[i], NAME, "common-prefix-%06zu", order == 0 ? N - i : i);
        for (size_t i = N - 1; order == 2 && i > 0; i--) {
            char swap[NAME];
            size_t j = prng_below(&r, i + 1);
            memcpy(swap, names[i], NAME);
            memcpy(names[i], names[j], NAME);
            memcpy(names[j], swap, NAME);
        }
        buf_clear(&text);
        buf_clear(&got);
        buf_clear(&want);
        for (size_t i = 0; i < N; i++)
            buf_printf(&text, "%s\"%s\":{}", i == 0 ? "{" : ",", names[i]);
        buf_add_byte(&text, '}');
        qsort(names, N, NAME, order_of_names);
        for (size_t i = 0; i < N; i++)
            buf_printf(&want, "%s\"%s\":{}", i == 0 ? "{" : ",", names[i]);
        buf_add_byte(&want, '}');
        CHECKF(canonical_json(buf_str(&text), &got, &e), "%s", e.message);
        CHECK_STR(buf_str(&got), buf_str(&want));
        text.n--;
        buf_printf(&text, ",\"%s\":1}", names[N / 2]);
        assert_false(canonical_json(buf_str(&text), &got, &e));
    }
    buf_free(&text);
    buf_free(&got);
    buf_free(&want);
}

static void takes_any_depth_up_to_the_limit(void **state)
{
    struct err e;

    (void)state;
    for (int kind = 0; kind < 3; kind++) { /* arrays, objects, both in turn */
        for (size_t depth = JSON_MAX_DEPTH - 1; depth <= JSON_MAX_DEPTH + 1; depth++) {
            struct buf text = {0}, got = {0}, want = {0};
            for (size_t i = 0; i < depth; i++) {
                bool array = kind == 0 || (kind == 2 && i % 2 == 0);
                buf_add_z(&text, array ? " [" : "{\"z\":1,\"a\":");
                buf_add_z(&want, array ? "[" : "{\"a\":");
            }
            buf_add(&text, STR("null"));
            buf_add(&want, STR("null"));
            for (size_t i = depth; i-- > 0;) {
                bool array = kind == 0 || (kind == 2 && i % 2 == 0);
                buf_add_z(&text, array ? "]" : "}");
                buf_add_z(&want, array ? "]" : ",\"z\":1}");
            }
            bool ok = canonical_json(buf_str(&text), &got, &e);
            CHECKF(ok == (depth <= JSON_MAX_DEPTH), "kind %d, depth %zu", kind, depth);
            if (ok)
                CHECK_STR(buf_str(&got), buf_str(&want));
            else
                assert_int_equal(e.code, ERR_VALIDATION);
            buf_free(&text);
            buf_free(&got);
            buf_free(&want);
        }
    }
}

static void says_when_the_result_is_too_long(void **state)
{
    struct buf out = {.max = 10};
    struct err e;

    (void)state;
    assert_true(canonical_json(STR("  [ 1 , 2 , 3 ]   "), &out,
                               &e)); /* longer than max, but its form is not */
    CHECK_STR(buf_str(&out), STR("[1,2,3]"));
    buf_clear(&out);
    assert_false(canonical_json(STR("\"<<\""), &out, &e));
    assert_int_equal(e.code, ERR_PAYLOAD_TOO_LARGE);
    buf_free(&out);
}

static void hashes(void **state)
{
    static const struct {
        struct str bytes;
        const char *hex;
    } cases[] = {
        /* FIPS 180-2, appendix B, and the empty message. */
        {STR_INIT(""), "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"},
        {STR_INIT("abc"), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"},
        {STR_INIT("abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq"),
         "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1"},
    };
    char hex[HASH_HEX_LEN];
    struct hash h, other;

    (void)state;
    for (size_t i = 0; i < COUNT(cases); i++) {
        hash_sha256(cases[i].bytes, &h);
        hash_hex(&h, hex);
        CHECK_STR(str_make(hex, sizeof hex), str_of(cases[i].hex));
        assert_true(hash_parse(str_of(cases[i].hex), &other));
        assert_true(hash_eq(&h, &other));
    }
    struct buf million = {0}; /* the appendix's third message */
    for (size_t i = 0; i < 1000000; i++)
        buf_add_byte(&million, 'a');
    hash_sha256(buf_str(&million), &h);
    hash_hex(&h, hex);
    CHECK_STR(str_make(hex, sizeof hex),
              STR("cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0"));
    buf_free(&million);

    other = h;
    other.b[31] ^= 1;
    assert_false(hash_eq(&h, &other));
    assert_true(
        hash_parse(STR("BA7816BF8F01CFEA414140DE5DAE2223B00361A396177A9CB410FF61F20015AD"), &h));
    assert_false(
        hash_parse(STR("ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015a"), &h));
    assert_false(
        hash_parse(STR("ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ag"), &h));
    assert_false(
        hash_parse(STR("ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad0"), &h));
    assert_false(hash_parse(STR_NONE, &h));
}

/* The ids once more, from the message written out by hand. */
static void ids_are_hashes_of_their_parts(void **state)
{
    static const size_t lengths[] = {0, 1, 9, 10, 99, 100, 1000, 5000};
    struct uuid execution;
    char hex[HASH_HEX_LEN];

    (void)state;
    assert_true(uuid_parse(STR("0192f1a0-0000-7000-8000-0123456789ab"), &execution));
    for (size_t i = 0; i < COUNT(lengths); i++) {
        struct buf target = {0}, tail = {0}, message = {0};
        for (size_t j = 0; j < lengths[i]; j++)
            buf_add_byte(&target, (char)('a' + j % 26));
        struct call call = {STR("tool_call"), buf_str(&target), {{0}}};
        hash_sha256(STR("anything"), &call.args_hash);
        hash_hex(&call.args_hash, hex);
        buf_printf(&tail, "9:tool_call%zu:%.*s64:%.*s", target.n, STR_ARG(buf_str(&target)),
                   HASH_HEX_LEN, hex);

        struct hash want, got;
        struct call_key key;
        call_key(&call, &key);
        hash_sha256(buf_str(&tail), &want);
        assert_memory_equal(key.b, want.b, sizeof key.b);
        for (int64_t occurrence = 0; occurrence < INT64_MAX / 100;
             occurrence = occurrence * 10 + 9) {
            char count[32];
            int digits = snprintf(count, sizeof count, "%lld", (long long)occurrence);
            buf_clear(&message);
            buf_printf(&message, "36:0192f1a0-0000-7000-8000-0123456789ab%.*s%d:%s",
                       STR_ARG(buf_str(&tail)), digits, count);
            step_id(&execution, &call, occurrence, &got);
            hash_sha256(buf_str(&message), &want);
            assert_true(hash_eq(&got, &want));
        }
        buf_free(&target);
        buf_free(&tail);
        buf_free(&message);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(agrees_with_the_vectors),
        cmocka_unit_test(refuses_the_vectors_that_it_must),
        cmocka_unit_test(canonical_forms),
        cmocka_unit_test(refuses_duplicates),
        cmocka_unit_test(agrees_with_the_naive_one),
        cmocka_unit_test(sorts_large_objects),
        cmocka_unit_test(takes_any_depth_up_to_the_limit),
        cmocka_unit_test(says_when_the_result_is_too_long),
        cmocka_unit_test(hashes),
        cmocka_unit_test(ids_are_hashes_of_their_parts),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
