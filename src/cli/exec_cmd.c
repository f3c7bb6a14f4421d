/* SPDX-License-Identifier: Apache-2.0
 * `rebuno exec ls` and `rebuno exec get`. */
#include "base/clock.h"
#include "cli/approval_view.h"
#include "cli/commands.h"
#include "cli/restoration.h"
#include "cli/table.h"
#include "cli/tokens.h"
#include "cli/view.h"
#include "cli/visit.h"
#include "cli/waiting.h"
#include "cli/when.h"
#include "domain/types.h"

enum {
    LIST_DEFAULT = 50,
    LIST_PAGE = 200,
    LIST_MAX = 1000000,
    APPROVALS_SHOWN = 10,
    SUBAGENTS_SHOWN = 10,
};

/* ---- ls ---- */

static const struct table_column LIST_COLUMNS[] = {
    {"ID", false, 0}, {"AGENT", false, 30}, {"STATUS", false, 0},
    {"AGE", true, 0}, {"DETAIL", false, 0},
};

static void add_execution(struct table *t, struct str execution, struct arena *a)
{
    struct str id, agent, status, created, reason, waiting;
    const struct view_field fields[] = {
        {"id", true, &id},
        {"agent_id", true, &agent},
        {"status", true, &status},
        {"created_at", true, &created},
        {"failure_reason", true, &reason},
        {"waiting_on", false, &waiting},
    };

    view_read(execution, fields, COUNT(fields), a);
    waiting = waiting_text(waiting, clock_wall_us(), a);
    if (str_present(waiting))
        waiting = arena_printf(a, "waits for %.*s", STR_ARG(waiting));
    table_add(t, PAINT_NONE, view_short_id(id));
    table_add(t, PAINT_NONE, agent);
    table_add(t, view_status_paint(status), status);
    table_add(t, PAINT_NONE, view_age(created, clock_wall_us(), a));
    table_add(t, PAINT_NONE, str_present(reason) ? reason : waiting);
}

struct listing {
    int64_t left;
    struct str spawned_by; /* absent: any */
    struct str cursor;     /* in the visit's arena; absent: none */
    struct table table;
    struct buf json;
    struct json_writer w;
};

static void add_query(struct buf *path, const char *name, const char *value)
{
    if (value == NULL)
        return;
    buf_printf(path, "&%s=", name);
    client_escape(path, str_of(value));
}

static bool list_page(struct cli *c, struct visit *v, struct listing *l, struct err *e)
{
    struct buf path = {0};
    struct str executions, cursor, item;
    const struct view_field fields[] = {{"executions", false, &executions},
                                        {"next_cursor", true, &cursor}};
    struct json_walk walk = {0};

    buf_printf(&path, "/v0/executions?limit=%d", (int)(l->left < LIST_PAGE ? l->left : LIST_PAGE));
    add_query(&path, "agent_id", cli_flag(c, "agent"));
    add_query(&path, "status", cli_flag(c, "status"));
    add_query(&path, "session", cli_flag(c, "session"));
    add_query(&path, "spawned_by", l->spawned_by.p);
    add_query(&path, "cursor", l->cursor.p);
    buf_add_byte(&path, '\0');
    bool ok = client_get(v->client, path.p, &v->answer, e);
    buf_free(&path);
    if (!ok)
        return false;
    view_read(buf_str(&v->answer), fields, COUNT(fields), &v->a);
    if (json_type_of(executions) != JSON_ARRAY)
        return err_set(e, ERR_VALIDATION, "the kernel's listing has no executions");
    while (l->left > 0 && json_next_item(executions, &walk, &item)) {
        l->left--;
        if (cli_json(c))
            jw_raw(&l->w, item);
        else
            add_execution(&l->table, item, &v->a);
    }
    l->cursor = arena_str(&v->a, cursor);
    return true;
}

static int list_executions(struct cli *c, struct visit *v, struct listing *l)
{
    struct err e;

    jw_open(&l->w, '{');
    jw_key(&l->w, "executions");
    jw_open(&l->w, '[');
    do {
        if (!list_page(c, v, l, &e))
            return cli_fail(c, &e);
    } while (l->left > 0 && l->cursor.n > 0);
    jw_close(&l->w, ']');
    jw_member_str_opt(&l->w, "next_cursor", l->cursor);
    jw_close(&l->w, '}');
    if (cli_json(c)) {
        cli_line(c, buf_str(&l->json));
        return EXIT_OK;
    }
    table_print(&l->table, c);
    if (table_rows(&l->table) == 0)
        cli_remark(c, "no executions");
    else if (l->cursor.n > 0)
        cli_remark(c, "there are more: --limit N");
    return EXIT_OK;
}

static bool parse_limit(struct cli *c, int64_t *limit, struct err *e)
{
    const char *text = cli_flag(c, "limit");

    *limit = LIST_DEFAULT;
    if (text == NULL || (str_to_int64(str_of(text), limit) && *limit >= 1 && *limit <= LIST_MAX))
        return true;
    return err_set(e, ERR_VALIDATION,
                   "--limit: expected a whole number from 1 to %d, not \"%.80s\"", LIST_MAX, text);
}

static bool check_status(struct cli *c, struct err *e)
{
    const char *given = cli_flag(c, "status");
    enum execution_status status;
    struct buf list = {0};

    if (given == NULL || execution_status_parse(str_of(given), &status))
        return true;
    for (int s = EXECUTION_PENDING; s <= EXECUTION_CANCELLED; s++)
        buf_printf(&list, "%s%.*s", s == EXECUTION_PENDING ? "" : ", ",
                   STR_ARG(execution_status_name((enum execution_status)s)));
    err_set(e, ERR_VALIDATION, "--status: expected one of %.*s, not \"%.80s\"",
            STR_ARG(buf_str(&list)), given);
    buf_free(&list);
    return false;
}

/* Absent when none is meant. */
static int find_spawner(struct cli *c, struct visit *v, struct str *id)
{
    struct str given = str_of(cli_flag(c, "spawned-by"));
    int code = str_present(given) ? visit_find(c, v, &VISIT_EXECUTION, given) : EXIT_OK;

    *id = v->id;
    return code;
}

int cmd_exec_ls(struct cli *c)
{
    struct visit v;
    struct listing l = {.table = {.columns = LIST_COLUMNS, .n_columns = COUNT(LIST_COLUMNS)}};
    struct err e;

    l.w.out = &l.json;
    if (!parse_limit(c, &l.left, &e) || !check_status(c, &e))
        return cli_fail_usage(c, &e);
    int code = visit_begin(c, &v);
    if (code == EXIT_OK)
        code = find_spawner(c, &v, &l.spawned_by);
    if (code == EXIT_OK)
        code = list_executions(c, &v, &l);
    table_free(&l.table);
    buf_free(&l.json);
    visit_end(&v);
    return code;
}

/* ---- get ---- */

static struct str duration_text(struct str from, struct str to, struct arena *a)
{
    struct buf text = {0};
    int64_t from_us = 0, to_us = 0;

    if (!str_present(from) || !str_present(to) || !clock_parse_rfc3339(from, &from_us) ||
        !clock_parse_rfc3339(to, &to_us))
        return STR_NONE;
    when_duration(&text, to_us - from_us);
    struct str out = arena_str(a, buf_str(&text));
    buf_free(&text);
    return out;
}

/* What somebody can do who waits for it to go on. */
static void print_approvals(struct cli *c, struct str waiting_on, struct arena *a)
{
    static const char *const verbs[] = {"get", "grant", "deny"};
    struct str ids[APPROVALS_SHOWN];
    size_t n = waiting_approvals(waiting_on, ids, COUNT(ids), a);

    for (size_t i = 0; i < n; i++) {
        for (size_t j = 0; j < COUNT(verbs); j++)
            view_pair(c, i + j == 0 ? "to decide" : "", approval_command(c, verbs[j], ids[i], a));
    }
}

/* "0199… at event 41"; absent when it is no fork. */
static struct str fork_text(struct str source, struct str seq, struct arena *a)
{
    if (!str_present(source))
        return STR_NONE;
    return arena_printf(a, "%.*s at event %.*s", STR_ARG(source), STR_ARG(seq));
}

static void print_restoration(struct cli *c, struct visit *v, struct str source,
                              struct str restoration)
{
    struct json_walk walk = {0};
    struct restored r;

    for (size_t i = 0; restoration_next(restoration, &walk, &v->a, &r); i++) {
        struct str told = restoration_told(v, source, &r, &v->a);

        view_pair_painted(c, i == 0 ? "resources" : "", r.covered ? PAINT_NONE : PAINT_BUSY,
                          arena_printf(&v->a, "%.*s: %.*s%s", STR_ARG(r.key), STR_ARG(told),
                                       r.covered ? "" : "; not covered there"));
    }
}

/* "0199…, its step 3f0c54b1a9d2…"; absent when it is no subagent. */
static struct str spawner_text(struct str spawned_by, struct arena *a)
{
    struct str id, step;
    const struct view_field fields[] = {{"execution_id", true, &id}, {"step_id", true, &step}};

    if (!str_present(spawned_by))
        return STR_NONE;
    view_read(spawned_by, fields, COUNT(fields), a);
    return arena_printf(a, "%.*s, its step %.12s…", STR_ARG(id),
                        str_present(step) ? arena_str(a, step).p : "");
}

/* Those that its steps started. An older kernel, or a key that may not list, shows none. */
static void print_subagents(struct cli *c, struct visit *v)
{
    struct buf answer = {0};
    struct str list, item, id, agent, status;
    const struct view_field fields[] = {{"executions", false, &list}};
    const struct view_field of_one[] = {
        {"id", true, &id}, {"agent_id", true, &agent}, {"status", true, &status}};
    struct json_walk walk = {0};
    struct err ignored;
    const char *path = arena_printf(&v->a, "/v0/executions?spawned_by=%.*s&limit=%d",
                                    STR_ARG(v->id), SUBAGENTS_SHOWN + 1)
                           .p;
    size_t n = 0;

    if (client_get(v->client, path, &answer, &ignored))
        view_read(buf_str(&answer), fields, COUNT(fields), &v->a);
    else
        list = STR_NONE;
    while (json_type_of(list) == JSON_ARRAY && json_next_item(list, &walk, &item) &&
           ++n <= SUBAGENTS_SHOWN) {
        view_read(item, of_one, COUNT(of_one), &v->a);
        view_pair_painted(c, n == 1 ? "subagents" : "", view_status_paint(status),
                          arena_printf(&v->a, "%.*s (%.*s) %.*s", STR_ARG(view_short_id(id)),
                                       STR_ARG(status), STR_ARG(agent)));
    }
    if (n > SUBAGENTS_SHOWN)
        view_pair(c, "",
                  arena_printf(&v->a, "and more: rebuno exec ls --spawned-by %.*s",
                               STR_ARG(view_short_id(v->id))));
    buf_free(&answer);
}

static void print_tokens(struct cli *c, struct tokens t, struct arena *a)
{
    if (t.known)
        view_pair(c, "tokens",
                  arena_printf(a, "%lld in, %lld out", (long long)t.input, (long long)t.output));
}

static void print_execution(struct cli *c, struct visit *v, struct tokens tokens)
{
    struct str id, agent, status, input, output, reason, session, parent, key, by, of, created,
        updated, deadline, waiting, source, fork_seq, restoration, spawned_by;
    const struct view_field fields[] = {
        {"id", true, &id},
        {"agent_id", true, &agent},
        {"status", true, &status},
        {"input", false, &input},
        {"output", false, &output},
        {"failure_reason", true, &reason},
        {"session", true, &session},
        {"parent_execution_id", true, &parent},
        {"idempotency_key", true, &key},
        {"created_by", true, &by},
        {"on_behalf_of", true, &of},
        {"created_at", true, &created},
        {"updated_at", true, &updated},
        {"deadline_at", true, &deadline},
        {"waiting_on", false, &waiting},
        {"forked_from", true, &source},
        {"fork_seq", false, &fork_seq},
        {"restoration", false, &restoration},
        {"spawned_by", false, &spawned_by},
    };
    struct arena *a = &v->a;
    int64_t now = clock_wall_us();

    view_read(buf_str(&v->answer), fields, COUNT(fields), a);
    view_pair_painted(c, "id", PAINT_BOLD, id);
    view_pair(c, "agent", agent);
    view_pair_painted(c, "status", view_status_paint(status), status);
    view_pair(c, "waits for", waiting_text(waiting, now, a));
    print_approvals(c, waiting, a);
    view_pair_painted(c, "reason", PAINT_BAD, reason);
    view_pair(c, "session", session);
    view_pair(c, "parent", parent);
    view_pair(c, "forked from", fork_text(source, fork_seq, a));
    print_restoration(c, v, source, restoration);
    view_pair(c, "spawned by", spawner_text(spawned_by, a));
    print_subagents(c, v);
    view_pair(c, "created", view_when(created, now, a));
    view_pair(c, "created by", by);
    view_pair(c, "on behalf of", of);
    if (!view_is_final(status)) {
        view_pair(c, "updated", view_when(updated, now, a));
        view_pair(c, "deadline", view_when(deadline, now, a));
    } else {
        view_pair(c, "ended", view_when(updated, now, a));
        view_pair(c, "took", duration_text(created, updated, a));
    }
    print_tokens(c, tokens, a);
    view_pair(c, "idempotency key", key);
    view_pair_json(c, "input", input);
    view_pair_json(c, "output", output);
}

/* The API's object, with the sum as its `usage`. */
static void print_with_usage(struct cli *c, struct visit *v, struct tokens tokens)
{
    struct str object = json_trim(buf_str(&v->answer));
    struct json_walk walk = {0};
    struct json_member first;
    struct buf usage = {0};
    struct json_writer w = {.out = &usage};

    if (json_type_of(object) != JSON_OBJECT || !json_next_member(object, &walk, &v->a, &first)) {
        cli_line(c, object); /* no kernel's answer; as it is */
        return;
    }
    tokens_write(&w, tokens);
    fwrite(object.p, 1, object.n - 1, c->out);
    fprintf(c->out, ",\"usage\":%.*s}\n", STR_ARG(buf_str(&usage)));
    buf_free(&usage);
}

int cmd_exec_get(struct cli *c)
{
    struct tokens tokens;
    struct visit v;
    struct err e;
    int code = visit_begin_found(c, &v, &VISIT_EXECUTION);

    if (code != EXIT_OK)
        goto done;
    if (!tokens_read(&v, &tokens, &e) || !client_get(v.client, visit_path(&v, ""), &v.answer, &e))
        code = cli_fail(c, &e);
    else if (cli_json(c))
        print_with_usage(c, &v, tokens);
    else
        print_execution(c, &v, tokens);
done:
    visit_end(&v);
    return code;
}
