/* SPDX-License-Identifier: Apache-2.0
 * Connections to Postgres: how they are made and what their errors mean. */
#ifndef STORE_POSTGRES_CONN_H
#define STORE_POSTGRES_CONN_H

#include <libpq-fe.h>

#include "store/postgres_server.h"

/* With the session's settings, in UTF-8, on a server of version 13 or later. NULL: ERR_UNAVAILABLE,
 * the message without the password. */
PGconn *postgres_connect(struct postgres_server *server, struct err *e);
void postgres_disconnect(struct postgres_server *server, PGconn *c); /* NULL is fine */
/* An idle connection that the server has closed shows it here; costs one poll. */
bool postgres_alive(PGconn *c);
/* ERR_STORE_RACE: what another kernel caused (deadlock, serialization, unique key, lock time-out, a
 * guard); ERR_UNAVAILABLE: the connection, the server or its disk; ERR_INTERNAL: anything else.
 * `result` may be NULL. Returns false. */
bool postgres_error(PGconn *c, const PGresult *result, const char *what, struct err *e);
/* Simple statements outside pipeline mode. */
MUST_USE bool postgres_run(PGconn *c, const char *sql, struct err *e);

#endif
