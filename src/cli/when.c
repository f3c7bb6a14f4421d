/* SPDX-License-Identifier: Apache-2.0
 * Times for people. */
#include "cli/when.h"

#include <time.h>

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

void when_date(struct buf *out, int64_t wall_us)
{
    struct tm tm = local_time(wall_us);

    buf_printf(out, "%04d-%02d-%02d", tm.tm_year + 1900, tm.tm_mon + 1, tm.tm_mday);
}

void when_full(struct buf *out, int64_t wall_us)
{
    struct tm tm = local_time(wall_us);

    when_date(out, wall_us);
    buf_printf(out, " %02d:%02d:%02d", tm.tm_hour, tm.tm_min, tm.tm_sec);
}
