/* SPDX-License-Identifier: Apache-2.0
 * One connection to a database, whichever it is. Below are two drivers (db_sqlite.c,
 * db_postgres.c); above, the entities write each statement once and run it over a batch of rows:
 *
 *     db_call(db, &SQL, on_row, ctx);
 *     for each row { db_int(db, a); db_bytes(db, b); db_row(db); }
 *     db_end(db);
 *     …more calls…
 *     if (!db_flush(db, e)) …
 *
 * SQLite runs a row at once. Postgres gathers the rows into arrays and the calls into a pipeline,
 * and answers at the flush: a constant number of round trips whatever the size of the batch. So
 * result rows are given to `on_row`, at the latest during db_flush, in the order of the calls.
 * Errors are sticky: after one the calls do nothing and the flush tells.
 *
 * It knows no entity. A connection belongs to one thread. */
#ifndef STORE_DB_H
#define STORE_DB_H

#include "base/arena.h"
#include "base/buf.h"
#include "base/err.h"
#include "kernel/working_set.h"

enum { DB_PARAMS_MAX = 48 };

struct db;
struct db_ops;

/* A statement, identified by its address: static const, prepared once per connection. Parameters
 * are $1, $2, … Trailing parameters may be left unnamed by the text for SQLite; an empty text needs
 * no such call on Postgres. A batch that joins on two columns does so inside LATERAL (… OFFSET 0),
 * or Postgres may look up one of them and filter. A batch on Postgres takes arrays (unnest) where
 * SQLite takes one row at a time; if it answers with rows, their first column there is the ordinal
 * of the parameter row, from 1. */
struct db_sql {
    const char *name; /* for messages and prepared statements: unique, plain */
    const char *sqlite;
    const char *postgres; /* NULL: the same text */
    const char
        *types; /* Postgres, one letter a parameter: i bigint, t text, b bytea; a capital letter: an
                   array of it, one element a row. Small letters are taken from the first row. */
    bool exact; /* each row of parameters must change exactly one row: on Postgres ERR_STORE_RACE if
                   not; on SQLite, where nobody else writes, a broken invariant */
};

enum db_type { DB_NULL, DB_INT, DB_TEXT, DB_BYTES };
struct db_value {
    enum db_type type;
    int64_t i;
    struct str s; /* borrowed: until db_row returns; from a result: until on_row returns */
};

/* `row` is the index of the parameter row (0 for the first) that brought this result row. */
typedef void db_row_fn(void *ctx, struct db *db, size_t row);

enum db_keys { DB_KEYS_EXECUTION, DB_KEYS_BLOB, DB_KEYS_CHUNK, DB_KEYS_KINDS };

struct db {
    const struct db_ops *ops;
    const struct db_sql *sql; /* of the open call */
    db_row_fn *on_row;
    void *ctx;
    size_t rows; /* of the open call, so far */
    unsigned n_params;
    struct db_value params[DB_PARAMS_MAX];
    bool failed; /* sticky until the flush */
    bool in_transaction;
    struct err err;
};

/* ---- calls ---- */
void db_call(struct db *db, const struct db_sql *sql, db_row_fn *on_row, void *ctx);
void db_row(struct db *db);
void db_end(struct db *db);
MUST_USE bool db_flush(struct db *db, struct err *e);
/* db_call, one db_row with the parameters bound between `begin` and here, db_end: for statements of
 * one row. */
void db_one(struct db *db);
bool db_fail(struct db *db, enum err_code code,
             const char *message); /* from on_row: makes the flush fail */

static inline void db_bind(struct db *db, struct db_value v)
{
    ASSERT(db->n_params < DB_PARAMS_MAX);
    db->params[db->n_params++] = v;
}

static inline void db_int(struct db *db, int64_t v)
{
    db_bind(db, (struct db_value){.type = DB_INT, .i = v});
}

/* 0 stands for "not set" and is stored as NULL. */
static inline void db_int_opt(struct db *db, int64_t v)
{
    db_bind(db, (struct db_value){.type = v == 0 ? DB_NULL : DB_INT, .i = v});
}

/* -1 stands for "not known" and is stored as NULL. */
static inline void db_int_natural(struct db *db, int64_t v)
{
    db_bind(db, (struct db_value){.type = v < 0 ? DB_NULL : DB_INT, .i = v});
}

/* Absent is NULL. Text must be UTF-8 without NUL (Postgres takes no other); anything else goes as
 * bytes. */
static inline void db_text(struct db *db, struct str s)
{
    db_bind(db, (struct db_value){.type = str_present(s) ? DB_TEXT : DB_NULL, .s = s});
}

static inline void db_bytes(struct db *db, struct str s)
{
    db_bind(db, (struct db_value){.type = str_present(s) ? DB_BYTES : DB_NULL, .s = s});
}

static inline void db_uuid(struct db *db, const struct uuid *id)
{
    db_bytes(db, str_make(id->b, sizeof(id->b)));
}

/* Nil stands for "none" and is stored as NULL. */
static inline void db_uuid_opt(struct db *db, const struct uuid *id)
{
    db_bytes(db, uuid_is_nil(id) ? STR_NONE : str_make(id->b, sizeof(id->b)));
}

static inline void db_hash(struct db *db, const struct hash *h)
{
    db_bytes(db, str_make(h->b, sizeof(h->b)));
}

/* ---- results, inside on_row; NULL reads as 0 or STR_NONE ---- */
int64_t db_get_int(struct db *db, int column);
struct str db_get_str(struct db *db, int column);              /* borrowed until on_row returns */
bool db_get_uuid(struct db *db, int column, struct uuid *out); /* false (and nil): NULL */
void db_get_hash(struct db *db, int column, struct hash *out);
/* The key that SQLite gave to the row that db_row just inserted. 0 on Postgres, where no row
 * outlives its group. */
int64_t db_row_key(struct db *db);

/* ---- transactions ---- */
void db_begin(struct db *db); /* to write: SQLite BEGIN IMMEDIATE; its error shows at the flush */
void db_begin_read(struct db *db); /* one snapshot for several statements */
/* With full durability. True: durable. Else as store_commit says. The transaction is over in every
 * case. */
MUST_USE bool db_commit(struct db *db, bool *unknown, struct err *e);
void db_rollback(struct db *db); /* also ends a read transaction; clears the sticky error */
/* The wall clock is the database's on Postgres. Filled at the latest by the flush. */
void db_now(struct db *db, struct now *now);
/* A key for a row to be inserted, unique and rising within this connection. Needs an open
 * transaction. */
int64_t db_new_key(struct db *db, enum db_keys kind);

/* ---- the connection ---- */
MUST_USE bool db_script(struct db *db, const char *sql,
                        struct err *e); /* several statements, no parameters */
MUST_USE bool db_reopen(struct db *db,
                        struct err *e); /* after an error: a new handle in place of the old one */
void db_close(struct db *db);           /* NULL is fine */

/* What a driver does. */
struct db_ops {
    void (*call)(struct db *db);
    void (*row)(struct db *db);
    void (*end)(struct db *db);
    bool (*flush)(struct db *db, struct err *e);
    struct db_value (*get)(struct db *db, int column);
    int64_t (*row_key)(struct db *db);
    void (*begin)(struct db *db, bool write);
    bool (*commit)(struct db *db, bool *unknown, struct err *e);
    void (*rollback)(struct db *db);
    void (*now)(struct db *db, struct now *now);
    int64_t (*new_key)(struct db *db, enum db_keys kind);
    bool (*script)(struct db *db, const char *sql, struct err *e);
    bool (*reopen)(struct db *db, struct err *e);
    void (*close)(struct db *db);
};

#endif
