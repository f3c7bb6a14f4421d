/* SPDX-License-Identifier: Apache-2.0
 * Steps as the API shows them. */
#include "store/internal.h"

#define VIEW_COLUMNS                                                                               \
    "s.key, s.step_id, s.kind, s.target, s.status, s.idempotency, s.args_hash, s.occurrence, "     \
    "s.started_at,"                                                                                \
    " s.completed_at, s.rule_id, " STEP_PAYLOAD("args") ", " STEP_PAYLOAD(                         \
        "result") ", " STEP_PAYLOAD("error") ", coalesce(s.input_tokens, -1), "                    \
                                             "coalesce(s.output_tokens, -1), "                     \
                                             "s.affects "

static const struct db_sql SQL_STEP_READ = {
    .name = "step_read",
    .sqlite = "SELECT " VIEW_COLUMNS
              "FROM steps s WHERE s.execution_key = (SELECT key FROM executions WHERE id = $1)"
              " AND substr(s.step_id, 1, 8) = substr($2, 1, 8) AND s.step_id = $2",
    .types = "bb",
};

/* By key, which is the order of creation; the index is by execution and step id, so a page looks at
 * all the execution's entries. Without a filter it fetches only its own rows. */
#define PAGE_FROM                                                                                  \
    "FROM steps s WHERE s.execution_key = (SELECT key FROM executions WHERE id = $1) AND s.key + " \
    "0 > $2 "
#define PAGE_END "ORDER BY s.key + 0 LIMIT $3"

static const struct db_sql SQL_STEPS_ALL = {
    .name = "steps_all",
    .sqlite = "SELECT " VIEW_COLUMNS "FROM (SELECT s.key " PAGE_FROM PAGE_END
              ") p JOIN steps s ON s.key = p.key"
              " ORDER BY s.key",
    .types = "bii",
};
static const struct db_sql SQL_STEPS_TERMINAL = {
    .name = "steps_terminal",
    .sqlite =
        "SELECT " VIEW_COLUMNS PAGE_FROM "AND s.status IN " TERMINAL_STEP_STATUSES " " PAGE_END,
    .types = "bii",
};
static const struct db_sql SQL_STEPS_STATUS = {
    .name = "steps_status",
    .sqlite = "SELECT " VIEW_COLUMNS PAGE_FROM "AND s.status = $4 " PAGE_END,
    .types = "biit",
};

struct step_page {
    struct arena *arena;
    struct payload_reader payloads;
    size_t bytes, max_bytes;
    LIST(struct step_view *) rows;
};

static void on_view(void *ctx, struct db *db, size_t row)
{
    struct step_page *page = ctx;
    struct arena *a = page->arena;
    struct step_view *v;

    (void)row;
    if (page->rows.n > 0 && page->bytes >= page->max_bytes)
        return;
    page->bytes += payload_size(db, 11) + payload_size(db, 12) + payload_size(db, 13);
    v = arena_new(a, struct step_view);
    v->key = db_get_int(db, 0);
    db_get_hash(db, 1, &v->id);
    v->kind = db_get_copy(db, 2, a);
    v->target = db_get_copy(db, 3, a);
    v->status = db_get_copy(db, 4, a);
    v->idempotency = db_get_copy(db, 5, a);
    db_get_hash(db, 6, &v->args_hash);
    v->occurrence = db_get_int(db, 7);
    v->started_at = db_get_int(db, 8);
    v->completed_at = db_get_int(db, 9);
    v->rule_id = db_get_copy(db, 10, a);
    payload_get(&page->payloads, 11, &v->args);
    payload_get(&page->payloads, 12, &v->result);
    payload_get(&page->payloads, 13, &v->error);
    v->usage = (struct usage){db_get_int(db, 14), db_get_int(db, 15)};
    v->affects = db_get_copy(db, 16, a);
    list_add(page->rows, v);
}

bool store_read_step(struct store_reader *r, const struct uuid *execution_id,
                     const struct hash *step_id, struct arena *a, struct step_view *out,
                     bool *found, struct err *e)
{
    struct step_page page = {
        .arena = a, .payloads = {.db = r->db, .arena = a}, .max_bytes = SIZE_MAX};
    bool ok;

    db_call(r->db, &SQL_STEP_READ, on_view, &page);
    db_uuid(r->db, execution_id);
    db_hash(r->db, step_id);
    db_one(r->db);
    ok = payloads_read(&page.payloads, e);
    *found = ok && page.rows.n > 0;
    if (*found)
        *out = *page.rows.at[0];
    list_free(page.rows);
    payload_reader_free(&page.payloads);
    return ok;
}

/* NOLINTNEXTLINE(readability-function-size): bounds in, a page out */
bool store_read_steps(struct store_reader *r, const struct uuid *execution_id, struct str status,
                      int64_t after_key, size_t limit, size_t max_bytes, struct arena *a,
                      struct step_view **out, size_t *n, struct err *e)
{
    struct step_page page = {
        .arena = a, .payloads = {.db = r->db, .arena = a}, .max_bytes = max_bytes};
    bool any = str_empty(status), terminal = str_eq(status, STR("terminal")), ok;

    *n = 0;
    db_call(r->db,
            any        ? &SQL_STEPS_ALL
            : terminal ? &SQL_STEPS_TERMINAL
                       : &SQL_STEPS_STATUS,
            on_view, &page);
    db_uuid(r->db, execution_id);
    db_int(r->db, after_key);
    db_int(r->db, (int64_t)limit);
    if (!any && !terminal)
        db_text(r->db, status);
    db_one(r->db);
    ok = payloads_read(&page.payloads, e);
    if (ok)
        list_rows_to_arena(page.rows, a, out, n);
    list_free(page.rows);
    payload_reader_free(&page.payloads);
    return ok;
}
