/* SPDX-License-Identifier: Apache-2.0
 * What both drivers share: the bookkeeping of a call, decoding of columns. */
#include "store/db.h"

void db_call(struct db *db, const struct db_sql *sql, db_row_fn *on_row, void *ctx)
{
    ASSERT(db->sql ==
           NULL); /* calls do not nest: what a row asks for next is gathered and called later */
    db->sql = sql;
    db->on_row = on_row;
    db->ctx = ctx;
    db->rows = 0;
    db->n_params = 0;
    if (!db->failed)
        db->ops->call(db);
}

void db_row(struct db *db)
{
    if (!db->failed)
        db->ops->row(db);
    db->rows++;
    db->n_params = 0;
}

void db_end(struct db *db)
{
    if (!db->failed)
        db->ops->end(db);
    db->sql = NULL;
}

void db_one(struct db *db)
{
    db_row(db);
    db_end(db);
}

bool db_flush(struct db *db, struct err *e)
{
    return db->ops->flush(db, e);
}

bool db_fail(struct db *db, enum err_code code, const char *message)
{
    if (!db->failed) {
        db->failed = true;
        err_set(&db->err, code, "%s", message);
    }
    return false;
}

int64_t db_get_int(struct db *db, int column)
{
    struct db_value v = db->ops->get(db, column);

    return v.type == DB_INT ? v.i : 0;
}

struct str db_get_str(struct db *db, int column)
{
    struct db_value v = db->ops->get(db, column);

    return v.type == DB_TEXT || v.type == DB_BYTES ? v.s : STR_NONE;
}

/* A fixed-size column of another size is a database that this program did not write. */
static bool get_fixed(struct db *db, int column, uint8_t *out, size_t n)
{
    struct str s = db_get_str(db, column);

    memset(out, 0, n);
    if (!str_present(s))
        return false;
    if (s.n != n)
        return db_fail(db, ERR_INTERNAL, "the database holds a malformed key");
    memcpy(out, s.p, n);
    return true;
}

bool db_get_uuid(struct db *db, int column, struct uuid *out)
{
    return get_fixed(db, column, out->b, sizeof(out->b));
}

void db_get_hash(struct db *db, int column, struct hash *out)
{
    (void)get_fixed(db, column, out->b, sizeof(out->b));
}

int64_t db_row_key(struct db *db)
{
    return db->failed ? 0 : db->ops->row_key(db);
}

void db_begin(struct db *db)
{
    ASSERT(!db->in_transaction);
    db->in_transaction = true;
    db->ops->begin(db, true);
}

void db_begin_read(struct db *db)
{
    ASSERT(!db->in_transaction);
    db->in_transaction = true;
    db->ops->begin(db, false);
}

bool db_commit(struct db *db, bool *unknown, struct err *e)
{
    bool ok = db->ops->commit(db, unknown, e);

    db->in_transaction = db->failed = false;
    return ok;
}

void db_rollback(struct db *db)
{
    db->ops->rollback(db);
    db->in_transaction = db->failed = false;
    db->sql = NULL;
}

void db_now(struct db *db, struct now *now)
{
    db->ops->now(db, now);
}

int64_t db_new_key(struct db *db, enum db_keys kind)
{
    return db->failed ? 0 : db->ops->new_key(db, kind);
}

bool db_script(struct db *db, const char *sql, struct err *e)
{
    return db->ops->script(db, sql, e);
}

bool db_reopen(struct db *db, struct err *e)
{
    db->sql = NULL;
    db->failed = db->in_transaction = false;
    return db->ops->reopen(db, e);
}

void db_close(struct db *db)
{
    if (db != NULL)
        db->ops->close(db);
}
