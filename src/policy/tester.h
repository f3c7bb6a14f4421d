/* SPDX-License-Identifier: Apache-2.0
 * Tests of a bundle: cases with the decision they expect, read from YAML (`rebuno policy test`) or
 * JSON (the API), run, and written as results. Pure. */
#ifndef POLICY_TESTER_H
#define POLICY_TESTER_H

#include "base/json.h"
#include "policy/policy.h"

struct policy_case {
    struct str name;     /* absent: none */
    struct str agent_id; /* who is said to submit it */
    enum step_kind kind;
    struct str target;
    struct str args; /* canonical JSON; absent: none were given (they count as null) */
    bool expects;    /* `expect` was given */
    enum policy_action expect;
    struct str expect_rule; /* absent: any */
    /* Of a recorded step (a backtest): absent or nil otherwise. */
    struct str execution_id, step_id, was_rule;
};

/* The case file's YAML: `agent_id` for all, and `cases`. Slices in the arena. Unknown keys are
 * refused, with file, line and column. */
MUST_USE bool policy_cases_load(struct str yaml, const char *name, struct arena *a,
                                struct policy_case **out, size_t *n, struct err *e);
/* The API's `cases`: a JSON list of objects with the same keys, `agent_id` optional. */
MUST_USE bool policy_cases_read(struct str json, struct str agent_id, struct arena *a,
                                struct policy_case **out, size_t *n, struct err *e);

struct policy_result {
    struct policy_match match;
    bool pass;
    struct str failure; /* in words; absent when it passed. Arena. */
};
void policy_case_run(const struct policy *p, const struct policy_case *c, struct arena *a,
                     struct policy_result *out);
/* One entry of `results` (docs/policy.md). */
void policy_result_write(struct json_writer *w, const struct policy_case *c,
                         const struct policy_result *r);

#endif
