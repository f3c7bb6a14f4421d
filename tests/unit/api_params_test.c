/* SPDX-License-Identifier: Apache-2.0
 * What requests may say: agents' ids, prefixes of ids, Accept headers, short texts. */
#include "support/check.h"

#include "api/params.h"
#include "http/exchange.h"

static void knows_agent_ids(void **state)
{
    static const struct {
        struct str id;
        bool good;
    } cases[] = {
        {STR_INIT("a"), true},
        {STR_INIT("a.b"), true},
        {STR_INIT("...a"), true},
        {STR_INIT("x:y@z"), true},
        {STR_INIT("a\\b"), true},
        {STR_INIT("\u00e9"), true},
        {STR_INIT("\u65e5\u672c"), true},
        {STR_INIT("\U0001f600"), true},
        {STR_INIT(""), false},
        {STR_INIT("."), false},
        {STR_INIT("...."), false},
        {STR_INIT("a/b"), false},
        {STR_INIT("a?"), false},
        {STR_INIT("#"), false},
        {STR_INIT("a%20"), false},
        {STR_INIT("a b"), false},
        {STR_INIT("a\t"), false},
        {STR_INIT("a\0"), false},
        {STR_INIT("\x7f"), false},
        {STR_INIT("\xc2\x85"), false},
        {STR_INIT("a\xc2\xa0"), false},
        {STR_INIT("\u1680"), false},
        {STR_INIT("\u2003"), false},
        {STR_INIT("\u2028"), false},
        {STR_INIT("\u3000"), false},
        {STR_INIT("\xff"), false},
        {STR_INIT("\xc3"), false},
        {STR_INIT("\u200b"), true}, /* no white space by Unicode, whatever its name */
    };

    (void)state;
    for (size_t i = 0; i < COUNT(cases); i++)
        CHECKF(is_agent_id(cases[i].id) == cases[i].good, "case %zu", i);
}

static void bounds_agent_ids(void **state)
{
    char id[SHORT_TEXT_MAX + 1];

    (void)state;
    memset(id, 'a', sizeof(id));
    assert_true(is_agent_id(str_make(id, SHORT_TEXT_MAX)));
    assert_false(is_agent_id(str_make(id, SHORT_TEXT_MAX + 1)));
}

static void ranges_of_prefixes(void **state)
{
    static const struct {
        struct str prefix;
        const char *low, *high; /* NULL: no id begins so */
    } cases[] = {
        {STR_INIT(""), "00000000-0000-0000-0000-000000000000",
         "ffffffff-ffff-ffff-ffff-ffffffffffff"},
        {STR_INIT("0"), "00000000-0000-0000-0000-000000000000",
         "0fffffff-ffff-ffff-ffff-ffffffffffff"},
        {STR_INIT("01A2"), "01a20000-0000-0000-0000-000000000000",
         "01a2ffff-ffff-ffff-ffff-ffffffffffff"},
        {STR_INIT("01a228f4"), "01a228f4-0000-0000-0000-000000000000",
         "01a228f4-ffff-ffff-ffff-ffffffffffff"},
        {STR_INIT("01a228f4-"), "01a228f4-0000-0000-0000-000000000000",
         "01a228f4-ffff-ffff-ffff-ffffffffffff"},
        {STR_INIT("01a228f4-d"), "01a228f4-d000-0000-0000-000000000000",
         "01a228f4-dfff-ffff-ffff-ffffffffffff"},
        {STR_INIT("01a228f4-d8bc-740f-8a2d-88656dd07add"), "01a228f4-d8bc-740f-8a2d-88656dd07add",
         "01a228f4-d8bc-740f-8a2d-88656dd07add"},
        {STR_INIT("01a228f4-d8bc-740f-8a2d-88656dd07add0"), NULL, NULL},
        {STR_INIT("01a228f4d"), NULL, NULL},
        {STR_INIT("-"), NULL, NULL},
        {STR_INIT("g"), NULL, NULL},
        {STR_INIT("0\0"), NULL, NULL},
    };

    (void)state;
    for (size_t i = 0; i < COUNT(cases); i++) {
        struct uuid low, high, want;
        bool ok = uuid_prefix_range(cases[i].prefix, &low, &high);
        CHECKF(ok == (cases[i].low != NULL), "case %zu", i);
        if (!ok)
            continue;
        assert_true(uuid_parse(str_of(cases[i].low), &want));
        CHECKF(uuid_eq(&low, &want), "case %zu", i);
        assert_true(uuid_parse(str_of(cases[i].high), &want));
        CHECKF(uuid_eq(&high, &want), "case %zu", i);
    }
}

static void reads_accept(void **state)
{
    static const struct {
        const char *accept;
        bool stream;
    } cases[] = {
        {"text/event-stream", true},
        {"TEXT/Event-Stream", true},
        {"application/json, text/event-stream;q=0.9", true},
        {"text/event-stream ; charset=utf-8", true},
        {" text/event-stream ", true},
        {",,text/event-stream,", true},
        {"*/*", false},
        {"text/*", false},
        {"application/json", false},
        {"text/event-stream2", false},
        {"xtext/event-stream", false},
        {"a;b=text/event-stream", false},
        {"", false},
        {NULL, false},
    };

    (void)state;
    for (size_t i = 0; i < COUNT(cases); i++)
        CHECKF(accepts_event_stream(str_of(cases[i].accept)) == cases[i].stream, "case %zu", i);
}

static void reads_text_fields(void **state)
{
    static const struct {
        struct str raw, text; /* text absent: refused */
        size_t min, max;
    } cases[] = {
        {STR_INIT("\"abc\""), STR_INIT("abc"), 1, 3},
        {STR_INIT("\"abcd\""), {NULL, 0}, 1, 3},
        {STR_INIT("\"\""), {NULL, 0}, 1, 3},
        {STR_INIT("\"\""), STR_INIT(""), 0, 3},
        {STR_INIT("\"\\u00e9a\""), STR_INIT("\u00e9a"), 1, 3},
        {STR_INIT("\"\\u00e9\\u00e9\""), {NULL, 0}, 1, 3},
        {STR_INIT("\"\\u0000\""), {NULL, 0}, 1, 3},
        {STR_INIT("\"a\\n\""), {NULL, 0}, 1, 3},
        {STR_INIT("\"\\ud800\""), STR_INIT("\ufffd"), 1, 3},
    };
    struct arena arena = {0};
    struct str out = STR("untouched");
    struct err e;

    (void)state;
    for (size_t i = 0; i < COUNT(cases); i++) {
        bool ok = field_text("name", cases[i].raw, cases[i].min, cases[i].max, &arena, &out, &e);
        CHECKF(ok == str_present(cases[i].text), "case %zu", i);
        if (ok)
            CHECK_STR(out, cases[i].text);
        else
            CHECKF(e.code == ERR_VALIDATION && strstr(e.message, "\"name\"") != NULL, "case %zu",
                   i);
    }
    assert_true(field_text("name", STR_NONE, 1, 3, &arena, &out, &e));
    assert_false(str_present(out));
    arena_free(&arena);
}

static void reads_numbers_of_the_query(void **state)
{
    static const struct {
        const char *target;
        int64_t value; /* 0: refused */
    } cases[] = {
        {"/?limit=1", 1},
        {"/?limit=200", 200},
        {"/?limit=201", 200},
        {"/?limit=9223372036854775807", 200},
        {"/?limit=9223372036854775808", 200},
        {"/?limit=99999999999999999999999", 200},
        {"/?limit=00000000000000000000000000000000000000007", 7},
        {"/?other=3", 50}, /* missing: as it was */
        {"/?limit=0", 0},
        {"/?limit=", 0},
        {"/?limit=-1", 0},
        {"/?limit=-99999999999999999999999", 0},
        {"/?limit=99999999999999999999999x", 0},
        {"/?limit=1.5", 0},
        {"/?limit=%2B5", 0},
        {"/?limit=1&limit=1", 0},
    };
    struct arena arena = {0};
    struct err e;

    (void)state;
    for (size_t i = 0; i < COUNT(cases); i++) {
        struct http_exchange x = {
            .bytes = cases[i].target,
            .head = {.target = {0, (uint16_t)strlen(cases[i].target)}, .query_at = 1}};
        struct request rq = {.x = &x, .arena = &arena};
        int64_t value = 50;
        bool ok = query_int(&rq, "limit", 1, 200, &value, &e);

        CHECKF(ok == (cases[i].value != 0), "case %zu", i);
        CHECKF(!ok || value == cases[i].value, "case %zu: %lld", i, (long long)value);
    }
    arena_free(&arena);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(knows_agent_ids),    cmocka_unit_test(bounds_agent_ids),
        cmocka_unit_test(ranges_of_prefixes), cmocka_unit_test(reads_accept),
        cmocka_unit_test(reads_text_fields),  cmocka_unit_test(reads_numbers_of_the_query),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
