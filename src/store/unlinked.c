/* SPDX-License-Identifier: Apache-2.0
 * What executions that are gone have left behind goes in slices, between groups: first the rows
 * under their keys, then the keys themselves. A row that is being removed is seen by nobody, so a
 * slice may end anywhere.
 *
 * A step whose payloads a fork's copy refers to stays, under HOLDER_KEY, until the last of the
 * copies goes; then it lies under that one's key, and goes with it. */
#include "store/internal.h"

enum {
    KEYS_A_SLICE = 64,
    SLICES_A_TURN = 256, /* then other housekeeping comes first, however much is left */
    /* A blob takes so many times as long as a row. On Postgres it is a hundred rows of its own. */
    PART_COST_SQLITE = 8,
    PART_COST_POSTGRES = 64,
    HOLDER_KEY = -1,
};

struct gone_key {
    int64_t key;
    size_t first, n; /* its own blobs, in slice.own */
};
struct gone_step {
    int64_t key, execution_key;
    int64_t payload_key; /* 0: it has its payloads itself */
    bool referred_to;
};
struct slice {
    struct db *db;
    int64_t left; /* how much this slice may still remove */
    int64_t part_cost;
    bool locked, more;
    LIST(struct gone_key) keys;
    LIST(struct gone_step) steps;
    struct blob_keys own, blobs;
};

/* ---- the keys ---- */

/* One at a time: of two that remove a copy each, neither would see the last one go. */
static const struct db_sql SQL_LOCK = {
    .name = "unlinked_lock",
    .sqlite = "SELECT 1",
    .postgres = "SELECT pg_try_advisory_xact_lock(7234091251883704)",
    .types = "",
};
static const struct db_sql SQL_KEYS = {
    .name = "unlinked_keys",
    .sqlite = "SELECT key, blobs FROM unlinked ORDER BY key LIMIT $1",
    .types = "i",
};
static const struct db_sql SQL_FREED = {
    .name = "unlinked_freed",
    .sqlite = "UPDATE unlinked SET blobs = NULL WHERE key = $1",
    .postgres = "UPDATE unlinked SET blobs = NULL WHERE key = ANY ($1::bigint[])",
    .types = "I",
};
/* On SQLite the largest key of all stays, so that none is ever given out twice. */
static const struct db_sql SQL_FORGET = {
    .name = "unlinked_forget",
    .sqlite = "DELETE FROM unlinked WHERE key = $1 AND (EXISTS (SELECT 1 FROM executions WHERE key "
              "> $1) OR EXISTS (SELECT 1 FROM forks WHERE key > $1)"
              " OR EXISTS (SELECT 1 FROM unlinked WHERE key > $1))",
    .postgres = "DELETE FROM unlinked WHERE key = ANY ($1::bigint[])",
    .types = "I",
};

static void on_lock(void *ctx, struct db *db, size_t row)
{
    struct slice *s = ctx;

    (void)row;
    s->locked = db_get_int(db, 0) != 0;
}

static void on_key(void *ctx, struct db *db, size_t row)
{
    struct slice *s = ctx;
    struct gone_key key = {.key = db_get_int(db, 0), .first = s->own.keys.n};

    (void)row;
    key.n = blob_keys_add(&s->own, db_get_str(db, 1));
    list_add(s->keys, key);
}

static bool read_keys(struct slice *s, struct err *e)
{
    db_call(s->db, &SQL_LOCK, on_lock, s);
    db_one(s->db);
    if (!db_flush(s->db, e))
        return false;
    if (!s->locked)
        return true;
    db_call(s->db, &SQL_KEYS, on_key, s);
    db_int(s->db, KEYS_A_SLICE);
    db_one(s->db);
    return db_flush(s->db, e);
}

static void call_for_keys(struct slice *s, const struct db_sql *sql)
{
    db_call(s->db, sql, NULL, NULL);
    for (size_t i = 0; i < s->keys.n; i++) {
        db_int(s->db, s->keys.at[i].key);
        db_row(s->db);
    }
    db_end(s->db);
}

/* What the execution's own row referred to. */
static void free_own(struct slice *s)
{
    db_call(s->db, &SQL_FREED, NULL, NULL);
    for (size_t i = 0; i < s->keys.n && s->left > 0; i++) {
        const struct gone_key *key = &s->keys.at[i];

        if (key->n == 0)
            continue;
        for (size_t k = 0; k < key->n; k++)
            list_add(s->blobs.keys, s->own.keys.at[key->first + k]);
        s->left -= (int64_t)key->n * s->part_cost;
        db_int(s->db, key->key);
        db_row(s->db);
    }
    db_end(s->db);
}

/* ---- steps ---- */

#define REFERENCE(column) "CASE WHEN substr(s." column ", 1, 1) = " TAG " THEN s." column " END"
#define STEP_COLUMNS                                                                               \
    "s.key, s.payload_key, EXISTS (SELECT 1 FROM steps c WHERE c.payload_key = "                   \
    "s.key), " REFERENCE("args") ", " REFERENCE("result") ", " REFERENCE("error")

#define TAG "x'01'"
static const char SQLITE_STEPS[] =
    "SELECT " STEP_COLUMNS " FROM steps s WHERE s.execution_key = $1 LIMIT $2";
#undef TAG
#define TAG "'\\x01'::bytea"
static const char POSTGRES_STEPS[] =
    "SELECT u.ord, l.* FROM unnest($1::bigint[]) WITH ORDINALITY u (key, ord) CROSS JOIN LATERAL"
    " (SELECT " STEP_COLUMNS " FROM steps s WHERE s.execution_key = u.key LIMIT $2) l LIMIT $2";
#undef TAG
static const struct db_sql SQL_STEPS = {
    .name = "unlinked_steps",
    .sqlite = SQLITE_STEPS,
    .postgres = POSTGRES_STEPS,
    .types = "Ii",
};
static const struct db_sql SQL_STEP_DELETE = {
    .name = "unlinked_step_delete",
    .sqlite = "DELETE FROM steps WHERE key = $1",
    .postgres = "DELETE FROM steps WHERE key = ANY ($1::bigint[])",
    .types = "I",
};
static const struct db_sql SQL_STEP_HOLD = {
    .name = "unlinked_step_hold",
    .sqlite = "UPDATE steps SET execution_key = $2 WHERE key = $1",
    .postgres = "UPDATE steps SET execution_key = $2 WHERE key = ANY ($1::bigint[])",
    .types = "Ii",
};
static const struct db_sql SQL_STEP_LET_GO = {
    .name = "unlinked_step_let_go",
    .sqlite = "UPDATE steps SET execution_key = $2 WHERE key = $1 AND execution_key = $3"
              " AND NOT EXISTS (SELECT 1 FROM steps c WHERE c.payload_key = $1) RETURNING 1",
    .postgres = "UPDATE steps s SET execution_key = u.execution_key"
                " FROM unnest($1::bigint[], $2::bigint[]) u (key, execution_key)"
                " WHERE s.key = u.key AND s.execution_key = $3"
                " AND NOT EXISTS (SELECT 1 FROM steps c WHERE c.payload_key = u.key)"
                " RETURNING 1::bigint",
    .types = "IIi",
};

static void on_step(void *ctx, struct db *db, size_t row)
{
    struct slice *s = ctx;
    struct gone_step step = {.key = db_get_int(db, 0),
                             .execution_key = s->keys.at[row].key,
                             .payload_key = db_get_int(db, 1),
                             .referred_to = db_get_int(db, 2) != 0};

    if (s->left <= 0)
        return;
    s->left--;
    if (!step.referred_to)
        for (int column = 3; column < 6; column++)
            s->left -= (int64_t)payload_blobs(db, column, &s->blobs) * s->part_cost;
    list_add(s->steps, step);
}

static void on_let_go(void *ctx, struct db *db, size_t row)
{
    struct slice *s = ctx;

    (void)db;
    (void)row;
    s->more = true;
}

static bool read_steps(struct slice *s, struct err *e)
{
    db_call(s->db, &SQL_STEPS, on_step, s);
    for (size_t i = 0; i < s->keys.n && s->left > 0; i++) {
        db_int(s->db, s->keys.at[i].key);
        db_int(s->db, s->left);
        db_row(s->db);
    }
    db_end(s->db);
    return db_flush(s->db, e);
}

static void move_steps(struct slice *s, const struct db_sql *sql, bool referred_to)
{
    db_call(s->db, sql, NULL, NULL);
    for (size_t i = 0; i < s->steps.n; i++) {
        if (s->steps.at[i].referred_to != referred_to)
            continue;
        db_int(s->db, s->steps.at[i].key);
        db_int(s->db, HOLDER_KEY);
        db_row(s->db);
    }
    db_end(s->db);
}

static void let_go_of_holders(struct slice *s)
{
    db_call(s->db, &SQL_STEP_LET_GO, on_let_go, s);
    for (size_t i = 0; i < s->steps.n; i++) {
        if (s->steps.at[i].payload_key == 0)
            continue;
        db_int(s->db, s->steps.at[i].payload_key);
        db_int(s->db, s->steps.at[i].execution_key);
        db_int(s->db, HOLDER_KEY);
        db_row(s->db);
    }
    db_end(s->db);
}

static bool remove_steps(struct slice *s, struct err *e)
{
    if (!read_steps(s, e))
        return false;
    move_steps(s, &SQL_STEP_DELETE, false);
    move_steps(s, &SQL_STEP_HOLD, true);
    let_go_of_holders(s);
    return true;
}

/* ---- the other tables ---- */

#define REMOVAL(table, condition)                                                                  \
    {                                                                                              \
        .name = "unlinked_" table,                                                                 \
        .sqlite = "DELETE FROM " table " WHERE rowid IN (SELECT o.rowid FROM " table               \
                  " o WHERE o.execution_key = $1" condition " LIMIT $2) RETURNING 1",              \
        .postgres = "DELETE FROM " table " WHERE ctid = ANY (ARRAY(SELECT l.ctid FROM"             \
                    " unnest($1::bigint[]) u (key) CROSS JOIN LATERAL (SELECT o.ctid FROM " table  \
                    " o WHERE o.execution_key = u.key" condition " LIMIT $2) l LIMIT $2))"         \
                    " RETURNING 1::bigint",                                                        \
        .types = "Ii",                                                                             \
    }
static const struct db_sql REMOVALS[] = {
    REMOVAL("events", ""),
    REMOVAL("dispatches", " AND o.status = 'retired'"),
    REMOVAL("resources", ""),
    REMOVAL("checkpoints", ""),
};
/* SQLite's are swept as those of any execution that nobody works on: submission_sqlite.c. */
static const struct db_sql POSTGRES_REMOVALS[] = {
    REMOVAL("submissions", ""),
    REMOVAL("submission_keys", ""),
};

/* With the last of their lineage, whoever else of it is still being removed: what those rows refer
 * to is read by nobody. Each lineage once, however many keys are of it: fewer rows than were asked
 * for must mean that there are no more. */
#define LINEAGE_GONE                                                                               \
    "NOT EXISTS (SELECT 1 FROM executions e WHERE e.lineage = u.lineage) AND NOT EXISTS"           \
    " (SELECT 1 FROM executions e WHERE e.key = u.lineage AND e.lineage IS NULL)"
static const struct db_sql CHUNK_REMOVAL = {
    .name = "unlinked_chunks",
    .sqlite =
        "DELETE FROM chunks WHERE key IN (SELECT o.key FROM unlinked u CROSS JOIN chunks o"
        " WHERE u.key = $1 AND o.lineage = u.lineage AND " LINEAGE_GONE " LIMIT $2) RETURNING 1",
    .postgres = "DELETE FROM chunks WHERE key = ANY (ARRAY(SELECT l.key FROM"
                " (SELECT DISTINCT lineage FROM unlinked WHERE key = ANY ($1::bigint[])) u"
                " CROSS JOIN LATERAL (SELECT o.key FROM chunks o WHERE o.lineage = u.lineage"
                " LIMIT $2) l WHERE " LINEAGE_GONE " LIMIT $2)) RETURNING 1::bigint",
    .types = "Ii",
};

static void on_removed(void *ctx, struct db *db, size_t row)
{
    struct slice *s = ctx;

    (void)db;
    (void)row;
    s->left--;
}

static bool remove_rows(struct slice *s, const struct db_sql *removals, size_t n, struct err *e)
{
    for (size_t t = 0; t < n && s->left > 0; t++) {
        db_call(s->db, &removals[t], on_removed, s);
        for (size_t i = 0; i < s->keys.n && s->left > 0; i++) {
            db_int(s->db, s->keys.at[i].key);
            db_int(s->db, s->left);
            db_row(s->db);
        }
        db_end(s->db);
        if (!db_flush(s->db, e))
            return false;
    }
    return true;
}

/* ---- a slice ---- */

/* With something left to do, and nothing that it would have been done to, the keys are through. */
static bool remove_all(struct slice *s, bool sqlite, struct err *e)
{
    if (!read_keys(s, e))
        return false;
    if (s->keys.n == 0)
        return true;
    if (!remove_steps(s, e) || !remove_rows(s, REMOVALS, COUNT(REMOVALS), e) ||
        (!sqlite && !remove_rows(s, POSTGRES_REMOVALS, COUNT(POSTGRES_REMOVALS), e)) ||
        !remove_rows(s, &CHUNK_REMOVAL, 1, e))
        return false;
    free_own(s);
    blobs_delete(s->db, &s->blobs);
    if (!db_flush(s->db, e))
        return false;
    if (s->left > 0 && !s->more) {
        call_for_keys(s, &SQL_FORGET);
        s->more = s->keys.n == KEYS_A_SLICE;
    } else {
        s->more = true;
    }
    return true;
}

bool unlinked_tidy(struct store_writer *w, bool *more, struct err *e)
{
    bool sqlite = w->store->kind->sqlite, unknown, ok;
    struct slice s = {.db = w->db,
                      .left = TIDY_ROWS,
                      .part_cost = sqlite ? PART_COST_SQLITE : PART_COST_POSTGRES};

    db_begin(w->db);
    ok = remove_all(&s, sqlite, e);
    if (ok && s.keys.n > 0)
        ok = db_commit(w->db, &unknown, e);
    else
        db_rollback(w->db);
    if (!ok)
        w->broken = e->code == ERR_UNAVAILABLE;
    *more = ok && s.more && ++w->unlinked_slices < SLICES_A_TURN;
    if (!*more)
        w->unlinked_slices = 0;
    list_free(s.keys);
    list_free(s.steps);
    blob_keys_free(&s.own);
    blob_keys_free(&s.blobs);
    return ok;
}
