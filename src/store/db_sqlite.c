/* SPDX-License-Identifier: Apache-2.0
 * The SQLite driver: each parameter row is bound without a copy and run at once. */
#include <limits.h>
#include <stdlib.h>

#include "base/clock.h"
#include "store/sqlite_home.h"

enum { CACHE_SLOTS = 256 };

static const struct db_sql BEGIN_WRITE = {.name = "begin_write", .sqlite = "BEGIN IMMEDIATE"};
static const struct db_sql BEGIN_READ = {.name = "begin_read", .sqlite = "BEGIN"};
static const struct db_sql COMMIT = {.name = "commit", .sqlite = "COMMIT"};
static const struct db_sql ROLLBACK = {.name = "rollback", .sqlite = "ROLLBACK"};
static const struct db_sql LAST_KEY[DB_KEYS_KINDS] = {
    /* Rows may lie under a key that no execution has yet, or has any more. */
    [DB_KEYS_EXECUTION] = {.name = "last_execution",
                           .sqlite = "SELECT max(key) FROM (SELECT max(key) AS key FROM executions"
                                     " UNION ALL SELECT max(key) FROM forks"
                                     " UNION ALL SELECT max(key) FROM unlinked)"},
    [DB_KEYS_BLOB] = {.name = "last_blob", .sqlite = "SELECT max(key) FROM blobs"},
    [DB_KEYS_CHUNK] = {.name = "last_chunk", .sqlite = "SELECT max(key) FROM chunks"},
};

struct cache_slot {
    const struct db_sql *sql;
    sqlite3_stmt *stmt;
};

struct db_sqlite {
    struct db base;
    struct sqlite_home *home; /* borrowed */
    bool writer;
    sqlite3 *h;                      /* NULL after a reopen that failed */
    sqlite3_stmt *stmt;              /* of the open call */
    unsigned n_params;               /* that it names */
    bool snapshot;                   /* held from a call's second row to the flush */
    int frames;                      /* in the log after the last commit; -1: no news */
    int64_t last_key[DB_KEYS_KINDS]; /* 0: not read yet. Never lowered: who has read a reference to
                                        a blob may look for it when it has gone */
    struct cache_slot cache[CACHE_SLOTS];
};

static struct db_sqlite *self_of(struct db *db)
{
    return (struct db_sqlite *)db;
}

static void fail(struct db_sqlite *self, int rc, const char *what)
{
    if (self->base.failed)
        return;
    self->base.failed = true;
    (void)sqlite_error(self->h, rc, what, &self->base.err);
}

/* ---- statements ---- */

/* SQLite numbers `$1` by first appearance, `?1` by its number. */
static sqlite3_stmt *prepare(struct db_sqlite *self, const struct db_sql *sql)
{
    struct buf text = {0};
    sqlite3_stmt *stmt = NULL;
    int rc;

    if (self->h == NULL) {
        db_fail(&self->base, ERR_UNAVAILABLE, "the database is not open");
        return NULL;
    }
    buf_add_z(&text, sql->sqlite);
    for (size_t i = 0; i + 1 < text.n; i++)
        if (text.p[i] == '$' && text.p[i + 1] >= '0' && text.p[i + 1] <= '9')
            text.p[i] = '?';
    rc = sqlite3_prepare_v3(self->h, text.p, (int)text.n, SQLITE_PREPARE_PERSISTENT, &stmt, NULL);
    buf_free(&text);
    if (rc != SQLITE_OK)
        fail(self, rc, sql->name);
    return stmt;
}

static sqlite3_stmt *statement(struct db_sqlite *self, const struct db_sql *sql)
{
    size_t at = ((uintptr_t)sql >> 3) % CACHE_SLOTS;

    struct cache_slot *slot = &self->cache[at];

    for (size_t tried = 0; slot->sql != NULL && slot->sql != sql; tried++) {
        ASSERT(tried < CACHE_SLOTS); /* there are fewer statements than slots */
        at = (at + 1) % CACHE_SLOTS;
        slot = &self->cache[at];
    }
    if (slot->sql == NULL) {
        slot->stmt = prepare(self, sql);
        if (slot->stmt != NULL)
            slot->sql = sql;
    }
    return slot->stmt;
}

static bool run_plain(struct db_sqlite *self, const struct db_sql *sql)
{
    sqlite3_stmt *stmt = statement(self, sql);
    int rc;

    if (stmt == NULL)
        return false;
    rc = sqlite3_step(stmt);
    if (rc == SQLITE_DONE || rc == SQLITE_ROW)
        rc = sqlite3_reset(stmt);
    else
        (void)sqlite3_reset(stmt);
    if (rc != SQLITE_OK)
        fail(self, rc, sql->name);
    return rc == SQLITE_OK;
}

static void sqlite_call(struct db *db)
{
    struct db_sqlite *self = self_of(db);

    self->stmt = statement(self, db->sql);
    if (self->stmt != NULL)
        self->n_params = (unsigned)sqlite3_bind_parameter_count(self->stmt);
}

static int bind(sqlite3_stmt *stmt, int i, const struct db_value *v)
{
    switch (v->type) {
    case DB_NULL:
        return sqlite3_bind_null(stmt, i);
    case DB_INT:
        return sqlite3_bind_int64(stmt, i, v->i);
    case DB_TEXT:
        return sqlite3_bind_text64(stmt, i, v->s.p, v->s.n, SQLITE_STATIC, SQLITE_UTF8);
    case DB_BYTES:
        return sqlite3_bind_blob64(stmt, i, v->s.p, v->s.n, SQLITE_STATIC);
    }
    return SQLITE_MISUSE;
}

/* Taking and leaving the lock for each row of a batch would cost more than reading it. */
static void hold_snapshot(struct db_sqlite *self)
{
    if (self->base.rows == 1 && !self->writer && !self->base.in_transaction && !self->snapshot)
        self->snapshot = run_plain(self, &BEGIN_READ);
}

static void sqlite_row(struct db *db)
{
    struct db_sqlite *self = self_of(db);
    sqlite3_stmt *stmt = self->stmt;
    int rc = SQLITE_OK;

    hold_snapshot(self);
    ASSERT(self->n_params <= db->n_params); /* those behind are Postgres's alone */
    for (unsigned i = 0; i < self->n_params && rc == SQLITE_OK; i++)
        rc = bind(stmt, (int)i + 1, &db->params[i]);
    if (rc == SQLITE_OK)
        rc = sqlite3_step(stmt);
    while (rc == SQLITE_ROW && !db->failed) {
        if (db->on_row != NULL)
            db->on_row(db->ctx, db, db->rows);
        rc = sqlite3_step(stmt);
    }
    (void)sqlite3_reset(stmt);
    if (rc != SQLITE_DONE && rc != SQLITE_ROW)
        fail(self, rc, db->sql->name);
    else if (db->sql->exact && !db->failed)
        ASSERT(sqlite3_changes(self->h) == 1);
}

static void sqlite_end(struct db *db)
{
    self_of(db)->stmt = NULL;
}

static bool sqlite_flush(struct db *db, struct err *e)
{
    struct db_sqlite *self = self_of(db);

    if (self->snapshot && !sqlite3_get_autocommit(self->h))
        (void)run_plain(self, &ROLLBACK);
    self->snapshot = false;
    if (!db->failed)
        return true;
    *e = db->err;
    if (!db->in_transaction)
        db->failed = false;
    return false;
}

static struct db_value sqlite_get(struct db *db, int column)
{
    sqlite3_stmt *stmt = self_of(db)->stmt;
    struct db_value v = {0};

    switch (sqlite3_column_type(stmt, column)) {
    case SQLITE_INTEGER:
        v.type = DB_INT;
        v.i = sqlite3_column_int64(stmt, column);
        break;
    case SQLITE_TEXT:
    case SQLITE_BLOB:
        v.type = DB_BYTES;
        v.s.p = sqlite3_column_blob(stmt, column);
        v.s.n = (size_t)sqlite3_column_bytes(stmt, column);
        if (v.s.p == NULL) /* an empty value has no address in SQLite; here it is not absent */
            v.s.p = "";
        break;
    default:
        break;
    }
    return v;
}

static int64_t sqlite_row_key(struct db *db)
{
    return sqlite3_last_insert_rowid(self_of(db)->h);
}

/* ---- transactions ---- */

static void sqlite_begin(struct db *db, bool write)
{
    struct db_sqlite *self = self_of(db);

    if (write && !sqlite_home_in_place(self->home, &db->err))
        db->failed = true;
    else
        (void)run_plain(self, write ? &BEGIN_WRITE : &BEGIN_READ);
}

static void sqlite_rollback(struct db *db)
{
    struct db_sqlite *self = self_of(db);

    if (self->h == NULL ||
        sqlite3_get_autocommit(self->h)) /* some errors have rolled back already */
        return;
    db->failed = false;
    (void)run_plain(self, &ROLLBACK);
}

static bool sqlite_commit(struct db *db, bool *unknown, struct err *e)
{
    struct db_sqlite *self = self_of(db);

    *unknown = false;
    self->frames = -1;
    if (!db->failed && run_plain(self, &COMMIT)) {
        if (self->frames > 0)
            sqlite_home_committed(self->home, self->h, self->frames);
        return true;
    }
    *e = db->err;
    /* The pages are in the log, whether on the disk nobody knows: a start after a crash may find
     * them. */
    *unknown = self->h != NULL && sqlite3_extended_errcode(self->h) == SQLITE_IOERR_FSYNC;
    sqlite_rollback(db);
    return false;
}

static void sqlite_now(struct db *db, struct now *now)
{
    (void)db;
    now->wall_us = clock_wall_us();
    now->lease_us = clock_mono_us();
}

static int64_t sqlite_new_key(struct db *db, enum db_keys kind)
{
    struct db_sqlite *self = self_of(db);

    if (self->last_key[kind] == 0) {
        sqlite3_stmt *stmt = statement(self, &LAST_KEY[kind]);

        if (stmt == NULL)
            return 0;
        if (sqlite3_step(stmt) == SQLITE_ROW)
            self->last_key[kind] = sqlite3_column_int64(stmt, 0);
        int rc = sqlite3_reset(stmt);
        if (rc != SQLITE_OK) {
            fail(self, rc, LAST_KEY[kind].name);
            return 0;
        }
    }
    return ++self->last_key[kind];
}

/* ---- the connection ---- */

static bool sqlite_script(struct db *db, const char *sql, struct err *e)
{
    struct db_sqlite *self = self_of(db);
    int rc = self->h == NULL ? SQLITE_CANTOPEN : sqlite3_exec(self->h, sql, NULL, NULL, NULL);

    return rc == SQLITE_OK || sqlite_error(self->h, rc, "script", e);
}

static int note_frames(void *arg, sqlite3 *h, const char *name, int frames)
{
    struct db_sqlite *self = arg;

    (void)h;
    (void)name;
    self->frames = frames;
    return SQLITE_OK;
}

static bool connect_handle(struct db_sqlite *self, struct err *e)
{
    self->h = sqlite_connect(self->home, self->writer ? SQLITE_WRITER : SQLITE_READER, e);
    if (self->h == NULL)
        return false;
    if (self->writer)
        sqlite3_wal_hook(self->h, note_frames, self);
    return true;
}

static void drop_handle(struct db_sqlite *self)
{
    for (size_t i = 0; i < CACHE_SLOTS; i++)
        sqlite3_finalize(self->cache[i].stmt);
    memset(self->cache, 0, sizeof(self->cache));
    if (self->h != NULL)
        sqlite3_close(self->h);
    self->h = NULL;
}

static bool sqlite_reopen(struct db *db, struct err *e)
{
    drop_handle(self_of(db));
    return connect_handle(self_of(db), e);
}

static void sqlite_close(struct db *db)
{
    drop_handle(self_of(db));
    free(db);
}

static const struct db_ops SQLITE_OPS = {
    .call = sqlite_call,
    .row = sqlite_row,
    .end = sqlite_end,
    .flush = sqlite_flush,
    .get = sqlite_get,
    .row_key = sqlite_row_key,
    .begin = sqlite_begin,
    .commit = sqlite_commit,
    .rollback = sqlite_rollback,
    .now = sqlite_now,
    .new_key = sqlite_new_key,
    .script = sqlite_script,
    .reopen = sqlite_reopen,
    .close = sqlite_close,
};

struct db *db_sqlite_open(struct sqlite_home *home, bool writer, struct err *e)
{
    struct db_sqlite *self = xzalloc(sizeof(*self));

    self->base.ops = &SQLITE_OPS;
    self->home = home;
    self->writer = writer;
    if (!connect_handle(self, e)) {
        free(self);
        return NULL;
    }
    return &self->base;
}
