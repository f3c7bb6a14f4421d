/* SPDX-License-Identifier: Apache-2.0 */
#include "base/seen.h"

#include <stdatomic.h>
#include <stdlib.h>

#include "base/arena.h"
#include "base/map.h"

enum { SLOTS = 32 * 1024 }; /* 256 KiB, of which untouched pages take no memory */

struct seen {
    _Atomic uint64_t slots[SLOTS];
};

struct seen *seen_new(void)
{
    return xzalloc(sizeof(struct seen));
}

void seen_free(struct seen *s)
{
    free(s);
}

void seen_add(struct seen *s, struct str key)
{
    uint64_t hash = hash_bytes(key);

    atomic_store_explicit(&s->slots[hash % SLOTS], hash, memory_order_relaxed);
}

bool seen_has(const struct seen *s, struct str key)
{
    uint64_t hash = hash_bytes(key);

    return atomic_load_explicit(&s->slots[hash % SLOTS], memory_order_relaxed) == hash;
}
