/* SPDX-License-Identifier: Apache-2.0
 * Approvals: listed and read by whoever decides, granted and denied. */
#include "api/router.h"

#include "api/encode.h"
#include "api/listing.h"
#include "api/params.h"

#include <stdlib.h>

enum { LIST_LIMIT_MAX = 1000, RATIONALE_MAX = 64 * 1024, FILL_ROWS = 64, FILL_BYTES = 128 * 1024 };

/* ---- reading one ---- */

static void read_approval(struct request *rq, struct store_reader *r)
{
    struct approval_view v;
    struct buf body = {0};
    struct json_writer w = {.out = &body};
    bool found;
    struct err e;

    if (!store_read_approval(r, &rq->approval_id, rq->arena, &v, &found, &e)) {
        request_reply_error(rq, &e);
        return;
    }
    if (!found) {
        request_refuse(rq, ERR_NOT_FOUND, "no such approval");
        return;
    }
    encode_approval(&w, &v);
    request_reply_json(rq, 200, &body);
}

void approvals_get(struct request *rq)
{
    request_read_small(rq, read_approval);
}

/* ---- listing ---- */

struct approvals_query {
    struct approval_filter filter; /* its status is static or absent */
    int64_t limit;
};

struct approvals_listing {
    struct listing listing; /* first */
    struct approval_filter filter;
    struct approval_view after; /* timeout_at and key of the last one */
    int64_t left;
    bool any;
};

static void close_list(struct listing *listing, struct buf *out)
{
    (void)listing;
    buf_add_byte(out, ']');
}

static bool fill_list(struct listing *listing, struct store_reader *r, struct buf *out, bool *more,
                      struct err *e)
{
    struct approvals_listing *l = (struct approvals_listing *)listing;
    struct json_writer w = {.out = out, .comma = l->any};
    struct arena arena = {0};
    struct approval_view *rows;
    size_t n;
    bool ok;

    l->filter.limit = l->left < FILL_ROWS ? (size_t)l->left : FILL_ROWS;
    ok = store_list_approvals(r, &l->filter, &arena, &rows, &n, e);
    if (!ok)
        n = 0;
    for (size_t i = 0; i < n; i++)
        encode_approval(&w, &rows[i]);
    if (n > 0) {
        l->after.timeout_at = rows[n - 1].timeout_at;
        l->after.key = rows[n - 1].key;
        l->filter.after = &l->after;
    }
    l->any = l->any || n > 0;
    l->left -= (int64_t)n;
    *more = n > 0 && l->left > 0;
    arena_free(&arena);
    return ok;
}

static bool decode_status(struct str status, struct str *out, struct err *e)
{
    enum approval_status parsed = APPROVAL_PENDING;

    if (str_present(status) && str_empty(status)) {
        *out = STR_NONE; /* any */
        return true;
    }
    if (str_present(status) && !approval_status_parse(status, &parsed))
        return err_set(e, ERR_VALIDATION, "parameter \"status\" is no status of an approval");
    *out = approval_status_name(parsed);
    return true;
}

static bool decode_list(struct request *rq, struct approvals_query *q, struct err *e)
{
    struct str status, prefix;

    q->limit = LIST_LIMIT_MAX;
    if (!query_text(rq, "status", &status, e) || !query_text(rq, "prefix", &prefix, e) ||
        !query_int(rq, "limit", 1, LIST_LIMIT_MAX, &q->limit, e) ||
        !decode_status(status, &q->filter.status, e))
        return false;
    return uuid_prefix_range(prefix, &q->filter.low, &q->filter.high) ||
           err_set(e, ERR_VALIDATION,
                   "parameter \"prefix\" must be the beginning of an approval's id");
}

static void read_list(struct request *rq, struct store_reader *r)
{
    const struct approvals_query *q = rq->state;
    struct approvals_listing *l = xzalloc(sizeof(*l));

    l->listing.fill = fill_list;
    l->listing.open = STR("[");
    l->listing.close = close_list;
    l->filter = q->filter;
    l->filter.max_bytes = FILL_BYTES;
    l->left = q->limit;
    listing_run(rq, &l->listing, r);
}

void approvals_list(struct request *rq)
{
    struct approvals_query *q = arena_new(rq->arena, struct approvals_query);
    struct err e;

    rq->state = q;
    if (decode_list(rq, q, &e))
        request_read_large(rq, read_list);
    else
        request_reply_error(rq, &e);
}

/* ---- deciding ---- */

static void decided(struct request *rq)
{
    if (rq->cmd->out.approval.late)
        request_reply_error(rq, &rq->cmd->err);
    else
        request_reply_empty(rq);
}

/* The lock is the execution's: which one that is must be known before. */
static bool find_execution(struct request *rq, struct store_reader *r, struct err *e)
{
    struct approval_view v;
    bool found;

    if (!store_read_approval(r, &rq->approval_id, rq->arena, &v, &found, e))
        return false;
    if (!found)
        return err_set(e, ERR_NOT_FOUND, "no such approval");
    rq->cmd->in.approval.execution_id = v.execution_id;
    request_submit(rq, decided);
    return true;
}

static bool read_rationale(struct str raw, struct arena *a, struct str *out, struct err *e)
{
    *out = str_present(raw) ? json_string(raw, a) : STR_NONE;
    if (str_present(raw) && !str_present(*out))
        return err_set(e, ERR_INTERNAL, "out of memory");
    if (out->n > RATIONALE_MAX)
        return err_set(e, ERR_VALIDATION, "field \"rationale\" must be at most %d bytes of UTF-8",
                       RATIONALE_MAX);
    if (str_empty(*out)) /* published clients always send the field */
        *out = STR_NONE;
    return true;
}

static bool decode_decision(struct request *rq, struct approval_decision *in, struct err *e)
{
    struct str decided_by, rationale;
    const struct json_field fields[] = {
        {.name = "decided_by", .types = TYPE(STRING), .value = &decided_by},
        {.name = "rationale", .types = TYPE(STRING), .value = &rationale},
    };

    if (!json_fields(http_body(rq->x), true, fields, COUNT(fields), rq->arena, e) ||
        !field_text("decided_by", decided_by, 1, SHORT_TEXT_MAX, rq->arena, &in->decided_by, e) ||
        !read_rationale(rationale, rq->arena, &in->rationale, e))
        return false;
    if (str_present(in->decided_by))
        in->asserted_by = rq->caller;
    else
        in->decided_by = rq->caller;
    return true;
}

static void decide(struct request *rq, bool granted)
{
    struct command *cmd = request_command(rq, COMMAND_APPROVAL_DECIDE);
    struct approval_decision *in = &cmd->in.approval;
    struct err e;

    if (!decode_decision(rq, in, &e)) {
        request_reply_error(rq, &e);
        return;
    }
    in->approval_id = rq->approval_id;
    in->granted = granted;
    cmd->bytes = in->rationale.n;
    request_read_ahead(rq, find_execution);
}

void approvals_grant(struct request *rq)
{
    decide(rq, true);
}

void approvals_deny(struct request *rq)
{
    decide(rq, false);
}
