/* SPDX-License-Identifier: Apache-2.0
 * The agents' side of a dispatch: a listener that acknowledges each delivery and hands on what it
 * says. */
#ifndef BENCH_WEBHOOK_H
#define BENCH_WEBHOOK_H

#include "lib/loop.h"

struct delivery {
    struct str execution_id, dispatch_id; /* borrowed during the callback */
    int64_t attempt;
    int64_t first_byte_ns;
};

struct webhooks {
    struct source source;
    struct loop *loop;
    uint16_t port;
    void (*delivered)(struct webhooks *w, const struct delivery *d);
    void *owner;
};

void webhooks_listen(struct webhooks *w, struct loop *l);

#endif
