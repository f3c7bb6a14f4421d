/* SPDX-License-Identifier: Apache-2.0
 * Cuts bytes where their content says so: what two texts have in common is cut alike, wherever in
 * them it stands, so that it can be stored once.
 *
 * A chunk ends behind a `}` that a `,` or `]` follows (where an item of a JSON list ends, be it a
 * message or a tool), or, if none is near, where a rolling hash of the last 64 bytes says so; not
 * before the minimum, and at the latest at the maximum. What is left of an item that was cut inside
 * is a chunk, however short, or the next item would begin in the middle of one. The bounds grow
 * with the place in the text, so that the number of chunks does not grow with its size for long; a
 * text that only grows keeps its chunks. */
#ifndef BASE_CHUNK_H
#define BASE_CHUNK_H

#include "base/arena.h"

enum {
    CHUNK_MIN = 512, /* at the beginning */
    CHUNK_MAX = 256 * 1024,
    CHUNK_HASH = 16,
};

struct content_chunk {
    struct str bytes;
    struct str packed;        /* by base/pack.h; absent: not, or not worth it */
    uint8_t hash[CHUNK_HASH]; /* the first bytes of their SHA-256 */
    int64_t key;              /* the store's, in the group that writes it */
};

struct chunks {
    struct str whole;         /* borrowed */
    struct content_chunk *at; /* arena; one behind the other they are the whole */
    size_t n;
};

/* The bounds of a chunk that begins at this place. */
size_t chunk_min_at(size_t from);
size_t chunk_max_at(size_t from);
/* Where the chunk ends that begins at `from` < whole.n. */
size_t chunk_end(struct str whole, size_t from);
size_t chunks_max(size_t n); /* no text of n bytes has more */
/* Cut and hashed; in the arena. NULL: out of memory. */
struct chunks *chunks_cut(struct str whole, struct arena *a);

#endif
