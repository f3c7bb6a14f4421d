/* SPDX-License-Identifier: Apache-2.0
 * Errors are values: a closed code, a message for people, and sometimes details (one JSON object).
 * Fallible functions return false (or NULL) and fill the `struct err *` that is their last
 * parameter. Only api/error.c maps codes to HTTP. */
#ifndef BASE_ERR_H
#define BASE_ERR_H

#include "base/str.h"

enum err_code {
    ERR_NONE = 0,
    ERR_VALIDATION,
    ERR_UNAUTHORIZED,
    ERR_FORBIDDEN,
    ERR_NOT_FOUND,
    ERR_METHOD_NOT_ALLOWED,
    ERR_CONFLICT,
    ERR_LEASE_SUPERSEDED,
    ERR_EXECUTION_TERMINAL,
    ERR_PAYLOAD_TOO_LARGE,
    ERR_INTERNAL, /* ours: a bug, a full memory. The message must not carry SQL, paths or secrets.
                   */
    ERR_UNAVAILABLE, /* the store cannot be reached or written; nothing was recorded unless details
                        say otherwise */
    /* Only between store and engine; never reaches a client. */
    ERR_STORE_RACE, /* what another kernel caused: unique key, deadlock, serialization failure. Load
                       and decide again. */
};

enum { ERR_MESSAGE_MAX = 512, ERR_DETAILS_MAX = 1024 };

struct err {
    enum err_code code;
    char message[ERR_MESSAGE_MAX]; /* NUL-terminated, cut at a character's boundary */
    char details[ERR_DETAILS_MAX]; /* "" or one JSON object */
};

/* Sets code and message (details become empty) and returns false, so that callers write `return
 * err_set(...)`. */
bool err_set(struct err *e, enum err_code code, const char *fmt, ...) PRINTF_LIKE(3, 4);
/* One JSON object about the error; one that does not fit is left out. After err_set. */
void err_details(struct err *e, struct str json);
/* Says in the details that nobody knows whether the write happened. */
void err_outcome_unknown(struct err *e);
/* The wire's name of a code ("validation_error"); static. */
const char *err_code_name(enum err_code code);

/* A broken invariant: logs the expression and place, then aborts. On in release builds too. */
#define ASSERT(expr)                                                                               \
    do {                                                                                           \
        if (__builtin_expect(!(expr), 0))                                                          \
            assert_failed(#expr, __FILE__, __LINE__);                                              \
    } while (0)
_Noreturn void assert_failed(const char *expr, const char *file, int line);

#endif
