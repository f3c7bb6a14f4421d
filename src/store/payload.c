/* SPDX-License-Identifier: Apache-2.0 */
#include "store/payload.h"

#include <stdlib.h>

enum { TAG_INLINE = 0, TAG_BLOB = 1, REFERENCE_LEN = 1 + 8 + 8 };

static void put_be64(uint8_t *out, uint64_t v)
{
    for (int i = 7; i >= 0; i--, v >>= 8)
        out[i] = (uint8_t)v;
}

static uint64_t get_be64(const char *p)
{
    uint64_t v = 0;

    for (int i = 0; i < 8; i++)
        v = v << 8 | (uint8_t)p[i];
    return v;
}

/* ---- writing ---- */

static struct str bind_reference(struct payload_writer *w, struct str payload)
{
    struct pending_blob blob = {db_new_key(w->db, DB_KEYS_BLOB), payload};
    uint8_t *bytes = arena_alloc(w->arena, REFERENCE_LEN);

    list_add(w->blobs, blob);
    bytes[0] = TAG_BLOB;
    put_be64(bytes + 1, (uint64_t)blob.key);
    put_be64(bytes + 9, payload.n);
    return str_make(bytes, REFERENCE_LEN);
}

void payload_bind(struct payload_writer *w, struct str payload)
{
    char *bytes;

    if (!str_present(payload)) {
        db_bytes(w->db, STR_NONE);
        return;
    }
    if (payload.n > PAYLOAD_INLINE_MAX) {
        db_bytes(w->db, bind_reference(w, payload));
        return;
    }
    bytes = arena_alloc(w->arena, payload.n + 1);
    bytes[0] = TAG_INLINE;
    memcpy(bytes + 1, payload.p, payload.n);
    db_bytes(w->db, str_make(bytes, payload.n + 1));
}

static const struct db_sql SQL_BLOB_INSERT = {
    .name = "blob_insert",
    .sqlite = "INSERT INTO blobs (key, data) VALUES ($1, $2)",
    .postgres = "INSERT INTO blobs (key, data) SELECT * FROM unnest($1::bigint[], $2::bytea[])",
    .types = "IB",
    .exact = true,
};

void payloads_write(struct payload_writer *w)
{
    if (w->blobs.n == 0)
        return;
    db_call(w->db, &SQL_BLOB_INSERT, NULL, NULL);
    for (size_t i = 0; i < w->blobs.n; i++) {
        db_int(w->db, w->blobs.at[i].key);
        db_bytes(w->db, w->blobs.at[i].data);
        db_row(w->db);
    }
    db_end(w->db);
    w->blobs.n = 0;
}

void payload_writer_free(struct payload_writer *w)
{
    free(w->blobs.at);
    *w = (struct payload_writer){0};
}

/* ---- reading ---- */

static struct str copy(struct payload_reader *r, struct str s)
{
    struct str c = arena_str(r->arena, s);

    if (!str_present(c))
        db_fail(r->db, ERR_INTERNAL, "out of memory");
    return c;
}

void payload_get(struct payload_reader *r, int column, struct str *out)
{
    struct str stored = db_get_str(r->db, column);

    *out = STR_NONE;
    if (!str_present(stored))
        return;
    if (stored.n >= 1 && stored.p[0] == TAG_INLINE) {
        *out = copy(r, str_slice(stored, 1, stored.n));
    } else if (stored.n == REFERENCE_LEN && stored.p[0] == TAG_BLOB) {
        struct pending_read read = {(int64_t)get_be64(stored.p + 1),
                                    (int64_t)get_be64(stored.p + 9), out};

        list_add(r->reads, read);
    } else {
        db_fail(r->db, ERR_INTERNAL, "the database holds a malformed payload");
    }
}

size_t payload_size(struct db *db, int column)
{
    struct str stored = db_get_str(db, column);

    if (stored.n == REFERENCE_LEN && stored.p[0] == TAG_BLOB)
        return (size_t)get_be64(stored.p + 9);
    return stored.n;
}

static const struct db_sql SQL_BLOB_READ = {
    .name = "blob_read",
    .sqlite = "SELECT data FROM blobs WHERE key = $1",
    .postgres = "SELECT u.ord, b.data FROM unnest($1::bigint[]) WITH ORDINALITY u (key, ord)"
                " JOIN blobs b ON b.key = u.key",
    .types = "I",
};

static void on_blob(void *ctx, struct db *db, size_t row)
{
    struct payload_reader *r = ctx;

    *r->reads.at[row].out = copy(r, db_get_str(db, 0));
}

bool payloads_read(struct payload_reader *r, struct err *e)
{
    if (!db_flush(r->db, e))
        return false;
    if (r->reads.n == 0)
        return true;
    db_call(r->db, &SQL_BLOB_READ, on_blob, r);
    for (size_t i = 0; i < r->reads.n; i++) {
        db_int(r->db, r->reads.at[i].key);
        db_row(r->db);
    }
    db_end(r->db);
    if (!db_flush(r->db, e))
        return false;
    for (size_t i = 0; i < r->reads.n; i++) {
        struct pending_read *read = &r->reads.at[i];

        if (!str_present(*read->out) || read->out->n != (size_t)read->size)
            return err_set(e, ERR_INTERNAL, "the database lacks the data of a payload");
    }
    r->reads.n = 0;
    return true;
}

void payload_reader_free(struct payload_reader *r)
{
    free(r->reads.at);
    *r = (struct payload_reader){0};
}
