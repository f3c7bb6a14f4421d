/* SPDX-License-Identifier: Apache-2.0
 * A hash map from byte keys to pointers (open addressing, keyed hash, so that no client can choose
 * collisions). The map copies keys; values belong to the caller. Not thread-safe. */
#ifndef BASE_MAP_H
#define BASE_MAP_H

#include "base/str.h"

struct map_slot;

struct map {
    struct map_slot *slots;
    size_t count, used, cap; /* used: live and deleted slots */
};

/* A zeroed struct is a valid, empty map that holds no memory. */
void map_free(struct map *m); /* values are not touched */
void map_clear(struct map *m);
void *map_get(const struct map *m, struct str key); /* NULL when absent */
void *map_put(struct map *m, struct str key,
              void *value); /* returns the value it replaces, else NULL; value != NULL */
void *map_remove(struct map *m, struct str key); /* returns what was there */
/* for (size_t i = 0; (v = map_next(m, &i)) != NULL;) — any order; removing the entry just returned
 * is allowed. */
void *map_next(const struct map *m, size_t *i);
void *map_next_key(const struct map *m, size_t *i, struct str *key);
uint64_t
hash_bytes(struct str s); /* the map's keyed hash (SipHash-1-3 with a per-process random key) */

#endif
