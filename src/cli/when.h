/* SPDX-License-Identifier: Apache-2.0
 * Times as people read them: local clock times, ages and durations. */
#ifndef CLI_WHEN_H
#define CLI_WHEN_H

#include "base/clock.h"

/* "0s", "59s", "3m05s", "5h20m", "3d04h": whole seconds or two units, rounded down. Negative counts
 * as nothing. */
void when_age(struct buf *out, int64_t us);
/* "850ms", "1.2s", "3m05s", "2h10m", "3d04h". */
void when_duration(struct buf *out, int64_t us);
void when_clock(struct buf *out, int64_t wall_us); /* 15:04:05.678, local */
void when_date(struct buf *out, int64_t wall_us);  /* 2026-01-02, local */
void when_full(struct buf *out, int64_t wall_us);  /* 2026-01-02 15:04:05, local */

#endif
