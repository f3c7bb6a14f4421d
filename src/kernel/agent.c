/* SPDX-License-Identifier: Apache-2.0 */
#include "kernel/agent.h"

#include "base/clock.h"

/* Calls signed with the previous secret are still taken for so long, so that a rotation costs no
 * run. */
static const int64_t ROTATION_GRACE_US = 3600 * US_PER_S;

static void set_policy(struct working_set *ws, struct agent *agent, struct str bundle,
                       const struct hash *hash)
{
    agent->policy_bundle = bundle;
    agent->policy_hash = *hash;
    agent->has_policy = true;
    ws_touch_agent(ws, agent, AGENT_POLICY);
}

enum verdict agent_register(struct working_set *ws, const struct agent_registration *cmd,
                            struct err *e)
{
    struct agent *agent;

    (void)e;
    if (!ws_knows_agent(ws, cmd->id)) {
        ws_need_agent(ws, cmd->id, false);
        return VERDICT_NEED;
    }
    agent = ws_agent(ws, cmd->id);
    if (agent == NULL) {
        agent = ws_new_agent(ws, cmd->id);
        agent->registered_at = ws->now.wall_us;
    } else if (!str_eq(agent->secret, cmd->secret)) {
        agent->previous_secret = agent->secret;
        agent->previous_secret_until = ws->now.wall_us + ROTATION_GRACE_US;
    }
    agent->webhook_url = cmd->webhook_url;
    agent->secret = cmd->secret;
    agent->lease_timeout_us = cmd->lease_timeout_us;
    ws_touch_agent(ws, agent, AGENT_REGISTRATION);
    if (str_present(cmd->policy_bundle))
        set_policy(ws, agent, cmd->policy_bundle, &cmd->policy_hash);
    return VERDICT_DONE;
}

enum verdict agent_set_policy(struct working_set *ws, const struct policy_setting *cmd,
                              struct err *e)
{
    struct agent *agent;

    if (!ws_knows_agent(ws, cmd->agent_id)) {
        ws_need_agent(ws, cmd->agent_id, false);
        return VERDICT_NEED;
    }
    agent = ws_agent(ws, cmd->agent_id);
    if (agent == NULL)
        return REFUSE(e, ERR_NOT_FOUND, "no such agent: register it first");
    set_policy(ws, agent, cmd->bundle, &cmd->hash);
    return VERDICT_DONE;
}

enum verdict agent_describe(struct working_set *ws, const struct agent_description *cmd,
                            struct err *e)
{
    struct agent *agent;

    if (!ws_knows_agent(ws, cmd->id)) {
        ws_need_agent(ws, cmd->id, false);
        return VERDICT_NEED;
    }
    agent = ws_agent(ws, cmd->id);
    if (agent == NULL)
        return REFUSE(e, ERR_NOT_FOUND, "no such agent");
    agent->description = cmd->description;
    agent->input_schema = cmd->input_schema;
    agent->output_schema = cmd->output_schema;
    ws_touch_agent(ws, agent, AGENT_DESCRIPTION);
    return VERDICT_DONE;
}

enum verdict agent_remove(struct working_set *ws, struct str id, struct err *e)
{
    struct agent *agent = ws_agent(ws, id);

    if (!ws_knows_agent(ws, id) || (agent != NULL && !agent->live_known)) {
        ws_need_agent(ws, id, true);
        return VERDICT_NEED;
    }
    if (agent == NULL)
        return REFUSE(e, ERR_NOT_FOUND, "no such agent");
    if (agent->has_live)
        return REFUSE(e, ERR_CONFLICT,
                      "the agent has live executions; cancel them or wait for their end");
    agent->removed = true;
    ws_touch_agent(ws, agent, 0);
    return VERDICT_DONE;
}
