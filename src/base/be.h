/* SPDX-License-Identifier: Apache-2.0
 * Numbers as big-endian bytes. */
#ifndef BASE_BE_H
#define BASE_BE_H

#include <stdint.h>

static inline void put_be32(void *out, uint32_t v)
{
    uint8_t *p = out;

    for (int i = 3; i >= 0; i--, v >>= 8)
        p[i] = (uint8_t)v;
}

static inline void put_be64(void *out, uint64_t v)
{
    put_be32(out, (uint32_t)(v >> 32));
    put_be32((uint8_t *)out + 4, (uint32_t)v);
}

static inline uint32_t get_be32(const void *in)
{
    const uint8_t *p = in;

    return (uint32_t)p[0] << 24 | (uint32_t)p[1] << 16 | (uint32_t)p[2] << 8 | p[3];
}

static inline uint64_t get_be64(const void *in)
{
    return (uint64_t)get_be32(in) << 32 | get_be32((const uint8_t *)in + 4);
}

#endif
