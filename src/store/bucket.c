/* SPDX-License-Identifier: Apache-2.0
 * Rows of token buckets. They belong to no execution: whoever asks for one holds it to the end of
 * its group, and on Postgres other kernels wait for that. A bucket that is full needs no row. */
#include "base/clock.h"
#include "store/internal.h"

/* A bucket in use is full every now and then: its row stays for a while, and one more step of the
 * clock brings no debt back. */
static const int64_t LONG_FULL_US = 60 * US_PER_S;
/* No rule's window comes near, and adding one to what is below does not overflow. */
#define FULL_AT_MAX "2305843009213693951"

/* ---- load ---- */

/* Anything but a sane time reads as -1. SQLite keeps whatever type is put in. */
static const struct db_sql SQL_BUCKET_LOAD = {
    .name = "bucket_load",
    .sqlite = "SELECT CASE WHEN typeof(b.full_at) = 'integer' AND b.full_at BETWEEN 0 "
              "AND " FULL_AT_MAX " THEN b.full_at ELSE -1 END FROM buckets b WHERE b.key = $1",
    /* The order of the keys is the order of the locks. */
    .postgres = "SELECT u.ord, CASE WHEN b.full_at BETWEEN 0 AND " FULL_AT_MAX
                " THEN b.full_at ELSE -1 END FROM unnest($1::bytea[]) WITH ORDINALITY u (key, ord)"
                " JOIN buckets b ON b.key = u.key ORDER BY b.key FOR UPDATE OF b",
    .types = "B",
};

static void on_bucket(void *ctx, struct db *db, size_t row)
{
    struct load *ld = ctx;
    struct loaded_bucket *lb = &ld->buckets[row];

    lb->found = true;
    lb->row.full_at = db_get_int(db, 0);
    lb->row.unreadable = lb->row.full_at < 0;
}

void bucket_load(struct load *ld)
{
    const struct need *need = &ld->ws->need;

    if (need->buckets.n == 0)
        return;
    ld->buckets = arena_array(&ld->ws->arena, struct loaded_bucket, need->buckets.n);
    db_call(ld->db, &SQL_BUCKET_LOAD, on_bucket, ld);
    for (size_t i = 0; i < need->buckets.n; i++) {
        db_bytes(ld->db, need->buckets.at[i]);
        db_row(ld->db);
    }
    db_end(ld->db);
}

void bucket_put(struct load *ld)
{
    const struct need *need = &ld->ws->need;

    for (size_t i = 0; i < need->buckets.n; i++) {
        const struct loaded_bucket *lb = &ld->buckets[i];

        ws_put_bucket(ld->ws, need->buckets.at[i], lb->found ? &lb->row : NULL);
    }
}

/* ---- apply ---- */

/* Sorted, so that two writers that create the same buckets wait for each other in one order. Who
 * comes second is told that it lost a race. */
static const struct db_sql SQL_BUCKET_INSERT = {
    .name = "bucket_insert",
    .sqlite = "INSERT INTO buckets (key, full_at) VALUES ($1, $2)",
    .postgres = "INSERT INTO buckets (key, full_at) SELECT key, full_at"
                " FROM unnest($1::bytea[], $2::bigint[]) u (key, full_at) ORDER BY key",
    .types = "BI",
    .exact = true,
};
static const struct db_sql SQL_BUCKET_UPDATE = {
    .name = "bucket_update",
    .sqlite = "UPDATE buckets SET full_at = $2 WHERE key = $1",
    .postgres = "UPDATE buckets b SET full_at = u.full_at"
                " FROM unnest($1::bytea[], $2::bigint[]) u (key, full_at) WHERE b.key = u.key",
    .types = "BI",
    .exact = true,
};

static void apply_pass(struct apply *ap, unsigned row)
{
    db_call(ap->db, row == ROW_NEW ? &SQL_BUCKET_INSERT : &SQL_BUCKET_UPDATE, NULL, NULL);
    for (size_t i = 0; i < ap->changes->buckets.n; i++) {
        const struct bucket *bucket = ap->changes->buckets.at[i];

        if (bucket->row != row)
            continue;
        db_bytes(ap->db, bucket->key);
        db_int(ap->db, bucket->full_at);
        db_row(ap->db);
    }
    db_end(ap->db);
}

void bucket_apply(struct apply *ap)
{
    if (ap->changes->buckets.n == 0)
        return;
    apply_pass(ap, ROW_NEW);
    apply_pass(ap, ROW_CHANGED);
}

/* ---- tidying ---- */

static const struct db_sql SQL_BUCKET_SLICE = {
    .name = "bucket_slice",
    .sqlite =
        "WITH slice AS (SELECT key, full_at FROM buckets WHERE key > $1 ORDER BY key LIMIT $2)"
        " SELECT count(*), (SELECT key FROM slice ORDER BY key DESC LIMIT 1),"
        " count(*) FILTER (WHERE full_at BETWEEN 0 AND $3) FROM slice",
    .types = "bii",
};
/* A bucket that somebody holds is in use, and he is not waited for. */
static const struct db_sql SQL_BUCKET_SWEEP = {
    .name = "bucket_sweep",
    .sqlite = "DELETE FROM buckets WHERE key > $1 AND key <= $2 AND full_at BETWEEN 0 AND $3",
    .postgres = "DELETE FROM buckets WHERE key IN (SELECT b.key FROM buckets b"
                " WHERE b.key > $1 AND b.key <= $2 AND b.full_at BETWEEN 0 AND $3"
                " FOR UPDATE SKIP LOCKED)",
    .types = "bbi",
};

struct slice {
    int64_t rows, full;
    struct buf end;
};

static void on_slice(void *ctx, struct db *db, size_t row)
{
    struct slice *slice = ctx;

    (void)row;
    slice->rows = db_get_int(db, 0);
    buf_add(&slice->end, db_get_str(db, 1));
    slice->full = db_get_int(db, 2);
}

static bool read_slice(struct store_writer *w, int64_t full_before, struct slice *slice,
                       struct err *e)
{
    db_call(w->db, &SQL_BUCKET_SLICE, on_slice, slice);
    db_bytes(w->db, buf_str(&w->buckets_after));
    db_int(w->db, TIDY_ROWS);
    db_int(w->db, full_before);
    db_one(w->db);
    return db_flush(w->db, e);
}

static bool sweep(struct store_writer *w, int64_t full_before, const struct slice *slice,
                  struct err *e)
{
    bool unknown;

    db_begin(w->db);
    db_call(w->db, &SQL_BUCKET_SWEEP, NULL, NULL);
    db_bytes(w->db, buf_str(&w->buckets_after));
    db_bytes(w->db, buf_str(&slice->end));
    db_int(w->db, full_before);
    db_one(w->db);
    return db_commit(w->db, &unknown, e);
}

/* A cursor goes through the table; nothing is written for a slice in which every bucket is in use.
 */
bool bucket_tidy(struct store_writer *w, bool *more, struct err *e)
{
    struct slice slice = {0};
    struct now now = {0};
    bool ok;

    *more = false;
    db_now(w->db, &now);
    ok = db_flush(w->db, e) && read_slice(w, now.wall_us - LONG_FULL_US, &slice, e) &&
         (slice.full == 0 || sweep(w, now.wall_us - LONG_FULL_US, &slice, e));
    if (ok) {
        *more = slice.rows == TIDY_ROWS;
        buf_clear(&w->buckets_after);
        if (*more)
            buf_add(&w->buckets_after, buf_str(&slice.end));
    } else {
        w->broken = e->code == ERR_UNAVAILABLE;
    }
    buf_free(&slice.end);
    return ok;
}
