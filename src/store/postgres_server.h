/* SPDX-License-Identifier: Apache-2.0
 * The address of a Postgres server, and a seat for each connection to it: there are never more than
 * the bound. It knows no libpq. Any thread. */
#ifndef STORE_POSTGRES_SERVER_H
#define STORE_POSTGRES_SERVER_H

#include "base/err.h"

struct postgres_server;

/* `max` connections at most; 0: any number. `url` is copied. */
struct postgres_server *postgres_server_new(const char *url, unsigned max);
void postgres_server_free(struct postgres_server *s); /* NULL is fine; after all connections */
const char *postgres_server_url(const struct postgres_server *s);
/* Before a connection is opened. A server counts a connection until it has noticed the end of it,
 * so when none is free this waits for those that were closed a moment ago. False (ERR_UNAVAILABLE):
 * all are in use. */
MUST_USE bool postgres_seat_take(struct postgres_server *s, struct err *e);
/* After a connection was closed. `fd` is its socket, owned from here on, on which the server's end
 * shows; -1 when that has been seen. */
void postgres_seat_leave(struct postgres_server *s, int fd);

#endif
