/* SPDX-License-Identifier: Apache-2.0
 * A growable byte buffer with sticky failure: append freely, check `failed` once at the end. */
#ifndef BASE_BUF_H
#define BASE_BUF_H

#include "base/str.h"

struct buf {
    char *p;
    size_t n, cap;
    bool failed; /* out of memory, or over `max`: what follows is dropped */
    size_t max;  /* 0: no limit */
};

/* A zeroed struct is a valid, empty buffer that holds no memory. */
void buf_free(struct buf *b);
void buf_clear(struct buf *b); /* keeps the memory */
bool buf_reserve(struct buf *b, size_t more);
void buf_add(struct buf *b, struct str s);
void buf_add_byte(struct buf *b, char c);
void buf_add_z(struct buf *b, const char *z);
void buf_add_int(struct buf *b, int64_t v);
void buf_add_hex(struct buf *b, const void *bytes, size_t n); /* lower case */
void buf_printf(struct buf *b, const char *fmt, ...) PRINTF_LIKE(2, 3);
void buf_consume(struct buf *b, size_t n); /* drops the first n bytes */

static inline struct str
buf_str(const struct buf *b) /* borrowed until the next append; never absent */
{
    return (struct str){b->p == NULL ? "" : b->p, b->n};
}

#endif
