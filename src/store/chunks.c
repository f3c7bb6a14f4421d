/* SPDX-License-Identifier: Apache-2.0 */
#include "store/chunks.h"

#include "base/be.h"

enum { HEAD = 1 + 8, VARINT_MAX = 10 };

/* ---- references ---- */

/* Seven bits a byte, the lowest first; the last byte has no upper bit. */
static size_t put_varint(uint8_t *out, uint64_t v)
{
    size_t n = 0;

    for (; v >= 128; v >>= 7)
        out[n++] = (uint8_t)(v | 128);
    out[n++] = (uint8_t)v;
    return n;
}

static bool take_varint(struct str *from, uint64_t *out)
{
    *out = 0;
    for (size_t i = 0; i < from->n && i < VARINT_MAX; i++) {
        uint8_t byte = (uint8_t)from->p[i];

        *out |= (uint64_t)(byte & 127) << (7 * i);
        if (byte < 128) {
            *from = str_slice(*from, i + 1, from->n);
            return true;
        }
    }
    return false;
}

/* Small numbers of either sign as small ones. */
static uint64_t fold(int64_t v)
{
    return (uint64_t)v << 1 ^ (uint64_t)(v >> 63);
}

static int64_t unfold(uint64_t v)
{
    return (int64_t)(v >> 1 ^ (0 - (v & 1)));
}

struct str chunks_reference(const struct chunks *chunks, struct arena *a)
{
    uint8_t *bytes = arena_alloc(a, HEAD + 2 * VARINT_MAX * chunks->n);
    size_t n = HEAD;
    int64_t last = 0;

    bytes[0] = CHUNKS_TAG;
    put_be64(bytes + 1, chunks->whole.n);
    for (size_t i = 0; i < chunks->n; i++) {
        n += put_varint(bytes + n, chunks->at[i].bytes.n);
        n += put_varint(bytes + n, fold(chunks->at[i].key - last));
        last = chunks->at[i].key;
    }
    return str_make(bytes, n);
}

bool chunks_reference_open(struct chunk_refs *refs, struct str stored, size_t *size)
{
    struct chunk_ref ref;
    size_t sum = 0;
    bool ok;

    if (stored.n < HEAD || stored.p[0] != CHUNKS_TAG)
        return false;
    *size = (size_t)get_be64(stored.p + 1);
    *refs = (struct chunk_refs){.rest = str_slice(stored, HEAD, stored.n)};
    for (ok = true; ok && refs->rest.n > 0; sum += ref.size)
        ok = chunks_reference_next(refs, &ref);
    *refs = (struct chunk_refs){.rest = str_slice(stored, HEAD, stored.n)};
    return ok && sum == *size;
}

bool chunks_reference_next(struct chunk_refs *refs, struct chunk_ref *out)
{
    uint64_t size, step;

    *out = (struct chunk_ref){0};
    if (!take_varint(&refs->rest, &size) || !take_varint(&refs->rest, &step) || size == 0 ||
        size > CHUNK_MAX)
        return false;
    refs->key = (int64_t)((uint64_t)refs->key + (uint64_t)unfold(step));
    *out = (struct chunk_ref){.size = (size_t)size, .key = refs->key};
    return true;
}

/* ---- placing ---- */

static const struct db_sql SQL_CHUNK_FIND = {
    .name = "chunk_find",
    .sqlite = "SELECT c.key FROM chunks c WHERE c.lineage = (SELECT coalesce(e.lineage, e.key)"
              " FROM executions e WHERE e.key = $1) AND c.hash = $2 LIMIT 1",
    .postgres = "SELECT u.ord, l.key FROM unnest($1::bigint[], $2::bytea[]) WITH ORDINALITY"
                " u (execution_key, hash, ord) CROSS JOIN LATERAL (SELECT c.key FROM chunks c"
                " WHERE c.lineage = (SELECT coalesce(e.lineage, e.key) FROM executions e"
                " WHERE e.key = u.execution_key) AND c.hash = u.hash LIMIT 1 OFFSET 0) l",
    .types = "IB",
};

static struct chunks *chunks_of(const struct changes *changes, struct str payload)
{
    for (size_t i = 0; i < changes->chunks.n; i++)
        if (changes->chunks.at[i]->whole.p == payload.p &&
            changes->chunks.at[i]->whole.n == payload.n)
            return changes->chunks.at[i];
    return NULL;
}

static void place(struct payload_writer *w, const struct changes *changes,
                  const struct execution *exec, struct str payload)
{
    struct placed_chunks placed = {exec->key, NULL};

    if (payload.n <= PAYLOAD_INLINE_MAX || exec->key == 0)
        return;
    placed.chunks = chunks_of(changes, payload);
    if (placed.chunks != NULL)
        list_add(w->placed, placed);
}

static void place_all(struct payload_writer *w, const struct changes *changes)
{
    for (size_t i = 0; i < changes->steps.n; i++) {
        const struct step *step = changes->steps.at[i];

        if (step->row == ROW_NEW)
            place(w, changes, step->execution, step->args);
        place(w, changes, step->execution, step->result);
    }
    for (size_t i = 0; i < changes->executions.n; i++)
        place(w, changes, changes->executions.at[i], changes->executions.at[i]->state);
}

static void on_found(void *ctx, struct db *db, size_t row)
{
    struct content_chunk **asked_for = ctx;

    asked_for[row]->key = db_get_int(db, 0);
}

static bool find_stored(struct payload_writer *w, struct err *e)
{
    struct content_chunk **asked_for;
    size_t n = 0, i = 0;

    for (size_t p = 0; p < w->placed.n; p++)
        n += w->placed.at[p].chunks->n;
    asked_for = arena_array(w->arena, struct content_chunk *, n);
    if (asked_for == NULL)
        return err_set(e, ERR_INTERNAL, "out of memory");
    db_call(w->db, &SQL_CHUNK_FIND, on_found, asked_for);
    for (size_t p = 0; p < w->placed.n; p++) {
        const struct placed_chunks *placed = &w->placed.at[p];

        for (size_t k = 0; k < placed->chunks->n; k++) {
            struct content_chunk *chunk = &placed->chunks->at[k];

            chunk->key = 0; /* it may be one of a group that failed */
            asked_for[i++] = chunk;
            db_int(w->db, placed->execution_key);
            db_bytes(w->db, str_make(chunk->hash, CHUNK_HASH));
            db_row(w->db);
        }
    }
    db_end(w->db);
    return db_flush(w->db, e);
}

/* What one execution stores twice in a group is stored once. */
static void name_new(struct payload_writer *w)
{
    struct map first = {0};

    for (size_t p = 0; p < w->placed.n; p++) {
        const struct placed_chunks *placed = &w->placed.at[p];

        for (size_t k = 0; k < placed->chunks->n; k++) {
            struct content_chunk *chunk = &placed->chunks->at[k];
            struct new_chunk row = {placed->execution_key, chunk};
            uint8_t id[CHUNK_HASH + 8];
            const struct content_chunk *same;

            if (chunk->key != 0)
                continue;
            memcpy(id, chunk->hash, CHUNK_HASH);
            put_be64(id + CHUNK_HASH, (uint64_t)placed->execution_key);
            same = map_get(&first, str_make(id, sizeof(id)));
            chunk->key = same != NULL ? same->key : db_new_key(w->db, DB_KEYS_CHUNK);
            if (same != NULL)
                continue;
            map_put(&first, str_make(id, sizeof(id)), chunk);
            list_add(w->new_chunks, row);
        }
    }
    map_free(&first);
}

bool chunks_place(struct payload_writer *w, const struct changes *changes, struct err *e)
{
    if (changes->chunks.n == 0)
        return true;
    place_all(w, changes);
    if (w->placed.n == 0)
        return true;
    if (!find_stored(w, e))
        return false;
    name_new(w);
    return true;
}

/* ---- writing ---- */

static const struct db_sql SQL_CHUNK_INSERT = {
    .name = "chunk_insert",
    .sqlite = "INSERT INTO chunks (key, lineage, hash, data) SELECT $1, coalesce(e.lineage, e.key),"
              " $3, $4 FROM executions e WHERE e.key = $2",
    .postgres = "INSERT INTO chunks (key, lineage, hash, data) SELECT u.key,"
                " (SELECT coalesce(e.lineage, e.key) FROM executions e"
                " WHERE e.key = u.execution_key), u.hash, u.data"
                " FROM unnest($1::bigint[], $2::bigint[], $3::bytea[], $4::bytea[])"
                " u (key, execution_key, hash, data)",
    .types = "IIBB",
    .exact = true,
};

static struct str data_of(const struct content_chunk *chunk)
{
    return str_present(chunk->packed) ? chunk->packed : chunk->bytes;
}

/* Of one call: about as much as a part of a payload that is stored whole. */
static size_t write_some(struct payload_writer *w, size_t i)
{
    size_t bytes = 0;

    db_call(w->db, &SQL_CHUNK_INSERT, NULL, NULL);
    do {
        const struct new_chunk *row = &w->new_chunks.at[i++];

        db_int(w->db, row->chunk->key);
        db_int(w->db, row->execution_key);
        db_bytes(w->db, str_make(row->chunk->hash, CHUNK_HASH));
        db_bytes(w->db, data_of(row->chunk));
        db_row(w->db);
        bytes += data_of(row->chunk).n;
    } while (i < w->new_chunks.n && bytes < PAYLOAD_PART);
    db_end(w->db);
    return i;
}

void chunks_write(struct payload_writer *w)
{
    for (size_t i = 0; i < w->new_chunks.n;)
        i = write_some(w, i);
    w->new_chunks.n = 0;
}
