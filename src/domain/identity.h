/* SPDX-License-Identifier: Apache-2.0
 * Step identity: canonical JSON, argument hash, step id. Pure. The rules are in docs/protocol.md;
 * vectors in tests/vectors/identity.json. */
#ifndef DOMAIN_IDENTITY_H
#define DOMAIN_IDENTITY_H

#include "base/json.h"
#include "base/uuid.h"

enum { HASH_LEN = 32, HASH_HEX_LEN = 64 };

struct hash {
    uint8_t b[HASH_LEN];
};

bool hash_eq(const struct hash *a, const struct hash *b);
MUST_USE bool hash_parse(struct str hex,
                         struct hash *out); /* exactly 64 lower- or upper-case hex digits */
void hash_hex(const struct hash *h, char out[HASH_HEX_LEN]); /* no NUL */
void hash_sha256(struct str bytes, struct hash *out);

/* Appends the canonical form of one JSON text. Absent (p NULL) is `null`. ERR_VALIDATION: not JSON,
 * a duplicate key (compared as decoded, at any depth, the message names the key), too deep.
 * ERR_PAYLOAD_TOO_LARGE: a text of 4 GiB, or a result over out->max. ERR_INTERNAL: no memory. `out`
 * is unspecified after an error. Time O(n log n), memory O(n). */
MUST_USE bool canonical_json(struct str text, struct buf *out, struct err *e);
/* sha256 of the canonical form. */
MUST_USE bool args_hash(struct str args, struct hash *out, struct err *e);

/* What a submission is, before its occurrence is known. */
struct call {
    struct str kind, target; /* the wire's words */
    struct hash args_hash;
};
void step_id(const struct uuid *execution, const struct call *call, int64_t occurrence,
             struct hash *out);
/* The first 16 bytes of sha256 over lp(kind) lp(target) lp(args_hash hex): the key under which
 * occurrences are counted. */
struct call_key {
    uint8_t b[16];
};
void call_key(const struct call *call, struct call_key *out);

#endif
