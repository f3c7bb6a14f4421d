/* SPDX-License-Identifier: Apache-2.0
 * Payloads in content-addressed chunks (base/chunk.h), each stored once in its lineage.
 *
 * A lineage is an execution, its forks, and those that continue one of it: executions.lineage holds
 * the key of the first one, NULL that it is the execution's own. It is set with whatever makes an
 * execution one of it (its source, its parent), which is locked or pinned meanwhile. So a lineage
 * without an execution never gets one again, and its chunks may go (unlinked.c); and while a writer
 * finds a chunk, its own execution is there, and keeps them.
 *
 * Nothing is unique in the table: of two kernels that store the same chunk at once neither waits
 * for the other, and both rows go with the lineage. */
#ifndef STORE_CHUNKS_H
#define STORE_CHUNKS_H

#include "store/payload.h"

/* Finds out which chunks of the payloads that these changes will store are there, and gives keys to
 * the others: payload_bind then refers to them, and payloads_write writes those. One round trip, if
 * there are any. */
MUST_USE bool chunks_place(struct payload_writer *w, const struct changes *changes, struct err *e);
void chunks_write(struct payload_writer *w);

/* A reference: a tag byte, the size of the whole in 8 bytes, big-endian; then of each chunk, as
 * varints, its size and by how much its key differs from that of the one before. */
enum { CHUNKS_TAG = 2 };
struct chunk_ref {
    size_t size;
    int64_t key;
};
struct chunk_refs { /* those that are left */
    struct str rest;
    int64_t key;
};
struct str chunks_reference(const struct chunks *chunks, struct arena *a);
/* False: no reference, or one that nobody wrote: what chunks there are do not make up the size. */
MUST_USE bool chunks_reference_open(struct chunk_refs *refs, struct str stored, size_t *size);
/* False: there are no more. */
MUST_USE bool chunks_reference_next(struct chunk_refs *refs, struct chunk_ref *out);

#endif
