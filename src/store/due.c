/* SPDX-License-Identifier: Apache-2.0
 * Which dispatches are due. The index is ordered by agent, then by time, so the agents that have
 * something queued are found by leaping from one to the next, and each gives the head of its own
 * queue: the cost never grows with the backlog of one. No snapshot is needed over the statements,
 * since the rule that claims looks again under the lock. */
#include <stdlib.h>

#include "store/internal.h"

static const struct db_sql SQL_DUE_AGENTS = {
    .name = "due_agents",
    .sqlite = "WITH RECURSIVE queue (agent_id) AS ("
              " SELECT min(agent_id) FROM dispatches WHERE status = 'queued'"
              " UNION ALL SELECT (SELECT min(d.agent_id) FROM dispatches d"
              " WHERE d.status = 'queued' AND d.agent_id > queue.agent_id) FROM queue WHERE "
              "queue.agent_id IS NOT NULL)"
              " SELECT agent_id, (SELECT min(d.due_at) FROM dispatches d"
              " WHERE d.status = 'queued' AND d.agent_id = queue.agent_id) FROM queue WHERE "
              "agent_id IS NOT NULL",
    .types = "",
};
static const struct db_sql SQL_DUE_ROWS = {
    .name = "due_rows",
    .sqlite =
        "SELECT e.id, d.id, d.due_at FROM dispatches d JOIN executions e ON e.key = d.execution_key"
        " WHERE d.status = 'queued' AND d.agent_id = $1 AND d.due_at <= $3 ORDER BY d.due_at LIMIT "
        "$2",
    .postgres =
        "SELECT u.ord, e.id, d.id, d.due_at FROM unnest($1::text[], $2::bigint[]) WITH ORDINALITY"
        " u (agent_id, room, ord) CROSS JOIN LATERAL (SELECT o.execution_key, o.id, o.due_at"
        " FROM dispatches o WHERE o.status = 'queued' AND o.agent_id = u.agent_id AND o.due_at <= "
        "$3"
        " ORDER BY o.due_at LIMIT u.room) d JOIN executions e ON e.key = d.execution_key",
    .types = "TIi",
};
static const struct db_sql SQL_DUE_NEXT = {
    .name = "due_next",
    .sqlite = "SELECT min(d.due_at) FROM dispatches d WHERE d.status = 'queued' AND d.agent_id = "
              "$1 AND d.due_at > $2",
    .postgres =
        "SELECT u.ord, (SELECT min(d.due_at) FROM dispatches d WHERE d.status = 'queued'"
        " AND d.agent_id = u.agent_id AND d.due_at > $2) FROM unnest($1::text[]) WITH ORDINALITY"
        " u (agent_id, ord)",
    .types = "Ti",
};

struct queue_head {
    struct str agent_id; /* arena */
    int64_t due_at, room;
};
struct due_row {
    struct due_dispatch dispatch;
    int64_t due_at;
};
struct due_search {
    struct db *db;
    struct arena *arena;
    LIST(struct queue_head) heads; /* of the agents that may be given something */
    LIST(struct due_row) rows;
    struct map caps; /* agent id → struct agent_cap; borrowed values */
    int64_t default_room, next_due;
};

static int64_t room_of(const struct due_search *s, struct str agent_id)
{
    const struct agent_cap *cap = map_get(&s->caps, agent_id);

    return cap == NULL ? s->default_room : cap->room;
}

static void on_head(void *ctx, struct db *db, size_t row)
{
    struct due_search *s = ctx;
    struct queue_head head = {.due_at = db_get_int(db, 1)};

    (void)row;
    head.room = room_of(s, db_get_str(db, 0));
    if (head.room <= 0)
        return;
    head.agent_id = db_get_copy(db, 0, s->arena);
    list_add(s->heads, head);
}

static void on_row(void *ctx, struct db *db, size_t row)
{
    struct due_search *s = ctx;
    struct due_row due = {.due_at = db_get_int(db, 2)};

    (void)db_get_uuid(db, 0, &due.dispatch.execution_id);
    (void)db_get_uuid(db, 1, &due.dispatch.dispatch_id);
    due.dispatch.agent_id = s->heads.at[row].agent_id;
    list_add(s->rows, due);
}

static void note_next(struct due_search *s, int64_t due_at)
{
    if (due_at != 0 && (s->next_due == 0 || due_at < s->next_due))
        s->next_due = due_at;
}

static void on_next(void *ctx, struct db *db, size_t row)
{
    (void)row;
    note_next(ctx, db_get_int(db, 0));
}

static int by_head(const void *a, const void *b)
{
    const struct queue_head *x = a, *y = b;

    return (x->due_at > y->due_at) - (x->due_at < y->due_at);
}

static int by_due(const void *a, const void *b)
{
    const struct due_row *x = a, *y = b;

    if (x->due_at != y->due_at)
        return x->due_at < y->due_at ? -1 : 1;
    return memcmp(x->dispatch.dispatch_id.b, y->dispatch.dispatch_id.b,
                  sizeof(x->dispatch.dispatch_id.b));
}

/* The oldest `limit` rows are of the `limit` agents with the oldest heads: each of those gives one
 * that is no younger than any row of the agents behind them. */
static void call_for_rows(struct due_search *s, size_t limit, int64_t now_us)
{
    size_t n = 0;

    qsort(s->heads.at, s->heads.n, sizeof(s->heads.at[0]), by_head);
    while (n < s->heads.n && s->heads.at[n].due_at <= now_us)
        n++;
    for (size_t i = n; i < s->heads.n; i++)
        note_next(s, s->heads.at[i].due_at);
    if (n == 0)
        return;
    db_call(s->db, &SQL_DUE_NEXT, on_next, s);
    for (size_t i = 0; i < n; i++) {
        db_text(s->db, s->heads.at[i].agent_id);
        db_int(s->db, now_us);
        db_row(s->db);
    }
    db_end(s->db);
    if (limit == 0)
        return;
    db_call(s->db, &SQL_DUE_ROWS, on_row, s);
    for (size_t i = 0; i < n && i < limit; i++) {
        const struct queue_head *head = &s->heads.at[i];

        db_text(s->db, head->agent_id);
        db_int(s->db, head->room < (int64_t)limit ? head->room : (int64_t)limit);
        db_int(s->db, now_us);
        db_row(s->db);
    }
    db_end(s->db);
}

static void give_out(struct due_search *s, size_t limit, struct due_dispatch **out, size_t *n)
{
    if (s->rows.n > 1)
        qsort(s->rows.at, s->rows.n, sizeof(s->rows.at[0]), by_due);
    *n = s->rows.n < limit ? s->rows.n : limit;
    *out = arena_array(s->arena, struct due_dispatch, *n);
    for (size_t i = 0; i < *n; i++)
        (*out)[i] = s->rows.at[i].dispatch;
}

/* NOLINTNEXTLINE(readability-function-size): bounds in, a page out */
bool store_due_dispatches(struct store_reader *r, const struct agent_cap *caps, size_t n_caps,
                          int64_t default_room, size_t limit, struct arena *a,
                          struct due_dispatch **out, size_t *n, int64_t *now_us, int64_t *next_due,
                          struct err *e)
{
    struct due_search s = {.db = r->db, .arena = a, .default_room = default_room};
    struct now now = {0};
    bool ok;

    *n = 0;
    for (size_t i = 0; i < n_caps; i++)
        map_put(&s.caps, caps[i].agent_id, (void *)(uintptr_t)&caps[i]);
    db_now(r->db, &now);
    db_call(r->db, &SQL_DUE_AGENTS, on_head, &s);
    db_one(r->db);
    ok = db_flush(r->db, e);
    if (ok && s.heads.n > 0) {
        call_for_rows(&s, limit, now.wall_us);
        ok = db_flush(r->db, e);
    }
    if (ok)
        give_out(&s, limit, out, n);
    *now_us = now.wall_us;
    *next_due = s.next_due;
    map_free(&s.caps);
    list_free(s.heads);
    list_free(s.rows);
    return ok;
}
