/* SPDX-License-Identifier: Apache-2.0 */
#include "base/json.h"

#include "base/rand.h"
#include "support/check.h"

static void writes_strings(void **state)
{
    static const struct {
        struct str s, want;
    } cases[] = {
        {STR_INIT(""), STR_INIT("\"\"")},
        {STR_INIT("plain text, <&>"), STR_INIT("\"plain text, <&>\"")},
        {STR_INIT("\"\\/"), STR_INIT("\"\\\"\\\\/\"")},
        {STR_INIT("\b\f\n\r\t"), STR_INIT("\"\\b\\f\\n\\r\\t\"")},
        {STR_INIT("\0\1\x1f\x7f"), STR_INIT("\"\\u0000\\u0001\\u001f\x7f\"")},
        {STR_INIT("caf\u00e9 \u65e5\u672c \U0001f600\u2028"),
         STR_INIT("\"caf\u00e9 \u65e5\u672c \U0001f600\u2028\"")},
        {STR_INIT("a\xff"
                  "b\xc3"),
         STR_INIT("\"a\ufffd"
                  "b\ufffd\"")},
        {STR_INIT("\xc3\xa9\xc3"), STR_INIT("\"\u00e9\ufffd\"")},
    };

    (void)state;
    for (size_t i = 0; i < COUNT(cases); i++) {
        struct buf b = {0};
        json_add_string(&b, cases[i].s);
        CHECK_STR(buf_str(&b), cases[i].want);
        buf_free(&b);
    }
    struct buf b = {0};
    json_add_string(&b, STR_NONE);
    CHECK_STR(buf_str(&b), STR("\"\""));
    buf_free(&b);
}

static void strings_come_back(void **state)
{
    struct prng r;
    struct buf text = {0}, json = {0};
    struct arena a = {0};
    struct err e;

    (void)state;
    prng_seed(&r, 11);
    for (int i = 0; i < 5000; i++) {
        buf_clear(&text);
        buf_clear(&json);
        for (size_t n = prng_below(&r, 40); n > 0; n--)
            buf_add_byte(&text, (char)(prng_below(&r, 4) == 0 ? prng_below(&r, 256)
                                                              : 32 + prng_below(&r, 95)));
        json_add_string(&json, buf_str(&text));
        CHECKF(json_check(buf_str(&json), &e), "%s", e.message);
        struct str back = json_string(buf_str(&json), &a);
        if (str_is_utf8(buf_str(&text)))
            CHECK_STR(back, buf_str(&text));
        else
            assert_non_null(memmem(back.p, back.n, "\ufffd", 3));
        arena_reset(&a);
    }
    arena_free(&a);
    buf_free(&text);
    buf_free(&json);
}

static void puts_the_commas(void **state)
{
    struct buf b = {0};
    struct json_writer w = {.out = &b};
    struct err e;

    (void)state;
    jw_open(&w, '{');
    jw_member_str(&w, "id", STR("x\"y"));
    jw_member_str_opt(&w, "absent", STR_NONE);
    jw_member_str_opt(&w, "empty", STR(""));
    jw_member_raw_opt(&w, "raw", STR("{\"a\": 1}"));
    jw_member_raw_opt(&w, "none", STR_NONE);
    jw_member_int(&w, "n", INT64_MIN);
    jw_key(&w, "list");
    jw_open(&w, '[');
    jw_int(&w, 1);
    jw_bool(&w, true);
    jw_bool(&w, false);
    jw_null(&w);
    jw_str(&w, STR("s"));
    jw_open(&w, '[');
    jw_close(&w, ']');
    jw_open(&w, '{');
    jw_key(&w, "k");
    jw_raw(&w, STR("2.0"));
    jw_close(&w, '}');
    jw_raw(&w, STR("3"));
    jw_close(&w, ']');
    jw_key(&w, "last");
    jw_null(&w);
    jw_close(&w, '}');
    CHECK_STR(buf_str(&b),
              STR("{\"id\":\"x\\\"y\",\"empty\":\"\",\"raw\":{\"a\": 1},\"n\":-9223372036854775808,"
                  "\"list\":[1,true,false,null,\"s\",[],{\"k\":2.0},3],\"last\":null}"));
    assert_true(json_check(buf_str(&b), &e));
    buf_free(&b);
}

static void is_sticky(void **state)
{
    struct buf b = {.max = 8};
    struct json_writer w = {.out = &b};

    (void)state;
    jw_open(&w, '[');
    jw_str(&w, STR("longer than eight bytes"));
    jw_close(&w, ']');
    assert_true(b.failed);
    assert_true(b.n <= 8);
    buf_free(&b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(writes_strings),
        cmocka_unit_test(strings_come_back),
        cmocka_unit_test(puts_the_commas),
        cmocka_unit_test(is_sticky),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
