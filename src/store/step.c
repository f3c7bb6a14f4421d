/* SPDX-License-Identifier: Apache-2.0
 * Rows of steps: load and apply. */
#include "store/internal.h"

/* ---- load ---- */

#define LOAD_COLUMNS                                                                               \
    "s.key, s.step_id, s.kind, s.target, s.args_hash, s.occurrence, s.status, s.idempotency, "     \
    "s.claim, s.rule_id,"                                                                          \
    " s.created_at, s.started_at, s.completed_at, " STEP_PAYLOAD("result") ", " STEP_PAYLOAD(      \
        "error") ", s.affects, s.subagent"

static const struct db_sql SQL_STEP_LOAD = {
    .name = "step_load",
    .sqlite = "SELECT " LOAD_COLUMNS
              " FROM steps s WHERE s.execution_key = (SELECT key FROM executions WHERE id = $1)"
              " AND substr(s.step_id, 1, 8) = substr($2, 1, 8) AND s.step_id = $2",
    .postgres = "SELECT u.ord, l.* FROM unnest($1::bytea[], $2::bytea[]) WITH ORDINALITY u (id, "
                "step_id, ord)"
                " JOIN executions e ON e.id = u.id CROSS JOIN LATERAL (SELECT " LOAD_COLUMNS
                " FROM steps s WHERE s.execution_key = e.key AND substr(s.step_id, 1, 8) = "
                "substr(u.step_id, 1, 8)"
                " AND s.step_id = u.step_id OFFSET 0) l",
    .types = "BB",
};
static const struct db_sql SQL_STEP_LIVE = {
    .name = "step_live",
    .sqlite =
        "SELECT " LOAD_COLUMNS " FROM steps s INDEXED BY steps_live WHERE s.completed_at IS NULL"
        " AND s.execution_key = (SELECT key FROM executions WHERE id = $1)"
        " AND s.status IN " LIVE_STEP_STATUSES,
    .postgres =
        "SELECT u.ord, " LOAD_COLUMNS " FROM unnest($1::bytea[]) WITH ORDINALITY u (id, ord)"
        " JOIN executions e ON e.id = u.id JOIN steps s ON s.execution_key = e.key"
        " WHERE s.status IN " LIVE_STEP_STATUSES,
    .types = "B",
};

static void read_step(struct load *ld, struct db *db, const struct uuid *execution_id)
{
    struct loaded_step *ls = arena_new(&ld->ws->arena, struct loaded_step);
    struct step *step = &ls->row;

    ls->execution_id = *execution_id;
    step->key = db_get_int(db, 0);
    db_get_hash(db, 1, &step->id);
    step->target = db_get_copy(db, 3, &ld->ws->arena);
    db_get_hash(db, 4, &step->args_hash);
    step->occurrence = db_get_int(db, 5);
    if (!step_kind_parse(db_get_str(db, 2), &step->kind) ||
        !step_status_parse(db_get_str(db, 6), &step->status) ||
        !idempotency_parse(db_get_str(db, 7), &step->idempotency))
        db_fail(db, ERR_INTERNAL, "the database holds an unknown step kind, status or mode");
    step->claim = db_get_int(db, 8);
    step->rule_id = db_get_copy(db, 9, &ld->ws->arena);
    step->created_at = db_get_int(db, 10);
    step->started_at = db_get_int(db, 11);
    step->completed_at = db_get_int(db, 12);
    step->usage = USAGE_NONE; /* no rule looks at what was recorded before */
    payload_get(&ld->payloads, 13, &step->result);
    payload_get(&ld->payloads, 14, &step->error);
    step->affects = db_get_copy(db, 15, &ld->ws->arena);
    (void)db_get_uuid(db, 16, &step->subagent);
    list_add(ld->steps, ls);
}

static void on_step(void *ctx, struct db *db, size_t row)
{
    struct load *ld = ctx;

    read_step(ld, db, &ld->ws->need.steps.at[row].execution_id);
}

static void on_live_step(void *ctx, struct db *db, size_t row)
{
    struct load *ld = ctx;

    read_step(ld, db, &ld->ws->need.live_steps.at[row]);
}

void step_load(struct load *ld)
{
    const struct need *need = &ld->ws->need;

    if (need->steps.n > 0) {
        db_call(ld->db, &SQL_STEP_LOAD, on_step, ld);
        for (size_t i = 0; i < need->steps.n; i++) {
            db_uuid(ld->db, &need->steps.at[i].execution_id);
            db_hash(ld->db, &need->steps.at[i].step_id);
            db_row(ld->db);
        }
        db_end(ld->db);
    }
    if (need->live_steps.n > 0) {
        db_call(ld->db, &SQL_STEP_LIVE, on_live_step, ld);
        for (size_t i = 0; i < need->live_steps.n; i++) {
            db_uuid(ld->db, &need->live_steps.at[i]);
            db_row(ld->db);
        }
        db_end(ld->db);
    }
}

void step_put(struct load *ld)
{
    const struct need *need = &ld->ws->need;

    for (size_t i = 0; i < ld->steps.n; i++) {
        struct loaded_step *ls = ld->steps.at[i];

        ls->row.execution = ws_execution(ld->ws, &ls->execution_id);
        ASSERT(ls->row.execution != NULL); /* it was locked before its steps were read */
        (void)ws_put_step(ld->ws, &ls->row);
    }
    for (size_t i = 0; i < need->steps.n; i++)
        if (!ws_knows_step(ld->ws, &need->steps.at[i].step_id))
            ws_put_absent_step(ld->ws, &need->steps.at[i].step_id);
    for (size_t i = 0; i < need->live_steps.n; i++) {
        struct execution *exec = ws_execution(ld->ws, &need->live_steps.at[i]);

        if (exec != NULL)
            exec->live_known = true;
    }
}

/* ---- apply ---- */

#define INSERT_COLUMNS                                                                             \
    "execution_key, step_id, kind, target, args_hash, occurrence, status, idempotency, claim, "    \
    "rule_id, created_at, started_at, completed_at, args, result, error, affects, subagent"

static const struct db_sql SQL_STEP_INSERT = {
    .name = "step_insert",
    .sqlite = "INSERT INTO steps (" INSERT_COLUMNS ") VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9,"
              " $10, $11, $12, $13, $14, $15, $16, $17, $18)",
    /* Sorted, so that the keys of one execution's steps rise in the order of their creation. */
    .postgres =
        "INSERT INTO steps (" INSERT_COLUMNS ") SELECT " INSERT_COLUMNS
        " FROM unnest($1::bigint[], $2::bytea[], $3::text[], $4::bytea[], $5::bytea[],"
        " $6::bigint[], $7::text[], $8::text[], $9::bigint[], $10::bytea[], $11::bigint[],"
        " $12::bigint[], $13::bigint[], $14::bytea[], $15::bytea[], $16::bytea[],"
        " $17::bytea[], $18::bytea[]) WITH ORDINALITY u (" INSERT_COLUMNS ", ord) ORDER BY ord",
    .types = "IBTBBITTIBIIIBBBBB",
    .exact = true,
};
/* A terminal step is never overwritten: it is the one that has completed. (An IN list would be
 * built anew by SQLite for each row.) */
static const struct db_sql SQL_STEP_UPDATE = {
    .name = "step_update",
    .sqlite = "UPDATE steps SET status = $2, claim = $3, rule_id = coalesce($4, rule_id), "
              "started_at = $5,"
              " completed_at = $6, result = $7, error = $8, input_tokens = $9, output_tokens = $10,"
              " affects = $11, subagent = $12 WHERE key = $1 AND completed_at IS NULL",
    .postgres =
        "UPDATE steps s SET status = u.status, claim = u.claim, rule_id = "
        "coalesce(u.rule_id, s.rule_id),"
        " started_at = u.started_at, completed_at = u.completed_at, result = u.result, "
        "error = u.error,"
        " input_tokens = u.input_tokens, output_tokens = u.output_tokens,"
        " affects = u.affects, subagent = u.subagent"
        " FROM unnest($1::bigint[], $2::text[], $3::bigint[], $4::bytea[], $5::bigint[], "
        "$6::bigint[],"
        " $7::bytea[], $8::bytea[], $9::bigint[], $10::bigint[], $11::bytea[], $12::bytea[])"
        " u (key, status, claim, rule_id, started_at, completed_at, result, error, "
        "input_tokens, output_tokens, affects, subagent)"
        " WHERE s.key = u.key AND s.completed_at IS NULL",
    .types = "ITIBIIBBIIBB",
    .exact = true,
};

static void bind_extent(struct db *db, const struct step *step)
{
    db_bytes(db, step->affects);
    db_uuid_opt(db, &step->subagent);
}

static void insert_row(struct apply *ap, struct step *step)
{
    struct db *db = ap->db;

    db_int(db, step->execution->key);
    db_hash(db, &step->id);
    db_text(db, step_kind_name(step->kind));
    db_bytes(db, step->target);
    db_hash(db, &step->args_hash);
    db_int(db, step->occurrence);
    db_text(db, step_status_name(step->status));
    db_text(db, idempotency_name(step->idempotency));
    db_int(db, step->claim);
    db_bytes(db, step->rule_id);
    db_int(db, step->created_at);
    db_int_opt(db, step->started_at);
    db_int_opt(db, step->completed_at);
    payload_bind(&ap->payloads, step->args);
    payload_bind(&ap->payloads, step->result);
    payload_bind(&ap->payloads, step->error);
    bind_extent(db, step);
    db_row(db);
    step->key = db_row_key(db);
}

static void update_row(struct apply *ap, const struct step *step)
{
    struct db *db = ap->db;

    db_int(db, step->key);
    db_text(db, step_status_name(step->status));
    db_int(db, step->claim);
    db_bytes(db, step->rule_id);
    db_int_opt(db, step->started_at);
    db_int_opt(db, step->completed_at);
    payload_bind(&ap->payloads, step->result);
    payload_bind(&ap->payloads, step->error);
    db_int_natural(db, step->usage.input_tokens);
    db_int_natural(db, step->usage.output_tokens);
    bind_extent(db, step);
    db_row(db);
}

static void apply_pass(struct apply *ap, unsigned row)
{
    db_call(ap->db, row == ROW_NEW ? &SQL_STEP_INSERT : &SQL_STEP_UPDATE, NULL, NULL);
    for (size_t i = 0; i < ap->changes->steps.n; i++) {
        struct step *step = ap->changes->steps.at[i];

        if (step->row != row)
            continue;
        if (row == ROW_NEW)
            insert_row(ap, step);
        else
            update_row(ap, step);
    }
    db_end(ap->db);
}

void step_apply(struct apply *ap)
{
    if (ap->changes->steps.n == 0)
        return;
    apply_pass(ap, ROW_NEW);
    apply_pass(ap, ROW_CHANGED);
}
