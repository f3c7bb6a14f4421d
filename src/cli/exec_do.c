/* SPDX-License-Identifier: Apache-2.0
 * `rebuno exec create`, `cancel` and `watch`. */
#include "cli/commands.h"
#include "cli/file.h"
#include "cli/json_diff.h"
#include "cli/text.h"
#include "cli/view.h"
#include "cli/visit.h"
#include "cli/watch.h"

enum {
    INPUT_MAX = 256 * 1024 * 1024
}; /* the kernel's own limit is what counts; this one keeps the machine alive */

/* How the text would be JSON; a shell takes its quotes away. */
static struct str quoting_advice(struct str given, struct arena *a)
{
    static const char not_in_quotes[] = "'\"\\";
    enum { SHORT = 40 };
    bool plain = given.n > 0 && given.n <= SHORT && !str_has_control(given);

    if (given.n > 0 && (given.p[0] == '{' || given.p[0] == '['))
        return STR("; in a shell, JSON goes between single quotes and has double ones inside: "
                   "'{\"task\": \"fix the build\"}'");
    for (size_t i = 0; i < given.n && plain; i++)
        plain = strchr(not_in_quotes, given.p[i]) == NULL;
    if (!plain)
        given = STR("some text");
    return arena_printf(a, "; a text is JSON with quotes of its own: '\"%.*s\"'", STR_ARG(given));
}

/* The input's bytes, checked; absent when there is none. False: the error says where it is wrong.
 */
static bool read_input(struct cli *c, struct buf *from_stdin, struct str *input, struct err *e)
{
    struct str given = cli_arg(c, 1);
    struct err bad;

    *input = given;
    if (!str_present(given))
        return true;
    bool is_stdin = str_eq(given, STR("-"));
    if (is_stdin) {
        from_stdin->max = INPUT_MAX;
        if (!file_read_stream(stdin, "standard input", from_stdin, e))
            return false;
        *input = buf_str(from_stdin);
    }
    if (json_check(*input, &bad))
        return true;
    if (is_stdin)
        return err_set(e, ERR_VALIDATION, "standard input: %s", bad.message);
    struct arena a = {0};
    err_set(e, ERR_VALIDATION, "the input must be JSON: %s%.*s", bad.message,
            STR_ARG(quoting_advice(given, &a)));
    arena_free(&a);
    return false;
}

static void write_request(struct cli *c, struct str input, struct str parent, struct buf *body)
{
    struct json_writer w = {.out = body};

    jw_open(&w, '{');
    jw_member_str(&w, "agent_id", cli_arg(c, 0));
    jw_member_raw_opt(&w, "input", input);
    jw_member_str_opt(&w, "session", str_of(cli_flag(c, "session")));
    jw_member_str_opt(&w, "parent_execution_id", parent);
    jw_member_str_opt(&w, "idempotency_key", str_of(cli_flag(c, "idempotency-key")));
    jw_member_str_opt(&w, "on_behalf_of", str_of(cli_flag(c, "on-behalf-of")));
    jw_close(&w, '}');
}

/* As a line of its own when events follow it. */
static void print_json(struct cli *c, struct str execution, bool events_follow)
{
    struct buf line = {0};

    if (!events_follow) {
        cli_line(c, execution);
        return;
    }
    text_json_line(&line, execution);
    cli_line(c, buf_str(&line));
    buf_free(&line);
}

/* A key that was used before wins over what is asked for now. */
static void warn_of_input(struct cli *c, struct str given, struct str used)
{
    given = str_present(given) ? given : STR("null");
    used = str_present(used) ? used : STR("null");
    if (json_diff(given, used, 0, NULL, NULL) > 0)
        cli_warn(c, "this input was not used: the run that was created with this key has another");
}

static int print_created(struct cli *c, struct visit *v, struct str given, bool watch)
{
    struct str status, input;
    const struct view_field fields[] = {
        {"id", true, &v->id}, {"status", true, &status}, {"input", false, &input}};
    bool found = client_status(v->client) == 200; /* 201: it is new */
    struct err e;

    view_read(buf_str(&v->answer), fields, COUNT(fields), &v->a);
    v->kind = &VISIT_EXECUTION;
    v->id = arena_str(&v->a, v->id); /* outlives this answer */
    if (!str_present(v->id)) {
        err_set(&e, ERR_VALIDATION, "the kernel's answer has no execution's id");
        return cli_fail(c, &e);
    }
    if (found)
        warn_of_input(c, given, input);
    if (cli_json(c)) {
        print_json(c, buf_str(&v->answer), watch);
        return EXIT_OK;
    }
    struct str id = view_short_id(v->id);
    fputs(found ? "found " : "created ", c->out);
    cli_put(c, PAINT_BOLD, id);
    fputs(" (", c->out);
    cli_put(c, view_status_paint(status), status);
    fputs(found ? "), created earlier with this key" : ")", c->out);
    fputs("; follow with 'rebuno exec watch ", c->out);
    cli_put(c, PAINT_NONE, id);
    fputs("'\n", c->out);
    return EXIT_OK;
}

static int fail_create(struct cli *c, const struct visit *v, struct err *e)
{
    bool agent_alone = cli_flag(c, "parent") == NULL; /* is what a 404 can mean */

    if (client_status(v->client) == 404 && agent_alone)
        err_set(e, ERR_NOT_FOUND,
                "no such agent \"%.200s\": add it with 'rebuno agent add MANIFEST'",
                cli_arg(c, 0).p);
    return cli_fail(c, e);
}

/* Absent when none is meant. */
static int find_parent(struct cli *c, struct visit *v, struct str *parent)
{
    struct str given = str_of(cli_flag(c, "parent"));
    int code = str_present(given) ? visit_find(c, v, &VISIT_EXECUTION, given) : EXIT_OK;

    *parent = v->id;
    return code;
}

static int create(struct cli *c, struct visit *v, struct str input)
{
    bool watch = cli_flag(c, "watch") != NULL;
    struct buf body = {0};
    struct str parent;
    struct err e;
    int code = find_parent(c, v, &parent);

    if (code != EXIT_OK)
        return code;
    write_request(c, input, parent, &body);
    if (client_call(v->client, "POST", "/v0/executions", buf_str(&body), &v->answer, &e))
        code = print_created(c, v, input, watch);
    else
        code = fail_create(c, v, &e);
    buf_free(&body);
    return code == EXIT_OK && watch ? watch_execution(c, v) : code;
}

int cmd_exec_create(struct cli *c)
{
    struct buf from_stdin = {0};
    struct visit v = {0};
    struct str input;
    struct err e;
    int code;

    if (!read_input(c, &from_stdin, &input, &e)) {
        code = cli_fail_usage(c, &e);
    } else {
        code = visit_begin(c, &v);
        if (code == EXIT_OK)
            code = create(c, &v, input);
    }
    visit_end(&v);
    buf_free(&from_stdin);
    return code;
}

int cmd_exec_watch(struct cli *c)
{
    struct visit v;
    int code = visit_begin_found(c, &v, &VISIT_EXECUTION);

    if (code == EXIT_OK)
        code = watch_execution(c, &v);
    visit_end(&v);
    return code;
}

int cmd_exec_cancel(struct cli *c)
{
    struct visit v;
    struct err e;
    int code = visit_begin_found(c, &v, &VISIT_EXECUTION);

    if (code != EXIT_OK)
        goto done;
    if (!client_call(v.client, "POST", visit_path(&v, "/cancel"), STR_NONE, &v.answer, &e)) {
        code = cli_fail(c, &e);
        goto done;
    }
    fputs("cancelled ", c->out);
    cli_put(c, PAINT_BOLD, view_short_id(v.id));
    fputc('\n', c->out);
done:
    visit_end(&v);
    return code;
}
