/* SPDX-License-Identifier: Apache-2.0
 * Durations in nanoseconds, all of them kept, so that percentiles are exact. */
#ifndef BENCH_SAMPLES_H
#define BENCH_SAMPLES_H

#include "base/json.h"

struct samples { /* a zeroed struct is empty */
    int64_t *ns;
    size_t n, cap;
};

void samples_add(struct samples *s, int64_t ns);
void samples_append(struct samples *s, const struct samples *more);
void samples_free(struct samples *s);
/* Of the samples from..to, in the order in which they came; 0 when there are none. */
int64_t samples_percentile(const struct samples *s, size_t from, size_t to, double percentile);
/* A member [n, …], in whole microseconds, in the order in which they came. */
void samples_write_all(const struct samples *s, const char *name, struct json_writer *w);
/* A member {"n","mean","p50","p90","p99","max"}, in microseconds. */
void samples_write(const struct samples *s, const char *name, struct json_writer *w);

/* A member with one decimal place of interest, which base/json leaves to its users. */
void jw_member_real(struct json_writer *w, const char *key, double v);

#endif
