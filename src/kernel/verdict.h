/* SPDX-License-Identifier: Apache-2.0
 * What a rule returns. Rules check everything before they change anything. */
#ifndef KERNEL_VERDICT_H
#define KERNEL_VERDICT_H

#include "kernel/working_set.h"

enum verdict {
    VERDICT_DONE,    /* decided; the answer is filled and the set may have changed */
    VERDICT_NEED,    /* ws->need names rows that are not loaded yet; nothing has changed */
    VERDICT_REFUSED, /* `e` says why; nothing has changed */
    VERDICT_ASIDE,   /* the answer names work that no other command may wait for; nothing has
                        changed. Decide again with its result. */
};

/* The attempt that an agent's call comes from. */
struct lease_ref {
    struct uuid dispatch_id;
    int64_t attempt;
};

/* Sets the error and returns VERDICT_REFUSED. */
#define REFUSE(e, code, ...) (err_set((e), (code), __VA_ARGS__), VERDICT_REFUSED)

/* The first checks of every agent's call, in the order of the protocol: existence, whose execution
 * it is. DONE: *exec is set. */
MUST_USE
enum verdict agent_reaches(struct working_set *ws, const struct uuid *execution_id,
                           struct str agent_id, struct execution **exec, struct err *e);

/* The lease: the attempt claimed last for the execution owns it, until it is reclaimed. DONE, NEED
 * (an old dispatch's id must be looked up), or REFUSED: ERR_LEASE_SUPERSEDED for a dispatch of this
 * execution that owns nothing any more, ERR_VALIDATION for an id that is no dispatch of this
 * execution. */
MUST_USE
enum verdict lease_owns(struct working_set *ws, struct execution *exec, const struct lease_ref *ref,
                        struct err *e);

/* The three checks that most agents' calls begin with: it reaches the execution, which has not
 * ended (else REFUSED, ERR_EXECUTION_TERMINAL), and owns its lease. */
MUST_USE
enum verdict agent_owns_live(struct working_set *ws, const struct uuid *execution_id,
                             struct str agent_id, const struct lease_ref *ref,
                             struct execution **exec, struct err *e);

/* A good call under the lease: renews it, and stands for the ack if the webhook has not been
 * answered yet. Call it after the last check, before the call's own events. Of an ended delivery it
 * notes that calls of it still run. */
void lease_renew(struct working_set *ws, struct execution *exec);

#endif
