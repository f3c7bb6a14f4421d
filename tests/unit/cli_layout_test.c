/* SPDX-License-Identifier: Apache-2.0
 * Arguments as a person sees them who decides on them. */
#include "support/check.h"

#include "base/json.h"
#include "cli/layout.h"
#include "cli/text.h"
#include "support/random_json.h"

static void check_layout(const char *json, size_t indent, size_t width, const char *expected)
{
    struct buf out = {0};

    layout_json(&out, str_of(json), indent, width);
    CHECK_STR(buf_str(&out), str_of(expected));
    buf_free(&out);
}

static void lays_out(void **state)
{
    static const struct {
        const char *json, *lines;
    } cases[] = {
        {"{\"command\":\"a \\u0026\\u0026 b \\u003e c\",\"n\":1.50,\"on\":true,\"x\":null}",
         "command: \"a && b > c\"\nn: 1.50\non: true\nx: null\n"},
        {"{\"s\":\"sh -c \\\"rm\\\"\"}", "s:\n  │ sh -c \"rm\"\n"},
        {"{\"re\":\"a\\\\d\"}", "re:\n  │ a\\d\n"},
        {"{\"t\":\"one\\n two\\n\"}", "t:\n  │ one\n  │  two\n  │\n"},
        {"{\"t\":\"a\\tb\\n\\tc\"}", "t:\n  │ a   b\n  │     c\n"},
        {"{\"t\":\"\"}", "t: \"\"\n"},
        {"{\"a\":{},\"b\":[],\"c\":[1,\"x\",null]}", "a: {}\nb: []\nc: [1, \"x\", null]\n"},
        {"{\"a\":{\"b\":{\"c\":1}}}", "a:\n  b:\n    c: 1\n"},
        {"{\"e\":[{\"f\":1,\"g\":2},{\"f\":\"x\\ny\"},\"p\",[[\"q\\\"\"]]]}",
         "e:\n  - f: 1\n    g: 2\n  - f:\n      │ x\n      │ y\n  - \"p\"\n"
         "  -\n    -\n      -\n        │ q\"\n"},
        {"[1,{\"a\":2}]", "- 1\n- a: 2\n"},
        {"[1,2]", "[1, 2]\n"},
        {"{}", "{}\n"},
        {"\"x\"", "\"x\"\n"},
        {"\"x\\ny\"", "│ x\n│ y\n"},
        {" { \"a\" : [ 1 , 2 ] } ", "a: [1, 2]\n"},
        /* names that are more than a word, and one that would be a line of its own */
        {"{\"a b\":1,\"c\\nstatus: granted\":2,\"\":3,\"d\\\"\":4}",
         "\"a b\": 1\n\"c\\nstatus: granted\": 2\n\"\": 3\n\"d\\\"\": 4\n"},
        /* what drives terminals, or leaves no mark */
        {"{\"t\":\"\\u001b[2J\\u202e\\u200bx\\u009b\"}", "t:\n  │ \\x1b[2J\\u202e\\u200bx\\x9b\n"},
        {"{\"a\":{\"b\":{\"c\":{\"d\":{\"e\":{\"f\":{\"g\":{\"h\":{\"i\":[1, 2]}}}}}}}}}",
         "a:\n  b:\n    c:\n      d:\n        e:\n          f:\n            g:\n"
         "              h:\n                i: [1, 2]\n"},
        {"{\"a\":{\"b\":{\"c\":{\"d\":{\"e\":{\"f\":{\"g\":{\"h\":{\"i\":{\"j\": 1}}}}}}}}}}",
         "a:\n  b:\n    c:\n      d:\n        e:\n          f:\n            g:\n"
         "              h:\n                i:\n                  │ {\"j\":1}\n"},
    };

    (void)state;
    for (size_t i = 0; i < COUNT(cases); i++)
        check_layout(cases[i].json, 0, 0, cases[i].lines);
    check_layout("{\"a\":{\"b\":\"x\\ny\"}}", 4, 0, "    a:\n      b:\n        │ x\n        │ y\n");
}

static void breaks_before_the_edge(void **state)
{
    (void)state;
    check_layout("{\"t\":\"the quick brown fox jumps over the lazy dog\"}", 2, 40,
                 "  t:\n    │ the quick brown fox jumps over \n    ┊ the lazy dog\n");
    check_layout("{\"t\":\"aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa\"}", 0, 30,
                 "t:\n  │ aaaaaaaaaaaaaaaaaaaaaaaaaa\n  ┊ aaaaaaaaaaaaaaaaaaaa\n");
    /* blanks that would push the rest out of sight */
    check_layout("{\"t\":\"ls                                            ; rm\"}", 0, 30,
                 "t:\n  │ ls                        \n  ┊                     ; rm\n");
    check_layout("{\"l\":[\"aaaaaaaa\",\"bbbbbbbb\",\"cccccccc\"]}", 0, 30,
                 "l:\n  - \"aaaaaaaa\"\n  - \"bbbbbbbb\"\n  - \"cccccccc\"\n");
    check_layout("{\"日本\":\"日本語日本語日本語日本語日本語\"}", 0, 30,
                 "\"日本\":\n  │ 日本語日本語日本語日本語日\n  ┊ 本語\n");
}

/* Every line is clean, begins with its indent, and ends before the edge; what a string says comes
 * back whole from behind the gutter. */
static void holds_for_all(void **state)
{
    struct prng r;

    (void)state;
    prng_seed(&r, 20260102);
    for (size_t run = 0; run < 3000; run++) {
        struct buf json = {0}, out = {0}, clean = {0};
        struct str line;
        size_t at = 0, width = 60 + prng_below(&r, 60);

        random_value(&r, &json, 4, false);
        layout_json(&out, buf_str(&json), 3, width);
        assert_int_equal(out.p[out.n - 1], '\n');
        text_clean(&clean, buf_str(&out), TEXT_LINES);
        CHECK_STR(buf_str(&clean), buf_str(&out));
        assert_null(memchr(out.p, '\t', out.n));
        while (text_next_line(str_make(out.p, out.n - 1), &at, &line)) {
            CHECKF(str_starts(line, STR("   ")), "<%.*s> of <%.*s>", STR_ARG(line),
                   STR_ARG(buf_str(&json)));
            CHECKF(text_columns(line) <= width, "<%.*s>", STR_ARG(line));
        }
        buf_free(&json);
        buf_free(&out);
        buf_free(&clean);
    }
}

static void loses_nothing_of_a_text(void **state)
{
    struct prng r;

    (void)state;
    prng_seed(&r, 7);
    for (size_t run = 0; run < 2000; run++) {
        static const struct str pieces[] = {STR_INIT("word "),  STR_INIT("\n"),
                                            STR_INIT("      "), STR_INIT("longerword"),
                                            STR_INIT("日"),     STR_INIT("\"")};
        struct buf text = {0}, out = {0}, back = {0};
        struct str line;
        size_t at = 0;

        for (size_t n = prng_below(&r, 60); n > 0; n--)
            buf_add(&text, random_pick(&r, pieces, COUNT(pieces)));
        layout_text(&out, buf_str(&text), 2, 30 + prng_below(&r, 30));
        while (text_next_line(str_make(out.p, out.n - 1), &at, &line)) {
            bool on = str_starts(line, STR("  ┊ "));

            assert_true(on || str_starts(line, STR("  │ ")) || str_eq(line, STR("  │")));
            if (!on && line.p != out.p)
                buf_add_byte(&back, '\n');
            if (line.n > STR("  ┊ ").n)
                buf_add(&back, str_slice(line, STR("  ┊ ").n, line.n));
        }
        CHECK_STR(buf_str(&back), buf_str(&text));
        buf_free(&text);
        buf_free(&out);
        buf_free(&back);
    }
}

static void bears_great_depth(void **state)
{
    struct buf json = {0}, out = {0};

    (void)state;
    for (size_t i = 0; i < JSON_MAX_DEPTH - 1; i++)
        buf_add(&json, i % 2 == 0 ? STR("{\"a\":") : STR("[1,"));
    buf_add(&json, STR("\"end\""));
    for (size_t i = JSON_MAX_DEPTH - 1; i-- > 0;)
        buf_add(&json, i % 2 == 0 ? STR("}") : STR("]"));
    struct err e;
    CHECKF(json_check(buf_str(&json), &e), "%s", e.message);
    layout_json(&out, buf_str(&json), 0, 80);
    assert_true(out.n > json.n);
    buf_free(&json);
    buf_free(&out);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(lays_out),          cmocka_unit_test(breaks_before_the_edge),
        cmocka_unit_test(holds_for_all),     cmocka_unit_test(loses_nothing_of_a_text),
        cmocka_unit_test(bears_great_depth),
    };

    return cmocka_run_group_tests_name("cli_layout", tests, NULL, NULL);
}
