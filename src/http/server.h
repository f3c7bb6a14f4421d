/* SPDX-License-Identifier: Apache-2.0
 * What the loops of one server share. Written before they start, but for the flags. Private to
 * http/. */
#ifndef HTTP_SERVER_H
#define HTTP_SERVER_H

#include "http/http.h"

#include <pthread.h>
#include <stdatomic.h>

struct budget;
struct loop;

struct http_server {
    struct http_options opt; /* without zeros: the defaults are filled in */
    int64_t drain_grace_us;  /* how long an idle connection stays open once the server drains */
    struct budget *budget;
    struct loop **loops;
    unsigned loop_count;
    uint16_t port;
    bool started, stopped;
    atomic_bool draining; /* set once */
    atomic_bool leaving;  /* set once: the deadline has passed, close everything */

    pthread_mutex_t lock; /* running */
    pthread_cond_t ended;
    unsigned running; /* loops whose thread has not left yet */
};

/* A listening socket for `addr` ("host:port"), or -1. `port` 0: the one in addr; it returns the
 * real one. `shared`: more sockets will be bound to the same port. */
MUST_USE int listen_open(const char *addr, uint16_t *port, bool shared, struct err *e);
/* The soft limit of open files becomes the hard one: each connection is a file. Returns how many
 * connections that leaves room for, beside the files that the rest of the process needs. */
unsigned listen_raise_file_limit(void);

#endif
