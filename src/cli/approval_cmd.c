/* SPDX-License-Identifier: Apache-2.0
 * `rebuno approval …`: what waits for a person, and what the person says. */
#include <stdlib.h>

#include "base/clock.h"
#include "cli/approval_view.h"
#include "cli/commands.h"
#include "cli/table.h"
#include "cli/view.h"
#include "cli/visit.h"
#include "cli/when.h"
#include "domain/types.h"

enum { LIST_DEFAULT = 50, LIST_MAX = 1000 };

/* ---- ls ---- */

static const struct table_column PENDING_COLUMNS[] = {
    {"ID", false, 0},      {"EXECUTION", false, 0}, {"AGENT", false, 24},
    {"TARGET", false, 30}, {"LEFT", true, 0},       {"MESSAGE", false, 0},
};
static const struct table_column ANY_COLUMNS[] = {
    {"ID", false, 0},      {"EXECUTION", false, 0}, {"AGENT", false, 24},
    {"TARGET", false, 30}, {"STATUS", false, 24},   {"MESSAGE", false, 0},
};

static struct str time_left(struct str timeout_at, struct arena *a)
{
    struct buf text = {0};
    int64_t at = 0;

    if (!str_present(timeout_at) || !clock_parse_rfc3339(timeout_at, &at))
        return STR_NONE;
    when_age(&text, at - clock_wall_us());
    struct str out = arena_str(a, buf_str(&text));
    buf_free(&text);
    return out;
}

static struct str status_text(const struct shown_approval *v, struct arena *a)
{
    if (approval_is_pending(v))
        return arena_printf(a, "pending, %.*s left", STR_ARG(time_left(v->timeout_at, a)));
    if (!str_present(v->decided_by))
        return v->status;
    return arena_printf(a, "%.*s by %.*s", STR_ARG(v->status), STR_ARG(v->decided_by));
}

static void add_approval(struct table *t, struct str approval, bool only_pending, struct arena *a)
{
    struct shown_approval v;

    approval_read(approval, &v, a);
    table_add(t, PAINT_NONE, view_short_id(v.id));
    table_add(t, PAINT_NONE, view_short_id(v.execution_id));
    table_add(t, PAINT_NONE, v.agent_id);
    table_add(t, PAINT_BOLD, str_empty(v.target) ? v.kind : v.target);
    if (only_pending)
        table_add(t, PAINT_NONE, time_left(v.timeout_at, a));
    else
        table_add(t, view_status_paint(v.status), status_text(&v, a));
    table_add(t, PAINT_NONE, v.message);
}

/* What --status asks for; NULL: pending ones, as the API has it. */
struct listing {
    const char *status;
    int64_t limit;
};

static bool read_listing(struct cli *c, struct listing *l, struct err *e)
{
    const char *limit = cli_flag(c, "limit"), *status = cli_flag(c, "status");
    enum approval_status known;

    l->limit = LIST_DEFAULT;
    l->status = status;
    if (limit != NULL &&
        (!str_to_int64(str_of(limit), &l->limit) || l->limit < 1 || l->limit > LIST_MAX))
        return err_set(e, ERR_VALIDATION,
                       "--limit: expected a whole number from 1 to %d, not \"%.40s\"", LIST_MAX,
                       limit);
    if (status != NULL && strcmp(status, "all") == 0)
        l->status = "";
    else if (status != NULL && !approval_status_parse(str_of(status), &known))
        return err_set(e, ERR_VALIDATION,
                       "--status: expected one of pending, granted, denied, expired, all, not "
                       "\"%.80s\"",
                       status);
    return true;
}

static void print_approvals(struct cli *c, struct visit *v, const struct listing *l)
{
    bool only_pending = l->status == NULL || strcmp(l->status, "pending") == 0;
    struct table t = {.columns = only_pending ? PENDING_COLUMNS : ANY_COLUMNS,
                      .n_columns = COUNT(PENDING_COLUMNS)};
    struct json_walk walk = {0};
    struct str item;
    int64_t n = 0;

    while (json_next_item(buf_str(&v->answer), &walk, &item)) {
        if (n++ < l->limit)
            add_approval(&t, item, only_pending, &v->a);
    }
    table_print(&t, c);
    if (n == 0)
        cli_remark(c, only_pending ? "nothing waits for a person" : "no approvals");
    else if (n > l->limit)
        cli_remark(c, "there are more: --limit N");
    table_free(&t);
}

static bool get_list(struct cli *c, struct visit *v, const struct listing *l, struct err *e)
{
    /* One more than is shown tells whether there are more. */
    int64_t limit = cli_json(c) || l->limit == LIST_MAX ? l->limit : l->limit + 1;
    const char *path =
        arena_printf(&v->a, "/v0/approvals?limit=%lld%s%s", (long long)limit,
                     l->status == NULL ? "" : "&status=", l->status == NULL ? "" : l->status)
            .p;

    if (!client_get(v->client, path, &v->answer, e))
        return false;
    if (json_type_of(buf_str(&v->answer)) == JSON_ARRAY)
        return true;
    return err_set(e, ERR_VALIDATION, "the kernel's answer is no list");
}

int cmd_approval_ls(struct cli *c)
{
    struct listing l;
    struct visit v;
    struct err e;

    if (!read_listing(c, &l, &e))
        return cli_fail_usage(c, &e);
    int code = visit_begin(c, &v);
    if (code != EXIT_OK)
        goto done;
    if (!get_list(c, &v, &l, &e))
        code = cli_fail(c, &e);
    else if (cli_json(c))
        cli_line(c, buf_str(&v.answer));
    else
        print_approvals(c, &v, &l);
done:
    visit_end(&v);
    return code;
}

/* ---- get ---- */

static void print_approval(struct cli *c, struct visit *v)
{
    struct shown_approval approval;

    approval_read(buf_str(&v->answer), &approval, &v->a);
    approval_print(c, &approval, &v->a);
}

int cmd_approval_get(struct cli *c)
{
    return visit_show(c, &VISIT_APPROVAL, print_approval);
}

/* ---- grant and deny ---- */

/* Who decides: --by, else the one who is logged in. Absent: the kernel takes the caller's own
 * name. */
static struct str decided_by(struct cli *c)
{
    const char *by = cli_flag(c, "by"), *user = getenv("USER");

    if (by != NULL)
        return str_of(by);
    return user == NULL || user[0] == '\0' ? STR_NONE : str_of(user);
}

static void write_decision(struct cli *c, struct buf *body)
{
    struct json_writer w = {.out = body};
    const char *reason = cli_flag(c, "reason");

    jw_open(&w, '{');
    jw_member_str_opt(&w, "decided_by", decided_by(c));
    if (reason != NULL && reason[0] != '\0')
        jw_member_str(&w, "rationale", str_of(reason));
    jw_close(&w, '}');
}

/* As it stands now, when this caller may read it: who may decide may not always. */
static bool read_back(struct visit *v)
{
    struct err ignored;

    return client_get(v->client, visit_path(v, ""), &v->answer, &ignored);
}

static bool names(struct str array, struct str name, struct arena *a)
{
    struct json_walk walk = {0};
    struct str item;

    while (json_next_item(array, &walk, &item)) {
        if (json_type_of(item) == JSON_STRING && str_eq(json_string(item, a), name))
            return true;
    }
    return false;
}

/* Refused: who decides is perhaps none of those who may. */
static void add_approvers(struct cli *c, struct visit *v, struct err *e)
{
    struct str approvers, listed, by = decided_by(c), why = arena_str(&v->a, str_of(e->message));

    if (!read_back(v))
        return;
    approvers = json_get(buf_str(&v->answer), STR("approvers"), &v->a);
    listed = view_names(approvers, &v->a);
    if (str_present(listed) && !(str_present(by) && names(approvers, by, &v->a)))
        err_set(e, ERR_FORBIDDEN, "%.*s; they are %.*s: --by NAME says who decides", STR_ARG(why),
                STR_ARG(str_slice(listed, 0, listed.n < 300 ? listed.n : 300)));
}

/* The loser of a race, or somebody who comes late, is told what won. */
static int fail_decision(struct cli *c, struct visit *v, struct err *e)
{
    struct str status, by;
    const struct view_field fields[] = {{"status", true, &status}, {"decided_by", true, &by}};

    if (client_status(v->client) == 409) {
        struct str details = json_get(buf_str(&v->answer), STR("details"), &v->a);

        view_read(details, fields, COUNT(fields), &v->a);
        if (str_present(by))
            err_set(e, ERR_CONFLICT, "already %.*s by %.*s", STR_ARG(status), STR_ARG(by));
        else if (str_present(status))
            err_set(e, ERR_CONFLICT, "already %.*s", STR_ARG(status));
    }
    if (client_status(v->client) == 403)
        add_approvers(c, v, e);
    return cli_fail(c, e);
}

static void print_decided(struct cli *c, struct visit *v, const char *done)
{
    struct shown_approval approval;

    if (cli_json(c)) {
        if (read_back(v))
            cli_line(c, buf_str(&v->answer));
        else
            fprintf(c->out, "{\"id\":\"%.*s\",\"status\":\"%s\"}\n", STR_ARG(v->id), done);
        return;
    }
    fprintf(c->out, "%s ", done);
    cli_put(c, PAINT_BOLD, view_short_id(v->id));
    if (read_back(v)) {
        approval_read(buf_str(&v->answer), &approval, &v->a);
        struct str what =
            arena_printf(&v->a, ": %.*s of %.*s", STR_ARG(approval_step(&approval, &v->a)),
                         STR_ARG(approval.agent_id));
        cli_put(c, PAINT_NONE, what);
    }
    fputc('\n', c->out);
}

static int decide(struct cli *c, const char *route, const char *done)
{
    struct buf body = {0};
    struct visit v;
    struct err e;
    int code = visit_begin_found(c, &v, &VISIT_APPROVAL);

    if (code == EXIT_OK) {
        write_decision(c, &body);
        if (client_call(v.client, "POST", visit_path(&v, route), buf_str(&body), &v.answer, &e))
            print_decided(c, &v, done);
        else
            code = fail_decision(c, &v, &e);
    }
    buf_free(&body);
    visit_end(&v);
    return code;
}

int cmd_approval_grant(struct cli *c)
{
    return decide(c, "/grant", "granted");
}

int cmd_approval_deny(struct cli *c)
{
    return decide(c, "/deny", "denied");
}
