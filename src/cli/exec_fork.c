/* SPDX-License-Identifier: Apache-2.0
 * `rebuno exec fork` and `rebuno exec fork-points`. */
#include "base/json.h"
#include "cli/commands.h"
#include "cli/coverage.h"
#include "cli/policy_cmd.h"
#include "cli/restoration.h"
#include "cli/table.h"
#include "cli/view.h"
#include "cli/visit.h"

/* ---- fork ---- */

struct forking {
    int64_t at_seq;
    struct bundle bundle;
    bool has_bundle;
    struct visit v; /* of the source */
};

static bool parse_at(struct cli *c, int64_t *at, struct err *e)
{
    const char *text = cli_flag(c, "at");

    if (text == NULL)
        return err_set(e, ERR_VALIDATION,
                       "--at is missing: the number of an event, as 'rebuno exec events' has it");
    if (str_to_int64(str_of(text), at) && *at >= 1)
        return true;
    return err_set(e, ERR_VALIDATION, "--at: expected an event's number, from 1, not \"%.80s\"",
                   text);
}

static bool load_bundle(struct cli *c, struct forking *f, struct err *e)
{
    const char *path = cli_flag(c, "policy");

    f->has_bundle = path != NULL;
    return path == NULL || bundle_load(path, &f->bundle, e);
}

static bool send_fork(struct cli *c, struct forking *f, struct err *e)
{
    struct buf body = {0};
    struct json_writer w = {.out = &body};

    jw_open(&w, '{');
    jw_member_int(&w, "at_seq", f->at_seq);
    jw_member_str_opt(&w, "session", str_of(cli_flag(c, "session")));
    if (f->has_bundle)
        jw_member_str(&w, "policy_bundle", buf_str(&f->bundle.yaml));
    jw_close(&w, '}');
    bool ok = client_call(f->v.client, "POST", visit_path(&f->v, "/fork"), buf_str(&body),
                          &f->v.answer, e);
    buf_free(&body);
    return ok;
}

static void print_forked(struct cli *c, const struct forking *f, struct str id, struct str status)
{
    fputs("created ", c->out);
    cli_put(c, PAINT_BOLD, view_short_id(id));
    fputs(" (", c->out);
    cli_put(c, view_status_paint(status), status);
    fputs("), a fork of ", c->out);
    cli_put(c, PAINT_NONE, view_short_id(f->v.id));
    fprintf(c->out, " at event %lld; follow with 'rebuno exec watch ", (long long)f->at_seq);
    cli_put(c, PAINT_NONE, view_short_id(id));
    fputs("'\n", c->out);
}

static void print_policy(struct cli *c, const struct forking *f)
{
    char hex[HASH_HEX_LEN];

    if (!f->has_bundle)
        return;
    size_t n = policy_rule_count(f->bundle.policy);
    hash_hex(policy_hash(f->bundle.policy), hex);
    fprintf(c->out, "policy: its own, %zu rule%s, hash %.12s…\n", n, n == 1 ? "" : "s", hex);
}

static void warn_of_gap(struct cli *c, struct forking *f, const struct coverage *points,
                        const struct restored *r)
{
    struct str gap = restoration_gap(&f->v, points, r, &f->v.a);

    cli_warn(c, "event %lld is not covered for %.*s: %.*s", (long long)f->at_seq, STR_ARG(r->key),
             STR_ARG(gap));
}

static void print_restoration(struct cli *c, struct forking *f, struct str restoration)
{
    struct arena *a = &f->v.a;
    struct json_walk walk = {0};
    struct restored r;
    bool gaps = false;

    while (restoration_next(restoration, &walk, a, &r)) {
        cli_put(c, PAINT_BOLD, r.key);
        fputs(": ", c->out);
        cli_put(c, PAINT_NONE, restoration_told(&f->v, f->v.id, &r, a));
        fputc('\n', c->out);
        gaps = gaps || !r.covered;
    }
    if (!gaps)
        return;
    struct coverage points;
    struct err ignored;
    if (!coverage_fetch(&f->v, a, &points, &ignored))
        points = (struct coverage){0}; /* the reasons are then less exact */
    walk = (struct json_walk){0};
    while (restoration_next(restoration, &walk, a, &r)) {
        if (!r.covered)
            warn_of_gap(c, f, &points, &r);
    }
    cli_remark(c,
               "copied results may describe changes that the restored state lacks; "
               "'rebuno exec fork-points %.*s' shows what is covered",
               STR_ARG(view_short_id(f->v.id)));
}

static int fork_it(struct cli *c, struct forking *f)
{
    struct str id, status, restoration;
    const struct view_field fields[] = {
        {"id", true, &id}, {"status", true, &status}, {"restoration", false, &restoration}};
    struct err e;

    if (!send_fork(c, f, &e))
        return cli_fail(c, &e);
    view_read(buf_str(&f->v.answer), fields, COUNT(fields), &f->v.a);
    if (!str_present(id)) {
        err_set(&e, ERR_VALIDATION, "the kernel's answer has no execution's id");
        return cli_fail(c, &e);
    }
    if (cli_json(c)) {
        cli_line(c, buf_str(&f->v.answer));
        return EXIT_OK;
    }
    print_forked(c, f, id, status);
    print_policy(c, f);
    print_restoration(c, f, restoration);
    return EXIT_OK;
}

int cmd_exec_fork(struct cli *c)
{
    struct forking f = {0};
    struct err e;
    int code;

    if (!parse_at(c, &f.at_seq, &e))
        return cli_fail_usage(c, &e);
    if (load_bundle(c, &f, &e)) {
        code = visit_begin_found(c, &f.v, &VISIT_EXECUTION);
        if (code == EXIT_OK)
            code = fork_it(c, &f);
    } else {
        code = cli_fail(c, &e);
    }
    visit_end(&f.v);
    bundle_free(&f.bundle);
    return code;
}

/* ---- fork-points ---- */

static const struct table_column POINT_COLUMNS[] = {
    {"RESOURCE", false, 40},
    {"REGISTERED", true, 0},
    {"COVERED EVENTS", false, 0},
    {"CHECKPOINT", false, 0},
};

static struct str range_text(int64_t first, int64_t last, struct arena *a)
{
    if (first == last)
        return arena_printf(a, "%lld", (long long)first);
    return arena_printf(a, "%lld to %lld", (long long)first, (long long)last);
}

static struct str interval_text(const struct coverage_checkpoint *one, struct arena *a)
{
    if (one->invalidated_seq == 0)
        return arena_printf(a, "%lld on", (long long)one->covered_seq);
    if (one->invalidated_seq <= one->covered_seq)
        return STR("none");
    return range_text(one->covered_seq, one->invalidated_seq - 1, a);
}

static void add_resource(struct table *t, const struct coverage_resource *r, struct arena *a)
{
    size_t rows = r->n_checkpoints == 0 ? 1 : r->n_checkpoints;

    for (size_t i = 0; i < rows; i++) {
        const struct coverage_checkpoint *one = i < r->n_checkpoints ? &r->checkpoints[i] : NULL;

        table_add(t, PAINT_BOLD, i == 0 ? r->key : STR_NONE);
        table_add(t, PAINT_NONE,
                  i == 0 ? arena_printf(a, "%lld", (long long)r->registered_seq) : STR_NONE);
        table_add(t, one != NULL && one->invalidated_seq == 0 ? PAINT_GOOD : PAINT_NONE,
                  one == NULL ? STR("none") : interval_text(one, a));
        table_add(t, PAINT_NONE, one == NULL ? STR("never captured") : one->ref);
    }
}

static void print_ranges(struct cli *c, const struct coverage *points, struct arena *a)
{
    struct buf list = {0};

    for (size_t i = 0; i < points->n_ranges; i++) {
        struct str range = range_text(points->ranges[i].first, points->ranges[i].last, a);

        buf_printf(&list, "%s%.*s", i == 0 ? "" : ", ", STR_ARG(range));
    }
    if (list.n == 0)
        buf_add(&list, STR("none"));
    view_pair(c, "covered",
              arena_printf(a, "%.*s, of %lld events", STR_ARG(buf_str(&list)),
                           (long long)points->latest_seq));
    buf_free(&list);
}

/* Where a fork restores something, and all of it. */
static void print_hint(struct cli *c, struct visit *v, const struct coverage *points)
{
    if (points->n_resources == 0) {
        cli_remark(c, "it has no resources: there is nothing to restore, at any event");
        return;
    }
    int64_t last = points->n_ranges == 0 ? 0 : points->ranges[points->n_ranges - 1].last;
    if (last < points->resources[0].registered_seq)
        cli_remark(c, "a fork at any later event begins with an earlier state of some resource");
    else
        view_pair(c, "to fork there",
                  arena_printf(&v->a, "rebuno exec fork %.*s --at %lld",
                               STR_ARG(view_short_id(v->id)), (long long)last));
}

static void print_points(struct cli *c, struct visit *v, const struct coverage *points)
{
    struct table t = {.columns = POINT_COLUMNS, .n_columns = COUNT(POINT_COLUMNS)};
    struct arena *a = &v->a;

    for (size_t i = 0; i < points->n_resources; i++)
        add_resource(&t, &points->resources[i], a);
    table_print(&t, c);
    if (table_rows(&t) > 0)
        fputc('\n', c->out);
    table_free(&t);
    print_ranges(c, points, a);
    print_hint(c, v, points);
}

int cmd_exec_fork_points(struct cli *c)
{
    struct visit v;
    struct coverage points;
    struct err e;
    int code = visit_begin_found(c, &v, &VISIT_EXECUTION);

    if (code != EXIT_OK)
        goto done;
    if (!client_get(v.client, visit_path(&v, "/fork-points"), &v.answer, &e)) {
        code = cli_fail(c, &e);
    } else if (cli_json(c)) {
        cli_line(c, buf_str(&v.answer));
    } else if (coverage_read(buf_str(&v.answer), &v.a, &points)) {
        print_points(c, &v, &points);
    } else {
        err_set(&e, ERR_VALIDATION, "the kernel's answer has no fork points");
        code = cli_fail(c, &e);
    }
done:
    visit_end(&v);
    return code;
}
