/* SPDX-License-Identifier: Apache-2.0
 * Hexadecimal, for ids, hashes and \u escapes. */
#ifndef BASE_HEX_H
#define BASE_HEX_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* The digit's value, or -1. Either case. */
static inline int hex_digit(char c)
{
    if (c >= '0' && c <= '9')
        return c - '0';
    char lower = (char)(c | 0x20);
    return lower >= 'a' && lower <= 'f' ? lower - 'a' + 10 : -1;
}

/* Lower case, 2 * n characters, no NUL. */
static inline void hex_encode(const void *bytes, size_t n, char *out)
{
    const uint8_t *b = bytes;

    for (size_t i = 0; i < n; i++) {
        out[2 * i] = "0123456789abcdef"[b[i] >> 4];
        out[2 * i + 1] = "0123456789abcdef"[b[i] & 15];
    }
}

/* Reads 2 * n digits; false (out unspecified) when one of them is none. */
static inline bool hex_decode(const char *text, size_t n, uint8_t *out)
{
    int bad = 0;

    for (size_t i = 0; i < n; i++) {
        int high = hex_digit(text[2 * i]), low = hex_digit(text[2 * i + 1]);
        bad |= high | low;
        out[i] = (uint8_t)((unsigned)high << 4 | (unsigned)low);
    }
    return bad >= 0;
}

#endif
