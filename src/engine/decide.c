/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/decide.h"

static uint64_t of_execution(const struct uuid *id)
{
    return hash_bytes(str_make(id->b, sizeof(id->b)));
}

/* Of each command: what it looks at, the rule that decides it, and what says which executor it goes
 * to. */
#define IN(member) (&cmd->in.member)
#define COMMANDS(X)                                                                                \
    X(CREATE, execution_create_names(ws, IN(create)),                                              \
      execution_create(ws, IN(create), &cmd->out.created, e), route_creation(IN(create)))          \
    X(CANCEL, execution_cancel_names(ws, IN(cancel)), execution_cancel(ws, IN(cancel), e),         \
      of_execution(&IN(cancel)->execution_id))                                                     \
    X(FINISH, execution_finish_names(ws, IN(finish)), execution_finish(ws, IN(finish), e),         \
      of_execution(&IN(finish)->execution_id))                                                     \
    X(SUBMIT, step_submit_names(ws, IN(submit)), step_submit(ws, IN(submit), &cmd->out.step, e),   \
      of_execution(&IN(submit)->execution_id))                                                     \
    X(SETTLE, step_settle_names(ws, IN(settle)), step_settle(ws, IN(settle), &cmd->out.step, e),   \
      of_execution(&IN(settle)->execution_id))                                                     \
    X(DELTA, step_delta_names(ws, IN(delta)), step_delta(ws, IN(delta), e),                        \
      of_execution(&IN(delta)->execution_id))                                                      \
    X(HEARTBEAT, ws_need_execution(ws, &IN(lease)->execution_id),                                  \
      lease_heartbeat(ws, IN(lease), e), of_execution(&IN(lease)->execution_id))                   \
    X(RELEASE, ws_need_execution(ws, &IN(lease)->execution_id), lease_release(ws, IN(lease), e),   \
      of_execution(&IN(lease)->execution_id))                                                      \
    X(SUSPEND, ws_need_execution(ws, &IN(lease)->execution_id),                                    \
      lease_suspend(ws, IN(lease), &cmd->out.suspended, e),                                        \
      of_execution(&IN(lease)->execution_id))                                                      \
    X(RESOURCE_REGISTER, resource_register_names(ws, IN(resource_register)),                       \
      resource_register(ws, IN(resource_register), &cmd->out.resource, e),                         \
      of_execution(&IN(resource_register)->execution_id))                                          \
    X(RESOURCE_BIND, resource_bind_names(ws, IN(resource_bind)),                                   \
      resource_bind(ws, IN(resource_bind), e), of_execution(&IN(resource_bind)->execution_id))     \
    X(RESOURCE_CAPTURE, resource_capture_names(ws, IN(resource_capture)),                          \
      resource_capture(ws, IN(resource_capture), e),                                               \
      of_execution(&IN(resource_capture)->execution_id))                                           \
    X(AGENT_REGISTER, ws_need_agent(ws, IN(agent_register)->id, false),                            \
      agent_register(ws, IN(agent_register), e), hash_bytes(IN(agent_register)->id))               \
    X(AGENT_DESCRIBE, ws_need_agent(ws, IN(agent_describe)->id, false),                            \
      agent_describe(ws, IN(agent_describe), e), hash_bytes(IN(agent_describe)->id))               \
    X(AGENT_REMOVE, ws_need_agent(ws, cmd->in.agent_remove, true),                                 \
      agent_remove(ws, cmd->in.agent_remove, e), hash_bytes(cmd->in.agent_remove))                 \
    X(ADMIT, session_admit_names(ws, cmd->in.admit), session_admit(ws, cmd->in.admit, e),          \
      hash_bytes(cmd->in.admit))                                                                   \
    X(SUBAGENT_SETTLE, subagent_settle_names(ws, IN(subagent_settle)),                             \
      subagent_settle(ws, IN(subagent_settle), e), of_execution(&IN(subagent_settle)->parent))     \
    X(FORK_BEGIN, fork_begin_names(ws, IN(fork_begin)),                                            \
      fork_begin(ws, IN(fork_begin), &cmd->out.begun, e), of_execution(&IN(fork_begin)->source))   \
    X(FORK_PART, fork_part_names(ws, IN(fork_part)), fork_add_part(ws, IN(fork_part), e),          \
      of_execution(&IN(fork_part)->fork_id))                                                       \
    X(FORK_FINISH, fork_finish_names(ws, IN(fork_finish)), fork_finish(ws, IN(fork_finish), e),    \
      of_execution(&IN(fork_finish)->last.fork_id))                                                \
    X(FORK_ABANDON, fork_abandon_names(ws, IN(fork_abandon)),                                      \
      fork_abandon(ws, IN(fork_abandon), e), of_execution(&IN(fork_abandon)->fork_id))             \
    X(UNLINK, execution_unlink_names(ws, IN(unlink)),                                              \
      execution_unlink(ws, IN(unlink), &cmd->out.unlinked, e),                                     \
      of_execution(&IN(unlink)->execution_id))                                                     \
    X(POLICY_SET, ws_need_agent(ws, IN(policy_set)->agent_id, false),                              \
      agent_set_policy(ws, IN(policy_set), e), hash_bytes(IN(policy_set)->agent_id))               \
    X(APPROVAL_DECIDE, approval_decide_names(ws, IN(approval)),                                    \
      approval_decide(ws, IN(approval), &cmd->out.approval, e),                                    \
      of_execution(&IN(approval)->execution_id))                                                   \
    X(APPROVAL_EXPIRE, approval_decide_names(ws, IN(approval)),                                    \
      approval_expire(ws, IN(approval), e), of_execution(&IN(approval)->execution_id))             \
    X(CLAIM, dispatch_claim_names(ws, &IN(delivery)->ref, IN(delivery)->agent_id),                 \
      dispatch_claim(ws, &IN(delivery)->ref, &cmd->out.claimed, e),                                \
      of_execution(&IN(delivery)->ref.execution_id))                                               \
    X(DELIVERED, ws_need_execution(ws, &IN(delivery)->ref.execution_id),                           \
      dispatch_delivered(ws, &IN(delivery)->ref, IN(delivery)->acked, e),                          \
      of_execution(&IN(delivery)->ref.execution_id))                                               \
    X(RETURN, ws_need_execution(ws, &IN(delivery)->ref.execution_id),                              \
      dispatch_return(ws, &IN(delivery)->ref, e), of_execution(&IN(delivery)->ref.execution_id))   \
    X(RECOVER, ws_need_execution(ws, &IN(recover)->execution_id),                                  \
      dispatch_recover(ws, &IN(recover)->execution_id, IN(recover)->at_start, e),                  \
      of_execution(&IN(recover)->execution_id))                                                    \
    X(RECLAIM, ws_need_execution(ws, &cmd->in.reclaim),                                            \
      lease_reclaim(ws, &cmd->in.reclaim, &cmd->out.reclaimed, e), of_execution(&cmd->in.reclaim))

/* A subagent is created under its parent's lock. */
static uint64_t route_creation(const struct execution_creation *in)
{
    return uuid_is_nil(&in->spawner) ? hash_bytes(in->agent_id) : of_execution(&in->spawner);
}

void command_names(struct working_set *ws, const struct command *cmd)
{
#define NAMES(type, names, decide, route)                                                          \
    case COMMAND_##type:                                                                           \
        (names);                                                                                   \
        return;
    switch (cmd->type) {
        COMMANDS(NAMES)
    }
#undef NAMES
}

static void run_rule(struct working_set *ws, struct command *cmd)
{
    struct err *e = &cmd->err;

    e->code = ERR_NONE;
#define DECIDE(type, names, decide, route)                                                         \
    case COMMAND_##type:                                                                           \
        cmd->verdict = (decide);                                                                   \
        return;
    switch (cmd->type) {
        COMMANDS(DECIDE)
    }
#undef DECIDE
}

void command_decide(struct working_set *ws, struct command *cmd)
{
    run_rule(ws, cmd);
    if (cmd->verdict == VERDICT_DONE && cmd->chunks != NULL)
        ws_add_chunks(ws, cmd->chunks);
}

uint64_t command_route(const struct command *cmd)
{
#define ROUTE(type, names, decide, route)                                                          \
    case COMMAND_##type:                                                                           \
        return route;
    switch (cmd->type) {
        COMMANDS(ROUTE)
    }
#undef ROUTE
    return 0;
}

static bool keep(struct command *cmd, struct str *s)
{
    struct str copy = arena_str(cmd->arena, *s);

    if (str_present(*s) && copy.p == NULL)
        return false;
    *s = copy;
    return true;
}

static bool keep_touched(struct command *cmd, struct step_answer *step)
{
    struct touched_resource *rows;

    if (step->n_resources == 0)
        return true;
    rows = arena_array(cmd->arena, struct touched_resource, step->n_resources);
    if (rows == NULL)
        return false;
    memcpy(rows, step->resources, step->n_resources * sizeof(*rows));
    for (size_t i = 0; i < step->n_resources; i++)
        if (!keep(cmd, &rows[i].key))
            return false;
    step->resources = rows;
    return true;
}

bool command_keep_answer(struct command *cmd)
{
    struct step_answer *step = &cmd->out.step;
    struct dispatch_claimed *claimed = &cmd->out.claimed;

    if (cmd->verdict != VERDICT_DONE)
        return true;
    if (cmd->type == COMMAND_SUBMIT || cmd->type == COMMAND_SETTLE)
        return keep(cmd, &step->result) && keep(cmd, &step->error) && keep(cmd, &step->reason) &&
               keep(cmd, &step->rule_id) && keep_touched(cmd, step);
    if (cmd->type == COMMAND_RESOURCE_REGISTER)
        return keep(cmd, &cmd->out.resource.state.key) &&
               keep(cmd, &cmd->out.resource.state.driver_id) &&
               keep(cmd, &cmd->out.resource.state.configuration) &&
               keep(cmd, &cmd->out.resource.state.binding) &&
               keep(cmd, &cmd->out.resource.state.checkpoint_ref);
    if (cmd->type == COMMAND_FORK_BEGIN)
        return keep(cmd, &cmd->out.begun.agent_id);
    if (cmd->type == COMMAND_CLAIM && claimed->claimed)
        return keep(cmd, &claimed->agent_id) && keep(cmd, &claimed->webhook_url) &&
               keep(cmd, &claimed->secret);
    return true;
}
