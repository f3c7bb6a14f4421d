/* SPDX-License-Identifier: Apache-2.0
 * What reaches a terminal: cleaned text, times, columns. */
#include "support/check.h"

#include <stdlib.h>
#include <time.h>

#include "cli/table.h"
#include "cli/text.h"
#include "cli/view.h"
#include "cli/waiting.h"
#include "cli/when.h"

static void cleans(void **state)
{
    static const struct {
        struct str in, one_line, lines;
    } cases[] = {
        {STR_INIT("plain é 日本 🙂"), STR_INIT("plain é 日本 🙂"),
         STR_INIT("plain é 日本 🙂")},
        {STR_INIT("a\n\tb\r"), STR_INIT("a\\n\\tb\\r"), STR_INIT("a\n\tb\\r")},
        {STR_INIT("\x1b[31mred\x1b]0;t\x07"), STR_INIT("\\x1b[31mred\\x1b]0;t\\x07"),
         STR_INIT("\\x1b[31mred\\x1b]0;t\\x07")},
        {STR_INIT("\x7f\xc2\x9b"
                  "31m"),
         STR_INIT("\\x7f\\x9b31m"), STR_INIT("\\x7f\\x9b31m")},
        {STR_INIT("\xe2\x80\xae"
                  "evil\xe2\x81\xa6"),
         STR_INIT("\\u202eevil\\u2066"), STR_INIT("\\u202eevil\\u2066")},
        {STR_INIT("\xff\xc3(\xed\xa0\x80"),
         STR_INIT("\xef\xbf\xbd\xef\xbf\xbd(\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd"),
         STR_INIT("\xef\xbf\xbd\xef\xbf\xbd(\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd")},
        {STR_INIT("nul\0"), STR_INIT("nul\\x00"), STR_INIT("nul\\x00")},
        {STR_INIT("/e\u200btc\u00ad\u2060\u3164"), STR_INIT("/e\\u200btc\\xad\\u2060\\u3164"),
         STR_INIT("/e\\u200btc\\xad\\u2060\\u3164")}, /* leave no mark */
        {STR_INIT("\U0001f469\u200d\U0001f680 \u2764\ufe0f"),
         STR_INIT("\U0001f469\u200d\U0001f680 \u2764\ufe0f"),
         STR_INIT("\U0001f469\u200d\U0001f680 \u2764\ufe0f")}, /* emoji need joiners */
        {STR_INIT(""), STR_INIT(""), STR_INIT("")},
    };

    (void)state;
    for (size_t i = 0; i < COUNT(cases); i++) {
        struct buf one = {0}, lines = {0};

        text_clean(&one, cases[i].in, TEXT_ONE_LINE);
        text_clean(&lines, cases[i].in, TEXT_LINES);
        CHECK_STR(buf_str(&one), cases[i].one_line);
        CHECK_STR(buf_str(&lines), cases[i].lines);
        buf_free(&one);
        buf_free(&lines);
    }
}

static void fits(void **state)
{
    static const struct {
        struct str in;
        size_t columns;
        struct str out;
    } cases[] = {
        {STR_INIT("abcdef"), 6, STR_INIT("abcdef")},
        {STR_INIT("abcdef"), 5, STR_INIT("abcd…")},
        {STR_INIT("abcdef"), 1, STR_INIT("…")},
        {STR_INIT("日本語"), 6, STR_INIT("日本語")},
        {STR_INIT("日本語"), 5, STR_INIT("日本…")},
        {STR_INIT("日本語"), 4, STR_INIT("日…")},
        {STR_INIT("✅⚡❌✓"), 7, STR_INIT("✅⚡❌✓")}, /* by their East Asian Width: W W W N */
        {STR_INIT("✅⚡❌✓"), 6, STR_INIT("✅⚡…")},
        {STR_INIT("e\xcc\x81x"), 2,
         STR_INIT("e\xcc\x81x")}, /* a combining accent takes no column */
    };

    (void)state;
    for (size_t i = 0; i < COUNT(cases); i++) {
        struct buf out = {0};

        text_fit(&out, cases[i].in, cases[i].columns);
        CHECK_STR(buf_str(&out), cases[i].out);
        CHECKF(text_columns(buf_str(&out)) <= cases[i].columns, "case %zu", i);
        buf_free(&out);
    }
}

static void wraps(void **state)
{
    static const struct {
        struct str in;
        size_t columns;
        struct str out;
    } cases[] = {
        {STR_INIT("a text that goes on"), 0, STR_INIT("a text that goes on")},
        {STR_INIT("a text that goes on"), 19, STR_INIT("a text that goes on")},
        {STR_INIT("a text that goes on"), 12, STR_INIT("a text that \n> goes on")},
        {STR_INIT("a text that goes on"), 11, STR_INIT("a text \n> that goes \n> on")},
        {STR_INIT("abcdefgh"), 3, STR_INIT("abc\n> def\n> gh")},
        {STR_INIT("日本語"), 4, STR_INIT("日本\n> 語")},
        {STR_INIT("日本"), 1, STR_INIT("日\n> 本")}, /* wider than the line; it must go somewhere */
        {STR_INIT(""), 3, STR_INIT("")},
    };

    (void)state;
    for (size_t i = 0; i < COUNT(cases); i++) {
        struct buf out = {0};

        text_wrap(&out, cases[i].in, cases[i].columns, STR("> "));
        CHECK_STR(buf_str(&out), cases[i].out);
        buf_free(&out);
    }
}

static void walks_lines(void **state)
{
    static const struct {
        struct str text, lines;
    } cases[] = {
        {STR_INIT(""), STR_INIT("<>")},
        {STR_INIT("a"), STR_INIT("<a>")},
        {STR_INIT("a\nb"), STR_INIT("<a><b>")},
        {STR_INIT("a\n\n"), STR_INIT("<a><><>")},
        {STR_INIT("\ta\x1b\n12345\t6"), STR_INIT("<    a\\x1b><12345   6>")},
    };

    (void)state;
    for (size_t i = 0; i < COUNT(cases); i++) {
        struct buf out = {0};
        struct str line;
        size_t at = 0;

        while (text_next_line(cases[i].text, &at, &line)) {
            buf_add_byte(&out, '<');
            text_clean_line(&out, line);
            buf_add_byte(&out, '>');
        }
        CHECK_STR(buf_str(&out), cases[i].lines);
        buf_free(&out);
    }
}

static void puts_json_on_one_line(void **state)
{
    static const struct {
        struct str in, out, spaced;
    } cases[] = {
        {STR_INIT("{\n  \"a b\": [1,\t2],\r\n \"q\\\" \\\\\" : \"x,y z\"\n}"),
         STR_INIT("{\"a b\":[1,2],\"q\\\" \\\\\":\"x,y z\"}"),
         STR_INIT("{\"a b\":[1, 2], \"q\\\" \\\\\":\"x,y z\"}")},
        {STR_INIT(" 1 "), STR_INIT("1"), STR_INIT("1")},
        {STR_INIT("\"\\\\\""), STR_INIT("\"\\\\\""), STR_INIT("\"\\\\\"")},
    };

    (void)state;
    for (size_t i = 0; i < COUNT(cases); i++) {
        struct buf out = {0}, spaced = {0};

        text_json_line(&out, cases[i].in);
        text_json_spaced(&spaced, cases[i].in);
        CHECK_STR(buf_str(&out), cases[i].out);
        CHECK_STR(buf_str(&spaced), cases[i].spaced);
        buf_free(&out);
        buf_free(&spaced);
    }
}

static void writes_times(void **state)
{
    static const struct {
        int64_t us;
        const char *age, *duration;
    } cases[] = {
        {-5, "0s", "0ms"},
        {850 * US_PER_MS, "0s", "850ms"},
        {1250 * US_PER_MS, "1s", "1.2s"},
        {59 * US_PER_S, "59s", "59.0s"},
        {60 * US_PER_S, "1m00s", "1m00s"},
        {116 * US_PER_S, "1m56s", "1m56s"},
        {185 * US_PER_S, "3m05s", "3m05s"},
        {(2 * 3600 + 600) * US_PER_S, "2h10m", "2h10m"},
        {(3 * 86400 + 4 * 3600) * US_PER_S, "3d04h", "3d04h"},
    };
    struct buf b = {0};

    (void)state;
    for (size_t i = 0; i < COUNT(cases); i++) {
        buf_clear(&b);
        when_age(&b, cases[i].us);
        CHECK_STR(buf_str(&b), str_of(cases[i].age));
        buf_clear(&b);
        when_duration(&b, cases[i].us);
        CHECK_STR(buf_str(&b), str_of(cases[i].duration));
    }
    setenv("TZ", "UTC", 1);
    tzset();
    buf_clear(&b);
    when_full(&b, INT64_C(1767323045678901));
    buf_add_byte(&b, ' ');
    when_clock(&b, INT64_C(1767323045678901));
    CHECK_STR(buf_str(&b), STR("2026-01-02 03:04:05 03:04:05.678"));
    buf_free(&b);
}

/* ---- tables ---- */

static const struct table_column COLUMNS[] = {
    {"NAME", false, 8}, {"N", true, 0}, {"TEXT", false, 0}};

static void check_table(struct cli *c, const struct str *cells, size_t n, const char *expected)
{
    struct table t = {.columns = COLUMNS, .n_columns = COUNT(COLUMNS)};
    char *text = NULL;
    size_t size = 0;

    c->out = open_memstream(&text, &size);
    for (size_t i = 0; i < n; i++)
        table_add(&t, i % COUNT(COLUMNS) == 0 ? PAINT_GOOD : PAINT_NONE, cells[i]);
    assert_int_equal(table_rows(&t), n / COUNT(COLUMNS));
    table_print(&t, c);
    fclose(c->out);
    CHECK_STR(str_make(text, size), str_of(expected));
    free(text);
    table_free(&t);
}

static void aligns_columns(void **state)
{
    const struct str cells[] = {STR("a"),
                                STR("12345"),
                                STR("first"),
                                STR("日本"),
                                STR("7"),
                                STR_NONE,
                                STR("longer than eight"),
                                STR(""),
                                STR("x\ny")};
    struct cli c = {0};

    (void)state;
    check_table(&c, cells, 9,
                "NAME                   N  TEXT\n"
                "a                  12345  first\n"
                "日本                   7\n"
                "longer than eight         x\\ny\n");
    c.width = 24; /* a terminal: limits hold, and the last column gets what is left */
    check_table(&c, cells, 9,
                "NAME          N  TEXT\n"
                "a         12345  first\n"
                "日本          7\n"
                "longer …         x\\ny\n");
    check_table(&c, cells, 0, "");
}

/* A narrow terminal takes from the widest of the columns that may be cut, so that the last one can
 * still be read. */
static void check_narrow(size_t width, struct str last, const char *expected)
{
    static const struct table_column columns[] = {
        {"ID", false, 0}, {"A", false, 30}, {"B", false, 20}, {"LAST", false, 0}};
    struct table t = {.columns = columns, .n_columns = COUNT(columns)};
    struct cli c = {.width = width};
    char *text = NULL;
    size_t size = 0;

    c.out = open_memstream(&text, &size);
    table_add(&t, PAINT_NONE, STR("0123456789"));
    table_add(&t, PAINT_NONE, STR("aaaaaaaaaaaaaaaaaaaaaaaaa"));
    table_add(&t, PAINT_NONE, STR("bbbbbbbbbbb"));
    table_add(&t, PAINT_NONE, last);
    table_print(&t, &c);
    fclose(c.out);
    CHECK_STR(str_make(text, size), str_of(expected));
    free(text);
    table_free(&t);
}

static void narrows_on_a_terminal(void **state)
{
    (void)state;
    check_narrow(60, STR("the last of them, which is long"),
                 "ID          A              B            LAST\n"
                 "0123456789  aaaaaaaaaaaa…  bbbbbbbbbbb  the last of them, w…\n");
    check_narrow(60, STR("short one"),
                 "ID          A                         B            LAST\n"
                 "0123456789  aaaaaaaaaaaaaaaaaaaaaaa…  bbbbbbbbbbb  short one\n");
    check_narrow(40, STR("the last of them"),
                 "ID          A         B         LAST\n"
                 "0123456789  aaaaaaa…  bbbbbbb…  the las…\n");
    check_narrow(40, STR(""),
                 "ID          A           B           LAST\n" /* its title's */
                 "0123456789  aaaaaaaaa…  bbbbbbbbb…\n");
}

static void keeps_values_in_their_column(void **state)
{
    struct cli c = {0};
    char *text = NULL;
    size_t size = 0;

    (void)state;
    c.out = open_memstream(&text, &size);
    view_pair(&c, "message", STR("first\nstatus          granted"));
    view_pair(&c, "absent", STR_NONE);
    view_text(&c, 2, PAINT_NONE, STR("one\ntwo\x1b[m"));
    c.width = 36;
    view_pair(&c, "message", STR("a text that goes on and on"));
    view_pair_json(&c, "json", STR("{\"a\": \"a text that goes on and on\"}"));
    fclose(c.out);
    CHECK_STR(str_make(text, size),
              STR("message         first\n"
                  "                status          granted\n"
                  "  one\n"
                  "  two\\x1b[m\n"
                  "message         a text that goes on \n"
                  "                and on\n"
                  "json            {\"a\":\"a text that goes on and on\"}\n"));
    free(text);
}

static void cuts_and_paints_on_a_terminal(void **state)
{
    const struct str cells[] = {STR("a"), STR("1"), STR("a text that is too long")};
    struct cli c = {.width = 22, .out_colour = true};

    (void)state;
    check_table(&c, cells, 3,
                "\x1b[2mNAME\x1b[0m  \x1b[2mN\x1b[0m  \x1b[2mTEXT\x1b[0m\n"
                "\x1b[32ma\x1b[0m     1  a text that …\n");
}

static void shows_errors_of_steps(void **state)
{
    static const struct {
        struct str json, text;
    } cases[] = {
        {STR_INIT("{\"reason\":\"r\",\"message\":\"m\"}"), STR_INIT("m")},
        {STR_INIT("{\"reason\":\"r\"}"), STR_INIT("r")},
        {STR_INIT("{\"code\":1}"), STR_INIT("{\"code\":1}")},
        {STR_INIT("\"text\""), STR_INIT("text")},
    };
    struct arena a = {0};

    (void)state;
    for (size_t i = 0; i < COUNT(cases); i++)
        CHECK_STR(view_error_text(cases[i].json, &a), cases[i].text);
    assert_false(str_present(view_error_text(STR_NONE, &a)));
    arena_free(&a);
}

static void finds_the_approvals_that_are_waited_for(void **state)
{
    struct str waiting =
        STR("[{\"kind\":\"approval\",\"id\":\"a\"},{\"kind\":\"agent\",\"id\":\"b\"},"
            "{\"kind\":\"approval\",\"id\":\"c\"},{\"kind\":\"approval\"}]");
    struct arena a = {0};
    struct str ids[4];

    (void)state;
    assert_int_equal(waiting_approvals(waiting, ids, COUNT(ids), &a), 2);
    CHECK_STR(ids[0], STR("a"));
    CHECK_STR(ids[1], STR("c"));
    assert_int_equal(waiting_approvals(waiting, ids, 1, &a), 1);
    assert_int_equal(waiting_approvals(STR_NONE, ids, 1, &a), 0);
    arena_free(&a);
}

static void says_what_is_waited_for(void **state)
{
#define UNTIL(clock) ",\"until\":\"2026-01-02T03:" clock "Z\""
    static const struct {
        struct str waiting_on, text, advice;
    } cases[] = {
        {STR_INIT("[{\"kind\":\"agent\",\"id\":\"a\"" UNTIL("05:48") "}]"),
         STR_INIT("the agent (lease ends in 1m43s)"),
         STR_INIT("waiting for the agent; if it is gone, the run is delivered again when its "
                  "lease ends, in 1m43s")},
        {STR_INIT("[{\"kind\":\"agent\"" UNTIL("04:04") "}]"), STR_INIT("the agent"),
         STR_INIT("waiting for the agent; if it is gone, the run is delivered again when its "
                  "lease ends")},
        {STR_INIT("[{\"kind\":\"agent\"}]"), STR_INIT("the agent"),
         STR_INIT("waiting for the agent")},
        {STR_INIT("[{\"kind\":\"dispatch\"" UNTIL("04:08") "}]"),
         STR_INIT("its delivery (due in 3s)"), STR_INIT("waiting for the next delivery, in 3s")},
        {STR_INIT("[{\"kind\":\"dispatch\"}]"), STR_INIT("its delivery"),
         STR_INIT("waiting for the next delivery")},
        {STR_INIT("[{\"kind\":\"approval\",\"id\":\"0199c2a4-7d10-7c4e-8abc-0123456789ab\"" UNTIL(
             "19:05") "}]"),
         STR_INIT("approval 0199c2a4-7d10-7c4e (expires in 15m00s)"),
         STR_INIT("waiting for a person to decide on approval 0199c2a4-7d10-7c4e, which expires "
                  "in 15m00s")},
        {STR_INIT("[{\"kind\":\"rate_limit\"" UNTIL("04:08") "}]"),
         STR_INIT("its rate limit (free in 3s)"),
         STR_INIT("waiting for its rate limit, free in 3s")},
        {STR_INIT("[{\"kind\":\"session\",\"id\":\"ada-7\"}]"), STR_INIT("session ada-7"),
         STR_INIT("waiting for its turn in session ada-7")},
        {STR_INIT("[{\"kind\":\"comet\"},{\"kind\":\"dispatch\"}]"),
         STR_INIT("comet, its delivery"), STR_INIT("waiting for comet, and for the next delivery")},
    };
#undef UNTIL
    struct arena a = {0};
    int64_t now = 0;

    (void)state;
    assert_true(clock_parse_rfc3339(STR("2026-01-02T03:04:05Z"), &now));
    for (size_t i = 0; i < COUNT(cases); i++) {
        CHECK_STR(waiting_text(cases[i].waiting_on, now, &a), cases[i].text);
        CHECK_STR(waiting_advice(cases[i].waiting_on, now, &a), cases[i].advice);
    }
    assert_false(str_present(waiting_advice(STR_NONE, now, &a)));
    assert_false(str_present(waiting_advice(STR("[]"), now, &a)));
    arena_free(&a);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(cleans),
        cmocka_unit_test(fits),
        cmocka_unit_test(wraps),
        cmocka_unit_test(walks_lines),
        cmocka_unit_test(puts_json_on_one_line),
        cmocka_unit_test(writes_times),
        cmocka_unit_test(aligns_columns),
        cmocka_unit_test(narrows_on_a_terminal),
        cmocka_unit_test(keeps_values_in_their_column),
        cmocka_unit_test(cuts_and_paints_on_a_terminal),
        cmocka_unit_test(shows_errors_of_steps),
        cmocka_unit_test(finds_the_approvals_that_are_waited_for),
        cmocka_unit_test(says_what_is_waited_for),
    };

    return cmocka_run_group_tests_name("cli_text", tests, NULL, NULL);
}
