/* SPDX-License-Identifier: Apache-2.0
 * The one place where a new step is decided: which bundle counts, what it says, and what its rate
 * limit and budget make of that. Without a bundle everything is allowed. */
#ifndef KERNEL_POLICY_SEAM_H
#define KERNEL_POLICY_SEAM_H

#include "kernel/working_set.h"
#include "policy/policy.h"

/* Work of a decision that is done aside, off the executor's thread. */
enum policy_work {
    POLICY_WORK_NONE,
    POLICY_WORK_COMPILE, /* bring the agent's bundle into the cache */
    POLICY_WORK_MATCH,   /* evaluate a costly bundle */
    POLICY_WORK_JUDGE,   /* ask the judging model of the rule that matched */
};
struct policy_wanted {
    enum policy_work work;
    struct hash hash; /* of the bundle */
    bool own;         /* it is the execution's own, not its agent's */
    int rule;         /* JUDGE: the rule that matched */
};
/* What came of it; valid for that bundle alone. A decision that finds another bundle begins anew.
 */
struct policy_found {
    bool matched;
    struct hash hash;
    int rule; /* index, or POLICY_NO_RULE */
    bool judged;
    enum policy_action judgement; /* allow, deny or require_approval */
    unsigned rounds;              /* how often it was aside */
};

struct policy_question {
    struct execution *execution;
    enum step_kind kind;
    struct str target;
    struct str args; /* canonical */
    const struct hash *step_id;
    const struct policy_found *found;
    bool only_holds; /* nothing starts now: only what a require_approval rule without a rate limit
                        matches is decided */
};

enum policy_outcome {
    OUTCOME_ALLOWED,
    OUTCOME_DENIED,
    OUTCOME_HELD,
    OUTCOME_LIMITED,
    OUTCOME_PARKED,
    OUTCOME_NOT_NOW, /* only_holds, and no rule says to just hold */
};

/* Strings are static or the group's arena. */
struct policy_answer {
    enum policy_outcome outcome;
    struct str rule_id;
    struct str policy_hash; /* hex; absent without a bundle */
    struct str reason;      /* denied, limited */
    struct str approvers, message;
    int64_t approval_timeout_us; /* 0: the default */
    int64_t parked_until;        /* parked: wall */
    bool limit_passed;           /* the rule has a rate limit, and a token was there */
    /* What the outcome takes, by policy_take: nothing has changed before. */
    struct bucket *bucket; /* NULL: none */
    int64_t bucket_full_at;
    bool unpark; /* the step had been parked and has come back */
    struct policy_wanted wanted;
};

enum policy_verdict { POLICY_DECIDED, POLICY_NEEDS_ROWS, POLICY_NEEDS_WORK };

/* `exec` NULL: it is not in the set yet. */
void policy_names(struct working_set *ws, const struct execution *exec, struct str agent_id);
/* Decides and changes nothing. NEEDS_ROWS: named in the set. NEEDS_WORK: out->wanted. */
enum policy_verdict policy_decide(struct working_set *ws, const struct policy_question *q,
                                  struct policy_answer *out);
/* Takes the token, notes or forgets the parking. Once, after policy_decide, when its answer is
 * recorded. */
void policy_take(struct working_set *ws, const struct policy_question *q,
                 const struct policy_answer *answer);

#endif
