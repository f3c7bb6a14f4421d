/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/decide.h"

void command_names(struct working_set *ws, const struct command *cmd)
{
    switch (cmd->type) {
    case COMMAND_CREATE:
        execution_create_names(ws, &cmd->in.create);
        return;
    case COMMAND_CANCEL:
        execution_cancel_names(ws, &cmd->in.cancel);
        return;
    case COMMAND_FINISH:
        execution_finish_names(ws, &cmd->in.finish);
        return;
    case COMMAND_SUBMIT:
        step_submit_names(ws, &cmd->in.submit);
        return;
    case COMMAND_SETTLE:
        step_settle_names(ws, &cmd->in.settle);
        return;
    case COMMAND_DELTA:
        step_delta_names(ws, &cmd->in.delta);
        return;
    case COMMAND_HEARTBEAT:
    case COMMAND_RELEASE:
    case COMMAND_SUSPEND:
        ws_need_execution(ws, &cmd->in.lease.execution_id);
        return;
    case COMMAND_AGENT_REGISTER:
        ws_need_agent(ws, cmd->in.agent_register.id, false);
        return;
    case COMMAND_AGENT_DESCRIBE:
        ws_need_agent(ws, cmd->in.agent_describe.id, false);
        return;
    case COMMAND_AGENT_REMOVE:
        ws_need_agent(ws, cmd->in.agent_remove, true);
        return;
    case COMMAND_ADMIT:
        session_admit_names(ws, cmd->in.admit);
        return;
    case COMMAND_POLICY_SET:
        ws_need_agent(ws, cmd->in.policy_set.agent_id, false);
        return;
    case COMMAND_APPROVAL_DECIDE:
    case COMMAND_APPROVAL_EXPIRE:
        approval_decide_names(ws, &cmd->in.approval);
        return;
    case COMMAND_CLAIM:
        dispatch_claim_names(ws, &cmd->in.delivery.ref, cmd->in.delivery.agent_id);
        return;
    case COMMAND_DELIVERED:
    case COMMAND_RETURN:
        ws_need_execution(ws, &cmd->in.delivery.ref.execution_id);
        return;
    case COMMAND_RECOVER:
        ws_need_execution(ws, &cmd->in.recover.execution_id);
        return;
    case COMMAND_RECLAIM:
        ws_need_execution(ws, &cmd->in.reclaim);
        return;
    }
}

void command_decide(struct working_set *ws, struct command *cmd)
{
    struct err *e = &cmd->err;

    e->code = ERR_NONE;
    switch (cmd->type) {
    case COMMAND_CREATE:
        cmd->verdict = execution_create(ws, &cmd->in.create, &cmd->out.created, e);
        return;
    case COMMAND_CANCEL:
        cmd->verdict = execution_cancel(ws, &cmd->in.cancel, e);
        return;
    case COMMAND_FINISH:
        cmd->verdict = execution_finish(ws, &cmd->in.finish, e);
        return;
    case COMMAND_SUBMIT:
        cmd->verdict = step_submit(ws, &cmd->in.submit, &cmd->out.step, e);
        return;
    case COMMAND_SETTLE:
        cmd->verdict = step_settle(ws, &cmd->in.settle, &cmd->out.step, e);
        return;
    case COMMAND_DELTA:
        cmd->verdict = step_delta(ws, &cmd->in.delta, e);
        return;
    case COMMAND_HEARTBEAT:
        cmd->verdict = lease_heartbeat(ws, &cmd->in.lease, e);
        return;
    case COMMAND_RELEASE:
        cmd->verdict = lease_release(ws, &cmd->in.lease, e);
        return;
    case COMMAND_SUSPEND:
        cmd->verdict = lease_suspend(ws, &cmd->in.lease, &cmd->out.suspended, e);
        return;
    case COMMAND_AGENT_REGISTER:
        cmd->verdict = agent_register(ws, &cmd->in.agent_register, e);
        return;
    case COMMAND_AGENT_DESCRIBE:
        cmd->verdict = agent_describe(ws, &cmd->in.agent_describe, e);
        return;
    case COMMAND_AGENT_REMOVE:
        cmd->verdict = agent_remove(ws, cmd->in.agent_remove, e);
        return;
    case COMMAND_ADMIT:
        cmd->verdict = session_admit(ws, cmd->in.admit, e);
        return;
    case COMMAND_POLICY_SET:
        cmd->verdict = agent_set_policy(ws, &cmd->in.policy_set, e);
        return;
    case COMMAND_APPROVAL_DECIDE:
        cmd->verdict = approval_decide(ws, &cmd->in.approval, &cmd->out.approval, e);
        return;
    case COMMAND_APPROVAL_EXPIRE:
        cmd->verdict = approval_expire(ws, &cmd->in.approval, e);
        return;
    case COMMAND_CLAIM:
        cmd->verdict = dispatch_claim(ws, &cmd->in.delivery.ref, &cmd->out.claimed, e);
        return;
    case COMMAND_DELIVERED:
        cmd->verdict = dispatch_delivered(ws, &cmd->in.delivery.ref, cmd->in.delivery.acked, e);
        return;
    case COMMAND_RETURN:
        cmd->verdict = dispatch_return(ws, &cmd->in.delivery.ref, e);
        return;
    case COMMAND_RECOVER:
        cmd->verdict =
            dispatch_recover(ws, &cmd->in.recover.execution_id, cmd->in.recover.at_start, e);
        return;
    case COMMAND_RECLAIM:
        cmd->verdict = lease_reclaim(ws, &cmd->in.reclaim, &cmd->out.reclaimed, e);
        return;
    }
}

static bool keep(struct command *cmd, struct str *s)
{
    struct str copy = arena_str(cmd->arena, *s);

    if (str_present(*s) && copy.p == NULL)
        return false;
    *s = copy;
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
               keep(cmd, &step->rule_id);
    if (cmd->type == COMMAND_CLAIM && claimed->claimed)
        return keep(cmd, &claimed->agent_id) && keep(cmd, &claimed->webhook_url) &&
               keep(cmd, &claimed->secret);
    return true;
}

static uint64_t route_execution(const struct uuid *id)
{
    return hash_bytes(str_make(id->b, sizeof(id->b)));
}

uint64_t command_route(const struct command *cmd)
{
    switch (cmd->type) {
    case COMMAND_CREATE:
        return hash_bytes(cmd->in.create.agent_id);
    case COMMAND_CANCEL:
        return route_execution(&cmd->in.cancel.execution_id);
    case COMMAND_FINISH:
        return route_execution(&cmd->in.finish.execution_id);
    case COMMAND_SUBMIT:
        return route_execution(&cmd->in.submit.execution_id);
    case COMMAND_SETTLE:
        return route_execution(&cmd->in.settle.execution_id);
    case COMMAND_DELTA:
        return route_execution(&cmd->in.delta.execution_id);
    case COMMAND_HEARTBEAT:
    case COMMAND_RELEASE:
    case COMMAND_SUSPEND:
        return route_execution(&cmd->in.lease.execution_id);
    case COMMAND_AGENT_REGISTER:
        return hash_bytes(cmd->in.agent_register.id);
    case COMMAND_AGENT_DESCRIBE:
        return hash_bytes(cmd->in.agent_describe.id);
    case COMMAND_AGENT_REMOVE:
        return hash_bytes(cmd->in.agent_remove);
    case COMMAND_ADMIT:
        return hash_bytes(cmd->in.admit);
    case COMMAND_POLICY_SET:
        return hash_bytes(cmd->in.policy_set.agent_id);
    case COMMAND_APPROVAL_DECIDE:
    case COMMAND_APPROVAL_EXPIRE:
        return route_execution(&cmd->in.approval.execution_id);
    case COMMAND_CLAIM:
    case COMMAND_DELIVERED:
    case COMMAND_RETURN:
        return route_execution(&cmd->in.delivery.ref.execution_id);
    case COMMAND_RECOVER:
        return route_execution(&cmd->in.recover.execution_id);
    case COMMAND_RECLAIM:
        return route_execution(&cmd->in.reclaim);
    }
    return 0;
}
