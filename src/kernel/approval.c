/* SPDX-License-Identifier: Apache-2.0 */
#include "kernel/approval.h"

#include "base/json.h"
#include "kernel/event.h"
#include "kernel/execution.h"
#include "kernel/move.h"
#include "kernel/step.h"

/* ---- asking ---- */

struct approval *approval_open(struct working_set *ws, struct step *step,
                               const struct approval_request *request)
{
    struct uuid id = uuid_next(ws->ids, ws->now.wall_us);
    struct approval *approval = ws_new_approval(ws, step->execution, &id);
    int64_t timeout =
        request->timeout_us > 0 ? request->timeout_us : ws->settings->approval_timeout_us;

    approval->step_id = step->id;
    approval->approvers = arena_str(&ws->arena, request->approvers);
    approval->message = arena_str(&ws->arena, request->message);
    approval->created_at = ws->now.wall_us;
    approval->timeout_at = ws->now.wall_us + timeout;
    step->rule_id = arena_str(&ws->arena, request->rule_id);
    step_move(ws, step, STEP_AWAITING_APPROVAL);
    event_step(ws, step, EVENT_STEP_AWAITING_APPROVAL,
               step_decision_members(ws, request->rule_id, request->policy_hash));
    event_approval(ws, approval, EVENT_APPROVAL_REQUESTED);
    execution_block(ws, step->execution, false);
    return approval;
}

struct approval *approval_of_step(const struct execution *exec, const struct hash *step_id)
{
    for (size_t i = 0; i < exec->n_pending; i++)
        if (hash_eq(&exec->pending[i]->step_id, step_id))
            return exec->pending[i];
    return NULL;
}

/* ---- the end of one ---- */

static void settle(struct working_set *ws, struct approval *approval, enum approval_status status,
                   enum event_type event)
{
    approval->status = status;
    ws_touch_approval(ws, approval);
    ws_approval_left_pending(approval);
    event_approval(ws, approval, event);
}

static void expire(struct working_set *ws, struct approval *approval, struct str reason)
{
    settle(ws, approval, APPROVAL_EXPIRED, EVENT_APPROVAL_EXPIRED);
    step_deny_held(ws, ws_step(ws, &approval->step_id), reason);
}

void approvals_end(struct working_set *ws, struct execution *exec)
{
    while (exec->n_pending > 0)
        expire(ws, exec->pending[0], STR("execution_cancelled"));
}

/* ---- deciding ---- */

void approval_decide_names(struct working_set *ws, const struct approval_decision *cmd)
{
    ws_need_execution(ws, &cmd->execution_id);
    ws_need_approval(ws, &cmd->execution_id, &cmd->approval_id);
    ws_need_pending(ws, &cmd->execution_id);
}

/* The approval with its execution and step, or not_found. */
static enum verdict find(struct working_set *ws, const struct approval_decision *cmd,
                         struct approval **out, struct err *e)
{
    struct execution *exec = ws_execution(ws, &cmd->execution_id);
    struct approval *approval = ws_approval(ws, &cmd->approval_id);

    if (!ws_knows_execution(ws, &cmd->execution_id) ||
        (exec != NULL && (!ws_knows_approval(ws, &cmd->approval_id) || !exec->pending_known))) {
        approval_decide_names(ws, cmd);
        return VERDICT_NEED;
    }
    if (exec == NULL || approval == NULL || approval->execution != exec)
        return REFUSE(e, ERR_NOT_FOUND, "no such approval");
    if (approval->status == APPROVAL_PENDING && !ws_knows_step(ws, &approval->step_id)) {
        ws_need_step(ws, &exec->id, &approval->step_id);
        return VERDICT_NEED;
    }
    *out = approval;
    return VERDICT_DONE;
}

static void add_member(struct buf *out, const char *name, struct str value)
{
    buf_printf(out, ",\"%s\":", name);
    json_add_string(out, value);
}

/* The loser is told what won. */
static void set_decided(const struct approval *approval, struct err *e)
{
    struct str status = approval_status_name(approval->status);
    struct buf details = {0};

    if (str_present(approval->decided_by))
        err_set(e, ERR_CONFLICT, "already %.*s by %.*s", STR_ARG(status),
                STR_ARG(approval->decided_by));
    else
        err_set(e, ERR_CONFLICT, "already %.*s", STR_ARG(status));
    buf_printf(&details, "{\"status\":\"%.*s\"", STR_ARG(status));
    if (str_present(approval->decided_by))
        add_member(&details, "decided_by", approval->decided_by);
    buf_add_byte(&details, '}');
    err_details(e, buf_str(&details));
    buf_free(&details);
}

static bool may_decide(struct working_set *ws, const struct approval *approval, struct str name)
{
    struct json_walk walk = {0};
    struct str item;

    if (!str_present(approval->approvers))
        return true;
    while (json_next_item(approval->approvers, &walk, &item))
        if (str_eq(json_string(item, &ws->arena), name))
            return true;
    return false;
}

static void decide(struct working_set *ws, struct approval *approval,
                   const struct approval_decision *cmd)
{
    struct step *step = ws_step(ws, &approval->step_id);

    approval->decided_by = arena_str(&ws->arena, cmd->decided_by);
    approval->asserted_by = arena_str(&ws->arena, cmd->asserted_by);
    approval->rationale = arena_str(&ws->arena, cmd->rationale);
    approval->decided_at = ws->now.wall_us;
    if (cmd->granted) {
        settle(ws, approval, APPROVAL_GRANTED, EVENT_APPROVAL_GRANTED);
        step_move(ws, step, STEP_ALLOWED);
        event_step(ws, step, EVENT_STEP_ALLOWED, STR(""));
    } else {
        settle(ws, approval, APPROVAL_DENIED, EVENT_APPROVAL_DENIED);
        step_deny_held(ws, step,
                       str_present(cmd->rationale) ? cmd->rationale : STR("approval_denied"));
    }
    execution_resume(ws, approval->execution);
}

static void run_out(struct working_set *ws, struct approval *approval)
{
    expire(ws, approval, STR("approval_timeout"));
    execution_resume(ws, approval->execution);
}

enum verdict approval_decide(struct working_set *ws, const struct approval_decision *cmd,
                             struct approval_decided *answer, struct err *e)
{
    struct approval *approval;
    enum verdict v = find(ws, cmd, &approval, e);

    if (v != VERDICT_DONE)
        return v;
    *answer = (struct approval_decided){0};
    if (approval->status == APPROVAL_PENDING && approval->timeout_at > ws->now.wall_us) {
        if (!may_decide(ws, approval, cmd->decided_by))
            return REFUSE(e, ERR_FORBIDDEN, "%.*s is not one of the approvers",
                          STR_ARG(cmd->decided_by));
        decide(ws, approval, cmd);
        return VERDICT_DONE;
    }
    if (approval->status == APPROVAL_PENDING)
        run_out(ws, approval);
    answer->late = true;
    set_decided(approval, e);
    return VERDICT_DONE;
}

enum verdict approval_expire(struct working_set *ws, const struct approval_decision *cmd,
                             struct err *e)
{
    struct approval *approval;
    enum verdict v = find(ws, cmd, &approval, e);

    if (v != VERDICT_DONE)
        return v;
    if (approval->status == APPROVAL_PENDING && approval->timeout_at <= ws->now.wall_us)
        run_out(ws, approval);
    return VERDICT_DONE;
}
