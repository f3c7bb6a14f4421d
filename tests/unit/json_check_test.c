/* SPDX-License-Identifier: Apache-2.0
 * The grammar. The tables follow the public parsing corpus (JSONTestSuite): what a parser must
 * accept, must refuse, and may decide, with what is decided here. */
#include "base/json.h"

#include "support/check.h"
#include "support/naive_json.h"

static const struct str ACCEPTED[] = {
    STR_INIT("[[]   ]"),
    STR_INIT("[\"\"]"),
    STR_INIT("[]"),
    STR_INIT("[\"a\"]"),
    STR_INIT("[false]"),
    STR_INIT("[null, 1, \"1\", {}]"),
    STR_INIT("[null]"),
    STR_INIT("[1\n]"),
    STR_INIT(" [1]"),
    STR_INIT("[1,null,null,null,2]"),
    STR_INIT("[2] "),
    STR_INIT("[123e65]"),
    STR_INIT("[0e+1]"),
    STR_INIT("[0e1]"),
    STR_INIT("[ 4]"),
    STR_INIT(
        "[-0.00000000000000000000000000000000000000000000000000000000000000000000000000000000001]"),
    STR_INIT("[20e1]"),
    STR_INIT("[-0]"),
    STR_INIT("[-123]"),
    STR_INIT("[-1]"),
    STR_INIT("[1E22]"),
    STR_INIT("[1E-2]"),
    STR_INIT("[1E+2]"),
    STR_INIT("[123e45]"),
    STR_INIT("[123.456e78]"),
    STR_INIT("[1e-2]"),
    STR_INIT("[1e+2]"),
    STR_INIT("[123]"),
    STR_INIT("[123.456789]"),
    STR_INIT("{\"asd\":\"sdf\", \"dfg\":\"fgh\"}"),
    STR_INIT("{\"asd\":\"sdf\"}"),
    STR_INIT("{\"a\":\"b\",\"a\":\"c\"}"), /* json_check does not look at duplicates */
    STR_INIT("{}"),
    STR_INIT("{\"\":0}"),
    STR_INIT("{\"foo\\u0000bar\": 42}"),
    STR_INIT("{ \"min\": -1.0e+28, \"max\": 1.0e+28 }"),
    STR_INIT("{\"x\":[{\"id\": \"xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx\"}], \"id\": "
             "\"xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx\"}"),
    STR_INIT("{\"a\":[]}"),
    STR_INIT("{\n\"a\": \"b\"\n}"),
    STR_INIT("[\"\\u0060\\u012a\\u12AB\"]"),
    STR_INIT("[\"\\uD801\\udc37\"]"),
    STR_INIT("[\"\\ud83d\\ude39\\ud83d\\udc8d\"]"),
    STR_INIT("[\"\\\"\\\\\\/\\b\\f\\n\\r\\t\"]"),
    STR_INIT("[\"\\\\u0000\"]"),
    STR_INIT("[\"\\\"\"]"),
    STR_INIT("[\"a/*b*/c/*d//e\"]"),
    STR_INIT("[\"\\\\a\"]"),
    STR_INIT("[\"\\\\n\"]"),
    STR_INIT("[\"\\u0012\"]"),
    STR_INIT("[\"\\uFFFF\"]"),
    STR_INIT("[\"asd\"]"),
    STR_INIT("[ \"asd\"]"),
    STR_INIT("[\"\\uDBFF\\uDFFF\"]"),
    STR_INIT("[\"new\\u00A0line\"]"),
    STR_INIT("[\"\xf4\x8f\xbf\xbf\"]"),
    STR_INIT("[\"\xef\xbf\xbf\"]"),
    STR_INIT("[\"\\u0000\"]"),
    STR_INIT("[\"\\u002c\"]"),
    STR_INIT("[\"\xcf\x80\"]"),
    STR_INIT("[\"\xf0\x9b\xbf\xbf\"]"),
    STR_INIT("[\"asd \"]"),
    STR_INIT("\" \""),
    STR_INIT("[\"\\uD834\\uDd1e\"]"),
    STR_INIT("[\"\\u0821\"]"),
    STR_INIT("[\"\\u0123\"]"),
    STR_INIT("[\"\xe2\x80\xa8\"]"),
    STR_INIT("[\"\xe2\x80\xa9\"]"),
    STR_INIT("[\"\\u0061\\u30af\\u30EA\\u30b9\"]"),
    STR_INIT("[\"new\\u000Aline\"]"),
    STR_INIT("[\"\x7f\"]"),
    STR_INIT("[\"\\uA66D\"]"),
    STR_INIT("[\"\\u005C\"]"),
    STR_INIT("[\"\xe2\x8d\x82\xe3\x88\xb4\xe2\x8d\x82\"]"),
    STR_INIT("[\"\\uDBFF\\uDFFE\"]"),
    STR_INIT("[\"\\u200B\"]"),
    STR_INIT("[\"\\u2064\"]"),
    STR_INIT("[\"\\uFDD0\"]"),
    STR_INIT("[\"\\uFFFE\"]"),
    STR_INIT("[\"\\u0022\"]"),
    STR_INIT("[\"a\x7f"
             "a\"]"),
    STR_INIT("false"),
    STR_INIT("42"),
    STR_INIT("-0.1"),
    STR_INIT("null"),
    STR_INIT("\"asd\""),
    STR_INIT("true"),
    STR_INIT("\"\""),
    STR_INIT("[\"a\"]\n"),
    STR_INIT("[true]"),
    STR_INIT(" [] "),
    STR_INIT("\t\r\n {}"),
    /* The parser may decide: numbers of any size, since they are never computed with, and lone
       surrogates. */
    STR_INIT("[123.456e-789]"),
    STR_INIT("[0.4e00669999999999999999999999999999999999999999999999999999999999999999999999]"),
    STR_INIT("[-1e+9999]"),
    STR_INIT("[1.5e+9999]"),
    STR_INIT("[-123123e100000]"),
    STR_INIT("[123123e100000]"),
    STR_INIT("[123123e-10000000]"),
    STR_INIT("[-123123123123123123123123123123]"),
    STR_INIT("[100000000000000000000]"),
    STR_INIT("[-237462374673276894279832749832423479823246327846]"),
    STR_INIT("{\"\\uDFAA\":0}"),
    STR_INIT("[\"\\uDADA\"]"),
    STR_INIT("[\"\\uD888\\u1234\"]"),
    STR_INIT("[\"\\uD800\\n\"]"),
    STR_INIT("[\"\\uDd1ea\"]"),
    STR_INIT("[\"\\uD800\\uD800\\n\"]"),
    STR_INIT("[\"\\ud800\"]"),
    STR_INIT("[\"\\ud800abc\"]"),
    STR_INIT("[\"\\uDd1e\\uD834\"]"),
    STR_INIT("[\"\\uDFAA\"]"),
};

static const struct str REFUSED[] = {
    STR_INIT("[1 true]"),
    STR_INIT("[a\xe5]"),
    STR_INIT("[\"\": 1]"),
    STR_INIT("[\"\"],"),
    STR_INIT("[,1]"),
    STR_INIT("[1,,2]"),
    STR_INIT("[\"x\",,]"),
    STR_INIT("[\"x\"]]"),
    STR_INIT("[\"\",]"),
    STR_INIT("[\"x\""),
    STR_INIT("[x"),
    STR_INIT("[3[4]]"),
    STR_INIT("[\xff]"),
    STR_INIT("[1:2]"),
    STR_INIT("[,]"),
    STR_INIT("[-]"),
    STR_INIT("[   , \"\"]"),
    STR_INIT("[\"a\",\n4\n,1,"),
    STR_INIT("[1,]"),
    STR_INIT("[1,,]"),
    STR_INIT("[\"\x0b"
             "a\"\\f]"),
    STR_INIT("[*]"),
    STR_INIT("[\"\""),
    STR_INIT("[1,"),
    STR_INIT("[1,\n1\n,1"),
    STR_INIT("[{}"),
    STR_INIT("[fals]"),
    STR_INIT("[nul]"),
    STR_INIT("[tru]"),
    STR_INIT("123\0"),
    STR_INIT("[++1234]"),
    STR_INIT("[+1]"),
    STR_INIT("[+Inf]"),
    STR_INIT("[-01]"),
    STR_INIT("[-1.0.]"),
    STR_INIT("[-2.]"),
    STR_INIT("[-NaN]"),
    STR_INIT("[.-1]"),
    STR_INIT("[.2e-3]"),
    STR_INIT("[0.1.2]"),
    STR_INIT("[0.3e+]"),
    STR_INIT("[0.3e]"),
    STR_INIT("[0.e1]"),
    STR_INIT("[0E+]"),
    STR_INIT("[0E]"),
    STR_INIT("[0e+]"),
    STR_INIT("[0e]"),
    STR_INIT("[1.0e+]"),
    STR_INIT("[1.0e-]"),
    STR_INIT("[1.0e]"),
    STR_INIT("[1 000.0]"),
    STR_INIT("[1eE2]"),
    STR_INIT("[2.e+3]"),
    STR_INIT("[2.e-3]"),
    STR_INIT("[2.e3]"),
    STR_INIT("[9.e+]"),
    STR_INIT("[Inf]"),
    STR_INIT("[NaN]"),
    STR_INIT("[\xef\xbc\x91]"),
    STR_INIT("[1+2]"),
    STR_INIT("[0x1]"),
    STR_INIT("[0x42]"),
    STR_INIT("[Infinity]"),
    STR_INIT("[0e+-1]"),
    STR_INIT("[-123.123foo]"),
    STR_INIT("[123\xe5]"),
    STR_INIT("[1e1\xe5]"),
    STR_INIT("[0\xe5]\n"),
    STR_INIT("[-Infinity]"),
    STR_INIT("[-foo]"),
    STR_INIT("[- 1]"),
    STR_INIT("[-012]"),
    STR_INIT("[-.123]"),
    STR_INIT("[-1x]"),
    STR_INIT("[1ea]"),
    STR_INIT("[1e\xe5]"),
    STR_INIT("[1.]"),
    STR_INIT("[.123]"),
    STR_INIT("[1.2a-3]"),
    STR_INIT("[1.8011670033376514H-308]"),
    STR_INIT("[012]"),
    STR_INIT("[\"x\", truth]"),
    STR_INIT("{[: \"x\"}\n"),
    STR_INIT("{\"x\", null}"),
    STR_INIT("{\"x\"::\"b\"}"),
    STR_INIT("{\xf0\x9f\x87\xa8\xf0\x9f\x87\xad}"),
    STR_INIT("{\"a\":\"a\" 123}"),
    STR_INIT("{key: 'value'}"),
    STR_INIT("{\"\xb9\":\"0\",}"),
    STR_INIT("{\"a\" b}"),
    STR_INIT("{:\"b\"}"),
    STR_INIT("{\"a\" \"b\"}"),
    STR_INIT("{\"a\":"),
    STR_INIT("{\"a\""),
    STR_INIT("{1:1}"),
    STR_INIT("{9999E9999:1}"),
    STR_INIT("{null:null,null:null}"),
    STR_INIT("{\"id\":0,,,,,}"),
    STR_INIT("{'a':0}"),
    STR_INIT("{\"id\":0,}"),
    STR_INIT("{\"a\":\"b\"}/**/"),
    STR_INIT("{\"a\":\"b\"}/**//"),
    STR_INIT("{\"a\":\"b\"}//"),
    STR_INIT("{\"a\":\"b\"}/"),
    STR_INIT("{\"a\":\"b\",,\"c\":\"d\"}"),
    STR_INIT("{a: \"b\"}"),
    STR_INIT("{\"a\":\"a"),
    STR_INIT("{ \"foo\" : \"bar\", \"a\" }"),
    STR_INIT("{\"a\":\"b\"}#"),
    STR_INIT(" "),
    STR_INIT("[\"\\uD800\\\"]"),
    STR_INIT("[\"\\uD800\\u\"]"),
    STR_INIT("[\"\\uD800\\u1\"]"),
    STR_INIT("[\"\\uD800\\u1x\"]"),
    STR_INIT("[\xc3\xa9]"),
    STR_INIT("[\"\\\0\"]"),
    STR_INIT("[\"\\x00\"]"),
    STR_INIT("[\"\\\\\\\"]"),
    STR_INIT("[\"\\\t\"]"),
    STR_INIT("[\"\\\xf0\x9f\x8c\x80\"]"),
    STR_INIT("[\"\\\"]"),
    STR_INIT("[\"\\u00A\"]"),
    STR_INIT("[\"\\uD834\\uDd\"]"),
    STR_INIT("[\"\\uD800\\uD800\\x\"]"),
    STR_INIT("[\"\\u\xe5\"]"),
    STR_INIT("[\"\\a\"]"),
    STR_INIT("[\"\\uqqqq\"]"),
    STR_INIT("[\"\\\xe5\"]"),
    STR_INIT("[\\u0020\"asd\"]"),
    STR_INIT("[\\n]"),
    STR_INIT("\""),
    STR_INIT("['single quote']"),
    STR_INIT("abc"),
    STR_INIT("[\"\\"),
    STR_INIT("[\"a\0a\"]"),
    STR_INIT("[\"new\nline\"]"),
    STR_INIT("[\"\t\"]"),
    STR_INIT("\"\\UA66D\""),
    STR_INIT("\"\"x"),
    STR_INIT("<.>"),
    STR_INIT("[<null>]"),
    STR_INIT("[1]x"),
    STR_INIT("[1]]"),
    STR_INIT("[\"asd]"),
    STR_INIT("a\xc3\xa5"),
    STR_INIT("[True]"),
    STR_INIT("1]"),
    STR_INIT("{\"x\": true,"),
    STR_INIT("[][]"),
    STR_INIT("]"),
    STR_INIT("\xef\xbb{}"),
    STR_INIT("\xe5"),
    STR_INIT("["),
    STR_INIT(""),
    STR_INIT("[\0]"),
    STR_INIT("2@"),
    STR_INIT("{}}"),
    STR_INIT("{\"\":"),
    STR_INIT("{\"a\":/*comment*/\"b\"}"),
    STR_INIT("{\"a\": true} \"x\""),
    STR_INIT("['"),
    STR_INIT("[,"),
    STR_INIT("[{"),
    STR_INIT("[\"a"),
    STR_INIT("[\"a\""),
    STR_INIT("{"),
    STR_INIT("{]"),
    STR_INIT("{,"),
    STR_INIT("{["),
    STR_INIT("{\"a"),
    STR_INIT("{'a'"),
    STR_INIT("[\"\\{[\"\\{[\"\\{[\"\\{"),
    STR_INIT("\xe9"),
    STR_INIT("*"),
    STR_INIT("{\"a\":\"b\"}#{}"),
    STR_INIT("[\\u000A\"\"]"),
    STR_INIT("[1"),
    STR_INIT("[ false, nul"),
    STR_INIT("[ true, fals"),
    STR_INIT("[ false, tru"),
    STR_INIT("{\"asd\":\"asd\""),
    STR_INIT("\xc3\xa5"),
    STR_INIT("[\xe2\x81\xa0]"),
    STR_INIT("\xef\xbb\xbf"),
    STR_INIT("[\x0c]"),
    STR_INIT("{\"a\":1]"),
    STR_INIT("[1}"),
    STR_INIT("-"),
    STR_INIT("1e"),
    STR_INIT("1."),
    STR_INIT("00"),
    STR_INIT("0 0"),
    STR_INIT("nullx"),
    STR_INIT("\xc2\xa0"
             "1"),
    /* The parser may decide: a byte order mark, other encodings, malformed UTF-8 in strings. */
    STR_INIT("\xef\xbb\xbf{}"),
    STR_INIT("[\"\xe6\x97\xa5\xd1\x88\xfa\"]"),
    STR_INIT("\xff\xfe[\0\"\0\xe9\0\"\0]\0"),
    STR_INIT("\0[\0\"\0\xe9\0\"\0]"),
    STR_INIT("[\"\xff\"]"),
    STR_INIT("[\"\xed\xa0\x80\"]"),
    STR_INIT("[\"\xe9\"]"),
    STR_INIT("[\"\xfc\x80\x80\x80\x80\x80\"]"),
    STR_INIT("[\"\x81\"]"),
    STR_INIT("[\"\xf4\xbf\xbf\xbf\"]"),
    STR_INIT("[\"\xe0\xff\"]"),
    STR_INIT("[\"\xc0\xaf\"]"),
    STR_INIT("[\"\xfc\x83\xbf\xbf\xbf\xbf\"]"),
    STR_INIT("[\"\xe2\x80\"]"),
    STR_INIT("[\"\xf0\x9f\x98\"]"),
};

static void takes_what_it_must(void **state)
{
    struct err e;

    (void)state;
    for (size_t i = 0; i < COUNT(ACCEPTED); i++)
        CHECKF(json_check(ACCEPTED[i], &e), "%.*s: %s", STR_ARG(ACCEPTED[i]), e.message);
}

static void refuses_what_it_must(void **state)
{
    struct err e;

    (void)state;
    for (size_t i = 0; i < COUNT(REFUSED); i++) {
        CHECKF(!json_check(REFUSED[i], &e), "case %zu: %.*s", i, STR_ARG(REFUSED[i]));
        CHECKF(e.code == ERR_VALIDATION, "case %zu", i);
        CHECKF(str_starts(str_of(e.message), STR("invalid JSON at byte ")), "case %zu: %s", i,
               e.message);
    }
    assert_false(json_check(STR_NONE, &e));
}

/* Each byte, in each position of a word, in each kind of place. */
static void looks_at_every_byte(void **state)
{
    static const char *const frames[] = {"\"%s\"", "[%s]", "{\"%s\":0}", "\"\\%s\""};
    struct err e;

    (void)state;
    for (size_t f = 0; f < COUNT(frames); f++) {
        for (int c = 1; c < 256; c++) {
            for (size_t lead = 0; lead < 9; lead++) {
                char inner[32] = {0};
                struct buf text = {0}, want = {0};
                memset(inner, f == 1 ? ' ' : 'x', lead);
                inner[f == 3 ? 0 : lead] = (char)c;
                memset(inner + lead + 1, f == 1 ? ' ' : 'x', 9);
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wformat-nonliteral"
                buf_printf(&text, frames[f], inner);
#pragma GCC diagnostic pop
                bool ok = naive_canonical(buf_str(&text), &want) != NAIVE_INVALID;
                if (json_check(buf_str(&text), &e) != ok)
                    CHECKF(false, "frame %zu, byte %02x at %zu", f, (unsigned)c, lead);
                buf_free(&text);
                buf_free(&want);
            }
        }
    }
}

static void says_where(void **state)
{
    static const struct {
        struct str text;
        const char *message;
    } cases[] = {
        {STR_INIT("{\"a\":1,\"b\":2,\"c\" 3}"),
         "invalid JSON at byte 17 (line 1, column 18): expected ':' after a key"},
        {STR_INIT(""), "invalid JSON at byte 0 (line 1, column 1): unexpected end of text"},
        {STR_INIT("[1,\n 2,\n x]"), "invalid JSON at byte 9 (line 3, column 2): expected a value"},
        {STR_INIT("[\"caf\u00e9\" 1]"),
         "invalid JSON at byte 9 (line 1, column 9): expected ',' or ']'"},
        {STR_INIT("{\"a\":1 2}"), "invalid JSON at byte 7 (line 1, column 8): expected ',' or '}'"},
        {STR_INIT("{\"a\":1,}"),
         "invalid JSON at byte 7 (line 1, column 8): expected a string as key"},
        {STR_INIT("{} {}"), "invalid JSON at byte 3 (line 1, column 4): text after the value"},
        {STR_INIT("\"a\nb\""),
         "invalid JSON at byte 2 (line 1, column 3): control character in a string"},
        {STR_INIT("\"a\xff\""),
         "invalid JSON at byte 2 (line 1, column 3): invalid UTF-8 in a string"},
        {STR_INIT("\"a\\x\""),
         "invalid JSON at byte 2 (line 1, column 3): invalid escape in a string"},
        {STR_INIT("\"abc"),
         "invalid JSON at byte 4 (line 1, column 5): unexpected end of text in a string"},
        {STR_INIT("[1.x]"), "invalid JSON at byte 3 (line 1, column 4): invalid number"},
        {STR_INIT("[1."),
         "invalid JSON at byte 3 (line 1, column 4): unexpected end of text in a number"},
        {STR_INIT("[NaN]"), "invalid JSON at byte 1 (line 1, column 2): expected a value"},
    };
    struct err e;

    (void)state;
    for (size_t i = 0; i < COUNT(cases); i++) {
        assert_false(json_check(cases[i].text, &e));
        CHECK_STR(str_of(e.message), str_of(cases[i].message));
    }
}

static void bounds_the_depth(void **state)
{
    static const char *const opens[] = {"[", "{\"\":", "[{\"\":"};
    static const size_t levels[] = {1, 1, 2};
    struct err e;

    (void)state;
    for (size_t k = 0; k < COUNT(opens); k++) {
        struct buf text = {0};
        for (size_t d = 0; d < JSON_MAX_DEPTH; d += levels[k])
            buf_add_z(&text, opens[k]);
        buf_add(&text, STR("1"));
        for (size_t d = 0; d < JSON_MAX_DEPTH; d += levels[k])
            buf_add_z(&text, k == 0 ? "]" : k == 1 ? "}" : "}]");
        CHECKF(json_check(buf_str(&text), &e), "kind %zu: %s", k, e.message);
        struct buf deeper = {0};
        buf_add_byte(&deeper, '[');
        buf_add(&deeper, buf_str(&text));
        buf_add_byte(&deeper, ']');
        CHECKF(!json_check(buf_str(&deeper), &e), "kind %zu", k);
        CHECKF(strstr(e.message, "too deep") != NULL, "%s", e.message);
        buf_free(&deeper);
        buf_clear(&text);
        for (size_t d = 0; d < 100000; d++)
            buf_add_z(&text, opens[k]);
        assert_false(json_check(buf_str(&text), &e));
        buf_free(&text);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(takes_what_it_must),  cmocka_unit_test(refuses_what_it_must),
        cmocka_unit_test(looks_at_every_byte), cmocka_unit_test(says_where),
        cmocka_unit_test(bounds_the_depth),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
