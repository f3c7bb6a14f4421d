/* SPDX-License-Identifier: Apache-2.0
 * Loading bundles: what they give, and each refusal with its place and rule. */
#include "support/policy.h"

static void check_refused(struct str yaml, const char *expected)
{
    struct err e = {0};
    struct policy *p = policy_compile(yaml, "p", &e);

    CHECKF(p == NULL, "accepted: %.*s", STR_ARG(yaml));
    assert_int_equal(e.code, ERR_VALIDATION);
    CHECK_STR(str_of(e.message), str_of(expected));
}

/* ---- what is read ---- */

static void reads_every_field(void **state)
{
    struct policy *p = must_load(STR("default_action: allow\n"
                                     "rules:\n"
                                     "  - id: a\n"
                                     "    when: {target: 'fs_*', step_kind: tool_call}\n"
                                     "    then:\n"
                                     "      decision: require_approval\n"
                                     "      reason: writes need a look\n"
                                     "      approval_config:\n"
                                     "        approvers: [alice, \"b\\\"ob\"]\n"
                                     "        timeout: 5m\n"
                                     "        message: |\n"
                                     "          check\n"
                                     "          the path\n"
                                     "      rate_limit:\n"
                                     "        max_calls: 5\n"
                                     "        window: 1m30s\n"
                                     "        per_what: agent\n"
                                     "        max_wait: 250ms\n"
                                     "        on_limiter_error: deny\n"
                                     "  - id: b\n"
                                     "    then:\n"
                                     "      decision: allow\n"
                                     "      budget: {max_tokens: 200000, scope: session,\n"
                                     "               on_exceed: require_approval}\n"
                                     "  - id: c\n"
                                     "    when: {}\n"
                                     "    then:\n"
                                     "      decision: judge\n"
                                     "      judge: {instructions: is it safe?, threshold: 0.75,\n"
                                     "              fallback: deny}\n"));
    const struct rule *a = policy_rule(p, 0), *b = policy_rule(p, 1), *c = policy_rule(p, 2);

    (void)state;
    assert_int_equal(policy_rule_count(p), 3);
    CHECK_STR(a->id, STR("a"));
    assert_int_equal(a->decision, POLICY_REQUIRE_APPROVAL);
    CHECK_STR(a->reason, STR("writes need a look"));
    CHECK_STR(a->approval.approvers, STR("[\"alice\",\"b\\\"ob\"]"));
    CHECK_STR(a->approval.message, STR("check\nthe path\n"));
    assert_int_equal(a->approval.timeout_us, 300000000);
    assert_true(a->rate_limit.set && a->rate_limit.deny_on_error);
    assert_int_equal(a->rate_limit.max_calls, 5);
    assert_int_equal(a->rate_limit.window_us, 90000000);
    assert_int_equal(a->rate_limit.per_what, SCOPE_AGENT);
    assert_int_equal(a->rate_limit.max_wait_us, 250000);
    assert_false(a->budget.set);
    assert_true(b->budget.set);
    assert_int_equal(b->budget.max_tokens, 200000);
    assert_int_equal(b->budget.scope, SCOPE_SESSION);
    assert_int_equal(b->budget.on_exceed, POLICY_REQUIRE_APPROVAL);
    CHECK_STR(c->judge.instructions, STR("is it safe?"));
    assert_true(c->judge.threshold == 0.75);
    assert_int_equal(c->judge.fallback, POLICY_DENY);
    policy_unref(p);
}

static void knows_the_defaults(void **state)
{
    struct policy *p =
        must_load(STR("rules:\n"
                      "- {id: a, then: {decision: judge, rate_limit: {max_calls: 1, window: 1s}}}\n"
                      "- {id: b, then: {decision: allow, budget: {max_tokens: 1}}}\n"));
    const struct rule *a = policy_rule(p, 0), *b = policy_rule(p, 1);
    struct policy_match match;

    (void)state;
    assert_false(str_present(a->reason));
    assert_false(str_present(a->approval.approvers) || str_present(a->approval.message));
    assert_int_equal(a->approval.timeout_us, 0);
    assert_int_equal(a->rate_limit.per_what, SCOPE_EXECUTION);
    assert_int_equal(a->rate_limit.max_wait_us, 0);
    assert_false(a->rate_limit.deny_on_error);
    assert_true(a->judge.threshold == 0.6);
    assert_int_equal(a->judge.fallback, POLICY_REQUIRE_APPROVAL);
    assert_true(str_empty(a->judge.instructions));
    assert_int_equal(b->budget.scope, SCOPE_EXECUTION);
    assert_int_equal(b->budget.on_exceed, POLICY_DENY);
    policy_match_of(p, POLICY_NO_RULE, KIND_TOOL_CALL, &match);
    assert_int_equal(match.action, POLICY_DENY); /* default_action */
    policy_unref(p);
}

static void hashes_the_bytes(void **state)
{
    struct str yaml = STR("default_action: allow # comments count\n");
    struct policy *p = must_load(yaml);
    struct hash expected;

    (void)state;
    hash_sha256(yaml, &expected);
    assert_true(hash_eq(policy_hash(p), &expected));
    policy_unref(p);
}

static void names_actions_and_scopes(void **state)
{
    static const struct str actions[] = {STR_INIT("allow"), STR_INIT("deny"),
                                         STR_INIT("require_approval"), STR_INIT("judge")};
    static const struct str scopes[] = {STR_INIT("execution"), STR_INIT("session"),
                                        STR_INIT("agent"), STR_INIT("global")};
    enum policy_action action;

    (void)state;
    for (size_t i = 0; i < COUNT(actions); i++) {
        CHECK_STR(policy_action_name((enum policy_action)i), actions[i]);
        assert_true(policy_action_parse(actions[i], &action) && action == i);
        CHECK_STR(policy_scope_name((enum policy_scope)i), scopes[i]);
    }
    assert_false(policy_action_parse(STR("Allow"), &action));
    assert_false(policy_action_parse(STR(""), &action));
}

/* ---- refusals ---- */

#define RULES "rules:\n"
#define ID "- id: x\n" /* line 2 */
#define THEN "  then:\n    decision: allow\n"
#define WHEN RULES ID "  when:\n    "            /* line 4, column 5 */
#define ARGUMENT WHEN "arguments:\n      path: " /* line 5, column 13 */
#define DECIDE(decision)                                                                           \
    RULES ID "  then:\n    decision: " decision "\n    " /* line 5, column 5                       \
                                                          */

static const struct {
    struct str yaml;
    const char *message;
} REFUSED[] = {
    /* the whole */
    {STR_INIT(""), "p:1:1: policy: it is empty"},
    {STR_INIT("# nothing\n"), "p:2:1: policy: it is empty"},
    {STR_INIT("{}\n"), "p:1:1: policy: it is empty"},
    {STR_INIT("- a\n"),
     "p:1:1: policy: it must be a mapping with the keys default_action and rules"},
    {STR_INIT("allow\n"),
     "p:1:1: policy: it must be a mapping with the keys default_action and rules"},
    {STR_INIT("default_acton: deny\n"),
     "p:1:1: policy: unknown key \"default_acton\"; did you mean default_action?"},
    {STR_INIT("webhooks: 1\n"), "p:1:1: policy: unknown key \"webhooks\""},
    {STR_INIT("default_action: judge\n"), "p:1:17: policy: default_action must be allow or deny"},
    {STR_INIT("default_action: Allow\n"), "p:1:17: policy: default_action must be allow or deny"},
    {STR_INIT("default_action:\n"), "p:1:1: policy: default_action must be allow or deny"},
    {STR_INIT("default_action: [deny]\n"), "p:1:17: policy: default_action must be a single value"},
    {STR_INIT("default_action: deny\ndefault_action: allow\n"),
     "p:2:1: policy: default_action is given twice"},
    {STR_INIT("rules: []\nrules: []\n"), "p:2:1: policy: rules is given twice"},
    {STR_INIT("rules:\n"), "p:1:1: policy: rules must be a list"},
    {STR_INIT("rules: {}\n"), "p:1:8: policy: rules must be a list"},
    /* a rule */
    {STR_INIT("rules: [x]\n"), "p:1:9: rule 1: it must be a mapping with id, when and then"},
    {STR_INIT(RULES "- then: {decision: allow}\n"), "p:2:3: rule 1: id is missing"},
    {STR_INIT(RULES ID), "p:2:3: rule \"x\": then is missing"},
    {STR_INIT(RULES "- id:\n"), "p:2:3: rule 1: id has no value"},
    {STR_INIT(RULES "- id: ~\n"), "p:2:7: rule 1: id has no value"},
    {STR_INIT(RULES "- id: \"\"\n"), "p:2:7: rule 1: id is empty"},
    {STR_INIT(RULES "- id: [a]\n"), "p:2:7: rule 1: id must be a single value"},
    {STR_INIT(RULES "- id: \"a\\nb\"\n"), "p:2:7: rule 1: id must not have control characters"},
    {STR_INIT(RULES ID "  id: y\n"), "p:3:3: rule \"x\": id is given twice"},
    {STR_INIT(RULES ID THEN ID THEN), "p:5:7: rule 2: the id \"x\" is already in line 2"},
    {STR_INIT(RULES ID "  wehn: {}\n"),
     "p:3:3: rule \"x\": unknown key \"wehn\"; did you mean when?"},
    {STR_INIT(RULES ID "  ? [y]\n  : 1\n"), "p:3:5: rule \"x\": a key must be plain text"},
    {STR_INIT(RULES ID "  : 1\n"), "p:2:7: rule \"x\": a key is missing before \":\""},
    {STR_INIT(RULES ID THEN ID "  than: 1\n"), "p:5:7: rule 2: the id \"x\" is already in line 2"},
    /* the id stands behind what is wrong */
    {STR_INIT(RULES "- wehn: {}\n  id: late\n"),
     "p:2:3: rule \"late\": unknown key \"wehn\"; did you mean when?"},
    {STR_INIT(RULES "- {id: a, then: {decision: deny}}\n- then: {decision: no}\n  id: late\n"),
     "p:3:20: rule \"late\": decision must be allow, deny, require_approval or judge"},
    {STR_INIT(RULES "- when: {target: '['}\n  then: *x\n  id: late\n"),
     "p:2:18: rule 1: target: malformed glob \"[\": a [ has no ]"},
    /* when */
    {STR_INIT(RULES ID "  when:\n" THEN),
     "p:3:3: rule \"x\": when must be a mapping; leave it out to match every step"},
    {STR_INIT(RULES ID "  when: x\n"),
     "p:3:9: rule \"x\": when must be a mapping; leave it out to match every step"},
    {STR_INIT(WHEN "tagret: a\n"),
     "p:4:5: rule \"x\": unknown key \"tagret\"; did you mean target?"},
    {STR_INIT(WHEN "target: a\n    target: b\n"), "p:5:5: rule \"x\": target is given twice"},
    {STR_INIT(WHEN "target:\n"), "p:4:5: rule \"x\": target has no value"},
    {STR_INIT(WHEN "target: {a: b}\n"), "p:4:13: rule \"x\": target must be a single value"},
    {STR_INIT(WHEN "target: 'fs_['\n"),
     "p:4:13: rule \"x\": target: malformed glob \"fs_[\": a [ has no ]"},
    {STR_INIT(WHEN "target: 'a[z-a]'\n"),
     "p:4:13: rule \"x\": target: malformed glob \"a[z-a]\": a range in [] is in reverse"},
    {STR_INIT(WHEN "target: 'a\\'\n"),
     "p:4:13: rule \"x\": target: malformed glob \"a\\\": a \\ has nothing behind it"},
    {STR_INIT(WHEN "targets: a\n"), "p:4:14: rule \"x\": targets must be a list"},
    {STR_INIT(WHEN "targets: []\n"), "p:4:14: rule \"x\": targets is empty"},
    {STR_INIT(WHEN "targets: [a, '[]']\n"),
     "p:4:18: rule \"x\": targets: malformed glob \"[]\": a class [] is empty"},
    {STR_INIT(WHEN "targets: [a, [b]]\n"), "p:4:18: rule \"x\": targets must be a single value"},
    {STR_INIT(WHEN "agent_id: ''\n"), "p:4:15: rule \"x\": agent_id is empty"},
    {STR_INIT(WHEN "agent_ids: []\n"), "p:4:16: rule \"x\": agent_ids is empty"},
    {STR_INIT(WHEN "agent_ids: [a, '']\n"), "p:4:20: rule \"x\": agent_ids is empty"},
    {STR_INIT(WHEN "step_kind: tool\n"),
     "p:4:16: rule \"x\": step_kind must be tool_call, llm_call or local"},
    /* arguments */
    {STR_INIT(WHEN "arguments:\n"), "p:4:5: rule \"x\": arguments must be a mapping"},
    {STR_INIT(WHEN "arguments: {}\n"), "p:4:16: rule \"x\": arguments is empty"},
    {STR_INIT(WHEN "arguments: {? [a] : b}\n"),
     "p:4:19: rule \"x\": an argument's name must be a single value"},
    {STR_INIT(ARGUMENT "{equals: a}\n      path: {equals: b}\n"),
     "p:6:7: rule \"x\": argument \"path\" is given twice"},
    {STR_INIT(ARGUMENT "/tmp\n"),
     "p:5:13: rule \"x\": argument \"path\": it must be a mapping with "
     "equals, contains, one_of or regex"},
    {STR_INIT(ARGUMENT "{}\n"), "p:5:13: rule \"x\": argument \"path\": the predicate is empty"},
    {STR_INIT(ARGUMENT "{regexp: a}\n"),
     "p:5:14: rule \"x\": argument \"path\": unknown key \"regexp\"; did you mean regex?"},
    {STR_INIT(ARGUMENT "{regex: a, regex: b}\n"),
     "p:5:24: rule \"x\": argument \"path\": regex is given twice"},
    {STR_INIT(ARGUMENT "{equals: ''}\n"), "p:5:22: rule \"x\": argument \"path\": equals is empty"},
    {STR_INIT(ARGUMENT "{equals: }\n"),
     "p:5:14: rule \"x\": argument \"path\": equals has no value"},
    {STR_INIT(ARGUMENT "{equals: [a]}\n"),
     "p:5:22: rule \"x\": argument \"path\": equals must be a single value"},
    {STR_INIT(ARGUMENT "{contains: \"\"}\n"),
     "p:5:24: rule \"x\": argument \"path\": contains is empty"},
    {STR_INIT(ARGUMENT "{one_of: []}\n"), "p:5:22: rule \"x\": argument \"path\": one_of is empty"},
    {STR_INIT(ARGUMENT "{one_of: a}\n"),
     "p:5:22: rule \"x\": argument \"path\": one_of must be a list"},
    {STR_INIT(ARGUMENT "{one_of: [a, {b: c}]}\n"),
     "p:5:26: rule \"x\": argument \"path\": one_of must be a single value"},
    {STR_INIT(ARGUMENT "{regex: ''}\n"), "p:5:21: rule \"x\": argument \"path\": regex is empty"},
    {STR_INIT(ARGUMENT "{regex: 'a(b'}\n"),
     "p:5:21: rule \"x\": argument \"path\": invalid regex: missing ): a(b"},
    {STR_INIT(ARGUMENT "{regex: '(?=a)'}\n"),
     "p:5:21: rule \"x\": argument \"path\": invalid regex: invalid perl operator: (?="},
    {STR_INIT(ARGUMENT "{regex: '(a)\\1'}\n"),
     "p:5:21: rule \"x\": argument \"path\": invalid regex: invalid escape sequence: \\1"},
    {STR_INIT(ARGUMENT "{regex: 'a{1001}'}\n"),
     "p:5:21: rule \"x\": argument \"path\": invalid regex: invalid repetition size: {1001}"},
    /* then */
    {STR_INIT(RULES ID "  then: allow\n"),
     "p:3:9: rule \"x\": then must be a mapping with a decision"},
    {STR_INIT(RULES ID "  then: {}\n"), "p:3:9: rule \"x\": decision is missing"},
    {STR_INIT(DECIDE("maybe")),
     "p:4:15: rule \"x\": decision must be allow, deny, require_approval or judge"},
    {STR_INIT(DECIDE("allow") "reson: a\n"),
     "p:5:5: rule \"x\": unknown key \"reson\"; did you mean reason?"},
    {STR_INIT(DECIDE("allow") "decision: deny\n"), "p:5:5: rule \"x\": decision is given twice"},
    {STR_INIT(DECIDE("deny") "reason:\n"), "p:5:5: rule \"x\": reason has no value"},
    {STR_INIT(DECIDE("deny") "reason: null\n"), "p:5:13: rule \"x\": reason has no value"},
    {STR_INIT(DECIDE("deny") "reason: ''\n"), "p:5:13: rule \"x\": reason is empty"},
    {STR_INIT(DECIDE("deny") "reason: \"a\\0b\"\n"), "p:5:13: rule \"x\": reason holds a NUL"},
    {STR_INIT(DECIDE("require_approval") "approval_config: {aprovers: [a]}\n"),
     "p:5:23: rule \"x\": approval_config: unknown key \"aprovers\"; did you mean approvers?"},
    {STR_INIT(DECIDE("require_approval") "approval_config: {approvers: []}\n"),
     "p:5:34: rule \"x\": approval_config: approvers is empty"},
    {STR_INIT(DECIDE("require_approval") "approval_config: {approvers: [bob, \"a\\tb\"]}\n"),
     "p:5:40: rule \"x\": approval_config: approvers must not have control characters"},
    {STR_INIT(DECIDE("require_approval") "approval_config: {approvers: bob}\n"),
     "p:5:34: rule \"x\": approval_config: approvers must be a list"},
    {STR_INIT(DECIDE("require_approval") "approval_config: {timeout: 5}\n"),
     "p:5:32: rule \"x\": approval_config: timeout must be a duration such as 300ms, 30s, 5m or "
     "1h30m"},
    {STR_INIT(DECIDE("require_approval") "approval_config: {timeout: -5m}\n"),
     "p:5:32: rule \"x\": approval_config: timeout must be a duration such as 300ms, 30s, 5m or "
     "1h30m"},
    {STR_INIT(DECIDE("require_approval") "approval_config: {timeout: 0s}\n"),
     "p:5:32: rule \"x\": approval_config: timeout must be above zero"},
    {STR_INIT(DECIDE("require_approval") "approval_config: {message: }\n"),
     "p:5:23: rule \"x\": approval_config: message has no value"},
    {STR_INIT(DECIDE("allow") "approval_config:\n"),
     "p:5:5: rule \"x\": approval_config must be a mapping"},
    {STR_INIT(DECIDE("allow") "rate_limit: {}\n"),
     "p:5:17: rule \"x\": rate_limit: max_calls is missing"},
    {STR_INIT(DECIDE("allow") "rate_limit: {max_calls: 5}\n"),
     "p:5:17: rule \"x\": rate_limit: window is missing"},
    {STR_INIT(DECIDE("allow") "rate_limit: {max_calls: 0}\n"),
     "p:5:29: rule \"x\": rate_limit: max_calls must be a whole number above zero"},
    {STR_INIT(DECIDE("allow") "rate_limit: {max_calls: 1.5}\n"),
     "p:5:29: rule \"x\": rate_limit: max_calls must be a whole number above zero"},
    {STR_INIT(DECIDE("allow") "rate_limit: {window: 5 minutes}\n"),
     "p:5:26: rule \"x\": rate_limit: window must be a duration such as 300ms, 30s, 5m or 1h30m"},
    {STR_INIT(DECIDE("allow") "rate_limit: {per_what: step}\n"),
     "p:5:28: rule \"x\": rate_limit: per_what must be execution, session, agent or global"},
    {STR_INIT(DECIDE("allow") "rate_limit: {max_wait: x}\n"),
     "p:5:28: rule \"x\": rate_limit: max_wait must be a duration such as 300ms, 30s, 5m or 1h30m"},
    {STR_INIT(DECIDE("allow") "rate_limit: {on_limiter_error: judge}\n"),
     "p:5:36: rule \"x\": rate_limit: on_limiter_error must be allow or deny"},
    {STR_INIT(DECIDE("allow") "rate_limit: {window_s: 1}\n"),
     "p:5:18: rule \"x\": rate_limit: unknown key \"window_s\"; did you mean window?"},
    {STR_INIT(DECIDE("allow") "budget: {}\n"), "p:5:13: rule \"x\": budget: max_tokens is missing"},
    {STR_INIT(DECIDE("allow") "budget: {max_tokens: -1}\n"),
     "p:5:26: rule \"x\": budget: max_tokens must be a whole number above zero"},
    {STR_INIT(DECIDE("allow") "budget: {scope: global}\n"),
     "p:5:21: rule \"x\": budget: scope must be execution or session"},
    {STR_INIT(DECIDE("allow") "budget: {on_exceed: allow}\n"),
     "p:5:25: rule \"x\": budget: on_exceed must be deny or require_approval"},
    {STR_INIT(DECIDE("allow") "budget: {max_token: 1}\n"),
     "p:5:14: rule \"x\": budget: unknown key \"max_token\"; did you mean max_tokens?"},
    {STR_INIT(DECIDE("judge") "budget: {max_tokens: 1}\n"),
     "p:5:5: rule \"x\": budget goes with decision allow, not with judge"},
    {STR_INIT(DECIDE("allow") "judge: {}\n"),
     "p:5:5: rule \"x\": judge goes with decision judge, not with allow"},
    {STR_INIT(RULES ID "  then:\n    judge: {}\n    decision: deny\n"),
     "p:4:5: rule \"x\": judge goes with decision judge, not with deny"},
    {STR_INIT(DECIDE("judge") "judge: {threshold: 1.1}\n"),
     "p:5:24: rule \"x\": judge: threshold must be a number from 0 to 1"},
    {STR_INIT(DECIDE("judge") "judge: {threshold: -0.1}\n"),
     "p:5:24: rule \"x\": judge: threshold must be a number from 0 to 1"},
    {STR_INIT(DECIDE("judge") "judge: {threshold: high}\n"),
     "p:5:24: rule \"x\": judge: threshold must be a number from 0 to 1"},
    {STR_INIT(DECIDE("judge") "judge: {fallback: judge}\n"),
     "p:5:23: rule \"x\": judge: fallback must be allow, deny or require_approval"},
    {STR_INIT(DECIDE("judge") "judge: {instructions: ''}\n"),
     "p:5:27: rule \"x\": judge: instructions is empty"},
    {STR_INIT(DECIDE("judge") "judge: {model: x}\n"),
     "p:5:13: rule \"x\": judge: unknown key \"model\""},
    /* YAML that no bundle needs */
    {STR_INIT("rules: &x []\n"), "p:1:8: anchors and aliases are not supported in a policy"},
    {STR_INIT("rules: *x\n"), "p:1:8: anchors and aliases are not supported in a policy"},
    {STR_INIT("rules: !!seq []\n"), "p:1:8: tags are not supported in a policy"},
    {STR_INIT("%YAML 1.2\n---\nrules: []\n"), "p:1:1: directives are not supported in a policy"},
    {STR_INIT("rules: []\n---\nrules: []\n"), "p:2:1: a policy is one document"},
    {STR_INIT("rules: []\n# \xff\n"), "p:2:1: this line is not valid UTF-8"},
    {STR_INIT("rules: []\n# \0\n"), "p:2:1: this line holds a NUL byte"},
};

static void refuses_with_place_and_rule(void **state)
{
    (void)state;
    for (size_t i = 0; i < COUNT(REFUSED); i++)
        check_refused(REFUSED[i].yaml, REFUSED[i].message);
}

/* The parser's own words are not ours to fix; the place and the beginning are. */
static void refuses_bad_syntax(void **state)
{
    static const struct {
        struct str yaml;
        const char *begins;
    } cases[] = {
        {STR_INIT("rules:\n\t- id: x\n"), "p:2:1: not valid YAML: "}, /* a tab */
        {STR_INIT("rules: [\n"), "p:2:1: not valid YAML: "},
        {STR_INIT("rules: \"\n"), "p:1:9: not valid YAML: "},
        {STR_INIT(RULES ID "  when: @x\n"), "p:3:9: not valid YAML: "},
        {STR_INIT(RULES "- {id: x\n"), "p:3:1: not valid YAML: "},
    };

    (void)state;
    for (size_t i = 0; i < COUNT(cases); i++) {
        struct err e = {0};
        assert_null(policy_compile(cases[i].yaml, "p", &e));
        CHECKF(strncmp(e.message, cases[i].begins, strlen(cases[i].begins)) == 0, "case %zu: %s", i,
               e.message);
    }
}

/* A bundle that came by the API has no file. */
static void names_line_and_column_without_a_file(void **state)
{
    struct err e = {0};

    (void)state;
    assert_null(policy_compile(STR(RULES "- id: x\n  than: 1\n"), "", &e));
    CHECK_STR(str_of(e.message),
              STR("line 3, column 3: rule \"x\": unknown key \"than\"; did you mean then?"));
    assert_null(policy_compile(STR("rules: {}"), "dir/policy.yaml", &e));
    CHECK_STR(str_of(e.message), STR("dir/policy.yaml:1:8: policy: rules must be a list"));
}

/* What a bundle says of itself reaches terminals: no escape sequence, no line break, bounded. */
static void shows_names_clean(void **state)
{
    struct err e = {0};
    struct buf yaml = {0};

    (void)state;
    check_refused(STR("\"ru\\x1b[31m\\nles\": []\n"),
                  "p:1:1: policy: unknown key \"ru\\x1b[31m\\nles\"");
    buf_add_z(&yaml, "rules: [{id: ");
    for (int i = 0; i < 5000; i++)
        buf_add_z(&yaml, "\xc3\xa9");
    buf_add_z(&yaml, ", x: 1}]");
    assert_null(policy_compile(buf_str(&yaml), "p", &e));
    CHECKF(strlen(e.message) < 200 && str_is_utf8(str_of(e.message)), "%s", e.message);
    buf_free(&yaml);
}

/* ---- sizes ---- */

static void loads_ten_thousand_rules(void **state)
{
    enum { RULE_COUNT = 10000 };
    struct buf yaml = {0};

    (void)state;
    buf_add_z(&yaml, RULES);
    for (int i = 0; i < RULE_COUNT; i++)
        buf_printf(&yaml,
                   "  - id: rule-%d\n"
                   "    when: {target: 'tool_%d_*', arguments: {path: {regex: '^/tmp/%d'}}}\n"
                   "    then: {decision: allow}\n",
                   i, i, i);
    struct policy *p = must_load(buf_str(&yaml));
    assert_int_equal(policy_rule_count(p), RULE_COUNT);
    CHECK_STR(policy_rule(p, RULE_COUNT - 1)->id, STR("rule-9999"));
    policy_unref(p);
    buf_add_z(&yaml, "  - {id: rule-0, then: {decision: deny}}\n");
    check_refused(buf_str(&yaml), "p:30002:10: rule 10001: the id \"rule-0\" is already in line 2");
    buf_free(&yaml);
}

static void add_times(struct buf *b, const char *text, size_t times)
{
    for (size_t i = 0; i < times; i++)
        buf_add_z(b, text);
}

static void refuses_ten_mebibytes(void **state)
{
    struct buf yaml = {0};
    struct err e = {0};

    (void)state;
    add_times(&yaml, "# ten bytes", 10 * 1024 * 1024 / 11);
    assert_null(policy_compile(buf_str(&yaml), "p", &e));
    CHECK_STR(str_of(e.message),
              STR("p: the policy has 10485750 bytes; at most 4194304 are taken"));
    assert_null(policy_compile(buf_str(&yaml), "", &e));
    CHECK_STR(str_of(e.message), STR("the policy has 10485750 bytes; at most 4194304 are taken"));
    buf_free(&yaml);
}

static void survives_hostile_bundles(void **state)
{
    static const struct {
        const char *head, *unit;
        size_t times;
    } cases[] = {
        {"", "[", 100000},
        {"rules: ", "[", 100000},
        {"rules: [{when: ", "{when: ", 50000},
        {"rules: [{then: ", "[", 50000},
        {"rules: [{when: {arguments: ", "{a: ", 50000},
        {"", "- ", 100000},
        {"", "? ", 100000},
        {"", "a", 400000},
        {"rules: [{id: ", "x", 300000},
        {"rules: [{id: \"", "\\n", 150000},
        {"rules: [{id: x, when: {targets: [", "a,", 100000},
        {"rules: [{id: x, when: {arguments: {a: {one_of: [", "a,", 100000},
        {"rules: [{id: x, when: {arguments: {a: {regex: ", "a", 300000},
        {"rules: [{id: x, when: {arguments: {a: {regex: '", "(", 300000},
        {"rules: [{id: x, when: {arguments: {a: {regex: '", "(a+)+", 50000},
        {"rules: [{id: x, when: {target: '", "*a", 100000},
        {"", "#\n", 150000},
        {"%", "x", 300000},
        {"rules: !", "x", 300000},
        {"rules: |", "9", 300000},
        {"rules: &a [", "*a, ", 70000},
    };
    struct err e;

    (void)state;
    for (size_t i = 0; i < COUNT(cases); i++) {
        struct buf yaml = {0};

        buf_add_z(&yaml, cases[i].head);
        add_times(&yaml, cases[i].unit, cases[i].times);
        e = (struct err){0};
        CHECKF(policy_compile(buf_str(&yaml), "p", &e) == NULL, "case %zu", i);
        CHECKF(e.code == ERR_VALIDATION && e.message[0] != '\0', "case %zu", i);
        buf_free(&yaml);
    }
}

/* Patterns that RE2 takes one by one: what they take together is bounded. */
static void bounds_regexes_together(void **state)
{
    struct buf yaml = {0};
    struct err e = {0};

    (void)state;
    buf_add_z(&yaml, RULES);
    for (int i = 0; i < 1000; i++)
        buf_printf(&yaml,
                   "- {id: r%d, when: {arguments: {a: {regex: '.{900}%d'}}}, then: "
                   "{decision: deny}}\n",
                   i, i);
    assert_null(policy_compile(buf_str(&yaml), "p", &e));
    CHECKF(strstr(e.message, ": policy: its regexes take too much together"), "%s", e.message);
    buf_free(&yaml);
}

/* Each argument's name is held against those of its rule, not against all. */
static void loads_many_arguments(void **state)
{
    enum { ARGUMENTS = 20000 };
    struct buf yaml = {0};

    (void)state;
    buf_add_z(&yaml, RULES "- id: x\n  then: {decision: allow}\n  when:\n    arguments:\n");
    for (int i = 0; i < ARGUMENTS; i++)
        buf_printf(&yaml, "      a%d: {equals: b}\n", i);
    policy_unref(must_load(buf_str(&yaml)));
    buf_add_z(&yaml, "      a7: {equals: b}\n");
    check_refused(buf_str(&yaml), "p:20006:7: rule \"x\": argument \"a7\" is given twice");
    buf_free(&yaml);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(reads_every_field),
        cmocka_unit_test(knows_the_defaults),
        cmocka_unit_test(hashes_the_bytes),
        cmocka_unit_test(names_actions_and_scopes),
        cmocka_unit_test(refuses_with_place_and_rule),
        cmocka_unit_test(refuses_bad_syntax),
        cmocka_unit_test(names_line_and_column_without_a_file),
        cmocka_unit_test(shows_names_clean),
        cmocka_unit_test(loads_ten_thousand_rules),
        cmocka_unit_test(refuses_ten_mebibytes),
        cmocka_unit_test(survives_hostile_bundles),
        cmocka_unit_test(bounds_regexes_together),
        cmocka_unit_test(loads_many_arguments),
    };

    return cmocka_run_group_tests_name("policy_load", tests, NULL, NULL);
}
