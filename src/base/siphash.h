/* SPDX-License-Identifier: Apache-2.0
 * SipHash-c-d (Aumasson and Bernstein, 2012). The rounds are parameters so that the published
 * vectors of 2-4 can check the code that the map uses with 1-3. */
#ifndef BASE_SIPHASH_H
#define BASE_SIPHASH_H

#include "base/str.h"

struct siphash_key {
    uint64_t k0, k1;
};

static inline uint64_t siphash_rotl(uint64_t x, unsigned b)
{
    return x << b | x >> (64 - b);
}

static inline void siphash_rounds(uint64_t v[4], unsigned n)
{
    while (n-- > 0) {
        v[0] += v[1];
        v[1] = siphash_rotl(v[1], 13) ^ v[0];
        v[0] = siphash_rotl(v[0], 32);
        v[2] += v[3];
        v[3] = siphash_rotl(v[3], 16) ^ v[2];
        v[0] += v[3];
        v[3] = siphash_rotl(v[3], 21) ^ v[0];
        v[2] += v[1];
        v[1] = siphash_rotl(v[1], 17) ^ v[2];
        v[2] = siphash_rotl(v[2], 32);
    }
}

static inline uint64_t siphash_word(const char *p, size_t n) /* little-endian, n <= 8 */
{
    uint64_t w = 0;

    for (size_t i = 0; i < n; i++)
        w |= (uint64_t)(unsigned char)p[i] << (8 * i);
    return w;
}

static inline uint64_t siphash(struct str s, struct siphash_key key, unsigned c, unsigned d)
{
    uint64_t v[4] = {key.k0 ^ UINT64_C(0x736f6d6570736575), key.k1 ^ UINT64_C(0x646f72616e646f6d),
                     key.k0 ^ UINT64_C(0x6c7967656e657261), key.k1 ^ UINT64_C(0x7465646279746573)};
    size_t at = 0;

    for (; s.n - at >= 8; at += 8) {
        uint64_t m = siphash_word(s.p + at, 8);
        v[3] ^= m;
        siphash_rounds(v, c);
        v[0] ^= m;
    }
    uint64_t last = (uint64_t)s.n << 56 | (s.n == at ? 0 : siphash_word(s.p + at, s.n - at));
    v[3] ^= last;
    siphash_rounds(v, c);
    v[0] ^= last;
    v[2] ^= 0xff;
    siphash_rounds(v, d);
    return v[0] ^ v[1] ^ v[2] ^ v[3];
}

#endif
