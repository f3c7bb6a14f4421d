/* SPDX-License-Identifier: Apache-2.0
 * Approvals: a person's decision that one step waits for (docs/policy.md, "Approvals"). Exactly one
 * of granted, denied and expired happens, whatever comes at once. */
#ifndef KERNEL_APPROVAL_H
#define KERNEL_APPROVAL_H

#include "kernel/verdict.h"

/* Holds a step that was just proposed: step.awaiting_approval, approval.requested, and the
 * execution blocks. `decision` members are copied. */
struct approval_request {
    struct str approvers, message; /* absent: none */
    int64_t timeout_us;            /* 0: the kernel's default */
    struct str rule_id, policy_hash;
};
struct approval *approval_open(struct working_set *ws, struct step *step,
                               const struct approval_request *request);
/* The pending one that gates this step; NULL when there is none. The execution's pending ones must
 * be known. */
struct approval *approval_of_step(const struct execution *exec, const struct hash *step_id);
/* What the end of an execution does to its pending approvals, oldest first: approval.expired and
 * step.denied with execution_cancelled. Pending approvals and live steps must be known. */
void approvals_end(struct working_set *ws, struct execution *exec);

struct approval_decision {
    struct uuid execution_id, approval_id; /* the execution's: approvals are looked up before */
    bool granted;                          /* decide */
    struct str decided_by;                 /* decide: the name that counts; never empty */
    struct str
        asserted_by;      /* decide: who stated it; absent: the caller decided in their own name */
    struct str rationale; /* absent: none */
};
struct approval_decided {
    bool late; /* it was already over, or ran out with this very call: `err` says what won, and how
                  (ERR_CONFLICT, with status and decided_by in the details) */
};
void approval_decide_names(struct working_set *ws, const struct approval_decision *cmd);
/* Grants or denies. REFUSED: ERR_NOT_FOUND; ERR_FORBIDDEN, not one of its approvers. DONE with
 * `late`: answer the error that `e` holds, after the commit. */
MUST_USE
enum verdict approval_decide(struct working_set *ws, const struct approval_decision *cmd,
                             struct approval_decided *answer, struct err *e);
/* Expires it if it is pending and its time is over; else does nothing. */
MUST_USE
enum verdict approval_expire(struct working_set *ws, const struct approval_decision *cmd,
                             struct err *e);

#endif
