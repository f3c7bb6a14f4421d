/* SPDX-License-Identifier: Apache-2.0
 * Counts and keys on Postgres: any replica may take the next call, so they load with the execution,
 * by the calls and keys that are named. A row of an older claim counts as none: a claim clears the
 * counts by moving the execution's own. */
#include "store/submission.h"

/* ---- load ---- */

static const struct db_sql SQL_TALLY_LOAD = {
    .name = "tally_load",
    .postgres =
        "SELECT u.ord, l.count FROM unnest($1::bytea[], $2::bytea[]) WITH ORDINALITY u (id, call, "
        "ord)"
        " JOIN executions e ON e.id = u.id CROSS JOIN LATERAL (SELECT s.count FROM submissions s"
        " WHERE s.execution_key = e.key AND s.call = u.call AND s.claim = e.claim OFFSET 0) l",
    .types = "BB",
};
static const struct db_sql SQL_KEY_LOAD = {
    .name = "key_load",
    .postgres =
        "SELECT u.ord, l.call, l.step_id FROM unnest($1::bytea[], $2::bytea[]) WITH ORDINALITY"
        " u (id, request_key, ord) JOIN executions e ON e.id = u.id"
        " CROSS JOIN LATERAL (SELECT k.call, k.step_id FROM submission_keys k WHERE "
        "k.execution_key = e.key"
        " AND k.request_key = u.request_key AND k.claim = e.claim OFFSET 0) l",
    .types = "BB",
};

static void on_tally(void *ctx, struct db *db, size_t row)
{
    struct load *ld = ctx;

    ld->tally_counts[row] = db_get_int(db, 0);
}

static void on_key(void *ctx, struct db *db, size_t row)
{
    struct load *ld = ctx;
    struct str call = db_get_str(db, 0);
    struct submission_key *key = &ld->tally_keys[row];

    if (call.n != sizeof(key->call.b)) {
        db_fail(db, ERR_INTERNAL, "the database holds a malformed submission");
        return;
    }
    memcpy(key->call.b, call.p, sizeof(key->call.b));
    db_get_hash(db, 1, &key->step_id);
    ld->tally_has_key[row] = true;
}

static struct str key_bytes(const uint8_t key[16])
{
    return str_make(key, 16);
}

static struct str call_bytes(const struct call_key *call)
{
    return str_make(call->b, sizeof(call->b));
}

/* Refs without a key ask for an absent one, so that rows and refs share their indexes. */
bool postgres_load_submissions(struct load *ld, struct err *e)
{
    const struct need *need = &ld->ws->need;
    struct arena *a = &ld->ws->arena;

    (void)e;
    if (need->tallies.n == 0)
        return true;
    ld->tally_counts = arena_array(a, int64_t, need->tallies.n);
    ld->tally_keys = arena_array(a, struct submission_key, need->tallies.n);
    ld->tally_has_key = arena_array(a, bool, need->tallies.n);
    db_call(ld->db, &SQL_TALLY_LOAD, on_tally, ld);
    for (size_t i = 0; i < need->tallies.n; i++) {
        db_uuid(ld->db, &need->tallies.at[i].execution_id);
        db_bytes(ld->db, call_bytes(&need->tallies.at[i].call));
        db_row(ld->db);
    }
    db_end(ld->db);
    db_call(ld->db, &SQL_KEY_LOAD, on_key, ld);
    for (size_t i = 0; i < need->tallies.n; i++) {
        const struct tally_ref *ref = &need->tallies.at[i];

        db_uuid(ld->db, &ref->execution_id);
        db_bytes(ld->db, ref->has_key ? key_bytes(ref->key) : STR_NONE);
        db_row(ld->db);
    }
    db_end(ld->db);
    return true;
}

/* What the set knows already may be ahead of the database: a command of this group counted. */
static void put_ref(struct load *ld, size_t i)
{
    const struct tally_ref *ref = &ld->ws->need.tallies.at[i];
    struct execution *exec = ws_execution(ld->ws, &ref->execution_id);

    if (exec == NULL || exec->tallies_complete)
        return;
    if (map_get(&exec->tallies, call_bytes(&ref->call)) == NULL)
        ws_put_tally(exec, &ref->call, ld->tally_counts[i]);
    if (!ref->has_key || map_get(&exec->keys, key_bytes(ref->key)) != NULL)
        return;
    if (ld->tally_has_key[i])
        ws_put_submission_key(exec, ref->key, &ld->tally_keys[i].call, &ld->tally_keys[i].step_id);
    else
        ws_put_absent_submission_key(exec, ref->key);
}

void postgres_put_submissions(struct load *ld)
{
    for (size_t i = 0; i < ld->executions.n; i++) {
        const struct loaded_execution *le = ld->executions.at[i];

        if (le->found && le->row.owner == OWNER_NONE) /* a claim starts from 0 */
            ws_execution(ld->ws, &le->id)->tallies_complete = true;
    }
    for (size_t i = 0; i < ld->ws->need.tallies.n; i++)
        put_ref(ld, i);
}

/* ---- apply ---- */

/* One call may be counted twice in a group: the last count is the one that holds. */
static const struct db_sql SQL_TALLY_WRITE = {
    .name = "tally_write",
    .postgres =
        "INSERT INTO submissions (execution_key, claim, call, count)"
        " SELECT DISTINCT ON (u.execution_key, u.call) u.execution_key, u.claim, u.call, u.count"
        " FROM unnest($1::bigint[], $2::bigint[], $3::bytea[], $4::bigint[])"
        " u (execution_key, claim, call, count)"
        " ORDER BY u.execution_key, u.call, u.claim DESC, u.count DESC"
        " ON CONFLICT (execution_key, call) DO UPDATE SET claim = excluded.claim, count = "
        "excluded.count",
    .types = "IIBI",
};
static const struct db_sql SQL_KEY_WRITE = {
    .name = "key_write",
    .postgres =
        "INSERT INTO submission_keys (execution_key, claim, request_key, call, step_id)"
        " SELECT DISTINCT ON (u.execution_key, u.request_key)"
        " u.execution_key, u.claim, u.request_key, u.call, u.step_id"
        " FROM unnest($1::bigint[], $2::bigint[], $3::bytea[], $4::bytea[], $5::bytea[])"
        " u (execution_key, claim, request_key, call, step_id)"
        " ORDER BY u.execution_key, u.request_key, u.claim DESC"
        " ON CONFLICT (execution_key, request_key)"
        " DO UPDATE SET claim = excluded.claim, call = excluded.call, step_id = excluded.step_id",
    .types = "IIBBB",
};

void postgres_apply_submissions(struct apply *ap)
{
    const struct changes *c = ap->changes;

    db_call(ap->db, &SQL_TALLY_WRITE, NULL, NULL);
    for (size_t i = 0; i < c->submissions.n; i++) {
        const struct submission *s = &c->submissions.at[i];

        db_int(ap->db, s->execution->key);
        db_int(ap->db, s->claim);
        db_bytes(ap->db, call_bytes(&s->call));
        db_int(ap->db, s->count);
        db_row(ap->db);
    }
    db_end(ap->db);
    db_call(ap->db, &SQL_KEY_WRITE, NULL, NULL);
    for (size_t i = 0; i < c->submissions.n; i++) {
        const struct submission *s = &c->submissions.at[i];

        if (!s->has_key)
            continue;
        db_int(ap->db, s->execution->key);
        db_int(ap->db, s->claim);
        db_bytes(ap->db, key_bytes(s->key));
        db_bytes(ap->db, call_bytes(&s->call));
        db_hash(ap->db, &s->step_id);
        db_row(ap->db);
    }
    db_end(ap->db);
}
