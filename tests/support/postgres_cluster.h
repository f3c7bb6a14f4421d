/* SPDX-License-Identifier: Apache-2.0
 * A private Postgres cluster for C tests: its own data folder, a unix socket in a temporary folder,
 * fsync on. Started on first use and stopped at exit. REBUNO_TEST_PG
 * (postgres://user@/postgres?host=…) names one that runs already, so that one cluster can serve a
 * whole run. */
#ifndef SUPPORT_POSTGRES_CLUSTER_H
#define SUPPORT_POSTGRES_CLUSTER_H

#include <stddef.h>

/* A new, empty database; fails the test when there is no cluster. */
void postgres_cluster_database(char *url, size_t size);
void postgres_cluster_drop(const char *url);
/* Runs one statement on a database and returns the first column of the first row (static, "" when
 * none). */
const char *postgres_cluster_query(const char *url, const char *sql);
/* The cluster's unix socket; "" when REBUNO_TEST_PG names a cluster by another kind of address. */
const char *postgres_cluster_socket(void);

#endif
