/* SPDX-License-Identifier: Apache-2.0
 * Clocks, RFC 3339 and Go's durations. */
#include "base/clock.h"

#include <time.h>

#include "base/err.h"

static int64_t now_us(clockid_t id)
{
    struct timespec t;

    ASSERT(clock_gettime(id, &t) == 0);
    return (int64_t)t.tv_sec * US_PER_S + t.tv_nsec / 1000;
}

int64_t clock_wall_us(void)
{
    return now_us(CLOCK_REALTIME);
}

int64_t clock_mono_us(void)
{
    return now_us(CLOCK_MONOTONIC);
}

static void put_digits(char *p, unsigned v, size_t n)
{
    while (n-- > 0) {
        p[n] = (char)('0' + v % 10);
        v /= 10;
    }
}

#define S_PER_DAY 86400
/* RFC 3339 has years 0000 to 9999 only; what lies outside is shown as the nearest it has. */
#define FIRST_S (-INT64_C(62167219200))
#define LAST_S INT64_C(253402300799)

/* Days since 1970-01-01 to a date of the proleptic Gregorian calendar, counting years from March so
 * that the leap day is a year's last (Howard Hinnant, "chrono-Compatible Low-Level Date
 * Algorithms"). */
static void put_date(char *p, int64_t days)
{
    int64_t z = days + 719468; /* since 0000-03-01 */
    int64_t era = (z >= 0 ? z : z - 146096) / 146097;
    unsigned doe = (unsigned)(z - era * 146097);
    unsigned yoe = (doe - doe / 1460 + doe / 36524 - doe / 146096) / 365;
    unsigned doy = doe - (365 * yoe + yoe / 4 - yoe / 100);
    unsigned mp = (5 * doy + 2) / 153;
    unsigned month = mp < 10 ? mp + 3 : mp - 9;
    int64_t year = (int64_t)yoe + era * 400 + (month <= 2);

    put_digits(p, (unsigned)year, 4);
    p[4] = '-';
    put_digits(p + 5, month, 2);
    p[7] = '-';
    put_digits(p + 8, doy - (153 * mp + 2) / 5 + 1, 2);
}

void clock_format_rfc3339(struct buf *out, int64_t wall_us)
{
    char t[] = "0000-00-00T00:00:00.000000Z";
    int64_t s = wall_us / US_PER_S, us = wall_us % US_PER_S;

    if (us < 0) {
        s--;
        us += US_PER_S;
    }
    if (s < FIRST_S)
        s = FIRST_S, us = 0;
    if (s > LAST_S)
        s = LAST_S, us = US_PER_S - 1;
    int64_t days = s / S_PER_DAY, in_day = s % S_PER_DAY;
    if (in_day < 0) {
        days--;
        in_day += S_PER_DAY;
    }
    put_date(t, days);
    put_digits(t + 11, (unsigned)(in_day / 3600), 2);
    put_digits(t + 14, (unsigned)(in_day / 60 % 60), 2);
    put_digits(t + 17, (unsigned)(in_day % 60), 2);
    put_digits(t + 20, (unsigned)us, 6);
    buf_add(out, (struct str){t, sizeof t - 1});
}

/* ---- reading RFC 3339 ---- */

/* Takes what the pattern says from the front of *s: '0' is a digit of the number in hand, anything
 * else stands for itself and ends the number. */
static bool take(struct str *s, const char *pattern, int *numbers)
{
    int n = 0;

    for (size_t i = 0; pattern[i] != '\0'; i++) {
        bool digit = pattern[i] == '0', in_bounds = i < s->n;
        char c = in_bounds ? s->p[i] : '\0';

        if (digit ? c < '0' || c > '9' : c != pattern[i])
            return false;
        if (digit)
            numbers[n] = numbers[n] * 10 + (c - '0');
        else
            n++;
    }
    *s = str_slice(*s, strlen(pattern), s->n);
    return true;
}

static bool take_fraction(struct str *s, int64_t *us)
{
    int64_t unit = US_PER_S / 10;
    size_t i = 1;

    if (s->n == 0 || s->p[0] != '.')
        return true;
    for (; i < s->n && s->p[i] >= '0' && s->p[i] <= '9'; i++, unit /= 10)
        *us += (s->p[i] - '0') * unit;
    *s = str_slice(*s, i, s->n);
    return i > 1;
}

static bool take_offset(struct str *s, int64_t *seconds)
{
    int at[2] = {0};
    int64_t sign = 1;

    if (str_eq(*s, STR("Z")) || str_eq(*s, STR("z"))) {
        *seconds = 0;
        return true;
    }
    if (s->n == 0 || (s->p[0] != '+' && s->p[0] != '-'))
        return false;
    sign = s->p[0] == '-' ? -1 : 1;
    *s = str_slice(*s, 1, s->n);
    if (!take(s, "00:00", at) || s->n != 0 || at[0] > 23 || at[1] > 59)
        return false;
    *seconds = sign * (at[0] * 3600 + at[1] * 60);
    return true;
}

static int days_of(int year, int month)
{
    static const int DAYS[] = {31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31};
    bool leap = (year % 4 == 0 && year % 100 != 0) || year % 400 == 0;

    return DAYS[month - 1] + (month == 2 && leap);
}

bool clock_parse_rfc3339(struct str s, int64_t *wall_us)
{
    int date[3] = {0}, day[3] = {0};
    int64_t us = 0, offset_s = 0;
    struct tm tm = {0};

    if (!take(&s, "0000-00-00", date) || s.n == 0 || (s.p[0] | 0x20) != 't')
        return false;
    s = str_slice(s, 1, s.n);
    if (!take(&s, "00:00:00", day) || !take_fraction(&s, &us) || !take_offset(&s, &offset_s))
        return false;
    if (date[1] < 1 || date[1] > 12 || date[2] < 1 || date[2] > days_of(date[0], date[1]) ||
        day[0] > 23 || day[1] > 59 || day[2] > 60) /* 60: a leap second */
        return false;
    tm.tm_year = date[0] - 1900;
    tm.tm_mon = date[1] - 1;
    tm.tm_mday = date[2];
    tm.tm_hour = day[0];
    tm.tm_min = day[1];
    tm.tm_sec = day[2];
    *wall_us = ((int64_t)timegm(&tm) - offset_s) * US_PER_S + us;
    return true;
}

/* ---- durations ---- */

static const struct {
    struct str name;
    uint64_t ns;
} UNITS[] = {
    {STR_INIT("ns"), 1},
    {STR_INIT("us"), 1000},
    {STR_INIT("\u00b5s"), 1000}, /* micro sign */
    {STR_INIT("\u03bcs"), 1000}, /* Greek mu */
    {STR_INIT("ms"), 1000000},
    {STR_INIT("s"), UINT64_C(1000000000)},
    {STR_INIT("m"), UINT64_C(60000000000)},
    {STR_INIT("h"), UINT64_C(3600000000000)},
};

static bool is_digit(char c)
{
    return c >= '0' && c <= '9';
}

static bool unit_parse(struct str s, size_t *at, uint64_t *ns)
{
    size_t from = *at;

    while (*at < s.n && s.p[*at] != '.' && !is_digit(s.p[*at]))
        (*at)++;
    for (size_t i = 0; i < COUNT(UNITS); i++) {
        if (str_eq(str_slice(s, from, *at), UNITS[i].name)) {
            *ns = UNITS[i].ns;
            return true;
        }
    }
    return false;
}

/* One "2.5s": adds its nanoseconds to *total. */
static bool part_parse(struct str s, size_t *at, uint64_t *total)
{
    uint64_t whole = 0, fraction = 0, scale = 1, unit = 0;
    size_t digits = 0;

    for (; *at < s.n && is_digit(s.p[*at]); (*at)++, digits++)
        if (__builtin_mul_overflow(whole, 10u, &whole) ||
            __builtin_add_overflow(whole, (uint64_t)(s.p[*at] - '0'), &whole))
            return false;
    if (*at < s.n && s.p[*at] == '.') {
        (*at)++;
        for (; *at < s.n && is_digit(s.p[*at]); (*at)++, digits++) {
            if (scale <
                UINT64_C(
                    1000000000000000)) { /* further digits are below a nanosecond, even of hours */
                fraction = fraction * 10 + (uint64_t)(s.p[*at] - '0');
                scale *= 10;
            }
        }
    }
    if (digits == 0 || !unit_parse(s, at, &unit))
        return false;
    __extension__ typedef unsigned __int128 u128;
    uint64_t fraction_ns = (uint64_t)((u128)fraction * unit / scale);
    return !__builtin_mul_overflow(whole, unit, &whole) &&
           !__builtin_add_overflow(*total, whole, total) &&
           !__builtin_add_overflow(*total, fraction_ns, total) && *total <= INT64_MAX;
}

bool duration_parse(struct str s, int64_t *out_us)
{
    uint64_t total_ns = 0;
    size_t at = s.n > 0 && s.p[0] == '+' ? 1 : 0;

    if (str_eq(str_slice(s, at, s.n), STR("0"))) { /* the one number that needs no unit */
        *out_us = 0;
        return true;
    }
    if (at == s.n)
        return false;
    while (at < s.n)
        if (!part_parse(s, &at, &total_ns))
            return false;
    *out_us = (int64_t)(total_ns / 1000);
    return true;
}
