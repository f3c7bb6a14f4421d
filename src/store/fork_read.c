/* SPDX-License-Identifier: Apache-2.0
 * What a fork is copied from, and forks that nobody is at any more. */
#include "store/internal.h"

enum { ERRORS_A_PAGE = 8 << 20 }; /* bytes of error texts */

/* ---- the source ---- */

static const struct db_sql SQL_FORK_SOURCE = {
    .name = "fork_source",
    .sqlite = "SELECT e.agent_id, e.input, e.on_behalf_of, e.policy_bundle, e.policy_hash,"
              " e.indeterminate, e.parent, e.last_seq, (SELECT v.first_seq + v.count - 1"
              " FROM events v WHERE v.execution_key = e.key ORDER BY v.first_seq DESC LIMIT 1)"
              " FROM executions e WHERE e.id = $1",
    .types = "b",
};
static const struct db_sql SQL_OWN_POLICY = {
    .name = "own_policy",
    .sqlite = "SELECT e.policy_bundle FROM executions e WHERE e.id = $1",
    .types = "b",
};

struct source_read {
    struct arena *arena;
    struct payload_reader payloads;
    struct fork_source *out;
    bool found;
};

static void on_source(void *ctx, struct db *db, size_t row)
{
    struct source_read *read = ctx;
    struct fork_source *out = read->out;
    int64_t by_log = db_get_int(db, 8);

    (void)row;
    read->found = true;
    out->agent_id = db_get_copy(db, 0, read->arena);
    payload_get(&read->payloads, 1, &out->input);
    out->on_behalf_of = db_get_copy(db, 2, read->arena);
    payload_get(&read->payloads, 3, &out->policy_bundle);
    if (str_present(db_get_str(db, 4)))
        db_get_hash(db, 4, &out->policy_hash);
    out->indeterminate = db_get_copy(db, 5, read->arena);
    (void)db_get_uuid(db, 6, &out->parent);
    out->last_seq = db_get_int(db, 7);
    if (out->last_seq < by_log)
        out->last_seq = by_log;
}

bool store_read_fork_source(struct store_reader *r, const struct uuid *execution_id,
                            struct arena *a, struct fork_source *out, bool *found, struct err *e)
{
    struct source_read read = {.arena = a, .payloads = {.db = r->db, .arena = a}, .out = out};
    bool ok;

    *out = (struct fork_source){0};
    db_call(r->db, &SQL_FORK_SOURCE, on_source, &read);
    db_uuid(r->db, execution_id);
    db_one(r->db);
    ok = payloads_read(&read.payloads, e);
    *found = ok && read.found;
    payload_reader_free(&read.payloads);
    return ok;
}

static void on_policy(void *ctx, struct db *db, size_t row)
{
    struct source_read *read = ctx;

    (void)db;
    (void)row;
    payload_get(&read->payloads, 0, &read->out->policy_bundle);
}

bool store_read_own_policy(struct store_reader *r, const struct uuid *execution_id, struct arena *a,
                           struct str *bundle, struct err *e)
{
    struct fork_source source = {0};
    struct source_read read = {.arena = a, .payloads = {.db = r->db, .arena = a}, .out = &source};
    bool ok;

    db_call(r->db, &SQL_OWN_POLICY, on_policy, &read);
    db_uuid(r->db, execution_id);
    db_one(r->db);
    ok = payloads_read(&read.payloads, e);
    *bundle = ok ? source.policy_bundle : STR_NONE;
    payload_reader_free(&read.payloads);
    return ok;
}

/* ---- its steps ---- */

/* A page looks at all the execution's entries in the index (store_read_steps), so it is large. */
static const struct db_sql SQL_FORK_STEPS = {
    .name = "fork_steps",
    .sqlite =
        "SELECT s.key, coalesce(s.payload_key, s.key), s.step_id, s.kind, s.target,"
        " s.args_hash, s.occurrence, s.status, s.idempotency, s.rule_id, s.affects,"
        " s.created_at, s.started_at, s.completed_at, coalesce(s.input_tokens, -1),"
        " coalesce(s.output_tokens, -1), CASE WHEN s.status = 'failed' THEN " STEP_PAYLOAD(
            "error") " END FROM (SELECT o.key FROM steps o WHERE o.execution_key ="
                     " (SELECT key FROM executions WHERE id = $1) AND o.key + 0 > $2"
                     " ORDER BY o.key + 0 LIMIT $3) p JOIN steps s ON s.key = p.key ORDER BY s.key",
    .types = "bii",
};

struct fork_steps {
    struct arena *arena;
    struct payload_reader payloads;
    size_t error_bytes;
    int64_t last_key;
    LIST(struct step *) rows;
};

static void on_step(void *ctx, struct db *db, size_t row)
{
    struct fork_steps *page = ctx;
    struct arena *a = page->arena;
    struct step *step;

    (void)row;
    if (page->error_bytes >= ERRORS_A_PAGE)
        return;
    step = arena_new(a, struct step);
    page->last_key = db_get_int(db, 0);
    step->key = db_get_int(db, 1);
    db_get_hash(db, 2, &step->id);
    step->target = db_get_copy(db, 4, a);
    db_get_hash(db, 5, &step->args_hash);
    step->occurrence = db_get_int(db, 6);
    if (!step_kind_parse(db_get_str(db, 3), &step->kind) ||
        !step_status_parse(db_get_str(db, 7), &step->status) ||
        !idempotency_parse(db_get_str(db, 8), &step->idempotency))
        db_fail(db, ERR_INTERNAL, "the database holds an unknown step kind, status or mode");
    step->rule_id = db_get_copy(db, 9, a);
    step->affects = db_get_copy(db, 10, a);
    step->created_at = db_get_int(db, 11);
    step->started_at = db_get_int(db, 12);
    step->completed_at = db_get_int(db, 13);
    step->usage = (struct usage){db_get_int(db, 14), db_get_int(db, 15)};
    page->error_bytes += payload_size(db, 16);
    payload_get(&page->payloads, 16, &step->error);
    list_add(page->rows, step);
}

/* NOLINTNEXTLINE(readability-function-size): bounds in, a page out */
bool store_read_fork_steps(struct store_reader *r, const struct uuid *execution_id,
                           int64_t after_key, size_t limit, struct arena *a, struct step **out,
                           size_t *n, int64_t *last_key, struct err *e)
{
    struct fork_steps page = {
        .arena = a, .payloads = {.db = r->db, .arena = a}, .last_key = after_key};
    bool ok;

    *n = 0;
    db_call(r->db, &SQL_FORK_STEPS, on_step, &page);
    db_uuid(r->db, execution_id);
    db_int(r->db, after_key);
    db_int(r->db, (int64_t)limit);
    db_one(r->db);
    ok = payloads_read(&page.payloads, e);
    if (ok)
        list_rows_to_arena(page.rows, a, out, n);
    *last_key = page.last_key;
    list_free(page.rows);
    payload_reader_free(&page.payloads);
    return ok;
}

/* ---- background work ---- */

static const struct db_sql SQL_STALE_FORKS = {
    .name = "stale_forks",
    .sqlite = "SELECT f.id FROM forks f WHERE f.touched_at < $1 LIMIT $2",
    .types = "ii",
};

struct id_list {
    LIST(struct uuid) ids;
};

static void on_id(void *ctx, struct db *db, size_t row)
{
    struct id_list *list = ctx;
    struct uuid id;

    (void)row;
    (void)db_get_uuid(db, 0, &id);
    list_add(list->ids, id);
}

bool store_stale_forks(struct store_reader *r, int64_t older_than, size_t limit, struct arena *a,
                       struct uuid **out, size_t *n, struct err *e)
{
    struct id_list list = {0};
    bool ok;

    db_call(r->db, &SQL_STALE_FORKS, on_id, &list);
    db_int(r->db, older_than);
    db_int(r->db, (int64_t)limit);
    db_one(r->db);
    ok = db_flush(r->db, e);
    list_to_arena(list.ids, a, out, n);
    return ok;
}
