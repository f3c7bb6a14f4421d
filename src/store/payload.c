/* SPDX-License-Identifier: Apache-2.0 */
#include "store/payload.h"

#include <stdlib.h>

enum { TAG_INLINE = 0, TAG_BLOBS = 1, REFERENCE_HEAD = 1 + 8, FETCH_BYTES = 4 * PAYLOAD_PART };

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

static size_t parts_of(size_t size)
{
    return (size + PAYLOAD_PART - 1) / PAYLOAD_PART;
}

static size_t part_size(size_t size, size_t part)
{
    size_t left = size - part * PAYLOAD_PART;

    return left < PAYLOAD_PART ? left : PAYLOAD_PART;
}

/* ---- writing ---- */

static struct str make_reference(struct payload_writer *w, struct str payload)
{
    size_t parts = parts_of(payload.n), n = REFERENCE_HEAD + 8 * parts;
    uint8_t *bytes = arena_alloc(w->arena, n);

    bytes[0] = TAG_BLOBS;
    put_be64(bytes + 1, payload.n);
    for (size_t i = 0; i < parts; i++) {
        struct pending_blob blob = {.key = db_new_key(w->db, DB_KEYS_BLOB)};

        blob.data = str_make(payload.p + i * PAYLOAD_PART, part_size(payload.n, i));
        list_add(w->blobs, blob);
        put_be64(bytes + REFERENCE_HEAD + 8 * i, (uint64_t)blob.key);
    }
    return str_make(bytes, n);
}

void payload_bind(struct payload_writer *w, struct str payload)
{
    char *bytes;

    if (!str_present(payload)) {
        db_bytes(w->db, STR_NONE);
        return;
    }
    if (payload.n > PAYLOAD_INLINE_MAX) {
        db_bytes(w->db, make_reference(w, payload));
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

/* Of one call: rows up to the size of a part. */
static size_t write_some(struct payload_writer *w, size_t from)
{
    size_t bytes = 0, i = from;

    db_call(w->db, &SQL_BLOB_INSERT, NULL, NULL);
    do {
        db_int(w->db, w->blobs.at[i].key);
        db_bytes(w->db, w->blobs.at[i].data);
        db_row(w->db);
        bytes += w->blobs.at[i++].data.n;
    } while (i < w->blobs.n && bytes + w->blobs.at[i].data.n <= PAYLOAD_PART);
    db_end(w->db);
    return i;
}

void payloads_write(struct payload_writer *w)
{
    for (size_t i = 0; i < w->blobs.n;)
        i = write_some(w, i);
    w->blobs.n = 0;
}

void payload_writer_free(struct payload_writer *w)
{
    free(w->blobs.at);
    *w = (struct payload_writer){0};
}

/* ---- reading ---- */

static void get_parts(struct payload_reader *r, struct str stored, struct str *out)
{
    size_t size = (size_t)get_be64(stored.p + 1), parts = parts_of(size);
    char *to;

    if (stored.n != REFERENCE_HEAD + 8 * parts) {
        db_fail(r->db, ERR_INTERNAL, "the database holds a malformed payload");
        return;
    }
    to = arena_alloc(r->arena, size);
    if (to == NULL) {
        db_fail(r->db, ERR_INTERNAL, "out of memory");
        return;
    }
    for (size_t i = 0; i < parts; i++) {
        struct pending_read read = {.to = to + i * PAYLOAD_PART, .size = part_size(size, i)};

        read.key = (int64_t)get_be64(stored.p + REFERENCE_HEAD + 8 * i);
        list_add(r->reads, read);
    }
    *out = str_make(to, size);
}

void payload_get(struct payload_reader *r, int column, struct str *out)
{
    struct str stored = db_get_str(r->db, column);

    *out = STR_NONE;
    if (!str_present(stored))
        return;
    if (stored.n >= 1 && stored.p[0] == TAG_INLINE) {
        *out = arena_str(r->arena, str_slice(stored, 1, stored.n)); /* small: never fails */
    } else if (stored.n >= REFERENCE_HEAD && stored.p[0] == TAG_BLOBS) {
        get_parts(r, stored, out);
    } else {
        db_fail(r->db, ERR_INTERNAL, "the database holds a malformed payload");
    }
}

size_t payload_size(struct db *db, int column)
{
    struct str stored = db_get_str(db, column);

    if (stored.n >= REFERENCE_HEAD && stored.p[0] == TAG_BLOBS)
        return (size_t)get_be64(stored.p + 1);
    return stored.n;
}

static const struct db_sql SQL_BLOB_READ = {
    .name = "blob_read",
    .sqlite = "SELECT data FROM blobs WHERE key = $1",
    .postgres = "SELECT u.ord, b.data FROM unnest($1::bigint[]) WITH ORDINALITY u (key, ord)"
                " JOIN blobs b ON b.key = u.key",
    .types = "I",
};

struct fetch { /* one call; arena */
    struct payload_reader *reader;
    size_t first;
};

static void on_blob(void *ctx, struct db *db, size_t row)
{
    const struct fetch *fetch = ctx;
    struct pending_read *read = &fetch->reader->reads.at[fetch->first + row];
    struct str data = db_get_str(db, 0);

    if (data.n != read->size)
        return;
    memcpy(read->to, data.p, data.n);
    read->done = true;
}

/* Several calls, so that no answer holds more than a few parts at once. */
static size_t fetch_some(struct payload_reader *r, size_t from)
{
    struct fetch *fetch = arena_new(r->arena, struct fetch);
    size_t bytes = 0, i = from;

    *fetch = (struct fetch){r, from};
    db_call(r->db, &SQL_BLOB_READ, on_blob, fetch);
    do {
        db_int(r->db, r->reads.at[i].key);
        db_row(r->db);
        bytes += r->reads.at[i++].size;
    } while (i < r->reads.n && bytes + r->reads.at[i].size <= FETCH_BYTES);
    db_end(r->db);
    return i;
}

/* Between the two statements of a read that is no transaction the whole execution may have gone. */
static bool lacks_data(const struct payload_reader *r, struct err *e)
{
    if (r->db->in_transaction)
        return err_set(e, ERR_INTERNAL, "the database lacks the data of a payload");
    return err_set(e, ERR_UNAVAILABLE, "what was asked for is being removed; try again");
}

bool payloads_read(struct payload_reader *r, struct err *e)
{
    if (!db_flush(r->db, e))
        return false;
    if (r->reads.n == 0)
        return true;
    for (size_t i = 0; i < r->reads.n;)
        i = fetch_some(r, i);
    if (!db_flush(r->db, e))
        return false;
    for (size_t i = 0; i < r->reads.n; i++)
        if (!r->reads.at[i].done)
            return lacks_data(r, e);
    r->reads.n = 0;
    return true;
}

void payload_reader_free(struct payload_reader *r)
{
    free(r->reads.at);
    *r = (struct payload_reader){0};
}

/* ---- freeing ---- */

size_t blob_keys_add(struct blob_keys *out, struct str bytes)
{
    for (size_t i = 0; i + 8 <= bytes.n; i += 8)
        list_add(out->keys, (int64_t)get_be64(bytes.p + i));
    return bytes.n / 8;
}

size_t payload_blobs(struct db *db, int column, struct blob_keys *out)
{
    struct str stored = db_get_str(db, column);

    if (stored.n < REFERENCE_HEAD || stored.p[0] != TAG_BLOBS)
        return 0;
    return blob_keys_add(out, str_slice(stored, REFERENCE_HEAD, stored.n));
}

static const struct db_sql SQL_BLOB_DELETE = {
    .name = "blob_delete",
    .sqlite = "DELETE FROM blobs WHERE key = $1",
    .postgres = "DELETE FROM blobs WHERE key = ANY ($1::bigint[])",
    .types = "I",
};

void blobs_delete(struct db *db, const struct blob_keys *blobs)
{
    db_call(db, &SQL_BLOB_DELETE, NULL, NULL);
    for (size_t i = 0; i < blobs->keys.n; i++) {
        db_int(db, blobs->keys.at[i]);
        db_row(db);
    }
    db_end(db);
}

void blob_keys_free(struct blob_keys *blobs)
{
    list_free(blobs->keys);
}
