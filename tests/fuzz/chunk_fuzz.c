/* SPDX-License-Identifier: Apache-2.0
 * Any bytes as a payload that is cut and packed: it comes back, in pieces within their bounds. And
 * as a reference to chunks, and as a packed piece: read or refused. */
#include <stdlib.h>

#include "base/pack.h"
#include "store/chunks.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

/* Also behind a prefix that brings its places to where the bounds are others. */
static void check_cut(struct str whole)
{
    struct arena a = {0};
    const struct chunks *chunks = chunks_cut(whole, &a);
    size_t at = 0;

    ASSERT(chunks != NULL && chunks->n <= chunks_max(whole.n));
    for (size_t i = 0; i < chunks->n; i++) {
        struct str bytes = chunks->at[i].bytes;
        struct str packed = pack(bytes, &a);
        char *to = malloc(bytes.n);

        ASSERT(to != NULL && bytes.p == whole.p + at && bytes.n > 0);
        ASSERT(bytes.n <= chunk_max_at(at));
        if (str_present(packed)) {
            ASSERT(packed.n < bytes.n && unpack(packed, to, bytes.n));
            ASSERT(memcmp(to, bytes.p, bytes.n) == 0);
        }
        free(to);
        at += bytes.n;
    }
    ASSERT(at == whole.n);
    arena_free(&a);
}

static void check_reference(struct str stored)
{
    struct chunk_refs refs;
    struct chunk_ref ref;
    size_t size, sum = 0;

    if (!chunks_reference_open(&refs, stored, &size))
        return;
    while (chunks_reference_next(&refs, &ref))
        sum += ref.size;
    ASSERT(sum == size && refs.rest.n == 0);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    struct str input = str_make(data, n);
    struct buf large = {0};
    char to[1024];

    for (size_t i = 0; i < 40000; i++)
        buf_add_byte(&large, (char)('a' + i % 23));
    buf_add(&large, input);
    check_cut(input);
    check_cut(buf_str(&large));
    check_reference(input);
    (void)unpack(input, to, n < sizeof(to) ? n : sizeof(to));
    buf_free(&large);
    return 0;
}
