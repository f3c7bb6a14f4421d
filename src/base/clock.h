/* SPDX-License-Identifier: Apache-2.0
 * Time in integer microseconds. The wall clock is for what is recorded, the monotonic one for
 * leases and time-outs. */
#ifndef BASE_CLOCK_H
#define BASE_CLOCK_H

#include "base/buf.h"

#define US_PER_MS INT64_C(1000)
#define US_PER_S INT64_C(1000000)

int64_t clock_wall_us(void); /* since the Unix epoch, UTC */
int64_t clock_mono_us(void); /* since some moment of this boot */
/* RFC 3339 in UTC with microseconds: 2026-01-02T03:04:05.678901Z */
void clock_format_rfc3339(struct buf *out, int64_t wall_us);
/* Any RFC 3339 time, with its offset; digits past the microseconds are dropped. */
MUST_USE bool clock_parse_rfc3339(struct str s, int64_t *wall_us);
/* Go's durations: "300ms", "1h30m", "2.5s", "0". Negative, empty, unitless or overflowing text is
 * refused. */
MUST_USE bool duration_parse(struct str s, int64_t *out_us);

#endif
