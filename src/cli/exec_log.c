/* SPDX-License-Identifier: Apache-2.0
 * `rebuno exec events` and `rebuno exec steps`: an execution's record, page by page, so that no log
 * is held whole. */
#include "base/clock.h"
#include "cli/commands.h"
#include "cli/coverage.h"
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
static const char *cover_mark(struct record *r, struct str seq_text)
{
    int64_t seq = 0;
    struct err ignored;

    if (r->blind || !str_present(seq_text) || !json_int64(seq_text, &seq))
        return "";
    if (seq > r->points.latest_seq) { /* the first, or the run has gone on since it was asked */
        arena_reset(&r->a);
        r->blind = !coverage_fetch(r->v, &r->a, &r->points, &ignored) || seq > r->points.latest_seq;
    }
    if (r->blind || r->points.n_resources == 0)
        return "";
    return coverage_at(&r->points, seq) ? COVERED_MARK " " : "  ";
}

static void show_event(struct record *r, struct str event)
{
    struct cli *c = r->c;
    struct arena a = {0};
    struct str seq, type, at, payload;
    const struct view_field fields[] = {{"event_seq", false, &seq},
                                        {"type", true, &type},
                                        {"occurred_at", true, &at},
                                        {"payload", false, &payload}};
    struct buf time = {0}, line = {0};
    int64_t at_us = 0;

    view_read(event, fields, COUNT(fields), &a);
    if (str_present(at) && clock_parse_rfc3339(at, &at_us)) {
        when_full(&time, at_us);
        buf_printf(&time, ".%03d", (int)(at_us % US_PER_S / US_PER_MS));
    }
    const char *mark = cover_mark(r, seq);
    fprintf(c->out, "%s%4.*s  %s%s%s%s%s%.*s%s  ", paint_begin(c->out_colour, PAINT_DIM),
            STR_ARG(seq), paint_end(c->out_colour, PAINT_DIM),
            paint_begin(c->out_colour, PAINT_GOOD), mark, paint_end(c->out_colour, PAINT_GOOD),
            paint_begin(c->out_colour, PAINT_DIM), STR_ARG(buf_str(&time)),
            paint_end(c->out_colour, PAINT_DIM));
    cli_put(c, PAINT_BOLD, type);
    fputs("  ", c->out);
    text_json_line(&line, payload);
    cli_put(c, PAINT_NONE, buf_str(&line));
    fputc('\n', c->out);
    buf_free(&time);
    buf_free(&line);
    arena_free(&a);
}

int cmd_exec_events(struct cli *c)
{
    struct pages pages = {
        .route = "/events", .after = "after_seq", .last_field = "event_seq", .limit = 500};
    struct visit v;
    struct record r = {.c = c, .show = show_event, .v = &v};
    int code = visit_begin_found(c, &v, &VISIT_EXECUTION);

    if (code == EXIT_OK)
        code = print_record(c, &v, &pages, &r);
    if (code == EXIT_OK && !r.blind && r.points.n_resources > 0)
        cli_remark(c, COVERED_MARK " a fork there restores every resource as it was");
    arena_free(&r.a);
    visit_end(&v);
    return code;
}

/* ---- steps ---- */

enum { ARGS_COLUMNS = 32 };
enum { TOKENS_COLUMN = 5 }; /* its place */

static const struct table_column STEP_COLUMNS[] = {
    {"KIND", false, 0},   {"TARGET", false, 40}, {"ARGS", false, 0},
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

static void show_step(struct record *r, struct str step)
{
    struct table *t = r->table;
    struct arena a = {0};
    struct str kind, target, args, status, occurrence, started, completed, error, usage;
    const struct view_field fields[] = {
        {"kind", true, &kind},          {"target", true, &target},
        {"status", true, &status},      {"occurrence", false, &occurrence},
        {"started_at", true, &started}, {"completed_at", true, &completed},
        {"error", false, &error},       {"args", false, &args},
        {"usage", false, &usage},
    };

    int64_t before = 0;

    view_read(step, fields, COUNT(fields), &a);
    if (!str_present(occurrence) || !json_int64(occurrence, &before))
        before = 0;
    table_add(t, PAINT_NONE, kind);
    table_add(t, PAINT_BOLD, view_target(target, before, &a));
    table_add(t, PAINT_NONE, view_json_short(args, ARGS_COLUMNS, &a));
    table_add(t, view_status_paint(status), status);
    table_add(t, PAINT_NONE, step_duration(started, completed, status, &a));
    table_add(t, PAINT_NONE, step_tokens(usage, &a));
    table_add(t, PAINT_NONE, view_error_text(error, &a));
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
