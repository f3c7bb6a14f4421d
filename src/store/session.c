/* SPDX-License-Identifier: Apache-2.0
 * Sessions. They have no rows: what there is to know of one is told by its executions, and holds
 * while the session is locked (lock_sessions), since nobody else then starts one of them. */
#include "store/internal.h"

/* ---- load ---- */

/* The oldest of each status: the holder, the first in the queue, and whether there is any. The
 * comparison of rows leaves no other index to choose. */
static const struct db_sql SQL_SESSION_LOAD = {
    .name = "session_load",
    .sqlite = "WITH s (status) AS (VALUES ('pending'), ('running'), ('blocked'), ('completed'),"
              " ('failed'), ('cancelled'))"
              " SELECT s.status, (SELECT e.id FROM executions e INDEXED BY executions_by_session"
              " WHERE e.session = $1 AND e.status = s.status ORDER BY e.id LIMIT 1) FROM s",
    .postgres =
        "SELECT u.ord, l.status, l.id FROM unnest($1::bytea[]) WITH ORDINALITY u (name, ord)"
        " CROSS JOIN (VALUES ('pending'), ('running'), ('blocked'), ('completed'), ('failed'),"
        " ('cancelled')) s (status) CROSS JOIN LATERAL"
        " (SELECT e.session, e.status, e.id FROM executions e WHERE e.session IS NOT NULL"
        " AND (e.session, e.status) >= (u.name, s.status)"
        " ORDER BY e.session, e.status, e.id LIMIT 1) l"
        " WHERE l.session = u.name AND l.status = s.status",
    .types = "B",
};
static const struct db_sql SQL_PARENT_LOAD = {
    .name = "parent_load",
    .sqlite = "SELECT e.id FROM executions e INDEXED BY executions_completed WHERE e.session = $1"
              " AND e.agent_id = $2 AND e.status = 'completed' ORDER BY e.id DESC LIMIT 1",
    .postgres =
        "SELECT u.ord, l.id FROM unnest($1::bytea[], $2::text[]) WITH ORDINALITY u (session, "
        "agent_id, ord) CROSS JOIN LATERAL"
        " (SELECT e.session, e.agent_id, e.id FROM executions e WHERE e.status = 'completed'"
        " AND e.session IS NOT NULL AND (e.session, e.agent_id) <= (u.session, u.agent_id)"
        " ORDER BY e.session DESC, e.agent_id DESC, e.id DESC LIMIT 1) l"
        " WHERE l.session = u.session AND l.agent_id = u.agent_id",
    .types = "BT",
};
/* A sum that is too large for the column is as large as can be. */
static const struct db_sql SQL_SESSION_TOKENS = {
    .name = "session_tokens",
    .sqlite = "SELECT CAST(total(o.tokens) AS INTEGER) FROM executions e CROSS JOIN executions o"
              " INDEXED BY executions_by_session WHERE e.id = $1 AND o.session = e.session"
              " AND o.id <> e.id",
    .postgres = "SELECT u.ord, l.tokens FROM unnest($1::bytea[]) WITH ORDINALITY u (id, ord)"
                " JOIN executions e ON e.id = u.id CROSS JOIN LATERAL"
                " (SELECT least(coalesce(sum(o.tokens), 0), 9223372036854775807)::bigint AS tokens "
                "FROM executions o"
                " WHERE o.session = e.session AND o.id <> e.id) l",
    .types = "B",
};

/* One row a session and a parent, however many of a group name it. */
static void gather_sessions(struct load *ld)
{
    const struct need *need = &ld->ws->need;

    for (size_t i = 0; i < need->sessions.n; i++) {
        struct session *session;

        if (map_get(&ld->session_map, need->sessions.at[i]) != NULL)
            continue;
        session = arena_new(&ld->ws->arena, struct session);
        session->name = need->sessions.at[i];
        map_put(&ld->session_map, session->name, session);
        list_add(ld->sessions, session);
    }
}

static void gather_parents(struct load *ld)
{
    const struct need *need = &ld->ws->need;
    struct buf key = {0};

    for (size_t i = 0; i < need->parents.n; i++) {
        struct loaded_parent *parent;

        buf_clear(&key);
        buf_add(&key, need->parents.at[i].agent_id);
        buf_add_byte(&key, '\0'); /* no agent's id holds one */
        buf_add(&key, need->parents.at[i].session);
        if (map_get(&ld->parent_map, buf_str(&key)) != NULL)
            continue;
        parent = arena_new(&ld->ws->arena, struct loaded_parent);
        parent->ref = need->parents.at[i];
        map_put(&ld->parent_map, buf_str(&key), parent);
        list_add(ld->parents, parent);
    }
    buf_free(&key);
}

static void on_oldest(void *ctx, struct db *db, size_t row)
{
    struct load *ld = ctx;
    struct session *session = ld->sessions.at[row];
    enum execution_status status;
    struct uuid id;

    if (!db_get_uuid(db, 1, &id))
        return;
    session->used = true;
    if (!execution_status_parse(db_get_str(db, 0), &status))
        db_fail(db, ERR_INTERNAL, "the database holds an unknown execution status");
    else if (status == EXECUTION_PENDING)
        session->waiter = id;
    else if (!execution_status_is_terminal(status))
        session->holder = id;
}

static void on_parent(void *ctx, struct db *db, size_t row)
{
    struct load *ld = ctx;

    (void)db_get_uuid(db, 0, &ld->parents.at[row]->id);
}

static void on_tokens(void *ctx, struct db *db, size_t row)
{
    struct load *ld = ctx;

    ld->session_tokens[row] = db_get_int(db, 0);
}

/* After the locks are taken: each statement sees what was committed before it. */
static void load_facts(struct load *ld)
{
    db_call(ld->db, &SQL_SESSION_LOAD, on_oldest, ld);
    for (size_t i = 0; i < ld->sessions.n; i++) {
        db_bytes(ld->db, ld->sessions.at[i]->name);
        db_row(ld->db);
    }
    db_end(ld->db);
    db_call(ld->db, &SQL_PARENT_LOAD, on_parent, ld);
    for (size_t i = 0; i < ld->parents.n; i++) {
        db_bytes(ld->db, ld->parents.at[i]->ref.session);
        db_text(ld->db, ld->parents.at[i]->ref.agent_id);
        db_row(ld->db);
    }
    db_end(ld->db);
}

void session_load(struct load *ld)
{
    if (ld->ws->need.sessions.n + ld->ws->need.parents.n == 0)
        return;
    gather_sessions(ld);
    gather_parents(ld);
    ld->w->store->kind->lock_sessions(ld);
    load_facts(ld);
}

void session_load_tokens(struct load *ld)
{
    const struct need *need = &ld->ws->need;

    if (need->session_tokens.n == 0)
        return;
    ld->session_tokens = arena_array(&ld->ws->arena, int64_t, need->session_tokens.n);
    db_call(ld->db, &SQL_SESSION_TOKENS, on_tokens, ld);
    for (size_t i = 0; i < need->session_tokens.n; i++) {
        db_uuid(ld->db, &need->session_tokens.at[i]);
        db_row(ld->db);
    }
    db_end(ld->db);
}

/* One that this group has completed is in the set alone as yet. */
static void look_in_group(const struct working_set *ws, struct loaded_parent *parent)
{
    for (size_t i = 0; i < ws->changes.executions.n; i++) {
        const struct execution *exec = ws->changes.executions.at[i];

        if (exec->status == EXECUTION_COMPLETED && str_present(exec->session) &&
            str_eq(exec->session, parent->ref.session) &&
            str_eq(exec->agent_id, parent->ref.agent_id) &&
            memcmp(exec->id.b, parent->id.b, sizeof(exec->id.b)) > 0)
            parent->id = exec->id;
    }
}

void session_put(struct load *ld)
{
    const struct need *need = &ld->ws->need;

    for (size_t i = 0; i < ld->sessions.n; i++)
        ws_put_session(ld->ws, ld->sessions.at[i]);
    for (size_t i = 0; i < ld->parents.n; i++) {
        struct loaded_parent *parent = ld->parents.at[i];

        look_in_group(ld->ws, parent);
        ws_put_parent(ld->ws, parent->ref.session, parent->ref.agent_id, &parent->id);
    }
    for (size_t i = 0; i < need->session_tokens.n; i++) {
        struct execution *exec = ws_execution(ld->ws, &need->session_tokens.at[i]);

        if (exec != NULL)
            ws_put_session_tokens(ld->ws, exec, ld->session_tokens[i]);
    }
}

/* ---- background work ---- */

/* The index holds what waits, and is leapt through from one session to the next. */
static const struct db_sql SQL_SESSIONS_WAITING = {
    .name = "sessions_waiting",
    .sqlite =
        "WITH RECURSIVE waiting (name) AS ("
        " SELECT (SELECT e.session FROM executions e INDEXED BY executions_waiting"
        " WHERE e.status = 'pending' AND e.session IS NOT NULL ORDER BY e.session LIMIT 1)"
        " UNION ALL SELECT (SELECT e.session FROM executions e INDEXED BY executions_waiting"
        " WHERE e.status = 'pending' AND e.session > waiting.name ORDER BY e.session LIMIT 1)"
        " FROM waiting WHERE waiting.name IS NOT NULL)"
        " SELECT w.name FROM waiting w WHERE w.name IS NOT NULL AND NOT EXISTS"
        " (SELECT 1 FROM executions h INDEXED BY executions_by_session WHERE h.session = w.name"
        " AND h.status IN ('running', 'blocked')) LIMIT $1",
    /* The ids stand in the order for the index's sake: no other one is ordered so. Each
     * status is looked up by itself, or whole sessions would be read for one. */
    .postgres = "WITH RECURSIVE waiting (name) AS ("
                " SELECT (SELECT e.session FROM executions e WHERE e.status = 'pending'"
                " AND e.session IS NOT NULL ORDER BY e.session, e.id LIMIT 1)"
                " UNION ALL SELECT (SELECT e.session FROM executions e WHERE e.status = 'pending'"
                " AND e.session IS NOT NULL AND e.session > waiting.name"
                " ORDER BY e.session, e.id LIMIT 1)"
                " FROM waiting WHERE waiting.name IS NOT NULL)"
                " SELECT w.name FROM waiting w WHERE w.name IS NOT NULL AND coalesce("
                "(SELECT h.id FROM executions h WHERE h.session = w.name AND h.status = 'running'"
                " LIMIT 1), (SELECT h.id FROM executions h WHERE h.session = w.name"
                " AND h.status = 'blocked' LIMIT 1)) IS NULL LIMIT $1",
    .types = "i",
};

struct name_list {
    struct arena *arena;
    LIST(struct str) names;
};

static void on_name(void *ctx, struct db *db, size_t row)
{
    struct name_list *list = ctx;
    struct str name = db_get_copy(db, 0, list->arena);

    (void)row;
    list_add(list->names, name);
}

bool store_waiting_sessions(struct store_reader *r, size_t limit, struct arena *a, struct str **out,
                            size_t *n, struct err *e)
{
    struct name_list list = {.arena = a};
    bool ok;

    db_call(r->db, &SQL_SESSIONS_WAITING, on_name, &list);
    db_int(r->db, (int64_t)limit);
    db_one(r->db);
    ok = db_flush(r->db, e);
    list_to_arena(list.names, a, out, n);
    return ok;
}
