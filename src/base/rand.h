/* SPDX-License-Identifier: Apache-2.0 */
#ifndef BASE_RAND_H
#define BASE_RAND_H

#include <stddef.h>
#include <stdint.h>

/* Cryptographic bytes from the system's generator (libcrypto). Any thread. Aborts if there is none.
 */
void rand_bytes(void *out, size_t n);

/* A small deterministic generator (xoshiro256**) for jitter and for simulations: the same seed
 * gives the same run. */
struct prng {
    uint64_t s[4];
};
void prng_seed(struct prng *r, uint64_t seed);
uint64_t prng_next(struct prng *r);
uint64_t prng_below(struct prng *r, uint64_t bound); /* 0 … bound-1, unbiased; bound > 0 */

#endif
