/* SPDX-License-Identifier: Apache-2.0
 * The rules of steps. The comments number the cases as docs/protocol.md does under "Deciding a
 * submission". */
#include "kernel/step_internal.h"

#include "base/clock.h"
#include "base/json.h"
#include "kernel/approval.h"
#include "kernel/dispatch.h"
#include "kernel/event.h"
#include "kernel/execution.h"
#include "kernel/move.h"

static const struct str INDETERMINATE_ERROR = STR_INIT(
    "{\"reason\":\"indeterminate\",\"message\":\"the previous attempt ended while this step was "
    "executing; its effect may or may not have happened\"}");
static const struct str FORK_EFFECT_RULE = STR_INIT("__fork_effect");
static const struct str FORK_EFFECT_MESSAGE = STR_INIT(
    "this is a fork: the execution that it was forked from may have had this effect already, and "
    "granting it has it again");
static const struct str INDETERMINATE_RULE = STR_INIT("__indeterminate_retry");
static const struct str INDETERMINATE_REASON =
    STR_INIT("prior attempt outcome unknown; retry refused");

struct str step_error_member(struct working_set *ws, struct str error)
{
    return arena_printf(&ws->arena, ",\"error\":%.*s", STR_ARG(error));
}

/* {"reason":"…"} */
static struct str reason_error(struct working_set *ws, struct str reason)
{
    struct buf text = {0};
    struct str json;

    buf_add(&text, STR("{\"reason\":"));
    json_add_string(&text, reason);
    buf_add_byte(&text, '}');
    json = arena_str(&ws->arena, buf_str(&text));
    buf_free(&text);
    return json;
}

static struct str reason_of(struct working_set *ws, struct str error)
{
    struct str reason = json_get(error, STR("reason"), &ws->arena);

    return str_present(reason) ? json_string(reason, &ws->arena) : STR("policy_denied");
}

static void answer_step(struct step_answer *answer, enum decision decision, const struct step *step)
{
    answer->decision = decision;
    answer->has_step_id = true;
    answer->step_id = step->id;
}

void step_answer_replay(struct step_answer *answer, const struct step *step)
{
    answer_step(answer, DECISION_REPLAY, step);
    if (step->status == STEP_SUCCEEDED)
        answer->result = step->result;
    else
        answer->error = step->error;
}

static void answer_denied(struct working_set *ws, struct step_answer *answer,
                          const struct step *step)
{
    answer_step(answer, DECISION_DENIED, step);
    answer->reason = reason_of(ws, step->error);
    answer->rule_id = step->rule_id;
}

/* ---- submissions ---- */

void step_submit_names(struct working_set *ws, const struct step_submission *cmd)
{
    const struct execution *exec = ws_execution(ws, &cmd->execution_id);

    ws_need_execution(ws, &cmd->execution_id);
    ws_need_tally(ws, &cmd->tally);
    if (exec == NULL || exec->claim <= 1) /* else it is probably a replay, which nobody decides */
        policy_names(ws, exec, cmd->agent_id);
}

static struct call submission_call(const struct step_submission *cmd)
{
    return (struct call){step_kind_name(cmd->kind), cmd->target, cmd->args_hash};
}

static void begin_executing(struct working_set *ws, struct step *step,
                            const struct step_submission *cmd, struct step_answer *answer)
{
    struct str keys = resource_keys_json(ws, cmd->resources, cmd->n_resources), members;

    step_move(ws, step, STEP_EXECUTING);
    if (!str_eq(step->affects, keys) || str_present(keys) != str_present(step->affects))
        ws_set_text(&step->affects, keys);
    members = resources_touch(ws, step, step->execution->last_seq + 1, &answer->resources,
                              &answer->n_resources);
    event_step(ws, step, EVENT_STEP_EXECUTING, members);
    answer_step(answer, DECISION_PROCEED, step);
}

/* A step may declare only what is registered; of one that is decided already nobody asks. */
static enum verdict check_resources(struct working_set *ws, struct execution *exec,
                                    const struct step_submission *cmd, struct err *e)
{
    if (!resources_at_hand(ws, exec))
        return VERDICT_NEED;
    for (size_t i = 0; i < cmd->n_resources; i++)
        if (resource_find(exec, cmd->resources[i]) == NULL)
            return REFUSE(e, ERR_VALIDATION,
                          "resources: no resource %.*s is registered in this execution",
                          STR_ARG(cmd->resources[i]));
    return VERDICT_DONE;
}

/* The effect of an at_most_once step may have happened: nobody may run it again, in whatever
 * disguise. */
static void fail_indeterminate(struct working_set *ws, struct step *step,
                               const struct call_key *call, struct step_answer *answer)
{
    struct execution *exec = step->execution;

    step_move(ws, step, STEP_FAILED);
    step->error = INDETERMINATE_ERROR;
    event_step(ws, step, EVENT_STEP_FAILED, step_error_member(ws, step->error));
    resources_settle(ws, step, NULL, exec->last_seq);
    buf_add(&exec->indeterminate, str_make(call->b, sizeof(call->b)));
    ws_touch_execution(ws, exec);
    step_answer_replay(answer, step);
}

bool step_error_is_indeterminate(struct str error)
{
    return str_eq(error, INDETERMINATE_ERROR);
}

static bool is_indeterminate(const struct execution *exec, const struct call_key *call)
{
    struct str keys = buf_str(&exec->indeterminate);

    for (size_t at = 0; at + sizeof(call->b) <= keys.n; at += sizeof(call->b))
        if (memcmp(keys.p + at, call->b, sizeof(call->b)) == 0)
            return true;
    return false;
}

/* Nothing is recorded: the call stops, and comes back under the next delivery. */
static enum verdict answer_blocked(struct step_answer *answer)
{
    answer->decision = DECISION_EXECUTION_BLOCKED;
    return VERDICT_DONE;
}

static enum verdict answer_awaiting(struct working_set *ws, const struct step *step,
                                    struct step_answer *answer)
{
    const struct approval *approval;

    if (!step->execution->pending_known) {
        ws_need_pending(ws, &step->execution->id);
        return VERDICT_NEED;
    }
    approval = approval_of_step(step->execution, &step->id);
    ASSERT(approval != NULL); /* a step awaits exactly as long as its approval is pending */
    answer_step(answer, DECISION_BLOCKED, step);
    answer->has_approval = true;
    answer->approval_id = approval->id;
    return VERDICT_DONE;
}

static enum verdict run_existing(struct working_set *ws, struct step *step,
                                 const struct step_submission *cmd, struct step_answer *answer)
{
    if (step->execution->owner == OWNER_ENDED) /* case 4: nothing starts under an ended delivery */
        return answer_blocked(answer);
    lease_renew(ws, step->execution);
    if (step->status != STEP_EXECUTING || /* one that was approved, or only proposed, never ran */
        (step->idempotency != AT_MOST_ONCE && cmd->idempotency != AT_MOST_ONCE)) {
        begin_executing(ws, step, cmd, answer);
    } else if (uuid_is_nil(&step->subagent)) { /* an orphan of an earlier attempt */
        fail_indeterminate(ws, step, &cmd->tally.call, answer);
    } else { /* its subagent will settle it */
        execution_block(ws, step->execution, true);
        answer_step(answer, DECISION_BLOCKED, step);
    }
    return VERDICT_DONE;
}

/* Case 3: the step exists. Its decision stands. */
static enum verdict answer_existing(struct working_set *ws, struct step *step,
                                    const struct step_submission *cmd, struct step_answer *answer)
{
    switch (step->status) {
    case STEP_SUCCEEDED:
    case STEP_FAILED:
        lease_renew(ws, step->execution);
        step_answer_replay(answer, step);
        return VERDICT_DONE;
    case STEP_DENIED:
        lease_renew(ws, step->execution);
        answer_denied(ws, answer, step);
        return VERDICT_DONE;
    case STEP_AWAITING_APPROVAL:
        return answer_awaiting(ws, step, answer);
    case STEP_PROPOSED:
    case STEP_ALLOWED:
    case STEP_EXECUTING:
        return run_existing(ws, step, cmd, answer);
    case STEP_CANCELLED: /* only with its execution, which was looked at before */
        ASSERT(step->status != STEP_CANCELLED);
    }
    return VERDICT_DONE;
}

/* ---- new steps ---- */

static struct step *propose(struct working_set *ws, struct execution *exec,
                            const struct step_submission *cmd, const struct hash *id)
{
    struct step *step = ws_new_step(ws, exec, id);

    step->kind = cmd->kind;
    step->target = str_make(xstrdup(cmd->target), cmd->target.n);
    step->args_hash = cmd->args_hash;
    step->occurrence = ws_tally(exec, &cmd->tally.call);
    step->idempotency = cmd->idempotency;
    step->args = cmd->raw_args;
    ws_set_text(&step->affects, resource_keys_json(ws, cmd->resources, cmd->n_resources));
    step->created_at = ws->now.wall_us;
    event_step(ws, step, EVENT_STEP_PROPOSED, STR(""));
    return step;
}

struct str step_decision_members(struct working_set *ws, struct str rule_id, struct str policy_hash)
{
    struct buf text = {0};
    struct str members;

    if (str_present(rule_id)) {
        buf_add(&text, STR(",\"rule_id\":"));
        json_add_string(&text, rule_id);
    }
    if (str_present(policy_hash)) {
        buf_add(&text, STR(",\"policy_hash\":"));
        json_add_string(&text, policy_hash);
    }
    members = arena_str(&ws->arena, buf_str(&text));
    buf_free(&text);
    return members;
}

static void deny(struct working_set *ws, struct step *step, struct str reason,
                 struct str decision_members)
{
    step->error = reason_error(ws, reason);
    step_move(ws, step, STEP_DENIED);
    event_step(ws, step, EVENT_STEP_DENIED,
               arena_printf(&ws->arena, "%.*s%.*s", STR_ARG(decision_members),
                            STR_ARG(step_error_member(ws, step->error))));
}

/* It was not a rule that denied it, but the end of the approval that the rule asked for. */
void step_deny_held(struct working_set *ws, struct step *step, struct str reason)
{
    deny(ws, step, reason, STR(""));
}

static void deny_new(struct working_set *ws, struct step *step, const struct policy_answer *policy,
                     struct step_answer *answer)
{
    step->rule_id = arena_str(&ws->arena, policy->rule_id);
    deny(ws, step, policy->reason, step_decision_members(ws, policy->rule_id, policy->policy_hash));
    answer_denied(ws, answer, step);
}

static void hold_new(struct working_set *ws, struct step *step, const struct policy_answer *policy,
                     struct step_answer *answer)
{
    const struct approval *approval = approval_open(ws, step,
                                                    &(struct approval_request){
                                                        .approvers = policy->approvers,
                                                        .message = policy->message,
                                                        .timeout_us = policy->approval_timeout_us,
                                                        .rule_id = policy->rule_id,
                                                        .policy_hash = policy->policy_hash,
                                                    });

    answer_step(answer, DECISION_BLOCKED, step);
    answer->has_approval = true;
    answer->approval_id = approval->id;
}

/* Over a rate limit: no step is recorded, but the log says that it was tried. */
static void limit_new(struct working_set *ws, struct execution *exec,
                      const struct step_submission *cmd, const struct hash *id,
                      const struct policy_answer *policy)
{
    struct step shown = {.id = *id, .execution = exec, .kind = cmd->kind, .target = cmd->target};
    struct buf members = {0};

    buf_add(&members, step_decision_members(ws, policy->rule_id, policy->policy_hash));
    if (policy->outcome == OUTCOME_PARKED) {
        buf_add(&members, STR(",\"until\":\""));
        clock_format_rfc3339(&members, policy->parked_until);
        buf_add_byte(&members, '"');
    }
    event_step(ws, &shown, EVENT_STEP_RATE_LIMITED, buf_str(&members));
    buf_free(&members);
}

static void allow_new(struct working_set *ws, struct step *step, const struct step_submission *cmd,
                      const struct policy_answer *policy, struct step_answer *answer)
{
    event_step(ws, step, EVENT_STEP_ALLOWED,
               step_decision_members(ws, policy->rule_id, policy->policy_hash));
    begin_executing(ws, step, cmd, answer);
}

/* The decision is made: record it. */
static void record_decision(struct working_set *ws, struct execution *exec,
                            const struct step_submission *cmd, const struct hash *id,
                            const struct policy_answer *policy, struct step_answer *answer)
{
    answer->decided = true;
    answer->limit_passed = policy->limit_passed;
    lease_renew(ws, exec);
    switch (policy->outcome) {
    case OUTCOME_ALLOWED:
        allow_new(ws, propose(ws, exec, cmd, id), cmd, policy, answer);
        break;
    case OUTCOME_DENIED:
        deny_new(ws, propose(ws, exec, cmd, id), policy, answer);
        break;
    case OUTCOME_HELD:
        hold_new(ws, propose(ws, exec, cmd, id), policy, answer);
        break;
    case OUTCOME_LIMITED:
        limit_new(ws, exec, cmd, id, policy);
        answer->decision = DECISION_RATE_LIMITED;
        answer->reason = policy->reason;
        answer->rule_id = policy->rule_id;
        return;
    case OUTCOME_PARKED:
        limit_new(ws, exec, cmd, id, policy);
        dispatch_park(ws, exec, policy->parked_until);
        answer->decision = DECISION_BLOCKED;
        answer->parked = true;
        return;
    case OUTCOME_NOT_NOW:
        ASSERT(policy->outcome != OUTCOME_NOT_NOW);
    }
    ws_count_submission(ws, exec, &cmd->tally, id);
}

/* The source of a fork may have had this effect behind the fork point: a person must know. */
static void hold_effect_of_fork(const struct execution *exec, const struct step_submission *cmd,
                                struct policy_answer *policy)
{
    if (!exec->forked || cmd->idempotency != AT_MOST_ONCE || policy->outcome != OUTCOME_ALLOWED)
        return;
    policy->outcome = OUTCOME_HELD;
    policy->rule_id = FORK_EFFECT_RULE;
    policy->message = FORK_EFFECT_MESSAGE;
}

/* Case 5: a new step is decided, and the decision recorded. */
static enum verdict decide_new(struct working_set *ws, struct execution *exec,
                               const struct step_submission *cmd, const struct hash *id,
                               struct step_answer *answer)
{
    const struct policy_question question = {
        .execution = exec,
        .kind = cmd->kind,
        .target = cmd->target,
        .args = cmd->args,
        .step_id = id,
        .found = &cmd->found,
        .only_holds = exec->owner == OWNER_ENDED,
    };
    struct policy_answer policy = {
        .outcome = OUTCOME_DENIED, .rule_id = INDETERMINATE_RULE, .reason = INDETERMINATE_REASON};
    bool repeats_unknown =
        cmd->idempotency == AT_MOST_ONCE && is_indeterminate(exec, &cmd->tally.call);

    /* Case 4: while it is blocked, what else a person must decide is asked for in one go. */
    if (question.only_holds && (exec->status != EXECUTION_BLOCKED || repeats_unknown))
        return answer_blocked(answer);
    if (!repeats_unknown) {
        switch (policy_decide(ws, &question, &policy)) {
        case POLICY_NEEDS_ROWS:
            return VERDICT_NEED;
        case POLICY_NEEDS_WORK:
            answer->wanted = policy.wanted;
            return VERDICT_ASIDE;
        case POLICY_DECIDED:
            break;
        }
        if (policy.outcome == OUTCOME_NOT_NOW)
            return answer_blocked(answer);
        policy_take(ws, &question, &policy);
        hold_effect_of_fork(exec, cmd, &policy);
    }
    record_decision(ws, exec, cmd, id, &policy, answer);
    return VERDICT_DONE;
}

/* ---- submissions ---- */

/* The same request again under the same attempt: its answer was lost. It gets what the first one
 * got, or what has become of it; nothing is counted or recorded twice. */
static enum verdict answer_repeat(struct working_set *ws, struct execution *exec,
                                  const struct step_submission *cmd, struct step_answer *answer,
                                  struct err *e)
{
    const struct submission_key *first = ws_submission_key(exec, cmd->tally.key);
    struct step *step;

    if (memcmp(first->call.b, cmd->tally.call.b, sizeof(first->call.b)) != 0)
        return REFUSE(e, ERR_CONFLICT,
                      "this Idempotency-Key was used under this attempt for another kind, target "
                      "or args; use a new key for each call");
    if (!ws_knows_step(ws, &first->step_id)) {
        ws_need_step(ws, &exec->id, &first->step_id);
        return VERDICT_NEED;
    }
    step = ws_step(ws, &first->step_id);
    ASSERT(step != NULL);
    if (step->status != STEP_EXECUTING)
        return answer_existing(ws, step, cmd, answer);
    if (!resources_at_hand(ws, exec))
        return VERDICT_NEED;
    lease_renew(ws, exec);
    if (step->claim != exec->claim) { /* nobody was told to run it: it waits for its subagent */
        answer_step(answer, DECISION_BLOCKED, step);
        return VERDICT_DONE;
    }
    answer_step(answer, DECISION_PROCEED, step);
    resources_touched(ws, step, &answer->resources, &answer->n_resources);
    return VERDICT_DONE;
}

/* Under the first claim of a run each call that has a step was counted: one beyond the count is
 * new, and the index need not be asked. (A fork, whose copied steps nobody counted, must not start
 * with claim 0.) */
static bool certainly_new(const struct working_set *ws, const struct execution *exec,
                          const struct hash *id)
{
    return exec->claim == 1 && !ws_knows_step(ws, id);
}

enum verdict step_submit(struct working_set *ws, const struct step_submission *cmd,
                         struct step_answer *answer, struct err *e)
{
    struct execution *exec;
    struct call call = submission_call(cmd);
    struct step *step;
    struct hash id;
    enum verdict v = agent_reaches(ws, &cmd->execution_id, cmd->agent_id, &exec, e);

    if (v != VERDICT_DONE)
        return v;
    *answer = (struct step_answer){.decision = DECISION_EXECUTION_TERMINAL};
    if (execution_status_is_terminal(exec->status)) /* case 1 */
        return VERDICT_DONE;
    v = lease_owns(ws, exec, &cmd->lease, e); /* case 2 */
    if (v != VERDICT_DONE)
        return v;
    if (exec->counts_lost && exec->owner == OWNER_ENDED)
        return answer_blocked(answer);
    if (!ws_knows_tally(exec, &cmd->tally)) {
        ws_need_tally(ws, &cmd->tally);
        return VERDICT_NEED;
    }
    if (cmd->tally.has_key && ws_submission_key(exec, cmd->tally.key) != NULL)
        return answer_repeat(ws, exec, cmd, answer, e);
    step_id(&exec->id, &call, ws_tally(exec, &cmd->tally.call), &id);
    if (!certainly_new(ws, exec, &id) && !ws_knows_step(ws, &id)) {
        ws_need_step(ws, &exec->id, &id);
        return VERDICT_NEED;
    }
    step = ws_step(ws, &id);
    if (step == NULL || !step_status_is_terminal(step->status)) {
        v = check_resources(ws, exec, cmd, e);
        if (v != VERDICT_DONE)
            return v;
    }
    if (step == NULL)
        return decide_new(ws, exec, cmd, &id, answer);
    v = answer_existing(ws, step, cmd, answer);
    if (v == VERDICT_DONE && answer->decision != DECISION_EXECUTION_BLOCKED)
        ws_count_submission(ws, exec, &cmd->tally, &id);
    return v;
}
