/* SPDX-License-Identifier: Apache-2.0
 * Executions as the API shows them, and those that background work looks for. */
#include "store/internal.h"

#define EXECUTION_COLUMNS                                                                          \
    "e.id, e.agent_id, e.status, e.input, e.output, e.failure_reason, e.idempotency_key, "         \
    "e.created_by,"                                                                                \
    " e.on_behalf_of, e.created_at, e.deadline_at, e.last_seq, v.first_seq + v.count - 1, "        \
    "v.occurred_at,"                                                                               \
    " d.status, d.id, d.due_at,"                                                                   \
    " e.owner = 'ended' AND e.status = 'running' AND d.status = 'queued' AND e.parked IS NOT "     \
    "NULL, e.session, e.parent, e.spawned_by, e.spawned_step, e.forked_from, e.fork_seq, "         \
    "e.restoration, e.awaited, "
/* The last event and the live dispatch of each. */
#define SQLITE_JOINS                                                                               \
    " LEFT JOIN events v ON v.execution_key = e.key AND v.first_seq ="                             \
    " (SELECT max(o.first_seq) FROM events o WHERE o.execution_key = e.key)"                       \
    " LEFT JOIN dispatches d ON d.execution_key = e.key AND d.status <> 'retired' "
#define POSTGRES_JOINS                                                                             \
    " LEFT JOIN LATERAL (SELECT o.first_seq, o.count, o.occurred_at FROM events o WHERE "          \
    "o.execution_key = e.key"                                                                      \
    " ORDER BY o.first_seq DESC LIMIT 1) v ON true"                                                \
    " LEFT JOIN dispatches d ON d.execution_key = e.key AND d.status <> 'retired' "

struct execution_views {
    struct arena *arena;
    struct payload_reader payloads;
    size_t bytes, max_bytes; /* max_bytes 0: any */
    LIST(struct execution_view *) rows;
};

static void on_view(void *ctx, struct db *db, size_t row)
{
    struct execution_views *views = ctx;
    struct arena *a = views->arena;
    struct execution_view *v;
    int64_t by_log = db_get_int(db, 12);

    (void)row;
    if (views->max_bytes > 0 && views->rows.n > 0 && views->bytes >= views->max_bytes)
        return;
    views->bytes += payload_size(db, 3) + payload_size(db, 4) + payload_size(db, 24);
    v = arena_new(a, struct execution_view);
    (void)db_get_uuid(db, 0, &v->id);
    v->agent_id = db_get_copy(db, 1, a);
    v->status = db_get_copy(db, 2, a);
    payload_get(&views->payloads, 3, &v->input);
    payload_get(&views->payloads, 4, &v->output);
    v->failure_reason = db_get_copy(db, 5, a);
    v->idempotency_key = db_get_copy(db, 6, a);
    v->created_by = db_get_copy(db, 7, a);
    v->on_behalf_of = db_get_copy(db, 8, a);
    v->created_at = db_get_int(db, 9);
    v->deadline_at = db_get_int(db, 10);
    v->last_seq = db_get_int(db, 11);
    if (v->last_seq < by_log)
        v->last_seq = by_log;
    v->updated_at = db_get_int(db, 13);
    if (v->updated_at == 0)
        v->updated_at = v->created_at;
    v->dispatch_status = db_get_copy(db, 14, a);
    (void)db_get_uuid(db, 15, &v->dispatch_id);
    v->due_at = db_get_int(db, 16);
    v->parked = db_get_int(db, 17) != 0;
    v->session = db_get_copy(db, 18, a);
    (void)db_get_uuid(db, 19, &v->parent);
    if (db_get_uuid(db, 20, &v->spawned_by))
        db_get_hash(db, 21, &v->spawned_step);
    if (db_get_uuid(db, 22, &v->forked_from))
        v->fork_seq = db_get_int(db, 23);
    payload_get(&views->payloads, 24, &v->restoration);
    v->awaited = db_get_int(db, 25);
    v->lease_until = db_get_int(db, 26);
    list_add(views->rows, v);
}

static const struct db_sql SQL_EXECUTION_READ = {
    .name = "execution_read",
    .sqlite = "SELECT " EXECUTION_COLUMNS "NULL FROM executions e" SQLITE_JOINS "WHERE e.id = $1",
    .postgres = "SELECT " EXECUTION_COLUMNS "e.lease_until FROM executions e" POSTGRES_JOINS
                "WHERE e.id = $1",
    .types = "b",
};

bool store_read_execution(struct store_reader *r, const struct uuid *id, struct arena *a,
                          struct execution_view *out, bool *found, struct err *e)
{
    struct execution_views views = {.arena = a, .payloads = {.db = r->db, .arena = a}};
    bool ok;

    db_call(r->db, &SQL_EXECUTION_READ, on_view, &views);
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

/* Of the two payloads only the one that counts is fetched. */
static const struct db_sql SQL_PREVIOUS = {
    .name = "previous",
    .sqlite = "SELECT p.state, p.output FROM executions e LEFT JOIN executions p ON p.id = e.parent"
              " WHERE e.id = $1",
    .types = "b",
};

struct previous {
    struct payload_reader payloads;
    struct str state;
    bool found;
};

static void on_previous(void *ctx, struct db *db, size_t row)
{
    struct previous *previous = ctx;
    int column = str_present(db_get_str(db, 0)) ? 0 : 1;

    (void)row;
    previous->found = true;
    payload_get(&previous->payloads, column, &previous->state);
}

bool store_read_previous(struct store_reader *r, const struct uuid *id, struct arena *a,
                         struct str *state, bool *found, struct err *e)
{
    struct previous previous = {.payloads = {.db = r->db, .arena = a}};
    bool ok;

    db_call(r->db, &SQL_PREVIOUS, on_previous, &previous);
    db_uuid(r->db, id);
    db_one(r->db);
    ok = payloads_read(&previous.payloads, e);
    *found = ok && previous.found;
    *state = ok ? previous.state : STR_NONE;
    payload_reader_free(&previous.payloads);
    return ok;
}

/* ---- lists: the ids of a page by the index that fits the filter, then the rows ---- */

/* One bound on each side: of two the index would use either, and step over what the other excludes.
 * On Postgres the order is by all columns of the index that fits, so that any other would have to
 * sort; and the first is one of an array, since what equals a value would be no part of the order.
 * (A comparison of rows leaves no choice at all, but its scan ends only where its first column
 * does.) */
#define KEYSET " e.id >= $1 AND e.id < $2 "
#define NEWEST "ORDER BY e.id DESC LIMIT $3"

static const struct db_sql SQL_LIST_ALL = {
    .name = "list_all",
    .sqlite = "SELECT e.id FROM executions e WHERE" KEYSET NEWEST,
    .types = "bbi",
};
static const struct db_sql SQL_LIST_STATUS = {
    .name = "list_status",
    .sqlite = "SELECT e.id FROM executions e WHERE e.status = $4 AND" KEYSET NEWEST,
    .postgres = "SELECT e.id FROM executions e WHERE e.status = ANY (ARRAY[$4]) AND" KEYSET
                "ORDER BY e.status DESC, e.id DESC LIMIT $3",
    .types = "bbit",
};
static const struct db_sql SQL_LIST_AGENT_STATUS = {
    .name = "list_agent_status",
    .sqlite =
        "SELECT e.id FROM executions e WHERE e.status = $4 AND e.agent_id = $5 AND" KEYSET NEWEST,
    .postgres = "SELECT e.id FROM executions e WHERE e.agent_id = ANY (ARRAY[$5])"
                " AND e.status = $4 AND" KEYSET
                "ORDER BY e.agent_id DESC, e.status DESC, e.id DESC LIMIT $3",
    .types = "bbitt",
};
static const struct db_sql SQL_LIST_SESSION_STATUS = {
    .name = "list_session_status",
    .sqlite = "SELECT e.id FROM executions e INDEXED BY executions_by_session WHERE e.session = $5"
              " AND e.status = $4 AND ($6 IS NULL OR e.agent_id = $6) AND" KEYSET NEWEST,
    .postgres = "SELECT e.id FROM executions e WHERE e.session IS NOT NULL"
                " AND e.session = ANY (ARRAY[$5]) AND e.status = $4"
                " AND ($6 IS NULL OR e.agent_id = $6) AND" KEYSET
                "ORDER BY e.session DESC, e.status DESC, e.id DESC LIMIT $3",
    .types = "bbitbt",
};

/* One that has spawned so many that the rest of the filter tells is rare. */
static const struct db_sql SQL_LIST_SPAWNED = {
    .name = "list_spawned",
    .sqlite = "SELECT e.id FROM executions e INDEXED BY executions_spawned WHERE e.spawned_by = $7"
              " AND ($4 IS NULL OR e.status = $4) AND ($5 IS NULL OR e.session = $5)"
              " AND ($6 IS NULL OR e.agent_id = $6) AND" KEYSET NEWEST,
    .postgres = "SELECT e.id FROM executions e WHERE e.spawned_by IS NOT NULL"
                " AND (e.spawned_by, e.id) >= ($7, $1) AND (e.spawned_by, e.id) < ($7, $2)"
                " AND ($4 IS NULL OR e.status = $4) AND ($5 IS NULL OR e.session = $5)"
                " AND ($6 IS NULL OR e.agent_id = $6)"
                " ORDER BY e.spawned_by DESC, e.id DESC LIMIT $3",
    .types = "bbitbtb",
};

struct id_list {
    LIST(struct uuid) ids;
};

static void on_id(void *ctx, struct db *db, size_t row)
{
    struct id_list *list = ctx;
    struct uuid id;

    (void)row;
    (void)db_get_uuid(db, 0, &id);
    list_add(list->ids, id);
}

static int newest_first(const void *a, const void *b)
{
    return memcmp(b, a, sizeof(struct uuid));
}

/* The first id that a page may not hold. */
static struct uuid upper_bound(const struct execution_filter *f)
{
    struct uuid bound = f->high;

    for (size_t i = sizeof(bound.b); i-- > 0 && ++bound.b[i] == 0;)
        continue; /* one more than `high`; ff…ff stays, no version 7 id is that large */
    if (memcmp(&f->high, &bound, sizeof(bound)) > 0)
        bound = f->high;
    if (f->before != NULL && memcmp(f->before, &bound, sizeof(bound)) < 0)
        bound = *f->before;
    return bound;
}

static void call_for_ids(struct db *db, const struct db_sql *sql, const struct execution_filter *f,
                         struct str status, struct id_list *out)
{
    struct uuid bound = upper_bound(f);

    db_call(db, sql, on_id, out);
    db_uuid(db, &f->low);
    db_uuid(db, &bound);
    db_int(db, (int64_t)f->limit);
    if (sql != &SQL_LIST_ALL)
        db_text(db, status);
    if (sql == &SQL_LIST_SESSION_STATUS || sql == &SQL_LIST_SPAWNED)
        db_bytes(db, f->session);
    if (sql == &SQL_LIST_SESSION_STATUS || sql == &SQL_LIST_AGENT_STATUS ||
        sql == &SQL_LIST_SPAWNED)
        db_text(db, f->agent_id);
    if (sql == &SQL_LIST_SPAWNED)
        db_uuid(db, f->spawned_by);
    db_one(db);
}

/* The indexes of a session's and of an agent's executions are by status too: without one the page
 * is merged from the six. */
static void call_for_statuses(struct db *db, const struct db_sql *sql,
                              const struct execution_filter *f, struct id_list *out)
{
    for (unsigned s = EXECUTION_PENDING; s <= EXECUTION_CANCELLED; s++) {
        struct str status = execution_status_name((enum execution_status)s);

        if (!str_present(f->status) || str_eq(f->status, status))
            call_for_ids(db, sql, f, status, out);
    }
}

static bool list_ids(struct db *db, const struct execution_filter *f, struct id_list *out,
                     struct err *e)
{
    if (f->spawned_by != NULL)
        call_for_ids(db, &SQL_LIST_SPAWNED, f, f->status, out);
    else if (str_present(f->session))
        call_for_statuses(db, &SQL_LIST_SESSION_STATUS, f, out);
    else if (str_present(f->agent_id))
        call_for_statuses(db, &SQL_LIST_AGENT_STATUS, f, out);
    else if (str_present(f->status))
        call_for_ids(db, &SQL_LIST_STATUS, f, f->status, out);
    else
        call_for_ids(db, &SQL_LIST_ALL, f, STR_NONE, out);
    if (!db_flush(db, e))
        return false;
    if (out->ids.n > 1)
        qsort(out->ids.at, out->ids.n, sizeof(out->ids.at[0]), newest_first);
    if (out->ids.n > f->limit)
        out->ids.n = f->limit;
    return true;
}

static const struct db_sql SQL_EXECUTION_VIEWS = {
    .name = "execution_views",
    .sqlite = "SELECT " EXECUTION_COLUMNS "NULL FROM executions e" SQLITE_JOINS "WHERE e.id = $1",
    .postgres = "SELECT u.ord, " EXECUTION_COLUMNS
                "e.lease_until FROM unnest($1::bytea[]) WITH ORDINALITY u (id, ord)"
                " JOIN executions e ON e.id = u.id" POSTGRES_JOINS "ORDER BY u.ord",
    .types = "B",
};

static bool read_views(struct db *db, const struct id_list *list, struct execution_views *views,
                       struct err *e)
{
    if (list->ids.n == 0)
        return true;
    db_call(db, &SQL_EXECUTION_VIEWS, on_view, views);
    for (size_t i = 0; i < list->ids.n; i++) {
        db_uuid(db, &list->ids.at[i]);
        db_row(db);
    }
    db_end(db);
    return payloads_read(&views->payloads, e);
}

bool store_list_executions(struct store_reader *r, const struct execution_filter *f,
                           struct arena *a, struct execution_view **out, size_t *n, struct err *e)
{
    struct execution_views views = {
        .arena = a, .payloads = {.db = r->db, .arena = a}, .max_bytes = f->max_bytes};
    struct id_list list = {0};
    bool ok;

    *n = 0;
    db_begin_read(r->db);
    ok = list_ids(r->db, f, &list, e) && read_views(r->db, &list, &views, e);
    db_rollback(r->db);
    if (ok)
        list_rows_to_arena(views.rows, a, out, n);
    list_free(list.ids);
    list_free(views.rows);
    payload_reader_free(&views.payloads);
    return ok;
}

/* ---- background work ---- */

/* SQLite has no statistics, and takes another index unless it is told. */
static const struct db_sql SQL_PAST_DEADLINES = {
    .name = "past_deadlines",
    .sqlite = "SELECT e.id FROM executions e INDEXED BY executions_deadline WHERE e.deadline_at IS "
              "NOT NULL"
              " AND e.deadline_at <= $1 AND e.status IN " LIVE_EXECUTION_STATUSES
              " ORDER BY e.deadline_at LIMIT $2",
    .postgres = "SELECT e.id FROM executions e WHERE e.deadline_at IS NOT NULL"
                " AND e.deadline_at <= $1 AND e.status IN " LIVE_EXECUTION_STATUSES
                " ORDER BY e.deadline_at LIMIT $2",
    .types = "ii",
};
/* Claiming makes an owner, and what takes the claim away unmakes it: the claimed and acked are
 * among the owned. */
#define LEASED_REST                                                                                \
    " JOIN dispatches d ON d.execution_key = e.key AND d.status <> 'retired' WHERE e.owner = "     \
    "'working'"                                                                                    \
    " AND d.status IN ('claimed', 'acked') AND e.id > $1 ORDER BY e.id LIMIT $2"
static const struct db_sql SQL_LEASED = {
    .name = "leased",
    .sqlite = "SELECT e.id FROM executions e INDEXED BY executions_working" LEASED_REST,
    .postgres = "SELECT e.id FROM executions e" LEASED_REST,
    .types = "bi",
};

static bool take_ids(struct db *db, struct id_list *list, struct arena *a, struct uuid **out,
                     size_t *n, struct err *e)
{
    bool ok = db_flush(db, e);

    list_to_arena(list->ids, a, out, n);
    return ok;
}

bool store_past_deadlines(struct store_reader *r, size_t limit, struct arena *a, struct uuid **out,
                          size_t *n, struct err *e)
{
    struct id_list list = {0};
    struct now now = {0};

    *n = 0;
    db_now(r->db, &now);
    if (!db_flush(r->db, e))
        return false;
    db_call(r->db, &SQL_PAST_DEADLINES, on_id, &list);
    db_int(r->db, now.wall_us);
    db_int(r->db, (int64_t)limit);
    db_one(r->db);
    return take_ids(r->db, &list, a, out, n, e);
}

bool store_leased(struct store_reader *r, const struct uuid *after, size_t limit, struct arena *a,
                  struct uuid **out, size_t *n, struct err *e)
{
    struct id_list list = {0};
    static const struct uuid NIL;

    db_call(r->db, &SQL_LEASED, on_id, &list);
    db_uuid(r->db, after == NULL ? &NIL : after);
    db_int(r->db, (int64_t)limit);
    db_one(r->db);
    return take_ids(r->db, &list, a, out, n, e);
}
