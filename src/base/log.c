/* SPDX-License-Identifier: Apache-2.0
 * The log: one line a fact, one write(2) a line. Values come from anywhere, so nothing in them can
 * end a line, open a new key or drive a terminal. */
#include "base/log.h"

#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/clock.h"
#include "base/utf8.h"

enum { VALUE_MAX = 4096, RING = 8 };

static enum log_level min_level = LOG_INFO;
static enum log_format line_format = LOG_TEXT;

/* Lines that log_allowed held back and this thread's next line has to speak of. */
static _Thread_local unsigned held_back;

void log_setup(enum log_level min, enum log_format format)
{
    min_level = min;
    line_format = format;
}

bool log_enabled(enum log_level level)
{
    return level >= min_level;
}

static const char *level_name(enum log_level level)
{
    switch (level) {
    case LOG_DEBUG:
        return "debug";
    case LOG_INFO:
        return "info";
    case LOG_WARN:
        return "warn";
    case LOG_ERROR:
        return "error";
    }
    return "error";
}

/* The character of one well-formed sequence of UTF-8 when it must not stand in a line as it is;
 * else UINT32_MAX. */
static uint32_t hidden_char(const char *p, size_t n)
{
    uint32_t c = (unsigned char)p[0];

    if (n == 1)
        return c < 0x20 || c == 0x7f ? c : UINT32_MAX;
    c &= 0x3fu >> (n - 1);
    for (size_t i = 1; i < n; i++)
        c = c << 6 | ((unsigned char)p[i] & 0x3fu);
    bool c1 = c < 0xa0;
    bool separator_or_bidi = (c >= 0x2028 && c <= 0x202e) || (c >= 0x2066 && c <= 0x2069);
    return c1 || separator_or_bidi ? c : UINT32_MAX;
}

/* A JSON string in which everything that could disturb a line or a terminal is escaped. */
static void add_quoted(struct buf *out, struct str s)
{
    const char *p = s.p, *end = s.n == 0 ? p : p + s.n;

    buf_add_byte(out, '"');
    while (p != end) {
        size_t n = utf8_len(p, end);
        uint32_t hidden = n == 0 ? 0xfffd : hidden_char(p, n);
        if (*p == '"' || *p == '\\') {
            buf_add_byte(out, '\\');
            buf_add_byte(out, *p);
        } else if (*p == '\n')
            buf_add(out, STR("\\n"));
        else if (hidden != UINT32_MAX)
            buf_printf(out, "\\u%04x", (unsigned)hidden);
        else
            buf_add(out, (struct str){p, n});
        p += n == 0 ? 1 : n;
    }
    buf_add_byte(out, '"');
}

static bool is_bare(struct str s)
{
    for (size_t i = 0; i < s.n; i++) {
        unsigned char c = (unsigned char)s.p[i];
        if (c <= ' ' || c >= 0x7f || c == '"' || c == '=' || c == '\\')
            return false;
    }
    return s.n > 0;
}

static void add_field(struct buf *line, const char *key, struct str value)
{
    char cut[VALUE_MAX + 3];

    if (value.n > VALUE_MAX) {
        size_t n = utf8_cut(value.p, value.n, VALUE_MAX);
        memcpy(cut, value.p, n);
        memcpy(cut + n, "\u2026", 3);
        value = (struct str){cut, n + 3};
    }
    if (line_format == LOG_JSON) {
        buf_add(line, STR(",\""));
        buf_add_z(line, key);
        buf_add(line, STR("\":"));
        add_quoted(line, value);
        return;
    }
    buf_add_byte(line, ' ');
    buf_add_z(line, key);
    buf_add_byte(line, '=');
    if (is_bare(value))
        buf_add(line, value);
    else
        add_quoted(line, value);
}

static void add_head(struct buf *line, enum log_level level, const char *event)
{
    bool json = line_format == LOG_JSON;

    buf_add_z(line, json ? "{\"ts\":\"" : "");
    clock_format_rfc3339(line, clock_wall_us());
    buf_add_z(line, json ? "\",\"level\":\"" : " ");
    buf_add_z(line, level_name(level));
    buf_add_z(line, json ? "\",\"event\":\"" : " ");
    buf_add_z(line, event);
    buf_add_z(line, json ? "\"" : "");
}

static void write_line(struct str line)
{
    while (line.n > 0) { /* a pipe may take less than all of it */
        ssize_t n = write(STDERR_FILENO, line.p, line.n);
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            return; /* there is nobody to tell */
        line = str_slice(line, (size_t)n, line.n);
    }
}

void log_fields(enum log_level level, const char *event, const struct log_field *fields, size_t n)
{
    struct buf line = {0};
    unsigned missed = held_back;
    int saved_errno = errno; /* callers log on their way out of a failed call */

    held_back = 0;
    if (!log_enabled(level))
        return;
    add_head(&line, level, event);
    for (size_t i = 0; i < n; i++)
        if (str_present(fields[i].value))
            add_field(&line, fields[i].key, fields[i].value);
    if (missed != 0)
        add_field(&line, "held_back", log_int(missed));
    buf_add(&line, line_format == LOG_JSON ? STR("}\n") : STR("\n"));
    write_line(line.failed ? STR("log.out_of_memory\n") : buf_str(&line));
    buf_free(&line);
    errno = saved_errno;
}

bool log_allowed(struct log_limit *limit, unsigned per_minute)
{
    static pthread_mutex_t lock =
        PTHREAD_MUTEX_INITIALIZER; /* for all limits: they are asked where things go wrong */
    int64_t now_us = clock_mono_us();
    bool allowed = true;

    pthread_mutex_lock(&lock);
    if (limit->window_start_us == 0 || now_us - limit->window_start_us >= 60 * US_PER_S) {
        limit->window_start_us = now_us;
        limit->count = 0;
    }
    if (limit->count < per_minute) {
        limit->count++;
        held_back = limit->suppressed;
        limit->suppressed = 0;
    } else {
        limit->suppressed++;
        allowed = false;
    }
    pthread_mutex_unlock(&lock);
    return allowed;
}

struct str log_int(int64_t v)
{
    static _Thread_local char ring[RING][24];
    static _Thread_local unsigned next;
    char *text = ring[next++ % RING];

    return (struct str){text, (size_t)snprintf(text, sizeof ring[0], "%lld", (long long)v)};
}
