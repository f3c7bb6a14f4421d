/* SPDX-License-Identifier: Apache-2.0
 * Sessions in the working set. Group arena, like all that other kernels may change. */
#include "kernel/working_set_internal.h"

/* ---- naming ---- */

void ws_need_session(struct working_set *ws, struct str name)
{
    struct str copy = arena_str(&ws->arena, name);

    if (ws_session(ws, name) == NULL)
        LIST_ADD(ws->need.sessions, copy);
}

void ws_need_parent(struct working_set *ws, struct str session, struct str agent_id)
{
    struct parent_ref ref = {arena_str(&ws->arena, session), arena_str(&ws->arena, agent_id)};

    if (!ws_knows_parent(ws, session, agent_id))
        LIST_ADD(ws->need.parents, ref);
}

void ws_need_session_tokens(struct working_set *ws, const struct uuid *execution_id)
{
    LIST_ADD(ws->need.session_tokens, *execution_id);
}

/* ---- reading ---- */

struct session *ws_session(const struct working_set *ws, struct str name)
{
    return map_get(&ws->sessions, name);
}

/* NULL: not known. */
static struct uuid *find_parent(const struct working_set *ws, struct str session,
                                struct str agent_id)
{
    struct buf scratch = {0};
    struct uuid *found = map_get(&ws->parents, request_map_key(agent_id, session, &scratch));

    buf_free(&scratch);
    return found;
}

bool ws_knows_parent(const struct working_set *ws, struct str session, struct str agent_id)
{
    return find_parent(ws, session, agent_id) != NULL;
}

struct uuid ws_parent(const struct working_set *ws, struct str session, struct str agent_id)
{
    const struct uuid *found = find_parent(ws, session, agent_id);

    return found == NULL ? (struct uuid){{0}} : *found;
}

/* ---- filling ---- */

void ws_put_session(struct working_set *ws, const struct session *row)
{
    struct session *session;

    if (ws_session(ws, row->name) != NULL)
        return;
    session = arena_new(&ws->arena, struct session);
    *session = *row;
    session->name = arena_str(&ws->arena, row->name);
    map_put(&ws->sessions, session->name, session);
}

/* One that has completed in this group is not in the store yet. */
static void take_newer(const struct working_set *ws, struct str session, struct str agent_id,
                       struct uuid *parent)
{
    for (size_t i = 0; i < ws->group_executions.n; i++) {
        const struct execution *exec = ws->group_executions.at[i];

        if (exec->status == EXECUTION_COMPLETED && str_eq(exec->session, session) &&
            str_eq(exec->agent_id, agent_id) &&
            memcmp(parent->b, exec->id.b, sizeof(parent->b)) < 0)
            *parent = exec->id;
    }
}

void ws_put_parent(struct working_set *ws, struct str session, struct str agent_id,
                   const struct uuid *parent_or_nil)
{
    struct uuid *known = find_parent(ws, session, agent_id);
    struct buf scratch = {0};

    if (known == NULL) {
        known = arena_new(&ws->arena, struct uuid);
        map_put(&ws->parents, request_map_key(agent_id, session, &scratch), known);
        buf_free(&scratch);
    }
    *known = *parent_or_nil;
    take_newer(ws, session, agent_id, known);
}

void ws_put_session_tokens(struct working_set *ws, struct execution *exec, int64_t others)
{
    exec->session_tokens = others;
    exec->session_tokens_known = true;
    ws_join_group(ws, exec);
}

/* ---- changing ---- */

void ws_free_session(struct working_set *ws, const struct execution *exec)
{
    struct session *session;
    struct str name;

    if (!str_present(exec->session))
        return;
    name = arena_str(&ws->arena, exec->session);
    LIST_ADD(ws->changes.freed, name);
    session = ws_session(ws, exec->session);
    if (session != NULL && uuid_eq(&session->holder, &exec->id))
        session->holder = (struct uuid){{0}};
    if (exec->status == EXECUTION_COMPLETED && ws_knows_parent(ws, exec->session, exec->agent_id)) {
        struct uuid known = ws_parent(ws, exec->session, exec->agent_id);

        if (memcmp(known.b, exec->id.b, sizeof(known.b)) < 0)
            ws_put_parent(ws, exec->session, exec->agent_id, &exec->id);
    }
}
