/* SPDX-License-Identifier: Apache-2.0
 * The closed lists of the model and their names on the wire (docs/events.md), and which moves a
 * state machine allows. Pure. The numbers are this program's own: the store keeps the names. */
#ifndef DOMAIN_TYPES_H
#define DOMAIN_TYPES_H

#include "base/str.h"

enum execution_status {
    EXECUTION_PENDING,
    EXECUTION_RUNNING,
    EXECUTION_BLOCKED,
    EXECUTION_COMPLETED,
    EXECUTION_FAILED,
    EXECUTION_CANCELLED,
};

enum step_status {
    STEP_PROPOSED,
    STEP_AWAITING_APPROVAL,
    STEP_ALLOWED,
    STEP_EXECUTING,
    STEP_SUCCEEDED,
    STEP_FAILED,
    STEP_DENIED,
    STEP_CANCELLED,
};

enum step_kind { KIND_TOOL_CALL, KIND_LLM_CALL, KIND_LOCAL };

enum idempotency { SAFE_TO_RETRY, AT_MOST_ONCE };

enum approval_status { APPROVAL_PENDING, APPROVAL_GRANTED, APPROVAL_DENIED, APPROVAL_EXPIRED };

/* Where a dispatch stands. Queued ones wait for due_at; claimed ones have a webhook in flight;
 * acked ones have an agent at work under a lease; retired ones will never be delivered again. */
enum dispatch_status { DISPATCH_QUEUED, DISPATCH_CLAIMED, DISPATCH_ACKED, DISPATCH_RETIRED };

enum event_type {
    EVENT_EXECUTION_CREATED,
    EVENT_EXECUTION_FORKED,
    EVENT_EXECUTION_STARTED,
    EVENT_EXECUTION_BLOCKED,
    EVENT_EXECUTION_RESUMED,
    EVENT_EXECUTION_COMPLETED,
    EVENT_EXECUTION_FAILED,
    EVENT_EXECUTION_CANCELLED,
    EVENT_STEP_PROPOSED,
    EVENT_STEP_ALLOWED,
    EVENT_STEP_DENIED,
    EVENT_STEP_AWAITING_APPROVAL,
    EVENT_STEP_RATE_LIMITED,
    EVENT_STEP_EXECUTING,
    EVENT_STEP_SUCCEEDED,
    EVENT_STEP_FAILED,
    EVENT_STEP_CANCELLED,
    EVENT_RESOURCE_REGISTERED,
    EVENT_RESOURCE_INITIALIZED,
    EVENT_RESOURCE_BOUND,
    EVENT_RESOURCE_CHECKPOINTED,
    EVENT_RESOURCE_CHECKPOINT_FAILED,
    EVENT_APPROVAL_REQUESTED,
    EVENT_APPROVAL_GRANTED,
    EVENT_APPROVAL_DENIED,
    EVENT_APPROVAL_EXPIRED,
    EVENT_DISPATCH_QUEUED,
    EVENT_DISPATCH_ACKED,
    EVENT_DISPATCH_FAILED,
    EVENT_DISPATCH_DISCARDED,
};

/* What a submission or an outcome is answered with. */
enum decision {
    DECISION_PROCEED,
    DECISION_REPLAY,
    DECISION_DENIED,
    DECISION_BLOCKED,
    DECISION_EXECUTION_BLOCKED,
    DECISION_RATE_LIMITED,
    DECISION_EXECUTION_TERMINAL,
    DECISION_RECORDED, /* outcomes only */
};

/* Names are static. The *_parse functions return false for anything but an exact name. */
struct str execution_status_name(enum execution_status s);
struct str step_status_name(enum step_status s);
struct str step_kind_name(enum step_kind k);
struct str idempotency_name(enum idempotency i);
struct str dispatch_status_name(enum dispatch_status s);
struct str approval_status_name(enum approval_status s);
struct str event_type_name(enum event_type t);
MUST_USE bool event_type_parse(struct str s, enum event_type *out);
struct str decision_name(enum decision d);
MUST_USE bool execution_status_parse(struct str s, enum execution_status *out);
MUST_USE bool step_status_parse(struct str s, enum step_status *out);
MUST_USE bool step_kind_parse(struct str s, enum step_kind *out);
MUST_USE bool idempotency_parse(struct str s, enum idempotency *out);
MUST_USE bool dispatch_status_parse(struct str s, enum dispatch_status *out);
MUST_USE bool approval_status_parse(struct str s, enum approval_status *out);

bool execution_status_is_terminal(enum execution_status s);
bool step_status_is_terminal(enum step_status s);
/* One function decides; kernel/move.c is the only one that moves. */
bool execution_may_move(enum execution_status from, enum execution_status to);
bool step_may_move(enum step_status from, enum step_status to);
bool dispatch_may_move(enum dispatch_status from, enum dispatch_status to);

#endif
