/* SPDX-License-Identifier: Apache-2.0
 * UUIDs: version 7 with a counter in rand_a (RFC 9562, 6.2, method 1), and the text form. */
#include "base/uuid.h"

#include <pthread.h>

#include "base/hex.h"

enum {
    COUNTER_MAX = 0xfff,
    COUNTER_SEED_MASK = 0x7ff
}; /* the seed leaves the top bit free: room for 2048 in a ms */
#define MS_MAX ((INT64_C(1) << 48) - 1)

enum { RANDOM_LEN = 10, POOL_LEN = 64 * RANDOM_LEN };

/* A thread's stock of random bytes: asking the generator for ten at a time would cost a hundred
 * times as much as all else here. A forked child must not draw from its parent's stock. */
static _Thread_local uint8_t pool[POOL_LEN];
static _Thread_local size_t pool_left;

static void pool_drop(void)
{
    pool_left = 0;
}

static void pool_setup(void)
{
    pthread_atfork(NULL, NULL, pool_drop);
}

static void pool_draw(uint8_t out[RANDOM_LEN])
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;

    if (pool_left == 0) {
        pthread_once(&once, pool_setup);
        rand_bytes(pool, sizeof pool);
        pool_left = sizeof pool;
    }
    pool_left -= RANDOM_LEN;
    memcpy(out, pool + pool_left, RANDOM_LEN);
}

struct uuid uuid_next(struct uuid_gen *g, int64_t wall_us)
{
    uint8_t random[RANDOM_LEN];
    struct uuid u;
    int64_t ms = wall_us < 0 ? 0 : wall_us / 1000;

    if (ms > MS_MAX) /* a clock gone mad, in the year 10889 or later */
        ms = MS_MAX;
    if (g->random == NULL)
        pool_draw(random);
    else {
        uint64_t words[2] = {prng_next(g->random), prng_next(g->random)};
        memcpy(random, words, sizeof random);
    }
    uint32_t seed = ((uint32_t)random[8] << 8 | random[9]) & COUNTER_SEED_MASK;
    if (ms > g->last_ms) {
        g->last_ms = ms;
        g->counter = seed;
    } else if (++g->counter >
               COUNTER_MAX) { /* borrow from the future rather than repeat or go back */
        g->last_ms++;
        g->counter = seed;
    }
    for (size_t i = 0; i < 6; i++)
        u.b[i] = (uint8_t)((uint64_t)g->last_ms >> (40 - 8 * i));
    u.b[6] = (uint8_t)(0x70 | g->counter >> 8);
    u.b[7] = (uint8_t)g->counter;
    memcpy(u.b + 8, random, 8);
    u.b[8] = (uint8_t)(0x80 | (u.b[8] & 0x3f));
    return u;
}

/* Bytes of the groups 8-4-4-4-12; a hyphen follows each but the last. */
static const uint8_t GROUPS[] = {4, 2, 2, 2, 6};

bool uuid_parse(struct str s, struct uuid *out)
{
    struct uuid u;
    size_t at = 0, byte = 0;

    if (s.n != UUID_TEXT_LEN)
        return false;
    for (size_t g = 0; g < COUNT(GROUPS); g++) {
        if (g > 0 && s.p[at++] != '-')
            return false;
        if (!hex_decode(s.p + at, GROUPS[g], u.b + byte))
            return false;
        at += (size_t)2 * GROUPS[g];
        byte += GROUPS[g];
    }
    *out = u;
    return true;
}

void uuid_format(const struct uuid *u, char out[UUID_TEXT_LEN])
{
    size_t at = 0, byte = 0;

    for (size_t g = 0; g < COUNT(GROUPS); g++) {
        if (g > 0)
            out[at++] = '-';
        hex_encode(u->b + byte, GROUPS[g], out + at);
        at += (size_t)2 * GROUPS[g];
        byte += GROUPS[g];
    }
}

bool uuid_eq(const struct uuid *a, const struct uuid *b)
{
    return memcmp(a->b, b->b, sizeof a->b) == 0;
}

bool uuid_is_nil(const struct uuid *u)
{
    static const struct uuid nil;

    return uuid_eq(u, &nil);
}
