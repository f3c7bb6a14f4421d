/* SPDX-License-Identifier: Apache-2.0 */
#include "base/str.h"

#include "base/utf8.h"
#include "support/check.h"

static void starts_and_slices(void **state)
{
    (void)state;
    assert_true(str_starts(STR("webhook"), STR("web")));
    assert_true(str_starts(STR("web"), STR("web")));
    assert_true(str_starts(STR(""), STR("")));
    assert_true(str_starts(STR_NONE, STR_NONE));
    assert_false(str_starts(STR("we"), STR("web")));
    assert_false(str_starts(STR("Web"), STR("web")));

    CHECK_STR(str_slice(STR("abcdef"), 1, 3), STR("bc"));
    CHECK_STR(str_slice(STR("abcdef"), 4, 99), STR("ef"));
    CHECK_STR(str_slice(STR("abcdef"), 9, 99), STR(""));
    CHECK_STR(str_slice(STR("abcdef"), 3, 1), STR(""));
    assert_false(str_present(str_slice(STR_NONE, 0, 5)));
}

static void compares(void **state)
{
    static const struct {
        struct str a, b;
        int sign;
    } cases[] = {
        {STR_INIT(""), STR_INIT(""), 0},         {STR_INIT(""), STR_INIT("a"), -1},
        {STR_INIT("a"), STR_INIT("a"), 0},       {STR_INIT("a"), STR_INIT("ab"), -1},
        {STR_INIT("b"), STR_INIT("ab"), 1},      {STR_INIT("a\0"), STR_INIT("a"), 1},
        {STR_INIT("z"), STR_INIT("\u00e9"), -1}, {STR_INIT("\ufb00"), STR_INIT("\U0001f600"), -1},
        {STR_INIT("Z"), STR_INIT("a"), -1},
    };

    (void)state;
    for (size_t i = 0; i < COUNT(cases); i++) {
        int forth = str_cmp(cases[i].a, cases[i].b), back = str_cmp(cases[i].b, cases[i].a);
        CHECKF((forth > 0) - (forth < 0) == cases[i].sign, "case %zu", i);
        CHECKF((back > 0) - (back < 0) == -cases[i].sign, "case %zu backwards", i);
        CHECKF(str_eq(cases[i].a, cases[i].b) == (cases[i].sign == 0), "case %zu", i);
        CHECKF(str_eq_secret(cases[i].a, cases[i].b) == (cases[i].sign == 0), "case %zu", i);
    }
    assert_true(str_eq(STR_NONE, STR("")));
    assert_true(str_eq_nocase(STR("Content-TYPE"), STR("content-type")));
    assert_true(str_eq_nocase(STR("[\\]^_"), STR("[\\]^_")));
    assert_false(str_eq_nocase(STR("["), STR("{"))); /* 0x20 apart, but no letters */
    assert_false(str_eq_nocase(STR("@"), STR("`")));
    assert_false(str_eq_nocase(STR("\u00c9"), STR("\u00e9"))); /* ASCII only */
    assert_false(str_eq_nocase(STR("a"), STR("ab")));
}

static void reads_int64(void **state)
{
    static const struct {
        struct str s;
        bool ok;
        int64_t v;
    } cases[] = {
        {STR_INIT("0"), true, 0},
        {STR_INIT("1700000000"), true, 1700000000},
        {STR_INIT("007"), true, 7},
        {STR_INIT("9223372036854775807"), true, INT64_MAX},
        {STR_INIT("9223372036854775808"), false, 0},
        {STR_INIT("99999999999999999999999"), false, 0},
        {STR_INIT(""), false, 0},
        {STR_INIT("-1"), false, 0},
        {STR_INIT("+1"), false, 0},
        {STR_INIT(" 1"), false, 0},
        {STR_INIT("1 "), false, 0},
        {STR_INIT("1\0"), false, 0},
        {STR_INIT("1.0"), false, 0},
        {STR_INIT("0x1"), false, 0},
        {STR_INIT("\u0661"), false, 0}, /* a digit, but not ours */
    };

    (void)state;
    for (size_t i = 0; i < COUNT(cases); i++) {
        int64_t v = 42;
        CHECKF(str_to_int64(cases[i].s, &v) == cases[i].ok, "case %zu", i);
        CHECKF(v == (cases[i].ok ? cases[i].v : 42), "case %zu: %lld", i, (long long)v);
    }
    int64_t v;
    assert_false(str_to_int64(STR_NONE, &v));
}

/* RFC 3629's grammar by decoding: the lead byte gives length and least value. */
static bool naive_utf8(const unsigned char *p, size_t n)
{
    for (size_t i = 0; i < n;) {
        unsigned c = p[i];
        size_t len = c < 0x80 ? 1 : c >> 5 == 6 ? 2 : c >> 4 == 14 ? 3 : c >> 3 == 30 ? 4 : 0;
        static const unsigned least[] = {0, 0, 0x80, 0x800, 0x10000},
                              mask[] = {0, 0x7f, 0x1f, 0x0f, 0x07};
        if (len == 0 || i + len > n)
            return false;
        unsigned v = c & mask[len];
        for (size_t j = 1; j < len; j++) {
            if (p[i + j] >> 6 != 2)
                return false;
            v = v << 6 | (p[i + j] & 0x3f);
        }
        if (v < least[len] || v > 0x10ffff || (v >= 0xd800 && v <= 0xdfff))
            return false;
        i += len;
    }
    return true;
}

static void knows_utf8(void **state)
{
    /* Every pair of a lead byte and a second byte, with tails that are good, short and bad; behind
     * 0 to 9 plain bytes, so that it falls anywhere in a word. */
    (void)state;
    for (unsigned a = 0; a < 256; a++) {
        for (unsigned b = 0; b < 256; b++) {
            for (size_t tails = 0; tails <= 3; tails++) {
                unsigned char text[16] = {'x', 'x', 'x', 'x', 'x', 'x', 'x', 'x', 'x'};
                size_t at = (a + b) % 10;
                text[at] = (unsigned char)a;
                text[at + 1] = (unsigned char)b;
                text[at + 2] = 0x80;
                text[at + 3] = 0xbf;
                size_t n = at + 1 + tails;
                CHECKF(str_is_utf8(str_make(text, n)) == naive_utf8(text, n), "%02x %02x, %zu", a,
                       b, tails);
            }
        }
    }
    assert_true(str_is_utf8(STR("")));
    assert_true(str_is_utf8(STR_NONE));
    assert_true(str_is_utf8(STR("caf\u00e9 \u65e5\u672c\u8a9e \U0001f600")));
    assert_false(str_is_utf8(STR("\xed\xa0\x80")));     /* a surrogate */
    assert_false(str_is_utf8(STR("\xc0\x80")));         /* NUL, overlong */
    assert_false(str_is_utf8(STR("\xf4\x90\x80\x80"))); /* U+110000 */
}

static void encodes_utf8(void **state)
{
    (void)state;
    for (uint32_t c = 0; c <= 0x10ffff; c++) {
        char text[4];
        if (c >= 0xd800 && c <= 0xdfff)
            continue;
        size_t n = utf8_encode(c, text);
        if (utf8_len(text, text + n) != n || !naive_utf8((const unsigned char *)text, n))
            CHECKF(false, "U+%04x", (unsigned)c);
    }
}

static void cuts_between_characters(void **state)
{
    static const struct {
        struct str s;
        size_t max, want;
    } cases[] = {
        {STR_INIT("abc"), 5, 3},
        {STR_INIT("abc"), 2, 2},
        {STR_INIT("a\u00e9"), 2, 1},
        {STR_INIT("a\u00e9"), 3, 3},
        {STR_INIT("\u20ac\u20ac"), 5, 3},
        {STR_INIT("\u20ac\u20ac"), 4, 3},
        {STR_INIT("\U0001f600"), 3, 0},
        {STR_INIT("abc"), 0, 0},
        {STR_INIT("\x80\x80\x80\x80\x80\x80"), 5, 5},
    };

    (void)state;
    for (size_t i = 0; i < COUNT(cases); i++)
        CHECKF(utf8_cut(cases[i].s.p, cases[i].s.n, cases[i].max) == cases[i].want, "case %zu", i);
}

static void finds_controls(void **state)
{
    static const struct {
        struct str s;
        bool has;
    } cases[] = {
        {STR_INIT(""), false},        {STR_INIT("plain ~"), false},  {STR_INIT("a\nb"), true},
        {STR_INIT("a\0"), true},      {STR_INIT("\x1f"), true},      {STR_INIT("\x7f"), true},
        {STR_INIT("\xc2\x80"), true}, {STR_INIT("x\xc2\x9f"), true}, {STR_INIT("\u00a0"), false},
        {STR_INIT("\u00c2"), false},  {STR_INIT("\xc2\x80x"), true}, {STR_INIT("\u65e5"), false},
        {STR_INIT("\u4e80"), false},  {STR_INIT("\xc2"), false},
    };

    (void)state;
    for (size_t i = 0; i < COUNT(cases); i++)
        CHECKF(str_has_control(cases[i].s) == cases[i].has, "case %zu", i);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(starts_and_slices), cmocka_unit_test(compares),
        cmocka_unit_test(reads_int64),       cmocka_unit_test(knows_utf8),
        cmocka_unit_test(encodes_utf8),      cmocka_unit_test(cuts_between_characters),
        cmocka_unit_test(finds_controls),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
