/* SPDX-License-Identifier: Apache-2.0
 * Hostile bytes through the request parser, the chunk decoder and the escapes. The first two bytes
 * choose where the rest is split: the verdict must be that of the unsplit bytes, and nothing may be
 * read beyond what was given. */
#include "http/http.h"
#include "http/parse.h"

#include "base/err.h"

#include <stdlib.h>

enum { MAX_HEAD = 2048, MAX_BODY = 4096 };

struct outcome {
    enum parse verdict;
    struct head head;
    struct head_field fields[HEAD_FIELDS_MAX];
    enum chunk body_verdict;
    size_t body_used, body_bytes;
    uint64_t body_hash;
};

static size_t next_cut(uint32_t *seed, size_t at, size_t n)
{
    *seed = *seed * 1664525u + 1013904223u;
    size_t step = 1 + ((*seed >> 16) & ((*seed >> 8) % 3 == 0 ? 255u : 7u));
    return step < n - at ? at + step : n;
}

static void check_inside(const struct span *s, size_t n)
{
    ASSERT((size_t)s->at + s->n <= n);
}

/* Exact-size copies, so that the sanitizer sees a byte too far. */
static void feed_head(struct str bytes, uint32_t seed, bool whole, struct outcome *out)
{
    out->head.fields = out->fields;
    for (size_t to = whole ? bytes.n : next_cut(&seed, 0, bytes.n);;
         to = next_cut(&seed, to, bytes.n)) {
        char *copy = malloc(to + 1);
        memcpy(copy, bytes.p, to);
        out->verdict = head_parse(&out->head, str_make(copy, to), MAX_HEAD);
        free(copy);
        ASSERT(out->head.at <= to && out->head.at <= MAX_HEAD);
        if (out->verdict != PARSE_MORE || to == bytes.n)
            return;
        ASSERT(out->head.at == to);
    }
}

static void feed_body(struct str bytes, uint32_t seed, bool whole, struct outcome *out)
{
    struct chunked c = {.room = MAX_BODY};
    size_t from = 0;

    out->body_hash = 1;
    out->body_verdict = CHUNK_MORE;
    while (from < bytes.n && out->body_verdict == CHUNK_MORE) {
        size_t to = whole ? bytes.n : next_cut(&seed, from, bytes.n);
        char *copy = malloc(to - from);
        memcpy(copy, bytes.p + from, to - from);
        struct str piece = str_make(copy, to - from), data = STR_NONE;
        do {
            size_t used = SIZE_MAX;
            out->body_verdict = chunked_next(&c, piece, &used, &data);
            ASSERT(used <= piece.n);
            if (out->body_verdict == CHUNK_DATA) {
                ASSERT(data.n > 0 && data.p >= piece.p && data.p + data.n == piece.p + used);
                for (size_t i = 0; i < data.n; i++)
                    out->body_hash = out->body_hash * 31 + (unsigned char)data.p[i];
                out->body_bytes += data.n;
                ASSERT(out->body_bytes <= MAX_BODY);
            }
            out->body_used += used;
            piece = str_slice(piece, used, piece.n);
        } while (out->body_verdict == CHUNK_DATA && piece.n > 0);
        if (out->body_verdict == CHUNK_DATA)
            out->body_verdict = CHUNK_MORE;
        free(copy);
        from = to;
    }
}

static void check_head(const struct outcome *o, struct str bytes)
{
    const struct head *h = &o->head;

    ASSERT((o->verdict == PARSE_REFUSED) == (h->status != 0));
    ASSERT(o->verdict != PARSE_REFUSED || h->message != NULL);
    ASSERT(h->field_count <= HEAD_FIELDS_MAX);
    if (o->verdict != PARSE_DONE)
        return;
    check_inside(&h->method, h->at);
    check_inside(&h->target, h->at);
    for (size_t i = 0; i < h->field_count; i++) {
        check_inside(&h->fields[i].name, h->at);
        check_inside(&h->fields[i].value, h->at);
        ASSERT(h->fields[i].name.n > 0);
    }
    ASSERT(memcmp(bytes.p + h->at - 4, "\r\n\r\n", 4) == 0);
    ASSERT(bytes.p[h->target.at] == '/');
    ASSERT(!(h->chunked && h->has_length));
    ASSERT(h->query_at == 0 || bytes.p[h->query_at] == '?');
}

static void check_escapes(struct str bytes)
{
    struct arena a = {0};
    struct str out;
    bool bad = false;

    for (int form = 0; form < 2; form++)
        if (http_unescape(bytes, form != 0, &a, &out))
            ASSERT(out.n <= bytes.n);
    (void)http_query_get(bytes, "a", &a, &bad);
    arena_free(&a);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size < 2)
        return 0;
    uint32_t seed = (uint32_t)data[0] << 8 | data[1];
    struct str bytes = str_make(data + 2, size - 2);
    struct outcome *whole = calloc(1, sizeof(*whole)), *split = calloc(1, sizeof(*split));

    feed_head(bytes, seed, true, whole);
    feed_head(bytes, seed, false, split);
    check_head(whole, bytes);
    split->head.fields = whole->head.fields; /* only what they point at is compared */
    struct str rest =
        whole->verdict == PARSE_DONE ? str_slice(bytes, whole->head.at, bytes.n) : bytes;
    feed_body(rest, seed, true, whole);
    feed_body(rest, seed, false, split);
    ASSERT(memcmp(whole, split, sizeof(*whole)) == 0);
    check_escapes(bytes);
    free(whole);
    free(split);
    return 0;
}
