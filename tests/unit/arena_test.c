/* SPDX-License-Identifier: Apache-2.0 */
#include "base/arena.h"

#include "base/rand.h"
#include "support/check.h"

#include <stdlib.h>

/* Sanitizers would end the process where malloc refuses. */
const char *__asan_default_options(void);
const char *__tsan_default_options(void);

const char *__asan_default_options(void)
{
    return "allocator_may_return_null=1";
}

const char *__tsan_default_options(void)
{
    return "allocator_may_return_null=1";
}

static void aligns_and_keeps_apart(void **state)
{
    enum { N = 3000 };
    struct arena a = {0};
    struct prng r;
    static unsigned char *p[N];
    static size_t n[N];

    (void)state;
    prng_seed(&r, 1);
    for (size_t i = 0; i < N; i++) { /* mostly small, some around the sizes of blocks */
        n[i] = prng_below(&r, 20) == 0 ? prng_below(&r, 100000) : prng_below(&r, 200);
        p[i] = arena_alloc(&a, n[i]);
        assert_non_null(p[i]);
        assert_int_equal((uintptr_t)p[i] % _Alignof(max_align_t), 0);
        memset(p[i], (int)(i % 256), n[i]);
    }
    for (size_t i = 0; i < N; i++)
        for (size_t j = 0; j < n[i]; j++)
            if (p[i][j] != i % 256)
                CHECKF(false, "allocation %zu was written over", i);
    arena_free(&a);
    assert_null(a.head);
    assert_int_equal(a.total, 0);
}

static void zeroes(void **state)
{
    struct arena a = {0};
    struct pair {
        int x;
        void *y;
    };

    (void)state;
    for (int round = 0; round < 2; round++) { /* the second time over memory that was used */
        unsigned char *p = arena_zalloc(&a, 2000);
        for (size_t i = 0; i < 2000; i++)
            assert_int_equal(p[i], 0);
        memset(p, 0xff, 2000);
        struct pair *one = arena_new(&a, struct pair), *many = arena_array(&a, struct pair, 10);
        assert_int_equal(one->x, 0);
        assert_null(many[9].y);
        memset(many, 0xff, 10 * sizeof *many);
        arena_reset(&a);
    }
    arena_free(&a);
}

static void copies_strings(void **state)
{
    struct arena a = {0};

    (void)state;
    struct str s = arena_str(&a, STR("a\0b"));
    CHECK_STR(s, STR("a\0b"));
    assert_int_equal(s.p[3], '\0');
    s = arena_str(&a, STR(""));
    assert_true(str_present(s));
    assert_int_equal(s.n, 0);
    assert_int_equal(s.p[0], '\0');
    assert_false(str_present(arena_str(&a, STR_NONE)));
    CHECK_STR(arena_printf(&a, "%s-%05d", "id", 42), STR("id-00042"));
    s = arena_printf(&a, "%*d", 70000, 1);
    assert_int_equal(s.n, 70000);
    assert_int_equal(s.p[69999], '1');
    arena_free(&a);
}

static void reset_keeps_little(void **state)
{
    struct arena a = {0};

    (void)state;
    arena_reset(&a); /* of nothing is nothing */
    assert_int_equal(a.total, 0);
    for (size_t i = 0; i < 10000; i++)
        assert_non_null(arena_alloc(&a, 100));
    assert_non_null(arena_alloc(&a, 1000000));
    assert_true(a.total >= 2000000);
    arena_reset(&a);
    assert_true(a.total > 0 && a.total <= 64 * 1024);
    size_t kept = a.total;
    for (size_t i = 0; i < 100; i++) {
        assert_non_null(arena_alloc(&a, 100));
        arena_reset(&a);
    }
    assert_int_equal(a.total, kept);
    arena_free(&a);

    assert_non_null(arena_alloc(&a, 1000000)); /* alone, it must not be what is kept */
    arena_reset(&a);
    assert_true(a.total <= 64 * 1024);
    arena_free(&a);
}

static void large_requests_may_fail(void **state)
{
    struct arena a = {0};

    (void)state;
    assert_null(arena_alloc(&a, SIZE_MAX));
    assert_null(arena_alloc(&a, SIZE_MAX - 8));
    assert_null(arena_zalloc(&a, SIZE_MAX / 2));
    assert_false(str_present(arena_str(&a, (struct str){"x", SIZE_MAX})));
    assert_non_null(arena_alloc(&a, 0));
    assert_non_null(arena_alloc(&a, 1));
    arena_free(&a);
}

static void large_requests_do_not_waste_the_head(void **state)
{
    struct arena a = {0};

    (void)state;
    assert_non_null(arena_alloc(&a, 16));
    size_t before = a.total;
    for (size_t i = 0; i < 10; i++) {
        assert_non_null(arena_alloc(&a, 64 * 1024));
        assert_non_null(arena_alloc(&a, 16));
    }
    assert_true(a.total - before < 10 * (64 * 1024 + 64));
    arena_free(&a);
}

static void x_family(void **state)
{
    (void)state;
    char *z = xstrdup(STR("a\0b"));
    assert_memory_equal(z, "a\0b", 4);
    free(z);
    z = xstrdup(STR_NONE);
    assert_string_equal(z, "");
    free(z);
    unsigned char *p = xzalloc(100);
    for (size_t i = 0; i < 100; i++)
        assert_int_equal(p[i], 0);
    p = xrealloc(p, 1000);
    free(p);
    p = xmalloc(0);
    assert_non_null(p);
    free(p);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(aligns_and_keeps_apart),
        cmocka_unit_test(zeroes),
        cmocka_unit_test(copies_strings),
        cmocka_unit_test(reset_keeps_little),
        cmocka_unit_test(large_requests_may_fail),
        cmocka_unit_test(large_requests_do_not_waste_the_head),
        cmocka_unit_test(x_family),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
