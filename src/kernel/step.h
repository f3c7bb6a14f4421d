/* SPDX-License-Identifier: Apache-2.0
 * Steps: submissions and their decisions (docs/protocol.md, "Deciding a submission"), outcomes,
 * live deltas. */
#ifndef KERNEL_STEP_H
#define KERNEL_STEP_H

#include "domain/usage.h"
#include "kernel/policy_seam.h"
#include "kernel/resource.h"
#include "kernel/verdict.h"

struct step_submission {
    struct uuid execution_id;
    struct str agent_id; /* who signed */
    struct lease_ref lease;
    enum step_kind kind;
    struct str target;
    struct str args; /* canonical JSON; what is stored and hashed, so that what was decided is what
                        is shown */
    struct hash args_hash;
    struct str raw_args; /* byte for byte as it came; stored */
    enum idempotency idempotency;
    const struct str *resources; /* keys that it declares; each once */
    size_t n_resources;
    struct tally_ref tally;    /* of this execution and call, with the Idempotency-Key's hash */
    struct policy_found found; /* what was worked out aside; zero at first */
};

struct step_answer {
    enum decision decision;
    bool has_step_id;
    struct hash step_id;
    struct str result,
        error; /* JSON; absent: none. Arena of the set: copy before the group ends. */
    struct str reason, rule_id;
    bool has_approval; /* blocked: a person must decide */
    struct uuid approval_id;
    struct touched_resource *resources; /* proceed: what it touches; group arena */
    size_t n_resources;
    bool decided;                /* the step is new: policy was asked, or overruled */
    bool parked;                 /* blocked: by a rate limit */
    bool limit_passed;           /* its rule has a rate limit, which let it pass */
    struct policy_wanted wanted; /* VERDICT_ASIDE */
    bool usage_missing;          /* an llm_call succeeded without token counts */
};

/* Names what the rule will look at, so that it need not be asked twice. */
void step_submit_names(struct working_set *ws, const struct step_submission *cmd);
MUST_USE
enum verdict step_submit(struct working_set *ws, const struct step_submission *cmd,
                         struct step_answer *answer, struct err *e);

/* For kernel/approval.c: `,"rule_id":…` and `,"policy_hash":…` of a decision's event, each if it is
 * there; and the end of a held step that was not granted, with its event. */
struct str step_decision_members(struct working_set *ws, struct str rule_id,
                                 struct str policy_hash);
void step_deny_held(struct working_set *ws, struct step *step, struct str reason);

struct step_outcome {
    struct uuid execution_id;
    struct str agent_id;
    struct lease_ref lease;
    struct hash step_id;
    bool failed;
    struct str value;   /* the result, or the error object: JSON text, byte for byte */
    struct usage usage; /* what the result carries; counts only when the step is an llm_call */
    struct capture_report report;
};
void step_settle_names(struct working_set *ws, const struct step_outcome *cmd);
MUST_USE
enum verdict step_settle(struct working_set *ws, const struct step_outcome *cmd,
                         struct step_answer *answer, struct err *e);

/* The error of a step whose effect may or may not have happened. */
bool step_error_is_indeterminate(struct str error);
/* For kernel/subagent.c: what settling this step looks at is in the set, else it has been named;
 * and the settling, by the end of its subagent, after which its execution goes on if nothing waits.
 */
MUST_USE bool step_may_settle(struct working_set *ws, struct step *step);
void step_settle_subagent(struct working_set *ws, struct step *step, bool failed, struct str value);

/* A piece of a step's live stream: recorded nowhere, but only the owner of an executing step may
 * send one. Renews the lease. */
struct step_delta {
    struct uuid execution_id;
    struct str agent_id;
    struct lease_ref lease;
    bool has_lease; /* the dispatch headers are optional here */
    struct hash step_id;
};
void step_delta_names(struct working_set *ws, const struct step_delta *cmd);
MUST_USE
enum verdict step_delta(struct working_set *ws, const struct step_delta *cmd, struct err *e);

#endif
