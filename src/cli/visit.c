/* SPDX-License-Identifier: Apache-2.0
 * From what a person types to one execution: any unambiguous beginning of its id will do. */
#include "base/clock.h"
#include "base/uuid.h"
#include "cli/table.h"
#include "cli/view.h"
#include "cli/visit.h"

enum { CANDIDATES_SHOWN = 10 };

int visit_begin(struct cli *c, struct visit *v)
{
    struct err e;

    *v = (struct visit){.client = client_new(cli_flag(c, "url"), &e)};
    if (v->client != NULL)
        return EXIT_OK;
    cli_fail(c, &e);
    return EXIT_USAGE;
}

void visit_end(struct visit *v)
{
    client_free(v->client);
    arena_free(&v->a);
    buf_free(&v->answer);
}

const char *visit_path(struct visit *v, const char *rest)
{
    return arena_printf(&v->a, "/v0/executions/%.*s%s", STR_ARG(v->id), rest).p;
}

/* Lower case, as ids are written; false when no id has such a beginning. */
static bool normalize(struct str given, struct arena *a, struct str *out)
{
    struct buf b = {0};
    bool ok = given.n > 0 && given.n <= UUID_TEXT_LEN;

    for (size_t i = 0; i < given.n && ok; i++) {
        char ch = given.p[i];

        if (ch >= 'A' && ch <= 'F')
            ch = (char)(ch - 'A' + 'a');
        bool dash = i == 8 || i == 13 || i == 18 || i == 23;
        ok = dash ? ch == '-' : (ch >= '0' && ch <= '9') || (ch >= 'a' && ch <= 'f');
        buf_add_byte(&b, ch);
    }
    *out = arena_str(a, buf_str(&b));
    buf_free(&b);
    return ok;
}

static const struct table_column CANDIDATE_COLUMNS[] = {
    {"ID", false, 0}, {"AGENT", false, 30}, {"STATUS", false, 0}, {"AGE", true, 0}};

static void add_candidate(struct table *t, struct str execution, struct arena *a)
{
    struct str id, agent, status, created;
    const struct view_field fields[] = {{"id", true, &id},
                                        {"agent_id", true, &agent},
                                        {"status", true, &status},
                                        {"created_at", true, &created}};

    view_read(execution, fields, COUNT(fields), a);
    table_add(t, PAINT_NONE, id);
    table_add(t, PAINT_NONE, agent);
    table_add(t, view_status_paint(status), status);
    table_add(t, PAINT_NONE, view_age(created, clock_wall_us(), a));
}

/* On the error stream, under the error. */
static void list_candidates(struct cli *c, struct str executions, struct arena *a)
{
    struct table t = {.columns = CANDIDATE_COLUMNS, .n_columns = COUNT(CANDIDATE_COLUMNS)};
    struct cli to_err = *c;
    struct json_walk walk = {0};
    struct str item;
    size_t n = 0;

    while (json_next_item(executions, &walk, &item)) {
        if (++n <= CANDIDATES_SHOWN)
            add_candidate(&t, item, a);
    }
    to_err.out = c->err;
    to_err.out_colour = c->err_colour;
    table_print(&t, &to_err);
    table_free(&t);
    if (n > CANDIDATES_SHOWN)
        cli_remark(c, "… and more");
}

/* Picks the one execution out of the listing. */
static int pick_only(struct cli *c, struct visit *v, struct str prefix)
{
    struct str executions = json_get(buf_str(&v->answer), STR("executions"), &v->a);
    struct str only = STR_NONE, item;
    struct json_walk walk = {0};
    struct err e;
    size_t n = 0;

    if (json_type_of(executions) != JSON_ARRAY) {
        err_set(&e, ERR_VALIDATION, "the kernel's listing has no executions");
        return cli_fail(c, &e);
    }
    while (json_next_item(executions, &walk, &item)) {
        if (n++ == 0)
            only = item;
    }
    if (n == 0) {
        err_set(&e, ERR_NOT_FOUND, "no execution's id begins with '%.*s'", STR_ARG(prefix));
        return cli_fail(c, &e);
    }
    if (n > 1) {
        err_set(&e, ERR_VALIDATION,
                "'%.*s' is the beginning of more than one execution's id:", STR_ARG(prefix));
        cli_fail(c, &e);
        list_candidates(c, executions, &v->a);
        return EXIT_FAILED;
    }
    const struct view_field fields[] = {{"id", true, &v->id}};
    view_read(only, fields, COUNT(fields), &v->a);
    v->id = arena_str(&v->a, v->id); /* the listing's bytes go away with the next call */
    if (v->id.n == UUID_TEXT_LEN)
        return EXIT_OK;
    err_set(&e, ERR_VALIDATION, "the kernel's listing has an execution without an id");
    return cli_fail(c, &e);
}

int visit_begin_execution(struct cli *c, struct visit *v)
{
    struct str given = cli_arg(c, 0), prefix;
    struct err e;
    int code = visit_begin(c, v);

    if (code != EXIT_OK)
        return code;
    if (!normalize(given, &v->a, &prefix)) {
        err_set(&e, ERR_VALIDATION, "'%.80s' is no execution's id, nor the beginning of one",
                given.p);
        return cli_fail(c, &e);
    }
    if (prefix.n == UUID_TEXT_LEN) {
        v->id = prefix;
        return EXIT_OK;
    }
    const char *path = arena_printf(&v->a, "/v0/executions?prefix=%.*s&limit=%d", STR_ARG(prefix),
                                    CANDIDATES_SHOWN + 1)
                           .p;
    if (!client_get(v->client, path, &v->answer, &e))
        return cli_fail(c, &e);
    return pick_only(c, v, prefix);
}
