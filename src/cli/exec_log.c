/* SPDX-License-Identifier: Apache-2.0
 * `rebuno exec events` and `rebuno exec steps`: an execution's record, page by page, so that no log
 * is held whole. */
#include "base/clock.h"
#include "cli/commands.h"
#include "cli/table.h"
#include "cli/text.h"
#include "cli/view.h"
#include "cli/visit.h"
#include "cli/when.h"

/* How one list is paged and shown. */
struct pages {
    const char *route, *after; /* "/events", the parameter that goes on from the last item … */
    const char *last_field;    /* … and the item's field that it takes */
    size_t limit;
    void (*show)(struct cli *c, struct str item, void *ctx); /* for people */
    void *ctx;
    /* where it stands */
    struct buf last; /* text of the last item's field; empty: at the start */
    size_t on_page, printed;
};

static void take_item(struct cli *c, struct pages *p, struct str item)
{
    p->on_page++;
    if (!cli_json(c)) {
        p->show(c, item, p->ctx);
    } else {
        fputs(p->printed == 0 ? "[" : ",\n", c->out);
        fwrite(item.p, 1, item.n, c->out);
    }
    p->printed++;
}

static void note_last(struct pages *p, struct str item)
{
    struct arena scratch = {0};
    struct str value = json_get(item, str_of(p->last_field), &scratch);

    if (json_type_of(value) == JSON_STRING)
        value = json_string(value, &scratch);
    buf_clear(&p->last);
    buf_add(&p->last, value);
    arena_free(&scratch);
}

static bool take_page(struct cli *c, struct visit *v, struct pages *p, struct err *e)
{
    struct buf path = {0};
    struct json_walk walk = {0};
    struct str item, last = STR_NONE;

    buf_printf(&path, "%s?limit=%zu", visit_path(v, p->route), p->limit);
    if (p->last.n > 0) {
        buf_printf(&path, "&%s=", p->after);
        client_escape(&path, buf_str(&p->last));
    }
    buf_add_byte(&path, '\0');
    bool ok = client_get(v->client, path.p, &v->answer, e);
    buf_free(&path);
    if (!ok)
        return false;
    if (json_type_of(buf_str(&v->answer)) != JSON_ARRAY)
        return err_set(e, ERR_VALIDATION, "the kernel's answer is no list");
    p->on_page = 0;
    while (json_next_item(buf_str(&v->answer), &walk, &item)) {
        take_item(c, p, item);
        last = item;
    }
    if (p->on_page > 0)
        note_last(p, last);
    return true;
}

static int take_pages(struct cli *c, struct visit *v, struct pages *p)
{
    struct err e;
    int code = EXIT_OK;

    do {
        if (!take_page(c, v, p, &e))
            code = cli_fail(c, &e);
    } while (code == EXIT_OK && p->on_page >= p->limit && p->last.n > 0);
    if (code == EXIT_OK && cli_json(c))
        fputs(p->printed == 0 ? "[]\n" : "]\n", c->out);
    buf_free(&p->last);
    return code;
}

/* ---- events ---- */

static void show_event(struct cli *c, struct str event, void *ctx)
{
    struct arena a = {0};
    struct str seq, type, at, payload;
    const struct view_field fields[] = {{"event_seq", false, &seq},
                                        {"type", true, &type},
                                        {"occurred_at", true, &at},
                                        {"payload", false, &payload}};
    struct buf time = {0}, line = {0};
    int64_t at_us = 0;

    (void)ctx;
    view_read(event, fields, COUNT(fields), &a);
    if (str_present(at) && clock_parse_rfc3339(at, &at_us)) {
        when_full(&time, at_us);
        buf_printf(&time, ".%03d", (int)(at_us % US_PER_S / US_PER_MS));
    }
    fprintf(c->out, "%s%4.*s  %.*s%s  ", paint_begin(c->out_colour, PAINT_DIM), STR_ARG(seq),
            STR_ARG(buf_str(&time)), paint_end(c->out_colour, PAINT_DIM));
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
    struct pages pages = {.route = "/events",
                          .after = "after_seq",
                          .last_field = "event_seq",
                          .limit = 500,
                          .show = show_event};
    struct visit v;
    int code = visit_begin_found(c, &v, &VISIT_EXECUTION);

    if (code == EXIT_OK)
        code = take_pages(c, &v, &pages);
    visit_end(&v);
    return code;
}

/* ---- steps ---- */

enum { ARGS_COLUMNS = 32 };

static const struct table_column STEP_COLUMNS[] = {
    {"KIND", false, 0},   {"TARGET", false, 40}, {"ARGS", false, 0},
    {"STATUS", false, 0}, {"DURATION", true, 0}, {"ERROR", false, 0},
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

/* The second of equal steps is "search #2". */
static struct str step_target(struct str target, struct str occurrence, struct arena *a)
{
    int64_t before = 0;

    if (!str_present(occurrence) || !json_int64(occurrence, &before) || before < 1 ||
        before == INT64_MAX)
        return target;
    return arena_printf(a, "%.*s #%lld", STR_ARG(target), (long long)before + 1);
}

static void show_step(struct cli *c, struct str step, void *ctx)
{
    struct table *t = ctx;
    struct arena a = {0};
    struct str kind, target, args, status, occurrence, started, completed, error;
    const struct view_field fields[] = {
        {"kind", true, &kind},          {"target", true, &target},
        {"status", true, &status},      {"occurrence", false, &occurrence},
        {"started_at", true, &started}, {"completed_at", true, &completed},
        {"error", false, &error},       {"args", false, &args},
    };

    (void)c;
    view_read(step, fields, COUNT(fields), &a);
    table_add(t, PAINT_NONE, kind);
    table_add(t, PAINT_BOLD, step_target(target, occurrence, &a));
    table_add(t, PAINT_NONE, view_json_short(args, ARGS_COLUMNS, &a));
    table_add(t, view_status_paint(status), status);
    table_add(t, PAINT_NONE, step_duration(started, completed, status, &a));
    table_add(t, PAINT_NONE, view_error_text(error, &a));
    arena_free(&a);
}

int cmd_exec_steps(struct cli *c)
{
    struct table table = {.columns = STEP_COLUMNS, .n_columns = COUNT(STEP_COLUMNS)};
    struct pages pages = {.route = "/steps",
                          .after = "after",
                          .last_field = "step_id",
                          .limit = 200,
                          .show = show_step,
                          .ctx = &table};
    struct visit v;
    int code = visit_begin_found(c, &v, &VISIT_EXECUTION);

    if (code == EXIT_OK)
        code = take_pages(c, &v, &pages);
    if (code == EXIT_OK && !cli_json(c)) {
        table_print(&table, c);
        if (table_rows(&table) == 0)
            cli_remark(c, "no steps yet");
    }
    table_free(&table);
    visit_end(&v);
    return code;
}
