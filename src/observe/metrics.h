/* SPDX-License-Identifier: Apache-2.0
 * Prometheus' text format, and the counters that nobody else keeps: HTTP requests and the process
 * itself. Counting is a few relaxed additions and may happen on any thread. It knows no routes:
 * they are numbered by who made it. */
#ifndef OBSERVE_METRICS_H
#define OBSERVE_METRICS_H

#include "base/buf.h"

struct metrics;

/* `routes` are the label's values; static. One more is counted under "unmatched". */
struct metrics *metrics_new(const struct str *routes, size_t n);
void metrics_free(struct metrics *m);
/* `route` n: unmatched. */
void metrics_count_http(struct metrics *m, size_t route, int status, int64_t duration_us);
void metrics_add_http(const struct metrics *m, struct buf *out);
void metrics_add_process(struct buf *out);

enum metric_type { METRIC_COUNTER, METRIC_GAUGE, METRIC_SUMMARY, METRIC_HISTOGRAM };
/* HELP and TYPE; then its values. */
void metric_begin(struct buf *out, const char *name, enum metric_type type, const char *help);
/* With one label, or none (NULL); its value needs no escaping. */
void metric_value(struct buf *out, const char *name, const char *label, const char *label_value,
                  int64_t v);
void metric_seconds(struct buf *out, const char *name, int64_t us);

#endif
