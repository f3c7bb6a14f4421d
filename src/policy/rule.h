/* SPDX-License-Identifier: Apache-2.0
 * Inside a compiled bundle: what rules match, and what matching may cost. For the files of this
 * folder. */
#ifndef POLICY_RULE_H
#define POLICY_RULE_H

#include <stdatomic.h>

#include "policy/glob.h"
#include "policy/policy.h"
#include "policy/predicate.h"

/* An argument's predicate. */
struct argument {
    size_t key; /* index into policy.keys */
    struct predicate predicate;
};

/* What is absent, NULL or zero is not checked. */
struct rule_when {
    bool has_kind;
    enum step_kind kind;
    struct glob target; /* absent pattern: not given */
    const struct glob *targets;
    size_t n_targets;
    struct str agent_id;
    const struct str *agent_ids;
    size_t n_agent_ids;
    const struct argument *arguments;
    size_t n_arguments;
};

/* Estimates for policy_is_costly, in nanoseconds. */
struct rule_cost {
    int64_t rules;           /* of walking through them */
    int64_t per_target_byte; /* of globs that may go back */
    int64_t per_args_byte;   /* of predicates */
};

struct policy {
    atomic_uint references;
    struct arena arena; /* what rules and keys point at */
    struct hash hash;
    enum policy_action default_action; /* allow or deny */
    struct rule *rules;                /* owned, as the next two */
    size_t n_rules;
    struct str *keys; /* of predicates, each once */
    size_t n_keys;
    struct regex **regexes;
    size_t n_regexes;
    size_t instructions; /* of all regexes */
    struct rule_cost cost;
};

size_t policy_bytes(const struct policy *p); /* memory that it holds, about */
#endif
