/* SPDX-License-Identifier: Apache-2.0
 * Subagents, as those that wait for them and background work look for them; and how one ended,
 * which the step that started it is told. */
#include "store/internal.h"

#define TERMINAL_EXECUTION_STATUSES "('completed', 'failed', 'cancelled')"

/* ---- load ---- */

/* Without a lock: what has ended stays as it is. */
static const struct db_sql SQL_ENDING_LOAD = {
    .name = "ending_load",
    .sqlite = "SELECT e.output, e.failure_reason FROM executions e WHERE e.id = $1",
    .postgres = "SELECT u.ord, e.output, e.failure_reason FROM unnest($1::bytea[])"
                " WITH ORDINALITY u (id, ord) JOIN executions e ON e.id = u.id",
    .types = "B",
};

static void on_ending(void *ctx, struct db *db, size_t row)
{
    struct load *ld = ctx;

    payload_get(&ld->payloads, 0, &ld->endings[row].output);
    ld->endings[row].failure_reason = db_get_copy(db, 1, &ld->ws->arena);
}

void ending_load(struct load *ld)
{
    const struct need *need = &ld->ws->need;

    if (need->endings.n == 0)
        return;
    ld->endings = arena_array(&ld->ws->arena, struct ending, need->endings.n);
    db_call(ld->db, &SQL_ENDING_LOAD, on_ending, ld);
    for (size_t i = 0; i < need->endings.n; i++) {
        ld->endings[i].execution_id = need->endings.at[i];
        db_uuid(ld->db, &need->endings.at[i]);
        db_row(ld->db);
    }
    db_end(ld->db);
}

void ending_put(struct load *ld)
{
    for (size_t i = 0; i < ld->ws->need.endings.n; i++)
        ws_put_ending(ld->ws, &ld->endings[i]);
}

/* ---- background work: the index holds those that owe, which all that live do ---- */

#define OWED_REST                                                                                  \
    " WHERE e.owes = 1 AND e.status IN " TERMINAL_EXECUTION_STATUSES                               \
    " AND e.id > $1 ORDER BY e.id LIMIT $2"
static const struct db_sql SQL_OWED = {
    .name = "owed",
    .sqlite = "SELECT e.id, e.spawned_by, e.spawned_step FROM executions e"
              " INDEXED BY executions_owing" OWED_REST,
    .postgres = "SELECT e.id, e.spawned_by, e.spawned_step FROM executions e" OWED_REST,
    .types = "bi",
};
/* A spawner that is gone has ended. */
#define ORPHANS_REST                                                                               \
    " LEFT JOIN executions p ON p.id = e.spawned_by"                                               \
    " WHERE e.owes = 1 AND e.status IN " LIVE_EXECUTION_STATUSES                                   \
    " AND coalesce(p.status, 'cancelled') IN " TERMINAL_EXECUTION_STATUSES                         \
    " AND e.id > $1 ORDER BY e.id LIMIT $2"
static const struct db_sql SQL_ORPHANS = {
    .name = "orphans",
    .sqlite = "SELECT e.id FROM executions e INDEXED BY executions_owing" ORPHANS_REST,
    .postgres = "SELECT e.id FROM executions e" ORPHANS_REST,
    .types = "bi",
};
/* On Postgres the comparison of rows leaves no other index to choose, and a status that no index
 * has keeps it from looking through all that live. */
static const struct db_sql SQL_LIVE_SUBAGENTS = {
    .name = "live_subagents",
    .sqlite = "SELECT e.id FROM executions e INDEXED BY executions_spawned WHERE e.spawned_by = $1"
              " AND e.id > $2 AND e.status IN " LIVE_EXECUTION_STATUSES " ORDER BY e.id LIMIT $3",
    .postgres = "SELECT e.id FROM executions e WHERE e.spawned_by IS NOT NULL"
                " AND (e.spawned_by, e.id) > ($1, $2) AND e.spawned_by <= $1"
                " AND coalesce(e.status, '') IN " LIVE_EXECUTION_STATUSES
                " ORDER BY e.spawned_by, e.id LIMIT $3",
    .types = "bbi",
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

struct owed_list {
    LIST(struct owed) rows;
};

static void on_owed(void *ctx, struct db *db, size_t row)
{
    struct owed_list *list = ctx;
    struct owed owed;

    (void)row;
    (void)db_get_uuid(db, 0, &owed.child);
    (void)db_get_uuid(db, 1, &owed.parent);
    db_get_hash(db, 2, &owed.step_id);
    list_add(list->rows, owed);
}

static void bind_page(struct db *db, const struct uuid *after, size_t limit)
{
    static const struct uuid NIL;

    db_uuid(db, after == NULL ? &NIL : after);
    db_int(db, (int64_t)limit);
}

bool store_owed(struct store_reader *r, const struct uuid *after, size_t limit, struct arena *a,
                struct owed **out, size_t *n, struct err *e)
{
    struct owed_list list = {0};
    bool ok;

    db_call(r->db, &SQL_OWED, on_owed, &list);
    bind_page(r->db, after, limit);
    db_one(r->db);
    ok = db_flush(r->db, e);
    list_to_arena(list.rows, a, out, n);
    return ok;
}

bool store_orphans(struct store_reader *r, const struct uuid *after, size_t limit, struct arena *a,
                   struct uuid **out, size_t *n, struct err *e)
{
    struct id_list list = {0};
    bool ok;

    db_call(r->db, &SQL_ORPHANS, on_id, &list);
    bind_page(r->db, after, limit);
    db_one(r->db);
    ok = db_flush(r->db, e);
    list_to_arena(list.ids, a, out, n);
    return ok;
}

/* NOLINTNEXTLINE(readability-function-size): bounds in, a page out */
bool store_live_subagents(struct store_reader *r, const struct uuid *spawner,
                          const struct uuid *after, size_t limit, struct arena *a,
                          struct uuid **out, size_t *n, struct err *e)
{
    struct id_list list = {0};
    bool ok;

    db_call(r->db, &SQL_LIVE_SUBAGENTS, on_id, &list);
    db_uuid(r->db, spawner);
    bind_page(r->db, after, limit);
    db_one(r->db);
    ok = db_flush(r->db, e);
    list_to_arena(list.ids, a, out, n);
    return ok;
}

/* ---- read ---- */

/* By the subagents, of which there are fewer than steps. */
#define AWAITING_STEP                                                                              \
    " AND 'executing' = (SELECT s.status FROM steps s WHERE s.execution_key = "                    \
    "(SELECT key FROM executions WHERE id = $1)"                                                   \
    " AND substr(s.step_id, 1, 8) = substr(e.spawned_step, 1, 8) AND s.step_id = e.spawned_step)"
static const struct db_sql SQL_AWAITED = {
    .name = "awaited_subagents",
    .sqlite = "SELECT e.id FROM executions e INDEXED BY executions_spawned WHERE e.spawned_by = $1"
              " AND e.owes = 1" AWAITING_STEP " ORDER BY e.id LIMIT $2",
    .postgres =
        "SELECT e.id FROM executions e WHERE e.spawned_by IS NOT NULL"
        " AND e.spawned_by >= $1 AND e.spawned_by <= $1"
        " AND coalesce(e.owes, 0) = 1" AWAITING_STEP " ORDER BY e.spawned_by, e.id LIMIT $2",
    .types = "bi",
};

bool store_awaited_subagents(struct store_reader *r, const struct uuid *execution_id, size_t limit,
                             struct arena *a, struct uuid **out, size_t *n, struct err *e)
{
    struct id_list list = {0};
    bool ok;

    db_call(r->db, &SQL_AWAITED, on_id, &list);
    bind_page(r->db, execution_id, limit);
    db_one(r->db);
    ok = db_flush(r->db, e);
    list_to_arena(list.ids, a, out, n);
    return ok;
}
