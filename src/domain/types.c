/* SPDX-License-Identifier: Apache-2.0
 * Names and permitted moves of the model's closed lists. */
#include "domain/types.h"

static const struct str EXECUTION_STATUS[] = {
    [EXECUTION_PENDING] = STR_INIT("pending"), [EXECUTION_RUNNING] = STR_INIT("running"),
    [EXECUTION_BLOCKED] = STR_INIT("blocked"), [EXECUTION_COMPLETED] = STR_INIT("completed"),
    [EXECUTION_FAILED] = STR_INIT("failed"),   [EXECUTION_CANCELLED] = STR_INIT("cancelled"),
};
static const struct str STEP_STATUS[] = {
    [STEP_PROPOSED] = STR_INIT("proposed"),
    [STEP_AWAITING_APPROVAL] = STR_INIT("awaiting_approval"),
    [STEP_ALLOWED] = STR_INIT("allowed"),
    [STEP_EXECUTING] = STR_INIT("executing"),
    [STEP_SUCCEEDED] = STR_INIT("succeeded"),
    [STEP_FAILED] = STR_INIT("failed"),
    [STEP_DENIED] = STR_INIT("denied"),
    [STEP_CANCELLED] = STR_INIT("cancelled"),
};
static const struct str STEP_KIND[] = {
    [KIND_TOOL_CALL] = STR_INIT("tool_call"),
    [KIND_LLM_CALL] = STR_INIT("llm_call"),
    [KIND_LOCAL] = STR_INIT("local"),
};
static const struct str IDEMPOTENCY[] = {
    [SAFE_TO_RETRY] = STR_INIT("safe_to_retry"),
    [AT_MOST_ONCE] = STR_INIT("at_most_once"),
};
static const struct str DISPATCH_STATUS[] = {
    [DISPATCH_QUEUED] = STR_INIT("queued"),
    [DISPATCH_CLAIMED] = STR_INIT("claimed"),
    [DISPATCH_ACKED] = STR_INIT("acked"),
    [DISPATCH_RETIRED] = STR_INIT("retired"),
};
static const struct str APPROVAL_STATUS[] = {
    [APPROVAL_PENDING] = STR_INIT("pending"),
    [APPROVAL_GRANTED] = STR_INIT("granted"),
    [APPROVAL_DENIED] = STR_INIT("denied"),
    [APPROVAL_EXPIRED] = STR_INIT("expired"),
};
static const struct str EVENT_TYPE[] = {
    [EVENT_EXECUTION_CREATED] = STR_INIT("execution.created"),
    [EVENT_EXECUTION_FORKED] = STR_INIT("execution.forked"),
    [EVENT_EXECUTION_STARTED] = STR_INIT("execution.started"),
    [EVENT_EXECUTION_BLOCKED] = STR_INIT("execution.blocked"),
    [EVENT_EXECUTION_RESUMED] = STR_INIT("execution.resumed"),
    [EVENT_EXECUTION_COMPLETED] = STR_INIT("execution.completed"),
    [EVENT_EXECUTION_FAILED] = STR_INIT("execution.failed"),
    [EVENT_EXECUTION_CANCELLED] = STR_INIT("execution.cancelled"),
    [EVENT_STEP_PROPOSED] = STR_INIT("step.proposed"),
    [EVENT_STEP_ALLOWED] = STR_INIT("step.allowed"),
    [EVENT_STEP_DENIED] = STR_INIT("step.denied"),
    [EVENT_STEP_AWAITING_APPROVAL] = STR_INIT("step.awaiting_approval"),
    [EVENT_STEP_RATE_LIMITED] = STR_INIT("step.rate_limited"),
    [EVENT_STEP_EXECUTING] = STR_INIT("step.executing"),
    [EVENT_STEP_SUCCEEDED] = STR_INIT("step.succeeded"),
    [EVENT_STEP_FAILED] = STR_INIT("step.failed"),
    [EVENT_STEP_CANCELLED] = STR_INIT("step.cancelled"),
    [EVENT_RESOURCE_REGISTERED] = STR_INIT("resource.registered"),
    [EVENT_RESOURCE_INITIALIZED] = STR_INIT("resource.initialized"),
    [EVENT_RESOURCE_BOUND] = STR_INIT("resource.bound"),
    [EVENT_RESOURCE_CHECKPOINTED] = STR_INIT("resource.checkpointed"),
    [EVENT_RESOURCE_CHECKPOINT_FAILED] = STR_INIT("resource.checkpoint_failed"),
    [EVENT_APPROVAL_REQUESTED] = STR_INIT("approval.requested"),
    [EVENT_APPROVAL_GRANTED] = STR_INIT("approval.granted"),
    [EVENT_APPROVAL_DENIED] = STR_INIT("approval.denied"),
    [EVENT_APPROVAL_EXPIRED] = STR_INIT("approval.expired"),
    [EVENT_DISPATCH_QUEUED] = STR_INIT("dispatch.queued"),
    [EVENT_DISPATCH_ACKED] = STR_INIT("dispatch.acked"),
    [EVENT_DISPATCH_FAILED] = STR_INIT("dispatch.failed"),
    [EVENT_DISPATCH_DISCARDED] = STR_INIT("dispatch.discarded"),
};
static const struct str DECISION[] = {
    [DECISION_PROCEED] = STR_INIT("proceed"),
    [DECISION_REPLAY] = STR_INIT("replay"),
    [DECISION_DENIED] = STR_INIT("denied"),
    [DECISION_BLOCKED] = STR_INIT("blocked"),
    [DECISION_EXECUTION_BLOCKED] = STR_INIT("execution_blocked"),
    [DECISION_RATE_LIMITED] = STR_INIT("rate_limited"),
    [DECISION_EXECUTION_TERMINAL] = STR_INIT("execution_terminal"),
    [DECISION_RECORDED] = STR_INIT("recorded"),
};

static bool name_parse(const struct str *names, size_t n, struct str s, unsigned *out)
{
    for (size_t i = 0; i < n; i++) {
        if (str_eq(names[i], s)) {
            *out = (unsigned)i;
            return true;
        }
    }
    return false;
}

struct str execution_status_name(enum execution_status s)
{
    return EXECUTION_STATUS[s];
}

struct str step_status_name(enum step_status s)
{
    return STEP_STATUS[s];
}

struct str step_kind_name(enum step_kind k)
{
    return STEP_KIND[k];
}

struct str idempotency_name(enum idempotency i)
{
    return IDEMPOTENCY[i];
}

struct str dispatch_status_name(enum dispatch_status s)
{
    return DISPATCH_STATUS[s];
}

struct str approval_status_name(enum approval_status s)
{
    return APPROVAL_STATUS[s];
}

struct str event_type_name(enum event_type t)
{
    return EVENT_TYPE[t];
}

struct str decision_name(enum decision d)
{
    return DECISION[d];
}

bool execution_status_parse(struct str s, enum execution_status *out)
{
    unsigned i;

    if (!name_parse(EXECUTION_STATUS, COUNT(EXECUTION_STATUS), s, &i))
        return false;
    *out = (enum execution_status)i;
    return true;
}

bool step_status_parse(struct str s, enum step_status *out)
{
    unsigned i;

    if (!name_parse(STEP_STATUS, COUNT(STEP_STATUS), s, &i))
        return false;
    *out = (enum step_status)i;
    return true;
}

bool step_kind_parse(struct str s, enum step_kind *out)
{
    unsigned i;

    if (!name_parse(STEP_KIND, COUNT(STEP_KIND), s, &i))
        return false;
    *out = (enum step_kind)i;
    return true;
}

bool idempotency_parse(struct str s, enum idempotency *out)
{
    unsigned i;

    if (!name_parse(IDEMPOTENCY, COUNT(IDEMPOTENCY), s, &i))
        return false;
    *out = (enum idempotency)i;
    return true;
}

bool dispatch_status_parse(struct str s, enum dispatch_status *out)
{
    unsigned i;

    if (!name_parse(DISPATCH_STATUS, COUNT(DISPATCH_STATUS), s, &i))
        return false;
    *out = (enum dispatch_status)i;
    return true;
}

bool event_type_parse(struct str s, enum event_type *out)
{
    unsigned i;

    if (!name_parse(EVENT_TYPE, COUNT(EVENT_TYPE), s, &i))
        return false;
    *out = (enum event_type)i;
    return true;
}

bool approval_status_parse(struct str s, enum approval_status *out)
{
    unsigned i;

    if (!name_parse(APPROVAL_STATUS, COUNT(APPROVAL_STATUS), s, &i))
        return false;
    *out = (enum approval_status)i;
    return true;
}

bool execution_status_is_terminal(enum execution_status s)
{
    return s == EXECUTION_COMPLETED || s == EXECUTION_FAILED || s == EXECUTION_CANCELLED;
}

bool step_status_is_terminal(enum step_status s)
{
    return s == STEP_SUCCEEDED || s == STEP_FAILED || s == STEP_DENIED || s == STEP_CANCELLED;
}

bool execution_may_move(enum execution_status from, enum execution_status to)
{
    switch (from) { /* no default: the compiler names a state that was forgotten */
    case EXECUTION_PENDING:
        return to == EXECUTION_RUNNING || to == EXECUTION_CANCELLED;
    case EXECUTION_RUNNING:
        return to == EXECUTION_BLOCKED || execution_status_is_terminal(to);
    case EXECUTION_BLOCKED:
        return to == EXECUTION_RUNNING || to == EXECUTION_CANCELLED || to == EXECUTION_FAILED;
    case EXECUTION_COMPLETED:
    case EXECUTION_FAILED:
    case EXECUTION_CANCELLED:
        return false;
    }
    return false;
}

bool step_may_move(enum step_status from, enum step_status to)
{
    switch (from) {
    case STEP_PROPOSED:
        return to == STEP_EXECUTING || to == STEP_DENIED || to == STEP_AWAITING_APPROVAL;
    case STEP_AWAITING_APPROVAL:
        return to == STEP_ALLOWED || to == STEP_DENIED;
    case STEP_ALLOWED:
        return to == STEP_EXECUTING || to == STEP_CANCELLED;
    case STEP_EXECUTING: /* again executing: a re-run */
        return to == STEP_EXECUTING || to == STEP_SUCCEEDED || to == STEP_FAILED ||
               to == STEP_CANCELLED;
    case STEP_SUCCEEDED:
    case STEP_FAILED:
    case STEP_DENIED:
    case STEP_CANCELLED:
        return false;
    }
    return false;
}

bool dispatch_may_move(enum dispatch_status from, enum dispatch_status to)
{
    switch (from) {
    case DISPATCH_QUEUED:
        return to == DISPATCH_CLAIMED || to == DISPATCH_RETIRED;
    case DISPATCH_CLAIMED:
        return to == DISPATCH_ACKED || to == DISPATCH_QUEUED || to == DISPATCH_RETIRED;
    case DISPATCH_ACKED:
        return to == DISPATCH_QUEUED || to == DISPATCH_RETIRED;
    case DISPATCH_RETIRED:
        return false;
    }
    return false;
}
