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
    struct uuid spawner;        /* the execution whose step starts it; nil: none does */
    struct hash spawned_step;   /* that step; its hex is the default of idempotency_key */
};
struct execution_created {
    struct uuid id;
    bool existing; /* the idempotency key was used before: this is the execution it made */
};
void execution_create_names(struct working_set *ws, const struct execution_creation *cmd);
MUST_USE
enum verdict execution_create(struct working_set *ws, const struct execution_creation *cmd,
                              struct execution_created *answer, struct err *e);

/* For kernel/session.c and fork.c: execution.created; and what a turn that continues `parent` (nil:
 * none) takes over from it. False: it has been named. */
void execution_created_event(struct working_set *ws, struct execution *exec);
MUST_USE bool execution_inheritance(struct working_set *ws, const struct uuid *parent,
                                    struct inheritance *out);
/* The run begins: its first delivery is queued. `parent` nil: it continues none. */
void execution_start(struct working_set *ws, struct execution *exec, const struct uuid *parent);

/* By a client; past its deadline (then only if the deadline has really passed); or since the one
 * that spawned it has ended (then only if it has). One that has ended already is ERR_CONFLICT. */
enum cancel_cause { CANCEL_BY_CLIENT, CANCEL_BY_DEADLINE, CANCEL_BY_PARENT };
struct execution_cancellation {
    struct uuid execution_id;
    enum cancel_cause cause;
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
 * execution.blocked unless it is blocked already; `suspended`: it waits for subagents too. */
void execution_block(struct working_set *ws, struct execution *exec, bool suspended);
/* Goes on if nothing waits any more: execution.resumed, dispatch.queued. Its pending approvals must
 * be known. */
void execution_resume(struct working_set *ws, struct execution *exec);

#endif
