/* SPDX-License-Identifier: Apache-2.0
 * `rebuno exec events` and `rebuno exec steps`: an execution's record, page by page, so that no log
 * is held whole. */
#include "base/clock.h"
#include "cli/commands.h"
#include "cli/coverage.h"
#include "cli/event_put.h"
#include "cli/model_answer.h"
#include "cli/pages.h"
#include "cli/table.h"
#include "cli/text.h"
#include "cli/tokens.h"
#include "cli/view.h"
#include "cli/when.h"

/* What is printed of a list: its JSON as it comes, or lines for people. */
struct record {
    struct cli *c;
    void (*show)(struct record *r, struct str item); /* for people */
    size_t printed;
    struct table *table; /* of the steps */
    /* of the events */
    struct event_log log;
    struct visit *v;
    struct arena a;
    struct coverage points;
    bool blind; /* what is covered cannot be had */
};

static void take_item(void *ctx, struct str item)
{
    struct record *r = ctx;
    struct cli *c = r->c;

    if (!cli_json(c)) {
        r->show(r, item);
    } else {
        fputs(r->printed == 0 ? "[" : ",\n", c->out);
        fwrite(item.p, 1, item.n, c->out);
    }
    r->printed++;
}

static int print_record(struct cli *c, struct visit *v, struct pages *pages, struct record *r)
{
    struct err e;

    pages->take = take_item;
    pages->ctx = r;
    if (!pages_read(v, pages, &e))
        return cli_fail(c, &e);
    if (cli_json(c))
        fputs(r->printed == 0 ? "[]\n" : "]\n", c->out);
    return EXIT_OK;
}

/* ---- events ---- */

#define COVERED_MARK "\xe2\x97\x8f"

/* "●" behind the number of an event at which a fork restores every resource as it was. */
static const char *cover_mark(struct record *r, int64_t seq)
{
    struct err ignored;

    if (r->blind || seq == 0)
        return NULL;
    if (seq > r->points.latest_seq) { /* the first, or the run has gone on since it was asked */
        arena_reset(&r->a);
        r->blind = !coverage_fetch(r->v, &r->a, &r->points, &ignored) || seq > r->points.latest_seq;
    }
    if (r->blind || r->points.n_resources == 0)
        return NULL;
    return coverage_at(&r->points, seq) ? COVERED_MARK " " : "  ";
}

/* For scripts that read lines: an event a line, with all of its payload. */
static void put_whole_line(struct cli *c, const struct event *ev)
{
    struct buf line = {0}, payload = {0};

    buf_printf(&line, "%4lld  %s", (long long)ev->seq, ev->mark == NULL ? "" : ev->mark);
    if (ev->at_us > 0) {
        when_full(&line, ev->at_us);
        buf_printf(&line, ".%03d", (int)(ev->at_us % US_PER_S / US_PER_MS));
    }
    buf_printf(&line, "  %.*s  ", STR_ARG(ev->type));
    text_json_line(&payload, ev->payload);
    buf_add(&line, buf_str(&payload));
    cli_put(c, PAINT_NONE, buf_str(&line));
    fputc('\n', c->out);
    buf_free(&line);
    buf_free(&payload);
}

static int64_t failed_status(void *ctx, struct str step_id)
{
    struct record *r = ctx;

    return model_answer_fetch(r->v, r->v->client, step_id);
}

static void show_event(struct record *r, struct str json)
{
    struct cli *c = r->c;
    struct arena a = {0};
    struct event ev;

    if (event_read(json, &a, &ev)) {
        ev.mark = cover_mark(r, ev.seq);
        if (c->width == 0) {
            put_whole_line(c, &ev);
        } else {
            event_print(&r->log, &ev, c);
            event_put_payload(c, &ev);
        }
    }
    arena_free(&a);
}

int cmd_exec_events(struct cli *c)
{
    struct pages pages = {
        .route = "/events", .after = "after_seq", .last_field = "event_seq", .limit = 500};
    struct visit v;
    struct record r = {
        .c = c, .show = show_event, .v = &v, .log = {.failed_status = failed_status, .ctx = &r}};
    int code = visit_begin_found(c, &v, &VISIT_EXECUTION);

    if (code == EXIT_OK)
        code = print_record(c, &v, &pages, &r);
    if (code == EXIT_OK && !r.blind && r.points.n_resources > 0)
        cli_remark(c, COVERED_MARK " a fork there restores every resource as it was");
    arena_free(&r.a);
    event_log_free(&r.log);
    visit_end(&v);
    return code;
}

/* ---- steps ---- */

enum { ARGS_COLUMNS = 32 };
enum { TOKENS_COLUMN = 5 }; /* its place */

static const struct table_column STEP_COLUMNS[] = {
    {"KIND", false, 0},   {"TARGET", false, 40}, {"ARGS", false, ARGS_COLUMNS},
    {"STATUS", false, 0}, {"DURATION", true, 0}, [TOKENS_COLUMN] = {"TOKENS", true, 0},
    {"ERROR", false, 0},
};

/* From the start of the (last) run to its end, or to now. */
static struct str step_duration(struct str started, struct str completed, struct str status,
                                struct arena *a)
{
    struct buf text = {0};
    int64_t from = 0, to = clock_wall_us();
    bool ended = str_present(completed);

    if (!str_present(started) || !clock_parse_rfc3339(started, &from) ||
        (ended && !clock_parse_rfc3339(completed, &to)) ||
        (!ended && !str_eq(status, STR("executing"))))
        return STR_NONE;
    when_duration(&text, to - from);
    struct str out = arena_printf(a, "%.*s%s", STR_ARG(buf_str(&text)), ended ? "" : "…");
    buf_free(&text);
    return out;
}

/* "1200/85": in and out. */
static struct str step_tokens(struct str usage, struct arena *a)
{
    struct tokens t = tokens_of(usage);

    if (!t.known)
        return STR_NONE;
    if (t.input < 0)
        return arena_printf(a, "?/%lld", (long long)t.output);
    if (t.output < 0)
        return arena_printf(a, "%lld/?", (long long)t.input);
    return arena_printf(a, "%lld/%lld", (long long)t.input, (long long)t.output);
}

/* "succeeded, HTTP 400" of a model call that was answered with an error, whose words stand where
 * errors do. */
static void add_status(struct table *t, struct str status, int64_t failed_with, struct arena *a)
{
    if (failed_with == 0)
        table_add(t, view_status_paint(status), status);
    else
        table_add(t, PAINT_BAD,
                  arena_printf(a, "%.*s, HTTP %lld", STR_ARG(status), (long long)failed_with));
}

static void show_step(struct record *r, struct str step)
{
    struct table *t = r->table;
    struct arena a = {0};
    struct str kind, target, args, status, occurrence, started, completed, error, usage, result,
        body;
    const struct view_field fields[] = {
        {"kind", true, &kind},          {"target", true, &target},
        {"status", true, &status},      {"occurrence", false, &occurrence},
        {"started_at", true, &started}, {"completed_at", true, &completed},
        {"error", false, &error},       {"args", false, &args},
        {"usage", false, &usage},       {"result", false, &result},
    };

    int64_t before = 0;

    view_read(step, fields, COUNT(fields), &a);
    if (!str_present(occurrence) || !json_int64(occurrence, &before))
        before = 0;
    bool model_call = str_eq(kind, STR("llm_call"));
    int64_t failed_with = model_answer_failure(model_call ? result : STR_NONE, &body, &a);
    table_add(t, PAINT_NONE, kind);
    table_add(t, PAINT_BOLD, view_target(target, before, &a));
    table_add(t, PAINT_NONE, view_json_short(args, ARGS_COLUMNS, &a));
    add_status(t, status, failed_with, &a);
    table_add(t, PAINT_NONE, step_duration(started, completed, status, &a));
    table_add(t, PAINT_NONE, step_tokens(usage, &a));
    table_add(t, PAINT_NONE, failed_with != 0 ? body : view_error_text(error, &a));
    arena_free(&a);
}

int cmd_exec_steps(struct cli *c)
{
    struct table table = {
        .columns = STEP_COLUMNS, .n_columns = COUNT(STEP_COLUMNS), .optional = 1u << TOKENS_COLUMN};
    struct pages pages = {
        .route = "/steps", .after = "after", .last_field = "step_id", .limit = 200};
    struct record r = {.c = c, .show = show_step, .table = &table};
    struct visit v;
    int code = visit_begin_found(c, &v, &VISIT_EXECUTION);

    if (code == EXIT_OK)
        code = print_record(c, &v, &pages, &r);
    if (code == EXIT_OK && !cli_json(c)) {
        table_print(&table, c);
        if (table_rows(&table) == 0)
            cli_remark(c, "no steps yet");
    }
    table_free(&table);
    visit_end(&v);
    return code;
}
