/* SPDX-License-Identifier: Apache-2.0
 * Rows of approvals: load and apply. They belong to an execution and are read under its lock. */
#include "store/internal.h"

/* ---- load ---- */

#define LOAD_COLUMNS                                                                               \
    "p.key, p.id, p.step_id, p.status, p.approvers, p.message, p.created_at, p.timeout_at, "       \
    "p.decided_at, p.decided_by, p.asserted_by, p.rationale"

static const struct db_sql SQL_APPROVAL_LOAD = {
    .name = "approval_load",
    .sqlite = "SELECT " LOAD_COLUMNS " FROM approvals p WHERE p.id = $1"
              " AND p.execution_key = (SELECT key FROM executions WHERE id = $2)",
    .postgres =
        "SELECT u.ord, l.* FROM unnest($1::bytea[], $2::bytea[]) WITH ORDINALITY u (id, "
        "execution_id, ord)"
        " JOIN executions e ON e.id = u.execution_id CROSS JOIN LATERAL (SELECT " LOAD_COLUMNS
        " FROM approvals p WHERE p.id = u.id AND p.execution_key = e.key OFFSET 0) l",
    .types = "BB",
};
static const struct db_sql SQL_APPROVAL_PENDING = {
    .name = "approval_pending",
    .sqlite = "SELECT " LOAD_COLUMNS " FROM approvals p INDEXED BY approvals_by_execution"
              " WHERE p.execution_key = (SELECT key FROM executions WHERE id = $1)"
              " AND p.status = 'pending' ORDER BY p.key",
    .postgres =
        "SELECT u.ord, l.* FROM unnest($1::bytea[]) WITH ORDINALITY u (id, ord)"
        " JOIN executions e ON e.id = u.id CROSS JOIN LATERAL (SELECT " LOAD_COLUMNS
        " FROM approvals p WHERE p.execution_key = e.key AND p.status = 'pending' OFFSET 0) l"
        " ORDER BY l.key",
    .types = "B",
};

static void read_approval(struct load *ld, struct db *db, const struct uuid *execution_id)
{
    struct arena *arena = &ld->ws->arena;
    struct loaded_approval *la = arena_new(arena, struct loaded_approval);
    struct approval *row = &la->row;

    la->execution_id = *execution_id;
    row->key = db_get_int(db, 0);
    (void)db_get_uuid(db, 1, &row->id);
    db_get_hash(db, 2, &row->step_id);
    if (!approval_status_parse(db_get_str(db, 3), &row->status))
        db_fail(db, ERR_INTERNAL, "the database holds an unknown approval status");
    row->approvers = db_get_copy(db, 4, arena);
    row->message = db_get_copy(db, 5, arena);
    row->created_at = db_get_int(db, 6);
    row->timeout_at = db_get_int(db, 7);
    row->decided_at = db_get_int(db, 8);
    row->decided_by = db_get_copy(db, 9, arena);
    row->asserted_by = db_get_copy(db, 10, arena);
    row->rationale = db_get_copy(db, 11, arena);
    list_add(ld->approvals, la);
}

static void on_approval(void *ctx, struct db *db, size_t row)
{
    struct load *ld = ctx;

    read_approval(ld, db, &ld->ws->need.approvals.at[row].execution_id);
}

static void on_pending(void *ctx, struct db *db, size_t row)
{
    struct load *ld = ctx;

    read_approval(ld, db, &ld->ws->need.pending.at[row]);
}

void approval_load(struct load *ld)
{
    const struct need *need = &ld->ws->need;

    db_call(ld->db, &SQL_APPROVAL_LOAD, on_approval, ld);
    for (size_t i = 0; i < need->approvals.n; i++) {
        db_uuid(ld->db, &need->approvals.at[i].id);
        db_uuid(ld->db, &need->approvals.at[i].execution_id);
        db_row(ld->db);
    }
    db_end(ld->db);
    db_call(ld->db, &SQL_APPROVAL_PENDING, on_pending, ld);
    for (size_t i = 0; i < need->pending.n; i++) {
        db_uuid(ld->db, &need->pending.at[i]);
        db_row(ld->db);
    }
    db_end(ld->db);
}

void approval_put(struct load *ld)
{
    const struct need *need = &ld->ws->need;

    for (size_t i = 0; i < ld->approvals.n; i++) {
        struct loaded_approval *la = ld->approvals.at[i];

        la->row.execution = ws_execution(ld->ws, &la->execution_id);
        ASSERT(la->row.execution != NULL); /* it was locked before its approvals were read */
        (void)ws_put_approval(ld->ws, &la->row);
    }
    for (size_t i = 0; i < need->approvals.n; i++)
        if (!ws_knows_approval(ld->ws, &need->approvals.at[i].id))
            ws_put_absent_approval(ld->ws, &need->approvals.at[i].id);
    for (size_t i = 0; i < need->pending.n; i++) {
        struct execution *exec = ws_execution(ld->ws, &need->pending.at[i]);

        if (exec != NULL)
            ws_put_pending_known(ld->ws, exec);
    }
}

/* ---- apply ---- */

static const struct db_sql SQL_APPROVAL_INSERT = {
    .name = "approval_insert",
    .sqlite = "INSERT INTO approvals (id, execution_key, step_id, status, approvers, message,"
              " created_at, timeout_at, decided_at, decided_by, asserted_by, rationale)"
              " VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12)",
    /* Sorted, so that the keys of one execution's approvals rise in the order of their creation. */
    .postgres =
        "INSERT INTO approvals (id, execution_key, step_id, status, approvers, message,"
        " created_at, timeout_at, decided_at, decided_by, asserted_by, rationale)"
        " SELECT id, execution_key, step_id, status, approvers, message,"
        " created_at, timeout_at, decided_at, decided_by, asserted_by, rationale"
        " FROM unnest($1::bytea[], $2::bigint[], $3::bytea[], $4::text[], $5::bytea[], "
        "$6::bytea[], $7::bigint[], $8::bigint[], $9::bigint[], $10::bytea[], $11::bytea[], "
        "$12::bytea[]) WITH ORDINALITY"
        " u (id, execution_key, step_id, status, approvers, message,"
        " created_at, timeout_at, decided_at, decided_by, asserted_by, rationale, ord)"
        " ORDER BY ord",
    .types = "BIBTBBIIIBBB",
    .exact = true,
};
/* What was decided stays as it was decided. */
static const struct db_sql SQL_APPROVAL_UPDATE = {
    .name = "approval_update",
    .sqlite = "UPDATE approvals SET status = $2, decided_at = $3, decided_by = $4,"
              " asserted_by = $5, rationale = $6 WHERE key = $1 AND status = 'pending'",
    .postgres = "UPDATE approvals p SET status = u.status, decided_at = u.decided_at,"
                " decided_by = u.decided_by, asserted_by = u.asserted_by, rationale = u.rationale"
                " FROM unnest($1::bigint[], $2::text[], $3::bigint[], $4::bytea[], $5::bytea[], "
                "$6::bytea[]) u (key, status, decided_at, decided_by, asserted_by, rationale)"
                " WHERE p.key = u.key AND p.status = 'pending'",
    .types = "ITIBBB",
    .exact = true,
};

static void bind_decision(struct db *db, const struct approval *row)
{
    db_int_opt(db, row->decided_at);
    db_bytes(db, row->decided_by);
    db_bytes(db, row->asserted_by);
    db_bytes(db, row->rationale);
}

static void insert_row(struct db *db, struct approval *row)
{
    db_uuid(db, &row->id);
    db_int(db, row->execution->key);
    db_hash(db, &row->step_id);
    db_text(db, approval_status_name(row->status));
    db_bytes(db, row->approvers);
    db_bytes(db, row->message);
    db_int(db, row->created_at);
    db_int(db, row->timeout_at);
    bind_decision(db, row);
    db_row(db);
    row->key = db_row_key(db);
}

static void update_row(struct db *db, const struct approval *row)
{
    db_int(db, row->key);
    db_text(db, approval_status_name(row->status));
    bind_decision(db, row);
    db_row(db);
}

static void apply_pass(struct apply *ap, unsigned row)
{
    db_call(ap->db, row == ROW_NEW ? &SQL_APPROVAL_INSERT : &SQL_APPROVAL_UPDATE, NULL, NULL);
    for (size_t i = 0; i < ap->changes->approvals.n; i++) {
        struct approval *approval = ap->changes->approvals.at[i];

        if (approval->row != row)
            continue;
        if (row == ROW_NEW)
            insert_row(ap->db, approval);
        else
            update_row(ap->db, approval);
    }
    db_end(ap->db);
}

void approval_apply(struct apply *ap)
{
    if (ap->changes->approvals.n == 0)
        return;
    apply_pass(ap, ROW_NEW);
    apply_pass(ap, ROW_CHANGED);
}
