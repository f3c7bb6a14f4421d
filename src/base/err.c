/* SPDX-License-Identifier: Apache-2.0
 * Error values, their names on the wire, and the end of a process whose invariant broke. */
#include "base/err.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/log.h"
#include "base/utf8.h"

bool err_set(struct err *e, enum err_code code, const char *fmt, ...)
{
    char text[ERR_MESSAGE_MAX + 4]; /* room to see whether the cut falls into a character */
    va_list args;

    va_start(args, fmt);
    int n = vsnprintf(text, sizeof text, fmt,
                      args); /* not straight into e: an argument may be e->message */
    va_end(args);
    size_t len = n < 0 ? 0 : (size_t)n < sizeof text ? (size_t)n : sizeof text - 1;
    len = utf8_cut(text, len, ERR_MESSAGE_MAX - 1);
    memcpy(e->message, text, len);
    e->message[len] = '\0';
    e->details[0] = '\0';
    e->code = code;
    return false;
}

void err_outcome_unknown(struct err *e)
{
    static const char UNKNOWN[] = "{\"outcome\":\"unknown\"}";

    memcpy(e->details, UNKNOWN, sizeof UNKNOWN);
}

const char *err_code_name(enum err_code code)
{
    switch (code) {
    case ERR_NONE:
        return "none";
    case ERR_VALIDATION:
        return "validation_error";
    case ERR_UNAUTHORIZED:
        return "unauthorized";
    case ERR_FORBIDDEN:
        return "forbidden";
    case ERR_NOT_FOUND:
        return "not_found";
    case ERR_METHOD_NOT_ALLOWED:
        return "method_not_allowed";
    case ERR_CONFLICT:
        return "conflict";
    case ERR_LEASE_SUPERSEDED:
        return "lease_superseded";
    case ERR_EXECUTION_TERMINAL:
        return "execution_terminal";
    case ERR_PAYLOAD_TOO_LARGE:
        return "payload_too_large";
    case ERR_INTERNAL:
        return "internal_error";
    case ERR_UNAVAILABLE:
        return "unavailable";
    case ERR_STORE_RACE:
        return "store_race";
    }
    return "internal_error";
}

void assert_failed(const char *expr, const char *file, int line)
{
    log_event(LOG_ERROR, "assert.failed", {"expr", str_of(expr)}, {"file", str_of(file)},
              {"line", log_int(line)});
    abort();
}

void err_details(struct err *e, struct str json)
{
    if (json.n >= sizeof(e->details))
        return;
    memcpy(e->details, json.p, json.n);
    e->details[json.n] = '\0';
}
