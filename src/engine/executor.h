/* SPDX-License-Identifier: Apache-2.0
 * One executor: a thread, a writer, a working set, a queue; and the engine that holds them. Private
 * to engine/. */
#ifndef ENGINE_EXECUTOR_H
#define ENGINE_EXECUTOR_H

#include "engine/engine.h"

#include "engine/deltas.h"
#include "engine/lease_board.h"
#include "engine/news.h"

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
    struct news news;       /* what the group will tell */
};

struct engine {
    struct store *store;
    const struct kernel_settings *settings;
    struct policy_cache *policies;
    struct engine_signals signals;
    struct engine_stats stats;
    struct lease_board leases; /* SQLite */
    struct delta_wants deltas; /* Postgres */
    struct connections connections;
    struct executor *executors;
    unsigned n_executors;
    int64_t deadline_check_interval_us, sweep_interval_us;
    int64_t cleanup_interval_us, retention_us; /* retention_us 0: nothing is removed */
    atomic_bool writable;
    atomic_bool
        reload_leased; /* SQLite: a working set was thrown away; the clock loads its leases anew */
    /* What the kernel before this one had in hand has been taken up. */
    atomic_bool recovered;
    struct aside *aside;
    struct orphans *orphans;
    struct fork_lanes *forks;
    pthread_t clock_thread, listen_thread;
    bool clock_started, listen_started;
    pthread_mutex_t clock_lock;
    pthread_cond_t clock_cond;
    bool stopping, approvals_wanted; /* under clock_lock */
    /* Wall clock of the store: when this kernel's clock looks at approvals next. In the past: it
     * does not; INT64_MAX: it is looking. */
    atomic_int_fast64_t next_look_at;
    atomic_bool draining; /* it stops once stats.waiting is zero */
    pthread_mutex_t quiet_lock;
    pthread_cond_t quiet_cond;
};

void engine_run_all(struct engine *en, struct command *cmds, size_t n); /* submits; waits for all */
void engine_answered(struct engine *en); /* one of those that wait is about to be done */
bool engine_is_stopping(struct engine *en);

MUST_USE bool executor_open(struct executor *x, struct engine *en, struct err *e);
MUST_USE bool executor_start(struct executor *x, struct err *e);
void executor_stop(struct executor *x);
void executor_close(struct executor *x);

#endif
