/* SPDX-License-Identifier: Apache-2.0
 * What became of a transaction whose COMMIT was not answered. Each writer has a row of its own in
 * `writers`, and each of its transactions leaves a number there: the number and the changes are
 * durable together or not at all. (A transaction id would not do: one whose log was not flushed is
 * given out again after a crash of the server, and then tells of somebody else.)
 *
 * Asking decides. On the old connection the transaction may not have come to its number yet, while
 * its COMMIT is already on the way; so the question itself writes a number that is past it, and the
 * transaction's own guard then refuses. Who asks while the row is locked waits for the end. */
#ifndef STORE_POSTGRES_FATE_H
#define STORE_POSTGRES_FATE_H

#include "store/db.h"
#include "store/postgres_server.h"

struct postgres_marker {
    uint8_t id[16]; /* of the writer, random */
    int64_t number; /* of its last transaction; always even: the odd one behind it refuses it */
    bool registered;
};

/* In a transaction of their own, before the first that is marked. Rows of the dead go after a day.
 */
extern const struct db_sql POSTGRES_FORGET_WRITERS; /* no parameters */
extern const struct db_sql POSTGRES_ADD_WRITER;     /* marker_values */
/* In each transaction, before COMMIT. Its guard fails when the row is gone or has passed it. */
extern const struct db_sql POSTGRES_MARK; /* marker_values */
enum { MARKER_VALUES = 2 };
void marker_values(const struct postgres_marker *m, struct db_value out[MARKER_VALUES]);

/* The transaction of m->number, on a new connection. True: committed. Else it is not and never will
 * be, except when *unknown is set: nobody could be asked within 5 s. */
MUST_USE bool postgres_learn_fate(struct postgres_server *server, const struct postgres_marker *m,
                                  bool *unknown);

#endif
