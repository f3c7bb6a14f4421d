/* SPDX-License-Identifier: Apache-2.0 */
#include "base/map.h"

#include "base/rand.h"
#include "base/siphash.h"
#include "support/check.h"

/* 2-4: the reference implementation's vectors (key 00..0f, messages 00, 00 01, …). */
static void siphash_is_siphash(void **state)
{
    static const uint64_t want[] = {
        UINT64_C(0x726fdb47dd0e0e31),
        UINT64_C(0x74f839c593dc67fd),
        UINT64_C(0x0d6c8009d9a94f5a),
        UINT64_C(0x85676696d7fb7e2d),
    };
    const struct siphash_key key = {UINT64_C(0x0706050403020100), UINT64_C(0x0f0e0d0c0b0a0908)};
    char message[15];

    (void)state;
    for (size_t i = 0; i < sizeof message; i++)
        message[i] = (char)i;
    for (size_t i = 0; i < COUNT(want); i++)
        CHECKF(siphash((struct str){message, i}, key, 2, 4) == want[i], "length %zu", i);
    assert_true(siphash((struct str){message, 15}, key, 2, 4) ==
                UINT64_C(0xa129ca6149be45e5)); /* the paper's own */
}

/* 1-3: CPython's hash() of these bytes, whose key is zero under PYTHONHASHSEED=0. */
static void siphash_13_is_cpython_s(void **state)
{
    static const struct {
        struct str s;
        uint64_t hash;
    } cases[] = {
        {STR_INIT("a"), UINT64_C(0x407448d2b89b1813)},
        {STR_INIT("abcdefg"), UINT64_C(0x6db12aae9070f506)},
        {STR_INIT("abcdefgh"), UINT64_C(0x3f7b849c0b8e35ea)},
        {STR_INIT("abcdefghi"), UINT64_C(0xf89b34a3d11eb6e5)},
        {STR_INIT("\0\1\2\3\4\5\6\7\x08\x09\x0a\x0b\x0c\x0d\x0e"), UINT64_C(0xf30eb725bb91c9ea)},
        {STR_INIT("\0\1\2\3\4\5\6\7\x08\x09\x0a\x0b\x0c\x0d\x0e\x0f"),
         UINT64_C(0x8972188433a5c5b7)},
        {STR_INIT("0192f1a0-0000-7000-8000-000000000000"), UINT64_C(0x36a151d9e050812a)},
        {STR_INIT("\xff\xff\xff\xff\xff\xff\xff"), UINT64_C(0xa3cf0c89008da505)},
    };

    (void)state;
    for (size_t i = 0; i < COUNT(cases); i++)
        CHECKF(siphash(cases[i].s, (struct siphash_key){0, 0}, 1, 3) == cases[i].hash, "case %zu",
               i);
}

static void hash_is_keyed(void **state)
{
    (void)state;
    assert_true(hash_bytes(STR("abc")) == hash_bytes(STR("abc")));
    assert_true(hash_bytes(STR("abc")) != siphash(STR("abc"), (struct siphash_key){0, 0}, 1, 3));
    (void)hash_bytes(STR_NONE);
}

static void keeps_keys_of_any_bytes(void **state)
{
    static const struct str keys[] = {
        STR_INIT(""),
        STR_INIT("\0"),
        STR_INIT("\0\0"),
        STR_INIT("a"),
        STR_INIT("a\0"),
        STR_INIT("0123456789abcde"),
        STR_INIT("0123456789abcdef"),
        STR_INIT("0123456789abcdefg"),
        STR_INIT("0123456789abcdefh"),
        STR_INIT("0192f1a0-0000-7000-8000-000000000000"),
    };
    struct map m = {0};
    int values[COUNT(keys)], other;

    (void)state;
    assert_null(map_get(&m, STR("x")));
    assert_null(map_remove(&m, STR("x")));
    for (size_t i = 0; i < COUNT(keys);
         i++) { /* keys are copied: this one is gone after each turn */
        char copy[64];
        if (keys[i].n > 0)
            memcpy(copy, keys[i].p, keys[i].n);
        assert_null(map_put(&m, (struct str){copy, keys[i].n}, &values[i]));
        memset(copy, 'z', sizeof copy);
    }
    assert_int_equal(m.count, COUNT(keys));
    for (size_t i = 0; i < COUNT(keys); i++)
        assert_ptr_equal(map_get(&m, keys[i]), &values[i]);
    assert_ptr_equal(map_put(&m, keys[8], &other), &values[8]);
    assert_ptr_equal(map_get(&m, keys[8]), &other);
    assert_ptr_equal(map_get(&m, keys[7]), &values[7]);
    assert_ptr_equal(map_remove(&m, STR_NONE), &values[0]); /* as a key, absent is empty */
    assert_null(map_get(&m, keys[0]));
    assert_int_equal(m.count, COUNT(keys) - 1);
    map_clear(&m);
    assert_int_equal(m.count, 0);
    assert_null(map_get(&m, keys[7]));
    assert_null(map_put(&m, keys[7], &other));
    map_free(&m);
    assert_int_equal(m.cap, 0);
    assert_null(m.slots);
    map_free(&m);
}

/* Random operations beside an array that is indexed by the key itself. */
static void behaves_like_an_array(void **state)
{
    enum { KEYS = 3000, OPS = 200000 };
    static void *model[KEYS];
    static char values[64];
    struct map m = {0};
    struct prng r;
    size_t count = 0;

    (void)state;
    prng_seed(&r, 6);
    for (size_t i = 0; i < OPS; i++) {
        size_t k = prng_below(
            &r, i % 50000 < 25000 ? KEYS : 40); /* many keys, then a few that come and go */
        char text[40];
        struct str key = {
            text, (size_t)snprintf(text, sizeof text, k % 2 == 0 ? "%zu" : "a-longer-key-%zu", k)};
        void *old = model[k];
        if (prng_below(&r, 2) == 0) {
            model[k] = &values[prng_below(&r, sizeof values)];
            count += old == NULL;
            assert_ptr_equal(map_put(&m, key, model[k]), old);
        } else {
            model[k] = NULL;
            count -= old != NULL;
            assert_ptr_equal(map_remove(&m, key), old);
        }
        if (i % 97 == 0)
            assert_ptr_equal(map_get(&m, key), model[k]);
        assert_int_equal(m.count, count);
    }
    size_t seen = 0, i = 0;
    struct str key;
    for (void *v; (v = map_next_key(&m, &i, &key)) != NULL; seen++) {
        size_t k = 0;
        for (size_t j = 0; j < key.n; j++)
            if (key.p[j] >= '0' && key.p[j] <= '9')
                k = k * 10 + (size_t)(key.p[j] - '0');
        assert_ptr_equal(v, model[k]);
    }
    assert_int_equal(seen, count);
    map_free(&m);
}

static void may_lose_entries_while_iterating(void **state)
{
    enum { N = 1000 };
    struct map m = {0};
    static char values[N];
    char text[16];

    (void)state;
    for (size_t i = 0; i < N; i++)
        assert_null(map_put(&m, (struct str){text, (size_t)snprintf(text, sizeof text, "%zu", i)},
                            &values[i]));
    size_t i = 0, n = 0;
    for (char *v; (v = map_next(&m, &i)) != NULL; n++) {
        size_t k = (size_t)(v - values);
        values[k]++;
        if (k % 3 != 0)
            assert_ptr_equal(
                map_remove(&m, (struct str){text, (size_t)snprintf(text, sizeof text, "%zu", k)}),
                v);
    }
    assert_int_equal(n, N);
    for (size_t k = 0; k < N; k++)
        assert_int_equal(values[k], 1);
    assert_int_equal(m.count, (N + 2) / 3);
    map_free(&m);
}

static void stays_small_under_churn(void **state)
{
    struct map m = {0};
    char text[16];

    (void)state;
    for (size_t i = 0; i < 100000; i++) { /* a queue of ten: tombstones must not pile up */
        assert_null(
            map_put(&m, (struct str){text, (size_t)snprintf(text, sizeof text, "%zu", i)}, text));
        if (i >= 10)
            assert_non_null(map_remove(
                &m, (struct str){text, (size_t)snprintf(text, sizeof text, "%zu", i - 10)}));
    }
    assert_int_equal(m.count, 10);
    assert_true(m.cap <= 64);
    map_free(&m);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(siphash_is_siphash),
        cmocka_unit_test(siphash_13_is_cpython_s),
        cmocka_unit_test(hash_is_keyed),
        cmocka_unit_test(keeps_keys_of_any_bytes),
        cmocka_unit_test(behaves_like_an_array),
        cmocka_unit_test(may_lose_entries_while_iterating),
        cmocka_unit_test(stays_small_under_churn),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
