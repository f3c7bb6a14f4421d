/* SPDX-License-Identifier: Apache-2.0 */
#include "base/chunk.h"

#include <pthread.h>

#include "base/digest.h"
#include "base/err.h"

enum {
    ZONE = 16 * 1024, /* the minimum doubles here, and wherever the place has doubled */
    MIN_LAST = 32 * 1024,
    NEAR = 8,    /* minima: an item that ends so soon is not cut inside */
    WINDOW = 64, /* bytes that the hash remembers: one a bit */
};

/* Numbers that look random, one a byte: splitmix64 from 0. What is stored depends on them. */
static uint64_t gear[256];
static pthread_once_t gear_once = PTHREAD_ONCE_INIT;

static void make_gear(void)
{
    for (unsigned byte = 0; byte < 256; byte++) {
        uint64_t x = (byte + 1) * UINT64_C(0x9e3779b97f4a7c15);

        x = (x ^ x >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
        x = (x ^ x >> 27) * UINT64_C(0x94d049bb133111eb);
        gear[byte] = x ^ x >> 31;
    }
}

size_t chunk_min_at(size_t from)
{
    size_t min = CHUNK_MIN;

    for (size_t zone = ZONE; from >= zone && min < MIN_LAST; zone *= 2)
        min *= 2;
    return min;
}

size_t chunk_max_at(size_t from)
{
    size_t max = 16 * chunk_min_at(from);

    return max < CHUNK_MAX ? max : CHUNK_MAX;
}

/* All ones where the hash must be zero: a power of two apart on average. */
static uint64_t mask_at(size_t from)
{
    uint64_t average = 4 * chunk_min_at(from);

    return ~(UINT64_MAX / average); /* its upper bits: they have seen the whole window */
}

static bool item_ends_before(struct str s, size_t i)
{
    while (i < s.n && (s.p[i] == ' ' || s.p[i] == '\n' || s.p[i] == '\t' || s.p[i] == '\r'))
        i++;
    return i < s.n && (s.p[i] == ',' || s.p[i] == ']');
}

static bool item_ends_at(struct str s, size_t end)
{
    return s.p[end - 1] == '}' && item_ends_before(s, end);
}

/* The first end of an item in [least, most]; 0: none. */
static size_t find_item_end(struct str s, size_t least, size_t most)
{
    for (size_t at = least - 1; at < most && at < s.n; at++) {
        size_t left = (most < s.n ? most : s.n) - at;
        const char *brace = memchr(s.p + at, '}', left);

        if (brace == NULL)
            return 0;
        at = (size_t)(brace - s.p);
        if (item_ends_before(s, at + 1))
            return at + 1;
    }
    return 0;
}

size_t chunk_end(struct str s, size_t from)
{
    size_t least = chunk_min_at(from), min = from + least, max = from + chunk_max_at(from);
    bool inside = from > 0 && !item_ends_at(s, from);
    size_t item_end = find_item_end(s, inside ? from + 1 : min, from + NEAR * least);
    uint64_t mask = mask_at(from), hash = 0;

    if (item_end != 0)
        return item_end;
    if (s.n <= min)
        return s.n;
    if (max > s.n)
        max = s.n;
    pthread_once(&gear_once, make_gear);
    for (size_t end = min - WINDOW + 1; end <= max; end++) {
        hash = (hash << 1) + gear[(uint8_t)s.p[end - 1]];
        if (end >= min && ((hash & mask) == 0 || item_ends_at(s, end)))
            return end;
    }
    return max;
}

size_t chunks_max(size_t n)
{
    size_t small = n / CHUNK_MIN, large = n / MIN_LAST;

    for (size_t zone = 0, min = CHUNK_MIN; min < MIN_LAST; min *= 2) {
        size_t end = zone == 0 ? ZONE : 2 * zone;

        large += (end - zone) / min + 1;
        zone = end;
    }
    return 2 * ((small < large ? small : large) + 1); /* each and what it left of an item */
}

struct chunks *chunks_cut(struct str whole, struct arena *a)
{
    struct chunks *chunks = arena_new(a, struct chunks);
    size_t max = chunks_max(whole.n);

    chunks->whole = whole;
    chunks->at = arena_array(a, struct content_chunk, max);
    if (chunks->at == NULL)
        return NULL;
    for (size_t from = 0, end; from < whole.n; from = end) {
        struct content_chunk *chunk = &chunks->at[chunks->n++];
        uint8_t digest[DIGEST_LEN];

        ASSERT(chunks->n <= max);
        end = chunk_end(whole, from);
        chunk->bytes = str_slice(whole, from, end);
        digest_sha256(&chunk->bytes, 1, digest);
        memcpy(chunk->hash, digest, CHUNK_HASH);
    }
    return chunks;
}
