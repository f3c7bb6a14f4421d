/* SPDX-License-Identifier: Apache-2.0
 * `rebuno policy test`: cases from a file, one step from the command line, or a past execution's
 * steps on a kernel. All three become the API's results, which are then shown or printed. */
#include <stdlib.h>

#include "base/arena.h"
#include "cli/commands.h"
#include "cli/file.h"
#include "cli/policy_cmd.h"
#include "cli/policy_results.h"
#include "cli/view.h"
#include "policy/tester.h"

enum { CASES_MAX = 64 * 1024 * 1024 };

struct trial {
    struct bundle bundle;
    struct visit v;     /* its arena also holds the cases */
    struct buf text;    /* that they were read from */
    struct buf results; /* JSON */
};

/* ---- here ---- */

struct cases {
    struct policy_case *list;
    size_t n;
    bool from_file; /* then rules that no case reaches are of interest */
};

/* "shell.yaml" has its cases in "shell.policytest.yaml". */
static const char *cases_beside(const char *bundle, struct arena *a)
{
    struct str path = str_of(bundle);

    if (path.n > 5 && str_eq(str_slice(path, path.n - 5, path.n), STR(".yaml")))
        path.n -= 5;
    else if (path.n > 4 && str_eq(str_slice(path, path.n - 4, path.n), STR(".yml")))
        path.n -= 4;
    return arena_printf(a, "%.*s.policytest.yaml", STR_ARG(path)).p;
}

static bool load_cases(struct cli *c, struct trial *t, struct cases *out, struct err *e)
{
    const char *given = cli_flag(c, "cases"), *agent = cli_flag(c, "agent-id");
    const char *path = given != NULL ? given : cases_beside(cli_arg(c, 0).p, &t->v.a);
    struct err cause;

    out->from_file = true;
    t->text.max = CASES_MAX;
    if (!file_read(path, &t->text, &cause))
        return err_set(e, cause.code, "%s%s", cause.message,
                       given != NULL
                           ? ""
                           : "; the bundle compiles, but it has no cases beside it: name them with "
                             "--cases, or try one step with --target");
    if (!policy_cases_load(buf_str(&t->text), path, &t->v.a, &out->list, &out->n, e))
        return false;
    for (size_t i = 0; agent != NULL && i < out->n; i++)
        out->list[i].agent_id = str_of(agent);
    return true;
}

/* The step of --target, read as the API reads cases. */
static bool read_probe(struct cli *c, struct trial *t, struct cases *out, struct err *e)
{
    const char *kind = cli_flag(c, "kind"), *agent = cli_flag(c, "agent-id");
    struct str args = str_of(cli_flag(c, "args"));
    struct json_writer w = {.out = &t->text};
    enum step_kind known;
    struct err bad;

    if (kind != NULL && !step_kind_parse(str_of(kind), &known))
        return err_set(e, ERR_VALIDATION,
                       "--kind: expected tool_call, llm_call or local, not \"%.80s\"", kind);
    if (str_present(args) && !json_check(args, &bad))
        return err_set(e, ERR_VALIDATION, "--args: %s", bad.message);
    jw_open(&w, '[');
    jw_open(&w, '{');
    jw_member_str(&w, "target", str_of(cli_flag(c, "target")));
    jw_member_str_opt(&w, "kind", str_of(kind));
    jw_member_raw_opt(&w, "args", args);
    jw_close(&w, '}');
    jw_close(&w, ']');
    return policy_cases_read(buf_str(&t->text), agent == NULL ? STR("") : str_of(agent), &t->v.a,
                             &out->list, &out->n, e);
}

static void write_unreached(struct json_writer *w, const struct policy *p, const bool *reached)
{
    jw_key(w, "unexercised_rules");
    jw_open(w, '[');
    for (size_t i = 0; i < policy_rule_count(p); i++) {
        if (!reached[i])
            jw_str(w, policy_rule(p, i)->id);
    }
    jw_close(w, ']');
}

/* Writes the results; what failed is counted in them. */
static void run_cases(struct trial *t, const struct cases *cases)
{
    const struct policy *p = t->bundle.policy;
    struct json_writer w = {.out = &t->results};
    bool *reached = xzalloc(policy_rule_count(p) + 1);
    int64_t failed = 0;

    jw_open(&w, '{');
    jw_key(&w, "results");
    jw_open(&w, '[');
    for (size_t i = 0; i < cases->n; i++) {
        struct policy_result r;

        policy_case_run(p, &cases->list[i], &t->v.a, &r);
        policy_result_write(&w, &cases->list[i], &r);
        if (r.match.rule != POLICY_NO_RULE)
            reached[r.match.rule] = true;
        failed += r.pass ? 0 : 1;
    }
    jw_close(&w, ']');
    jw_member_int(&w, "failed", failed);
    if (cases->from_file)
        write_unreached(&w, p, reached);
    jw_close(&w, '}');
    free(reached);
}

static int test_here(struct cli *c, struct trial *t)
{
    bool probe = cli_flag(c, "target") != NULL;
    struct cases cases = {0};
    struct err e;

    if (probe && !read_probe(c, t, &cases, &e))
        return cli_fail_usage(c, &e);
    if (!probe && !load_cases(c, t, &cases, &e))
        return cli_fail(c, &e);
    run_cases(t, &cases);
    if (!probe || cli_json(c))
        return results_show(c, buf_str(&t->results), RESULTS_OF_CASES);
    struct policy_result r;
    policy_case_run(t->bundle.policy, &cases.list[0], &t->v.a, &r);
    probe_show(c, t->bundle.policy, &r.match);
    return EXIT_OK;
}

/* ---- on a kernel ---- */

/* --agent-id, else the execution's own agent. */
static bool find_agent(struct cli *c, struct visit *v, struct str *agent, struct err *e)
{
    const struct view_field fields[] = {{"agent_id", true, agent}};

    *agent = str_of(cli_flag(c, "agent-id"));
    if (str_present(*agent))
        return true;
    if (!client_get(v->client, visit_path(v, ""), &v->answer, e))
        return false;
    view_read(buf_str(&v->answer), fields, COUNT(fields), &v->a);
    *agent = arena_str(&v->a, *agent);
    return str_present(*agent) ||
           err_set(e, ERR_VALIDATION, "the kernel's answer has no agent: name it with --agent-id");
}

static bool replay(struct cli *c, struct trial *t, struct err *e)
{
    struct buf body = {0}, path = {0};
    struct json_writer w = {.out = &body};
    struct str agent;

    if (!find_agent(c, &t->v, &agent, e))
        return false;
    buf_add(&path, STR("/v0/policies/"));
    client_escape(&path, agent);
    buf_add(&path, STR("/test"));
    buf_add_byte(&path, '\0');
    jw_open(&w, '{');
    jw_member_str(&w, "bundle", buf_str(&t->bundle.yaml));
    jw_member_str(&w, "execution_id", t->v.id);
    jw_close(&w, '}');
    bool ok = client_call(t->v.client, "POST", path.p, buf_str(&body), &t->results, e);
    buf_free(&body);
    buf_free(&path);
    return ok;
}

static int test_there(struct cli *c, struct trial *t)
{
    struct err e;
    int code = visit_begin(c, &t->v);

    if (code == EXIT_OK)
        code = visit_find(c, &t->v, &VISIT_EXECUTION, str_of(cli_flag(c, "execution")));
    if (code != EXIT_OK)
        return code;
    if (!replay(c, t, &e))
        return cli_fail(c, &e);
    return results_show(c, buf_str(&t->results), RESULTS_OF_STEPS);
}

/* ---- the command ---- */

static bool check_flags(struct cli *c, struct err *e)
{
    bool execution = cli_flag(c, "execution") != NULL, target = cli_flag(c, "target") != NULL,
         cases = cli_flag(c, "cases") != NULL;

    if (execution + target + cases > 1)
        return err_set(e, ERR_VALIDATION,
                       "--cases, --target and --execution are three ways: give one of them");
    if (!target && (cli_flag(c, "args") != NULL || cli_flag(c, "kind") != NULL))
        return err_set(e, ERR_VALIDATION, "--args and --kind belong to --target");
    return true;
}

int cmd_policy_test(struct cli *c)
{
    struct trial t = {0};
    struct err e;
    int code;

    if (!check_flags(c, &e))
        return cli_fail_usage(c, &e);
    if (!bundle_load(cli_arg(c, 0).p, &t.bundle, &e))
        code = cli_fail(c, &e);
    else if (cli_flag(c, "execution") != NULL)
        code = test_there(c, &t);
    else
        code = test_here(c, &t);
    bundle_free(&t.bundle);
    buf_free(&t.text);
    buf_free(&t.results);
    visit_end(&t.v);
    return code;
}
