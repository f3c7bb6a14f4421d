/* SPDX-License-Identifier: Apache-2.0
 * Which executions may go, and how their own row does. What else was theirs: unlinked.c. */
#include "store/internal.h"

#include "base/clock.h"

/* ---- what keeps an execution `e` that has ended ---- */

/* Each by an index, however many there are: the session's live ones, the end of its last one, who
 * continues it, who spawned it, who forks it. */
#define LIVE_IN_SESSION(status)                                                                    \
    "EXISTS (SELECT 1 FROM executions o WHERE o.session = e.session AND o.status = '" status "')"
#define SESSION_LIVE(cutoff)                                                                       \
    "(e.session IS NOT NULL AND (" LIVE_IN_SESSION("pending") " OR " LIVE_IN_SESSION(              \
        "running") " OR " LIVE_IN_SESSION("blocked") " OR (SELECT o.ended_at FROM executions o"    \
                                                     " WHERE o.session = e.session AND "           \
                                                     "o.ended_at IS NOT NULL"                      \
                                                     " ORDER BY o.session DESC, o.ended_at DESC "  \
                                                     "LIMIT 1) >= " cutoff "))"
#define CONTINUED "EXISTS (SELECT 1 FROM executions o WHERE o.parent = e.id)"
#define SPAWNER_KEPT                                                                               \
    "(e.spawned_by IS NOT NULL AND EXISTS (SELECT 1 FROM executions o WHERE o.id = e.spawned_by))"
#define PINNED "EXISTS (SELECT 1 FROM forks f WHERE f.source_key = e.key)"

/* ---- load ---- */

/* Nobody begins another of the session until the transaction is over. One that is in use is not
 * waited for: the order of locks is the other way round. */
static const struct db_sql SQL_KEEPERS_LOCK = {
    .name = "keepers_lock",
    .postgres = "SELECT u.ord FROM unnest($1::bytea[]) WITH ORDINALITY u (id, ord)"
                " JOIN executions e ON e.id = u.id JOIN sessions s ON s.name = e.session"
                " ORDER BY s.name FOR UPDATE OF s SKIP LOCKED",
    .types = "B",
};
#define KEEPERS_COLUMNS(cutoff)                                                                    \
    "e.session IS NOT NULL, " SESSION_LIVE(cutoff) ", " CONTINUED ", " SPAWNER_KEPT ", " PINNED
static const struct db_sql SQL_KEEPERS = {
    .name = "keepers",
    .sqlite = "SELECT " KEEPERS_COLUMNS("$2") " FROM executions e WHERE e.id = $1",
    .postgres = "SELECT u.ord, l.* FROM unnest($1::bytea[], $2::bigint[]) WITH ORDINALITY"
                " u (id, cutoff, ord) CROSS JOIN LATERAL (SELECT " KEEPERS_COLUMNS(
                    "u.cutoff") " FROM executions e WHERE e.id = u.id) l",
    .types = "BI",
};

static void on_session(void *ctx, struct db *db, size_t row)
{
    struct load *ld = ctx;

    (void)db;
    ld->keepers[row].session_live = false;
}

static void on_keepers(void *ctx, struct db *db, size_t row)
{
    struct load *ld = ctx;
    struct keepers *keepers = &ld->keepers[row];
    bool unlocked = keepers->session_live && db_get_int(db, 0) != 0;

    keepers->session_live = unlocked || db_get_int(db, 1) != 0;
    keepers->continued = db_get_int(db, 2) != 0;
    keepers->spawner_kept = db_get_int(db, 3) != 0;
    keepers->pinned = db_get_int(db, 4) != 0;
}

void keepers_load(struct load *ld)
{
    const struct need *need = &ld->ws->need;
    bool locks = !ld->w->store->kind->sqlite;

    if (need->keepers.n == 0)
        return;
    ld->keepers = arena_array(&ld->ws->arena, struct keepers, need->keepers.n);
    for (size_t i = 0; i < need->keepers.n; i++) {
        ld->keepers[i].execution_id = need->keepers.at[i].execution_id;
        ld->keepers[i].session_live = locks;
    }
    for (int pass = locks ? 0 : 1; pass < 2; pass++) {
        db_call(ld->db, pass == 0 ? &SQL_KEEPERS_LOCK : &SQL_KEEPERS,
                pass == 0 ? on_session : on_keepers, ld);
        for (size_t i = 0; i < need->keepers.n; i++) {
            db_uuid(ld->db, &need->keepers.at[i].execution_id);
            if (pass == 1)
                db_int(ld->db, need->keepers.at[i].cutoff);
            db_row(ld->db);
        }
        db_end(ld->db);
    }
}

void keepers_put(struct load *ld)
{
    for (size_t i = 0; i < ld->ws->need.keepers.n; i++)
        ws_put_keepers(ld->ws, &ld->keepers[i]);
}

/* ---- apply ---- */

/* The keys of the blobs of a payload, as they stand in its column (payload.h). */
#define SQLITE_KEYS(column)                                                                        \
    "CASE WHEN substr(e." column ", 1, 1) = x'01' THEN substr(e." column ", 10) ELSE x'' END"
#define POSTGRES_KEYS(column)                                                                      \
    "CASE WHEN substr(e." column ", 1, 1) = '\\x01'::bytea THEN substr(e." column ", 10)"          \
    " ELSE ''::bytea END"
#define OF_EACH(keys)                                                                              \
    keys("input") " || " keys("output") " || " keys("state") " || " keys(                          \
        "restoration") " || " keys("policy_bundle")

static const struct db_sql SQL_UNLINK = {
    .name = "unlink",
    .sqlite = "INSERT INTO unlinked (key, lineage, blobs) SELECT e.key, coalesce(e.lineage, e.key),"
              " CAST(" OF_EACH(SQLITE_KEYS) " AS BLOB) FROM executions e WHERE e.key = $1",
    .postgres = "INSERT INTO unlinked (key, lineage, blobs) SELECT e.key,"
                " coalesce(e.lineage, e.key), " OF_EACH(
                    POSTGRES_KEYS) " FROM executions e WHERE e.key = ANY ($1::bigint[])",
    .types = "I",
};
static const struct db_sql SQL_EXECUTION_DELETE = {
    .name = "execution_delete",
    .sqlite = "DELETE FROM executions WHERE key = $1",
    .postgres = "DELETE FROM executions WHERE key = ANY ($1::bigint[])",
    .types = "I",
};
/* At once, or they would take up room in the pages of a list that does not show them. */
static const struct db_sql SQL_APPROVALS_DELETE = {
    .name = "approvals_delete",
    .sqlite = "DELETE FROM approvals WHERE execution_key = $1",
    .postgres = "DELETE FROM approvals WHERE execution_key = ANY ($1::bigint[])",
    .types = "I",
};

static void call_for_keys(struct apply *ap, const struct db_sql *sql)
{
    db_call(ap->db, sql, NULL, NULL);
    for (size_t i = 0; i < ap->changes->unlinked.n; i++) {
        db_int(ap->db, ap->changes->unlinked.at[i]->key);
        db_row(ap->db);
    }
    db_end(ap->db);
}

void unlink_apply(struct apply *ap)
{
    if (ap->changes->unlinked.n == 0)
        return;
    call_for_keys(ap, &SQL_UNLINK);
    call_for_keys(ap, &SQL_EXECUTION_DELETE);
    call_for_keys(ap, &SQL_APPROVALS_DELETE);
}

/* ---- background work ---- */

/* By id, which begins with the time of birth: what was born behind the cutoff has not ended before
 * it, so the newest there are need no look. */
static const struct db_sql SQL_RETIRED = {
    .name = "retired",
    .sqlite = "SELECT e.id, e.ended_at IS NOT NULL AND e.ended_at < $2 AND NOT " SESSION_LIVE(
        "$2") " AND NOT " CONTINUED " AND NOT " SPAWNER_KEPT " AND NOT " PINNED
              " FROM executions e WHERE e.id < $1 ORDER BY e.id DESC LIMIT $3",
    .types = "bii",
};

struct retired {
    LIST(struct uuid) ids;
    size_t looked_at;
    struct uuid last;
};

static void on_retired(void *ctx, struct db *db, size_t row)
{
    struct retired *page = ctx;

    (void)row;
    page->looked_at++;
    (void)db_get_uuid(db, 0, &page->last);
    if (db_get_int(db, 1) != 0)
        list_add(page->ids, page->last);
}

/* Larger than every id that was made before the cutoff. */
static struct uuid born_behind(int64_t cutoff)
{
    uint64_t ms = cutoff < 0 ? 0 : (uint64_t)(cutoff / US_PER_MS) + 1;
    struct uuid bound = {{0}};

    for (int i = 5; i >= 0; i--, ms >>= 8)
        bound.b[i] = (uint8_t)ms;
    return bound;
}

/* NOLINTNEXTLINE(readability-function-size): bounds in, a page out */
bool store_retired_executions(struct store_reader *r, int64_t cutoff, const struct uuid *before,
                              size_t limit, struct arena *a, struct uuid **out, size_t *n,
                              struct uuid *last, struct err *e)
{
    struct retired page = {0};
    struct uuid bound = born_behind(cutoff);
    bool ok;

    if (before != NULL && memcmp(before, &bound, sizeof(bound)) < 0)
        bound = *before;
    db_call(r->db, &SQL_RETIRED, on_retired, &page);
    db_uuid(r->db, &bound);
    db_int(r->db, cutoff);
    db_int(r->db, (int64_t)limit);
    db_one(r->db);
    ok = db_flush(r->db, e);
    list_to_arena(page.ids, a, out, n);
    *last = page.looked_at < limit ? (struct uuid){{0}} : page.last;
    return ok;
}
