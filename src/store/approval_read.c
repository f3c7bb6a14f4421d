/* SPDX-License-Identifier: Apache-2.0
 * Approvals as the API shows them, and those whose time is over. */
#include "store/internal.h"

enum { PREFIX_ROWS = 2000 }; /* so many ids are looked through rather than a whole list */

/* ---- rows, with the step that each one gates ---- */

#define VIEW_COLUMNS                                                                               \
    "p.key, p.id, e.id, p.step_id, p.status, p.approvers, p.message, p.decided_by, "               \
    "p.asserted_by, p.rationale, p.created_at, p.timeout_at, p.decided_at, e.agent_id, s.kind, "   \
    "s.target, s.args"
/* In this order and by these indexes, whatever the databases think of them. */
#define SQLITE_VIEW                                                                                \
    "SELECT " VIEW_COLUMNS " FROM approvals p CROSS JOIN executions e CROSS JOIN steps s"          \
    " WHERE e.key = p.execution_key AND s.execution_key = p.execution_key"                         \
    " AND substr(s.step_id, 1, 8) = substr(p.step_id, 1, 8) AND s.step_id = p.step_id AND "
#define POSTGRES_JOINS                                                                             \
    " JOIN executions e ON e.key = p.execution_key CROSS JOIN LATERAL (SELECT o.kind, o.target, "  \
    "o.args FROM steps o WHERE o.execution_key = p.execution_key"                                  \
    " AND substr(o.step_id, 1, 8) = substr(p.step_id, 1, 8) AND o.step_id = p.step_id OFFSET 0) "  \
    "s "

static const struct db_sql SQL_APPROVAL_READ = {
    .name = "approval_read",
    .sqlite = SQLITE_VIEW "p.id = $1",
    .postgres = "SELECT " VIEW_COLUMNS " FROM approvals p" POSTGRES_JOINS "WHERE p.id = $1",
    .types = "b",
};
static const struct db_sql SQL_APPROVAL_VIEWS = {
    .name = "approval_views",
    .sqlite = SQLITE_VIEW "p.key = $1",
    .postgres =
        "SELECT u.ord, " VIEW_COLUMNS " FROM unnest($1::bigint[]) WITH ORDINALITY u (key, ord)"
        " JOIN approvals p ON p.key = u.key" POSTGRES_JOINS "ORDER BY u.ord",
    .types = "I",
};

struct approval_views {
    struct arena *arena;
    struct payload_reader payloads;
    size_t bytes, max_bytes; /* max_bytes 0: any */
    bool brief;
    LIST(struct approval_view *) rows;
};

static void on_view(void *ctx, struct db *db, size_t row)
{
    struct approval_views *views = ctx;
    struct arena *a = views->arena;
    struct approval_view *v;

    (void)row;
    if (views->max_bytes > 0 && views->rows.n > 0 && views->bytes >= views->max_bytes)
        return;
    v = arena_new(a, struct approval_view);
    v->key = db_get_int(db, 0);
    (void)db_get_uuid(db, 1, &v->id);
    (void)db_get_uuid(db, 2, &v->execution_id);
    db_get_hash(db, 3, &v->step_id);
    v->status = db_get_copy(db, 4, a);
    v->approvers = db_get_copy(db, 5, a);
    v->message = db_get_copy(db, 6, a);
    v->decided_by = db_get_copy(db, 7, a);
    v->asserted_by = db_get_copy(db, 8, a);
    v->rationale = db_get_copy(db, 9, a);
    v->created_at = db_get_int(db, 10);
    v->timeout_at = db_get_int(db, 11);
    v->decided_at = db_get_int(db, 12);
    v->agent_id = db_get_copy(db, 13, a);
    v->kind = db_get_copy(db, 14, a);
    v->target = db_get_copy(db, 15, a);
    if (!views->brief) {
        views->bytes += payload_size(db, 16);
        payload_get(&views->payloads, 16, &v->args);
    }
    list_add(views->rows, v);
}

bool store_read_approval(struct store_reader *r, const struct uuid *id, struct arena *a,
                         struct approval_view *out, bool *found, struct err *e)
{
    struct approval_views views = {.arena = a, .payloads = {.db = r->db, .arena = a}};
    bool ok;

    db_call(r->db, &SQL_APPROVAL_READ, on_view, &views);
    db_uuid(r->db, id);
    db_one(r->db);
    ok = payloads_read(&views.payloads, e);
    *found = ok && views.rows.n > 0;
    if (*found)
        *out = *views.rows.at[0];
    list_free(views.rows);
    payload_reader_free(&views.payloads);
    return ok;
}

/* ---- lists: the keys of a page by the index that fits the filter, then the rows ---- */

/* In the ids' own index a range would be found that the page does not begin with. */
#define ID_RANGE " AND coalesce(p.id, $5) BETWEEN $5 AND $6 "
#define SOONEST "ORDER BY p.timeout_at, p.key LIMIT $4"
#define NO_END "9223372036854775807"

/* On Postgres the comparison of rows, or the order by all its columns (execution_read.c), leaves no
 * other index to choose than the one that fits. */
static const struct db_sql SQL_PAGE_STATUS = {
    .name = "approval_page_status",
    .sqlite = "SELECT p.timeout_at, p.key FROM approvals p INDEXED BY approvals_by_status"
              " WHERE p.status = $1 AND (p.timeout_at, p.key) > ($2, $3)" ID_RANGE SOONEST,
    .postgres = "SELECT p.timeout_at, p.key FROM approvals p"
                " WHERE (p.status, p.timeout_at, p.key) > ($1, $2, $3)"
                " AND (p.status, p.timeout_at, p.key) <= ($1, " NO_END ", " NO_END ")" ID_RANGE
                "ORDER BY p.status, p.timeout_at, p.key LIMIT $4",
    .types = "tiiibb",
};
static const struct db_sql SQL_PAGE_EXECUTION = {
    .name = "approval_page_execution",
    .sqlite = "SELECT p.timeout_at, p.key FROM approvals p INDEXED BY approvals_by_execution"
              " WHERE p.execution_key = (SELECT key FROM executions WHERE id = $7)"
              " AND p.status = $1 AND (p.timeout_at, p.key) > ($2, $3)" ID_RANGE SOONEST,
    .postgres = "SELECT o.timeout_at, o.key FROM executions e CROSS JOIN LATERAL (SELECT p.* FROM "
                "approvals p WHERE p.execution_key = ANY (ARRAY[e.key]) AND p.status = $1"
                " AND (p.timeout_at, p.key) > ($2, $3)" ID_RANGE
                "ORDER BY p.execution_key, p.status, p.timeout_at, p.key LIMIT $4) o"
                " WHERE e.id = $7 ORDER BY o.timeout_at, o.key",
    .types = "tiiibbb",
};
static const struct db_sql SQL_ID_RANGE = {
    .name = "approval_id_range",
    .sqlite = "SELECT p.timeout_at, p.key, p.status FROM approvals p"
              " WHERE p.id BETWEEN $1 AND $2 ORDER BY p.id LIMIT $3",
    .types = "bbi",
};

struct page_row {
    int64_t timeout_at, key;
};
struct page {
    struct db *db;
    const struct approval_filter *filter;
    struct page_row after; /* the last one that was seen */
    LIST(struct page_row) rows;
    size_t looked_at; /* by their ids */
};

static int by_timeout(const void *a, const void *b)
{
    const struct page_row *x = a, *y = b;

    if (x->timeout_at != y->timeout_at)
        return x->timeout_at < y->timeout_at ? -1 : 1;
    return (x->key > y->key) - (x->key < y->key);
}

static void on_page_row(void *ctx, struct db *db, size_t row)
{
    struct page *page = ctx;
    struct page_row r = {db_get_int(db, 0), db_get_int(db, 1)};

    (void)row;
    list_add(page->rows, r);
}

static void on_id(void *ctx, struct db *db, size_t row)
{
    struct page *page = ctx;
    struct page_row r = {db_get_int(db, 0), db_get_int(db, 1)};
    struct str wanted = page->filter->status;

    (void)row;
    page->looked_at++;
    if ((!str_present(wanted) || str_eq(db_get_str(db, 2), wanted)) &&
        by_timeout(&r, &page->after) > 0)
        list_add(page->rows, r);
}

static void call_for_status(struct page *page, struct str status)
{
    const struct approval_filter *f = page->filter;
    struct db *db = page->db;

    db_call(db, f->execution_id == NULL ? &SQL_PAGE_STATUS : &SQL_PAGE_EXECUTION, on_page_row,
            page);
    db_text(db, status);
    db_int(db, page->after.timeout_at);
    db_int(db, page->after.key);
    db_int(db, (int64_t)f->limit);
    db_uuid(db, &f->low);
    db_uuid(db, &f->high);
    if (f->execution_id != NULL)
        db_uuid(db, f->execution_id);
    db_one(db);
}

/* The indexes are by status too: without one the page is merged from the four. */
static bool walk_lists(struct page *page, struct err *e)
{
    page->rows.n = 0;
    for (unsigned s = APPROVAL_PENDING; s <= APPROVAL_EXPIRED; s++) {
        struct str status = approval_status_name((enum approval_status)s);

        if (!str_present(page->filter->status) || str_eq(page->filter->status, status))
            call_for_status(page, status);
    }
    return db_flush(page->db, e);
}

/* Ids have nothing to do with the order of the list. A prefix that few have is looked up among
 * them, and the list need not be searched; else the list soon holds enough of them. *few: it was,
 * and the page is complete. */
static bool look_at_ids(struct page *page, bool *few, struct err *e)
{
    const struct approval_filter *f = page->filter;
    static const struct uuid NIL;
    bool any = memcmp(&f->low, &NIL, sizeof(NIL)) == 0 && f->high.b[0] == 0xff;

    *few = false;
    if (any || f->execution_id != NULL)
        return true;
    db_call(page->db, &SQL_ID_RANGE, on_id, page);
    db_uuid(page->db, &f->low);
    db_uuid(page->db, &f->high);
    db_int(page->db, PREFIX_ROWS + 1);
    db_one(page->db);
    if (!db_flush(page->db, e))
        return false;
    *few = page->looked_at <= PREFIX_ROWS;
    return true;
}

static bool read_keys(struct page *page, struct err *e)
{
    bool few;

    if (!look_at_ids(page, &few, e) || (!few && !walk_lists(page, e)))
        return false;
    if (page->rows.n > 1)
        qsort(page->rows.at, page->rows.n, sizeof(page->rows.at[0]), by_timeout);
    if (page->rows.n > page->filter->limit)
        page->rows.n = page->filter->limit;
    return true;
}

static bool read_rows(struct page *page, struct approval_views *views, struct err *e)
{
    db_call(page->db, &SQL_APPROVAL_VIEWS, on_view, views);
    for (size_t i = 0; i < page->rows.n; i++) {
        db_int(page->db, page->rows.at[i].key);
        db_row(page->db);
    }
    db_end(page->db);
    return payloads_read(&views->payloads, e);
}

bool store_list_approvals(struct store_reader *r, const struct approval_filter *f, struct arena *a,
                          struct approval_view **out, size_t *n, struct err *e)
{
    struct page page = {.db = r->db, .filter = f, .after = {INT64_MIN, INT64_MIN}};
    struct approval_views views = {.arena = a,
                                   .payloads = {.db = r->db, .arena = a},
                                   .max_bytes = f->max_bytes,
                                   .brief = f->brief};
    bool ok;

    *n = 0;
    if (f->after != NULL)
        page.after = (struct page_row){f->after->timeout_at, f->after->key};
    db_begin_read(r->db);
    ok = read_keys(&page, e) && read_rows(&page, &views, e);
    db_rollback(r->db);
    if (ok)
        list_rows_to_arena(views.rows, a, out, n);
    list_free(page.rows);
    list_free(views.rows);
    payload_reader_free(&views.payloads);
    return ok;
}

/* ---- background work ---- */

static const struct db_sql SQL_APPROVAL_DUE = {
    .name = "approval_due",
    .sqlite = "SELECT e.id, p.id, p.timeout_at FROM approvals p INDEXED BY approvals_by_status"
              " CROSS JOIN executions e WHERE p.status = 'pending' AND p.timeout_at <= $1"
              " AND e.key = p.execution_key ORDER BY p.timeout_at, p.key LIMIT $2",
    .postgres = "SELECT e.id, p.id, p.timeout_at FROM (SELECT * FROM approvals o"
                " WHERE o.status = 'pending' AND o.timeout_at <= $1"
                " ORDER BY o.timeout_at, o.key LIMIT $2) p"
                " JOIN executions e ON e.key = p.execution_key ORDER BY p.timeout_at, p.key",
    .types = "ii",
};
static const struct db_sql SQL_APPROVAL_NEXT = {
    .name = "approval_next",
    .sqlite = "SELECT min(p.timeout_at) FROM approvals p"
              " WHERE p.status = 'pending' AND p.timeout_at > $1",
    .types = "i",
};

struct due_page {
    LIST(struct due_approval) rows;
    size_t limit;
    int64_t next;
};

static void note_next(struct due_page *due, int64_t timeout_at)
{
    if (due->next == 0)
        due->next = timeout_at;
}

static void on_due(void *ctx, struct db *db, size_t row)
{
    struct due_page *due = ctx;
    struct due_approval a;

    (void)row;
    if (due->rows.n == due->limit) {
        note_next(due, db_get_int(db, 2));
        return;
    }
    (void)db_get_uuid(db, 0, &a.execution_id);
    (void)db_get_uuid(db, 1, &a.approval_id);
    list_add(due->rows, a);
}

static void on_next(void *ctx, struct db *db, size_t row)
{
    (void)row;
    note_next(ctx, db_get_int(db, 0));
}

/* NOLINTNEXTLINE(readability-function-size): bounds in, a page out */
bool store_due_approvals(struct store_reader *r, size_t limit, struct arena *a,
                         struct due_approval **out, size_t *n, int64_t *now_us,
                         int64_t *next_timeout, struct err *e)
{
    struct due_page due = {.limit = limit};
    struct now now = {0};
    bool ok;

    *n = 0;
    db_now(r->db, &now);
    if (!db_flush(r->db, e))
        return false;
    db_call(r->db, &SQL_APPROVAL_DUE, on_due, &due);
    db_int(r->db, now.wall_us);
    db_int(r->db, (int64_t)limit + 1); /* what is overdue and has no room comes next */
    db_one(r->db);
    db_call(r->db, &SQL_APPROVAL_NEXT, on_next, &due);
    db_int(r->db, now.wall_us);
    db_one(r->db);
    ok = db_flush(r->db, e);
    list_to_arena(due.rows, a, out, n);
    *now_us = now.wall_us;
    *next_timeout = due.next;
    return ok;
}
