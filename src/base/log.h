/* SPDX-License-Identifier: Apache-2.0
 * One line a fact on stderr: `ts level event key=value …` (text) or one JSON object. Event names
 * are fixed and dotted
 * ("dispatch.failed"); ids are keys. Payloads, secrets and tokens never appear. Any thread; one
 * write(2) a line. A field whose value is absent is left out; a value over 4 KiB is cut. */
#ifndef BASE_LOG_H
#define BASE_LOG_H

#include "base/str.h"

enum log_level { LOG_DEBUG, LOG_INFO, LOG_WARN, LOG_ERROR };
enum log_format { LOG_TEXT, LOG_JSON };

struct log_field {
    const char *key;
    struct str value;
};

void log_setup(enum log_level min,
               enum log_format format); /* once, at start, before other threads */
bool log_enabled(enum log_level level);
void log_fields(enum log_level level, const char *event, const struct log_field *fields, size_t n);
/* The same event from the same place at most `per_minute` times a minute; the next line
 * (that this thread logs after a true) says how many were held back. */
struct log_limit {
    int64_t window_start_us;
    unsigned count, suppressed;
};
bool log_allowed(struct log_limit *limit, unsigned per_minute); /* thread-safe */

/* log_event(LOG_INFO, "kernel.started", {"url", url}, {"db", db}); */
#define log_event(level, event, ...)                                                               \
    log_fields((level), (event), (const struct log_field[]){__VA_ARGS__},                          \
               sizeof((const struct log_field[]){__VA_ARGS__}) / sizeof(struct log_field))

/* A number as a log value: static per-thread ring, good until eight more calls on this thread. */
struct str log_int(int64_t v);

#endif
