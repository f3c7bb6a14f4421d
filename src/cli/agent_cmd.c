/* SPDX-License-Identifier: Apache-2.0
 * `rebuno agent …`: the agents that a kernel knows. */
#include "base/clock.h"
#include "cli/commands.h"
#include "cli/layout.h"
#include "cli/manifest.h"
#include "cli/table.h"
#include "cli/view.h"
#include "cli/visit.h"
#include "kernel/agent.h"

static const char AGENTS_PATH[] = "/v0/agents";

/* The agent's path; false when the id can be no agent's, which would name another route. */
static bool agent_path(struct visit *v, struct str id, const char **path, struct err *e)
{
    struct buf b = {0};

    if (id.n == 0 || strspn(id.p, ".") == id.n)
        return err_set(e, ERR_VALIDATION, "'%.*s' is no agent's id", STR_ARG(id));
    buf_add_z(&b, AGENTS_PATH);
    buf_add_byte(&b, '/');
    client_escape(&b, id);
    *path = arena_str(&v->a, buf_str(&b)).p;
    buf_free(&b);
    return true;
}

static struct str lease_text(struct arena *a, struct str lease_seconds)
{
    int64_t seconds = 0;

    if (!str_present(lease_seconds) || !json_int64(lease_seconds, &seconds))
        return STR("default");
    return arena_printf(a, "%llds%s", (long long)seconds,
                        seconds < AGENT_LEASE_MIN_S ? " (ignored)" : "");
}

static const struct table_column AGENT_COLUMNS[] = {
    {"ID", false, 40}, {"WEBHOOK", false, 60},    {"LEASE", true, 0},
    {"AGE", true, 0},  {"DESCRIPTION", false, 0},
};

static void add_agent(struct table *t, struct str agent, struct arena *a)
{
    struct str id, webhook, lease, registered, description;
    const struct view_field fields[] = {
        {"id", true, &id},
        {"webhook_url", true, &webhook},
        {"lease_timeout_seconds", false, &lease},
        {"registered_at", true, &registered},
        {"description", true, &description},
    };

    view_read(agent, fields, COUNT(fields), a);
    table_add(t, PAINT_BOLD, id);
    table_add(t, PAINT_NONE, webhook);
    table_add(t, PAINT_NONE, lease_text(a, lease));
    table_add(t, PAINT_NONE, view_age(registered, clock_wall_us(), a));
    table_add(t, PAINT_NONE, description);
}

static void print_agents(struct cli *c, struct visit *v)
{
    struct table t = {.columns = AGENT_COLUMNS, .n_columns = COUNT(AGENT_COLUMNS)};
    struct json_walk walk = {0};
    struct str item;

    while (json_next_item(buf_str(&v->answer), &walk, &item))
        add_agent(&t, item, &v->a);
    if (table_rows(&t) == 0)
        cli_remark(c, "no agents; 'rebuno agent add MANIFEST' registers some");
    table_print(&t, c);
    table_free(&t);
}

int cmd_agent_ls(struct cli *c)
{
    struct visit v;
    struct err e;
    int code = visit_begin(c, &v);

    if (code != EXIT_OK)
        goto done;
    if (!client_get(v.client, AGENTS_PATH, &v.answer, &e)) {
        code = cli_fail(c, &e);
        goto done;
    }
    if (cli_json(c))
        cli_line(c, buf_str(&v.answer));
    else if (json_type_of(buf_str(&v.answer)) == JSON_ARRAY)
        print_agents(c, &v);
done:
    visit_end(&v);
    return code;
}

static void print_agent(struct cli *c, struct visit *v)
{
    struct str id, webhook, lease, registered, description, input, output, policy;
    const struct view_field fields[] = {
        {"id", true, &id},
        {"webhook_url", true, &webhook},
        {"lease_timeout_seconds", false, &lease},
        {"registered_at", true, &registered},
        {"description", true, &description},
        {"input_schema", false, &input},
        {"output_schema", false, &output},
        {"policy_bundle", true, &policy},
    };
    struct buf lines = {0};

    view_read(buf_str(&v->answer), fields, COUNT(fields), &v->a);
    view_pair_painted(c, "id", PAINT_BOLD, id);
    view_pair(c, "webhook", webhook);
    view_pair(c, "lease",
              str_present(lease) ? lease_text(&v->a, lease) : STR("the kernel's default"));
    view_pair(c, "registered", view_when(registered, clock_wall_us(), &v->a));
    view_pair(c, "description", description);
    view_pair_json(c, "input schema", input);
    view_pair_json(c, "output schema", output);
    if (!str_present(policy)) {
        view_pair(c, "policy", STR("none: every step is allowed"));
        return;
    }
    view_text(c, 0, PAINT_DIM, STR("policy"));
    layout_text(&lines, policy, 2, c->width);
    cli_put(c, PAINT_NONE, buf_str(&lines));
    buf_free(&lines);
}

int cmd_agent_get(struct cli *c)
{
    struct visit v;
    const char *path = NULL;
    struct err e;
    int code = visit_begin(c, &v);

    if (code != EXIT_OK)
        goto done;
    if (!agent_path(&v, cli_arg(c, 0), &path, &e) || !client_get(v.client, path, &v.answer, &e)) {
        code = cli_fail(c, &e);
        goto done;
    }
    if (cli_json(c))
        cli_line(c, buf_str(&v.answer));
    else
        print_agent(c, &v);
done:
    visit_end(&v);
    return code;
}

int cmd_agent_rm(struct cli *c)
{
    struct visit v;
    const char *path = NULL;
    struct err e;
    int code = visit_begin(c, &v);

    if (code != EXIT_OK)
        goto done;
    if (!agent_path(&v, cli_arg(c, 0), &path, &e) ||
        !client_call(v.client, "DELETE", path, STR_NONE, &v.answer, &e)) {
        code = cli_fail(c, &e);
        goto done;
    }
    fputs("removed ", c->out);
    cli_put(c, PAINT_BOLD, cli_arg(c, 0));
    fputc('\n', c->out);
done:
    visit_end(&v);
    return code;
}

/* ---- add ---- */

/* With its policy in the same request: it never runs without. An agent whose entry names none keeps
 * the one it has. */
static bool register_agent(struct visit *v, const struct manifest_agent *agent, struct err *e)
{
    struct buf body = {0};
    struct json_writer w = {.out = &body};

    jw_open(&w, '{');
    jw_member_str(&w, "id", agent->id);
    jw_member_str(&w, "webhook_url", agent->webhook_url);
    jw_member_str(&w, "secret", agent->secret);
    if (agent->lease_timeout_seconds > 0)
        jw_member_int(&w, "lease_timeout_seconds", agent->lease_timeout_seconds);
    if (str_present(agent->policy_bundle))
        jw_member_str(&w, "policy_bundle", agent->policy_bundle);
    jw_close(&w, '}');
    bool ok = client_call(v->client, "POST", AGENTS_PATH, buf_str(&body), &v->answer, e);
    buf_free(&body);
    return ok;
}

static void print_registered(struct cli *c, const struct manifest_agent *agent)
{
    fputs("registered ", c->out);
    cli_put(c, PAINT_BOLD, agent->id);
    fputs(" at ", c->out);
    cli_put(c, PAINT_NONE, agent->webhook_url);
    fputs(str_present(agent->policy_bundle) ? ", with its policy\n" : "\n", c->out);
}

/* The kernel takes it, and goes by its default. */
static void warn_of_lease(struct cli *c, const struct manifest_agent *agent)
{
    int64_t seconds = agent->lease_timeout_seconds;

    if (seconds > 0 && seconds < AGENT_LEASE_MIN_S)
        cli_warn(c,
                 "agent \"%.*s\": lease_timeout_seconds: %lld is ignored, for %d is the least; "
                 "the kernel's default counts",
                 STR_ARG(str_slice(agent->id, 0, agent->id.n < 80 ? agent->id.n : 80)),
                 (long long)seconds, AGENT_LEASE_MIN_S);
}

/* Says which agent it was; those before it are registered. */
static int fail_agent(struct cli *c, const struct manifest_agent *agent, const struct err *cause)
{
    struct err e;

    err_set(&e, cause->code, "agent \"%.*s\": %s",
            STR_ARG(str_slice(agent->id, 0, agent->id.n < 80 ? agent->id.n : 80)), cause->message);
    return cli_fail(c, &e);
}

static int add_agents(struct cli *c, struct visit *v, const struct manifest *m)
{
    struct buf added = {0};
    struct json_writer w = {.out = &added};
    int code = EXIT_OK;
    struct err e;

    jw_open(&w, '[');
    for (size_t i = 0; i < m->n && code == EXIT_OK; i++) {
        if (!register_agent(v, &m->agents[i], &e)) {
            code = fail_agent(c, &m->agents[i], &e);
            break;
        }
        jw_raw(&w, buf_str(&v->answer));
        if (!cli_json(c))
            print_registered(c, &m->agents[i]);
        warn_of_lease(c, &m->agents[i]);
    }
    jw_close(&w, ']');
    if (cli_json(c))
        cli_line(c, buf_str(&added));
    else if (m->n == 0)
        cli_remark(c, "the manifest names no agents");
    buf_free(&added);
    return code;
}

int cmd_agent_add(struct cli *c)
{
    struct visit v;
    struct manifest m;
    struct err e;
    int code = visit_begin(c, &v);

    if (code != EXIT_OK)
        goto done;
    if (manifest_load(cli_arg(c, 0).p, &v.a, &m, &e))
        code = add_agents(c, &v, &m);
    else
        code = cli_fail(c, &e);
done:
    visit_end(&v);
    return code;
}
