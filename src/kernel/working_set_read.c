/* SPDX-License-Identifier: Apache-2.0
 * Reading the working set: is a key known, and is its row there? */
#include "kernel/working_set_internal.h"

bool ws_knows_agent(const struct working_set *ws, struct str id)
{
    return map_get(&ws->agents, id) != NULL;
}

struct agent *ws_agent(const struct working_set *ws, struct str id)
{
    struct agent *agent = present(map_get(&ws->agents, id));

    return agent == NULL || agent->removed ? NULL : agent;
}

bool ws_remembers_bundle(const struct working_set *ws, const struct execution *exec)
{
    return exec->bundle.version == ws->agents_version;
}

/* Only the one writer of a database may remember: for any other, another kernel may have set a
 * policy since. */
const struct agent_bundle *ws_agent_bundle(const struct working_set *ws, struct execution *exec)
{
    const struct agent *agent;

    if (ws_remembers_bundle(ws, exec))
        return &exec->bundle;
    agent = ws_agent(ws, exec->agent_id);
    if (agent == NULL)
        return NULL;
    exec->bundle = (struct agent_bundle){.version = ws->keep_leased ? ws->agents_version : 0,
                                         .has_policy = agent->has_policy,
                                         .hash = agent->policy_hash};
    return &exec->bundle;
}

bool ws_knows_execution(const struct working_set *ws, const struct uuid *id)
{
    return map_get(&ws->executions, uuid_key(id)) != NULL;
}

struct execution *ws_execution(const struct working_set *ws, const struct uuid *id)
{
    return present(map_get(&ws->executions, uuid_key(id)));
}

bool ws_knows_request_key(const struct working_set *ws, struct str agent_id,
                          struct str idempotency_key)
{
    struct buf scratch = {0};
    bool known =
        map_get(&ws->request_keys, request_map_key(agent_id, idempotency_key, &scratch)) != NULL;

    buf_free(&scratch);
    return known;
}

bool ws_request_key(const struct working_set *ws, struct str agent_id, struct str idempotency_key,
                    struct uuid *execution_id)
{
    struct buf scratch = {0};
    struct uuid *id =
        present(map_get(&ws->request_keys, request_map_key(agent_id, idempotency_key, &scratch)));

    buf_free(&scratch);
    if (id == NULL)
        return false;
    *execution_id = *id;
    return true;
}

bool ws_knows_step(const struct working_set *ws, const struct hash *step_id)
{
    return map_get(&ws->steps, hash_key(step_id)) != NULL;
}

struct step *ws_step(const struct working_set *ws, const struct hash *step_id)
{
    return present(map_get(&ws->steps, hash_key(step_id)));
}

bool ws_knows_tally(const struct execution *exec, const struct tally_ref *ref)
{
    if (exec->tallies_complete)
        return true;
    return map_get(&exec->tallies, call_str(&ref->call)) != NULL &&
           (!ref->has_key || map_get(&exec->keys, str_make(ref->key, sizeof(ref->key))) != NULL);
}

int64_t ws_tally(const struct execution *exec, const struct call_key *call)
{
    const struct tally *t = map_get(&exec->tallies, call_str(call));

    return t == NULL ? 0 : t->count;
}

struct submission_key *ws_submission_key(const struct execution *exec, const uint8_t key[16])
{
    return present(map_get(&exec->keys, str_make(key, 16)));
}

bool ws_knows_dispatch(const struct working_set *ws, const struct uuid *dispatch_id)
{
    return map_get(&ws->dispatches, uuid_key(dispatch_id)) != NULL;
}

bool ws_dispatch_execution(const struct working_set *ws, const struct uuid *dispatch_id,
                           struct uuid *execution_id)
{
    struct uuid *id = present(map_get(&ws->dispatches, uuid_key(dispatch_id)));

    if (id == NULL)
        return false;
    *execution_id = *id;
    return true;
}
