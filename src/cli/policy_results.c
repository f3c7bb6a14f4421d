/* SPDX-License-Identifier: Apache-2.0
 * Results of policy tests for people. */
#include "cli/policy_results.h"

#include "cli/table.h"
#include "cli/view.h"
#include "cli/when.h"

enum { ARGS_COLUMNS = 32, UNREACHED_SHOWN = 20 };

/* ---- many ---- */

static const struct table_column CASE_COLUMNS[] = {
    {"RESULT", false, 0},   {"CASE", false, 30}, {"STEP", false, 40},
    {"DECISION", false, 0}, {"RULE", false, 0},
};
static const struct table_column STEP_COLUMNS[] = {
    {"RESULT", false, 0},   {"STEP", false, 40},     {"ARGS", false, ARGS_COLUMNS},
    {"DECISION", false, 0}, {"WAS RULE", false, 24}, {"RULE", false, 0},
};

static enum paint decision_paint(struct str decision)
{
    if (str_eq(decision, STR("allow")))
        return PAINT_GOOD;
    return str_eq(decision, STR("deny")) ? PAINT_BAD : PAINT_BUSY;
}

struct summary {
    enum results_of what;
    struct table table;
    struct buf failures; /* a line each */
    size_t passed, failed;
};

/* A case by its name; a step, which has none, by what it did. */
static void add_failure(struct summary *s, struct str name, struct str step, struct str args,
                        struct str failure)
{
    if (str_empty(name) && str_present(args))
        buf_printf(&s->failures, "%.*s %.*s: ", STR_ARG(step), STR_ARG(args));
    else
        buf_printf(&s->failures, "%.*s: ", STR_ARG(str_empty(name) ? step : name));
    buf_printf(&s->failures, "%.*s\n",
               STR_ARG(str_empty(failure) ? STR("not as expected") : failure));
}

static void add_result(struct summary *s, struct str result, struct arena *a)
{
    struct str name, kind, target, args, decision, rule, was, pass, failure;
    const struct view_field fields[] = {
        {"name", true, &name},    {"kind", true, &kind},         {"target", true, &target},
        {"args", false, &args},   {"decision", true, &decision}, {"rule_id", true, &rule},
        {"was_rule", true, &was}, {"pass", false, &pass},        {"failure", true, &failure},
    };

    view_read(result, fields, COUNT(fields), a);
    bool ok = str_eq(pass, STR("true")), steps = s->what == RESULTS_OF_STEPS;
    struct str step = arena_printf(a, "%.*s %.*s", STR_ARG(kind), STR_ARG(target));
    args = view_json_short(args, ARGS_COLUMNS, a);
    table_add(&s->table, ok ? PAINT_GOOD : PAINT_BAD, ok ? STR("ok") : STR("FAILED"));
    if (!steps)
        table_add(&s->table, PAINT_BOLD, name);
    table_add(&s->table, PAINT_NONE, step);
    if (steps)
        table_add(&s->table, PAINT_NONE, args);
    table_add(&s->table, decision_paint(decision), decision);
    if (steps)
        table_add(&s->table, PAINT_NONE, was);
    table_add(&s->table, PAINT_NONE, rule);
    s->passed += ok ? 1 : 0;
    s->failed += ok ? 0 : 1;
    if (!ok)
        add_failure(s, name, step, args, failure);
}

static void print_unreached(struct cli *c, const char *what, struct str rules, struct arena *a)
{
    struct buf list = {0};
    struct json_walk walk = {0};
    struct str rule;
    size_t n = 0;

    while (json_type_of(rules) == JSON_ARRAY && json_next_item(rules, &walk, &rule)) {
        if (n++ < UNREACHED_SHOWN)
            buf_printf(&list, "%s%.*s", n == 1 ? "" : ", ", STR_ARG(json_string(rule, a)));
    }
    if (n > UNREACHED_SHOWN)
        buf_printf(&list, " and %zu more", n - UNREACHED_SHOWN);
    if (n > 0)
        view_text(c, 0, PAINT_BUSY,
                  arena_printf(a, "no %s reached: %.*s", what, STR_ARG(buf_str(&list))));
    buf_free(&list);
}

static void print_summary(struct cli *c, struct summary *s, struct str unreached, struct arena *a)
{
    struct str failures = buf_str(&s->failures);

    table_print(&s->table, c);
    fputc('\n', c->out);
    if (failures.n > 0)
        view_text(c, 0, PAINT_NONE, str_slice(failures, 0, failures.n - 1));
    print_unreached(c, s->what == RESULTS_OF_CASES ? "case" : "step", unreached, a);
    cli_put(c, s->failed == 0 ? PAINT_GOOD : PAINT_BAD,
            arena_printf(a, "%zu passed, %zu failed", s->passed, s->failed));
    fputc('\n', c->out);
}

int results_show(struct cli *c, struct str results, enum results_of what)
{
    bool cases = what == RESULTS_OF_CASES;
    struct summary s = {.what = what,
                        .table = {.columns = cases ? CASE_COLUMNS : STEP_COLUMNS,
                                  .n_columns = cases ? COUNT(CASE_COLUMNS) : COUNT(STEP_COLUMNS)}};
    struct str list, failed, unreached, item;
    const struct view_field fields[] = {{"results", false, &list},
                                        {"failed", false, &failed},
                                        {"unexercised_rules", false, &unreached}};
    struct arena a = {0};
    struct json_walk walk = {0};
    struct err e;
    int code;

    view_read(results, fields, COUNT(fields), &a);
    while (json_type_of(list) == JSON_ARRAY && json_next_item(list, &walk, &item))
        add_result(&s, item, &a);
    if (json_type_of(list) != JSON_ARRAY) {
        err_set(&e, ERR_VALIDATION, "the kernel's answer has no results");
        code = cli_fail(c, &e);
    } else {
        if (cli_json(c))
            cli_line(c, results);
        else
            print_summary(c, &s, unreached, &a);
        code = s.failed == 0 ? EXIT_OK : EXIT_FAILED;
    }
    table_free(&s.table);
    buf_free(&s.failures);
    arena_free(&a);
    return code;
}

/* ---- one ---- */

static void print_approval(struct cli *c, const struct approval_config *approval, struct arena *a)
{
    struct buf text = {0};

    view_pair(c, "message", approval->message);
    view_pair(c, "approvers", view_names(approval->approvers, a));
    if (approval->timeout_us > 0) {
        when_duration(&text, approval->timeout_us);
        view_pair(c, "expires after", buf_str(&text));
    }
    buf_free(&text);
}

static void print_limit(struct cli *c, const struct rate_limit *limit)
{
    struct buf text = {0};

    if (!limit->set)
        return;
    buf_printf(&text, "%lld in ", (long long)limit->max_calls);
    when_duration(&text, limit->window_us);
    buf_printf(&text, " per %.*s", STR_ARG(policy_scope_name(limit->per_what)));
    if (limit->max_wait_us > 0) {
        buf_add(&text, STR("; waits up to "));
        when_duration(&text, limit->max_wait_us);
    }
    view_pair(c, "rate limit", buf_str(&text));
    buf_free(&text);
}

static void print_rule(struct cli *c, const struct rule *rule, struct arena *a)
{
    if (rule->decision == POLICY_REQUIRE_APPROVAL || rule->decision == POLICY_JUDGE ||
        rule->budget.set)
        print_approval(c, &rule->approval, a);
    print_limit(c, &rule->rate_limit);
    if (rule->budget.set)
        view_pair(c, "budget",
                  arena_printf(a, "%lld tokens per %.*s, then %.*s",
                               (long long)rule->budget.max_tokens,
                               STR_ARG(policy_scope_name(rule->budget.scope)),
                               STR_ARG(policy_action_name(rule->budget.on_exceed))));
    if (rule->decision != POLICY_JUDGE)
        return;
    view_pair(c, "judge",
              arena_printf(a, "its choice from %g on, else %.*s", rule->judge.threshold,
                           STR_ARG(policy_action_name(rule->judge.fallback))));
    if (rule->judge.instructions.n > 0)
        view_pair(c, "instructions", rule->judge.instructions);
}

void probe_show(struct cli *c, const struct policy *p, const struct policy_match *match)
{
    struct str decision = policy_action_name(match->action);
    struct arena a = {0};

    view_pair_painted(c, "decision", decision_paint(decision), decision);
    view_pair(c, "rule", match->rule_id);
    view_pair(c, "reason", match->reason);
    if (match->rule != POLICY_NO_RULE)
        print_rule(c, policy_rule(p, (size_t)match->rule), &a);
    arena_free(&a);
}
