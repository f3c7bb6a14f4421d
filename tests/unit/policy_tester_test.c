/* SPDX-License-Identifier: Apache-2.0
 * Cases of a bundle: reading them, running them, writing results. */
#include "support/policy.h"

#include "policy/tester.h"

static struct policy_case *must_load_cases(struct str yaml, struct arena *a, size_t *n)
{
    struct policy_case *cases = NULL;
    struct err e = {0};

    CHECKF(policy_cases_load(yaml, "c", a, &cases, n, &e), "%s", e.message);
    return cases;
}

static void reads_yaml(void **state)
{
    struct arena a = {0};
    size_t n = 0;
    struct policy_case *c = must_load_cases(STR("cases:\n"
                                                "  - { name: read-only, target: shell_exec, args: "
                                                "{ command: \"ls -la\" }, expect: allow,"
                                                " expect_rule: allow-safe }\n"
                                                "  - target: plan\n"
                                                "    kind: local\n"
                                                "    agent_id: other\n"
                                                "agent_id: shell\n"),
                                            &a, &n);

    (void)state;
    assert_int_equal(n, 2);
    CHECK_STR(c[0].name, STR("read-only"));
    CHECK_STR(c[0].agent_id, STR("shell"));
    assert_int_equal(c[0].kind, KIND_TOOL_CALL);
    CHECK_STR(c[0].target, STR("shell_exec"));
    CHECK_STR(c[0].args, STR("{\"command\":\"ls -la\"}"));
    assert_true(c[0].expects && c[0].expect == POLICY_ALLOW);
    CHECK_STR(c[0].expect_rule, STR("allow-safe"));
    assert_false(str_present(c[1].name) || str_present(c[1].args) || c[1].expects);
    assert_false(str_present(c[1].expect_rule) || str_present(c[1].was_rule));
    assert_int_equal(c[1].kind, KIND_LOCAL);
    CHECK_STR(c[1].agent_id, STR("other"));
    arena_free(&a);
}

/* YAML's core schema, as canonical JSON. */
static void reads_arguments(void **state)
{
    static const struct {
        struct str yaml, json;
    } cases[] = {
        {STR_INIT("{}"), STR_INIT("{}")},
        {STR_INIT("{b: x, a: y}"), STR_INIT("{\"a\":\"y\",\"b\":\"x\"}")},
        {STR_INIT("{a: [1, [2, {}], []], b: {c: {d: e}}}"),
         STR_INIT("{\"a\":[1,[2,{}],[]],\"b\":{\"c\":{\"d\":\"e\"}}}")},
        {STR_INIT("{a: }"), STR_INIT("{\"a\":null}")},
        {STR_INIT("[null, ~, Null, NULL, nUll, 'null', \"~\"]"),
         STR_INIT("[null,null,null,null,\"nUll\",\"null\",\"~\"]")},
        {STR_INIT("[true, True, TRUE, false, False, FALSE, yes, on, 'true']"),
         STR_INIT("[true,true,true,false,false,false,\"yes\",\"on\",\"true\"]")},
        {STR_INIT("[0, 12, -7, +5, 007, -0, 12345678901234567890123, '1']"),
         STR_INIT("[0,12,-7,5,7,-0,12345678901234567890123,\"1\"]")},
        {STR_INIT("[1.0, 1e2, 1E+2, 2e-3, .5, -.5, 1., 00.10]"),
         STR_INIT("[1.0,1e2,1e+2,2e-3,0.5,-0.5,1.0,0.10]")},
        {STR_INIT("[0x1f, 0xFF, 0o17, 0xffffffffffffffff]"),
         STR_INIT("[31,255,15,18446744073709551615]")},
        {STR_INIT("[0x, 0o8, 0xg, 0x10000000000000000, -0x1, 1_000, 1e, e1, ., 1.2.3, 1:30]"),
         STR_INIT("[\"0x\",\"0o8\",\"0xg\",\"0x10000000000000000\",\"-0x1\",\"1_000\",\"1e\","
                  "\"e1\",\".\",\"1.2.3\",\"1:30\"]")},
        {STR_INIT("{1: a, true: b, null: c, 1.5: d}"),
         STR_INIT("{\"1\":\"a\",\"1.5\":\"d\",\"null\":\"c\",\"true\":\"b\"}")},
        {STR_INIT("\"a\\tb\\u00e9\""), STR_INIT("\"a\\tb\xc3\xa9\"")},
        {STR_INIT("text"), STR_INIT("\"text\"")},
        {STR_INIT("|\n      a\n       b\n"), STR_INIT("\"a\\n b\\n\"")},
        {STR_INIT(">\n      a\n      b\n"), STR_INIT("\"a b\\n\"")},
        {STR_INIT("\n      - a\n      - b: c\n        d: e\n"),
         STR_INIT("[\"a\",{\"b\":\"c\",\"d\":\"e\"}]")},
    };

    (void)state;
    for (size_t i = 0; i < COUNT(cases); i++) {
        struct arena a = {0};
        struct buf yaml = {0};
        size_t n = 0;

        buf_printf(&yaml, "cases:\n  - target: t\n    args: %.*s\n", STR_ARG(cases[i].yaml));
        struct policy_case *c = must_load_cases(buf_str(&yaml), &a, &n);
        CHECK_STR(c[0].args, cases[i].json);
        buf_free(&yaml);
        arena_free(&a);
    }
}

static void refuses_yaml(void **state)
{
    static const struct {
        struct str yaml;
        const char *message;
    } refused[] = {
        {STR_INIT(""), "c:1:1: there must be a mapping with the keys agent_id and cases"},
        {STR_INIT("- target: x\n"),
         "c:1:1: there must be a mapping with the keys agent_id and cases"},
        {STR_INIT("agent_id: x\n"), "c:1:1: the key cases is missing"},
        {STR_INIT("cases: []\n"), "c:1:8: there are no cases"},
        {STR_INIT("cases: x\n"), "c:1:8: cases: cases must be a list"},
        {STR_INIT("case: []\n"), "c:1:1: cases: unknown key \"case\"; did you mean cases?"},
        {STR_INIT("agent_id:\ncases: []\n"), "c:1:1: cases: agent_id has no value"},
        {STR_INIT("cases: [x]\n"), "c:1:9: case 1 must be a mapping with a target"},
        {STR_INIT("cases: [{kind: local}]\n"), "c:1:9: case 1: target is missing"},
        {STR_INIT("cases: [{target: [x]}]\n"), "c:1:18: case 1: target must be a single value"},
        {STR_INIT("cases: [{target: }]\n"), "c:1:10: case 1: target has no value"},
        {STR_INIT("cases:\n- {name: n, target: x}\n- {name: m, tagret: x}\n"),
         "c:3:13: case 2 (m): unknown key \"tagret\"; did you mean target?"},
        {STR_INIT("cases: [{target: x, target: y}]\n"), "c:1:21: case 1: target is given twice"},
        {STR_INIT("cases: [{target: x, kind: tool}]\n"),
         "c:1:27: case 1: kind must be tool_call, llm_call or local"},
        {STR_INIT("cases: [{target: x, expect: block}]\n"),
         "c:1:29: case 1: expect must be allow, deny, require_approval or judge"},
        {STR_INIT("cases: [{target: x, args: {a: 1, a: 2}}]\n"),
         "c:1:27: case 1: args: duplicate key \"a\""},
        {STR_INIT("cases: [{target: x, args: {a: {b: 1, \"\\u0062\": 2}}}]\n"),
         "c:1:27: case 1: args: duplicate key \"b\""},
        {STR_INIT("cases: [{target: x, args: {\"\\e[31m\": 1, \"\\e[31m\": 2}}]\n"),
         "c:1:27: case 1: args: duplicate key \"\\x1b[31m\""},
        {STR_INIT("cases: [{target: x, args: {a: .inf}}]\n"),
         "c:1:31: case 1: .inf is no number that JSON has"},
        {STR_INIT("cases: [{target: x, args: {? [a] : 1}}]\n"),
         "c:1:30: case 1: a key must be text"},
        {STR_INIT("cases: [{target: x, args: {: 1}}]\n"), "c:1:27: case 1: a key must be text"},
        {STR_INIT("cases: &a []\n"), "c:1:8: anchors and aliases are not supported in a case file"},
        {STR_INIT("cases: [{target: x}]\n---\n"), "c:2:1: a case file is one document"},
    };

    (void)state;
    for (size_t i = 0; i < COUNT(refused); i++) {
        struct arena a = {0};
        struct policy_case *cases;
        struct err e = {0};
        size_t n;

        CHECKF(!policy_cases_load(refused[i].yaml, "c", &a, &cases, &n, &e), "case %zu", i);
        assert_int_equal(e.code, ERR_VALIDATION);
        CHECKF(strncmp(e.message, refused[i].message, strlen(refused[i].message)) == 0,
               "got <%s>, want <%s>", e.message, refused[i].message);
        arena_free(&a);
    }
}

/* As deep as JSON may be, and no deeper. */
static void bounds_nesting(void **state)
{
    (void)state;
    for (int levels = 999; levels <= 1001; levels++) {
        struct arena a = {0};
        struct buf yaml = {0};
        struct policy_case *cases;
        struct err e = {0};
        size_t n;

        buf_add_z(&yaml, "cases: [{target: t, args: ");
        for (int i = 0; i < levels; i++)
            buf_add_z(&yaml, "[");
        for (int i = 0; i < levels; i++)
            buf_add_z(&yaml, "]");
        buf_add_z(&yaml, "}]");
        CHECKF(policy_cases_load(buf_str(&yaml), "c", &a, &cases, &n, &e) == (levels <= 1000),
               "%d levels: %s", levels, e.message);
        buf_free(&yaml);
        arena_free(&a);
    }
}

static void reads_json(void **state)
{
    struct arena a = {0};
    struct policy_case *c;
    struct err e = {0};
    size_t n;

    (void)state;
    CHECKF(policy_cases_read(STR("[{\"name\":\"n\",\"target\":\"a\\u0062\",\"kind\":\"llm_call\","
                                 "\"args\":{ \"z\":1, \"a\":null },\"expect\":\"judge\","
                                 "\"expect_rule\":\"r\",\"agent_id\":\"x\"},"
                                 " {\"target\":\"\",\"args\":null,\"name\":null}]"),
                             STR("coder"), &a, &c, &n, &e),
           "%s", e.message);
    assert_int_equal(n, 2);
    CHECK_STR(c[0].name, STR("n"));
    CHECK_STR(c[0].target, STR("ab"));
    assert_int_equal(c[0].kind, KIND_LLM_CALL);
    CHECK_STR(c[0].args, STR("{\"a\":null,\"z\":1}"));
    assert_true(c[0].expects && c[0].expect == POLICY_JUDGE);
    CHECK_STR(c[0].expect_rule, STR("r"));
    CHECK_STR(c[0].agent_id, STR("x"));
    CHECK_STR(c[1].agent_id, STR("coder"));
    assert_false(str_present(c[1].name) || c[1].expects);
    assert_int_equal(c[1].kind, KIND_TOOL_CALL);
    assert_true(policy_cases_read(STR("[]"), STR("coder"), &a, &c, &n, &e) && n == 0);
    arena_free(&a);
}

static void refuses_json(void **state)
{
    static const struct {
        struct str json;
        const char *message;
    } refused[] = {
        {STR_INIT("{}"), "cases must be an array of objects"},
        {STR_INIT("[1]"), "case 1 must be an object with a target"},
        {STR_INIT("[{\"target\":\"x\"},{}]"), "case 2: missing field \"target\""},
        {STR_INIT("[{\"target\":1}]"), "case 1: field \"target\" must be a string"},
        {STR_INIT("[{\"target\":\"x\",\"tagret\":1}]"), "case 1: unknown field \"tagret\""},
        {STR_INIT("[{\"target\":\"x\",\"target\":\"y\"}]"), "case 1: duplicate field \"target\""},
        {STR_INIT("[{\"target\":\"x\",\"kind\":\"tool\"}]"),
         "case 1: field \"kind\" must be tool_call, llm_call or local"},
        {STR_INIT("[{\"target\":\"x\",\"expect\":\"no\"}]"),
         "case 1: field \"expect\" must be allow, deny, require_approval or judge"},
        {STR_INIT("[{\"target\":\"x\",\"args\":{\"a\":1,\"a\":2}}]"),
         "case 1: duplicate key \"a\""},
    };

    (void)state;
    for (size_t i = 0; i < COUNT(refused); i++) {
        struct arena a = {0};
        struct policy_case *cases;
        struct err e = {0};
        size_t n;

        CHECKF(!policy_cases_read(refused[i].json, STR("x"), &a, &cases, &n, &e), "case %zu", i);
        assert_int_equal(e.code, ERR_VALIDATION);
        CHECKF(strncmp(e.message, refused[i].message, strlen(refused[i].message)) == 0,
               "got <%s>, want <%s>", e.message, refused[i].message);
        arena_free(&a);
    }
}

/* ---- running ---- */

#define BUNDLE                                                                                     \
    "rules:\n"                                                                                     \
    "- {id: safe, when: {target: sh, arguments: {c: {regex: '^ls'}}}, then: {decision: allow}}\n"  \
    "- {id: no, when: {target: rm}, then: {decision: deny}}\n"                                     \
    "- {id: why, when: {target: dd}, then: {decision: deny, reason: too_much}}\n"                  \
    "- {id: ask, when: {target: pr}, then: {decision: judge}}\n"

static const struct {
    struct policy_case c;
    bool pass;
    struct str failure, written;
} RUNS[] = {
    {{.target = STR_INIT("sh"),
      .args = STR_INIT("{\"c\":\"ls -la\"}"),
      .name = STR_INIT("n"),
      .agent_id = STR_INIT("shell"),
      .expects = true,
      .expect = POLICY_ALLOW,
      .expect_rule = STR_INIT("safe")},
     true,
     {NULL, 0},
     STR_INIT("{\"name\":\"n\",\"agent_id\":\"shell\",\"kind\":\"tool_call\",\"target\":\"sh\","
              "\"args\":{\"c\":\"ls -la\"},\"expect\":\"allow\",\"expect_rule\":\"safe\","
              "\"decision\":\"allow\",\"rule_id\":\"safe\",\"pass\":true}")},
    /* without args they are null: no predicate matches */
    {{.target = STR_INIT("sh"), .expects = true, .expect = POLICY_ALLOW},
     false,
     STR_INIT("expected allow, got deny by rule default"),
     STR_INIT("{\"agent_id\":\"\",\"kind\":\"tool_call\",\"target\":\"sh\",\"expect\":\"allow\","
              "\"decision\":\"deny\",\"rule_id\":\"default\",\"reason\":\"no explicit allow rule "
              "matched\",\"pass\":false,\"failure\":\"expected allow, got deny by rule "
              "default\"}")},
    /* the right decision by the wrong rule */
    {{.target = STR_INIT("rm"),
      .expects = true,
      .expect = POLICY_DENY,
      .expect_rule = STR_INIT("why")},
     false,
     STR_INIT("expected deny by rule why, got deny by rule no"),
     STR_INIT("{\"agent_id\":\"\",\"kind\":\"tool_call\",\"target\":\"rm\",\"expect\":\"deny\","
              "\"expect_rule\":\"why\",\"decision\":\"deny\",\"rule_id\":\"no\",\"reason\":"
              "\"policy_denied\",\"pass\":false,\"failure\":\"expected deny by rule why, got deny "
              "by rule no\"}")},
    {{.target = STR_INIT("rm"), .expect_rule = STR_INIT("x\"")},
     false,
     STR_INIT("expected rule x\", got deny by rule no"),
     STR_INIT("{\"agent_id\":\"\",\"kind\":\"tool_call\",\"target\":\"rm\",\"expect_rule\":"
              "\"x\\\"\",\"decision\":\"deny\",\"rule_id\":\"no\",\"reason\":\"policy_denied\","
              "\"pass\":false,\"failure\":\"expected rule x\\\", got deny by rule no\"}")},
    /* a probe expects nothing */
    {{.target = STR_INIT("dd"), .kind = KIND_LLM_CALL, .args = STR_INIT("[1]")},
     true,
     {NULL, 0},
     STR_INIT("{\"agent_id\":\"\",\"kind\":\"llm_call\",\"target\":\"dd\",\"args\":[1],"
              "\"decision\":\"deny\",\"rule_id\":\"why\",\"reason\":\"too_much\",\"pass\":true}")},
    {{.target = STR_INIT("x"), .kind = KIND_LOCAL, .expect_rule = STR_INIT("local")},
     true,
     {NULL, 0},
     STR_INIT("{\"agent_id\":\"\",\"kind\":\"local\",\"target\":\"x\",\"expect_rule\":\"local\","
              "\"decision\":\"allow\",\"rule_id\":\"local\",\"pass\":true}")},
    /* of a recorded step */
    {{.target = STR_INIT("pr"),
      .execution_id = STR_INIT("e"),
      .step_id = STR_INIT("s"),
      .was_rule = STR_INIT("old")},
     true,
     {NULL, 0},
     STR_INIT("{\"agent_id\":\"\",\"kind\":\"tool_call\",\"target\":\"pr\",\"execution_id\":\"e\","
              "\"step_id\":\"s\",\"was_rule\":\"old\",\"decision\":\"judge\",\"rule_id\":\"ask\","
              "\"pass\":true}")},
};

static void runs_and_writes(void **state)
{
    struct policy *p = must_load(STR(BUNDLE));

    (void)state;
    for (size_t i = 0; i < COUNT(RUNS); i++) {
        struct arena a = {0};
        struct buf out = {0};
        struct json_writer w = {.out = &out};
        struct policy_result result;
        struct policy_case c = RUNS[i].c;

        if (!str_present(c.agent_id))
            c.agent_id = STR("");
        policy_case_run(p, &c, &a, &result);
        CHECKF(result.pass == RUNS[i].pass, "case %zu", i);
        CHECK_STR(result.failure, RUNS[i].failure);
        policy_result_write(&w, &c, &result);
        CHECK_STR(buf_str(&out), RUNS[i].written);
        buf_free(&out);
        arena_free(&a);
    }
    policy_unref(p);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(reads_yaml),      cmocka_unit_test(reads_arguments),
        cmocka_unit_test(refuses_yaml),    cmocka_unit_test(bounds_nesting),
        cmocka_unit_test(reads_json),      cmocka_unit_test(refuses_json),
        cmocka_unit_test(runs_and_writes),
    };

    return cmocka_run_group_tests_name("policy_tester", tests, NULL, NULL);
}
