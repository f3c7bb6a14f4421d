/* SPDX-License-Identifier: Apache-2.0 */
#include "store/payload.h"

#include <stdlib.h>

#include "base/be.h"
#include "base/pack.h"
#include "store/chunks.h"

enum { TAG_INLINE = 0, TAG_BLOBS = 1, REFERENCE_HEAD = 1 + 8, FETCH_BYTES = 4 * PAYLOAD_PART };

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

static const struct chunks *placed_chunks(const struct payload_writer *w, struct str payload)
{
    for (size_t i = 0; i < w->placed.n; i++)
        if (w->placed.at[i].chunks->whole.p == payload.p &&
            w->placed.at[i].chunks->whole.n == payload.n)
            return w->placed.at[i].chunks;
    return NULL;
}

static struct str refer_to(struct payload_writer *w, struct str payload)
{
    const struct chunks *chunks = placed_chunks(w, payload);

    return chunks == NULL ? make_reference(w, payload) : chunks_reference(chunks, w->arena);
}

void payload_bind(struct payload_writer *w, struct str payload)
{
    char *bytes;

    if (!str_present(payload)) {
        db_bytes(w->db, STR_NONE);
        return;
    }
    if (payload.n > PAYLOAD_INLINE_MAX) {
        db_bytes(w->db, refer_to(w, payload));
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
    chunks_write(w);
}

void payload_writer_free(struct payload_writer *w)
{
    free(w->blobs.at);
    free(w->placed.at);
    free(w->new_chunks.at);
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
        list_add(r->parts.rows, read);
    }
    *out = str_make(to, size);
}

static void get_chunks(struct payload_reader *r, struct str stored, struct str *out)
{
    struct chunk_refs refs;
    struct chunk_ref chunk;
    size_t size;
    char *to;

    if (!chunks_reference_open(&refs, stored, &size)) {
        db_fail(r->db, ERR_INTERNAL, "the database holds a malformed payload");
        return;
    }
    to = arena_alloc(r->arena, size);
    if (to == NULL) {
        db_fail(r->db, ERR_INTERNAL, "out of memory");
        return;
    }
    *out = str_make(to, size);
    while (chunks_reference_next(&refs, &chunk)) {
        struct pending_read read = {.key = chunk.key, .to = to, .size = chunk.size};

        list_add(r->chunks.rows, read);
        to += chunk.size;
    }
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
    } else if (stored.n >= 1 && stored.p[0] == CHUNKS_TAG) {
        get_chunks(r, stored, out);
    } else {
        db_fail(r->db, ERR_INTERNAL, "the database holds a malformed payload");
    }
}

size_t payload_size(struct db *db, int column)
{
    struct str stored = db_get_str(db, column);

    if (stored.n >= REFERENCE_HEAD && stored.p[0] != TAG_INLINE)
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

static const struct db_sql SQL_CHUNK_READ = {
    .name = "chunk_read",
    .sqlite = "SELECT data FROM chunks WHERE key = $1",
    .postgres = "SELECT u.ord, c.data FROM unnest($1::bigint[]) WITH ORDINALITY u (key, ord)"
                " JOIN chunks c ON c.key = u.key",
    .types = "I",
};

struct fetch { /* one call; arena */
    const struct pending_reads *reads;
    size_t first;
};

static void on_part(void *ctx, struct db *db, size_t row)
{
    const struct fetch *fetch = ctx;
    struct pending_read *read = &fetch->reads->rows.at[fetch->first + row];
    struct str data = db_get_str(db, 0);

    if (data.n != read->size)
        return;
    memcpy(read->to, data.p, data.n);
    read->done = true;
}

/* What is as large as the chunk is the chunk; packed it is smaller. */
static void on_chunk(void *ctx, struct db *db, size_t row)
{
    const struct fetch *fetch = ctx;
    struct pending_read *read = &fetch->reads->rows.at[fetch->first + row];
    struct str data = db_get_str(db, 0);

    if (data.n == read->size)
        memcpy(read->to, data.p, data.n);
    else if (!unpack(data, read->to, read->size))
        db_fail(db, ERR_INTERNAL, "the database holds a damaged payload");
    read->done = true;
}

/* Several calls, so that no answer holds more than a few parts at once. */
static size_t fetch_some(struct payload_reader *r, const struct pending_reads *reads, size_t i)
{
    struct fetch *fetch = arena_new(r->arena, struct fetch);
    bool chunks = reads == &r->chunks;
    size_t bytes = 0;

    *fetch = (struct fetch){reads, i};
    db_call(r->db, chunks ? &SQL_CHUNK_READ : &SQL_BLOB_READ, chunks ? on_chunk : on_part, fetch);
    do {
        db_int(r->db, reads->rows.at[i].key);
        db_row(r->db);
        bytes += reads->rows.at[i++].size;
    } while (i < reads->rows.n && bytes + reads->rows.at[i].size <= FETCH_BYTES);
    db_end(r->db);
    return i;
}

static void fetch_all(struct payload_reader *r, const struct pending_reads *reads)
{
    for (size_t i = 0; i < reads->rows.n;)
        i = fetch_some(r, reads, i);
}

static bool all_done(struct pending_reads *reads)
{
    bool done = true;

    for (size_t i = 0; i < reads->rows.n; i++)
        done &= reads->rows.at[i].done;
    reads->rows.n = 0;
    return done;
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
    bool parts, chunks;

    if (!db_flush(r->db, e))
        return false;
    if (r->parts.rows.n + r->chunks.rows.n == 0)
        return true;
    fetch_all(r, &r->parts);
    fetch_all(r, &r->chunks);
    if (!db_flush(r->db, e))
        return false;
    parts = all_done(&r->parts);
    chunks = all_done(&r->chunks);
    return (parts && chunks) || lacks_data(r, e);
}

void payload_reader_free(struct payload_reader *r)
{
    free(r->parts.rows.at);
    free(r->chunks.rows.at);
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
