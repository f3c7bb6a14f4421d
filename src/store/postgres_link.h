/* SPDX-License-Identifier: Apache-2.0
 * What kernels on one Postgres database tell each other: that they live (a session-level advisory
 * lock), and hints (LISTEN/NOTIFY), on connections of their own. */
#ifndef STORE_POSTGRES_LINK_H
#define STORE_POSTGRES_LINK_H

#include "store/postgres_server.h"
#include "store/store.h"

struct postgres_link;

/* `server` is borrowed. leader_key NULL: the default. */
struct postgres_link *postgres_link_open(struct postgres_server *server, const char *leader_key,
                                         struct err *e);
void postgres_link_close(struct postgres_link *link); /* NULL is fine */
bool postgres_link_was_alone(const struct postgres_link *link);
bool postgres_link_leads(const struct postgres_link *link); /* any thread */
void postgres_link_notify(struct postgres_link *link, const struct store_note *notes, size_t n);
bool postgres_link_listen(struct postgres_link *link, int64_t timeout_us, struct arena *a,
                          struct store_note *out);

#endif
