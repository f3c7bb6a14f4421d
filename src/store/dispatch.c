/* SPDX-License-Identifier: Apache-2.0
 * Rows of dispatches: load, apply, and which are due. Retired rows stay, so that an id that owns
 * nothing any more can be told from one that never was. */
#include "store/internal.h"

/* ---- load ---- */

#define LIVE_COLUMNS                                                                               \
    "d.key, d.id, d.status, d.attempt, d.charged, d.charged_since, d.due_at, d.lease, "            \
    "d.grace_until, d.queued_at, d.spared"

static const struct db_sql SQL_DISPATCH_LIVE = {
    .name = "dispatch_live",
    .sqlite = "SELECT " LIVE_COLUMNS " FROM executions e JOIN dispatches d"
              " ON d.execution_key = e.key AND d.status <> 'retired' WHERE e.id = $1",
    .postgres =
        "SELECT u.ord, " LIVE_COLUMNS " FROM unnest($1::bytea[]) WITH ORDINALITY u (id, ord)"
        " JOIN executions e ON e.id = u.id"
        " JOIN dispatches d ON d.execution_key = e.key AND d.status <> 'retired'",
    .types = "B",
};
static const struct db_sql SQL_DISPATCH_KNOWN = {
    .name = "dispatch_known",
    .sqlite = "SELECT e.id FROM dispatches d JOIN executions e ON e.key = d.execution_key WHERE "
              "d.id = $1",
    .postgres = "SELECT u.ord, e.id FROM unnest($1::bytea[]) WITH ORDINALITY u (id, ord)"
                " JOIN dispatches d ON d.id = u.id JOIN executions e ON e.key = d.execution_key",
    .types = "B",
};

static void on_live(void *ctx, struct db *db, size_t row)
{
    struct load *ld = ctx;
    struct loaded_execution *le = ld->executions.at[row];
    struct dispatch *d = &le->dispatch;

    le->has_dispatch = true;
    d->key = db_get_int(db, 0);
    (void)db_get_uuid(db, 1, &d->id);
    if (!dispatch_status_parse(db_get_str(db, 2), &d->status))
        db_fail(db, ERR_INTERNAL, "the database holds an unknown dispatch status");
    d->attempt = db_get_int(db, 3);
    d->charged = db_get_int(db, 4);
    d->charged_since = db_get_int(db, 5);
    d->due_at = db_get_int(db, 6);
    d->lease_us = db_get_int(db, 7);
    d->grace_until = db_get_int(db, 8);
    d->queued_at = db_get_int(db, 9);
    d->spared = db_get_int(db, 10);
}

static void on_known(void *ctx, struct db *db, size_t row)
{
    struct load *ld = ctx;

    (void)db_get_uuid(db, 0, &ld->dispatch_executions[row]);
}

static void load_known(struct load *ld)
{
    const struct need *need = &ld->ws->need;

    if (need->dispatches.n == 0)
        return;
    ld->dispatch_executions = arena_array(&ld->ws->arena, struct uuid, need->dispatches.n);
    db_call(ld->db, &SQL_DISPATCH_KNOWN, on_known, ld);
    for (size_t i = 0; i < need->dispatches.n; i++) {
        db_uuid(ld->db, &need->dispatches.at[i]);
        db_row(ld->db);
    }
    db_end(ld->db);
}

void dispatch_load(struct load *ld)
{
    load_known(ld);
    if (ld->executions.n == 0)
        return;
    db_call(ld->db, &SQL_DISPATCH_LIVE, on_live, ld);
    for (size_t i = 0; i < ld->executions.n; i++) {
        db_uuid(ld->db, &ld->executions.at[i]->id);
        db_row(ld->db);
    }
    db_end(ld->db);
}

void dispatch_put(struct load *ld)
{
    const struct need *need = &ld->ws->need;

    for (size_t i = 0; i < need->dispatches.n; i++) {
        const struct uuid *id = &ld->dispatch_executions[i];

        ws_put_dispatch(ld->ws, &need->dispatches.at[i], uuid_is_nil(id) ? NULL : id);
    }
}

/* ---- apply ---- */

static const struct db_sql SQL_DISPATCH_INSERT = {
    .name = "dispatch_insert",
    .sqlite = "INSERT INTO dispatches (id, execution_key, agent_id, status, attempt, charged, "
              "charged_since, due_at,"
              " lease, grace_until, queued_at, spared)"
              " VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12)",
    .postgres =
        "INSERT INTO dispatches (id, execution_key, agent_id, status, attempt, charged, "
        "charged_since, due_at,"
        " lease, grace_until, queued_at, spared) SELECT * FROM unnest($1::bytea[], $2::bigint[], "
        "$3::text[],"
        " $4::text[], $5::bigint[], $6::bigint[], $7::bigint[], $8::bigint[], "
        "$9::bigint[], $10::bigint[],"
        " $11::bigint[], $12::bigint[])",
    .types = "BITTIIIIIIII",
    .exact = true,
};
static const struct db_sql SQL_DISPATCH_UPDATE = {
    .name = "dispatch_update",
    .sqlite = "UPDATE dispatches SET status = $2, attempt = $3, charged = $4, charged_since = $5, "
              "due_at = $6,"
              " lease = $7, grace_until = $8, spared = $9 WHERE key = $1 AND status <> 'retired'",
    .postgres =
        "UPDATE dispatches d SET status = u.status, attempt = u.attempt, charged = u.charged,"
        " charged_since = u.charged_since, due_at = u.due_at, lease = u.lease,"
        " grace_until = u.grace_until, spared = u.spared"
        " FROM unnest($1::bigint[], $2::text[], $3::bigint[], $4::bigint[], $5::bigint[], "
        "$6::bigint[],"
        " $7::bigint[], $8::bigint[], $9::bigint[])"
        " u (key, status, attempt, charged, charged_since, due_at, lease, grace_until, spared)"
        " WHERE d.key = u.key AND d.status <> 'retired'",
    .types = "ITIIIIIII",
    .exact = true,
};

static void update_row(struct db *db, const struct dispatch *d)
{
    db_int(db, d->key);
    db_text(db, dispatch_status_name(d->status));
    db_int(db, d->attempt);
    db_int(db, d->charged);
    db_int_opt(db, d->charged_since);
    db_int(db, d->due_at);
    db_int(db, d->lease_us);
    db_int_opt(db, d->grace_until);
    db_int(db, d->spared);
    db_row(db);
}

static void insert_row(struct db *db, struct execution *exec)
{
    struct dispatch *d = exec->dispatch;

    db_uuid(db, &d->id);
    db_int(db, exec->key);
    db_text(db, exec->agent_id);
    db_text(db, dispatch_status_name(d->status));
    db_int(db, d->attempt);
    db_int(db, d->charged);
    db_int_opt(db, d->charged_since);
    db_int(db, d->due_at);
    db_int(db, d->lease_us);
    db_int_opt(db, d->grace_until);
    db_int(db, d->queued_at);
    db_int(db, d->spared);
    db_row(db);
    d->key = db_row_key(db);
}

/* A dispatch that was born and retired in one group has no row (key 0): its id was told to nobody
 * but the log. */
static void apply_retired(struct apply *ap)
{
    db_call(ap->db, &SQL_DISPATCH_UPDATE, NULL, NULL);
    for (size_t i = 0; i < ap->changes->retired.n; i++)
        if (ap->changes->retired.at[i]->key != 0)
            update_row(ap->db, ap->changes->retired.at[i]);
    db_end(ap->db);
}

/* In two calls a pass: rows that changed, rows that are new. */
static void apply_live(struct apply *ap, unsigned row)
{
    db_call(ap->db, row == ROW_NEW ? &SQL_DISPATCH_INSERT : &SQL_DISPATCH_UPDATE, NULL, NULL);
    for (size_t i = 0; i < ap->changes->dispatches.n; i++) {
        struct execution *exec = ap->changes->dispatches.at[i];

        if (exec->dispatch == NULL || exec->dispatch->row != row)
            continue;
        if (row == ROW_NEW)
            insert_row(ap->db, exec);
        else
            update_row(ap->db, exec->dispatch);
        exec->dispatch->row =
            ROW_CLEAN; /* an execution is named twice when its dispatch was replaced */
    }
    db_end(ap->db);
}

void dispatch_apply(struct apply *ap)
{
    if (ap->changes->retired.n > 0)
        apply_retired(ap);
    if (ap->changes->dispatches.n > 0) {
        apply_live(ap, ROW_CHANGED);
        apply_live(ap, ROW_NEW);
    }
}
