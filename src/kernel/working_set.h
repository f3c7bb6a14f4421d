/* SPDX-License-Identifier: Apache-2.0
 * What the rules see: the rows that a group of commands names, loaded by the store, changed by the
 * rules, applied by the store in one transaction. An identity map: a later command of the group
 * sees what an earlier one changed. For each key the set knows whether it was looked for, and then
 * whether the row exists: a row that is not there is a fact.
 *
 * One thread owns a set. It knows no database, no socket, no clock: the store fills `now` with each
 * load.
 *
 * Life of a group: commands name keys (ws_need_*) → the store loads them (ws_put_*,
 * ws_put_absent_*) → rules decide (read with ws_*, change through kernel/move.c and ws_touch_*) →
 * the store applies ws->changes → ws_end_group. On SQLite rows of leased executions stay in the set
 * between groups (`keep_leased`), since the process is the only writer. */
#ifndef KERNEL_WORKING_SET_H
#define KERNEL_WORKING_SET_H

#include "base/arena.h"
#include "base/buf.h"
#include "base/err.h"
#include "base/map.h"
#include "base/rand.h"
#include "base/uuid.h"
#include "domain/identity.h"
#include "domain/types.h"
#include "domain/usage.h"
#include "kernel/settings.h"
#include "policy/cache.h"

/* `wall_us` is what is recorded. `lease_us` is the clock that leases run by: the monotonic one on
 * SQLite; on Postgres both are the database's clock. */
struct now {
    int64_t wall_us;
    int64_t lease_us;
};

enum { ROW_CLEAN = 0, ROW_NEW = 1, ROW_CHANGED = 2 };

struct agent {
    struct str id, webhook_url, secret;
    struct str previous_secret; /* absent, or still accepted until previous_secret_until */
    int64_t previous_secret_until;
    bool has_policy; /* then policy_hash is the sha256 of its bundle's YAML */
    struct hash policy_hash;
    /* Only in the group that writes them, as `parts` says; loading does not bring them. Absent:
     * none. Schemas are JSON. */
    struct str policy_bundle, description, input_schema, output_schema;
    int64_t lease_timeout_us; /* 0: the kernel's default */
    int64_t registered_at;
    bool has_live; /* meaningful when live_known: it has executions that are not terminal */
    bool live_known;
    bool kept;      /* nobody removes it before this group has ended */
    bool removed;   /* deleted in this group */
    unsigned parts; /* what this group changes: AGENT_REGISTRATION, … */
    unsigned row;
};
enum { AGENT_REGISTRATION = 1, AGENT_DESCRIPTION = 2, AGENT_POLICY = 4 };

struct dispatch {
    int64_t key; /* the store's; 0 until applied */
    struct uuid id;
    enum dispatch_status status;
    int64_t attempt;       /* 0 until first claimed */
    int64_t charged;       /* deliveries in a row that count against the maximum */
    int64_t charged_since; /* wall time of the first of them; 0 when none */
    int64_t spared;        /* attempts that a rate limit parked: they bound nothing */
    int64_t due_at;        /* wall; meaningful while queued */
    int64_t lease_us;      /* the term of its leases, fixed at the claim */
    int64_t grace_until;   /* wall; a delivery that fails before is not charged (after a release) */
    int64_t queued_at;     /* wall */
    unsigned row;
};

/* Who may write: the attempt claimed last, until it is reclaimed. ENDED: blocking, suspending or
 * parking ended the delivery but not the ownership, which lasts to the next claim. */
enum owner_state { OWNER_NONE, OWNER_WORKING, OWNER_ENDED };

/* A counted submission of the current claim, by its call: occurrences = `count` so far. */
struct tally {
    struct call_key call;
    int64_t count;
};

/* What an Idempotency-Key of the current claim stood for. */
struct submission_key {
    struct call_key call;
    struct hash step_id;
};

struct execution {
    int64_t key; /* the store's; 0 until applied */
    struct uuid id;
    struct str agent_id; /* owned by the row */
    struct str session;  /* owned by the row; absent: none */
    struct uuid parent;  /* nil: none */
    enum execution_status status;
    int64_t last_seq; /* of the last event */
    int64_t created_at, ended_at;
    int64_t deadline_at; /* wall; 0: none */
    int64_t claim;       /* claims so far, over all its dispatches */
    enum owner_state owner;
    struct uuid owner_dispatch;
    int64_t owner_attempt;
    /* Lease clock. WORKING: when the owner's lease runs out. ENDED: a lease's term after the
     * owner's last call; until then calls of it that still run hold the next delivery back. */
    int64_t lease_until;
    int64_t owner_lease_us; /* the term of the owner's leases */
    int64_t tokens;         /* input and output tokens recorded on its steps */
    struct buf
        indeterminate; /* owned: the struct call_key of each step that failed as indeterminate */
    struct buf parked; /* owned: a struct parked for each step that a rate limit parked and that has
                          not come back yet */
    struct dispatch *dispatch; /* the live one (queued, claimed, acked), or NULL; owned */

    /* Only in the group that writes them; borrowed from the command or the group's arena. */
    struct str input, output, state, failure_reason;
    struct str idempotency_key, created_by, on_behalf_of; /* set at creation alone */

    struct map tallies;    /* call_key → struct tally, owned */
    struct map keys;       /* 16-byte key hash → struct submission_key, owned */
    bool tallies_complete; /* all counts and keys of the current claim are here: one that is not is
                              0 */
    struct step **live;    /* proposed, awaiting, allowed and executing steps in order of creation;
                              array owned */
    size_t n_live, cap_live;
    bool live_known; /* `live` is complete */
    /* Only in this group: tokens recorded on the other executions of its session. */
    int64_t session_tokens;
    bool session_tokens_known;
    /* SQLite: an ended delivery's counts are not read again once its row has left the set; nothing
     * can be submitted under it any more. */
    bool counts_lost;
    /* Only in this group: its pending approvals, oldest first; group arena. */
    struct approval **pending;
    size_t n_pending, cap_pending;
    bool pending_known;            /* `pending` is complete */
    struct transition *transition; /* what this group appends to its log so far; group arena */
    int64_t lease_shown; /* the end that engine/lease_board.c shows to readers, wall; 0: none */
    bool lease_changed;  /* lease_until was renewed in this group */
    bool in_group;       /* it is on the working set's list of this group's rows */
    unsigned row;
};

struct step {
    int64_t key; /* the store's; 0 until applied */
    struct hash id;
    struct execution *execution; /* borrowed */
    enum step_kind kind;
    struct str target; /* owned by the row */
    struct hash args_hash;
    int64_t occurrence;
    enum step_status status;
    enum idempotency idempotency;
    int64_t claim;      /* under which it was last told to proceed */
    struct str args;    /* group: set when new */
    struct str result;  /* group: loaded with a terminal step, or set by its outcome; absent: none.
                           `null` is a value. */
    struct str error;   /* group: likewise */
    struct str rule_id; /* group: of a denied or held step */
    struct usage usage; /* of a succeeded llm_call; both -1: none */
    int64_t created_at, started_at, completed_at; /* wall; 0: not yet */
    bool in_group;
    unsigned row;
};

/* A step that a rate limit parked: it has its token, from `until` on. */
struct parked {
    struct hash step_id;
    uint8_t bucket[16]; /* first bytes of sha256 of the bucket's key */
    int64_t until;      /* wall */
};

/* A decision that a person owes a step. Rows live in the group's arena, with their strings. */
struct approval {
    int64_t key; /* the store's; 0 until applied */
    struct uuid id;
    struct execution *execution; /* borrowed */
    struct hash step_id;
    enum approval_status status;
    struct str approvers;                          /* a JSON list of names; absent: anybody */
    struct str message;                            /* absent: none */
    struct str decided_by, asserted_by, rationale; /* absent: none */
    int64_t created_at, timeout_at, decided_at;    /* wall; 0: not yet */
    unsigned row;
};

/* A session: its executions run one at a time. Loading it locks it, so that what it says holds to
 * the commit. Group arena. */
struct session {
    struct str name;
    bool used;          /* an execution of this name is there, whatever its status */
    struct uuid holder; /* the one that runs or is blocked; nil: it is free */
    struct uuid waiter; /* the oldest that is pending; nil: none */
};

/* A rate limit's token bucket (policy/bucket.h). Group arena. */
struct bucket {
    struct str key;
    int64_t full_at; /* wall: when it is full again; a bucket that has no row is full */
    bool unreadable; /* the store holds something else under this key */
    bool changed;
    unsigned row; /* NEW from the start when it has none */
};

/* All events of one transition of one execution; body is kernel/event.h's text. */
struct transition {
    struct execution *execution; /* borrowed */
    int64_t first_seq, count;
    int64_t occurred_at;
    struct buf body;
};

/* One counted submission, to be appended durably. */
struct submission {
    struct execution *execution; /* borrowed */
    int64_t claim;
    struct call_key call;
    int64_t count; /* the new count */
    bool has_key;
    uint8_t key[16]; /* first bytes of sha256 of the Idempotency-Key */
    struct hash step_id;
};

/* A growing array of pointers or rows; zeroed is empty. */
#define LIST(type)                                                                                 \
    struct {                                                                                       \
        type *at;                                                                                  \
        size_t n, cap;                                                                             \
    }

/* Keys that were named and are not loaded yet. */
struct step_ref {
    struct uuid execution_id;
    struct hash step_id;
};
struct tally_ref {
    struct uuid execution_id;
    struct call_key call;
    bool has_key;
    uint8_t key[16];
};
struct request_key_ref { /* an execution by (agent_id, idempotency_key) */
    struct str agent_id, idempotency_key;
};
struct agent_ref {
    struct str id;
    bool want_live; /* also load has_live, and lock the row against new executions */
    bool keep;      /* lock the row against its removal */
};
struct parent_ref { /* the newest completed execution of an agent in a session */
    struct str session, agent_id;
};
struct approval_ref {
    struct uuid execution_id, id;
};
struct need {
    LIST(struct agent_ref) agents;
    LIST(struct uuid) executions;
    LIST(struct request_key_ref) request_keys;
    LIST(struct step_ref) steps;
    LIST(struct tally_ref) tallies;
    LIST(struct uuid) live_steps; /* of these executions: all that are not terminal */
    LIST(struct uuid) dispatches; /* which execution does this id belong to? */
    LIST(struct approval_ref) approvals;
    LIST(struct uuid) pending; /* of these executions: all pending approvals */
    LIST(struct str) buckets;
    LIST(struct str) sessions;
    LIST(struct parent_ref) parents;
    LIST(struct uuid) session_tokens; /* of these executions */
};

struct changes {
    LIST(struct agent *) agents;
    LIST(struct execution *) executions; /* row != CLEAN, or lease_changed */
    LIST(struct step *) steps;
    LIST(struct execution *)
    dispatches;                      /* executions whose dispatch row changed (also see retired) */
    LIST(struct dispatch *) retired; /* rows that stopped being live in this group; group arena */
    LIST(struct transition *) transitions;
    LIST(struct submission) submissions;
    LIST(struct approval *) approvals;
    LIST(struct bucket *) buckets;
    LIST(struct str) freed; /* sessions that may admit their next one: follow-ups of the group */
};

struct working_set {
    struct now now;
    const struct kernel_settings *settings;
    struct uuid_gen *ids;
    struct prng *random;
    bool keep_leased;   /* SQLite: rows of leased executions outlive the group */
    struct arena arena; /* the group's; reset by ws_end_group */
    struct need need;
    struct changes changes;
    /* identity maps; values are rows, or a marker for "looked for, not there" */
    struct map agents, executions, request_keys, steps, dispatches, approvals, buckets, sessions,
        parents;
    struct policy_cache *policies; /* borrowed; compiled bundles by hash */
    /* rows and absences that this group brought in or changed: what ws_end_group looks at, so that
     * a group costs the same however many leased rows the set holds */
    LIST(struct execution *) group_executions;
    LIST(struct step *) group_steps;
    LIST(struct uuid) absent_executions;
    LIST(struct hash) absent_steps;
};

void ws_init(struct working_set *ws, const struct kernel_settings *settings, struct uuid_gen *ids,
             struct prng *random);
void ws_clear(struct working_set *ws); /* forgets every row and change: after a failed apply */
void ws_free(struct working_set *ws);
/* After the commit: rows become clean, payloads and the group's arena go; without keep_leased all
 * rows go. */
void ws_end_group(struct working_set *ws);
bool ws_has_changes(const struct working_set *ws); /* something must be made durable */

/* ---- naming: what a command will look at ---- */
/* Read without a lock, unless want_live. */
void ws_need_agent(struct working_set *ws, struct str id, bool want_live);
/* The same for what must not outlive it: a new execution. */
void ws_need_agent_kept(struct working_set *ws, struct str id);
void ws_need_execution(struct working_set *ws, const struct uuid *id);
void ws_need_request_key(struct working_set *ws, struct str agent_id, struct str idempotency_key);
void ws_need_step(struct working_set *ws, const struct uuid *execution_id,
                  const struct hash *step_id);
void ws_need_tally(struct working_set *ws, const struct tally_ref *ref);
void ws_need_live_steps(struct working_set *ws, const struct uuid *execution_id);
void ws_need_dispatch(struct working_set *ws, const struct uuid *dispatch_id);
/* One approval whatever its status; its execution must be named too. */
void ws_need_approval(struct working_set *ws, const struct uuid *execution_id,
                      const struct uuid *id);
void ws_need_pending(struct working_set *ws, const struct uuid *execution_id);
void ws_need_bucket(struct working_set *ws, struct str key);
void ws_need_session(struct working_set *ws, struct str name);
void ws_need_parent(struct working_set *ws, struct str session, struct str agent_id);
void ws_need_session_tokens(struct working_set *ws, const struct uuid *execution_id);
bool ws_has_needs(const struct working_set *ws);
void ws_clear_needs(struct working_set *ws);

/* ---- reading: ws_knows_* says whether the key was looked for; the row is NULL when it is not
 * there ---- */
bool ws_knows_agent(const struct working_set *ws, struct str id);
struct agent *ws_agent(const struct working_set *ws, struct str id);
bool ws_knows_execution(const struct working_set *ws, const struct uuid *id);
struct execution *ws_execution(const struct working_set *ws, const struct uuid *id);
bool ws_knows_request_key(const struct working_set *ws, struct str agent_id,
                          struct str idempotency_key);
MUST_USE bool ws_request_key(const struct working_set *ws, struct str agent_id,
                             struct str idempotency_key,
                             struct uuid *execution_id); /* false: no such execution */
bool ws_knows_step(const struct working_set *ws, const struct hash *step_id);
struct step *ws_step(const struct working_set *ws, const struct hash *step_id);
bool ws_knows_tally(const struct execution *exec, const struct tally_ref *ref);
int64_t ws_tally(const struct execution *exec, const struct call_key *call);
struct submission_key *ws_submission_key(const struct execution *exec, const uint8_t key[16]);
bool ws_knows_dispatch(const struct working_set *ws, const struct uuid *dispatch_id);
MUST_USE bool ws_dispatch_execution(const struct working_set *ws, const struct uuid *dispatch_id,
                                    struct uuid *execution_id); /* false: no such dispatch */

bool ws_knows_approval(const struct working_set *ws, const struct uuid *id);
struct approval *ws_approval(const struct working_set *ws, const struct uuid *id);
bool ws_knows_bucket(const struct working_set *ws, struct str key);
/* Never NULL for a known key: one without a row is full. */
struct bucket *ws_bucket(const struct working_set *ws, struct str key);

/* NULL: not known. */
struct session *ws_session(const struct working_set *ws, struct str name);
bool ws_knows_parent(const struct working_set *ws, struct str session, struct str agent_id);
/* Nil: it has none. */
struct uuid ws_parent(const struct working_set *ws, struct str session, struct str agent_id);

/* ---- filling: the store alone. A row that the set has already is kept and returned as it is. ----
 */
struct agent *ws_put_agent(struct working_set *ws,
                           const struct agent *row); /* strings are copied into the arena */
void ws_put_absent_agent(struct working_set *ws, struct str id);
/* `row` and `dispatch` (NULL: none live) are copied, agent_id and indeterminate too. */
struct execution *ws_put_execution(struct working_set *ws, const struct execution *row,
                                   const struct dispatch *dispatch);
void ws_put_absent_execution(struct working_set *ws, const struct uuid *id);
void ws_put_request_key(struct working_set *ws, struct str agent_id, struct str key,
                        const struct uuid *execution_id);
/* `row` is copied; its target too; payload slices must live in ws->arena. Live steps join
 * execution->live in key order. */
struct step *ws_put_step(struct working_set *ws, const struct step *row);
void ws_put_absent_step(struct working_set *ws, const struct hash *step_id);
void ws_put_tally(struct execution *exec, const struct call_key *call,
                  int64_t count); /* 0 is a fact */
void ws_put_submission_key(struct execution *exec, const uint8_t key[16],
                           const struct call_key *call, const struct hash *step_id);
void ws_put_absent_submission_key(struct execution *exec, const uint8_t key[16]);
void ws_put_dispatch(struct working_set *ws, const struct uuid *dispatch_id,
                     const struct uuid *execution_id_or_null);

/* `row` is copied, its strings too. A pending one joins execution->pending, by key. */
struct approval *ws_put_approval(struct working_set *ws, const struct approval *row);
void ws_put_absent_approval(struct working_set *ws, const struct uuid *id);
/* After the last of its pending ones. */
void ws_put_pending_known(struct working_set *ws, struct execution *exec);
/* `row` NULL: it has none, and is full. */
void ws_put_bucket(struct working_set *ws, struct str key, const struct bucket *row);

void ws_put_session(struct working_set *ws, const struct session *row); /* copied */
void ws_put_parent(struct working_set *ws, struct str session, struct str agent_id,
                   const struct uuid *parent_or_nil);
void ws_put_session_tokens(struct working_set *ws, struct execution *exec, int64_t others);

/* ---- changing: kernel/ alone ---- */
struct agent *ws_new_agent(struct working_set *ws, struct str id);
struct execution *ws_new_execution(struct working_set *ws, const struct uuid *id,
                                   struct str agent_id, struct str session);
/* Its session may admit the next one after this group. */
void ws_free_session(struct working_set *ws, const struct execution *exec);
struct step *ws_new_step(struct working_set *ws, struct execution *exec, const struct hash *id);
struct dispatch *ws_new_dispatch(struct working_set *ws, struct execution *exec,
                                 const struct uuid *id);
void ws_retire_dispatch(struct working_set *ws,
                        struct execution *exec); /* exec->dispatch becomes NULL */
/* The group looks at it at its end: a row that nothing keeps leaves the set. */
void ws_let_go(struct working_set *ws, struct execution *exec);
struct approval *ws_new_approval(struct working_set *ws, struct execution *exec,
                                 const struct uuid *id);
void ws_touch_approval(struct working_set *ws, struct approval *approval);
void ws_touch_bucket(struct working_set *ws, struct bucket *bucket);
void ws_touch_agent(struct working_set *ws, struct agent *agent, unsigned parts);
void ws_touch_execution(struct working_set *ws, struct execution *exec);
void ws_touch_lease(struct working_set *ws, struct execution *exec);
void ws_touch_step(struct working_set *ws, struct step *step);
void ws_touch_dispatch(struct working_set *ws, struct execution *exec);
void ws_count_submission(struct working_set *ws, struct execution *exec,
                         const struct tally_ref *ref, const struct hash *step_id);
void ws_clear_tallies(struct execution *exec); /* at a claim: all counts are 0 and known */
void ws_step_left_live(struct step *step);     /* takes it off execution->live */
void ws_approval_left_pending(struct approval *approval); /* takes it off execution->pending */
/* The transition that this group writes for `exec` at the end of its log. */
struct transition *ws_transition(struct working_set *ws, struct execution *exec);

#endif
