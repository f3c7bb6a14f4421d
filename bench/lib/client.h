/* SPDX-License-Identifier: Apache-2.0
 * One keep-alive HTTP connection: a request at a time, its answer to a callback. Knows no more of
 * HTTP than the servers measured here send: a status, a Content-Length. */
#ifndef BENCH_CLIENT_H
#define BENCH_CLIENT_H

#include "base/buf.h"
#include "lib/loop.h"

struct answer {
    int status;
    struct str body; /* borrowed during the callback */
    int64_t started_ns, ended_ns;
};

struct client {
    struct source source;
    struct loop *loop;
    struct buf out; /* the request: filled by the owner, then client_send() */
    size_t sent;
    struct buf in; /* the part of an answer that has come, when it did not come whole */
    int64_t started_ns;
    bool waiting;
    bool streaming; /* what comes is counted, not parsed */
    size_t streamed;
    void (*answered)(struct client *c, const struct answer *a); /* may send the next request */
    void *owner;
};

/* Connects, or dies. owned */
struct client *client_open(struct loop *l, uint16_t port);
void client_close(struct client *c);
/* Sends what is in `out`. The answer's latency counts from `started_ns`. */
void client_send(struct client *c, int64_t started_ns);

#endif
