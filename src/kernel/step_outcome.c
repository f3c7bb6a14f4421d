/* SPDX-License-Identifier: Apache-2.0
 * What becomes of a step that was told to proceed: its outcome, and its live stream until then. */
#include "base/json.h"
#include "kernel/dispatch.h"
#include "kernel/event.h"
#include "kernel/execution.h"
#include "kernel/move.h"
#include "kernel/step_internal.h"

void step_settle_names(struct working_set *ws, const struct step_outcome *cmd)
{
    ws_need_execution(ws, &cmd->execution_id);
    ws_need_step(ws, &cmd->execution_id, &cmd->step_id);
}

/* The step of this execution, or not_found. */
static enum verdict find_step(struct working_set *ws, struct execution *exec,
                              const struct hash *step_id, struct step **out, struct err *e)
{
    if (!ws_knows_step(ws, step_id)) {
        ws_need_step(ws, &exec->id, step_id);
        return VERDICT_NEED;
    }
    *out = ws_step(ws, step_id);
    if (*out == NULL || (*out)->execution != exec)
        return REFUSE(e, ERR_NOT_FOUND, "no such step in this execution");
    return VERDICT_DONE;
}

/* An attempt that got a new step settled has made progress: the row of failed ones before it is
 * broken. */
static void note_progress(struct working_set *ws, struct execution *exec)
{
    if (exec->dispatch == NULL || exec->dispatch->charged == 0 || exec->owner != OWNER_WORKING)
        return;
    exec->dispatch->charged = 0;
    exec->dispatch->charged_since = 0;
    ws_touch_dispatch(ws, exec);
}

/* `,"usage":{…}` of a model call whose answer carried counts. */
static struct str usage_member(struct working_set *ws, struct usage u)
{
    struct buf text = {0};
    struct json_writer w = {.out = &text};
    struct str member;

    if (!usage_known(u))
        return STR("");
    buf_add(&text, STR(",\"usage\":"));
    usage_write(&w, u);
    member = arena_str(&ws->arena, buf_str(&text));
    buf_free(&text);
    return member;
}

/* What budgets are compared with. */
static void count_tokens(struct working_set *ws, const struct step *step)
{
    int64_t sum = usage_add(step->execution->tokens, step->usage);

    if (sum == step->execution->tokens)
        return;
    step->execution->tokens = sum;
    ws_touch_execution(ws, step->execution);
}

static void record_outcome(struct working_set *ws, struct step *step,
                           const struct step_outcome *cmd, struct step_answer *answer)
{
    answer->decision = DECISION_RECORDED;
    step_move(ws, step, cmd->failed ? STEP_FAILED : STEP_SUCCEEDED);
    if (cmd->failed) {
        step->error = cmd->value;
        event_step(ws, step, EVENT_STEP_FAILED, step_error_member(ws, cmd->value));
        resources_settle(ws, step, &cmd->report, step->execution->last_seq);
        return;
    }
    step->result = cmd->value;
    if (step->kind == KIND_LLM_CALL) {
        step->usage = cmd->usage;
        answer->usage_missing = !usage_known(cmd->usage);
        count_tokens(ws, step);
    }
    event_step(ws, step, EVENT_STEP_SUCCEEDED, usage_member(ws, step->usage));
    resources_settle(ws, step, &cmd->report, step->execution->last_seq);
}

bool step_may_settle(struct working_set *ws, struct step *step)
{
    struct execution *exec = step->execution;
    bool known = resources_at_hand(ws, exec);

    if (exec->owner == OWNER_ENDED && exec->dispatch != NULL && !exec->live_known) {
        ws_need_live_steps(ws, &exec->id);
        known = false;
    }
    if (exec->suspended && !exec->pending_known) {
        ws_need_pending(ws, &exec->id);
        known = false;
    }
    return known;
}

/* What an outcome brings about in its execution. */
static void go_on(struct working_set *ws, struct execution *exec)
{
    note_progress(ws, exec);
    if (exec->suspended)
        execution_resume(ws, exec);
    if (exec->owner == OWNER_ENDED)
        dispatch_release_held(ws, exec);
}

void step_settle_subagent(struct working_set *ws, struct step *step, bool failed, struct str value)
{
    struct step_answer ignored;

    record_outcome(ws, step,
                   &(struct step_outcome){.failed = failed, .value = value, .usage = USAGE_NONE},
                   &ignored);
    go_on(ws, step->execution);
}

enum verdict step_settle(struct working_set *ws, const struct step_outcome *cmd,
                         struct step_answer *answer, struct err *e)
{
    struct execution *exec;
    struct step *step;
    enum verdict v = agent_reaches(ws, &cmd->execution_id, cmd->agent_id, &exec, e);

    if (v != VERDICT_DONE)
        return v;
    v = find_step(ws, exec, &cmd->step_id, &step, e);
    if (v != VERDICT_DONE)
        return v;
    *answer = (struct step_answer){.decision = DECISION_EXECUTION_TERMINAL};
    if (execution_status_is_terminal(exec->status))
        return VERDICT_DONE;
    v = lease_owns(ws, exec, &cmd->lease, e);
    if (v != VERDICT_DONE)
        return v;
    if (step_status_is_terminal(step->status)) { /* a recorded outcome is final: say what it was */
        lease_renew(ws, exec);
        step_answer_replay(answer, step);
        return VERDICT_DONE;
    }
    if (step->status != STEP_EXECUTING)
        return REFUSE(e, ERR_CONFLICT, "the step is %s, not executing: it has no outcome yet",
                      step_status_name(step->status).p);
    if (!step_may_settle(ws, step))
        return VERDICT_NEED;
    lease_renew(ws, exec);
    record_outcome(ws, step, cmd, answer);
    go_on(ws, exec);
    return VERDICT_DONE;
}

/* ---- live deltas ---- */

void step_delta_names(struct working_set *ws, const struct step_delta *cmd)
{
    ws_need_execution(ws, &cmd->execution_id);
    ws_need_step(ws, &cmd->execution_id, &cmd->step_id);
}

enum verdict step_delta(struct working_set *ws, const struct step_delta *cmd, struct err *e)
{
    struct execution *exec;
    struct step *step;
    enum verdict v = agent_reaches(ws, &cmd->execution_id, cmd->agent_id, &exec, e);

    if (v != VERDICT_DONE)
        return v;
    v = find_step(ws, exec, &cmd->step_id, &step, e);
    if (v != VERDICT_DONE)
        return v;
    if (execution_status_is_terminal(exec->status))
        return REFUSE(e, ERR_EXECUTION_TERMINAL, "the execution has already ended");
    if (cmd->has_lease) {
        v = lease_owns(ws, exec, &cmd->lease, e);
        if (v != VERDICT_DONE)
            return v;
    }
    if (step->status != STEP_EXECUTING)
        return REFUSE(e, ERR_CONFLICT, "the step is %s, not executing",
                      step_status_name(step->status).p);
    if (cmd->has_lease)
        lease_renew(ws, exec);
    return VERDICT_DONE;
}
