/* SPDX-License-Identifier: Apache-2.0
 * A growable byte buffer with sticky failure. */
#include "base/buf.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/hex.h"

enum { BUF_FIRST = 128 };

void buf_free(struct buf *b)
{
    free(b->p);
    b->p = NULL;
    b->n = b->cap = 0;
    b->failed = false;
}

void buf_clear(struct buf *b)
{
    b->n = 0;
    b->failed = false;
}

static bool buf_fail(struct buf *b)
{
    b->failed = true;
    return false;
}

bool buf_reserve(struct buf *b, size_t more)
{
    size_t need;

    if (b->failed)
        return false;
    if (__builtin_add_overflow(b->n, more, &need) || (b->max != 0 && need > b->max))
        return buf_fail(b);
    if (need <= b->cap)
        return true;
    size_t cap = b->cap < BUF_FIRST ? BUF_FIRST : b->cap;
    while (cap < need && cap <= SIZE_MAX / 2)
        cap *= 2;
    if (cap < need)
        cap = need;
    if (b->max != 0 && cap > b->max)
        cap = b->max;
    char *p = realloc(b->p, cap);
    if (p == NULL)
        return buf_fail(b);
    b->p = p;
    b->cap = cap;
    return true;
}

void buf_add(struct buf *b, struct str s)
{
    if (s.n == 0 || !buf_reserve(b, s.n))
        return;
    memcpy(b->p + b->n, s.p, s.n);
    b->n += s.n;
}

void buf_add_byte(struct buf *b, char c)
{
    if (b->n == b->cap || b->failed)
        if (!buf_reserve(b, 1))
            return;
    b->p[b->n++] = c;
}

void buf_add_z(struct buf *b, const char *z)
{
    buf_add(b, str_of(z));
}

void buf_add_int(struct buf *b, int64_t v)
{
    char digits[20];
    size_t at = sizeof digits;
    uint64_t u = v < 0 ? 0 - (uint64_t)v : (uint64_t)v;

    do {
        digits[--at] = (char)('0' + u % 10);
        u /= 10;
    } while (u != 0);
    if (v < 0)
        digits[--at] = '-';
    buf_add(b, (struct str){digits + at, sizeof digits - at});
}

void buf_add_hex(struct buf *b, const void *bytes, size_t n)
{
    if (n > SIZE_MAX / 2) {
        b->failed = true;
        return;
    }
    if (n == 0 || !buf_reserve(b, 2 * n))
        return;
    hex_encode(bytes, n, b->p + b->n);
    b->n += 2 * n;
}

void buf_printf(struct buf *b, const char *fmt, ...)
{
    va_list args, again;

    if (b->failed)
        return;
    va_start(args, fmt);
    va_copy(again, args);
    size_t room = b->cap - b->n;
    int n = vsnprintf(room == 0 ? NULL : b->p + b->n, room, fmt, args);
    if (n < 0)
        b->failed = true;
    else if ((size_t)n < room)
        b->n += (size_t)n;
    else { /* vsnprintf wants a byte for its NUL, which is not part of the text and may not fit
              under max */
        char *text = malloc((size_t)n + 1);
        if (text == NULL)
            b->failed = true;
        else {
            vsnprintf(text, (size_t)n + 1, fmt, again);
            buf_add(b, (struct str){text, (size_t)n});
            free(text);
        }
    }
    va_end(again);
    va_end(args);
}

void buf_consume(struct buf *b, size_t n)
{
    if (n >= b->n) {
        b->n = 0;
        return;
    }
    if (n == 0)
        return;
    memmove(b->p, b->p + n, b->n - n);
    b->n -= n;
}
