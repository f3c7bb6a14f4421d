/* SPDX-License-Identifier: Apache-2.0
 * Bundles in tests: load one that must load, and hold what it says of a step against what is
 * expected. */
#ifndef SUPPORT_POLICY_H
#define SUPPORT_POLICY_H

#include "support/check.h"

#include "policy/policy.h"

static inline struct policy *must_load(struct str yaml)
{
    struct err e = {0};
    struct policy *p = policy_compile(yaml, "p", &e);

    CHECKF(p != NULL, "%s", e.message);
    return p;
}

/* A tool_call of the agent `coder`; the arguments become canonical. */
static inline struct policy_match evaluate(const struct policy *p, enum step_kind kind,
                                           struct str target, struct str args)
{
    struct policy_input in = {STR("coder"), kind, target, STR_NONE};
    struct policy_match match;
    struct buf canonical = {0};
    struct err e = {0};

    CHECKF(canonical_json(args, &canonical, &e), "%s: %.*s", e.message, STR_ARG(args));
    in.args = buf_str(&canonical);
    policy_evaluate(p, &in, &match);
    buf_free(&canonical);
    return match;
}

#endif
