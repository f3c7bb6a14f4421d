/* SPDX-License-Identifier: Apache-2.0
 * A bump allocator freed whole: one for each request, command group, dispatch. Not thread-safe: one
 * owner at a time. */
#ifndef BASE_ARENA_H
#define BASE_ARENA_H

#include "base/str.h"

struct arena_block;

struct arena {
    struct arena_block *head;
    char *next, *end; /* free space of the head block */
    size_t total;     /* bytes held, blocks included */
};

/* A zeroed struct is a valid, empty arena that holds no memory. */
void arena_free(struct arena *a); /* releases everything; the arena is empty and usable again */
void arena_reset(
    struct arena *a); /* like arena_free, but keeps one block of modest size for the next use */

/* Aligned for any type, not zeroed. Small requests (under 64 KiB) never fail: the process aborts
 * when the system gives no memory for them. Larger ones return NULL, which the caller must turn
 * into ERR_INTERNAL. */
void *arena_alloc(struct arena *a, size_t n);
void *arena_zalloc(struct arena *a, size_t n);
#define arena_new(a, type) ((type *)arena_zalloc((a), sizeof(type)))
#define arena_array(a, type, n) ((type *)arena_zalloc((a), sizeof(type) * (n)))
/* A copy in the arena with a NUL behind it (not counted in n). STR_NONE stays STR_NONE. p is NULL
 * when out of memory. */
struct str arena_str(struct arena *a, struct str s);
struct str arena_printf(struct arena *a, const char *fmt, ...) PRINTF_LIKE(2, 3);

/* malloc and friends for small, self-chosen sizes: abort when the system gives nothing. */
void *xmalloc(size_t n);
void *xzalloc(size_t n);
void *xrealloc(void *p, size_t n);
char *xstrdup(struct str s); /* owned, NUL-terminated */

#endif
