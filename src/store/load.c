/* SPDX-License-Identifier: Apache-2.0
 * One load: in what order the entities are asked for, and how their rows reach the set. On Postgres
 * this order is also the order of the locks: agents, sessions, executions, buckets; what belongs to
 * an execution is read after it and so under its lock. */
#include <stdlib.h>

#include "base/fault.h"
#include "store/internal.h"

struct str db_get_copy(struct db *db, int column, struct arena *a)
{
    struct str s = db_get_str(db, column), c = arena_str(a, s);

    if (str_present(s) && !str_present(c))
        db_fail(db, ERR_INTERNAL, "out of memory");
    return c;
}

static void want_execution(struct load *ld, const struct uuid *id)
{
    struct str key = str_make(id->b, sizeof(id->b));
    struct loaded_execution *le;

    if (ws_knows_execution(ld->ws, id) || map_get(&ld->execution_map, key) != NULL)
        return;
    le = arena_new(&ld->ws->arena, struct loaded_execution);
    le->id = *id;
    map_put(&ld->execution_map, key, le);
    list_add(ld->executions, le);
}

/* A step, a count, an approval, a resource or a list of them is of an execution that must be there
 * too, and so is what the others of its session have spent. */
static void gather_executions(struct load *ld)
{
    const struct need *need = &ld->ws->need;

    for (size_t i = 0; i < need->executions.n; i++)
        want_execution(ld, &need->executions.at[i]);
    for (size_t i = 0; i < need->steps.n; i++)
        want_execution(ld, &need->steps.at[i].execution_id);
    for (size_t i = 0; i < need->tallies.n; i++)
        want_execution(ld, &need->tallies.at[i].execution_id);
    for (size_t i = 0; i < need->live_steps.n; i++)
        want_execution(ld, &need->live_steps.at[i]);
    for (size_t i = 0; i < need->approvals.n; i++)
        want_execution(ld, &need->approvals.at[i].execution_id);
    for (size_t i = 0; i < need->pending.n; i++)
        want_execution(ld, &need->pending.at[i]);
    for (size_t i = 0; i < need->session_tokens.n; i++)
        want_execution(ld, &need->session_tokens.at[i]);
    for (size_t i = 0; i < need->resources.n; i++)
        want_execution(ld, &need->resources.at[i]);
}

static bool load_rows(struct load *ld, struct err *e)
{
    gather_executions(ld);
    agent_load_held(ld);
    session_load(ld);
    execution_load(ld);
    fork_load(ld);
    keepers_load(ld);
    agent_load_read(ld); /* after whatever was waited for, so that it is what holds now */
    dispatch_load(ld);
    event_load_last(ld);
    request_key_load(ld);
    step_load(ld);
    approval_load(ld);
    resource_load(ld);
    ending_load(ld);
    session_load_tokens(ld);
    bucket_load(ld);
    if (!ld->w->store->kind->load_submissions(ld, e))
        return false;
    db_now(ld->db, &ld->ws->now);
    if (!payloads_read(&ld->payloads, e))
        return false;
    if (ld->sessions_locked < ld->sessions.n) /* retention removed one at this moment */
        return err_set(e, ERR_STORE_RACE, "a session was removed while it was wanted");
    return true;
}

static void put_rows(struct load *ld)
{
    agent_put(ld);
    execution_put(ld);
    session_put(ld);
    request_key_put(ld);
    dispatch_put(ld);
    step_put(ld);
    approval_put(ld);
    resource_put(ld);
    ending_put(ld);
    fork_put(ld);
    keepers_put(ld);
    bucket_put(ld);
    ld->w->store->kind->put_submissions(ld);
}

bool store_load(struct store_writer *w, struct working_set *ws, struct err *e)
{
    struct load ld = {
        .w = w, .db = w->db, .ws = ws, .payloads = {.db = w->db, .arena = &ws->arena}};
    bool ok;

    if (w->broken)
        return err_set(e, ERR_UNAVAILABLE, "the store is not writable at the moment");
    if (!w->db->in_transaction)
        db_begin(w->db);
    if (FAULT_FAILS("store.load.before"))
        db_fail(w->db, ERR_UNAVAILABLE, "disk I/O error");
    ok = load_rows(&ld, e);
    if (ok) {
        put_rows(&ld);
        ws_clear_needs(ws);
    } else if (e->code == ERR_UNAVAILABLE) {
        w->broken = true;
    }
    map_free(&ld.execution_map);
    map_free(&ld.agent_map);
    map_free(&ld.session_map);
    map_free(&ld.parent_map);
    free(ld.executions.at);
    free(ld.steps.at);
    free(ld.agents.at);
    free(ld.approvals.at);
    free(ld.sessions.at);
    free(ld.parents.at);
    free(ld.resource_rows.at);
    payload_reader_free(&ld.payloads);
    return ok;
}
