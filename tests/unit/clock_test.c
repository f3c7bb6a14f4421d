/* SPDX-License-Identifier: Apache-2.0 */
#include "base/clock.h"

#include "base/rand.h"
#include "support/check.h"

#include <time.h>

static void clocks_tick(void **state)
{
    (void)state;
    int64_t wall = clock_wall_us(), mono = clock_mono_us();
    int64_t seconds = (int64_t)time(NULL);

    assert_true(wall / US_PER_S - seconds >= -1 && wall / US_PER_S - seconds <= 1);
    for (int i = 0; i < 1000; i++) {
        int64_t next = clock_mono_us();
        assert_true(next >= mono);
        mono = next;
    }
}

static void formats_known_times(void **state)
{
    static const struct {
        int64_t us;
        struct str text;
    } cases[] = {
        {0, STR_INIT("1970-01-01T00:00:00.000000Z")},
        {INT64_C(1767323045678901), STR_INIT("2026-01-02T03:04:05.678901Z")},
        {-1, STR_INIT("1969-12-31T23:59:59.999999Z")},
        {INT64_C(951782400000000), STR_INIT("2000-02-29T00:00:00.000000Z")},
        {INT64_C(4107542399999999), STR_INIT("2100-02-28T23:59:59.999999Z")},
        {INT64_C(4107542400000000),
         STR_INIT("2100-03-01T00:00:00.000000Z")}, /* 2100 is no leap year */
        {INT64_C(253402300799999999), STR_INIT("9999-12-31T23:59:59.999999Z")},
        {INT64_C(253402300800000000),
         STR_INIT("9999-12-31T23:59:59.999999Z")}, /* there is nothing later */
        {INT64_MAX, STR_INIT("9999-12-31T23:59:59.999999Z")},
        {INT64_C(-62167219200000000), STR_INIT("0000-01-01T00:00:00.000000Z")},
        {INT64_MIN, STR_INIT("0000-01-01T00:00:00.000000Z")},
    };

    (void)state;
    for (size_t i = 0; i < COUNT(cases); i++) {
        struct buf b = {0};
        clock_format_rfc3339(&b, cases[i].us);
        CHECK_STR(buf_str(&b), cases[i].text);
        buf_free(&b);
    }
}

static void formats_like_the_c_library(void **state)
{
    struct prng r;
    struct buf b = {0};

    (void)state;
    prng_seed(&r, 2);
    for (int i = 0; i < 100000; i++) {
        int64_t s =
            (int64_t)prng_below(&r, UINT64_C(253402300799) + 62167219200) - INT64_C(62167219200);
        int64_t us = (int64_t)prng_below(&r, 1000000);
        struct tm tm;
        char want[64];
        time_t t = (time_t)s;
        gmtime_r(&t, &tm);
        snprintf(want, sizeof want, "%04d-%02d-%02dT%02d:%02d:%02d.%06dZ", tm.tm_year + 1900,
                 tm.tm_mon + 1, tm.tm_mday, tm.tm_hour, tm.tm_min, tm.tm_sec, (int)us);
        buf_clear(&b);
        clock_format_rfc3339(&b, s * US_PER_S + us);
        CHECK_STR(buf_str(&b), str_of(want));
    }
    buf_free(&b);
}

static void parses_durations(void **state)
{
    static const struct {
        struct str s;
        int64_t us; /* -1: refused */
    } cases[] = {
        {STR_INIT("0"), 0},
        {STR_INIT("+0"), 0},
        {STR_INIT("0s"), 0},
        {STR_INIT("300ms"), 300000},
        {STR_INIT("5s"), 5000000},
        {STR_INIT("+5s"), 5000000},
        {STR_INIT("1h30m"), INT64_C(5400000000)},
        {STR_INIT("2.5s"), 2500000},
        {STR_INIT(".5s"), 500000},
        {STR_INIT("5.s"), 5000000},
        {STR_INIT("1.004s"), 1004000},
        {STR_INIT("100.00100s"), 100001000},
        {STR_INIT("10ns"), 0},
        {STR_INIT("1999ns"), 1},
        {STR_INIT("11us"), 11},
        {STR_INIT("12\u00b5s"), 12},
        {STR_INIT("12\u03bcs"), 12},
        {STR_INIT("3h4m5.678s500us"), INT64_C(11045678500)},
        {STR_INIT("10.5s4m"), 250500000}, /* any order */
        {STR_INIT("1m1m"), 120000000},
        {STR_INIT("0.3333333333333333333h"), 1199999999},
        {STR_INIT("0.100000000000000000000h"), 360000000},
        {STR_INIT("9007199254.740993ms"), INT64_C(9007199254740)},
        {STR_INIT("2540400h"), INT64_C(9145440000000000)},
        {STR_INIT("9223372036854775807ns"), INT64_C(9223372036854775)},
        {STR_INIT("9223372036854775808ns"), -1},
        {STR_INIT("9223372036s854ms775us808ns"), -1},
        {STR_INIT("2562048h"), -1},
        {STR_INIT("99999999999999999999s"), -1},
        {STR_INIT(""), -1},
        {STR_INIT("+"), -1},
        {STR_INIT("3"), -1},
        {STR_INIT("00"), -1}, /* as Go has it: the bare zero is one digit */
        {STR_INIT("-5s"), -1},
        {STR_INIT("-0"), -1},
        {STR_INIT("s"), -1},
        {STR_INIT("."), -1},
        {STR_INIT(".s"), -1},
        {STR_INIT("1d"), -1},
        {STR_INIT("5 s"), -1},
        {STR_INIT("5s "), -1},
        {STR_INIT("1h-3m"), -1},
        {STR_INIT("1S"), -1},
        {STR_INIT("1..5s"), -1},
        {STR_INIT("1e3s"), -1},
        {STR_INIT("1s5"), -1},
        {STR_INIT("5s\0"), -1},
    };

    (void)state;
    for (size_t i = 0; i < COUNT(cases); i++) {
        int64_t us = -1;
        CHECKF(duration_parse(cases[i].s, &us) == (cases[i].us >= 0), "%.*s", STR_ARG(cases[i].s));
        CHECKF(us == cases[i].us, "%.*s: %lld", STR_ARG(cases[i].s), (long long)us);
    }
    int64_t us;
    assert_false(duration_parse(STR_NONE, &us));
}

static void parses_rfc3339(void **state)
{
    static const struct {
        struct str s;
        bool good;
        int64_t us;
    } cases[] = {
        {STR_INIT("1970-01-01T00:00:00Z"), true, 0},
        {STR_INIT("2026-01-02T03:04:05.678901Z"), true, INT64_C(1767323045678901)},
        {STR_INIT("2026-01-02t03:04:05.6789019999z"), true, INT64_C(1767323045678901)},
        {STR_INIT("2026-01-02T05:04:05.678901+02:00"), true, INT64_C(1767323045678901)},
        {STR_INIT("2026-01-01T21:34:05.678901-05:30"), true, INT64_C(1767323045678901)},
        {STR_INIT("2000-02-29T00:00:00Z"), true, INT64_C(951782400000000)},
        {STR_INIT("1969-12-31T23:59:59.5Z"), true, -500000},
        {STR_INIT("2016-12-31T23:59:60Z"), true, INT64_C(1483228800000000)},
        {STR_INIT("2100-02-29T00:00:00Z"), false, 0},
        {STR_INIT("2026-13-01T00:00:00Z"), false, 0},
        {STR_INIT("2026-00-01T00:00:00Z"), false, 0},
        {STR_INIT("2026-04-31T00:00:00Z"), false, 0},
        {STR_INIT("2026-04-00T00:00:00Z"), false, 0},
        {STR_INIT("2026-01-02T24:00:00Z"), false, 0},
        {STR_INIT("2026-01-02T00:60:00Z"), false, 0},
        {STR_INIT("2026-01-02T00:00:61Z"), false, 0},
        {STR_INIT("2026-01-02T00:00:00"), false, 0},
        {STR_INIT("2026-01-02T00:00:00.Z"), false, 0},
        {STR_INIT("2026-01-02T00:00:00+24:00"), false, 0},
        {STR_INIT("2026-01-02T00:00:00+01:60"), false, 0},
        {STR_INIT("2026-01-02T00:00:00+0100"), false, 0},
        {STR_INIT("2026-01-02T00:00:00+01:00Z"), false, 0},
        {STR_INIT("2026-01-02T00:00:00Z "), false, 0},
        {STR_INIT("2026-01-02 00:00:00Z"), false, 0},
        {STR_INIT("2026-1-2T00:00:00Z"), false, 0},
        {STR_INIT("2026-01-02"), false, 0},
        {STR_INIT("yesterday"), false, 0},
        {STR_INIT(""), false, 0},
    };

    (void)state;
    for (size_t i = 0; i < COUNT(cases); i++) {
        int64_t us = 0;
        CHECKF(clock_parse_rfc3339(cases[i].s, &us) == cases[i].good, "case %zu", i);
        CHECKF(us == cases[i].us, "case %zu: %lld", i, (long long)us);
    }
}

static void reads_what_it_writes(void **state)
{
    struct prng r;
    struct buf b = {0};

    (void)state;
    prng_seed(&r, 3);
    for (int i = 0; i < 100000; i++) {
        int64_t us =
                    (int64_t)prng_below(&r, UINT64_C(315569520000000000)) - /* ten thousand years */
                    INT64_C(62167219200000000),
                got;
        buf_clear(&b);
        clock_format_rfc3339(&b, us);
        assert_true(clock_parse_rfc3339(buf_str(&b), &got));
        CHECKF(got == us, "%lld", (long long)us);
    }
    buf_free(&b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(clocks_tick),
        cmocka_unit_test(formats_known_times),
        cmocka_unit_test(formats_like_the_c_library),
        cmocka_unit_test(parses_durations),
        cmocka_unit_test(parses_rfc3339),
        cmocka_unit_test(reads_what_it_writes),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
