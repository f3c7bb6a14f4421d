/* SPDX-License-Identifier: Apache-2.0
 * Executions: created, read, listed, cancelled by clients; completed and failed by their agents. */
#include "api/router.h"

#include "api/chunking.h"
#include "api/encode.h"
#include "api/listing.h"
#include "api/params.h"
#include "api/view.h"
#include "base/clock.h"
#include "base/hex.h"

#include <stdlib.h>

/* ---- reading one ---- */

/* On SQLite a lease's end is in the executor's memory, not in the row. */
static void know_lease_end(struct engine *engine, struct execution_view *v)
{
    if (v->lease_until == 0 && str_present(v->dispatch_status))
        v->lease_until = engine_lease_end(engine, &v->id);
}

bool view_execution(struct request *rq, struct store_reader *r, struct execution_view *v,
                    struct err *e)
{
    bool found;

    if (!store_read_execution(r, &rq->execution_id, rq->arena, v, &found, e))
        return false;
    if (!found)
        return err_set(e, ERR_NOT_FOUND, "no such execution");
    if (str_present(rq->agent_id) && !str_eq(v->agent_id, rq->agent_id))
        return err_set(e, ERR_FORBIDDEN, "this execution belongs to another agent");
    return true;
}

bool reply_execution(struct request *rq, struct store_reader *r, int status, struct err *e)
{
    struct execution_view v;
    struct buf body = {0};
    struct json_writer w = {.out = &body};
    struct waits waits;

    if (!view_execution(rq, r, &v, e) || !waits_read(r, &v, rq->arena, &waits, e))
        return false;
    know_lease_end(rq->api->engine, &v);
    encode_execution(&w, &v, &waits, clock_wall_us());
    request_reply_json(rq, status, &body);
    return true;
}

static void read_one(struct request *rq, struct store_reader *r)
{
    struct err e;

    if (!reply_execution(rq, r, 200, &e))
        request_reply_error(rq, &e);
}

void executions_get(struct request *rq)
{
    request_read_small(rq, read_one);
}

static void read_previous(struct request *rq, struct store_reader *r)
{
    struct execution_view v;
    struct buf body = {0};
    struct json_writer w = {.out = &body};
    struct str state;
    struct err e;
    bool found;

    if (!view_execution(rq, r, &v, &e) ||
        !store_read_previous(r, &rq->execution_id, rq->arena, &state, &found, &e)) {
        request_reply_error(rq, &e);
        return;
    }
    if (!found) { /* deleted since */
        request_refuse(rq, ERR_NOT_FOUND, "no such execution");
        return;
    }
    jw_open(&w, '{');
    jw_member_raw_opt(&w, "state", str_present(state) ? state : STR("null"));
    jw_close(&w, '}');
    request_reply_json(rq, 200, &body);
}

void executions_previous(struct request *rq)
{
    request_read_small(rq, read_previous);
}

/* ---- creating ---- */

static bool read_created(struct request *rq, struct store_reader *r, struct err *e)
{
    return reply_execution(rq, r, rq->cmd->out.created.existing ? 200 : 201, e);
}

static void created(struct request *rq)
{
    rq->execution_id = rq->cmd->out.created.id;
    request_read_back(rq, read_created);
}

/* The nil id is nobody's, and stands for none further in. */
static bool decode_id(const char *name, struct str raw, struct arena *a, struct uuid *out,
                      struct err *e)
{
    if (!str_present(raw))
        return true;
    if (!uuid_parse(json_string(raw, a), out))
        return err_set(e, ERR_VALIDATION, "field \"%s\" must be a UUID", name);
    return !uuid_is_nil(out) || err_set(e, ERR_NOT_FOUND, "no such execution");
}

static bool decode_spawner(struct str raw, struct arena *a, struct execution_creation *in,
                           struct err *e)
{
    struct str execution_id = STR_NONE, step_id = STR_NONE;
    const struct json_field fields[] = {
        {.name = "execution_id", .required = true, .types = TYPE(STRING), .value = &execution_id},
        {.name = "step_id", .required = true, .types = TYPE(STRING), .value = &step_id},
    };
    struct err inner;

    if (!str_present(raw))
        return true;
    if (!json_fields(raw, false, fields, COUNT(fields), a, &inner))
        return err_set(e, inner.code, "field \"spawned_by\": %s", inner.message);
    if (!hash_parse(json_string(step_id, a), &in->spawned_step))
        return err_set(e, ERR_VALIDATION,
                       "field \"spawned_by.step_id\" must be 64 hexadecimal digits");
    return decode_id("spawned_by.execution_id", execution_id, a, &in->spawner, e);
}

static bool decode_creation(struct request *rq, struct execution_creation *in, struct err *e)
{
    struct str agent_id, key, behalf, session, parent, spawned_by;
    const struct json_field fields[] = {
        {.name = "agent_id", .required = true, .types = TYPE(STRING), .value = &agent_id},
        {.name = "input", .keep_null = true, .value = &in->input},
        {.name = "idempotency_key", .types = TYPE(STRING), .value = &key},
        {.name = "on_behalf_of", .types = TYPE(STRING), .value = &behalf},
        {.name = "session", .types = TYPE(STRING), .value = &session},
        {.name = "parent_execution_id", .types = TYPE(STRING), .value = &parent},
        {.name = "spawned_by", .types = TYPE(OBJECT), .value = &spawned_by},
    };

    if (!json_fields(http_body(rq->x), false, fields, COUNT(fields), rq->arena, e))
        return false;
    return field_text("agent_id", agent_id, 1, SIZE_MAX, rq->arena, &in->agent_id, e) &&
           field_text("idempotency_key", key, 1, SHORT_TEXT_MAX, rq->arena, &in->idempotency_key,
                      e) &&
           field_text("on_behalf_of", behalf, 1, SHORT_TEXT_MAX, rq->arena, &in->on_behalf_of, e) &&
           field_text("session", session, 1, SHORT_TEXT_MAX, rq->arena, &in->session, e) &&
           decode_id("parent_execution_id", parent, rq->arena, &in->parent, e) &&
           decode_spawner(spawned_by, rq->arena, in, e);
}

void executions_create(struct request *rq)
{
    struct command *cmd = request_command(rq, COMMAND_CREATE);
    struct err e;

    if (!decode_creation(rq, &cmd->in.create, &e)) {
        request_reply_error(rq, &e);
        return;
    }
    cmd->in.create.created_by = rq->caller;
    cmd->bytes = cmd->in.create.input.n;
    request_submit(rq, created);
}

/* ---- listing ---- */

enum { LIST_LIMIT = 50, LIST_LIMIT_MAX = 200, FILL_ROWS = 64, FILL_BYTES = 128 * 1024 };

struct execution_listing {
    struct listing listing; /* first */
    struct engine *engine;
    struct execution_filter filter; /* its strings are owned */
    struct uuid before, spawned_by;
    int64_t left;
    bool any;  /* was written */
    bool more; /* beyond this page */
};

static void close_list(struct listing *listing, struct buf *out)
{
    const struct execution_listing *l = (struct execution_listing *)listing;

    buf_add_byte(out, ']');
    if (l->more) {
        buf_add(out, STR(",\"next_cursor\":\""));
        buf_add_hex(out, l->before.b, sizeof(l->before.b));
        buf_add_byte(out, '"');
    }
    buf_add_byte(out, '}');
}

static bool add_row(struct execution_listing *l, struct store_reader *r, struct json_writer *w,
                    struct execution_view *v, struct err *e)
{
    struct arena arena = {0};
    struct waits waits;
    bool ok = waits_read(r, v, &arena, &waits, e);

    if (ok) {
        know_lease_end(l->engine, v);
        encode_execution(w, v, &waits, clock_wall_us());
        l->before = v->id;
        l->filter.before = &l->before;
        l->left--;
    }
    arena_free(&arena);
    return ok;
}

/* Reads one row more than it needs, to know whether there is a next page. Each may hold two bodies
 * of the largest size, so the bound is one of bytes: about so many, or one row, are held. */
static bool fill_list(struct listing *listing, struct store_reader *r, struct buf *out, bool *more,
                      struct err *e)
{
    struct execution_listing *l = (struct execution_listing *)listing;
    struct json_writer w = {.out = out, .comma = l->any};
    size_t wanted = l->left < FILL_ROWS ? (size_t)l->left + 1 : FILL_ROWS, n, start = out->n;
    struct execution_view *rows;
    struct arena arena = {0};
    bool ok;

    l->filter.limit = wanted;
    ok = store_list_executions(r, &l->filter, &arena, &rows, &n, e);
    if (!ok)
        n = 0;
    for (size_t i = 0; i < n && ok && !l->more; i++) {
        if (l->left == 0)
            l->more = true;
        else
            ok = add_row(l, r, &w, &rows[i], e);
    }
    l->any = l->any || n > 0;
    arena_free(&arena);
    *more = ok && !l->more && (n == wanted || out->n - start >= FILL_BYTES);
    return ok;
}

struct list_query {
    struct execution_filter filter;
    struct uuid before, spawned_by;
    int64_t limit;
};

static bool decode_cursor(struct str cursor, struct list_query *q, struct err *e)
{
    if (str_empty(cursor))
        return true;
    q->filter.before = &q->before;
    return (cursor.n == 2 * sizeof(q->before.b) &&
            hex_decode(cursor.p, sizeof(q->before.b), q->before.b)) ||
           err_set(e, ERR_VALIDATION, "parameter \"cursor\" is not one that this kernel gave out");
}

/* A parameter without a value counts as missing. */
static struct str given(struct str s)
{
    return str_empty(s) ? STR_NONE : s;
}

static bool decode_list(struct request *rq, struct list_query *q, struct err *e)
{
    struct str agent_id, status, session, spawned_by, prefix, cursor;
    enum execution_status parsed;

    q->limit = LIST_LIMIT;
    if (!query_text(rq, "agent_id", &agent_id, e) || !query_text(rq, "status", &status, e) ||
        !query_text(rq, "session", &session, e) || !query_text(rq, "spawned_by", &spawned_by, e) ||
        !query_text(rq, "prefix", &prefix, e) || !query_text(rq, "cursor", &cursor, e) ||
        !query_int(rq, "limit", 1, LIST_LIMIT_MAX, &q->limit, e))
        return false;
    if (!str_empty(status) && !execution_status_parse(status, &parsed))
        return err_set(e, ERR_VALIDATION, "parameter \"status\" is no status of an execution");
    if (!str_empty(spawned_by) && !uuid_parse(spawned_by, &q->spawned_by))
        return err_set(e, ERR_VALIDATION, "parameter \"spawned_by\" must be an execution's id");
    if (!uuid_prefix_range(prefix, &q->filter.low, &q->filter.high))
        return err_set(e, ERR_VALIDATION,
                       "parameter \"prefix\" must be the beginning of an execution's id");
    q->filter.agent_id = given(agent_id);
    q->filter.status = given(status);
    q->filter.session = given(session);
    q->filter.spawned_by = str_empty(spawned_by) ? NULL : &q->spawned_by;
    return decode_cursor(cursor, q, e);
}

static struct str copy_to(char **at, struct str s)
{
    struct str copy = str_make(*at, s.n);

    if (!str_present(s))
        return STR_NONE;
    memcpy(*at, s.p, s.n);
    *at += s.n;
    return copy;
}

static void read_list(struct request *rq, struct store_reader *r)
{
    const struct list_query *q = rq->state;
    const struct execution_filter *f = &q->filter;
    struct execution_listing *l = xzalloc(sizeof(*l) + f->agent_id.n + f->status.n + f->session.n);
    char *strings = (char *)(l + 1);

    l->engine = rq->api->engine;
    l->listing.fill = fill_list;
    l->listing.open = STR("{\"executions\":[");
    l->listing.close = close_list;
    l->filter = *f;
    l->filter.agent_id = copy_to(&strings, f->agent_id);
    l->filter.status = copy_to(&strings, f->status);
    l->filter.session = copy_to(&strings, f->session);
    l->before = q->before;
    l->filter.before = f->before == NULL ? NULL : &l->before;
    l->spawned_by = q->spawned_by;
    l->filter.spawned_by = f->spawned_by == NULL ? NULL : &l->spawned_by;
    l->filter.max_bytes = FILL_BYTES;
    l->left = q->limit;
    listing_run(rq, &l->listing, r);
}

void executions_list(struct request *rq)
{
    struct list_query *q = arena_new(rq->arena, struct list_query);
    struct err e;

    rq->state = q;
    if (decode_list(rq, q, &e))
        request_read_large(rq, read_list);
    else
        request_reply_error(rq, &e);
}

/* ---- ending ---- */

void executions_cancel(struct request *rq)
{
    struct command *cmd = request_command(rq, COMMAND_CANCEL);
    struct err e;

    if (!body_empty(rq, &e)) {
        request_reply_error(rq, &e);
        return;
    }
    cmd->in.cancel.execution_id = rq->execution_id;
    request_submit(rq, request_reply_empty);
}

static void finish(struct request *rq, struct execution_finish *in)
{
    in->execution_id = rq->execution_id;
    in->agent_id = rq->agent_id;
    in->lease = rq->lease;
    rq->cmd->bytes = in->output.n + in->state.n + in->error.n;
    chunking_cut(rq, in->state);
    request_submit(rq, request_reply_empty);
}

void executions_complete(struct request *rq)
{
    struct execution_finish *in = &request_command(rq, COMMAND_FINISH)->in.finish;
    const struct json_field fields[] = {
        {.name = "output", .keep_null = true, .value = &in->output},
        {.name = "state", .keep_null = true, .value = &in->state},
    };
    struct err e;

    if (json_fields(http_body(rq->x), false, fields, COUNT(fields), rq->arena, &e))
        finish(rq, in);
    else
        request_reply_error(rq, &e);
}

void executions_fail(struct request *rq)
{
    struct execution_finish *in = &request_command(rq, COMMAND_FINISH)->in.finish;
    struct str error;
    const struct json_field fields[] = {
        {.name = "error", .required = true, .types = TYPE(STRING), .value = &error},
    };
    struct err e;

    if (!json_fields(http_body(rq->x), false, fields, COUNT(fields), rq->arena, &e)) {
        request_reply_error(rq, &e);
        return;
    }
    in->failed = true;
    in->error = json_string(error, rq->arena);
    if (str_empty(in->error))
        request_refuse(rq, ERR_VALIDATION, "field \"error\" must not be empty");
    else
        finish(rq, in);
}
