/* SPDX-License-Identifier: Apache-2.0
 * A policy bundle: YAML in, rules out, and what they say of one step (docs/policy.md). Pure: no
 * clock, no I/O, no database. A compiled bundle never changes; any thread may evaluate it.
 *
 * Loading refuses everything that could not mean what its author hoped: unknown keys, missing or
 * repeated ids, unknown values, empty predicates, bad globs, regexes and durations. The message
 * names the file, line, column and the rule. */
#ifndef POLICY_POLICY_H
#define POLICY_POLICY_H

#include "base/arena.h"
#include "base/err.h"
#include "domain/identity.h"
#include "domain/types.h"

enum { POLICY_BUNDLE_MAX = 4 * 1024 * 1024 }; /* bytes of YAML; more is refused */

enum policy_action { POLICY_ALLOW, POLICY_DENY, POLICY_REQUIRE_APPROVAL, POLICY_JUDGE };
/* allow, deny, require_approval, judge; static */
struct str policy_action_name(enum policy_action a);
MUST_USE bool policy_action_parse(struct str s, enum policy_action *out);

enum policy_scope { SCOPE_EXECUTION, SCOPE_SESSION, SCOPE_AGENT, SCOPE_GLOBAL };
struct str policy_scope_name(enum policy_scope s);

/* The parts of a rule's `then`. Absent strings: not given. */
struct approval_config {
    struct str approvers; /* a JSON list of strings, as the API shows it; absent: anybody */
    struct str message;
    int64_t timeout_us; /* 0: the kernel's default */
};
struct rate_limit {
    bool set;
    int64_t max_calls, window_us; /* both positive */
    enum policy_scope per_what;
    int64_t max_wait_us; /* 0: never parked */
    bool deny_on_error;
};
struct budget {
    bool set;
    int64_t max_tokens;
    enum policy_scope scope;      /* execution or session */
    enum policy_action on_exceed; /* deny or require_approval */
};
struct judge {
    struct str instructions; /* empty: none */
    double threshold;        /* 0 to 1 */
    enum policy_action fallback;
};

struct rule_when; /* policy/rule.h: what it matches */

struct rule {
    struct str id;
    enum policy_action decision;
    struct str reason; /* absent: none */
    struct approval_config approval;
    struct rate_limit rate_limit;
    struct budget budget;
    struct judge judge;
    const struct rule_when *when;
};

struct policy;

/* `name` is what messages call it ("policy.yaml"; "" for a bundle that came by the API, then they
 * begin with "line …"). NULL: ERR_VALIDATION. The result has one reference. */
struct policy *policy_compile(struct str yaml, const char *name, struct err *e);
struct policy *policy_ref(struct policy *p);
void policy_unref(struct policy *p);                    /* NULL is fine */
const struct hash *policy_hash(const struct policy *p); /* sha256 of the YAML's bytes */
size_t policy_rule_count(const struct policy *p);
const struct rule *policy_rule(const struct policy *p, size_t index);

/* One step, as far as a rule can see it. */
struct policy_input {
    struct str agent_id;
    enum step_kind kind;
    struct str target;
    struct str args; /* canonical JSON */
};

enum { POLICY_NO_RULE = -1 };

/* What the bundle says, before limits, budgets and judges. */
struct policy_match {
    int rule; /* index of the first that matches, or POLICY_NO_RULE */
    enum policy_action action;
    struct str rule_id; /* the rule's, or `local` or `default`; lives as long as the policy */
    struct str reason;  /* the rule's or the default's; absent: none */
};
void policy_evaluate(const struct policy *p, const struct policy_input *in,
                     struct policy_match *out);
/* The same for a rule that is known to be the first that matches. */
void policy_match_of(const struct policy *p, int rule, enum step_kind kind,
                     struct policy_match *out);
/* Evaluating may take more than about a millisecond: it belongs on a thread that others do not wait
 * for. */
bool policy_is_costly(const struct policy *p, const struct policy_input *in);

#endif
