/* SPDX-License-Identifier: Apache-2.0
 * Small bodies on the heap, large ones as pages. */
#include "http/body.h"

#include <stdlib.h>
#include <sys/mman.h>

static bool is_large(size_t bytes)
{
    return bytes > BODY_SMALL_BYTES;
}

static char *pages_new(size_t bytes)
{
    void *p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

    return p == MAP_FAILED ? NULL : p;
}

static void release(char *p, size_t cap)
{
    if (is_large(cap))
        munmap(p, cap);
    else
        free(p);
}

bool body_resize(struct body *b, size_t cap)
{
    char *p;

    if (is_large(b->cap) && is_large(cap)) {
        void *moved = mremap(b->p, b->cap, cap, MREMAP_MAYMOVE);
        if (moved == MAP_FAILED)
            return false;
        p = moved;
    } else if (!is_large(b->cap) && !is_large(cap)) {
        p = realloc(b->p, cap == 0 ? 1 : cap);
        if (p == NULL)
            return false;
    } else {
        p = is_large(cap) ? pages_new(cap) : malloc(cap == 0 ? 1 : cap);
        if (p == NULL)
            return false;
        if (b->n > 0)
            memcpy(p, b->p, b->n);
        release(b->p, b->cap);
    }
    b->p = p;
    b->cap = cap;
    return true;
}

void body_free(struct body *b)
{
    release(b->p, b->cap);
    *b = (struct body){0};
}
