/* SPDX-License-Identifier: Apache-2.0
 * Any bytes as a bundle, and as a case file: read or refused with a message, the same each time,
 * and what was read decides the same each time. */
#include "policy/tester.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

static const struct policy_input INPUTS[] = {
    {STR_INIT("coder"), KIND_TOOL_CALL, STR_INIT("fs_write"),
     STR_INIT("{\"options\":{\"mode\":\"create\"},\"path\":\"/tmp/a\"}")},
    {STR_INIT("shell"), KIND_TOOL_CALL, STR_INIT("shell_exec"),
     STR_INIT("{\"command\":\"ls \\u0026\\u0026 rm -rf /\",\"n\":1.0,\"x\":[true,null]}")},
    {STR_INIT("coder"), KIND_LLM_CALL, STR_INIT(""), STR_INIT("{\"a\":\"\",\"path\":null}")},
    {STR_INIT(""), KIND_LOCAL, STR_INIT("a/b\xc3\xa9[c]*"), STR_INIT("[1]")},
    {STR_INIT("x"), KIND_TOOL_CALL, STR_INIT("open_pr"), STR_INIT("null")},
};

static void decide(const struct policy *p, struct policy_match *out)
{
    for (size_t i = 0; i < COUNT(INPUTS); i++) {
        (void)policy_is_costly(p, &INPUTS[i]);
        policy_evaluate(p, &INPUTS[i], &out[i]);
        ASSERT(out[i].rule == POLICY_NO_RULE || (size_t)out[i].rule < policy_rule_count(p));
        ASSERT(str_is_utf8(out[i].rule_id) && str_is_utf8(out[i].reason));
    }
}

static void check_rules(const struct policy *p)
{
    for (size_t i = 0; i < policy_rule_count(p); i++) {
        const struct rule *r = policy_rule(p, i);
        struct err e;

        ASSERT(r->id.n > 0 && !str_has_control(r->id));
        ASSERT(!str_present(r->approval.approvers) || json_check(r->approval.approvers, &e));
        ASSERT(!r->rate_limit.set || (r->rate_limit.max_calls > 0 && r->rate_limit.window_us > 0));
        ASSERT(!r->budget.set || (r->budget.max_tokens > 0 && r->decision == POLICY_ALLOW));
        ASSERT(r->judge.threshold >= 0 && r->judge.threshold <= 1);
        ASSERT(r->judge.fallback != POLICY_JUDGE && r->budget.on_exceed != POLICY_JUDGE);
    }
}

static void check_message(const struct err *e)
{
    ASSERT(e->code == ERR_VALIDATION && e->message[0] != '\0');
    ASSERT(str_is_utf8(str_of(e->message)) && !str_has_control(str_of(e->message)));
}

static void as_bundle(struct str text)
{
    struct policy_match first[COUNT(INPUTS)], again[COUNT(INPUTS)];
    struct err e = {0}, e2 = {0};
    struct policy *p = policy_compile(text, "p", &e), *q = policy_compile(text, "p", &e2);

    ASSERT((p == NULL) == (q == NULL));
    if (p == NULL) {
        check_message(&e);
        ASSERT(strcmp(e.message, e2.message) == 0);
        return;
    }
    check_rules(p);
    decide(p, first);
    decide(q, again);
    for (size_t i = 0; i < COUNT(INPUTS); i++)
        ASSERT(first[i].rule == again[i].rule && first[i].action == again[i].action);
    policy_unref(p);
    policy_unref(q);
}

static void as_cases(struct str text)
{
    struct policy_case *cases;
    struct arena a = {0};
    struct err e = {0};
    size_t n;

    if (!policy_cases_load(text, "c", &a, &cases, &n, &e))
        check_message(&e);
    else
        for (size_t i = 0; i < n; i++)
            ASSERT(!str_present(cases[i].args) || json_check(cases[i].args, &e));
    arena_free(&a);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    struct str text = str_make(n == 0 ? (const uint8_t *)"" : data, n);

    as_bundle(text);
    as_cases(text);
    return 0;
}
