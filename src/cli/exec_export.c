/* SPDX-License-Identifier: Apache-2.0
 * `rebuno exec export`: an execution with its steps and its log as one JSON object, page by page:
 * docs/testing.md describes it. */
#include <errno.h>

#include "base/clock.h"
#include "cli/commands.h"
#include "cli/new_file.h"
#include "cli/pages.h"
#include "cli/tokens.h"
#include "cli/view.h"

enum { EXPORT_VERSION = 1, STEPS_PAGE = 200, EVENTS_PAGE = 1000, PAGE_BYTES = 4 * 1024 * 1024 };

struct exporting {
    struct visit *v;
    FILE *out;
    struct str status; /* of the execution, when it was read; in the visit's arena */
    size_t n;          /* items of the current list */
    size_t n_steps, n_events;
    int64_t bytes; /* of the file */
    int why;       /* errno of the first write that failed */
    struct tokens tokens;
};

static void put(struct exporting *x, struct str bytes)
{
    if (fwrite(bytes.p, 1, bytes.n, x->out) < bytes.n && x->why == 0)
        x->why = errno;
}

static bool written(struct exporting *x, struct err *e)
{
    if (fflush(x->out) != 0 && x->why == 0)
        x->why = errno;
    return x->why == 0 ||
           err_set(e, ERR_UNAVAILABLE, "cannot write the output: %s", strerror(x->why));
}

/* ---- its parts ---- */

static bool put_execution(struct exporting *x, struct err *e)
{
    struct visit *v = x->v;
    const struct view_field fields[] = {{"status", true, &x->status}};

    if (!client_get(v->client, visit_path(v, ""), &v->answer, e))
        return false;
    view_read(buf_str(&v->answer), fields, COUNT(fields), &v->a);
    x->status = arena_str(&v->a, x->status);
    if (!str_present(x->status))
        return err_set(e, ERR_VALIDATION, "the kernel's answer is no execution");
    put(x, STR("\"execution\":"));
    put(x, json_trim(buf_str(&v->answer)));
    return true;
}

/* What the run's `previous()` gave: the state that the turn before it left. */
static bool put_previous(struct exporting *x, struct err *e)
{
    struct visit *v = x->v;

    if (!client_get(v->client, visit_path(v, "/previous"), &v->answer, e))
        return false;
    struct str state = json_get(buf_str(&v->answer), STR("state"), &v->a);
    put(x, STR(",\n\"previous\":"));
    put(x, str_present(state) ? state : STR("null"));
    return true;
}

static void take_item(void *ctx, struct str item)
{
    struct exporting *x = ctx;

    put(x, x->n++ == 0 ? STR("\n") : STR(",\n"));
    put(x, item);
}

static void take_step(void *ctx, struct str step)
{
    struct exporting *x = ctx;
    struct arena a = {0};
    struct str usage;
    const struct view_field fields[] = {{"usage", false, &usage}};

    view_read(step, fields, COUNT(fields), &a);
    tokens_add(&x->tokens, tokens_of(usage));
    arena_free(&a);
    take_item(ctx, step);
}

static bool put_list(struct exporting *x, const char *name, const struct pages *pages, size_t *n,
                     struct err *e)
{
    fprintf(x->out, ",\n\"%s\":[", name);
    x->n = 0;
    if (!pages_read(x->v, pages, e))
        return false;
    *n = x->n;
    put(x, STR("]"));
    return written(x, e);
}

static bool put_steps(struct exporting *x, struct err *e)
{
    const struct pages steps = {.route = "/steps",
                                .after = "after",
                                .last_field = "step_id",
                                .limit = STEPS_PAGE,
                                .bytes = PAGE_BYTES,
                                .take = take_step,
                                .ctx = x};

    return put_list(x, "steps", &steps, &x->n_steps, e);
}

static bool put_events(struct exporting *x, struct err *e)
{
    const struct pages events = {.route = "/events",
                                 .after = "after_seq",
                                 .last_field = "event_seq",
                                 .limit = EVENTS_PAGE,
                                 .take = take_item,
                                 .ctx = x};

    return put_list(x, "events", &events, &x->n_events, e);
}

static void put_usage(struct exporting *x)
{
    struct buf usage = {0};
    struct json_writer w = {.out = &usage};

    tokens_write(&w, x->tokens);
    put(x, STR(",\n\"usage\":"));
    put(x, buf_str(&usage));
    buf_free(&usage);
}

/* The log comes after the steps: what has happened since is in it alone, and no step is without its
 * events. */
static bool put_all(struct exporting *x, struct err *e)
{
    struct buf now = {0};

    clock_format_rfc3339(&now, clock_wall_us());
    fprintf(x->out, "{\"rebuno_export\":%d,\n\"exported_at\":\"%.*s\",\n", EXPORT_VERSION,
            STR_ARG(buf_str(&now)));
    buf_free(&now);
    if (!put_execution(x, e) || !put_previous(x, e) || !put_steps(x, e) || !put_events(x, e))
        return false;
    put_usage(x);
    put(x, STR("}\n"));
    return written(x, e);
}

/* ---- where it goes ---- */

/* Absent: standard output. */
static const char *target(const struct cli *c)
{
    const char *path = cli_flag(c, "output");

    return path == NULL || strcmp(path, "-") == 0 ? NULL : path;
}

static bool write_file(struct exporting *x, const char *path, struct err *e)
{
    struct err ignored;
    struct new_file *file = new_file_open(path, e);

    if (file == NULL)
        return false;
    x->out = new_file_stream(file);
    bool ok = put_all(x, e);
    x->bytes = ftello(x->out);
    return new_file_close(file, ok, ok ? e : &ignored);
}

static void add_size(struct buf *out, int64_t bytes)
{
    if (bytes < 1024)
        buf_printf(out, "%lld bytes", (long long)bytes);
    else if (bytes < 1024 * 1024)
        buf_printf(out, "%.1f KiB", (double)bytes / 1024);
    else
        buf_printf(out, "%.1f MiB", (double)bytes / (1024 * 1024));
}

/* What is there now, and what it is good for. */
static void tell_written(struct cli *c, const struct exporting *x, const char *path)
{
    struct buf size = {0};

    add_size(&size, x->bytes);
    cli_remark(c,
               "exported %.*s to %.150s: %zu step%s, %zu event%s, %.*s; replay it with "
               "'python -m rebuno.testing.replay %.150s MODULE:FUNCTION'",
               STR_ARG(view_short_id(x->v->id)), path, x->n_steps, x->n_steps == 1 ? "" : "s",
               x->n_events, x->n_events == 1 ? "" : "s", STR_ARG(buf_str(&size)), path);
    buf_free(&size);
}

int cmd_exec_export(struct cli *c)
{
    const char *path = target(c);
    struct visit v;
    struct exporting x = {.v = &v, .out = c->out};
    struct err e;
    int code = visit_begin_found(c, &v, &VISIT_EXECUTION);

    if (code != EXIT_OK)
        goto done;
    if (!(path == NULL ? put_all(&x, &e) : write_file(&x, path, &e))) {
        code = cli_fail(c, &e);
        goto done;
    }
    if (path != NULL)
        tell_written(c, &x, path);
    if (!view_is_final(x.status))
        cli_remark(c, "%.*s goes on: it is exported as far as it has got",
                   STR_ARG(view_short_id(v.id)));
done:
    visit_end(&v);
    return code;
}
