/* SPDX-License-Identifier: Apache-2.0
 * The only place that knows which HTTP status stands for which code. */
#include "api/error.h"

#include "base/json.h"

int error_status(enum err_code code)
{
    switch (code) {
    case ERR_VALIDATION:
        return 400;
    case ERR_UNAUTHORIZED:
        return 401;
    case ERR_FORBIDDEN:
        return 403;
    case ERR_NOT_FOUND:
        return 404;
    case ERR_METHOD_NOT_ALLOWED:
        return 405;
    case ERR_CONFLICT:
    case ERR_LEASE_SUPERSEDED:
    case ERR_EXECUTION_TERMINAL:
        return 409;
    case ERR_PAYLOAD_TOO_LARGE:
        return 413;
    case ERR_UNAVAILABLE:
        return 503;
    case ERR_NONE:
    case ERR_INTERNAL:
    case ERR_STORE_RACE:
        return 500;
    }
    return 500;
}

enum err_code error_of_status(int status)
{
    switch (status) {
    case 404:
        return ERR_NOT_FOUND;
    case 413:
        return ERR_PAYLOAD_TOO_LARGE;
    case 500:
        return ERR_INTERNAL;
    case 503:
        return ERR_UNAVAILABLE;
    default: /* 400, 408, 417, 431, 501, 505: the request is not one that can be taken */
        return ERR_VALIDATION;
    }
}

/* Messages about our own faults may quote a database or a file name: they are for the log. */
static struct str public_message(const struct err *e)
{
    switch (error_status(e->code)) {
    case 500:
        return STR("internal error; the kernel's log has more under this request id");
    case 503:
        return STR("the store cannot be reached or written at the moment");
    default:
        return str_of(e->message);
    }
}

static void encode(enum err_code code, struct str message, struct str details, struct buf *out)
{
    struct json_writer w = {.out = out};

    jw_open(&w, '{');
    jw_member_str(&w, "code", str_of(err_code_name(code)));
    jw_member_str(&w, "message", message);
    if (!str_empty(details))
        jw_member_raw_opt(&w, "details", details);
    jw_close(&w, '}');
}

void error_encode(const struct err *e, struct buf *out)
{
    bool ours = error_status(e->code) == 500;

    encode(ours ? ERR_INTERNAL : e->code, public_message(e), str_of(e->details), out);
}

void error_encode_refusal(int status, const char *message, struct buf *out)
{
    encode(error_of_status(status), str_of(message), STR_NONE, out);
}
