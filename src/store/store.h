/* SPDX-License-Identifier: Apache-2.0
 * The only door to the database: load a working set, apply its changes, and the reads that the API
 * serves. It decides nothing. Below it db.h has two drivers, SQLite and Postgres; above it nobody
 * knows which one runs.
 *
 * Threads: a `struct store` is shared and constant. A writer belongs to one executor thread, a
 * reader to one thread. */
#ifndef STORE_STORE_H
#define STORE_STORE_H

#include "kernel/working_set.h"

struct store;
struct store_writer;
struct store_reader;

/* A larger payload does not stand in its row; it may come in chunks (ws_add_chunks). */
enum { STORE_INLINE_MAX = 2048 };

struct store_options {
    const char *url; /* sqlite:///absolute/path, sqlite://relative, postgres://… (libpq's own
                        syntax), or "memory:" (a database file in a private temporary folder,
                        without syncs, gone at close) */
    const char *leader_key;   /* Postgres; NULL: rebuno_scheduler_leader */
    unsigned max_connections; /* Postgres: never more at once; 0: as many as are opened */
};

/* Opens, takes the lock against a second process (SQLite: on a file beside the database and on the
 * database itself; ERR_CONFLICT with a clear message when another kernel holds it), and applies the
 * migrations that are missing, in a transaction under a lock (several kernels may start at once). A
 * database newer than this program is refused (ERR_CONFLICT). */
struct store *store_open(const struct store_options *opt, struct err *e);
void store_close(struct store *s); /* after all writers and readers; SQLite: checkpoints the WAL */
bool store_is_sqlite(const struct store *s); /* one writer; its working set keeps leased rows,
                                                leases are monotonic */
/* Postgres: true when no other kernel was alive on this database as this one opened it (a
 * session-level advisory lock on a connection of its own, held until close). SQLite: always true.
 */
bool store_was_alone(const struct store *s);
/* This kernel is the one that does the background work. Postgres: the holder of an advisory lock
 * named by leader_key; while store_listen is being called, a second after the holder has gone
 * another one is. SQLite: always true. Any thread. */
bool store_leads(const struct store *s);

/* ---- writing ---- */
struct store_writer *store_writer_open(struct store *s, struct err *e);
void store_writer_close(struct store_writer *w);
/* Begins the transaction unless one is open, sets ws->now, and loads everything in ws->need (and
 * clears it). On Postgres rows are locked as they load, in this order: agents by id (those that are
 * to be kept or removed), sessions by name, executions by id (FOR NO KEY UPDATE), buckets by key;
 * other agents are only read, and all else belongs to an execution and needs no lock. A constant
 * number of round trips whatever the size of the group. ERR_UNAVAILABLE: the database cannot be
 * reached or read; ERR_STORE_RACE: deadlock or serialization failure. After an error the caller
 * abandons. */
MUST_USE bool store_load(struct store_writer *w, struct working_set *ws, struct err *e);
/* Applies ws->changes and commits with full durability. With no changes it just ends the
 * transaction. True: durable. False: nothing is, except when *unknown is set: the connection broke
 * during the commit and the transaction's fate could not be learnt (a driver first asks for it for
 * up to 5 s). ERR_STORE_RACE: a unique key, a deadlock: load and decide again. ERR_UNAVAILABLE:
 * disk full, I/O error, connection gone. SQLite also when its file is no longer in its place, seen
 * within a second. The transaction is over in every case; the caller then calls ws_end_group or
 * ws_clear. */
MUST_USE bool store_commit(struct store_writer *w, struct working_set *ws, bool *unknown,
                           struct err *e);
/* Rolls back if a transaction is open. The caller then calls ws_clear. */
void store_abandon(struct store_writer *w);
/* Makes a broken writer usable again: reopens the handle or connection and proves with a small
 * durable write that the database takes one. Called now and then while the store is unavailable. */
MUST_USE bool store_writer_recover(struct store_writer *w, struct err *e);

/* ---- what background work looks for. Read with a reader; the rule that acts on it checks again
 * under the lock. ---- */
struct due_dispatch {
    struct uuid execution_id, dispatch_id;
    struct str agent_id;
};
struct agent_cap { /* deliveries that an agent may still be given now */
    struct str agent_id;
    int64_t room;
};
/* Queued dispatches with due_at <= now (wall clock of the store), oldest due first, at most
 * `limit`, per agent at most its `room` (agents not listed: default_room). *next_due is the
 * earliest due_at after now, 0 for none, of any agent with room. Costs in proportion to the agents
 * with queued dispatches, never to the backlog of one. */
MUST_USE bool store_due_dispatches(struct store_reader *r, const struct agent_cap *caps,
                                   size_t n_caps, int64_t default_room, size_t limit,
                                   struct arena *a, struct due_dispatch **out, size_t *n,
                                   int64_t *now_us, int64_t *next_due, struct err *e);
/* Executions that hold an expired lease. SQLite: reads the set itself (leases live there);
 * Postgres: asks the database. Called on the executor's thread between groups. */
MUST_USE bool store_expired_leases(struct store_writer *w, struct working_set *ws, size_t limit,
                                   struct arena *a, struct uuid **out, size_t *n, struct err *e);
/* Live executions whose deadline has passed; executions with a claimed or acked dispatch, after
 * `after` by id. */
MUST_USE bool store_past_deadlines(struct store_reader *r, size_t limit, struct arena *a,
                                   struct uuid **out, size_t *n, struct err *e);
MUST_USE bool store_leased(struct store_reader *r, const struct uuid *after, size_t limit,
                           struct arena *a, struct uuid **out, size_t *n, struct err *e);
/* Pending approvals whose time is over, the longest overdue first. *next_timeout: the earliest of
 * the others, 0 for none. */
struct due_approval {
    struct uuid execution_id, approval_id;
};
MUST_USE bool store_due_approvals(struct store_reader *r, size_t limit, struct arena *a,
                                  struct due_approval **out, size_t *n, int64_t *now_us,
                                  int64_t *next_timeout, struct err *e);
/* Sessions that a pending execution waits for and nobody holds, at most limit: their admission was
 * interrupted, or is under way. Costs in proportion to the sessions that are waited for. */
MUST_USE bool store_waiting_sessions(struct store_reader *r, size_t limit, struct arena *a,
                                     struct str **out, size_t *n, struct err *e);
/* What a crash interrupted, or is under way, by id after `after`, at most limit: ends of subagents
 * that the step which spawned them waits to hear of; live executions whose spawner has ended. Cost
 * in proportion to those that owe, and to the live subagents. */
MUST_USE bool store_owed(struct store_reader *r, const struct uuid *after, size_t limit,
                         struct arena *a, struct owed **out, size_t *n, struct err *e);
MUST_USE bool store_orphans(struct store_reader *r, const struct uuid *after, size_t limit,
                            struct arena *a, struct uuid **out, size_t *n, struct err *e);
/* Live executions that this one has spawned, by id after `after`, at most limit. */
MUST_USE bool store_live_subagents(struct store_reader *r, const struct uuid *spawner,
                                   const struct uuid *after, size_t limit, struct arena *a,
                                   struct uuid **out, size_t *n, struct err *e);
/* Forks whose last slice is older than this wall time: whoever was at them is gone. */
MUST_USE bool store_stale_forks(struct store_reader *r, int64_t older_than, size_t limit,
                                struct arena *a, struct uuid **out, size_t *n, struct err *e);
/* Executions that ended before `cutoff` (wall) and that nothing seems to need, newest first, with
 * ids smaller than `before` (NULL: from the newest), at most limit looked at; *last: go on before
 * this one, nil: that was all. */
MUST_USE bool store_retired_executions(struct store_reader *r, int64_t cutoff,
                                       const struct uuid *before, size_t limit, struct arena *a,
                                       struct uuid **out, size_t *n, struct uuid *last,
                                       struct err *e);
/* Housekeeping in one small slice of a few milliseconds (old submission counts, buckets that are
 * full again). *more: call again. */
MUST_USE bool store_tidy(struct store_writer *w, struct working_set *ws, bool *more, struct err *e);

/* ---- reading, for the API. Slices live in the arena. Absent: p NULL; times 0: not set. ---- */
struct store_reader *store_reader_open(struct store *s, struct err *e);
void store_reader_close(struct store_reader *r);
MUST_USE bool store_ping(struct store_reader *r, struct err *e);

struct execution_view {
    struct uuid id;
    struct uuid parent; /* nil: none */
    struct str agent_id, session, status, input, output, failure_reason, idempotency_key,
        created_by, on_behalf_of;
    int64_t created_at, updated_at, deadline_at; /* updated_at: of the last event */
    int64_t last_seq;
    /* what it waits for: its live dispatch, if any */
    struct str dispatch_status; /* queued, claimed, acked; absent when none lives */
    struct uuid dispatch_id;
    int64_t due_at;
    int64_t lease_until; /* wall; 0 when this store does not know (SQLite keeps leases in memory) */
    bool parked;         /* a rate limit has parked it: until due_at */
    struct uuid spawned_by; /* nil: none */
    struct hash spawned_step;
    struct uuid forked_from; /* nil: it is no fork */
    int64_t fork_seq;
    struct str restoration; /* JSON; absent: none */
    int64_t awaited;        /* executing steps of it that have started a subagent */
};
/* *found false: no such execution. */
MUST_USE bool store_read_execution(struct store_reader *r, const struct uuid *id, struct arena *a,
                                   struct execution_view *out, bool *found, struct err *e);
struct execution_filter {
    struct str agent_id, status, session; /* absent: any */
    const struct uuid *spawned_by;        /* NULL: any */
    struct uuid low, high;     /* ids in [low, high]: from a prefix; all: 00… and ff… */
    const struct uuid *before; /* keyset: ids smaller than this; NULL: from the newest */
    size_t limit;
    size_t max_bytes; /* of inputs and outputs, about, but at least one row; 0: any */
};
MUST_USE bool store_list_executions(struct store_reader *r, const struct execution_filter *f,
                                    struct arena *a, struct execution_view **out, size_t *n,
                                    struct err *e);

/* What `id` continues: its parent's state, else the parent's output, else absent (as without a
 * parent). *found false: no such execution. */
MUST_USE bool store_read_previous(struct store_reader *r, const struct uuid *id, struct arena *a,
                                  struct str *state, bool *found, struct err *e);

struct event_row { /* one transition; see kernel/event.h */
    int64_t first_seq, count, occurred_at;
    struct str body;
};
/* Transitions that hold an event after after_seq, in order, at most limit of them and about
 * max_bytes. *found false: no such execution. *terminal and *last_seq are of the same snapshot as
 * the rows. */
MUST_USE bool store_read_events(struct store_reader *r, const struct uuid *execution_id,
                                int64_t after_seq, size_t limit, size_t max_bytes, struct arena *a,
                                struct event_row **out, size_t *n, int64_t *last_seq,
                                bool *terminal, bool *found, struct err *e);

struct step_view {
    int64_t key; /* for paging by order of creation */
    struct hash id;
    struct str kind, target, status, idempotency, args, result, error, rule_id;
    struct hash args_hash;
    int64_t occurrence, started_at, completed_at;
    struct usage usage;
    struct str affects; /* keys of the resources that it declared, a JSON list; absent: none */
};
MUST_USE bool store_read_step(struct store_reader *r, const struct uuid *execution_id,
                              const struct hash *step_id, struct arena *a, struct step_view *out,
                              bool *found, struct err *e);
/* Steps with key > after_key in order of creation; status absent: all, "terminal": the four
 * terminal ones. At most limit rows and about max_bytes (but at least one). */
MUST_USE bool store_read_steps(struct store_reader *r, const struct uuid *execution_id,
                               struct str status, int64_t after_key, size_t limit, size_t max_bytes,
                               struct arena *a, struct step_view **out, size_t *n, struct err *e);

/* What these steps of one execution ask for, without what came of it: of the first *n of the
 * `count` ids, whose args are about max_bytes, but at least of one. One that is not there has no
 * kind. */
struct step_call {
    struct str kind, target, args;
};
struct step_call_query {
    const struct uuid *execution_id;
    const struct hash *ids;
    size_t count, max_bytes;
};
MUST_USE bool store_read_calls(struct store_reader *r, const struct step_call_query *q,
                               struct arena *a, struct step_call **out, size_t *n, struct err *e);

struct approval_view {
    int64_t key;
    struct uuid id, execution_id;
    struct hash step_id;
    struct str status;
    struct str approvers; /* a JSON list; absent: anybody */
    struct str message, decided_by, asserted_by, rationale;
    int64_t created_at, timeout_at, decided_at;
    struct str agent_id, kind, target, args; /* of its step; args as they came */
};
MUST_USE bool store_read_approval(struct store_reader *r, const struct uuid *id, struct arena *a,
                                  struct approval_view *out, bool *found, struct err *e);
struct approval_filter {
    struct str status;               /* absent: any */
    struct uuid low, high;           /* ids in [low, high]: from a prefix; all: 00… and ff… */
    const struct uuid *execution_id; /* NULL: any */
    /* Keyset: after this one in the order (timeout_at, key); NULL: from the first. */
    const struct approval_view *after;
    size_t limit, max_bytes; /* max_bytes of args, about, but at least one row; 0: any */
    bool brief;              /* without args: they may be large */
};
/* Soonest timeout first. */
MUST_USE bool store_list_approvals(struct store_reader *r, const struct approval_filter *f,
                                   struct arena *a, struct approval_view **out, size_t *n,
                                   struct err *e);

/* The resources of an execution, in order of registration, as they are now; texts in the arena.
 * *found false: no such execution. */
MUST_USE bool store_read_resources(struct store_reader *r, const struct uuid *execution_id,
                                   struct arena *a, struct resource **out, size_t *n, bool *found,
                                   struct err *e);
/* Its checkpoints with key > after_key, oldest first, at most limit. `execution` is NULL in them.
 */
struct checkpoint_row {
    int64_t key;
    struct checkpoint row;
};
MUST_USE bool store_read_checkpoints(struct store_reader *r, const struct uuid *execution_id,
                                     int64_t after_key, size_t limit, struct arena *a,
                                     struct checkpoint_row **out, size_t *n, struct err *e);
/* The newest checkpoint of a resource of an execution; of a fork that has none, the one that it was
 * restored from, if that is an earlier turn's. */
struct newest_checkpoint {
    bool found;
    struct checkpoint row;    /* covered_seq 0: not known, it was restored from this */
    struct uuid execution_id; /* whose it is */
    struct uuid parent;       /* that it continues; nil when it did not inherit this resource */
};
MUST_USE bool store_newest_checkpoint(struct store_reader *r, const struct uuid *execution_id,
                                      struct str resource, struct arena *a,
                                      struct newest_checkpoint *out, struct err *e);
/* Subagents of executing steps of this execution, oldest first, at most limit. */
MUST_USE bool store_awaited_subagents(struct store_reader *r, const struct uuid *execution_id,
                                      size_t limit, struct arena *a, struct uuid **out, size_t *n,
                                      struct err *e);

/* ---- copying into a fork. Events: store_read_events. ---- */
struct fork_source {
    struct str agent_id, input, on_behalf_of;
    struct str policy_bundle; /* its own; absent: none */
    struct hash policy_hash;
    struct str indeterminate; /* struct call_key of its steps that failed as indeterminate */
    struct uuid parent;
    int64_t last_seq;
};
MUST_USE bool store_read_fork_source(struct store_reader *r, const struct uuid *execution_id,
                                     struct arena *a, struct fork_source *out, bool *found,
                                     struct err *e);
/* Its steps with key > after_key in order of creation, at most limit, without args and result;
 * step->key is that of the row which holds its payloads, *last_key goes on; none: those were all.
 * Error texts only of those that failed. */
MUST_USE bool store_read_fork_steps(struct store_reader *r, const struct uuid *execution_id,
                                    int64_t after_key, size_t limit, struct arena *a,
                                    struct step **out, size_t *n, int64_t *last_key, struct err *e);
/* The bundle of its own that an execution runs under; absent: none. */
MUST_USE bool store_read_own_policy(struct store_reader *r, const struct uuid *execution_id,
                                    struct arena *a, struct str *bundle, struct err *e);

struct agent_view {
    struct str id, webhook_url, secret, previous_secret, policy_bundle, description, input_schema,
        output_schema;
    int64_t previous_secret_until, lease_timeout_us, registered_at;
};
MUST_USE bool store_read_agent(struct store_reader *r, struct str id, struct arena *a,
                               struct agent_view *out, bool *found, struct err *e);
MUST_USE bool store_list_agents(struct store_reader *r, struct arena *a, struct agent_view **out,
                                size_t *n, struct err *e);
/* Queued dispatches, for the queue_depth metric. */
MUST_USE bool store_queue_depth(struct store_reader *r, int64_t *out, struct err *e);

/* ---- across replicas (Postgres; on SQLite notify does nothing and listen never returns anything)
 * ---- */
struct store_note {
    char kind; /* 'd': dispatches may be due; 'e': new events of `id`; 'a': an agent changed; 's':
                  somebody reads the live stream of `id`; 'x': a delta of it; 'p': an approval
                  was opened that runs out soon. Notes are sent in order, equal ones once. */
    struct uuid id;
    struct str text; /* the agent's id for 'a' */
};
/* Coalesced hints; on a connection of their own, never inside a write transaction. */
void store_notify(struct store *s, const struct store_note *notes,
                  size_t n); /* any thread; drops when the link is down */
/* Waits up to timeout for a note of another kernel. One thread. False: nothing came. */
MUST_USE bool store_listen(struct store *s, int64_t timeout_us, struct arena *a,
                           struct store_note *out);

#endif
