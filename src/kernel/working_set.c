/* SPDX-License-Identifier: Apache-2.0
 * The working set: identity maps, what is needed, what has changed. Memory: rows and what a header
 * calls owned are malloc'ed, since they may outlive the group; all else lives in the group's arena.
 */
#include "kernel/working_set_internal.h"

#include <stdlib.h>

char ws_absent_marker;

void ws_init(struct working_set *ws, const struct kernel_settings *settings, struct uuid_gen *ids,
             struct prng *random)
{
    *ws = (struct working_set){
        .settings = settings, .ids = ids, .random = random, .agents_version = 1};
}

/* ---- rows ---- */

void ws_tallies_free(struct execution *exec)
{
    void *v;

    for (size_t i = 0; (v = map_next(&exec->tallies, &i)) != NULL;)
        free(v);
    map_free(&exec->tallies);
    for (size_t i = 0; (v = map_next(&exec->keys, &i)) != NULL;)
        if (v != ABSENT)
            free(v);
    map_free(&exec->keys);
}

static void execution_free(struct execution *exec)
{
    ws_tallies_free(exec);
    buf_free(&exec->indeterminate);
    buf_free(&exec->parked);
    free((void *)(uintptr_t)exec->above.p);
    ws_resources_free(exec);
    free(exec->dispatch);
    free(exec->live);
    free((void *)(uintptr_t)exec->agent_id.p);
    free((void *)(uintptr_t)exec->session.p);
    free(exec);
}

static void step_free(struct step *step)
{
    free((void *)(uintptr_t)step->target.p);
    free((void *)(uintptr_t)step->affects.p);
    free(step);
}

static void transitions_free(struct working_set *ws)
{
    for (size_t i = 0; i < ws->changes.transitions.n; i++)
        buf_free(&ws->changes.transitions.at[i]->body);
}

static void changes_clear(struct working_set *ws)
{
    struct changes *c = &ws->changes;

    transitions_free(ws);
    c->agents.n = c->executions.n = c->steps.n = c->dispatches.n = 0;
    c->retired.n = c->transitions.n = c->submissions.n = 0;
    c->approvals.n = c->buckets.n = c->freed.n = 0;
    c->resources.n = c->checkpoints.n = c->forks.n = c->slices.n = 0;
    c->unlinked.n = c->chunks.n = c->owed.n = c->orphaned.n = 0;
}

/* Facts that hold for one group alone: another process may change agents, and payload slices die
 * with the arena. */
static void forget_group_facts(struct working_set *ws)
{
    void *v;

    map_clear(&ws->agents);
    map_clear(&ws->approvals);
    map_clear(&ws->buckets);
    map_clear(&ws->sessions);
    map_clear(&ws->parents);
    map_clear(&ws->inheritances);
    map_clear(&ws->endings);
    map_clear(&ws->forks);
    map_clear(&ws->keepers);
    for (size_t i = 0; (v = map_next(&ws->request_keys, &i)) != NULL;)
        if (v != ABSENT)
            free(v);
    map_clear(&ws->request_keys);
    for (size_t i = 0; (v = map_next(&ws->dispatches, &i)) != NULL;)
        if (v != ABSENT)
            free(v);
    map_clear(&ws->dispatches);
}

void ws_clear(struct working_set *ws)
{
    void *v;

    changes_clear(ws);
    forget_group_facts(ws);
    ws->agents_version++; /* what was remembered may be what did not happen */
    for (size_t i = 0; (v = map_next(&ws->steps, &i)) != NULL;)
        if (v != ABSENT)
            step_free(v);
    map_clear(&ws->steps);
    for (size_t i = 0; (v = map_next(&ws->executions, &i)) != NULL;)
        if (v != ABSENT)
            execution_free(v);
    map_clear(&ws->executions);
    ws_clear_needs(ws);
    ws->group_executions.n = ws->group_steps.n = 0;
    ws->absent_executions.n = ws->absent_steps.n = 0;
    arena_reset(&ws->arena);
}

void ws_free(struct working_set *ws)
{
    struct need *need = &ws->need;
    struct changes *c = &ws->changes;

    ws_clear(ws);
    map_free(&ws->agents);
    map_free(&ws->executions);
    map_free(&ws->request_keys);
    map_free(&ws->steps);
    map_free(&ws->dispatches);
    map_free(&ws->approvals);
    map_free(&ws->buckets);
    map_free(&ws->sessions);
    map_free(&ws->parents);
    map_free(&ws->inheritances);
    map_free(&ws->endings);
    map_free(&ws->forks);
    map_free(&ws->keepers);
    free(need->agents.at);
    free(need->executions.at);
    free(need->request_keys.at);
    free(need->steps.at);
    free(need->tallies.at);
    free(need->live_steps.at);
    free(need->dispatches.at);
    free(need->approvals.at);
    free(need->pending.at);
    free(need->buckets.at);
    free(need->sessions.at);
    free(need->parents.at);
    free(need->session_tokens.at);
    free(need->resources.at);
    free(need->inheritances.at);
    free(need->endings.at);
    free(need->forks.at);
    free(need->keepers.at);
    free(c->agents.at);
    free(c->executions.at);
    free(c->steps.at);
    free(c->dispatches.at);
    free(c->retired.at);
    free(c->transitions.at);
    free(c->submissions.at);
    free(c->approvals.at);
    free(c->buckets.at);
    free(c->freed.at);
    free(c->resources.at);
    free(c->checkpoints.at);
    free(c->forks.at);
    free(c->slices.at);
    free(c->unlinked.at);
    free(c->chunks.at);
    free(c->owed.at);
    free(c->orphaned.at);
    free(ws->group_executions.at);
    free(ws->group_steps.at);
    free(ws->absent_executions.at);
    free(ws->absent_steps.at);
    arena_free(&ws->arena);
}

bool ws_has_changes(const struct working_set *ws)
{
    const struct changes *c = &ws->changes;

    return c->agents.n + c->executions.n + c->steps.n + c->dispatches.n + c->retired.n +
               c->transitions.n + c->submissions.n + c->approvals.n + c->buckets.n +
               c->resources.n + c->checkpoints.n + c->forks.n + c->slices.n + c->unlinked.n >
           0;
}

static bool execution_stays(const struct working_set *ws, const struct execution *exec)
{
    if (!ws->keep_leased || execution_status_is_terminal(exec->status))
        return false;
    if (exec->owner == OWNER_ENDED) /* calls of it may still run; then it only waits */
        return exec->lease_until > ws->now.lease_us;
    return exec->owner == OWNER_WORKING && exec->dispatch != NULL;
}

static void step_leaves(struct working_set *ws, struct step *step)
{
    ws_step_left_live(step);
    map_remove(&ws->steps, hash_key(&step->id));
    step_free(step);
}

/* Terminal steps leave the set: their results may be large, and a replay finds them by the index.
 */
static void end_group_steps(struct working_set *ws)
{
    for (size_t i = 0; i < ws->group_steps.n; i++) {
        struct step *step = ws->group_steps.at[i];

        if (step_status_is_terminal(step->status) || !execution_stays(ws, step->execution)) {
            step_leaves(ws, step);
            continue;
        }
        step->args = step->result = step->error = step->rule_id = STR_NONE;
        step->row = ROW_CLEAN;
        step->in_group = false;
    }
    ws->group_steps.n = 0;
    for (size_t i = 0; i < ws->absent_steps.n; i++) {
        struct str key = hash_key(&ws->absent_steps.at[i]);

        if (map_get(&ws->steps, key) == ABSENT)
            map_remove(&ws->steps, key);
    }
    ws->absent_steps.n = 0;
}

static void end_group_executions(struct working_set *ws)
{
    for (size_t i = 0; i < ws->group_executions.n; i++) {
        struct execution *exec = ws->group_executions.at[i];

        if (!execution_stays(ws, exec)) {
            while (exec->n_live > 0)
                step_leaves(ws, exec->live[exec->n_live - 1]);
            map_remove(&ws->executions, uuid_key(&exec->id));
            execution_free(exec);
            continue;
        }
        exec->row = ROW_CLEAN;
        exec->in_group = exec->lease_changed = false;
        exec->transition = NULL;
        exec->input = exec->output = exec->state = exec->failure_reason = STR_NONE;
        exec->idempotency_key = exec->created_by = exec->on_behalf_of = STR_NONE;
        exec->pending = NULL;
        exec->n_pending = exec->cap_pending = 0;
        exec->pending_known = exec->session_tokens_known = false;
        exec->forking = NULL;
        ws_resources_end_group(exec);
        if (exec->dispatch != NULL)
            exec->dispatch->row = ROW_CLEAN;
    }
    ws->group_executions.n = 0;
    for (size_t i = 0; i < ws->absent_executions.n; i++) {
        struct str key = uuid_key(&ws->absent_executions.at[i]);

        if (map_get(&ws->executions, key) == ABSENT)
            map_remove(&ws->executions, key);
    }
    ws->absent_executions.n = 0;
}

void ws_end_group(struct working_set *ws)
{
    changes_clear(ws);
    forget_group_facts(ws);
    end_group_steps(ws);
    end_group_executions(ws);
    ws_clear_needs(ws);
    arena_reset(&ws->arena);
}

/* ---- naming ---- */

void ws_need_agent(struct working_set *ws, struct str id, bool want_live)
{
    struct agent_ref ref = {.id = arena_str(&ws->arena, id), .want_live = want_live};
    const struct agent *known = present(map_get(&ws->agents, id));

    if (ws_knows_agent(ws, id) && (!want_live || known == NULL || known->live_known))
        return;
    LIST_ADD(ws->need.agents, ref);
}

void ws_need_agent_kept(struct working_set *ws, struct str id)
{
    struct agent_ref ref = {.id = arena_str(&ws->arena, id), .keep = true};
    const struct agent *known = present(map_get(&ws->agents, id));

    if (known == NULL ? !ws_knows_agent(ws, id) : !known->kept)
        LIST_ADD(ws->need.agents, ref);
}

void ws_need_execution(struct working_set *ws, const struct uuid *id)
{
    if (!ws_knows_execution(ws, id))
        LIST_ADD(ws->need.executions, *id);
}

void ws_need_request_key(struct working_set *ws, struct str agent_id, struct str idempotency_key)
{
    struct request_key_ref ref = {arena_str(&ws->arena, agent_id),
                                  arena_str(&ws->arena, idempotency_key)};

    LIST_ADD(ws->need.request_keys, ref);
}

void ws_need_step(struct working_set *ws, const struct uuid *execution_id,
                  const struct hash *step_id)
{
    struct step_ref ref = {*execution_id, *step_id};

    if (ws_knows_step(ws, step_id))
        return;
    LIST_ADD(ws->need.steps, ref);
}

void ws_need_tally(struct working_set *ws, const struct tally_ref *ref)
{
    const struct execution *exec = ws_execution(ws, &ref->execution_id);

    if (exec == NULL ? ws_knows_execution(ws, &ref->execution_id) : ws_knows_tally(exec, ref))
        return;
    LIST_ADD(ws->need.tallies, *ref);
}

void ws_need_live_steps(struct working_set *ws, const struct uuid *execution_id)
{
    LIST_ADD(ws->need.live_steps, *execution_id);
}

void ws_need_dispatch(struct working_set *ws, const struct uuid *dispatch_id)
{
    if (!ws_knows_dispatch(ws, dispatch_id))
        LIST_ADD(ws->need.dispatches, *dispatch_id);
}

bool ws_has_needs(const struct working_set *ws)
{
    const struct need *n = &ws->need;

    return n->agents.n + n->executions.n + n->request_keys.n + n->steps.n + n->tallies.n +
               n->live_steps.n + n->dispatches.n + n->approvals.n + n->pending.n + n->buckets.n +
               n->sessions.n + n->parents.n + n->session_tokens.n + n->resources.n +
               n->inheritances.n + n->endings.n + n->forks.n + n->keepers.n >
           0;
}

void ws_clear_needs(struct working_set *ws)
{
    struct need *n = &ws->need;

    n->agents.n = n->executions.n = n->request_keys.n = n->steps.n = 0;
    n->tallies.n = n->live_steps.n = n->dispatches.n = 0;
    n->approvals.n = n->pending.n = n->buckets.n = 0;
    n->sessions.n = n->parents.n = n->session_tokens.n = 0;
    n->resources.n = n->inheritances.n = n->endings.n = 0;
    n->forks.n = n->keepers.n = 0;
}
