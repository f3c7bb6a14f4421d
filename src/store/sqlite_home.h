/* SPDX-License-Identifier: Apache-2.0
 * Where a SQLite database lives: its path, the lock that keeps a second kernel out, the temporary
 * folder of a database in memory, and the thread that moves the write-ahead log into the file off
 * the commit path. */
#ifndef STORE_SQLITE_HOME_H
#define STORE_SQLITE_HOME_H

#include <sqlite3.h>

#include "store/db.h"

struct sqlite_home;

enum { SQLITE_BUSY_MS = 10000 };

/* `path` may lead over links; the file is made when it is not there. NULL: in memory, a file in a
 * private temporary folder that is gone after sqlite_home_close (or swept by the next kernel after
 * a kill). ERR_CONFLICT: another kernel holds the database. ERR_UNAVAILABLE: no such folder, no
 * rights. */
struct sqlite_home *sqlite_home_open(const char *path, struct err *e);
void sqlite_home_close(struct sqlite_home *home); /* after all connections; NULL is fine */

/* There is room beside the database for more than a page: on a disk that is all but full a small
 * write may pass while no step does. ERR_UNAVAILABLE. */
MUST_USE bool sqlite_home_has_room(const struct sqlite_home *home, struct err *e);

/* A file that was deleted or replaced under a running kernel would go on taking writes that nobody
 * finds again. A path is looked up each second (by the checkpoint thread) and before a recovery; in
 * between, in_place tells what was seen last, and costs nothing. ERR_UNAVAILABLE until the same
 * file is back. So what is answered within the last second before may be in the lost file. */
MUST_USE bool sqlite_home_look(struct sqlite_home *home, struct err *e);
MUST_USE bool sqlite_home_in_place(const struct sqlite_home *home, struct err *e); /* any thread */

enum sqlite_role { SQLITE_WRITER, SQLITE_READER, SQLITE_CHECKPOINTER };
/* Production settings, each read back. NULL on failure. */
sqlite3 *sqlite_connect(const struct sqlite_home *home, enum sqlite_role role, struct err *e);
/* Starts the checkpoint thread: after the database exists. */
MUST_USE bool sqlite_home_start(struct sqlite_home *home, struct err *e);
/* After each commit, on the writer's thread: `frames` pages are in the log. Wakes the thread, or
 * when the log has outgrown it moves the rest itself and starts the log anew. */
void sqlite_home_committed(struct sqlite_home *home, sqlite3 *writer, int frames);

/* ERR_UNAVAILABLE, ERR_STORE_RACE or ERR_INTERNAL by the handle's last error. Returns false. */
bool sqlite_error(sqlite3 *h, int rc, const char *what, struct err *e);

struct db *db_sqlite_open(struct sqlite_home *home, bool writer, struct err *e);

#endif
