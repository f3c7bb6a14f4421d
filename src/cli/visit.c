/* SPDX-License-Identifier: Apache-2.0
 * From what a person types to one execution or approval: any unambiguous beginning of its id will
 * do. */
#include "cli/visit.h"

#include "base/clock.h"
#include "base/uuid.h"
#include "cli/table.h"
#include "cli/view.h"

enum { CANDIDATES_SHOWN = 10 };

struct visit_kind {
    const char *noun, *path;
    const char *query; /* of the listing, in which those that are over are found too */
    const char *list;  /* its member with the entries; NULL: it is the list */
    const struct table_column *columns; /* what tells candidates apart */
    size_t n_columns;
    bool has_target;
};

static const struct table_column EXECUTION_COLUMNS[] = {
    {"ID", false, 0}, {"AGENT", false, 30}, {"STATUS", false, 0}, {"AGE", true, 0}};
static const struct table_column APPROVAL_COLUMNS[] = {{"ID", false, 0},
                                                       {"AGENT", false, 30},
                                                       {"TARGET", false, 30},
                                                       {"STATUS", false, 0},
                                                       {"AGE", true, 0}};

const struct visit_kind VISIT_EXECUTION = {.noun = "execution",
                                           .path = "/v0/executions",
                                           .query = "",
                                           .list = "executions",
                                           .columns = EXECUTION_COLUMNS,
                                           .n_columns = COUNT(EXECUTION_COLUMNS)};
const struct visit_kind VISIT_APPROVAL = {.noun = "approval",
                                          .path = "/v0/approvals",
                                          .query = "status=&",
                                          .columns = APPROVAL_COLUMNS,
                                          .n_columns = COUNT(APPROVAL_COLUMNS),
                                          .has_target = true};

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
    return arena_printf(&v->a, "%s/%.*s%s", v->kind->path, STR_ARG(v->id), rest).p;
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

static void add_candidate(struct table *t, const struct visit_kind *kind, struct str entry,
                          struct arena *a)
{
    struct str id, agent, target, status, created;
    const struct view_field fields[] = {{"id", true, &id},
                                        {"agent_id", true, &agent},
                                        {"target", true, &target},
                                        {"status", true, &status},
                                        {"created_at", true, &created}};

    view_read(entry, fields, COUNT(fields), a);
    table_add(t, PAINT_NONE, id);
    table_add(t, PAINT_NONE, agent);
    if (kind->has_target)
        table_add(t, PAINT_NONE, target);
    table_add(t, view_status_paint(status), status);
    table_add(t, PAINT_NONE, view_age(created, clock_wall_us(), a));
}

/* On the error stream, under the error. */
static void list_candidates(struct cli *c, struct visit *v, struct str entries)
{
    struct table t = {.columns = v->kind->columns, .n_columns = v->kind->n_columns};
    struct cli to_err = *c;
    struct json_walk walk = {0};
    struct str item;
    size_t n = 0;

    while (json_next_item(entries, &walk, &item)) {
        if (++n <= CANDIDATES_SHOWN)
            add_candidate(&t, v->kind, item, &v->a);
    }
    to_err.out = c->err;
    to_err.out_colour = c->err_colour;
    table_print(&t, &to_err);
    table_free(&t);
    if (n > CANDIDATES_SHOWN)
        cli_remark(c, "… and more");
}

static struct str entries_of(struct visit *v)
{
    struct str answer = buf_str(&v->answer);

    return v->kind->list == NULL ? answer : json_get(answer, str_of(v->kind->list), &v->a);
}

/* Picks the only one out of the listing. */
static int pick_only(struct cli *c, struct visit *v, struct str prefix)
{
    struct str entries = entries_of(v), only = STR_NONE, item;
    struct json_walk walk = {0};
    const char *noun = v->kind->noun;
    struct err e;
    size_t n = 0;

    if (json_type_of(entries) != JSON_ARRAY) {
        err_set(&e, ERR_VALIDATION, "the kernel's listing has no %ss", noun);
        return cli_fail(c, &e);
    }
    while (json_next_item(entries, &walk, &item)) {
        if (n++ == 0)
            only = item;
    }
    if (n == 0) {
        err_set(&e, ERR_NOT_FOUND, "no %s's id begins with '%.*s'", noun, STR_ARG(prefix));
        return cli_fail(c, &e);
    }
    if (n > 1) {
        err_set(&e, ERR_VALIDATION,
                "'%.*s' is the beginning of more than one %s's id:", STR_ARG(prefix), noun);
        cli_fail(c, &e);
        list_candidates(c, v, entries);
        return EXIT_FAILED;
    }
    const struct view_field fields[] = {{"id", true, &v->id}};
    view_read(only, fields, COUNT(fields), &v->a);
    v->id = arena_str(&v->a, v->id); /* the listing's bytes go away with the next call */
    if (v->id.n == UUID_TEXT_LEN)
        return EXIT_OK;
    err_set(&e, ERR_VALIDATION, "the kernel's listing has an entry without an id");
    return cli_fail(c, &e);
}

int visit_find(struct cli *c, struct visit *v, const struct visit_kind *kind, struct str given)
{
    struct str prefix;
    struct err e;

    v->kind = kind;
    if (!normalize(given, &v->a, &prefix)) {
        err_set(&e, ERR_VALIDATION, "'%.*s' is no %s's id, nor the beginning of one",
                STR_ARG(str_slice(given, 0, given.n < 80 ? given.n : 80)), kind->noun);
        return cli_fail(c, &e);
    }
    if (prefix.n == UUID_TEXT_LEN) {
        v->id = prefix;
        return EXIT_OK;
    }
    const char *path = arena_printf(&v->a, "%s?%sprefix=%.*s&limit=%d", kind->path, kind->query,
                                    STR_ARG(prefix), CANDIDATES_SHOWN + 1)
                           .p;
    if (!client_get(v->client, path, &v->answer, &e))
        return cli_fail(c, &e);
    return pick_only(c, v, prefix);
}

int visit_begin_found(struct cli *c, struct visit *v, const struct visit_kind *kind)
{
    int code = visit_begin(c, v);

    return code == EXIT_OK ? visit_find(c, v, kind, cli_arg(c, 0)) : code;
}

int visit_show(struct cli *c, const struct visit_kind *kind,
               void (*print)(struct cli *c, struct visit *v))
{
    struct visit v;
    struct err e;
    int code = visit_begin_found(c, &v, kind);

    if (code != EXIT_OK)
        goto done;
    if (!client_get(v.client, visit_path(&v, ""), &v.answer, &e))
        code = cli_fail(c, &e);
    else if (cli_json(c))
        cli_line(c, buf_str(&v.answer));
    else
        print(c, &v);
done:
    visit_end(&v);
    return code;
}
