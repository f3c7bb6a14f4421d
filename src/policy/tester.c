/* SPDX-License-Identifier: Apache-2.0
 * Running cases and writing their results. */
#include "policy/tester.h"

static void input_of(const struct policy_case *c, struct policy_input *out)
{
    *out = (struct policy_input){
        .agent_id = c->agent_id,
        .kind = c->kind,
        .target = c->target,
        .args = str_present(c->args) ? c->args : STR("null"),
    };
}

static struct str expectation(const struct policy_case *c, struct arena *a)
{
    if (!c->expects)
        return arena_printf(a, "rule %.*s", STR_ARG(c->expect_rule));
    struct str action = policy_action_name(c->expect);
    if (!str_present(c->expect_rule))
        return action;
    return arena_printf(a, "%.*s by rule %.*s", STR_ARG(action), STR_ARG(c->expect_rule));
}

void policy_case_run(const struct policy *p, const struct policy_case *c, struct arena *a,
                     struct policy_result *out)
{
    struct policy_match *match = &out->match;
    struct policy_input in;

    input_of(c, &in);
    policy_evaluate(p, &in, match);
    out->pass = (!c->expects || c->expect == match->action) &&
                (!str_present(c->expect_rule) || str_eq(c->expect_rule, match->rule_id));
    out->failure = STR_NONE;
    if (!out->pass)
        out->failure =
            arena_printf(a, "expected %.*s, got %.*s by rule %.*s", STR_ARG(expectation(c, a)),
                         STR_ARG(policy_action_name(match->action)), STR_ARG(match->rule_id));
}

/* A denial always has a reason (docs/policy.md). */
static struct str shown_reason(const struct policy_match *match)
{
    return match->action == POLICY_DENY && !str_present(match->reason) ? STR("policy_denied")
                                                                       : match->reason;
}

void policy_result_write(struct json_writer *w, const struct policy_case *c,
                         const struct policy_result *r)
{
    jw_open(w, '{');
    jw_member_str_opt(w, "name", c->name);
    jw_member_str(w, "agent_id", c->agent_id);
    jw_member_str(w, "kind", step_kind_name(c->kind));
    jw_member_str(w, "target", c->target);
    jw_member_raw_opt(w, "args", c->args);
    if (c->expects)
        jw_member_str(w, "expect", policy_action_name(c->expect));
    jw_member_str_opt(w, "expect_rule", c->expect_rule);
    jw_member_str_opt(w, "execution_id", c->execution_id);
    jw_member_str_opt(w, "step_id", c->step_id);
    jw_member_str_opt(w, "was_rule", c->was_rule);
    jw_member_str(w, "decision", policy_action_name(r->match.action));
    jw_member_str(w, "rule_id", r->match.rule_id);
    jw_member_str_opt(w, "reason", shown_reason(&r->match));
    jw_key(w, "pass");
    jw_bool(w, r->pass);
    jw_member_str_opt(w, "failure", r->failure);
    jw_close(w, '}');
}
