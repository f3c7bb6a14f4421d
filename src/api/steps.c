/* SPDX-License-Identifier: Apache-2.0
 * Steps: submitted, settled, read, listed. */
#include "api/router.h"

#include "api/chunking.h"
#include "api/encode.h"
#include "api/listing.h"
#include "api/params.h"
#include "api/resource_fields.h"
#include "api/view.h"

#include <stdlib.h>

enum {
    TARGET_MAX = 1024,
    KEY_MAX = 256,
    STEPS_LIMIT_MAX = 1000,
    FILL_ROWS = 256,
    FILL_BYTES = 128 * 1024
};

/* ---- submitting ---- */

static void decided(struct request *rq)
{
    struct buf body = {0};
    struct json_writer w = {.out = &body};

    encode_decision(&w, &rq->cmd->out.step);
    request_reply_json(rq, 200, &body);
}

struct submission_fields {
    struct str kind, target, args, idempotency, resources;
};

static bool check_kind_and_mode(const struct submission_fields *f, struct step_submission *in,
                                struct arena *a, struct err *e)
{
    if (!step_kind_parse(json_string(f->kind, a), &in->kind))
        return err_set(e, ERR_VALIDATION, "field \"kind\" must be tool_call, llm_call or local");
    in->idempotency = SAFE_TO_RETRY;
    if (str_present(f->idempotency) &&
        !idempotency_parse(json_string(f->idempotency, a), &in->idempotency))
        return err_set(e, ERR_VALIDATION,
                       "field \"idempotency\" must be safe_to_retry or at_most_once");
    return field_text("target", f->target, in->kind == KIND_LLM_CALL ? 0 : 1, TARGET_MAX, a,
                      &in->target, e);
}

static bool decode_submission(struct request *rq, struct step_submission *in, struct err *e)
{
    struct submission_fields f;
    const struct json_field fields[] = {
        {.name = "kind", .required = true, .types = TYPE(STRING), .value = &f.kind},
        {.name = "target", .required = true, .types = TYPE(STRING), .value = &f.target},
        {.name = "args", .keep_null = true, .value = &f.args},
        {.name = "idempotency", .types = TYPE(STRING), .value = &f.idempotency},
        {.name = "resources", .types = TYPE(ARRAY), .value = &f.resources},
    };

    if (!json_fields(http_body(rq->x), false, fields, COUNT(fields), rq->arena, e) ||
        !check_kind_and_mode(&f, in, rq->arena, e) ||
        !field_resource_keys("resources", f.resources, rq->arena, &in->resources, &in->n_resources,
                             e))
        return false;
    in->raw_args = str_present(f.args) ? f.args : STR("null");
    return true;
}

/* The canonical form, its hash, and the key under which equal submissions are counted. */
static bool identify(struct request *rq, struct step_submission *in, struct err *e)
{
    struct buf canonical = {0};
    struct call_key *key = &in->tally.call;
    bool ok = canonical_json(in->raw_args, &canonical, e);

    if (ok && canonical.failed)
        ok = err_set(e, ERR_INTERNAL, "out of memory for canonical arguments");
    if (ok) {
        hash_sha256(buf_str(&canonical), &in->args_hash);
        in->args = arena_str(rq->arena, buf_str(&canonical));
        ok = str_present(in->args) ||
             err_set(e, ERR_INTERNAL, "out of memory for canonical arguments");
    }
    buf_free(&canonical);
    in->tally.execution_id = rq->execution_id;
    const struct call call = {step_kind_name(in->kind), in->target, in->args_hash};
    call_key(&call, key);
    return ok;
}

/* The Idempotency-Key of the request, if it has one. */
static bool read_key(struct request *rq, struct tally_ref *tally, struct err *e)
{
    struct str key = http_header(rq->x, "Idempotency-Key");
    struct hash hash;

    if (!str_present(key))
        return true;
    bool ok = key.n >= 1 && key.n <= KEY_MAX;
    for (size_t i = 0; i < key.n; i++)
        ok = ok && key.p[i] >= ' ' && key.p[i] <= '~';
    if (!ok)
        return err_set(e, ERR_VALIDATION,
                       "header Idempotency-Key must be 1 to 256 printable ASCII characters");
    hash_sha256(key, &hash);
    tally->has_key = true;
    memcpy(tally->key, hash.b, sizeof(tally->key));
    return true;
}

void steps_submit(struct request *rq)
{
    struct step_submission *in = &request_command(rq, COMMAND_SUBMIT)->in.submit;
    struct err e;

    if (!decode_submission(rq, in, &e) || !read_key(rq, &in->tally, &e) || !identify(rq, in, &e)) {
        request_reply_error(rq, &e);
        return;
    }
    in->execution_id = rq->execution_id;
    in->agent_id = rq->agent_id;
    in->lease = rq->lease;
    rq->cmd->bytes = in->raw_args.n;
    chunking_cut(rq, in->raw_args);
    request_submit(rq, decided);
}

/* ---- settling ---- */

static void settle(struct request *rq, bool failed)
{
    struct step_outcome *in = &request_command(rq, COMMAND_SETTLE)->in.settle;
    struct str captures, failures;
    const struct json_field fields[] = {
        {.name = failed ? "error" : "result",
         .required = true,
         .keep_null = !failed,
         .types = failed ? TYPE(OBJECT) : 0,
         .value = &in->value},
        {.name = "captures", .types = TYPE(ARRAY), .value = &captures},
        {.name = "capture_failures", .types = TYPE(ARRAY), .value = &failures},
    };
    struct err e;

    if (!json_fields(http_body(rq->x), false, fields, COUNT(fields), rq->arena, &e) ||
        !field_captures(captures, failures, rq->arena, &in->report, &e)) {
        request_reply_error(rq, &e);
        return;
    }
    in->execution_id = rq->execution_id;
    in->agent_id = rq->agent_id;
    in->lease = rq->lease;
    in->step_id = rq->step_id;
    in->failed = failed;
    in->usage = failed ? USAGE_NONE : usage_read(in->value, rq->arena);
    rq->cmd->bytes = in->value.n + captures.n + failures.n;
    if (!failed)
        chunking_cut(rq, in->value);
    request_submit(rq, decided);
}

void steps_complete(struct request *rq)
{
    settle(rq, false);
}

void steps_fail(struct request *rq)
{
    settle(rq, true);
}

/* ---- reading one ---- */

static void read_step(struct request *rq, struct store_reader *r)
{
    struct execution_view execution;
    struct step_view step;
    struct buf body = {0};
    struct json_writer w = {.out = &body};
    bool found;
    struct err e;

    if (!view_execution(rq, r, &execution, &e) ||
        !store_read_step(r, &rq->execution_id, &rq->step_id, rq->arena, &step, &found, &e)) {
        request_reply_error(rq, &e);
        return;
    }
    if (!found) {
        request_refuse(rq, ERR_NOT_FOUND, "no such step in this execution");
        return;
    }
    encode_step(&w, &rq->execution_id, &step);
    request_reply_json(rq, 200, &body);
}

void steps_get(struct request *rq)
{
    request_read_small(rq, read_step);
}

/* ---- listing ---- */

struct steps_query {
    struct str status; /* static or absent */
    bool has_after;
    struct hash after;
    int64_t limit; /* INT64_MAX: all */
};

struct steps_listing {
    struct listing listing; /* first */
    struct uuid execution_id;
    struct str status; /* static or absent */
    int64_t after_key, left;
    bool any;
};

static void close_steps(struct listing *listing, struct buf *out)
{
    (void)listing;
    buf_add_byte(out, ']');
}

static bool fill_steps(struct listing *listing, struct store_reader *r, struct buf *out, bool *more,
                       struct err *e)
{
    struct steps_listing *l = (struct steps_listing *)listing;
    size_t limit = l->left < FILL_ROWS ? (size_t)l->left : FILL_ROWS, n;
    struct json_writer w = {.out = out, .comma = l->any};
    struct arena arena = {0};
    struct step_view *rows;
    bool ok;

    ok = store_read_steps(r, &l->execution_id, l->status, l->after_key, limit, FILL_BYTES, &arena,
                          &rows, &n, e);
    if (!ok)
        n = 0;
    for (size_t i = 0; i < n; i++)
        encode_step(&w, &l->execution_id, &rows[i]);
    if (n > 0)
        l->after_key = rows[n - 1].key;
    l->any = l->any || n > 0;
    l->left -= (int64_t)n;
    *more = n > 0 && l->left > 0;
    arena_free(&arena);
    return ok;
}

/* The key after which the page begins. */
static bool find_after(struct request *rq, struct store_reader *r, int64_t *key, struct err *e)
{
    const struct steps_query *q = rq->state;
    struct step_view step;
    bool found;

    *key = 0;
    if (!q->has_after)
        return true;
    if (!store_read_step(r, &rq->execution_id, &q->after, rq->arena, &step, &found, e))
        return false;
    *key = step.key;
    return found || err_set(e, ERR_NOT_FOUND, "parameter \"after\" is no step of this execution");
}

static void read_steps(struct request *rq, struct store_reader *r)
{
    const struct steps_query *q = rq->state;
    struct execution_view execution;
    struct steps_listing *l;
    int64_t after_key;
    struct err e;

    if (!view_execution(rq, r, &execution, &e) || !find_after(rq, r, &after_key, &e)) {
        request_reply_error(rq, &e);
        return;
    }
    l = xzalloc(sizeof(*l));
    l->listing.fill = fill_steps;
    l->listing.open = STR("[");
    l->listing.close = close_steps;
    l->execution_id = rq->execution_id;
    l->status = q->status;
    l->after_key = after_key;
    l->left = q->limit;
    listing_run(rq, &l->listing, r);
}

static bool decode_steps(struct request *rq, struct steps_query *q, struct err *e)
{
    struct str status, after;
    enum step_status parsed;

    q->limit = INT64_MAX;
    if (!query_text(rq, "status", &status, e) || !query_text(rq, "after", &after, e) ||
        !query_int(rq, "limit", 1, STEPS_LIMIT_MAX, &q->limit, e))
        return false;
    if (step_status_parse(status, &parsed))
        q->status = step_status_name(parsed);
    else if (str_eq(status, STR("terminal")))
        q->status = STR("terminal");
    else if (!str_empty(status))
        return err_set(e, ERR_VALIDATION,
                       "parameter \"status\" must be terminal or a step's status");
    q->has_after = !str_empty(after);
    return !q->has_after || hash_parse(after, &q->after) ||
           err_set(e, ERR_VALIDATION, "parameter \"after\" must be a step_id");
}

void steps_list(struct request *rq)
{
    struct steps_query *q = arena_new(rq->arena, struct steps_query);
    struct err e;

    rq->state = q;
    if (decode_steps(rq, q, &e))
        request_read_large(rq, read_steps);
    else
        request_reply_error(rq, &e);
}
