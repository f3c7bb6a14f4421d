/* SPDX-License-Identifier: Apache-2.0
 * Moves the write-ahead log into the database file on a thread of its own, and bounds the log's
 * size. After each MiB the thread copies what is committed while the writer goes on, and then what
 * came meanwhile. Right after that next to nothing is left, and the writer starts the log anew if
 * it is over 4 MiB: many short stops instead of a few long ones. Should that moment never come, the
 * writer copies the rest at 40 MiB, waits for the readers (whose snapshots are short) and starts
 * the log anew. So the file stays under 64 MiB, unless one transaction alone is larger. Each second
 * the thread also looks whether the database file is still in its place.
 */
#ifndef STORE_SQLITE_CHECKPOINT_H
#define STORE_SQLITE_CHECKPOINT_H

#include <sqlite3.h>

#include "base/err.h"

struct sqlite_home;
struct sqlite_checkpointer;

struct sqlite_checkpointer *sqlite_checkpointer_start(struct sqlite_home *home, struct err *e);
/* Copies the whole log, empties it, closes. NULL is fine. */
void sqlite_checkpointer_stop(struct sqlite_checkpointer *c);
/* On the writer's thread, outside a transaction: `frames` pages are in the log. */
void sqlite_checkpointer_note(struct sqlite_checkpointer *c, sqlite3 *writer, int frames);

#endif
