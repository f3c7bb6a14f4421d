/* SPDX-License-Identifier: Apache-2.0 */
#ifndef STORE_DB_POSTGRES_H
#define STORE_DB_POSTGRES_H

#include "store/db.h"
#include "store/postgres_server.h"

/* `server` is borrowed. The connection is made at once. A writer's commits can be asked about when
 * their answer is lost; that takes the tables of the migrations. */
struct db *db_postgres_open(struct postgres_server *server, bool writer, struct err *e);

#endif
