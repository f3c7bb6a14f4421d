/* SPDX-License-Identifier: Apache-2.0
 * Executions: created, ended by their agent, cancelled. */
#ifndef KERNEL_EXECUTION_H
#define KERNEL_EXECUTION_H

#include "kernel/verdict.h"

struct execution_creation {
    struct str agent_id;
    struct str input;           /* JSON; absent: null */
    struct str idempotency_key; /* absent: none */
    struct str created_by;      /* the caller's own name */
    struct str on_behalf_of;    /* absent: none */
    struct str session;         /* absent: none */
    struct uuid parent;         /* nil: the session's, if any */
};
struct execution_created {
    struct uuid id;
    bool existing; /* the idempotency key was used before: this is the execution it made */
};
void execution_create_names(struct working_set *ws, const struct execution_creation *cmd);
MUST_USE
enum verdict execution_create(struct working_set *ws, const struct execution_creation *cmd,
                              struct execution_created *answer, struct err *e);

/* The run begins: its first delivery is queued. `parent` nil: it continues none. */
void execution_start(struct working_set *ws, struct execution *exec, const struct uuid *parent);

/* By a client, or past its deadline (then only if the deadline has really passed). */
struct execution_cancellation {
    struct uuid execution_id;
    bool deadline;
};
void execution_cancel_names(struct working_set *ws, const struct execution_cancellation *cmd);
MUST_USE
enum verdict execution_cancel(struct working_set *ws, const struct execution_cancellation *cmd,
                              struct err *e);

/* The agent's final word. */
struct execution_finish {
    struct uuid execution_id;
    struct str agent_id;
    struct lease_ref lease;
    bool failed;
    struct str output, state; /* JSON; absent: none */
    struct str error;         /* failed: text */
};
void execution_finish_names(struct working_set *ws, const struct execution_finish *cmd);
MUST_USE
enum verdict execution_finish(struct working_set *ws, const struct execution_finish *cmd,
                              struct err *e);

/* Ends it by the kernel's own decision: event execution.failed with the reason, then its pending
 * approvals. If it is blocked those must be known. */
void execution_fail(struct working_set *ws, struct execution *exec, struct str reason);

/* An open call of this delivery waits: the delivery ends, its attempt keeps the ownership. Event
 * execution.blocked unless it is blocked already. */
void execution_block(struct working_set *ws, struct execution *exec);
/* Goes on if nothing waits any more: execution.resumed, dispatch.queued. Its pending approvals must
 * be known. */
void execution_resume(struct working_set *ws, struct execution *exec);

#endif
