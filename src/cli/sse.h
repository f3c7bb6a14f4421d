/* SPDX-License-Identifier: Apache-2.0
 * Reads server-sent events out of bytes as they come. Knows no HTTP. */
#ifndef CLI_SSE_H
#define CLI_SSE_H

#include "base/buf.h"

struct sse {
    /* Called for each event with data; false: take no more. `id` is the last one the stream has
     * named, "" before. */
    bool (*on_event)(void *ctx, struct str id, struct str data);
    void *ctx;
    struct buf line, data, id;
    bool has_data;
    bool skip_feed; /* the last byte was a carriage return: a line feed belongs to it */
};

/* False: on_event wants no more. */
bool sse_feed(struct sse *s, struct str bytes);
/* A new connection: what was begun is dropped, the id stays. */
void sse_restart(struct sse *s);
void sse_free(struct sse *s);

#endif
