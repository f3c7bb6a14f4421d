/* SPDX-License-Identifier: Apache-2.0
 * UUIDs, 16 bytes in memory order, so that memcmp sorts version 7 by time of birth. */
#ifndef BASE_UUID_H
#define BASE_UUID_H

#include "base/rand.h"
#include "base/str.h"

enum { UUID_TEXT_LEN = 36 };

struct uuid {
    uint8_t b[16];
};

/* Version 7 by RFC 9562. Ids made from one generator are strictly increasing, also within one
 * millisecond and when the clock steps back. One owner (thread) a generator. `random` NULL: the
 * system's generator; else the given prng. */
struct uuid_gen {
    int64_t last_ms;
    uint32_t counter;
    struct prng *random;
};
struct uuid uuid_next(struct uuid_gen *g, int64_t wall_us);

/* Exactly the 36-character form, either case. */
MUST_USE bool uuid_parse(struct str s, struct uuid *out);
void uuid_format(const struct uuid *u, char out[UUID_TEXT_LEN]); /* lower case, no NUL */
bool uuid_eq(const struct uuid *a, const struct uuid *b);
bool uuid_is_nil(const struct uuid *u);

#endif
