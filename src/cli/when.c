/* SPDX-License-Identifier: Apache-2.0
 * Reading the API's times and writing them for people. */
#include "cli/when.h"

#include <time.h>

/* Takes `n` digits from the front of *s. */
static bool take_digits(struct str *s, size_t n, int *out)
{
    int64_t v = 0;

    if (s->n < n || !str_to_int64(str_make(s->p, n), &v))
        return false;
    *out = (int)v;
    *s = str_make(s->p + n, s->n - n);
    return true;
}

static bool take_byte(struct str *s, char c)
{
    if (s->n == 0 || s->p[0] != c)
        return false;
    *s = str_make(s->p + 1, s->n - 1);
    return true;
}

/* What stands behind the dot, as microseconds; digits past the sixth are dropped. */
static bool take_fraction(struct str *s, int64_t *us)
{
    int64_t unit = US_PER_S / 10;
    size_t digits = 0;

    while (s->n > 0 && s->p[0] >= '0' && s->p[0] <= '9') {
        *us += (s->p[0] - '0') * unit;
        unit /= 10;
        digits++;
        *s = str_make(s->p + 1, s->n - 1);
    }
    return digits > 0;
}

bool when_parse(struct str rfc3339, int64_t *wall_us)
{
    struct str s = rfc3339;
    struct tm tm = {0};
    int64_t fraction_us = 0;

    if (!take_digits(&s, 4, &tm.tm_year) || !take_byte(&s, '-') ||
        !take_digits(&s, 2, &tm.tm_mon) || !take_byte(&s, '-') ||
        !take_digits(&s, 2, &tm.tm_mday) || !take_byte(&s, 'T') ||
        !take_digits(&s, 2, &tm.tm_hour) || !take_byte(&s, ':') ||
        !take_digits(&s, 2, &tm.tm_min) || !take_byte(&s, ':') || !take_digits(&s, 2, &tm.tm_sec))
        return false;
    if (take_byte(&s, '.') && !take_fraction(&s, &fraction_us))
        return false;
    if (!take_byte(&s, 'Z') || s.n != 0)
        return false;
    tm.tm_year -= 1900;
    tm.tm_mon -= 1;
    *wall_us = (int64_t)timegm(&tm) * US_PER_S + fraction_us;
    return true;
}

static void add_two_units(struct buf *out, int64_t s)
{
    if (s < 3600)
        buf_printf(out, "%lldm%02llds", (long long)(s / 60), (long long)(s % 60));
    else if (s < 86400)
        buf_printf(out, "%lldh%02lldm", (long long)(s / 3600), (long long)(s % 3600 / 60));
    else
        buf_printf(out, "%lldd%02lldh", (long long)(s / 86400), (long long)(s % 86400 / 3600));
}

void when_age(struct buf *out, int64_t us)
{
    int64_t s = us < 0 ? 0 : us / US_PER_S;

    if (s < 60)
        buf_printf(out, "%llds", (long long)s);
    else
        add_two_units(out, s);
}

void when_duration(struct buf *out, int64_t us)
{
    int64_t ms = us < 0 ? 0 : us / US_PER_MS, s = ms / 1000;

    if (ms < 1000)
        buf_printf(out, "%lldms", (long long)ms);
    else if (s < 60)
        buf_printf(out, "%lld.%llds", (long long)s, (long long)(ms % 1000 / 100));
    else
        add_two_units(out, s);
}

static struct tm local_time(int64_t wall_us)
{
    time_t seconds = (time_t)(wall_us / US_PER_S);
    struct tm tm = {0};

    localtime_r(&seconds, &tm);
    return tm;
}

void when_clock(struct buf *out, int64_t wall_us)
{
    struct tm tm = local_time(wall_us);

    buf_printf(out, "%02d:%02d:%02d.%03d", tm.tm_hour, tm.tm_min, tm.tm_sec,
               (int)(wall_us % US_PER_S / US_PER_MS));
}

void when_full(struct buf *out, int64_t wall_us)
{
    struct tm tm = local_time(wall_us);

    buf_printf(out, "%04d-%02d-%02d %02d:%02d:%02d", tm.tm_year + 1900, tm.tm_mon + 1, tm.tm_mday,
               tm.tm_hour, tm.tm_min, tm.tm_sec);
}
