/* SPDX-License-Identifier: Apache-2.0
 * The one definition of well-formed UTF-8 (RFC 3629, table 3-7 of Unicode) for the files of base/
 * and domain/. */
#ifndef BASE_UTF8_H
#define BASE_UTF8_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

static inline bool utf8_is_tail(char c)
{
    return ((unsigned char)c & 0xc0u) == 0x80;
}

/* Length of the well-formed sequence at p (1 to 4), or 0. p < end. */
static inline size_t utf8_len(const char *p, const char *end)
{
    size_t left = (size_t)(end - p);
    unsigned char a = (unsigned char)p[0];

    if (a < 0x80)
        return 1;
    if (a < 0xc2 || a > 0xf4 || left < 2)
        return 0;
    unsigned char b = (unsigned char)p[1];
    if (a < 0xe0)
        return utf8_is_tail(p[1]) ? 2 : 0;
    if (a < 0xf0) { /* the second byte decides: no overlong forms, no surrogates */
        unsigned char low = a == 0xe0 ? 0xa0 : 0x80, high = a == 0xed ? 0x9f : 0xbf;
        return b >= low && b <= high && left >= 3 && utf8_is_tail(p[2]) ? 3 : 0;
    }
    unsigned char low = a == 0xf0 ? 0x90 : 0x80, high = a == 0xf4 ? 0x8f : 0xbf;
    return b >= low && b <= high && left >= 4 && utf8_is_tail(p[2]) && utf8_is_tail(p[3]) ? 4 : 0;
}

/* Writes a scalar value and returns its length. */
static inline size_t utf8_encode(uint32_t c, char out[4])
{
    if (c < 0x80) {
        out[0] = (char)c;
        return 1;
    }
    if (c < 0x800) {
        out[0] = (char)(0xc0 | c >> 6);
        out[1] = (char)(0x80 | (c & 0x3f));
        return 2;
    }
    if (c < 0x10000) {
        out[0] = (char)(0xe0 | c >> 12);
        out[1] = (char)(0x80 | (c >> 6 & 0x3f));
        out[2] = (char)(0x80 | (c & 0x3f));
        return 3;
    }
    out[0] = (char)(0xf0 | c >> 18);
    out[1] = (char)(0x80 | (c >> 12 & 0x3f));
    out[2] = (char)(0x80 | (c >> 6 & 0x3f));
    out[3] = (char)(0x80 | (c & 0x3f));
    return 4;
}

/* The longest prefix of p[0..n) with at most `max` bytes that does not end inside a character. */
static inline size_t utf8_cut(const char *p, size_t n, size_t max)
{
    if (n <= max)
        return n;
    size_t at = max;
    while (at > 0 && max - at < 4 && utf8_is_tail(p[at]))
        at--;
    return utf8_is_tail(p[at]) ? max : at; /* not UTF-8 at all: any place will do */
}

#endif
