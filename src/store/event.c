/* SPDX-License-Identifier: Apache-2.0
 * The log: one row a transition, appended and read by execution and sequence number. */
#include "store/internal.h"

static const struct db_sql SQL_EVENT_LAST = {
    .name = "event_last",
    .sqlite = "SELECT v.first_seq + v.count - 1 FROM events v"
              " WHERE v.execution_key = (SELECT key FROM executions WHERE id = $1) ORDER BY "
              "v.first_seq DESC LIMIT 1",
    .postgres = "SELECT u.ord, l.last FROM unnest($1::bytea[]) WITH ORDINALITY u (id, ord)"
                " JOIN executions e ON e.id = u.id CROSS JOIN LATERAL (SELECT v.first_seq + "
                "v.count - 1 AS last"
                " FROM events v WHERE v.execution_key = e.key ORDER BY v.first_seq DESC LIMIT 1) l",
    .types = "B",
};

static void on_last(void *ctx, struct db *db, size_t row)
{
    struct load *ld = ctx;

    ld->executions.at[row]->last_seq = db_get_int(db, 0);
}

void event_load_last(struct load *ld)
{
    if (ld->executions.n == 0)
        return;
    db_call(ld->db, &SQL_EVENT_LAST, on_last, ld);
    for (size_t i = 0; i < ld->executions.n; i++) {
        db_uuid(ld->db, &ld->executions.at[i]->id);
        db_row(ld->db);
    }
    db_end(ld->db);
}

static const struct db_sql SQL_EVENT_INSERT = {
    .name = "event_insert",
    .sqlite = "INSERT INTO events (execution_key, first_seq, count, occurred_at, body) VALUES ($1, "
              "$2, $3, $4, $5)",
    .postgres = "INSERT INTO events (execution_key, first_seq, count, occurred_at, body)"
                " SELECT * FROM unnest($1::bigint[], $2::bigint[], $3::bigint[], $4::bigint[], "
                "$5::bytea[])",
    .types = "IIIIB",
    .exact = true,
};

static void insert_row(struct db *db, int64_t execution_key, const struct event_copy *row)
{
    db_int(db, execution_key);
    db_int(db, row->first_seq);
    db_int(db, row->count);
    db_int(db, row->occurred_at);
    db_bytes(db, row->body);
    db_row(db);
}

/* Also those that a fork copies. */
void event_apply(struct apply *ap)
{
    const struct changes *c = ap->changes;

    if (c->transitions.n + c->slices.n == 0)
        return;
    db_call(ap->db, &SQL_EVENT_INSERT, NULL, NULL);
    for (size_t i = 0; i < c->transitions.n; i++) {
        const struct transition *t = c->transitions.at[i];
        struct event_copy row = {t->first_seq, t->count, t->occurred_at, buf_str(&t->body)};

        if (t->body.failed)
            db_fail(ap->db, ERR_INTERNAL, "out of memory");
        insert_row(ap->db, t->execution->key, &row);
    }
    for (size_t i = 0; i < c->slices.n; i++)
        for (size_t k = 0; k < c->slices.at[i]->n_events; k++)
            insert_row(ap->db, c->slices.at[i]->key, &c->slices.at[i]->events[k]);
    db_end(ap->db);
}

/* ---- reads ---- */

/* From the transition that holds after_seq + 1. */
static const struct db_sql SQL_EVENT_READ = {
    .name = "event_read",
    .sqlite =
        "SELECT v.first_seq, v.count, v.occurred_at, v.body FROM events v WHERE v.execution_key = "
        "$1"
        " AND v.first_seq >= coalesce((SELECT max(o.first_seq) FROM events o"
        " WHERE o.execution_key = $1 AND o.first_seq <= $2), 0) ORDER BY v.first_seq LIMIT $3",
    .types = "iii",
};
static const struct db_sql SQL_EVENT_HEAD = {
    .name = "event_head",
    .sqlite = "SELECT e.key, e.status, e.last_seq, (SELECT v.first_seq + v.count - 1 FROM events v"
              " WHERE v.execution_key = e.key ORDER BY v.first_seq DESC LIMIT 1) FROM executions e "
              "WHERE e.id = $1",
    .types = "b",
};

struct event_head {
    bool found, terminal;
    int64_t key, last_seq;
};

static void on_head(void *ctx, struct db *db, size_t row)
{
    struct event_head *head = ctx;
    enum execution_status status;
    int64_t by_log = db_get_int(db, 3);

    (void)row;
    head->found = true;
    head->key = db_get_int(db, 0);
    head->last_seq = db_get_int(db, 2);
    if (head->last_seq < by_log)
        head->last_seq = by_log;
    head->terminal =
        execution_status_parse(db_get_str(db, 1), &status) && execution_status_is_terminal(status);
}

struct event_page {
    struct arena *arena;
    int64_t after_seq;
    size_t bytes, max_bytes;
    LIST(struct event_row) rows;
};

static void on_event(void *ctx, struct db *db, size_t row)
{
    struct event_page *page = ctx;
    struct event_row event = {db_get_int(db, 0), db_get_int(db, 1), db_get_int(db, 2), STR_NONE};

    (void)row;
    if (event.first_seq + event.count - 1 <= page->after_seq)
        return; /* the last one that was seen */
    if (page->rows.n > 0 && page->bytes >= page->max_bytes)
        return;
    event.body = db_get_copy(db, 3, page->arena);
    page->bytes += event.body.n;
    list_add(page->rows, event);
}

/* NOLINTNEXTLINE(readability-function-size): bounds in, a page out */
bool store_read_events(struct store_reader *r, const struct uuid *execution_id, int64_t after_seq,
                       size_t limit, size_t max_bytes, struct arena *a, struct event_row **out,
                       size_t *n, int64_t *last_seq, bool *terminal, bool *found, struct err *e)
{
    struct event_head head = {0};
    struct event_page page = {.arena = a, .after_seq = after_seq, .max_bytes = max_bytes};
    bool ok;

    db_begin_read(r->db);
    db_call(r->db, &SQL_EVENT_HEAD, on_head, &head);
    db_uuid(r->db, execution_id);
    db_one(r->db);
    ok = db_flush(r->db, e);
    if (ok && head.found && head.last_seq > after_seq) {
        db_call(r->db, &SQL_EVENT_READ, on_event, &page);
        db_int(r->db, head.key);
        db_int(r->db, after_seq + 1);
        db_int(r->db, (int64_t)limit + 1);
        db_one(r->db);
        ok = db_flush(r->db, e);
    }
    db_rollback(r->db);
    if (page.rows.n > limit)
        page.rows.n = limit;
    list_to_arena(page.rows, a, out, n);
    *last_seq = head.last_seq;
    *terminal = head.terminal;
    *found = head.found;
    return ok;
}
