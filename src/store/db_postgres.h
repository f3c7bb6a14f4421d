/* SPDX-License-Identifier: Apache-2.0 */
#ifndef STORE_DB_POSTGRES_H
#define STORE_DB_POSTGRES_H

#include "store/db.h"

/* `url` is copied. The connection is made at once. */
struct db *db_postgres_open(const char *url, struct err *e);

#endif
