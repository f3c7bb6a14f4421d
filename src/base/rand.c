/* SPDX-License-Identifier: Apache-2.0
 * Randomness: the system's, and a small reproducible one (Blackman and Vigna's xoshiro256**). */
#include "base/rand.h"

#include <openssl/rand.h>

#include <limits.h>

#include "base/err.h"

void rand_bytes(void *out, size_t n)
{
    ASSERT(n <= INT_MAX);
    ASSERT(n == 0 || RAND_bytes(out, (int)n) == 1);
}

static uint64_t splitmix64(uint64_t *state)
{
    uint64_t z = *state += UINT64_C(0x9e3779b97f4a7c15);

    z = (z ^ z >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ z >> 27) * UINT64_C(0x94d049bb133111eb);
    return z ^ z >> 31;
}

void prng_seed(struct prng *r, uint64_t seed)
{
    for (size_t i = 0; i < 4;
         i++) /* splitmix64 never gives four zeros, xoshiro's one forbidden state */
        r->s[i] = splitmix64(&seed);
}

static uint64_t rotl(uint64_t x, unsigned k)
{
    return x << k | x >> (64 - k);
}

uint64_t prng_next(struct prng *r)
{
    uint64_t *s = r->s, result = rotl(s[1] * 5, 7) * 9, t = s[1] << 17;

    s[2] ^= s[0];
    s[3] ^= s[1];
    s[1] ^= s[2];
    s[0] ^= s[3];
    s[2] ^= t;
    s[3] = rotl(s[3], 45);
    return result;
}

uint64_t prng_below(struct prng *r, uint64_t bound)
{
    ASSERT(bound > 0);
    uint64_t reject =
        (0 - bound) % bound; /* 2^64 mod bound: the values that would favour small results */
    uint64_t x;

    do
        x = prng_next(r);
    while (x < reject);
    return x % bound;
}
