/* SPDX-License-Identifier: Apache-2.0
 * Rows of executions: load and apply. */
#include "store/internal.h"

static const struct str OWNER_STATE[] = {
    [OWNER_NONE] = STR_INIT("none"),
    [OWNER_WORKING] = STR_INIT("working"),
    [OWNER_ENDED] = STR_INIT("ended"),
};

struct str owner_state_name(enum owner_state s)
{
    return OWNER_STATE[s];
}

static bool owner_state_parse(struct str s, enum owner_state *out)
{
    for (unsigned i = 0; i < COUNT(OWNER_STATE); i++) {
        if (str_eq(OWNER_STATE[i], s)) {
            *out = (enum owner_state)i;
            return true;
        }
    }
    return false;
}

/* ---- load ---- */

#define LOAD_COLUMNS                                                                               \
    "e.key, e.agent_id, e.status, e.last_seq, e.created_at, e.ended_at, e.deadline_at, e.claim, "  \
    "e.owner, e.owner_dispatch, e.owner_attempt, e.owner_lease, e.tokens, e.indeterminate, "       \
    "e.parked, e.session, e.parent, e.resources, e.spawns, e.awaited, e.suspended, "               \
    "e.spawned_by, e.spawned_step, e.owes, e.above, e.forked_from, e.policy_hash, "

static const struct db_sql SQL_EXECUTION_LOAD = {
    .name = "execution_load",
    .sqlite = "SELECT " LOAD_COLUMNS "NULL FROM executions e WHERE e.id = $1",
    /* The order of the ids is the order of the locks. */
    .postgres = "SELECT u.ord, " LOAD_COLUMNS
                "e.lease_until FROM unnest($1::bytea[]) WITH ORDINALITY u (id, ord)"
                " JOIN executions e ON e.id = u.id ORDER BY e.id FOR NO KEY UPDATE OF e",
    .types = "B",
};

/* The set copies it; until then it borrows the arena's bytes. */
static void borrow(struct db *db, int column, struct arena *a, struct buf *out)
{
    struct str bytes = db_get_copy(db, column, a);

    out->p = (char *)(uintptr_t)bytes.p;
    out->n = bytes.n;
}

/* What it began as, and what it has come to refer to. */
static void read_relations(struct db *db, struct arena *a, struct execution *exec)
{
    struct uuid source;

    exec->session = db_get_copy(db, 15, a);
    (void)db_get_uuid(db, 16, &exec->parent);
    exec->n_registered = db_get_int(db, 17);
    exec->spawns = db_get_int(db, 18);
    exec->awaited = db_get_int(db, 19);
    exec->suspended = db_get_int(db, 20) != 0;
    if (db_get_uuid(db, 21, &exec->spawned_by))
        db_get_hash(db, 22, &exec->spawned_step);
    exec->owes = db_get_int(db, 23) != 0;
    exec->above = db_get_copy(db, 24, a);
    exec->forked = db_get_uuid(db, 25, &source);
    exec->has_policy = str_present(db_get_str(db, 26));
    if (exec->has_policy)
        db_get_hash(db, 26, &exec->bundle.hash);
}

static void on_execution(void *ctx, struct db *db, size_t row)
{
    struct load *ld = ctx;
    struct loaded_execution *le = ld->executions.at[row];
    struct execution *exec = &le->row;

    le->found = true;
    exec->key = db_get_int(db, 0);
    exec->id = le->id;
    exec->agent_id = db_get_copy(db, 1, &ld->ws->arena);
    if (!execution_status_parse(db_get_str(db, 2), &exec->status) ||
        !owner_state_parse(db_get_str(db, 8), &exec->owner))
        db_fail(db, ERR_INTERNAL, "the database holds an unknown execution status or owner");
    exec->last_seq = db_get_int(db, 3);
    exec->created_at = db_get_int(db, 4);
    exec->ended_at = db_get_int(db, 5);
    exec->deadline_at = db_get_int(db, 6);
    exec->claim = db_get_int(db, 7);
    (void)db_get_uuid(db, 9, &exec->owner_dispatch);
    exec->owner_attempt = db_get_int(db, 10);
    exec->owner_lease_us = db_get_int(db, 11);
    exec->tokens = db_get_int(db, 12);
    borrow(db, 13, &ld->ws->arena, &exec->indeterminate);
    borrow(db, 14, &ld->ws->arena, &exec->parked);
    read_relations(db, &ld->ws->arena, exec);
    exec->lease_until = db_get_int(db, 27);
}

void execution_load(struct load *ld)
{
    if (ld->executions.n == 0)
        return;
    db_call(ld->db, &SQL_EXECUTION_LOAD, on_execution, ld);
    for (size_t i = 0; i < ld->executions.n; i++) {
        db_uuid(ld->db, &ld->executions.at[i]->id);
        db_row(ld->db);
    }
    db_end(ld->db);
}

void execution_put(struct load *ld)
{
    for (size_t i = 0; i < ld->executions.n; i++) {
        struct loaded_execution *le = ld->executions.at[i];
        struct dispatch *dispatch = le->has_dispatch ? &le->dispatch : NULL;

        if (!le->found) {
            ws_put_absent_execution(ld->ws, &le->id);
            continue;
        }
        if (le->row.last_seq < le->last_seq)
            le->row.last_seq = le->last_seq;
        le->row.dispatch = dispatch;
        ld->w->store->kind->settle_execution(ld, &le->row);
        (void)ws_put_execution(ld->ws, &le->row, dispatch);
    }
}

/* ---- request keys ---- */

static const struct db_sql SQL_REQUEST_KEY = {
    .name = "request_key",
    .sqlite = "SELECT id FROM executions WHERE agent_id = $1 AND idempotency_key = $2",
    .postgres = "SELECT u.ord, l.id FROM unnest($1::text[], $2::text[]) WITH ORDINALITY u "
                "(agent_id, key, ord)"
                " CROSS JOIN LATERAL (SELECT e.id FROM executions e"
                " WHERE e.agent_id = u.agent_id AND e.idempotency_key = u.key OFFSET 0) l",
    .types = "TT",
};

static void on_request_key(void *ctx, struct db *db, size_t row)
{
    struct load *ld = ctx;

    (void)db_get_uuid(db, 0, &ld->request_key_ids[row]);
}

void request_key_load(struct load *ld)
{
    const struct need *need = &ld->ws->need;

    if (need->request_keys.n == 0)
        return;
    ld->request_key_ids = arena_array(&ld->ws->arena, struct uuid, need->request_keys.n);
    db_call(ld->db, &SQL_REQUEST_KEY, on_request_key, ld);
    for (size_t i = 0; i < need->request_keys.n; i++) {
        db_text(ld->db, need->request_keys.at[i].agent_id);
        db_text(ld->db, need->request_keys.at[i].idempotency_key);
        db_row(ld->db);
    }
    db_end(ld->db);
}

void request_key_put(struct load *ld)
{
    const struct need *need = &ld->ws->need;

    for (size_t i = 0; i < need->request_keys.n; i++) {
        const struct request_key_ref *ref = &need->request_keys.at[i];
        const struct uuid *id = &ld->request_key_ids[i];

        ws_put_request_key(ld->ws, ref->agent_id, ref->idempotency_key,
                           uuid_is_nil(id) ? NULL : id);
    }
}

/* ---- apply ---- */

#define INSERT_COLUMNS                                                                             \
    "key, id, agent_id, status, last_seq, created_at, ended_at, deadline_at, claim, owner, "       \
    "owner_dispatch, owner_attempt, owner_lease, tokens, indeterminate, parked, idempotency_key, " \
    "created_by, on_behalf_of, failure_reason, input, output, state, session, parent, resources, " \
    "spawns, awaited, suspended, spawned_by, spawned_step, owes, above, forked_from, fork_seq, "   \
    "policy_hash, restoration, policy_bundle"
/* Of the execution that it is a fork of, or else continues: neither goes while this one comes, for
 * the session, the source or the parent is locked. */
#define LINEAGE_OF(id) "(SELECT coalesce(p.lineage, p.key) FROM executions p WHERE p.id = " id ")"
#define SQLITE_NEW_LINEAGE LINEAGE_OF("coalesce($34, $25)")
#define POSTGRES_NEW_LINEAGE LINEAGE_OF("coalesce(u.forked_from, u.parent)")
#define SQLITE_PARENTS_LINEAGE LINEAGE_OF("$2")
#define POSTGRES_PARENTS_LINEAGE LINEAGE_OF("u.parent")

static const struct db_sql SQL_EXECUTION_INSERT = {
    .name = "execution_insert",
    .sqlite =
        "INSERT INTO executions (" INSERT_COLUMNS
        ", lineage) VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16,"
        " $17, $18, $19, $20, $21, $22, $23, $24, $25, $26, $27, $28, $29, $30, $31, $32,"
        " $33, $34, $35, $36, $37, $38, " SQLITE_NEW_LINEAGE ")",
    .postgres = "INSERT INTO executions (" INSERT_COLUMNS
                ", lease_until, lineage) SELECT u.*, " POSTGRES_NEW_LINEAGE
                " FROM unnest($1::bigint[], $2::bytea[], $3::text[],"
                " $4::text[], $5::bigint[], $6::bigint[], $7::bigint[], $8::bigint[],"
                " $9::bigint[], $10::text[], $11::bytea[], $12::bigint[], $13::bigint[],"
                " $14::bigint[], $15::bytea[], $16::bytea[], $17::text[], $18::bytea[],"
                " $19::bytea[], $20::bytea[], $21::bytea[], $22::bytea[], $23::bytea[],"
                " $24::bytea[], $25::bytea[], $26::bigint[], $27::bigint[], $28::bigint[],"
                " $29::bigint[], $30::bytea[], $31::bytea[], $32::bigint[], $33::bytea[],"
                " $34::bytea[], $35::bigint[], $36::bytea[], $37::bytea[], $38::bytea[],"
                " $39::bigint[]) u (" INSERT_COLUMNS ", lease_until)",
    .types = "IBTTIIIIITBIIIBBTBBBBBBBBIIIIBBIBBIBBBI",
    .exact = true,
};

/* SQLite writes the entries of every index whose columns an UPDATE names, changed or not: what is
 * in one goes alone, and only where it differs. Postgres compares, and one row version is better
 * than two. */
static const struct db_sql SQL_EXECUTION_MOVE = {
    .name = "execution_move",
    .sqlite = "UPDATE executions SET status = $2, ended_at = $3"
              " WHERE key = $1 AND status <> $2 AND status IN " LIVE_EXECUTION_STATUSES,
    .postgres = "",
    .types = "",
};
static const struct db_sql SQL_EXECUTION_RELATE = {
    .name = "execution_relate",
    .sqlite = "UPDATE executions SET parent = $2, owes = $3,"
              " lineage = CASE WHEN parent IS $2 THEN lineage ELSE " SQLITE_PARENTS_LINEAGE
              " END WHERE key = $1 AND (parent IS NOT $2 OR owes IS NOT $3)",
    .postgres = "",
    .types = "",
};
static const struct db_sql SQL_EXECUTION_UPDATE = {
    .name = "execution_update",
    .sqlite = "UPDATE executions SET last_seq = $3, claim = $4, owner = $5, owner_dispatch = $6,"
              " owner_attempt = $7, owner_lease = $8, tokens = $9, indeterminate = $10,"
              " parked = $11, failure_reason = coalesce($12, failure_reason),"
              " output = coalesce($13, output), state = coalesce($14, state), resources = $15,"
              " spawns = $16, awaited = $17, suspended = $18 WHERE key = $1 AND status = $2",
    .postgres =
        "UPDATE executions e SET status = u.status, last_seq = u.last_seq, claim = u.claim,"
        " owner = u.owner, owner_dispatch = u.owner_dispatch, owner_attempt = u.owner_attempt,"
        " owner_lease = u.owner_lease, tokens = u.tokens, indeterminate = u.indeterminate,"
        " parked = u.parked, failure_reason = coalesce(u.failure_reason, e.failure_reason),"
        " output = coalesce(u.output, e.output), state = coalesce(u.state, e.state),"
        " resources = u.resources, spawns = u.spawns, awaited = u.awaited,"
        " suspended = u.suspended, ended_at = u.ended_at, parent = u.parent, owes = u.owes,"
        " lineage = CASE WHEN u.parent IS NOT DISTINCT FROM e.parent THEN e.lineage"
        " ELSE " POSTGRES_PARENTS_LINEAGE " END,"
        " lease_until = u.lease_until"
        " FROM unnest($1::bigint[], $2::text[], $3::bigint[], $4::bigint[], $5::text[],"
        " $6::bytea[], $7::bigint[], $8::bigint[], $9::bigint[], $10::bytea[], $11::bytea[],"
        " $12::bytea[], $13::bytea[], $14::bytea[], $15::bigint[], $16::bigint[], $17::bigint[],"
        " $18::bigint[], $19::bigint[], $20::bytea[], $21::bigint[], $22::bigint[])"
        " u (key, status, last_seq, claim, owner, owner_dispatch, owner_attempt, owner_lease,"
        " tokens, indeterminate, parked, failure_reason, output, state, resources, spawns,"
        " awaited, suspended, ended_at, parent, owes, lease_until)"
        " WHERE e.key = u.key AND (e.status = u.status OR e.status IN " LIVE_EXECUTION_STATUSES ")",
    .types = "ITIITBIIIBBBBBIIIIIBII",
    .exact = true,
};

static void bind_buf(struct db *db, const struct buf *b)
{
    db_bytes(db, b->n == 0 ? STR_NONE : buf_str(b));
}

/* And what the attempts have left behind. */
static void bind_owner(struct db *db, const struct execution *exec)
{
    db_text(db, owner_state_name(exec->owner));
    db_uuid_opt(db, &exec->owner_dispatch);
    db_int(db, exec->owner_attempt);
    db_int(db, exec->owner_lease_us);
    db_int(db, exec->tokens);
    bind_buf(db, &exec->indeterminate);
    bind_buf(db, &exec->parked);
}

static void bind_counts(struct db *db, const struct execution *exec)
{
    db_int(db, exec->n_registered);
    db_int(db, exec->spawns);
    db_int(db, exec->awaited);
    db_int(db, exec->suspended);
}

/* What it is born with, and keeps. */
static void bind_origin(struct apply *ap, const struct execution *exec)
{
    static const struct forking none;
    const struct forking *forking = exec->forking == NULL ? &none : exec->forking;
    struct db *db = ap->db;

    db_uuid_opt(db, &exec->spawned_by);
    if (uuid_is_nil(&exec->spawned_by))
        db_bytes(db, STR_NONE);
    else
        db_hash(db, &exec->spawned_step);
    db_int_opt(db, exec->owes);
    db_bytes(db, exec->above);
    db_uuid_opt(db, &forking->source);
    db_int_opt(db, forking->at_seq);
    if (exec->has_policy)
        db_hash(db, &exec->bundle.hash);
    else
        db_bytes(db, STR_NONE);
    payload_bind(&ap->payloads, forking->restoration);
    payload_bind(&ap->payloads, forking->policy_bundle);
}

/* A fork has its key already: what is copied lies under it. */
static void insert_row(struct apply *ap, struct execution *exec)
{
    struct db *db = ap->db;

    if (exec->key == 0)
        exec->key = db_new_key(db, DB_KEYS_EXECUTION);
    db_int(db, exec->key);
    db_uuid(db, &exec->id);
    db_text(db, exec->agent_id);
    db_text(db, execution_status_name(exec->status));
    db_int(db, exec->last_seq);
    db_int(db, exec->created_at);
    db_int_opt(db, exec->ended_at);
    db_int_opt(db, exec->deadline_at);
    db_int(db, exec->claim);
    bind_owner(db, exec);
    db_text(db, exec->idempotency_key);
    db_bytes(db, exec->created_by);
    db_bytes(db, exec->on_behalf_of);
    db_bytes(db, exec->failure_reason);
    payload_bind(&ap->payloads, exec->input);
    payload_bind(&ap->payloads, exec->output);
    payload_bind(&ap->payloads, exec->state);
    db_bytes(db, exec->session);
    db_uuid_opt(db, &exec->parent);
    bind_counts(db, exec);
    bind_origin(ap, exec);
    db_int_opt(db, exec->lease_until);
    db_row(db);
}

static void update_row(struct apply *ap, const struct execution *exec)
{
    struct db *db = ap->db;

    db_int(db, exec->key);
    db_text(db, execution_status_name(exec->status));
    db_int(db, exec->last_seq);
    db_int(db, exec->claim);
    bind_owner(db, exec);
    db_bytes(db, exec->failure_reason);
    payload_bind(&ap->payloads, exec->output);
    payload_bind(&ap->payloads, exec->state);
    bind_counts(db, exec);
    db_int_opt(db, exec->ended_at);
    db_uuid_opt(db, &exec->parent);
    db_int_opt(db, exec->owes);
    db_int_opt(db, exec->lease_until);
    db_row(db);
}

static size_t count_rows(const struct apply *ap, unsigned row)
{
    size_t n = 0;

    for (size_t i = 0; i < ap->changes->executions.n; i++)
        n += ap->changes->executions.at[i]->row == row;
    return n;
}

static void apply_new(struct apply *ap)
{
    db_call(ap->db, &SQL_EXECUTION_INSERT, NULL, NULL);
    for (size_t i = 0; i < ap->changes->executions.n; i++)
        if (ap->changes->executions.at[i]->row == ROW_NEW)
            insert_row(ap, ap->changes->executions.at[i]);
    db_end(ap->db);
}

static void relate_changed(struct apply *ap)
{
    db_call(ap->db, &SQL_EXECUTION_RELATE, NULL, NULL);
    for (size_t i = 0; i < ap->changes->executions.n; i++) {
        const struct execution *exec = ap->changes->executions.at[i];

        if (exec->row != ROW_CHANGED ||
            (uuid_is_nil(&exec->parent) && uuid_is_nil(&exec->spawned_by)))
            continue;
        db_int(ap->db, exec->key);
        db_uuid_opt(ap->db, &exec->parent);
        db_int_opt(ap->db, exec->owes);
        db_row(ap->db);
    }
    db_end(ap->db);
}

static void apply_changed(struct apply *ap)
{
    db_call(ap->db, &SQL_EXECUTION_MOVE, NULL, NULL);
    for (size_t i = 0; i < ap->changes->executions.n; i++) {
        const struct execution *exec = ap->changes->executions.at[i];

        if (exec->row != ROW_CHANGED)
            continue;
        db_int(ap->db, exec->key);
        db_text(ap->db, execution_status_name(exec->status));
        db_int_opt(ap->db, exec->ended_at);
        db_row(ap->db);
    }
    db_end(ap->db);
    relate_changed(ap);
    db_call(ap->db, &SQL_EXECUTION_UPDATE, NULL, NULL);
    for (size_t i = 0; i < ap->changes->executions.n; i++)
        if (ap->changes->executions.at[i]->row == ROW_CHANGED)
            update_row(ap, ap->changes->executions.at[i]);
    db_end(ap->db);
}

void execution_apply(struct apply *ap)
{
    if (count_rows(ap, ROW_NEW) > 0)
        apply_new(ap);
    if (count_rows(ap, ROW_CHANGED) > 0)
        apply_changed(ap);
}
