/* SPDX-License-Identifier: Apache-2.0
 * The executor: takes the commands that have gathered, loads, decides, applies, commits, and only
 * then lets anyone know. Groups form with no timer: while one group is synced the next one gathers.
 * SQLite has one executor; Postgres has a few, and a command goes to the one its execution hashes
 * to, but for the parts of forks, which have one of their own there. Also the background work that
 * time causes: leases that run out, deadlines, recovery at the start, housekeeping. */
#ifndef ENGINE_ENGINE_H
#define ENGINE_ENGINE_H

#include "engine/command.h"
#include "engine/connections.h"
#include "store/store.h"

#include <stdatomic.h>

struct engine;

/* What others want to know after a commit. Called on an executor's thread: hand on and return. Each
 * may be NULL. */
struct engine_signals {
    void *ctx;
    void (*dispatches_queued)(void *ctx); /* some dispatch may be due (now or later) */
    /* New events of this execution are there to be read; `ended`: it has reached a terminal status.
     * Also called for what other kernels on the same database did. */
    void (*events)(void *ctx, const struct uuid *execution_id, bool ended);
    void (*agent_changed)(
        void *ctx, struct str agent_id); /* registered, rotated, removed: forget what is cached */
    void (*delta)(void *ctx, const struct uuid *execution_id,
                  struct str text); /* sent by another kernel */
    /* A submission (its out.step.wanted says which rule) needs the judging model. Fill
     * in.submit.found (matched, hash, rule, judged, judgement) and engine_submit it again, whatever
     * happens, within seconds. NULL without a judge. */
    void (*judge)(void *ctx, struct command *cmd);
};

struct engine_options {
    struct store *store;                    /* borrowed */
    const struct kernel_settings *settings; /* borrowed */
    struct policy_cache *policies;          /* borrowed */
    const struct connections *connections;  /* Postgres; copied. NULL: by cores */
    int64_t deadline_check_interval_us;     /* 0: 30 s */
    int64_t cleanup_interval_us;            /* 0: 10 min */
    int64_t retention_us;                   /* ended executions go after that long; 0: they stay */
    struct engine_signals signals;
};

struct engine *engine_new(const struct engine_options *opt,
                          struct err *e); /* opens writers; starts nothing */
MUST_USE bool engine_start(struct engine *en, struct err *e);
/* Any thread. `done` will be called exactly once. */
void engine_submit(struct engine *en, struct command *cmd);
/* Submits and waits. For boot and tests; never on an HTTP or executor thread. */
void engine_run(struct engine *en, struct command *cmd);
/* Compiled bundles. Whoever sets a bundle compiles it first and puts it here. Any thread. */
struct policy_cache *engine_policies(const struct engine *en);
/* The last write succeeded, or a probe since then did. Any thread. */
bool engine_writable(const struct engine *en);
/* What was claimed before this kernel's start has been given back: what is claimed from now on is
 * its own. Until then it must claim nothing, or it would take its own deliveries for those of a
 * kernel that is gone. signals.dispatches_queued is called when this becomes true. Any thread. */
bool engine_may_deliver(const struct engine *en);
/* When the lease of this execution ends, where the store does not know (SQLite): wall time, 0 when
 * not leased. Any thread. */
int64_t engine_lease_end(struct engine *en, const struct uuid *execution_id);
/* Somebody here reads this execution's live stream: other kernels on the database are to send its
 * deltas. To be repeated every 15 s or so while it is true. Does nothing on SQLite. Any thread. */
void engine_want_deltas(struct engine *en, const struct uuid *execution_id);
/* Sends a delta to the kernels that want it, if any do; what does not fit a note (7.5 KiB, no NUL)
 * is lost. Any thread. */
void engine_send_delta(struct engine *en, const struct uuid *execution_id, struct str text);
struct store *engine_store(const struct engine *en);
const struct connections *engine_connections(const struct engine *en);
/* Answers what was submitted, also what is aside, then stops the threads. Nobody may submit any
 * more, but for the commands that the engine has handed out (signals.judge): those it waits for.
 * False: some were not answered within the patience, since a bundle may take minutes over large
 * arguments; threads still run, nothing that they use may be freed, and the process can only exit.
 */
MUST_USE bool engine_stop(struct engine *en, int64_t patience_us);
void engine_free(struct engine *en);

/* Counted after the commit; read by metrics. */
struct engine_stats {
    atomic_uint_fast64_t groups, commands, created, completed, failed, cancelled;
    atomic_uint_fast64_t submitted[3]; /* by enum step_kind */
    atomic_uint_fast64_t replay_hit, replay_miss;
    atomic_uint_fast64_t allowed, denied, held;                     /* policy decisions */
    atomic_uint_fast64_t limit_passed, limit_refused, limit_parked; /* by rules with a rate limit */
    atomic_uint_fast64_t decided_count, decided_ns;  /* time that deciding a new step took */
    atomic_uint_fast64_t granted, rejected, expired; /* approvals */
    atomic_uint_fast64_t claimed, acked, delivery_failed, reclaimed, discarded;
    atomic_uint_fast64_t usage_missing; /* model answers without token counts */
    atomic_uint_fast64_t worker_errors;
    atomic_int_fast64_t waiting; /* commands submitted and not answered */
};
const struct engine_stats *engine_stats(const struct engine *en);

#endif
