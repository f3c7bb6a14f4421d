/* SPDX-License-Identifier: Apache-2.0 */
#include "base/buf.h"

#include "support/check.h"

static void appends(void **state)
{
    struct buf b = {0};
    const unsigned char bytes[] = {0x00, 0x0f, 0xa5, 0xff};

    (void)state;
    CHECK_STR(buf_str(&b), STR(""));
    assert_true(str_present(buf_str(&b)));
    buf_add(&b, STR("ab"));
    buf_add(&b, STR_NONE);
    buf_add_byte(&b, '\0');
    buf_add_z(&b, "cd ");
    buf_add_hex(&b, bytes, sizeof bytes);
    buf_add_hex(&b, NULL, 0);
    buf_printf(&b, " %s=%d", "x", -5);
    CHECK_STR(buf_str(&b), STR("ab\0cd 000fa5ff x=-5"));
    assert_false(b.failed);
    buf_free(&b);
    assert_null(b.p);
    assert_int_equal(b.cap, 0);
}

static void writes_ints(void **state)
{
    static const int64_t values[] = {0, 1, -1, 9, 10, -10, 1234567890123, INT64_MAX, INT64_MIN};

    (void)state;
    for (size_t i = 0; i < COUNT(values); i++) {
        struct buf b = {0};
        char want[32];
        snprintf(want, sizeof want, "%lld", (long long)values[i]);
        buf_add_int(&b, values[i]);
        CHECK_STR(buf_str(&b), str_of(want));
        buf_free(&b);
    }
}

static void grows_and_consumes(void **state)
{
    struct buf b = {0};

    (void)state;
    for (unsigned i = 0; i < 100000; i++)
        buf_add_byte(&b, (char)(i % 251));
    assert_int_equal(b.n, 100000);
    for (unsigned i = 0; i < 100000; i++)
        if (b.p[i] != (char)(i % 251))
            CHECKF(false, "byte %u", i);
    buf_consume(&b, 0);
    buf_consume(&b, 99990);
    assert_int_equal(b.n, 10);
    for (unsigned i = 0; i < 10; i++)
        assert_int_equal(b.p[i], (char)((99990 + i) % 251));
    buf_consume(&b, 99);
    assert_int_equal(b.n, 0);
    assert_true(b.cap >= 100000);
    buf_free(&b);
}

static void stays_under_max(void **state)
{
    struct buf b = {.max = 10};

    (void)state;
    buf_add(&b, STR("123456"));
    buf_printf(&b, "%d", 7890);
    assert_false(b.failed);
    CHECK_STR(buf_str(&b), STR("1234567890"));
    assert_true(b.cap <= 10);
    buf_add_byte(&b, 'x');
    assert_true(b.failed);
    buf_clear(&b);
    assert_false(b.failed);
    buf_add(&b, STR("12345"));
    buf_add(&b, STR("678901"));
    assert_true(b.failed);
    buf_add_byte(&b, 'x'); /* there would be room, but a gap in the text is worse than its end */
    buf_printf(&b, "x");
    buf_add_int(&b, 1);
    buf_add_hex(&b, "x", 1);
    CHECK_STR(buf_str(&b), STR("12345"));
    assert_false(buf_reserve(&b, 1));
    buf_free(&b);
    assert_int_equal(b.max, 10);
}

static void refuses_impossible_sizes(void **state)
{
    struct buf b = {0};

    (void)state;
    buf_add(&b, STR("x"));
    assert_false(buf_reserve(&b, SIZE_MAX));
    assert_true(b.failed);
    buf_clear(&b);
    buf_add_hex(&b, "x", SIZE_MAX / 2 + 1);
    assert_true(b.failed);
    buf_free(&b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(appends),
        cmocka_unit_test(writes_ints),
        cmocka_unit_test(grows_and_consumes),
        cmocka_unit_test(stays_under_max),
        cmocka_unit_test(refuses_impossible_sizes),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
