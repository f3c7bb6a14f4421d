/* SPDX-License-Identifier: Apache-2.0
 * One executor: a thread, a writer, a working set, a queue. Private to engine/. */
#ifndef ENGINE_EXECUTOR_H
#define ENGINE_EXECUTOR_H

#include "engine/engine.h"

#include "engine/deltas.h"
#include "engine/lease_board.h"

struct executor {
    struct engine *engine; /* borrowed */
    struct queue *queue;   /* of struct command */
    struct store_writer *writer;
    struct working_set ws;
    struct uuid_gen ids;
    struct prng random;
    pthread_t thread;
    bool started;
    atomic_bool stopping;
    atomic_bool sweep_due, tidy_due; /* set by the clock's thread, taken between groups */
    bool broken;                     /* the writer failed and has not recovered yet */
    int64_t next_recovery_us;        /* monotonic: not before */
    struct arena scratch;
    struct command **group; /* the commands of the group in hand */
    size_t group_cap;
    /* what the group will signal, gathered before its memory goes */
    struct {
        struct uuid id;
        bool ended;
    } * touched;
    size_t n_touched, cap_touched;
};

struct engine {
    struct store *store;
    const struct kernel_settings *settings;
    struct engine_signals signals;
    struct engine_stats stats;
    struct lease_board leases; /* SQLite */
    struct delta_wants deltas; /* Postgres */
    struct executor *executors;
    unsigned n_executors;
    int64_t deadline_check_interval_us, sweep_interval_us;
    atomic_bool writable;
    atomic_bool
        reload_leased; /* SQLite: a working set was thrown away; the clock loads its leases anew */
    pthread_t clock_thread, listen_thread;
    bool clock_started, listen_started;
    pthread_mutex_t clock_lock;
    pthread_cond_t clock_cond;
    bool stopping;
};

MUST_USE bool executor_open(struct executor *x, struct engine *en, struct err *e);
MUST_USE bool executor_start(struct executor *x, struct err *e);
void executor_stop(struct executor *x);
void executor_close(struct executor *x);

#endif
