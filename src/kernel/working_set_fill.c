/* SPDX-License-Identifier: Apache-2.0
 * Filling the working set (the store) and changing it (the rules). */
#include "kernel/working_set_internal.h"

#include <stdlib.h>

enum { EVENTS_A_TRANSITION = 256 }; /* a cancel of thousands of steps becomes several rows */

static struct str owned_str(struct str s)
{
    return str_present(s) ? str_make(xstrdup(s), s.n) : STR_NONE;
}

/* ---- filling ---- */

struct agent *ws_put_agent(struct working_set *ws, const struct agent *row)
{
    struct agent *agent = present(map_get(&ws->agents, row->id));

    if (agent == NULL) {
        agent = arena_new(&ws->arena, struct agent);
        *agent = *row;
        agent->id = arena_str(&ws->arena, row->id);
        agent->webhook_url = arena_str(&ws->arena, row->webhook_url);
        agent->secret = arena_str(&ws->arena, row->secret);
        agent->previous_secret = arena_str(&ws->arena, row->previous_secret);
        agent->row = ROW_CLEAN;
        map_put(&ws->agents, agent->id, agent);
    } else if (row->live_known && !agent->live_known) {
        agent->live_known = true;
        agent->has_live = row->has_live;
    }
    agent->kept |= row->kept;
    return agent;
}

void ws_put_absent_agent(struct working_set *ws, struct str id)
{
    if (map_get(&ws->agents, id) == NULL)
        map_put(&ws->agents, id, ABSENT);
}

struct execution *ws_put_execution(struct working_set *ws, const struct execution *row,
                                   const struct dispatch *dispatch)
{
    struct execution *exec = ws_execution(ws, &row->id);

    if (exec != NULL)
        return exec;
    exec = xmalloc(sizeof(*exec));
    *exec = *row;
    exec->agent_id = owned_str(row->agent_id);
    exec->session = owned_str(row->session);
    exec->session_tokens_known = false;
    exec->bundle.version = 0;
    exec->indeterminate = (struct buf){0};
    buf_add(&exec->indeterminate, buf_str(&row->indeterminate));
    exec->parked = (struct buf){0};
    buf_add(&exec->parked, buf_str(&row->parked));
    exec->above = owned_str(row->above);
    exec->resources = NULL;
    exec->n_resources = 0;
    exec->resources_known = row->n_registered == 0;
    exec->tallies = exec->keys = (struct map){0};
    exec->live = NULL;
    exec->n_live = exec->cap_live = 0;
    exec->pending = NULL;
    exec->n_pending = exec->cap_pending = 0;
    exec->pending_known = false;
    exec->transition = NULL;
    exec->in_group = false;
    exec->dispatch = NULL;
    if (dispatch != NULL) {
        exec->dispatch = xmalloc(sizeof(*dispatch));
        *exec->dispatch = *dispatch;
        exec->dispatch->row = ROW_CLEAN;
    }
    map_put(&ws->executions, uuid_key(&exec->id), exec);
    ws_join_group(ws, exec);
    return exec;
}

void ws_put_absent_execution(struct working_set *ws, const struct uuid *id)
{
    if (map_get(&ws->executions, uuid_key(id)) != NULL)
        return;
    map_put(&ws->executions, uuid_key(id), ABSENT);
    LIST_ADD(ws->absent_executions, *id);
}

void ws_put_request_key(struct working_set *ws, struct str agent_id, struct str key,
                        const struct uuid *execution_id)
{
    struct buf scratch = {0};
    struct str k = request_map_key(agent_id, key, &scratch);

    if (present(map_get(&ws->request_keys, k)) == NULL) {
        void *value = ABSENT;

        if (execution_id != NULL) {
            value = xmalloc(sizeof(struct uuid));
            memcpy(value, execution_id, sizeof(struct uuid));
        }
        map_put(&ws->request_keys, k, value);
    }
    buf_free(&scratch);
}

static void live_add(struct execution *exec, struct step *step)
{
    size_t at = exec->n_live;

    if (exec->n_live == exec->cap_live) {
        exec->cap_live = exec->cap_live == 0 ? 4 : exec->cap_live * 2;
        exec->live = xrealloc(exec->live, exec->cap_live * sizeof(struct step *));
    }
    /* New rows (key 0) are the youngest; loaded ones may come in any order. */
    while (step->key != 0 && at > 0 &&
           (exec->live[at - 1]->key == 0 || exec->live[at - 1]->key > step->key)) {
        exec->live[at] = exec->live[at - 1];
        at--;
    }
    exec->live[at] = step;
    exec->n_live++;
}

struct step *ws_put_step(struct working_set *ws, const struct step *row)
{
    struct step *step = ws_step(ws, &row->id);

    if (step != NULL)
        return step;
    step = xmalloc(sizeof(*step));
    *step = *row;
    step->target = owned_str(row->target);
    step->affects = owned_str(row->affects);
    step->row = ROW_CLEAN;
    step->in_group = false;
    map_put(&ws->steps, hash_key(&step->id), step);
    ws_step_join_group(ws, step);
    if (!step_status_is_terminal(step->status))
        live_add(step->execution, step);
    return step;
}

void ws_put_absent_step(struct working_set *ws, const struct hash *step_id)
{
    if (map_get(&ws->steps, hash_key(step_id)) != NULL)
        return;
    map_put(&ws->steps, hash_key(step_id), ABSENT);
    LIST_ADD(ws->absent_steps, *step_id);
}

static struct tally *tally_row(struct execution *exec, const struct call_key *call)
{
    struct tally *t = map_get(&exec->tallies, call_str(call));

    if (t == NULL) {
        t = xzalloc(sizeof(*t));
        t->call = *call;
        map_put(&exec->tallies, call_str(&t->call), t);
    }
    return t;
}

void ws_put_tally(struct execution *exec, const struct call_key *call, int64_t count)
{
    tally_row(exec, call)->count = count;
}

void ws_put_submission_key(struct execution *exec, const uint8_t key[16],
                           const struct call_key *call, const struct hash *step_id)
{
    struct submission_key *row = xmalloc(sizeof(*row));
    void *old;

    *row = (struct submission_key){*call, *step_id};
    old = map_put(&exec->keys, str_make(key, 16), row);
    if (old != ABSENT)
        free(old);
}

void ws_put_absent_submission_key(struct execution *exec, const uint8_t key[16])
{
    if (map_get(&exec->keys, str_make(key, 16)) == NULL)
        map_put(&exec->keys, str_make(key, 16), ABSENT);
}

void ws_put_dispatch(struct working_set *ws, const struct uuid *dispatch_id,
                     const struct uuid *execution_id_or_null)
{
    void *value = ABSENT;

    if (present(map_get(&ws->dispatches, uuid_key(dispatch_id))) != NULL)
        return;
    if (execution_id_or_null != NULL) {
        value = xmalloc(sizeof(struct uuid));
        memcpy(value, execution_id_or_null, sizeof(struct uuid));
    }
    map_put(&ws->dispatches, uuid_key(dispatch_id), value);
}

/* ---- changing ---- */

struct agent *ws_new_agent(struct working_set *ws, struct str id)
{
    struct agent *agent = arena_new(&ws->arena, struct agent);

    agent->id = arena_str(&ws->arena, id);
    agent->live_known = true; /* without a row it had no live executions: its removal saw to that */
    agent->kept = true;
    map_put(&ws->agents, agent->id, agent);
    agent->row = ROW_NEW;
    ws->agents_version++;
    LIST_ADD(ws->changes.agents, agent);
    return agent;
}

struct execution *ws_new_execution(struct working_set *ws, const struct uuid *id,
                                   struct str agent_id, struct str session)
{
    struct execution row = {.id = *id, .agent_id = agent_id, .session = session};
    struct execution *exec = ws_put_execution(ws, &row, NULL);

    exec->tallies_complete = exec->live_known = exec->pending_known = true;
    exec->row = ROW_NEW;
    LIST_ADD(ws->changes.executions, exec);
    return exec;
}

struct step *ws_new_step(struct working_set *ws, struct execution *exec, const struct hash *id)
{
    struct step *step = xzalloc(sizeof(*step));

    ASSERT(ws_step(ws, id) == NULL);
    step->id = *id;
    step->execution = exec;
    step->row = ROW_NEW;
    step->status = STEP_PROPOSED;
    step->usage = USAGE_NONE;
    map_put(&ws->steps, hash_key(id), step);
    ws_step_join_group(ws, step);
    ws_join_group(ws, exec);
    live_add(exec, step);
    LIST_ADD(ws->changes.steps, step);
    return step;
}

struct dispatch *ws_new_dispatch(struct working_set *ws, struct execution *exec,
                                 const struct uuid *id)
{
    ASSERT(exec->dispatch == NULL); /* an execution never has two that live */
    exec->dispatch = xzalloc(sizeof(*exec->dispatch));
    exec->dispatch->id = *id;
    exec->dispatch->row = ROW_NEW;
    LIST_ADD(ws->changes.dispatches, exec);
    ws_join_group(ws, exec);
    return exec->dispatch;
}

void ws_retire_dispatch(struct working_set *ws, struct execution *exec)
{
    struct dispatch *copy;

    if (exec->dispatch == NULL)
        return;
    ASSERT(dispatch_may_move(exec->dispatch->status, DISPATCH_RETIRED));
    copy = arena_new(&ws->arena, struct dispatch);
    *copy = *exec->dispatch;
    copy->status = DISPATCH_RETIRED;
    /* One that is born and retired in one group was never claimed, so no agent knows its id, and
     * the store keeps no row of it. */
    LIST_ADD(ws->changes.retired, copy);
    free(exec->dispatch);
    exec->dispatch = NULL;
    ws_join_group(ws, exec);
}

void ws_touch_agent(struct working_set *ws, struct agent *agent, unsigned parts)
{
    agent->parts |= parts;
    ws->agents_version++;
    if (agent->row != ROW_CLEAN)
        return;
    agent->row = ROW_CHANGED;
    LIST_ADD(ws->changes.agents, agent);
}

void ws_let_go(struct working_set *ws, struct execution *exec)
{
    ws_join_group(ws, exec);
}

void ws_touch_execution(struct working_set *ws, struct execution *exec)
{
    ws_join_group(ws, exec);
    if (exec->row != ROW_CLEAN)
        return;
    if (!exec->lease_changed)
        LIST_ADD(ws->changes.executions, exec);
    exec->row = ROW_CHANGED;
}

void ws_touch_lease(struct working_set *ws, struct execution *exec)
{
    ws_join_group(ws, exec);
    if (exec->lease_changed)
        return;
    if (exec->row == ROW_CLEAN)
        LIST_ADD(ws->changes.executions, exec);
    exec->lease_changed = true;
}

void ws_touch_step(struct working_set *ws, struct step *step)
{
    ws_step_join_group(ws, step);
    ws_join_group(ws, step->execution);
    if (step->row != ROW_CLEAN)
        return;
    step->row = ROW_CHANGED;
    LIST_ADD(ws->changes.steps, step);
}

void ws_touch_dispatch(struct working_set *ws, struct execution *exec)
{
    ws_join_group(ws, exec);
    if (exec->dispatch->row != ROW_CLEAN)
        return;
    exec->dispatch->row = ROW_CHANGED;
    LIST_ADD(ws->changes.dispatches, exec);
}

void ws_count_submission(struct working_set *ws, struct execution *exec,
                         const struct tally_ref *ref, const struct hash *step_id)
{
    struct tally *t = tally_row(exec, &ref->call);
    struct submission row = {.execution = exec, .claim = exec->claim, .call = ref->call};

    row.count = ++t->count;
    row.has_key = ref->has_key;
    memcpy(row.key, ref->key, sizeof(row.key));
    row.step_id = *step_id;
    if (ref->has_key)
        ws_put_submission_key(exec, ref->key, &ref->call, step_id);
    LIST_ADD(ws->changes.submissions, row);
}

void ws_clear_tallies(struct execution *exec)
{
    ws_tallies_free(exec);
    exec->tallies_complete = true;
}

void ws_step_left_live(struct step *step)
{
    struct execution *exec = step->execution;

    for (size_t i = exec->n_live; i-- > 0;) {
        if (exec->live[i] != step)
            continue;
        memmove(&exec->live[i], &exec->live[i + 1], (exec->n_live - i - 1) * sizeof(struct step *));
        exec->n_live--;
        return;
    }
}

struct transition *ws_transition(struct working_set *ws, struct execution *exec)
{
    struct transition *t = exec->transition;

    if (t != NULL && t->count < EVENTS_A_TRANSITION)
        return t;
    t = arena_new(&ws->arena, struct transition);
    t->execution = exec;
    t->first_seq = exec->last_seq + 1;
    t->occurred_at = ws->now.wall_us;
    exec->transition = t;
    LIST_ADD(ws->changes.transitions, t);
    ws_join_group(ws, exec);
    return t;
}
