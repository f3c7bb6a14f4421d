/* SPDX-License-Identifier: Apache-2.0
 * The bump allocator. Blocks form a list with the one that is being filled at its head; requests
 * too big to share a block get one of their own behind the head, so that the head's free space is
 * not lost. */
#include "base/arena.h"

#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/err.h"

#if defined(__SANITIZE_ADDRESS__)
#define ARENA_ASAN 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define ARENA_ASAN 1
#endif
#endif
#ifdef ARENA_ASAN
#include <sanitizer/asan_interface.h>
#define POISON(p, n) ASAN_POISON_MEMORY_REGION(p, n)
#define UNPOISON(p, n) ASAN_UNPOISON_MEMORY_REGION(p, n)
#else
#define POISON(p, n) ((void)(p), (void)(n))
#define UNPOISON(p, n) ((void)(p), (void)(n))
#endif

enum {
    ARENA_ALIGN = _Alignof(max_align_t),
    BLOCK_FIRST = 4096 - 32, /* with malloc's own header a page */
    BLOCK_MAX = 64 * 1024, /* growth of shared blocks stops here; also what arena_reset may keep */
    SMALL_MAX = 64 * 1024, /* requests below never fail */
};

struct arena_block {
    struct arena_block *next;
    size_t size; /* of the whole block */
    _Alignas(max_align_t) char bytes[];
};

static void block_free(struct arena_block *b)
{
    UNPOISON(b, b->size);
    free(b);
}

void arena_free(struct arena *a)
{
    struct arena_block *next;

    for (struct arena_block *b = a->head; b != NULL; b = next) {
        next = b->next;
        block_free(b);
    }
    *a = (struct arena){0};
}

static void head_open(struct arena *a)
{
    a->next = a->head->bytes;
    a->end = (char *)a->head + a->head->size;
    POISON(a->next, (size_t)(a->end - a->next));
}

void arena_reset(struct arena *a)
{
    struct arena_block *keep = a->head;

    if (keep == NULL)
        return;
    if (keep->size > BLOCK_MAX) {
        arena_free(a);
        return;
    }
    struct arena rest = {.head = keep->next};
    arena_free(&rest);
    keep->next = NULL;
    a->total = keep->size;
    head_open(a);
}

static struct arena_block *block_new(struct arena *a, size_t size, bool must)
{
    struct arena_block *b = malloc(size);

    if (b == NULL) {
        ASSERT(!must);
        return NULL;
    }
    b->size = size;
    a->total += size;
    return b;
}

static void *alloc_own_block(struct arena *a, size_t n)
{
    if (n > SIZE_MAX - sizeof(struct arena_block))
        return NULL;
    struct arena_block *b = block_new(a, sizeof(struct arena_block) + n, n < SMALL_MAX);
    if (b == NULL)
        return NULL;
    if (a->head == NULL) {
        b->next = NULL;
        a->head = b;
        a->next = a->end = b->bytes + n; /* full */
    } else {
        b->next = a->head->next;
        a->head->next = b;
    }
    return b->bytes;
}

/* From the head block, which has room for it. */
static void *take(struct arena *a, size_t n)
{
    size_t room = (size_t)(a->end - a->next);
    size_t step = (n + ARENA_ALIGN - 1) / ARENA_ALIGN * ARENA_ALIGN;
    char *p = a->next;

    a->next = step < room ? p + step : a->end;
    UNPOISON(p, n);
    return p;
}

static void *alloc_new_head(struct arena *a, size_t n)
{
    size_t size = BLOCK_FIRST;

    if (a->head != NULL && a->head->size >= BLOCK_FIRST)
        size = a->head->size < BLOCK_MAX / 2 ? a->head->size * 2 : BLOCK_MAX;
    if (n > size / 2)
        return alloc_own_block(a, n);
    struct arena_block *b = block_new(a, size, true);
    b->next = a->head;
    a->head = b;
    head_open(a);
    return take(a, n);
}

void *arena_alloc(struct arena *a, size_t n)
{
    if (n > (size_t)(a->end - a->next) || a->next == NULL) /* NULL: nothing asked of an empty one */
        return alloc_new_head(a, n);
    return take(a, n);
}

void *arena_zalloc(struct arena *a, size_t n)
{
    void *p = arena_alloc(a, n);

    if (p != NULL)
        memset(p, 0, n);
    return p;
}

struct str arena_str(struct arena *a, struct str s)
{
    if (s.p == NULL)
        return STR_NONE;
    char *p = s.n == SIZE_MAX ? NULL : arena_alloc(a, s.n + 1);
    if (p == NULL)
        return STR_NONE;
    if (s.n != 0)
        memcpy(p, s.p, s.n);
    p[s.n] = '\0';
    return (struct str){p, s.n};
}

struct str arena_printf(struct arena *a, const char *fmt, ...)
{
    struct str s = STR_NONE;
    va_list args, again;

    va_start(args, fmt);
    va_copy(again, args);
    int n = vsnprintf(NULL, 0, fmt, args);
    char *p = n < 0 ? NULL : arena_alloc(a, (size_t)n + 1);
    if (p != NULL) {
        vsnprintf(p, (size_t)n + 1, fmt, again);
        s = (struct str){p, (size_t)n};
    }
    va_end(again);
    va_end(args);
    return s;
}

void *xmalloc(size_t n)
{
    void *p = malloc(n == 0 ? 1 : n);

    ASSERT(p != NULL);
    return p;
}

void *xzalloc(size_t n)
{
    void *p = calloc(1, n == 0 ? 1 : n);

    ASSERT(p != NULL);
    return p;
}

void *xrealloc(void *p, size_t n)
{
    void *q = realloc(p, n == 0 ? 1 : n);

    ASSERT(q != NULL);
    return q;
}

char *xstrdup(struct str s)
{
    char *p = xmalloc(s.n + 1);

    if (s.n != 0)
        memcpy(p, s.p, s.n);
    p[s.n] = '\0';
    return p;
}
