/* SPDX-License-Identifier: Apache-2.0
 * `rebuno policy set`, and the loading of bundles. */
#include "cli/policy_cmd.h"

#include "cli/commands.h"
#include "cli/file.h"

bool bundle_load(const char *path, struct bundle *out, struct err *e)
{
    struct err wrong;

    *out = (struct bundle){.yaml.max = POLICY_BUNDLE_MAX};
    if (!file_read(path, &out->yaml, &wrong))
        return err_set(e, wrong.code, "%s; expected a policy bundle", wrong.message);
    out->policy = policy_compile(buf_str(&out->yaml), path, e);
    return out->policy != NULL;
}

void bundle_free(struct bundle *b)
{
    buf_free(&b->yaml);
    policy_unref(b->policy);
}

/* Makes it the agent's. */
static bool send_bundle(struct visit *v, struct str agent_id, struct str yaml, struct err *e)
{
    struct buf body = {0}, path = {0};
    struct json_writer w = {.out = &body};

    buf_add(&path, STR("/v0/policies/"));
    client_escape(&path, agent_id);
    buf_add_byte(&path, '\0');
    jw_open(&w, '{');
    jw_member_str(&w, "bundle", yaml);
    jw_close(&w, '}');
    bool ok = client_call(v->client, "POST", path.p, buf_str(&body), &v->answer, e);
    if (!ok && client_status(v->client) == 404)
        err_set(e, ERR_NOT_FOUND, "no such agent \"%.*s\": add it with 'rebuno agent add MANIFEST'",
                STR_ARG(str_slice(agent_id, 0, agent_id.n < 80 ? agent_id.n : 80)));
    buf_free(&body);
    buf_free(&path);
    return ok;
}

static void print_set(struct cli *c, struct str agent_id, const struct policy *p)
{
    char hex[HASH_HEX_LEN];
    size_t n = policy_rule_count(p);

    hash_hex(policy_hash(p), hex);
    if (cli_json(c)) {
        struct buf line = {0};
        struct json_writer w = {.out = &line};

        jw_open(&w, '{');
        jw_member_str(&w, "agent_id", agent_id);
        jw_member_str(&w, "policy_hash", str_make(hex, sizeof hex));
        jw_member_int(&w, "rules", (int64_t)n);
        jw_close(&w, '}');
        cli_line(c, buf_str(&line));
        buf_free(&line);
        return;
    }
    fputs("set the policy of ", c->out);
    cli_put(c, PAINT_BOLD, agent_id);
    fprintf(c->out, ": %zu rule%s, hash %.12s…\n", n, n == 1 ? "" : "s", hex);
}

int cmd_policy_set(struct cli *c)
{
    struct str agent_id = cli_arg(c, 0);
    struct bundle b;
    struct visit v = {0};
    struct err e;
    int code = EXIT_OK;

    if (!bundle_load(cli_arg(c, 1).p, &b, &e)) {
        code = cli_fail(c, &e);
        goto done;
    }
    code = visit_begin(c, &v);
    if (code != EXIT_OK)
        goto done;
    if (send_bundle(&v, agent_id, buf_str(&b.yaml), &e))
        print_set(c, agent_id, b.policy);
    else
        code = cli_fail(c, &e);
done:
    visit_end(&v);
    bundle_free(&b);
    return code;
}
