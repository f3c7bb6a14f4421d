/* SPDX-License-Identifier: Apache-2.0
 * How the store uses Postgres: several kernels, so that what one of them knows is in the database
 * or nowhere. */
#include "store/db_postgres.h"
#include "store/submission.h"

static struct db *connect_postgres(struct store *s, bool writer, struct err *e)
{
    return db_postgres_open(s->server, writer, e);
}

/* A session that nobody has used gets its row here, so that two that use it first meet too. Names
 * are taken in one order by both statements. */
static const struct db_sql SQL_SESSION_ADD = {
    .name = "session_add",
    .postgres = "INSERT INTO sessions (name) SELECT name FROM unnest($1::bytea[]) u (name)"
                " ORDER BY name ON CONFLICT DO NOTHING",
    .types = "B",
};
static const struct db_sql SQL_SESSION_LOCK = {
    .name = "session_lock",
    .postgres = "SELECT u.ord FROM unnest($1::bytea[]) WITH ORDINALITY u (name, ord)"
                " JOIN sessions s ON s.name = u.name ORDER BY s.name FOR UPDATE OF s",
    .types = "B",
};

static void on_locked(void *ctx, struct db *db, size_t row)
{
    struct load *ld = ctx;

    (void)db;
    (void)row;
    ld->sessions_locked++;
}

static void call_for_sessions(struct load *ld, const struct db_sql *sql, db_row_fn *on_row)
{
    db_call(ld->db, sql, on_row, ld);
    for (size_t i = 0; i < ld->sessions.n; i++) {
        db_bytes(ld->db, ld->sessions.at[i]->name);
        db_row(ld->db);
    }
    db_end(ld->db);
}

static void lock_sessions(struct load *ld)
{
    call_for_sessions(ld, &SQL_SESSION_ADD, NULL);
    call_for_sessions(ld, &SQL_SESSION_LOCK, on_locked);
}

/* keepers_load has locked it: who waits for it finds it gone, and begins anew. */
static const struct db_sql SQL_SESSION_DELETE = {
    .name = "session_delete",
    .postgres = "DELETE FROM sessions s WHERE s.name = ANY ($1::bytea[])"
                " AND NOT EXISTS (SELECT 1 FROM executions e WHERE e.session = s.name)",
    .types = "B",
};

static void drop_sessions(struct apply *ap)
{
    if (ap->changes->unlinked.n == 0)
        return;
    db_call(ap->db, &SQL_SESSION_DELETE, NULL, NULL);
    for (size_t i = 0; i < ap->changes->unlinked.n; i++) {
        if (!str_present(ap->changes->unlinked.at[i]->session))
            continue;
        db_bytes(ap->db, ap->changes->unlinked.at[i]->session);
        db_row(ap->db);
    }
    db_end(ap->db);
}

static void believe_row(struct load *ld, struct execution *row)
{
    (void)ld;
    (void)row;
}

/* ---- leases ---- */

enum {
    SLACK = 20
}; /* a stored lease may end this part of a term too early: an agent renews several times a term */

static const struct db_sql SQL_LEASE_RENEW = {
    .name = "lease_renew",
    .postgres = "UPDATE executions e SET lease_until = u.lease_until"
                " FROM unnest($1::bigint[], $2::bigint[], $3::bigint[]) u (key, lease_until, slack)"
                " WHERE e.key = u.key"
                " AND (e.lease_until IS NULL OR abs(u.lease_until - e.lease_until) > u.slack)",
    .types = "III",
};

/* Rows that changed in other ways carry their lease with them (execution_apply). */
static void renew_leases(struct apply *ap)
{
    const struct changes *c = ap->changes;

    db_call(ap->db, &SQL_LEASE_RENEW, NULL, NULL);
    for (size_t i = 0; i < c->executions.n; i++) {
        const struct execution *exec = c->executions.at[i];

        if (exec->row != ROW_CLEAN || !exec->lease_changed)
            continue;
        db_int(ap->db, exec->key);
        db_int(ap->db, exec->lease_until);
        db_int(ap->db, exec->owner_lease_us / SLACK);
        db_row(ap->db);
    }
    db_end(ap->db);
}

static const struct db_sql SQL_LEASE_EXPIRED = {
    .name = "lease_expired",
    .postgres = "SELECT e.id FROM executions e WHERE e.owner = 'working' AND e.status "
                "IN " LIVE_EXECUTION_STATUSES
                " AND e.lease_until <= (extract(epoch FROM clock_timestamp()) * 1000000)::bigint"
                " ORDER BY e.lease_until LIMIT $1",
    .types = "i",
};

struct id_list {
    LIST(struct uuid) ids;
};

static void on_id(void *ctx, struct db *db, size_t row)
{
    struct id_list *list = ctx;
    struct uuid id;

    (void)row;
    if (db_get_uuid(db, 0, &id))
        list_add(list->ids, id);
}

static bool postgres_expired_leases(struct store_writer *w, struct working_set *ws, size_t limit,
                                    struct arena *a, struct uuid **out, size_t *n, struct err *e)
{
    struct id_list list = {0};
    bool ok;

    (void)ws;
    if (w->broken)
        return err_set(e, ERR_UNAVAILABLE, "the store is not writable at the moment");
    db_call(w->db, &SQL_LEASE_EXPIRED, on_id, &list);
    db_int(w->db, (int64_t)limit);
    db_one(w->db);
    ok = db_flush(w->db, e);
    list_to_arena(list.ids, a, out, n);
    return ok;
}

static bool tidy(struct store_writer *w, struct working_set *ws, bool *more, struct err *e)
{
    bool ok;

    (void)ws;
    *more = false;
    if (w->broken)
        return err_set(e, ERR_UNAVAILABLE, "the store is not writable at the moment");
    if (w->tidying == TIDY_UNLINKED)
        ok = unlinked_tidy(w, more, e);
    else
        ok = bucket_tidy(w, more, e);
    if (!ok || *more)
        return ok;
    *more = w->tidying != TIDY_UNLINKED;
    w->tidying = *more ? TIDY_UNLINKED : TIDY_BUCKETS;
    return true;
}

const struct store_kind POSTGRES_KIND = {
    .sqlite = false,
    .connect = connect_postgres,
    .lock_sessions = lock_sessions,
    .drop_sessions = drop_sessions,
    .settle_execution = believe_row,
    .load_submissions = postgres_load_submissions,
    .put_submissions = postgres_put_submissions,
    .apply_submissions = postgres_apply_submissions,
    .apply_leases = renew_leases,
    .expired_leases = postgres_expired_leases,
    .tidy = tidy,
};
