/* SPDX-License-Identifier: Apache-2.0
 * The Postgres driver: libpq's pipeline mode. Each call becomes one message with arrays; db_flush
 * sends a sync and reads the answers in the order of the calls.
 *
 * COMMIT travels in the same pipeline as the rows it commits, so a guard must fail inside the
 * database: an UPDATE that has to change exactly as many rows as it was given divides by zero when
 * it did not, which aborts what is behind it.
 *
 * A transaction is committed once COMMIT was answered, and is not once the server has refused a
 * statement before it. Whatever else breaks after COMMIT was sent, a new connection asks what
 * became of it (postgres_fate.h). */
#include "store/db_postgres.h"

#include <stdlib.h>

#include "base/fault.h"
#include "base/rand.h"
#include "store/list.h"
#include "store/postgres_conn.h"
#include "store/postgres_fate.h"
#include "store/postgres_params.h"

enum {
    STATEMENTS_MAX = 256,
    KEY_BLOCK = 64, /* as the sequences' INCREMENT: one nextval gives a block of keys */
    OID_BOOL = 16,
    OID_INT8 = 20,
    OID_INT2 = 21,
    OID_INT4 = 23,
};

static const struct db_sql BEGIN_WRITE = {.name = "begin_write", .postgres = "BEGIN", .types = ""};
static const struct db_sql BEGIN_READ = {.name = "begin_read",
                                         .postgres =
                                             "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY",
                                         .types = ""};
static const struct db_sql COMMIT = {.name = "commit", .postgres = "COMMIT", .types = ""};
static const struct db_sql ROLLBACK = {.name = "rollback", .postgres = "ROLLBACK", .types = ""};
static const struct db_sql NOW = {
    .name = "now",
    .postgres = "SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint",
    .types = "",
};
static const struct db_sql NEXT_KEYS[DB_KEYS_KINDS] = {
    [DB_KEYS_EXECUTION] = {.name = "next_executions",
                           .postgres = "SELECT nextval('execution_keys')",
                           .types = ""},
    [DB_KEYS_BLOB] = {.name = "next_blobs", .postgres = "SELECT nextval('blob_keys')", .types = ""},
    [DB_KEYS_CHUNK] = {.name = "next_chunks",
                       .postgres = "SELECT nextval('chunk_keys')",
                       .types = ""},
};

enum prepared { PREPARED_NOT, PREPARED_SENT, PREPARED_YES };
struct statement {
    const struct db_sql *sql;
    enum prepared state;
};

/* A message in the pipeline whose answer is to come. */
struct pending {
    const struct db_sql *sql;
    struct statement *preparing; /* it is the preparation of a statement, not a call */
    db_row_fn *on_row;
    void *ctx;
    bool ordinal; /* the first column is the ordinal of the parameter row */
};

struct db_postgres {
    struct db base;
    struct postgres_server *server; /* borrowed */
    PGconn *c;                      /* NULL when it could not be opened */
    bool marks; /* a writer's: its transactions leave their number in the marker's row */
    struct postgres_marker marker;
    bool skip; /* the open call is none on Postgres */
    /* of the open transaction: COMMIT was answered; a statement before it was refused */
    bool committed, refused;
    struct postgres_params params;
    LIST(struct pending) pending;
    struct statement statements[STATEMENTS_MAX];
    /* the row that on_row looks at */
    const PGresult *result;
    int row;
    bool ordinal;
    int64_t next_key[DB_KEYS_KINDS], end_key[DB_KEYS_KINDS];
};

static struct db_postgres *self_of(struct db *db)
{
    return (struct db_postgres *)db;
}

static void fail(struct db_postgres *self, const PGresult *result, const char *what)
{
    if (self->base.failed)
        return;
    self->base.failed = true;
    (void)postgres_error(self->c, result, what, &self->base.err);
}

/* ---- the connection ---- */

static void disconnect(struct db_postgres *self)
{
    postgres_disconnect(self->server, self->c);
    self->c = NULL;
    self->pending.n = 0;
    memset(self->statements, 0, sizeof(self->statements));
}

static bool connect_anew(struct db_postgres *self, struct err *e)
{
    disconnect(self);
    self->c = postgres_connect(self->server, e);
    if (self->c == NULL)
        return false;
    if (PQenterPipelineMode(self->c) == 1)
        return true;
    disconnect(self);
    return err_set(e, ERR_UNAVAILABLE, "the connection to Postgres knows no pipelines");
}

/* Between transactions a connection that the server closed is replaced without a word. */
static bool ready(struct db_postgres *self)
{
    if (self->pending.n > 0 || postgres_alive(self->c))
        return true;
    if (connect_anew(self, &self->base.err))
        return true;
    self->base.failed = true;
    return false;
}

/* ---- statements ---- */

static struct statement *statement_of(struct db_postgres *self, const struct db_sql *sql)
{
    size_t at = ((uintptr_t)sql >> 3) % STATEMENTS_MAX;

    for (size_t tried = 0; self->statements[at].sql != NULL && self->statements[at].sql != sql;
         tried++) {
        ASSERT(tried < STATEMENTS_MAX); /* there are fewer statements than slots */
        at = (at + 1) % STATEMENTS_MAX;
    }
    self->statements[at].sql = sql;
    return &self->statements[at];
}

static const char *text_of(const struct db_sql *sql)
{
    return sql->postgres == NULL ? sql->sqlite : sql->postgres;
}

static bool is_batch(const struct db_sql *sql)
{
    return sql->types[0] >= 'A' && sql->types[0] <= 'Z';
}

static void add_text(struct buf *out, const struct db_sql *sql)
{
    bool guarded = sql->exact && strncmp(text_of(sql), "UPDATE", 6) == 0;

    if (guarded)
        buf_add_z(out, "WITH done AS (");
    buf_add_z(out, text_of(sql));
    if (guarded)
        buf_printf(out, " RETURNING 1) SELECT 1 / (count(*) = %s)::int FROM done",
                   is_batch(sql) ? "cardinality($1)" : "1");
    buf_add_byte(out, '\0');
}

static bool prepare(struct db_postgres *self, struct statement *st)
{
    struct buf text = {0};
    struct pending p = {.sql = st->sql, .preparing = st};
    int ok;

    if (st->state != PREPARED_NOT)
        return true;
    add_text(&text, st->sql);
    ok = PQsendPrepare(self->c, st->sql->name, text.p, self->params.n, self->params.oids);
    buf_free(&text);
    if (ok != 1) {
        fail(self, NULL, st->sql->name);
        return false;
    }
    st->state = PREPARED_SENT;
    list_add(self->pending, p);
    return true;
}

/* Sends what self->params holds. */
static void send_call(struct db_postgres *self, const struct db_sql *sql, db_row_fn *on_row,
                      void *ctx)
{
    struct postgres_params *ps = &self->params;
    struct pending p = {.sql = sql, .on_row = on_row, .ctx = ctx, .ordinal = is_batch(sql)};

    params_finish(ps);
    if (ps->failed) {
        db_fail(&self->base, ERR_INTERNAL, "out of memory");
        return;
    }
    if (!prepare(self, statement_of(self, sql)))
        return;
    if (PQsendQueryPrepared(self->c, sql->name, ps->n, ps->values, ps->lengths, ps->formats, 1) !=
        1) {
        fail(self, NULL, sql->name);
        return;
    }
    list_add(self->pending, p);
}

static void send_plain(struct db_postgres *self, const struct db_sql *sql, db_row_fn *on_row,
                       void *ctx)
{
    if (self->base.failed)
        return;
    params_begin(&self->params, "");
    send_call(self, sql, on_row, ctx);
}

static void postgres_call(struct db *db)
{
    struct db_postgres *self = self_of(db);

    self->skip = text_of(db->sql)[0] == '\0';
    if (self->skip || (!db->in_transaction && !ready(self)))
        return;
    params_begin(&self->params, db->sql->types);
}

static void postgres_row(struct db *db)
{
    struct db_postgres *self = self_of(db);

    if (!self->skip)
        params_row(&self->params, db->params, db->n_params, db->rows == 0);
}

static void postgres_end(struct db *db)
{
    struct db_postgres *self = self_of(db);

    if (!self->skip && db->rows > 0)
        send_call(self, db->sql, db->on_row, db->ctx);
    self->skip = false;
}

/* ---- answers ---- */

static void give_rows(struct db_postgres *self, const struct pending *p, const PGresult *result)
{
    int n = PQntuples(result);

    self->result = result;
    self->ordinal = p->ordinal;
    for (self->row = 0; self->row < n && !self->base.failed && p->on_row != NULL; self->row++) {
        size_t ordinal = 1;

        if (p->ordinal)
            ordinal = (size_t)postgres_int(PQgetvalue(result, self->row, 0),
                                           PQgetlength(result, self->row, 0));
        p->on_row(p->ctx, &self->base, ordinal - 1);
    }
    self->result = NULL;
}

/* An error after which the server goes on, so that it has skipped what is behind, COMMIT too. What
 * it says as it breaks off, and what libpq says of a broken connection, proves nothing. */
static bool is_refusal(const struct pending *p, const PGresult *result)
{
    struct str severity = str_of(PQresultErrorField(result, PG_DIAG_SEVERITY_NONLOCALIZED));
    struct str state = str_of(PQresultErrorField(result, PG_DIAG_SQLSTATE));

    return p->sql != &COMMIT && str_present(severity) && str_eq(severity, STR("ERROR")) &&
           str_present(state) && !str_starts(state, STR("57P")) && !str_starts(state, STR("08"));
}

static void take_error(struct db_postgres *self, const struct pending *p, const PGresult *result)
{
    if (is_refusal(p, result))
        self->refused = true;
    if (p->sql == &POSTGRES_MARK) /* its row may be gone */
        self->marker.registered = false;
    fail(self, result, p->sql->name);
}

static void take_result(struct db_postgres *self, const struct pending *p, PGresult *result)
{
    ExecStatusType status = PQresultStatus(result);

    if (status == PGRES_COMMAND_OK && p->preparing != NULL)
        p->preparing->state = PREPARED_YES;
    else if (status == PGRES_COMMAND_OK && p->sql == &COMMIT)
        self->committed = strcmp(PQcmdStatus(result), "COMMIT") == 0; /* or it says ROLLBACK */
    else if (status == PGRES_TUPLES_OK)
        give_rows(self, p, result);
    else if (status != PGRES_COMMAND_OK &&
             status != PGRES_PIPELINE_ABORTED) /* aborted: by what was noted before */
        take_error(self, p, result);
}

/* Results of one message, up to the NULL that ends them. */
static void take_answer(struct db_postgres *self, const struct pending *p)
{
    PGresult *result;

    while ((result = PQgetResult(self->c)) != NULL) {
        take_result(self, p, result);
        PQclear(result);
        if (PQstatus(self->c) != CONNECTION_OK)
            return;
    }
}

/* Without it nobody knows what the connection is at; libpq may still call it good. */
static void take_sync(struct db_postgres *self)
{
    PGresult *result;
    bool seen = false;

    while (!seen && PQstatus(self->c) == CONNECTION_OK && (result = PQgetResult(self->c)) != NULL) {
        seen = PQresultStatus(result) == PGRES_PIPELINE_SYNC;
        PQclear(result);
    }
    if (!seen) {
        fail(self, NULL, "sync");
        disconnect(self);
    }
}

/* After this nothing is under way, or the connection is gone. */
static void drain(struct db_postgres *self)
{
    if (self->pending.n == 0)
        return;
    if (self->c == NULL || PQpipelineSync(self->c) != 1) {
        fail(self, NULL, "send");
        disconnect(self); /* who knows how much of it has left */
    } else {
        for (size_t i = 0; i < self->pending.n && PQstatus(self->c) == CONNECTION_OK; i++) {
            struct pending p = self->pending.at[i];

            if (p.sql == &COMMIT)
                FAULT("postgres.commit.sent");
            take_answer(self, &p);
            if (p.preparing != NULL && p.preparing->state == PREPARED_SENT)
                p.preparing->state = PREPARED_NOT; /* what was before it failed */
        }
        take_sync(self);
    }
    self->pending.n = 0;
}

static bool postgres_flush(struct db *db, struct err *e)
{
    drain(self_of(db));
    if (!db->failed)
        return true;
    *e = db->err;
    if (!db->in_transaction)
        db->failed = false;
    return false;
}

static struct db_value postgres_get(struct db *db, int column)
{
    struct db_postgres *self = self_of(db);
    int at = column + (self->ordinal ? 1 : 0);
    const char *bytes = PQgetvalue(self->result, self->row, at);
    int length = PQgetlength(self->result, self->row, at);
    struct db_value v = {0};

    if (PQgetisnull(self->result, self->row, at))
        return v;
    switch (PQftype(self->result, at)) {
    case OID_BOOL:
    case OID_INT2:
    case OID_INT4:
    case OID_INT8:
        v.type = DB_INT;
        v.i = postgres_int(bytes, length);
        break;
    default:
        v.type = DB_BYTES;
        v.s = str_make(bytes, (size_t)length);
        break;
    }
    return v;
}

static int64_t postgres_row_key(struct db *db)
{
    (void)db;
    return 0;
}

/* ---- transactions ---- */

static void send_marker(struct db_postgres *self, const struct db_sql *sql)
{
    struct db_value values[MARKER_VALUES];

    if (self->base.failed)
        return;
    marker_values(&self->marker, values);
    params_begin(&self->params, sql->types);
    params_row(&self->params, values, MARKER_VALUES, true);
    send_call(self, sql, NULL, NULL);
}

/* Its row must be there before the first transaction that may be asked about. */
static void register_writer(struct db_postgres *self)
{
    drain(self);
    send_plain(self, &POSTGRES_FORGET_WRITERS, NULL, NULL);
    send_marker(self, &POSTGRES_ADD_WRITER);
    drain(self);
    self->marker.registered = !self->base.failed;
}

static void postgres_begin(struct db *db, bool write)
{
    struct db_postgres *self = self_of(db);

    self->committed = self->refused = false;
    if (!ready(self))
        return;
    if (write && self->marks && !self->marker.registered)
        register_writer(self);
    send_plain(self, write ? &BEGIN_WRITE : &BEGIN_READ, NULL, NULL);
}

/* Whatever state the connection is in, afterwards it is idle outside a transaction, or gone. */
static void postgres_rollback(struct db *db)
{
    struct db_postgres *self = self_of(db);

    drain(self);
    db->failed = false;
    if (self->c == NULL || PQstatus(self->c) != CONNECTION_OK) {
        disconnect(self);
        return;
    }
    if (PQtransactionStatus(self->c) == PQTRANS_IDLE)
        return;
    send_plain(self, &ROLLBACK, NULL, NULL);
    drain(self);
    if (db->failed)
        disconnect(self);
}

static bool postgres_commit(struct db *db, bool *unknown, struct err *e)
{
    struct db_postgres *self = self_of(db);

    *unknown = false;
    if (!db->failed && self->marks) {
        self->marker.number += 2;
        send_marker(self, &POSTGRES_MARK);
    }
    if (db->failed) {
        *e = db->err;
        postgres_rollback(db);
        return false;
    }
    send_plain(self, &COMMIT, NULL, NULL);
    drain(self);
    if (self->committed)
        return true;
    db_fail(db, ERR_UNAVAILABLE, "the database rolled the transaction back");
    *e = db->err;
    postgres_rollback(db);
    if (self->refused)
        return false;
    *unknown = true;
    disconnect(self); /* who asks takes its place */
    if (self->marks && postgres_learn_fate(self->server, &self->marker, unknown))
        return true;
    if (*unknown) /* and not, say, a serialization failure, which would be tried again */
        e->code = ERR_UNAVAILABLE;
    return false;
}

static void on_now(void *ctx, struct db *db, size_t row)
{
    struct now *now = ctx;

    (void)row;
    now->wall_us = now->lease_us = db_get_int(db, 0);
}

static void postgres_now(struct db *db, struct now *now)
{
    struct db_postgres *self = self_of(db);

    if (!db->in_transaction && !ready(self))
        return;
    send_plain(self, &NOW, on_now, now);
}

static void on_next_key(void *ctx, struct db *db, size_t row)
{
    int64_t *next = ctx;

    (void)row;
    *next = db_get_int(db, 0);
}

/* May be asked for in the midst of a call, whose gathered rows are kept aside. */
static int64_t postgres_new_key(struct db *db, enum db_keys kind)
{
    struct db_postgres *self = self_of(db);

    if (self->next_key[kind] == self->end_key[kind]) {
        struct postgres_params open_call = self->params;

        self->params = (struct postgres_params){0};
        self->next_key[kind] = self->end_key[kind] = 0;
        send_plain(self, &NEXT_KEYS[kind], on_next_key, &self->next_key[kind]);
        drain(self);
        params_free(&self->params);
        self->params = open_call;
        if (db->failed || self->next_key[kind] == 0)
            return 0;
        self->end_key[kind] = self->next_key[kind] + KEY_BLOCK;
    }
    return self->next_key[kind]++;
}

static bool postgres_script(struct db *db, const char *sql, struct err *e)
{
    struct db_postgres *self = self_of(db);
    bool ok;

    if (!postgres_flush(db, e))
        return false;
    if (self->c == NULL || PQexitPipelineMode(self->c) != 1)
        return err_set(e, ERR_UNAVAILABLE, "the connection to Postgres is gone");
    ok = postgres_run(self->c, sql, e);
    if (PQenterPipelineMode(self->c) != 1 && ok)
        return err_set(e, ERR_UNAVAILABLE, "the connection to Postgres is gone");
    return ok;
}

static bool postgres_reopen(struct db *db, struct err *e)
{
    return connect_anew(self_of(db), e);
}

static void postgres_close(struct db *db)
{
    struct db_postgres *self = self_of(db);

    disconnect(self);
    params_free(&self->params);
    list_free(self->pending);
    free(self);
}

static const struct db_ops POSTGRES_OPS = {
    .call = postgres_call,
    .row = postgres_row,
    .end = postgres_end,
    .flush = postgres_flush,
    .get = postgres_get,
    .row_key = postgres_row_key,
    .begin = postgres_begin,
    .commit = postgres_commit,
    .rollback = postgres_rollback,
    .now = postgres_now,
    .new_key = postgres_new_key,
    .script = postgres_script,
    .reopen = postgres_reopen,
    .close = postgres_close,
};

struct db *db_postgres_open(struct postgres_server *server, bool writer, struct err *e)
{
    struct db_postgres *self = xzalloc(sizeof(*self));

    self->base.ops = &POSTGRES_OPS;
    self->server = server;
    self->marks = writer;
    rand_bytes(self->marker.id, sizeof(self->marker.id));
    if (!connect_anew(self, e)) {
        postgres_close(&self->base);
        return NULL;
    }
    return &self->base;
}
