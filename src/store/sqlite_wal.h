/* SPDX-License-Identifier: Apache-2.0
 * A VFS for the writer of a database on disk: SQLite writes each page of its log in two calls, a
 * small one for the frame's head and one for the page. Here they are gathered, and written in a few
 * large ones before the sync that makes a transaction durable. Measured: a quarter of a commit's
 * CPU.
 *
 * Why it is safe: in `synchronous=FULL` nobody looks at a frame before that sync. Its own
 * connection may read back what it has spilled; any read, truncation or question about the size
 * writes what was gathered first. A write that fails drops it, and the error ends the transaction,
 * whose commit frame is the last. Without syncs (a database in memory) there would be no such
 * moment: the ordinary VFS serves those. */
#ifndef STORE_SQLITE_WAL_H
#define STORE_SQLITE_WAL_H

#define SQLITE_WAL_VFS "rebuno-wal"

void sqlite_wal_vfs_register(void); /* once, after sqlite3_initialize */

#endif
