/* SPDX-License-Identifier: Apache-2.0
 * How payloads are kept in a column: one tag byte, then
 *
 *     0  the bytes themselves
 *     1  the size, then the keys of the rows of `blobs` that hold the data in parts of 256 KiB (the
 *        last one shorter); 8 bytes each, big-endian
 *     2  the size, then of each chunk its size and its row of `chunks` (store/chunks.h)
 *
 * SQL NULL is an absent payload, which differs from an empty one and from JSON's null. Parts bound
 * the memory that one statement takes on its way: neither driver ever holds a large payload whole.
 *
 * Parts are the row's own, and go with it. Chunks are shared: what a model is asked repeats all
 * that was said before. Who sends a command decides whether it is worth while, by cutting the
 * payload. */
#ifndef STORE_PAYLOAD_H
#define STORE_PAYLOAD_H

#include "store/db.h"
#include "store/list.h"
#include "store/store.h"

enum { PAYLOAD_INLINE_MAX = STORE_INLINE_MAX, PAYLOAD_PART = 256 * 1024 };

/* Writing: chunks_place (store/chunks.h) once, bind columns with payload_bind inside any call, then
 * payloads_write once after the calls. All bytes are borrowed until then. */
struct pending_blob {
    int64_t key;
    struct str data;
};
struct placed_chunks { /* of a payload of this execution: all its chunks have keys */
    int64_t execution_key;
    struct chunks *chunks;
};
struct new_chunk {
    int64_t execution_key;
    const struct content_chunk *chunk;
};
struct payload_writer {
    struct db *db;
    struct arena *arena;
    LIST(struct pending_blob) blobs;
    LIST(struct placed_chunks) placed;
    LIST(struct new_chunk) new_chunks;
};
void payload_bind(struct payload_writer *w, struct str payload);
void payloads_write(struct payload_writer *w);
void payload_writer_free(struct payload_writer *w);

/* Reading: payload_get inside on_row sets *out; a large payload's bytes are there once
 * payloads_read, which flushes, has fetched them. */
struct pending_read {
    int64_t key;
    char *to; /* arena */
    size_t size;
    bool done;
};
struct pending_reads {
    LIST(struct pending_read) rows;
};
struct payload_reader {
    struct db *db;
    struct arena *arena;
    struct pending_reads parts, chunks;
};
void payload_get(struct payload_reader *r, int column, struct str *out);
/* Bytes that reading this column will take, known before the data is fetched. */
size_t payload_size(struct db *db, int column);
MUST_USE bool payloads_read(struct payload_reader *r, struct err *e);
void payload_reader_free(struct payload_reader *r);

/* Freeing: the blobs that stored payloads refer to. Chunks go with their lineage. */
struct blob_keys {
    LIST(int64_t) keys;
};
/* Of a column; how many those are. A payload in the row itself has none. */
size_t payload_blobs(struct db *db, int column, struct blob_keys *out);
/* 8 bytes a key, as in a reference behind its head. */
size_t blob_keys_add(struct blob_keys *out, struct str bytes);
void blobs_delete(struct db *db, const struct blob_keys *blobs);
void blob_keys_free(struct blob_keys *blobs);

#endif
