/* SPDX-License-Identifier: Apache-2.0
 * When the leases of SQLite's executions end, for readers: the leases themselves live in the
 * executor's working set. Any thread; a lock of its own. An end is shown to within a twentieth of
 * its term, so that most renewals need not be told. */
#ifndef ENGINE_LEASE_BOARD_H
#define ENGINE_LEASE_BOARD_H

#include "base/map.h"
#include "base/uuid.h"
#include "kernel/working_set.h"

#include <pthread.h>

struct lease_board {
    pthread_mutex_t lock;
    struct map ends; /* execution id → a wall time, kept in the pointer itself */
};

void lease_board_init(struct lease_board *b);
void lease_board_free(struct lease_board *b);
/* After a commit: what became of the leases of these executions. Executor's thread. */
void lease_board_update(struct lease_board *b, struct working_set *ws);
int64_t lease_board_end(struct lease_board *b,
                        const struct uuid *execution_id); /* 0: not leased, as far as is known */

#endif
