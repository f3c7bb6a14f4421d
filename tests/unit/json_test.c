/* SPDX-License-Identifier: Apache-2.0
 * Reading JSON: walkers, decoding, and a request's own fields. */
#include "base/json.h"

#include <stdlib.h>

#include "support/check.h"
#include "support/random_json.h"

static void tells_types(void **state)
{
    static const struct {
        struct str v;
        enum json_type type;
    } cases[] = {
        {STR_INIT("null"), JSON_NULL},   {STR_INIT("true"), JSON_BOOL},
        {STR_INIT("false"), JSON_BOOL},  {STR_INIT("0"), JSON_NUMBER},
        {STR_INIT("-1"), JSON_NUMBER},   {STR_INIT("9e9"), JSON_NUMBER},
        {STR_INIT("\"\""), JSON_STRING}, {STR_INIT(" \n[]"), JSON_ARRAY},
        {STR_INIT("\t{}"), JSON_OBJECT}, {STR_INIT(""), JSON_INVALID},
        {STR_INIT("  "), JSON_INVALID},  {STR_INIT("x"), JSON_INVALID},
    };

    (void)state;
    for (size_t i = 0; i < COUNT(cases); i++)
        CHECKF(json_type_of(cases[i].v) == cases[i].type, "case %zu", i);
    assert_int_equal(json_type_of(STR_NONE), JSON_INVALID);
    CHECK_STR(json_trim(STR(" \t\r\n[ 1 ] \n")), STR("[ 1 ]"));
    CHECK_STR(json_trim(STR(" ")), STR(""));
    assert_false(str_present(json_trim(STR_NONE)));
}

static void walks_members(void **state)
{
    static const struct {
        struct str key, value;
    } want[] = {
        {STR_INIT("a"), STR_INIT("1")},
        {STR_INIT("b\"]}"), STR_INIT("\"x\\\\\"")},
        {STR_INIT(""), STR_INIT("[1, {\"x\" : \"]}\\\"\"}, []]")},
        {STR_INIT("\u00e9\U0001f600\ufffd"), STR_INIT("{ }")},
        {STR_INIT("n"), STR_INIT("-1.5e3")},
        {STR_INIT("t"), STR_INIT("true")},
    };
    struct str text =
        STR(" { \"a\" : 1 ,\"b\\\"]}\":\"x\\\\\", \"\":[1, {\"x\" : \"]}\\\"\"}, []] ,\n"
            "\"\\u00e9\\ud83d\\ude00\\ud83d\":{ },\"n\":-1.5e3\t,\"t\":true} ");
    struct json_walk w = {0};
    struct json_member m;
    struct arena a = {0};
    struct err e;
    size_t n = 0;

    (void)state;
    assert_true(json_check(text, &e));
    for (; json_next_member(text, &w, &a, &m); n++) {
        assert_true(n < COUNT(want));
        CHECK_STR(m.key, want[n].key);
        CHECK_STR(m.value, want[n].value);
        CHECK_STR(json_get(text, want[n].key, &a), want[n].value);
    }
    assert_int_equal(n, COUNT(want));
    assert_false(json_next_member(text, &w, &a, &m)); /* and stays at the end */
    assert_false(str_present(json_get(text, STR("zzz"), &a)));
    arena_free(&a);
}

static void walks_items(void **state)
{
    static const struct str want[] = {STR_INIT("1"),         STR_INIT("\"a,]\\\"\""),
                                      STR_INIT("[2 , [3]]"), STR_INIT("{\"k\":[]}"),
                                      STR_INIT("null"),      STR_INIT("[]")};
    struct str text = STR("\n[ 1,\"a,]\\\"\" ,[2 , [3]],{\"k\":[]},null ,[] ]");
    struct json_walk w = {0};
    struct str item;
    size_t n = 0;

    (void)state;
    for (; json_next_item(text, &w, &item); n++) {
        assert_true(n < COUNT(want));
        CHECK_STR(item, want[n]);
    }
    assert_int_equal(n, COUNT(want));
    assert_false(json_next_item(text, &w, &item));
}

static void walks_of_nothing_end_at_once(void **state)
{
    static const struct str texts[] = {STR_INIT("{}"),  STR_INIT(" { } "), STR_INIT("[]"),
                                       STR_INIT("[ ]"), STR_INIT("1"),     STR_INIT(""),
                                       STR_INIT("  "),  STR_INIT("null"),  {NULL, 0}};
    struct arena a = {0};

    (void)state;
    for (size_t i = 0; i < COUNT(texts); i++) {
        struct json_walk w = {0}, v = {0};
        struct json_member m;
        struct str item;
        CHECKF(!json_next_member(texts[i], &w, &a, &m), "case %zu", i);
        CHECKF(!json_next_item(texts[i], &v, &item), "case %zu", i);
        CHECKF(!str_present(json_get(texts[i], STR("a"), &a)), "case %zu", i);
    }
    arena_free(&a);
}

static void decodes_strings(void **state)
{
    static const struct {
        struct str value, want;
    } cases[] = {
        {STR_INIT("\"\""), STR_INIT("")},
        {STR_INIT(" \"plain\" "), STR_INIT("plain")},
        {STR_INIT("\"\\\"\\\\\\/\\b\\f\\n\\r\\t\""), STR_INIT("\"\\/\b\f\n\r\t")},
        {STR_INIT("\"\\u0000\\u0041\\u00e9\\u20AC\""), STR_INIT("\0A\u00e9\u20ac")},
        {STR_INIT("\"\\ud83d\\ude00\""), STR_INIT("\U0001f600")},
        {STR_INIT("\"\\udbff\\udfff\""), STR_INIT("\U0010ffff")},
        {STR_INIT("\"\\ud800\\udc00\""), STR_INIT("\U00010000")},
        {STR_INIT("\"\\ud800\""), STR_INIT("\ufffd")},
        {STR_INIT("\"\\ud800\\n\""), STR_INIT("\ufffd\n")},
        {STR_INIT("\"\\ud800\\u0041\""), STR_INIT("\ufffdA")},
        {STR_INIT("\"\\udc00\\ud800\""), STR_INIT("\ufffd\ufffd")},
        {STR_INIT("\"\\ud800\\ud800\\udc00\""), STR_INIT("\ufffd\U00010000")},
        {STR_INIT("\"\\\\u0041\""), STR_INIT("\\u0041")},
        {STR_INIT("\"\u65e5\\u672c\""), STR_INIT("\u65e5\u672c")},
    };
    struct arena a = {0};

    (void)state;
    for (size_t i = 0; i < COUNT(cases); i++)
        CHECK_STR(json_string(cases[i].value, &a), cases[i].want);
    assert_false(str_present(json_string(STR("1"), &a)));
    assert_false(str_present(json_string(STR("\""), &a)));
    assert_false(str_present(json_string(STR_NONE, &a)));
    arena_free(&a);
}

static void reads_int64(void **state)
{
    static const struct {
        struct str value;
        bool ok;
        int64_t v;
    } cases[] = {
        {STR_INIT("0"), true, 0},
        {STR_INIT("-0"), true, 0},
        {STR_INIT(" 42\n"), true, 42},
        {STR_INIT("-7"), true, -7},
        {STR_INIT("9223372036854775807"), true, INT64_MAX},
        {STR_INIT("-9223372036854775808"), true, INT64_MIN},
        {STR_INIT("9223372036854775808"), false, 0},
        {STR_INIT("-9223372036854775809"), false, 0},
        {STR_INIT("18446744073709551617"), false, 0},
        {STR_INIT("1.0"), false, 0},
        {STR_INIT("1e2"), false, 0},
        {STR_INIT("\"1\""), false, 0},
        {STR_INIT("null"), false, 0},
        {STR_INIT("-"), false, 0},
        {STR_INIT(""), false, 0},
    };

    (void)state;
    for (size_t i = 0; i < COUNT(cases); i++) {
        int64_t v = 99;
        CHECKF(json_int64(cases[i].value, &v) == cases[i].ok, "case %zu", i);
        CHECKF(v == (cases[i].ok ? cases[i].v : 99), "case %zu", i);
    }
}

struct body {
    struct str kind, target, args, count;
};

static bool read_fields(struct str text, bool allow_empty, struct body *b, struct arena *a,
                        struct err *e)
{
    const struct json_field fields[] = {
        {"kind", true, false, 1u << JSON_STRING, &b->kind},
        {"target", false, false, 1u << JSON_STRING | 1u << JSON_ARRAY, &b->target},
        {"args", false, true, 0, &b->args},
        {"count", false, true, 1u << JSON_NUMBER, &b->count},
    };

    return json_fields(text, allow_empty, fields, COUNT(fields), a, e);
}

static void reads_fields(void **state)
{
    static const struct {
        struct str text, kind, target, args, count;
    } cases[] = {
        {STR_INIT("{\"kind\":\"a\"}"), STR_INIT("\"a\""), {NULL, 0}, {NULL, 0}, {NULL, 0}},
        {STR_INIT(" {\n \"args\" : { \"x\" : [ 1 ] , \"kind\":7} , \"k\\u0069nd\" : \"a\" , "
                  "\"target\":[\"b\",{}]}\n"),
         STR_INIT("\"a\""),
         STR_INIT("[\"b\",{}]"),
         STR_INIT("{ \"x\" : [ 1 ] , \"kind\":7}"),
         {NULL, 0}},
        {STR_INIT("{\"kind\":\"a\",\"target\":null,\"args\":null,\"count\":null}"),
         STR_INIT("\"a\""),
         {NULL, 0},
         STR_INIT("null"),
         {NULL, 0}},
        {STR_INIT("{\"count\":-1.5e3,\"args\":0,\"target\":\"\",\"kind\":\"\"}"), STR_INIT("\"\""),
         STR_INIT("\"\""), STR_INIT("0"), STR_INIT("-1.5e3")},
    };
    struct arena a = {0};
    struct err e;

    (void)state;
    for (size_t i = 0; i < COUNT(cases); i++) {
        struct body b;
        memset(&b, 0xff, sizeof b);
        CHECKF(read_fields(cases[i].text, false, &b, &a, &e), "case %zu: %s", i, e.message);
        const struct str got[] = {b.kind, b.target, b.args, b.count};
        const struct str want[] = {cases[i].kind, cases[i].target, cases[i].args, cases[i].count};
        for (size_t j = 0; j < COUNT(got); j++) {
            CHECKF(str_present(got[j]) == str_present(want[j]), "case %zu, field %zu", i, j);
            CHECK_STR(got[j], want[j]);
        }
    }
    arena_free(&a);
}

static void refuses_fields(void **state)
{
    static const struct {
        struct str text;
        const char *message;
    } cases[] = {
        {STR_INIT("{}"), "missing field \"kind\""},
        {STR_INIT("{\"kind\":null}"), "missing field \"kind\""},
        {STR_INIT("{\"kind\":\"a\",\"foo\":1}"), "unknown field \"foo\""},
        {STR_INIT("{\"kind\":\"a\",\"Kind\":\"a\"}"), "unknown field \"Kind\""},
        {STR_INIT("{\"kind\":\"a\",\"\":\"a\"}"), "unknown field \"\""},
        {STR_INIT("{\"kind\":\"a\",\"kind\":\"a\"}"), "duplicate field \"kind\""},
        {STR_INIT("{\"kind\":\"a\",\"k\\u0069nd\":null}"), "duplicate field \"kind\""},
        {STR_INIT("{\"target\":null,\"target\":\"a\",\"kind\":\"a\"}"),
         "duplicate field \"target\""},
        {STR_INIT("{\"kind\":1}"), "field \"kind\" must be a string"},
        {STR_INIT("{\"kind\":\"a\",\"target\":{}}"),
         "field \"target\" must be a string or an array"},
        {STR_INIT("{\"kind\":\"a\",\"count\":\"1\"}"), "field \"count\" must be a number"},
        {STR_INIT("[]"), "the body must be a JSON object"},
        {STR_INIT("[{\"kind\":\"a\"}]"), "the body must be a JSON object"},
        {STR_INIT("\"kind\""), "the body must be a JSON object"},
        {STR_INIT("null"), "the body must be a JSON object"},
        {STR_INIT(""), "invalid JSON at byte 0 (line 1, column 1): unexpected end of text"},
        {STR_INIT("{\"kind\":\"a\"} x"),
         "invalid JSON at byte 13 (line 1, column 14): text after the value"},
        {STR_INIT("{\"kind\":\"a\",\"args\":{\"x\":}}"),
         "invalid JSON at byte 24 (line 1, column 25): expected a value"},
    };
    struct arena a = {0};
    struct err e;

    (void)state;
    for (size_t i = 0; i < COUNT(cases); i++) {
        struct body b = {STR("untouched"), STR_NONE, STR_NONE, STR_NONE};
        CHECKF(!read_fields(cases[i].text, false, &b, &a, &e), "case %zu", i);
        assert_int_equal(e.code, ERR_VALIDATION);
        CHECK_STR(str_of(e.message), str_of(cases[i].message));
        CHECK_STR(b.kind, STR("untouched"));
    }
    struct body b;
    assert_false(read_fields(STR(""), true, &b, &a, &e)); /* as {}: its required field is missing */
    assert_string_equal(e.message, "missing field \"kind\"");
    struct str only = STR("x");
    const struct json_field one[] = {{"only", false, false, 0, &only}};
    assert_true(json_fields(STR(""), true, one, 1, &a, &e));
    assert_false(str_present(only));
    assert_true(json_fields(STR_NONE, true, one, 1, &a, &e));
    assert_true(json_fields(STR("{}"), false, NULL, 0, &a, &e));
    assert_false(json_fields(STR(" "), true, one, 1, &a, &e));
    arena_free(&a);
}

/* What the walkers hand out is valid by itself, lies in the source, and is all of it. */
static size_t count_values(struct str value, struct arena *a)
{
    struct json_walk w = {0};
    struct json_member m;
    struct str item;
    struct err e;
    size_t n = 1;

    CHECKF(json_check(value, &e), "%.*s: %s", STR_ARG(value), e.message);
    if (json_type_of(value) == JSON_OBJECT)
        while (json_next_member(value, &w, a, &m)) {
            assert_true(str_is_utf8(m.key));
            n += count_values(m.value, a);
        }
    else if (json_type_of(value) == JSON_ARRAY)
        while (json_next_item(value, &w, &item))
            n += count_values(item, a);
    return n;
}

static size_t count_tokens(
    struct str text) /* values, by counting outside of strings: scalars, strings and brackets */
{
    size_t n = 0;
    bool in_string = false, in_scalar = false;

    for (size_t i = 0; i < text.n; i++) {
        char c = text.p[i];
        if (in_string) {
            i += c == '\\';
            in_string = c != '"';
            continue;
        }
        bool plain = memchr(" \t\r\n,:[]{}\"", c, 11) == NULL;
        n += (plain && !in_scalar) || c == '[' || c == '{' || c == '"';
        in_scalar = plain;
        in_string = c == '"';
        n -= c == ':'; /* a key is no value */
    }
    return n;
}

static void walkers_miss_nothing(void **state)
{
    struct buf text = {0};
    struct arena a = {0};
    struct prng r;

    (void)state;
    prng_seed(&r, 9);
    for (int i = 0; i < 1500; i++) {
        buf_clear(&text);
        random_value(&r, &text, 4, true);
        CHECKF(count_values(buf_str(&text), &a) == count_tokens(buf_str(&text)), "%.*s",
               STR_ARG(buf_str(&text)));
        arena_reset(&a);
    }
    arena_free(&a);
    buf_free(&text);
}

/* On texts that nobody checked the walkers may say what they like, but they end and stay inside
 * (for ASan to see). */
static void walkers_stay_inside_invalid_texts(void **state)
{
    struct buf text = {0};
    struct arena a = {0};
    struct prng r;

    (void)state;
    prng_seed(&r, 10);
    for (int i = 0; i < 5000; i++) {
        buf_clear(&text);
        random_value(&r, &text, 3, true);
        random_damage(&r, &text);
        char *exact = xmalloc(text.n);
        memcpy(exact, text.p, text.n);
        struct json_walk w = {0}, v = {0};
        struct json_member m;
        struct str item;
        size_t n = 0;
        while (n++ <= text.n && json_next_member(str_make(exact, text.n), &w, &a, &m))
            assert_true(m.value.p >= exact && m.value.p + m.value.n <= exact + text.n);
        while (n++ <= 3 * text.n && json_next_item(str_make(exact, text.n), &v, &item))
            assert_true(item.p >= exact && item.p + item.n <= exact + text.n);
        assert_true(n <= 3 * text.n + 3);
        free(exact);
        arena_reset(&a);
    }
    arena_free(&a);
    buf_free(&text);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(tells_types),          cmocka_unit_test(walks_members),
        cmocka_unit_test(walks_items),          cmocka_unit_test(walks_of_nothing_end_at_once),
        cmocka_unit_test(decodes_strings),      cmocka_unit_test(reads_int64),
        cmocka_unit_test(reads_fields),         cmocka_unit_test(refuses_fields),
        cmocka_unit_test(walkers_miss_nothing), cmocka_unit_test(walkers_stay_inside_invalid_texts),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
