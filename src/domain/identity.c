/* SPDX-License-Identifier: Apache-2.0
 * Hashes, and the identity of a step: what a call is, and which of its repetitions. */
#include "domain/identity.h"

#include "base/digest.h"
#include "base/hex.h"

bool hash_eq(const struct hash *a, const struct hash *b)
{
    return memcmp(a->b, b->b, sizeof a->b) == 0;
}

bool hash_parse(struct str hex, struct hash *out)
{
    struct hash h;

    if (hex.n != HASH_HEX_LEN || !hex_decode(hex.p, HASH_LEN, h.b))
        return false;
    *out = h;
    return true;
}

void hash_hex(const struct hash *h, char out[HASH_HEX_LEN])
{
    hex_encode(h->b, sizeof h->b, out);
}

void hash_sha256(struct str bytes, struct hash *out)
{
    digest_sha256(&bytes, 1, out->b);
}

bool args_hash(struct str args, struct hash *out, struct err *e)
{
    struct buf canonical = {0};
    bool ok = canonical_json(args, &canonical, e);

    if (ok)
        hash_sha256(buf_str(&canonical), out);
    buf_free(&canonical);
    return ok;
}

/* Decimal, written so that it ends at `end`. */
static struct str decimal(uint64_t v, char *end)
{
    char *p = end;

    do {
        *--p = (char)('0' + v % 10);
        v /= 10;
    } while (v != 0);
    return (struct str){p, (size_t)(end - p)};
}

enum { DECIMAL_MAX = 20, CALL_PARTS = 8 };

/* lp(kind) lp(target) lp(args_hash) in parts, and the memory that some of them need. */
struct call_text {
    struct str parts[CALL_PARTS];
    char kind_bytes[DECIMAL_MAX], target_bytes[DECIMAL_MAX], hash_hex[HASH_HEX_LEN];
};

static void call_text_make(const struct call *call, struct call_text *t)
{
    hash_hex(&call->args_hash, t->hash_hex);
    t->parts[0] = decimal(call->kind.n, t->kind_bytes + DECIMAL_MAX);
    t->parts[1] = STR(":");
    t->parts[2] = call->kind;
    t->parts[3] = decimal(call->target.n, t->target_bytes + DECIMAL_MAX);
    t->parts[4] = STR(":");
    t->parts[5] = call->target;
    t->parts[6] = STR("64:"); /* HASH_HEX_LEN */
    t->parts[7] = str_make(t->hash_hex, HASH_HEX_LEN);
}

void step_id(const struct uuid *execution, const struct call *call, int64_t occurrence,
             struct hash *out)
{
    struct call_text t;
    struct str parts[CALL_PARTS + 5];
    char uuid[UUID_TEXT_LEN], occurrence_text[DECIMAL_MAX], occurrence_bytes[DECIMAL_MAX];

    ASSERT(occurrence >= 0);
    uuid_format(execution, uuid);
    call_text_make(call, &t);
    parts[0] = STR("36:"); /* UUID_TEXT_LEN */
    parts[1] = str_make(uuid, sizeof uuid);
    memcpy(parts + 2, t.parts, sizeof t.parts);
    struct str count = decimal((uint64_t)occurrence, occurrence_text + DECIMAL_MAX);
    parts[CALL_PARTS + 2] = decimal(count.n, occurrence_bytes + DECIMAL_MAX);
    parts[CALL_PARTS + 3] = STR(":");
    parts[CALL_PARTS + 4] = count;
    digest_sha256(parts, COUNT(parts), out->b);
}

void call_key(const struct call *call, struct call_key *out)
{
    struct call_text t;
    struct hash h;

    call_text_make(call, &t);
    digest_sha256(t.parts, COUNT(t.parts), h.b);
    memcpy(out->b, h.b, sizeof out->b);
}
