/* SPDX-License-Identifier: Apache-2.0
 * Forks: made from any event of an execution, and what there is to know before making one. */
#include "api/router.h"

#include "api/bundle.h"
#include "api/encode.h"
#include "api/listing.h"
#include "api/params.h"
#include "api/view.h"
#include "engine/fork_job.h"

#include <stdlib.h>

/* ---- forking ---- */

static bool read_forked(struct request *rq, struct store_reader *r, struct err *e)
{
    return reply_execution(rq, r, 201, e);
}

static void forked(struct http_exchange *x, void *ctx)
{
    struct request *rq = ctx;
    struct fork_job *job = rq->state;

    (void)x;
    if (!job->ok) {
        if (job->unknown)
            err_outcome_unknown(&job->err);
        request_reply_error(rq, &job->err);
        return;
    }
    rq->execution_id = job->id;
    request_read_back(rq, read_forked);
}

static void fork_done(struct fork_job *job) /* a thread of the engine */
{
    struct request *rq = job->ctx;

    http_resume(rq->x, forked, rq);
}

static void start_fork(struct request *rq)
{
    struct fork_job *job = rq->state;

    job->done = fork_done;
    job->ctx = rq;
    engine_fork(rq->api->engine, job);
}

static bool decode_fork(struct request *rq, struct fork_job *job, struct str *bundle, struct err *e)
{
    struct str at_seq, session;
    const struct json_field fields[] = {
        {.name = "at_seq", .required = true, .types = TYPE(NUMBER), .value = &at_seq},
        {.name = "session", .types = TYPE(STRING), .value = &session},
        {.name = "policy_bundle", .types = TYPE(STRING), .value = bundle},
    };

    if (!json_fields(http_body(rq->x), false, fields, COUNT(fields), rq->arena, e) ||
        !field_text("session", session, 1, SHORT_TEXT_MAX, rq->arena, &job->session, e))
        return false;
    return (json_int64(at_seq, &job->at_seq) && job->at_seq >= 1) ||
           err_set(e, ERR_VALIDATION, "field \"at_seq\" must be the sequence number of an event");
}

void forks_create(struct request *rq)
{
    struct fork_job *job = arena_new(rq->arena, struct fork_job);
    struct str bundle;
    struct err e;

    rq->state = job;
    if (!decode_fork(rq, job, &bundle, &e)) {
        request_reply_error(rq, &e);
        return;
    }
    job->source = rq->execution_id;
    job->created_by = rq->caller;
    if (str_present(bundle))
        bundle_compile(rq, bundle, &job->policy_bundle, &job->policy_hash, start_fork);
    else
        start_fork(rq);
}

/* ---- fork points ---- */

enum { FILL_ROWS = 64 };

struct points_listing {
    struct listing listing; /* first */
    struct uuid execution_id;
    struct buf head;
    int64_t after_key;
    bool any;
};

static bool fill_points(struct listing *listing, struct store_reader *r, struct buf *out,
                        bool *more, struct err *e)
{
    struct points_listing *l = (struct points_listing *)listing;
    struct json_writer w = {.out = out, .comma = l->any};
    struct arena arena = {0};
    struct checkpoint_row *rows;
    size_t n;
    bool ok =
        store_read_checkpoints(r, &l->execution_id, l->after_key, FILL_ROWS, &arena, &rows, &n, e);

    if (!ok)
        n = 0;
    for (size_t i = 0; i < n; i++)
        encode_checkpoint(&w, &rows[i].row);
    if (n > 0)
        l->after_key = rows[n - 1].key;
    l->any = l->any || n > 0;
    *more = ok && n == FILL_ROWS;
    arena_free(&arena);
    return ok;
}

static void close_points(struct listing *listing, struct buf *out)
{
    (void)listing;
    buf_add(out, STR("]}"));
}

static void release_points(struct listing *listing)
{
    buf_free(&((struct points_listing *)listing)->head);
}

static void encode_head(struct request *rq, const struct execution_view *v,
                        const struct resource *rows, size_t n, struct buf *out)
{
    struct json_writer w = {.out = out};

    jw_open(&w, '{');
    jw_member_int(&w, "latest_seq", v->last_seq);
    jw_key(&w, "resources");
    jw_open(&w, '{');
    for (size_t i = 0; i < n; i++) /* keys need no escape */
        jw_member_int(&w, arena_str(rq->arena, rows[i].key).p, rows[i].registered_seq);
    jw_close(&w, '}');
    jw_key(&w, "checkpoints");
    jw_open(&w, '[');
}

static void read_points(struct request *rq, struct store_reader *r)
{
    struct points_listing *l;
    struct execution_view v;
    struct resource *rows;
    bool found;
    size_t n;
    struct err e;

    /* The latest event first: what is read after it is complete up to there. */
    if (!view_execution(rq, r, &v, &e) ||
        !store_read_resources(r, &rq->execution_id, rq->arena, &rows, &n, &found, &e)) {
        request_reply_error(rq, &e);
        return;
    }
    if (!found) { /* deleted since */
        request_refuse(rq, ERR_NOT_FOUND, "no such execution");
        return;
    }
    l = xzalloc(sizeof(*l));
    encode_head(rq, &v, rows, n, &l->head);
    l->listing.fill = fill_points;
    l->listing.open = buf_str(&l->head);
    l->listing.close = close_points;
    l->listing.release = release_points;
    l->execution_id = rq->execution_id;
    listing_run(rq, &l->listing, r);
}

void forks_points(struct request *rq)
{
    request_read_large(rq, read_points);
}
