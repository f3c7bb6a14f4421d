/* SPDX-License-Identifier: Apache-2.0
 * What bundles say of steps. */
#include "support/policy.h"

#include "policy/glob.h"

/* ---- rules and defaults ---- */

static void first_match_wins(void **state)
{
    struct policy *p =
        must_load(STR("rules:\n"
                      "- {id: a, when: {target: x}, then: {decision: deny, reason: no}}\n"
                      "- {id: b, when: {target: '*'}, then: {decision: allow}}\n"
                      "- {id: c, when: {target: y}, then: {decision: deny}}\n"));
    struct policy_match m = evaluate(p, KIND_TOOL_CALL, STR("x"), STR("{}"));

    (void)state;
    assert_int_equal(m.rule, 0);
    assert_int_equal(m.action, POLICY_DENY);
    CHECK_STR(m.rule_id, STR("a"));
    CHECK_STR(m.reason, STR("no"));
    m = evaluate(p, KIND_TOOL_CALL, STR("y"), STR("{}"));
    assert_int_equal(m.rule, 1);
    assert_int_equal(m.action, POLICY_ALLOW);
    CHECK_STR(m.rule_id, STR("b"));
    assert_false(str_present(m.reason));
    policy_unref(p);
}

static void falls_back(void **state)
{
    static const struct {
        struct str yaml;
        enum step_kind kind;
        enum policy_action action;
        struct str rule_id, reason;
    } cases[] = {
        {STR_INIT("rules: []"), KIND_TOOL_CALL, POLICY_DENY, STR_INIT("default"),
         STR_INIT("no explicit allow rule matched")},
        {STR_INIT("default_action: deny"), KIND_LLM_CALL, POLICY_DENY, STR_INIT("default"),
         STR_INIT("no explicit allow rule matched")},
        {STR_INIT("default_action: allow"), KIND_TOOL_CALL, POLICY_ALLOW, STR_INIT("default"),
         STR_INIT("default allow")},
        {STR_INIT("default_action: deny"), KIND_LOCAL, POLICY_ALLOW, STR_INIT("local"), {NULL, 0}},
        {STR_INIT("default_action: allow"), KIND_LOCAL, POLICY_ALLOW, STR_INIT("local"), {NULL, 0}},
    };

    (void)state;
    for (size_t i = 0; i < COUNT(cases); i++) {
        struct policy *p = must_load(cases[i].yaml);
        struct policy_match m = evaluate(p, cases[i].kind, STR("t"), STR("{}"));

        CHECKF(m.rule == POLICY_NO_RULE && m.action == cases[i].action, "case %zu", i);
        CHECK_STR(m.rule_id, cases[i].rule_id);
        CHECK_STR(m.reason, cases[i].reason);
        policy_unref(p);
    }
}

/* A rule that matches a local step goes before the default for local steps. */
static void rules_see_local_steps(void **state)
{
    struct policy *p = must_load(STR("rules:\n- {id: a, when: {step_kind: local}, then: "
                                     "{decision: deny}}\n"));

    (void)state;
    CHECK_STR(evaluate(p, KIND_LOCAL, STR("t"), STR("{}")).rule_id, STR("a"));
    CHECK_STR(evaluate(p, KIND_TOOL_CALL, STR("t"), STR("{}")).rule_id, STR("default"));
    policy_unref(p);
}

/* One rule whose `when` is given; does it match? The agent is `coder`. */
static bool matches(struct str when, enum step_kind kind, struct str target, struct str args)
{
    struct buf yaml = {0};

    buf_printf(&yaml, "rules:\n- id: x\n  then: {decision: deny}\n  when: %.*s\n", STR_ARG(when));
    struct policy *p = must_load(buf_str(&yaml));
    struct policy_match m = evaluate(p, kind, target, args);
    policy_unref(p);
    buf_free(&yaml);
    return m.rule == 0;
}

static void every_field_must_match(void **state)
{
    static const struct {
        struct str when;
        bool matches; /* a tool_call of `fs_write` by `coder` */
    } cases[] = {
        {STR_INIT("{}"), true},
        {STR_INIT("{target: fs_*}"), true},
        {STR_INIT("{target: shell_*}"), false},
        {STR_INIT("{targets: [shell_*, fs_w?ite]}"), true},
        {STR_INIT("{targets: [shell_*, fs_read]}"), false},
        {STR_INIT("{target: fs_*, targets: [fs_read]}"), false},
        {STR_INIT("{target: fs_read, targets: [fs_write]}"), false},
        {STR_INIT("{agent_id: coder}"), true},
        {STR_INIT("{agent_id: code*}"), false}, /* exact: no glob */
        {STR_INIT("{agent_id: Coder}"), false},
        {STR_INIT("{agent_ids: [reviewer, coder]}"), true},
        {STR_INIT("{agent_ids: [reviewer]}"), false},
        {STR_INIT("{agent_id: coder, agent_ids: [reviewer]}"), false},
        {STR_INIT("{step_kind: tool_call}"), true},
        {STR_INIT("{step_kind: llm_call}"), false},
        {STR_INIT("{target: fs_*, agent_id: coder, step_kind: tool_call}"), true},
        {STR_INIT("{target: fs_*, agent_id: other, step_kind: tool_call}"), false},
        {STR_INIT("{target: fs_*, arguments: {path: {equals: /tmp/a}}}"), true},
        {STR_INIT("{target: x, arguments: {path: {equals: /tmp/a}}}"), false},
        {STR_INIT("{target: fs_*, arguments: {path: {equals: /tmp/b}}}"), false},
    };

    (void)state;
    for (size_t i = 0; i < COUNT(cases); i++)
        CHECKF(matches(cases[i].when, KIND_TOOL_CALL, STR("fs_write"),
                       STR("{\"path\":\"/tmp/a\"}")) == cases[i].matches,
               "%.*s", STR_ARG(cases[i].when));
    /* a model call without a model has an empty target */
    assert_true(
        matches(STR("{target: '', step_kind: llm_call}"), KIND_LLM_CALL, STR(""), STR("{}")));
    assert_true(matches(STR("{target: '*'}"), KIND_LLM_CALL, STR(""), STR("{}")));
    assert_false(matches(STR("{target: '?*'}"), KIND_LLM_CALL, STR(""), STR("{}")));
}

/* ---- predicates ---- */

static const struct {
    struct str arguments; /* YAML */
    struct str args;      /* JSON */
    bool matches;
} PREDICATES[] = {
    /* each operator */
    {STR_INIT("{a: {equals: x}}"), STR_INIT("{\"a\":\"x\"}"), true},
    {STR_INIT("{a: {equals: x}}"), STR_INIT("{\"a\":\"xy\"}"), false},
    {STR_INIT("{a: {contains: bc}}"), STR_INIT("{\"a\":\"abcd\"}"), true},
    {STR_INIT("{a: {contains: cb}}"), STR_INIT("{\"a\":\"abcd\"}"), false},
    {STR_INIT("{a: {contains: abc}}"), STR_INIT("{\"a\":\"ab\"}"), false},
    {STR_INIT("{a: {contains: a}}"), STR_INIT("{\"a\":\"\"}"), false},
    {STR_INIT("{a: {one_of: [x, y]}}"), STR_INIT("{\"a\":\"y\"}"), true},
    {STR_INIT("{a: {one_of: [x, y]}}"), STR_INIT("{\"a\":\"z\"}"), false},
    {STR_INIT("{a: {one_of: ['', y]}}"), STR_INIT("{\"a\":\"\"}"), true},
    {STR_INIT("{a: {regex: 'b+c'}}"), STR_INIT("{\"a\":\"abbbcd\"}"), true}, /* unanchored */
    {STR_INIT("{a: {regex: '^b'}}"), STR_INIT("{\"a\":\"ab\"}"), false},
    /* all that are given must pass */
    {STR_INIT("{a: {contains: x, regex: '^y'}}"), STR_INIT("{\"a\":\"yx\"}"), true},
    {STR_INIT("{a: {contains: x, regex: '^y'}}"), STR_INIT("{\"a\":\"yz\"}"), false},
    {STR_INIT("{a: {contains: x, regex: '^y'}}"), STR_INIT("{\"a\":\"zx\"}"), false},
    {STR_INIT("{a: {equals: x, one_of: [y]}}"), STR_INIT("{\"a\":\"x\"}"), false},
    {STR_INIT("{a: {equals: x}, b: {equals: y}}"), STR_INIT("{\"a\":\"x\",\"b\":\"y\"}"), true},
    {STR_INIT("{a: {equals: x}, b: {equals: y}}"), STR_INIT("{\"a\":\"x\",\"b\":\"z\"}"), false},
    {STR_INIT("{a: {equals: x}, b: {equals: y}}"), STR_INIT("{\"a\":\"x\"}"), false},
    /* the key must be present */
    {STR_INIT("{a: {regex: '.*'}}"), STR_INIT("{}"), false},
    {STR_INIT("{a: {regex: '.*'}}"), STR_INIT("{\"A\":\"x\"}"), false},
    {STR_INIT("{a: {regex: '.*'}}"), STR_INIT("{\"a\":\"\"}"), true},
    /* arguments that are not an object match none */
    {STR_INIT("{a: {regex: '.*'}}"), STR_INIT("null"), false},
    {STR_INIT("{a: {regex: '.*'}}"), STR_INIT("\"a\""), false},
    {STR_INIT("{a: {regex: '.*'}}"), STR_INIT("[\"a\"]"), false},
    {STR_INIT("{a: {regex: '.*'}}"), STR_INIT("[{\"a\":1}]"), false},
    {STR_INIT("{a: {regex: '.*'}}"), STR_INIT("1"), false},
    {STR_INIT("{'0': {regex: '.*'}}"), STR_INIT("[1]"), false},
    /* numbers by their source text */
    {STR_INIT("{a: {equals: 1}}"), STR_INIT("{\"a\":1}"), true},
    {STR_INIT("{a: {equals: 1}}"), STR_INIT("{\"a\":1.0}"), false},
    {STR_INIT("{a: {equals: 1.0}}"), STR_INIT("{\"a\":1.0}"), true},
    {STR_INIT("{a: {equals: 1e2}}"), STR_INIT("{\"a\":1e2}"), true},
    {STR_INIT("{a: {equals: 100}}"), STR_INIT("{\"a\":1e2}"), false},
    {STR_INIT("{a: {equals: 1234567890123456789012345678901234567890}}"),
     STR_INIT("{\"a\":1234567890123456789012345678901234567890}"), true},
    {STR_INIT("{a: {regex: '^-?[0-9]+$'}}"), STR_INIT("{\"a\":-17}"), true},
    {STR_INIT("{a: {equals: '1'}}"), STR_INIT("{\"a\":\"1\"}"), true}, /* text all the same */
    {STR_INIT("{a: {equals: 0x10}}"), STR_INIT("{\"a\":\"0x10\"}"), true},
    /* true, false, null */
    {STR_INIT("{a: {equals: true}}"), STR_INIT("{\"a\":true}"), true},
    {STR_INIT("{a: {equals: true}}"), STR_INIT("{\"a\":false}"), false},
    {STR_INIT("{a: {one_of: [true, false]}}"), STR_INIT("{\"a\":false}"), true},
    {STR_INIT("{a: {equals: null}}"), STR_INIT("{\"a\":null}"), true},
    {STR_INIT("{a: {equals: null}}"), STR_INIT("{}"), false},
    {STR_INIT("{a: {equals: 'null'}}"), STR_INIT("{\"a\":null}"), true},
    {STR_INIT("{a: {one_of: [~, x]}}"), STR_INIT("{\"a\":\"~\"}"), true},
    /* objects and arrays by their canonical JSON */
    {STR_INIT("{a: {equals: '[1,2]'}}"), STR_INIT("{\"a\":[1, 2]}"), true},
    {STR_INIT("{a: {equals: '{\"b\":1,\"c\":[]}'}}"), STR_INIT("{\"a\":{\"c\": [], \"b\":1}}"),
     true},
    {STR_INIT("{a: {contains: '\"rm\"'}}"), STR_INIT("{\"a\":[\"rm\",\"-rf\"]}"), true},
    {STR_INIT("{a: {regex: '\\\\u0026'}}"), STR_INIT("{\"a\":[\"x&y\"]}"), true},
    /* escapes count as the text they mean */
    {STR_INIT("{a: {equals: 'rm -rf /'}}"), STR_INIT("{\"a\":\"\\u0072m -rf \\/\"}"), true},
    {STR_INIT("{a: {contains: '&&'}}"), STR_INIT("{\"a\":\"x && y\"}"), true},
    {STR_INIT("{a: {regex: '[<>]'}}"), STR_INIT("{\"a\":\"x > y\"}"), true},
    {STR_INIT("{a: {equals: \"a\\nb\"}}"), STR_INIT("{\"a\":\"a\\nb\"}"), true},
    {STR_INIT("{a: {equals: 'a\\nb'}}"), STR_INIT("{\"a\":\"a\\nb\"}"), false},
    {STR_INIT("{a: {equals: 'a\"b\\c'}}"), STR_INIT("{\"a\":\"a\\\"b\\\\c\"}"), true},
    {STR_INIT("{a: {contains: \"\\0\"}}"), STR_INIT("{\"a\":\"x\\u0000y\"}"), true},
    {STR_INIT("{a: {regex: '^.$'}}"), STR_INIT("{\"a\":\"\\ud83d\\ude00\"}"), true},
    {STR_INIT("{a: {equals: \"\\U0001F600\"}}"), STR_INIT("{\"a\":\"\\ud83d\\ude00\"}"), true},
    {STR_INIT("{path: {equals: x}}"), STR_INIT("{\"p\\u0061th\":\"x\"}"), true},
    {STR_INIT("{'a<b': {equals: x}}"), STR_INIT("{\"a<b\":\"x\"}"), true},
    {STR_INIT("{\"a\\nb\": {equals: x}}"), STR_INIT("{\"a\\nb\":\"x\"}"), true},
    /* keys: whole first, then as a path */
    {STR_INIT("{o.m: {equals: x}}"), STR_INIT("{\"o\":{\"m\":\"x\"}}"), true},
    {STR_INIT("{o.m: {equals: x}}"), STR_INIT("{\"o.m\":\"x\"}"), true},
    {STR_INIT("{o.m: {equals: x}}"), STR_INIT("{\"o.m\":\"y\",\"o\":{\"m\":\"x\"}}"), false},
    {STR_INIT("{o.m: {equals: x}}"), STR_INIT("{\"o\":{\"n\":\"x\"}}"), false},
    {STR_INIT("{o.m: {equals: x}}"), STR_INIT("{\"o\":\"m\"}"), false},
    {STR_INIT("{o.m: {equals: x}}"), STR_INIT("{\"o\":[{\"m\":\"x\"}]}"), false},
    {STR_INIT("{a.b.c: {equals: 1}}"), STR_INIT("{\"a\":{\"b\":{\"c\":1}}}"), true},
    {STR_INIT("{a.b.c: {equals: 1}}"), STR_INIT("{\"a\":{\"b.c\":1}}"), false},
    {STR_INIT("{a.b.c: {equals: 1}}"), STR_INIT("{\"a.b\":{\"c\":1}}"), false},
    {STR_INIT("{a.b: {equals: '{\"c\":1}'}}"), STR_INIT("{\"a\":{\"b\":{\"c\":1}}}"), true},
    {STR_INIT("{a.b: {equals: x}}"), STR_INIT("{\"a\":{\"\\u0062\":\"\\u0078\"}}"), true},
    {STR_INIT("{a.: {equals: x}}"), STR_INIT("{\"a\":{\"\":\"x\"}}"), true},
    {STR_INIT("{.a: {equals: x}}"), STR_INIT("{\"\":{\"a\":\"x\"}}"), true},
    {STR_INIT("{'': {equals: x}}"), STR_INIT("{\"\":\"x\"}"), true},
    {STR_INIT("{null: {equals: x}}"), STR_INIT("{\"null\":\"x\"}"), true},
    {STR_INIT("{1: {equals: x}}"), STR_INIT("{\"1\":\"x\"}"), true},
};

static void compares_as_text(void **state)
{
    (void)state;
    for (size_t i = 0; i < COUNT(PREDICATES); i++) {
        struct buf when = {0};

        buf_printf(&when, "{arguments: %.*s}", STR_ARG(PREDICATES[i].arguments));
        CHECKF(matches(buf_str(&when), KIND_TOOL_CALL, STR("t"), PREDICATES[i].args) ==
                   PREDICATES[i].matches,
               "%.*s on %.*s", STR_ARG(PREDICATES[i].arguments), STR_ARG(PREDICATES[i].args));
        buf_free(&when);
    }
}

/* More members and more rules' keys than an evaluation has room for on its stack. */
static void finds_one_of_many(void **state)
{
    enum { MANY = 3000 };
    struct buf args = {0}, yaml = {0};

    (void)state;
    buf_add_z(&yaml, "rules:\n");
    buf_add_byte(&args, '{');
    for (int i = 0; i < MANY; i++) {
        buf_printf(&args, "%s\"k%d\":%d", i == 0 ? "" : ",", i, i * 7);
        buf_printf(&yaml,
                   "- id: r%d\n  then: {decision: allow}\n  when: {target: 't%d', arguments: "
                   "{k%d: {equals: %d}}}\n",
                   i, i, i, i * 7);
    }
    buf_add_byte(&args, '}');
    struct policy *p = must_load(buf_str(&yaml));
    for (int i = 0; i < MANY; i += 101) {
        char target[16];
        snprintf(target, sizeof target, "t%d", i);
        struct policy_match m = evaluate(p, KIND_TOOL_CALL, str_of(target), buf_str(&args));
        CHECKF(m.rule == i, "rule %d, not %d", m.rule, i);
    }
    assert_int_equal(evaluate(p, KIND_TOOL_CALL, STR("t"), buf_str(&args)).rule, POLICY_NO_RULE);
    policy_unref(p);
    buf_free(&yaml);
    buf_free(&args);
}

/* ---- globs ---- */

static const struct {
    struct str pattern, target;
    bool matches;
} GLOBS[] = {
    {STR_INIT("abc"), STR_INIT("abc"), true},
    {STR_INIT("abc"), STR_INIT("abcd"), false},
    {STR_INIT("abc"), STR_INIT("ab"), false},
    {STR_INIT("abc"), STR_INIT("ABC"), false},
    {STR_INIT(""), STR_INIT(""), true},
    {STR_INIT(""), STR_INIT("a"), false},
    {STR_INIT("*"), STR_INIT(""), true},
    {STR_INIT("*"), STR_INIT("a/b/c"), true},
    {STR_INIT("**"), STR_INIT("ab"), true},
    {STR_INIT("fs_*"), STR_INIT("fs_"), true},
    {STR_INIT("fs_*"), STR_INIT("fs_a/b"), true},
    {STR_INIT("fs_*"), STR_INIT("fs"), false},
    {STR_INIT("*_write"), STR_INIT("fs_write"), true},
    {STR_INIT("*_write"), STR_INIT("fs_write_"), false},
    {STR_INIT("a*b*c"), STR_INIT("aXbYbZc"), true},
    {STR_INIT("a*b*c"), STR_INIT("acb"), false},
    {STR_INIT("a*a"), STR_INIT("a"), false},
    {STR_INIT("a*a"), STR_INIT("aa"), true},
    {STR_INIT("*ab"), STR_INIT("aab"), true},
    {STR_INIT("*aab*"), STR_INIT("xaaab"), true},
    {STR_INIT("?"), STR_INIT("/"), true},
    {STR_INIT("?"), STR_INIT(""), false},
    {STR_INIT("?"), STR_INIT("ab"), false},
    {STR_INIT("a?c"), STR_INIT("abc"), true},
    {STR_INIT("?"), STR_INIT("\xc3\xa9"), true}, /* a character, not a byte */
    {STR_INIT("??"), STR_INIT("\xc3\xa9"), false},
    {STR_INIT("*?"), STR_INIT("\xf0\x9f\x98\x80"), true},
    {STR_INIT("[a-c]"), STR_INIT("b"), true},
    {STR_INIT("[a-c]"), STR_INIT("d"), false},
    {STR_INIT("[a-c]"), STR_INIT(""), false},
    {STR_INIT("[^a-c]"), STR_INIT("d"), true},
    {STR_INIT("[^a-c]"), STR_INIT("b"), false},
    {STR_INIT("[^a]"), STR_INIT(""), false},
    {STR_INIT("[^a]"), STR_INIT("\xc3\xa9"), true},
    {STR_INIT("[a-c0-9_]x"), STR_INIT("_x"), true},
    {STR_INIT("[a-c0-9_]x"), STR_INIT("7x"), true},
    {STR_INIT("[a^]"), STR_INIT("^"), true},
    {STR_INIT("[a-]"), STR_INIT("-"), true}, /* a dash at an edge is one */
    {STR_INIT("[-a]"), STR_INIT("-"), true},
    {STR_INIT("[a-]"), STR_INIT("b"), false},
    {STR_INIT("[\\]a]"), STR_INIT("]"), true},
    {STR_INIT("[\\^a]"), STR_INIT("^"), true},
    {STR_INIT("[a\\-z]"), STR_INIT("b"), false},
    {STR_INIT("[a\\-z]"), STR_INIT("-"), true},
    {STR_INIT("[*?]"), STR_INIT("*"), true},
    {STR_INIT("[*?]"), STR_INIT("a"), false},
    {STR_INIT("[\xce\xb1-\xcf\x89]"), STR_INIT("\xce\xbb"), true}, /* alpha to omega: lambda */
    {STR_INIT("[\xce\xb1-\xcf\x89]"), STR_INIT("z"), false},
    {STR_INIT("\\*"), STR_INIT("*"), true},
    {STR_INIT("\\*"), STR_INIT("a"), false},
    {STR_INIT("\\?x"), STR_INIT("?x"), true},
    {STR_INIT("\\[a]"), STR_INIT("[a]"), true},
    {STR_INIT("\\a"), STR_INIT("a"), true},
    {STR_INIT("a\\\\b"), STR_INIT("a\\b"), true},
    {STR_INIT("]"), STR_INIT("]"), true},
    {STR_INIT("a[b-d]*[!x]"), STR_INIT("acZZ!"), true}, /* ! is a character like others */
    /* equal to the target: matches though its characters mean something else */
    {STR_INIT("tool[1]"), STR_INIT("tool1"), true},
    {STR_INIT("tool[1]"), STR_INIT("tool[1]"), true},
    {STR_INIT("\\*"), STR_INIT("\\*"), true},
    {STR_INIT("a?"), STR_INIT("a?"), true},
};

static void globs_match(void **state)
{
    struct glob g;

    (void)state;
    for (size_t i = 0; i < COUNT(GLOBS); i++) {
        const char *wrong = glob_parse(GLOBS[i].pattern, &g);
        CHECKF(wrong == NULL, "%.*s: %s", STR_ARG(GLOBS[i].pattern), wrong);
        CHECKF(glob_matches(&g, GLOBS[i].target) == GLOBS[i].matches, "%.*s on %.*s",
               STR_ARG(GLOBS[i].pattern), STR_ARG(GLOBS[i].target));
    }
}

static void malformed_globs_are_refused(void **state)
{
    static const struct str cases[] = {
        STR_INIT("["),  STR_INIT("a["),   STR_INIT("[a"),    STR_INIT("[a-"),    STR_INIT("[^"),
        STR_INIT("[]"), STR_INIT("[^]"),  STR_INIT("[]a]"),  STR_INIT("[z-a]"),  STR_INIT("[a\\]"),
        STR_INIT("\\"), STR_INIT("a*\\"), STR_INIT("[a-\\"), STR_INIT("x[b-a]"), STR_INIT("[9-0]x"),
    };
    struct glob g;

    (void)state;
    for (size_t i = 0; i < COUNT(cases); i++)
        CHECKF(glob_parse(cases[i], &g) != NULL, "%.*s", STR_ARG(cases[i]));
}

/* Against the definition itself, by recursion, for all short patterns and targets. */
static bool naive_glob(const char *p, const char *t)
{
    if (*p == '\0')
        return *t == '\0';
    if (*p == '*')
        return naive_glob(p + 1, t) || (*t != '\0' && naive_glob(p, t + 1));
    return *t != '\0' && (*p == '?' || *p == *t) && naive_glob(p + 1, t + 1);
}

static void nth_word(size_t n, const char *letters, char *out)
{
    size_t base = strlen(letters);

    for (; n > 0; n = (n - 1) / base)
        *out++ = letters[(n - 1) % base];
    *out = '\0';
}

static void globs_match_as_defined(void **state)
{
    char pattern[16], target[16];
    struct glob g;

    (void)state;
    for (size_t i = 0; i < 1365; i++) { /* up to five of four */
        nth_word(i, "ab*?", pattern);
        assert_null(glob_parse(str_of(pattern), &g));
        for (size_t j = 0; j < 127; j++) { /* up to six of two */
            nth_word(j, "ab", target);
            CHECKF(glob_matches(&g, str_of(target)) == naive_glob(pattern, target), "%s on %s",
                   pattern, target);
        }
    }
}

/* ---- cost ---- */

static void says_what_is_costly(void **state)
{
    enum { MEBIBYTE = 1024 * 1024 };
    struct policy *p = must_load(
        STR("rules:\n"
            "- {id: a, when: {target: a, arguments: {c: {regex: '([ab]?){100}a{100}c'}}},\n"
            "   then: {decision: deny}}\n"
            "- {id: b, when: {target: b, arguments: {c: {equals: x}}}, then: {decision: deny}}\n"
            "- {id: c, when: {target: c}, then: {decision: allow}}\n"
            "- {id: d, when: {target: c, arguments: {c: {regex: '(a|b)+'}}},\n"
            "   then: {decision: deny}}\n"));
    struct buf big = {0}, beside = {0};

    (void)state;
    buf_add_z(&big, "{\"c\":\"");
    buf_add_z(&beside, "{\"big\":\"");
    for (int i = 0; i < MEBIBYTE; i++)
        buf_add_byte(&big, 'a');
    for (int i = 0; i < 100 * 1024; i++)
        buf_add_byte(&beside, 'a');
    buf_add_z(&big, "\"}");
    buf_add_z(&beside, "\",\"c\":\"a\"}");
    const struct {
        struct str target, args;
        bool costly;
    } cases[] = {
        {STR("a"), STR("{\"c\":\"ab\"}"), false},
        {STR("a"), buf_str(&big), true},
        {STR("a"), buf_str(&beside), false}, /* what the regex looks at is small */
        {STR("b"), STR("{}"), false},
        {STR("c"), buf_str(&big), false}, /* allowed before anything looks at the arguments */
        {STR("d"), buf_str(&big), false}, /* no rule is about it */
    };
    for (size_t i = 0; i < COUNT(cases); i++) {
        struct policy_input in = {STR("coder"), KIND_TOOL_CALL, cases[i].target, cases[i].args};
        CHECKF(policy_is_costly(p, &in) == cases[i].costly, "case %zu", i);
    }
    policy_unref(p);
    buf_free(&big);
    buf_free(&beside);
}

/* Finding out what a bundle costs must not cost as much: this goes by its rules, whatever the step.
 */
static void long_lists_are_costly(void **state)
{
    static const char AGENTS[] = "rules: [{id: a, when: {agent_ids: [";
    static const char ARGUMENTS[] = "rules: [{id: a, when: {arguments: {";
    static const struct {
        const char *head, *before, *behind, *tail; /* numbers stand between before and behind */
        int n;
        bool costly;
    } cases[] = {
        {AGENTS, "a", ",", "a]}, then: {decision: deny}}]", 500, false},
        {AGENTS, "a", ",", "a]}, then: {decision: deny}}]", 400000, true},
        {ARGUMENTS, "k", ": {equals: 1},", "}}, then: {decision: deny}}]", 500, false},
        {ARGUMENTS, "k", ": {equals: 1},", "}}, then: {decision: deny}}]", 50000, true},
        {"rules:", "\n- {id: r", ", when: {arguments: {k: {equals: a}}}, then: {decision: deny}}",
         "", 10000, false},
    };

    (void)state;
    for (size_t i = 0; i < COUNT(cases); i++) {
        const struct policy_input in = {STR("coder"), KIND_TOOL_CALL, STR("x"), STR("{}")};
        struct buf text = {0};

        buf_add_z(&text, cases[i].head);
        for (int n = 0; n < cases[i].n; n++)
            buf_printf(&text, "%s%d%s", cases[i].before, n, cases[i].behind);
        buf_add_z(&text, cases[i].tail);
        struct policy *p = must_load(buf_str(&text));
        CHECKF(policy_is_costly(p, &in) == cases[i].costly, "case %zu", i);
        policy_unref(p);
        buf_free(&text);
    }
}

/* ---- bundles of the documentation ---- */

static void sandbox_bundle(void **state)
{
    struct policy *p = must_load(STR("default_action: deny\n"
                                     "rules:\n"
                                     "  - id: allow-llm\n"
                                     "    when:\n"
                                     "      step_kind: llm_call\n"
                                     "    then:\n"
                                     "      decision: allow\n"
                                     "\n"
                                     "  - id: allow-sandbox\n"
                                     "    when:\n"
                                     "      targets: [shell, read_file, write_file]\n"
                                     "    then:\n"
                                     "      decision: allow\n"
                                     "\n"
                                     "  - id: open-pr\n"
                                     "    when:\n"
                                     "      target: open_pr\n"
                                     "    then:\n"
                                     "      decision: require_approval\n"
                                     "      reason: opening a pull request needs approval\n"));
    static const struct {
        enum step_kind kind;
        struct str target, rule_id;
        enum policy_action action;
    } cases[] = {
        {KIND_LLM_CALL, STR_INIT("gpt-4o"), STR_INIT("allow-llm"), POLICY_ALLOW},
        {KIND_TOOL_CALL, STR_INIT("shell"), STR_INIT("allow-sandbox"), POLICY_ALLOW},
        {KIND_TOOL_CALL, STR_INIT("read_file"), STR_INIT("allow-sandbox"), POLICY_ALLOW},
        {KIND_TOOL_CALL, STR_INIT("write_file"), STR_INIT("allow-sandbox"), POLICY_ALLOW},
        {KIND_TOOL_CALL, STR_INIT("open_pr"), STR_INIT("open-pr"), POLICY_REQUIRE_APPROVAL},
        {KIND_TOOL_CALL, STR_INIT("delete_repo"), STR_INIT("default"), POLICY_DENY},
        {KIND_LOCAL, STR_INIT("plan"), STR_INIT("local"), POLICY_ALLOW},
    };

    (void)state;
    for (size_t i = 0; i < COUNT(cases); i++) {
        struct policy_match m =
            evaluate(p, cases[i].kind, cases[i].target, STR("{\"command\":\"ls\"}"));
        CHECK_STR(m.rule_id, cases[i].rule_id);
        assert_int_equal(m.action, cases[i].action);
    }
    policy_unref(p);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(first_match_wins),
        cmocka_unit_test(falls_back),
        cmocka_unit_test(rules_see_local_steps),
        cmocka_unit_test(every_field_must_match),
        cmocka_unit_test(compares_as_text),
        cmocka_unit_test(finds_one_of_many),
        cmocka_unit_test(globs_match),
        cmocka_unit_test(malformed_globs_are_refused),
        cmocka_unit_test(globs_match_as_defined),
        cmocka_unit_test(says_what_is_costly),
        cmocka_unit_test(long_lists_are_costly),
        cmocka_unit_test(sandbox_bundle),
    };

    return cmocka_run_group_tests_name("policy_evaluate", tests, NULL, NULL);
}
