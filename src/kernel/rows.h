/* SPDX-License-Identifier: Apache-2.0
 * The rows of the working set: what the rules know of agents, executions, steps and what belongs to
 * them. "Group": only in the group of commands that loads or writes it, in the group's arena. */
#ifndef KERNEL_ROWS_H
#define KERNEL_ROWS_H

#include "base/arena.h"
#include "base/buf.h"
#include "base/err.h"
#include "base/map.h"
#include "base/rand.h"
#include "base/uuid.h"
#include "domain/identity.h"
#include "domain/types.h"
#include "domain/usage.h"

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

/* What an agent's row said of its bundle. It counts while no agent has changed since: as long as
 * `version` is the set's agents_version. 0: it never counts. */
struct agent_bundle {
    uint64_t version;
    bool has_policy;
    struct hash hash;
};

/* What only a fork's creation writes. Borrowed from its command. */
struct forking {
    struct uuid source;
    int64_t at_seq;
    struct str restoration;   /* JSON; absent: none */
    struct str policy_bundle; /* its own; absent: none */
};

/* There may be very many of them at once: small fields stand together. */
struct execution {
    int64_t key; /* the store's; 0 until applied */
    struct uuid id;
    struct str agent_id; /* owned by the row */
    struct str session;  /* owned by the row; absent: none */
    struct uuid parent;  /* nil: none */
    enum execution_status status;
    enum owner_state owner;
    unsigned row;
    bool forked;           /* it is a fork: what has an effect is not repeated unasked */
    bool has_policy;       /* its own, which only a fork may have: bundle.hash is its hash */
    bool suspended;        /* blocked, and its agent waits for its subagents too */
    bool owes;             /* the step that spawned it has not been told of its end */
    bool resources_known;  /* `resources` is complete; true at once when n_registered is 0 */
    bool tallies_complete; /* all counts and keys of the current claim are here: one that is not is
                              0 */
    bool live_known;       /* `live` is complete */
    bool pending_known;    /* `pending` is complete */
    bool session_tokens_known;
    /* SQLite: the counts of an ended delivery whose last call is a lease's term ago; nothing is
     * submitted under it any more. */
    bool counts_lost;
    bool lease_changed; /* lease_until was renewed in this group */
    bool in_group;      /* it is on the working set's list of this group's rows */
    int64_t last_seq;   /* of the last event */
    int64_t created_at, ended_at;
    int64_t deadline_at; /* wall; 0: none */
    int64_t claim;       /* claims so far, over all its dispatches */
    struct uuid owner_dispatch;
    int64_t owner_attempt;
    /* Lease clock. WORKING: when the owner's lease runs out. ENDED: a lease's term after the
     * owner's last call; until then calls of it that still run hold the next delivery back. */
    int64_t lease_until;
    int64_t owner_lease_us; /* the term of the owner's leases */
    int64_t lease_shown;    /* the end that engine/lease_board.c shows to readers, wall; 0: none */
    int64_t tokens;         /* input and output tokens recorded on its steps */
    struct buf
        indeterminate; /* owned: the struct call_key of each step that failed as indeterminate */
    struct buf parked; /* owned: a struct parked for each step that a rate limit parked and that
                          has not come back yet */
    int64_t awaited;   /* executing steps of it that have started a subagent */
    int64_t spawns;    /* subagents that its steps have started */
    struct uuid spawned_by;   /* the execution whose step started it; nil: none did */
    struct hash spawned_step; /* meaningful with spawned_by */
    struct str above; /* owned: the sessions of those that it was spawned by, all the way up, each
                         with a NUL behind it: they would wait for each other; absent: none */
    int64_t n_registered;       /* resources */
    struct resource *resources; /* in order of registration; array and rows' texts owned */
    size_t n_resources;
    struct agent_bundle bundle; /* its agent's, so that a step need not read the agent's row; or
                                   its own */
    struct dispatch *dispatch;  /* the live one (queued, claimed, acked), or NULL; owned */
    struct map tallies;         /* call_key → struct tally, owned */
    struct map keys;            /* 16-byte key hash → struct submission_key, owned */
    struct step **live; /* proposed, awaiting, allowed and executing steps in order of creation;
                           array owned */
    size_t n_live, cap_live;

    /* Only in the group that writes them; borrowed from the command or the group's arena. */
    struct str input, output, state, failure_reason;
    struct str idempotency_key, created_by, on_behalf_of; /* set at creation alone */
    const struct forking *forking;                        /* likewise, of a fork; NULL: none */
    int64_t session_tokens;    /* recorded on the other executions of its session */
    struct approval **pending; /* its pending approvals, oldest first */
    size_t n_pending, cap_pending;
    struct transition *transition; /* what this group appends to its log so far */
};

struct step {
    int64_t key; /* the store's; 0 until applied */
    struct hash id;
    struct execution *execution; /* borrowed */
    enum step_kind kind;
    enum step_status status;
    enum idempotency idempotency;
    unsigned row;
    bool in_group;
    struct hash args_hash;
    struct uuid subagent; /* the execution that it started; nil: none */
    struct str target;    /* owned by the row */
    int64_t occurrence;
    int64_t claim;      /* under which it was last told to proceed */
    struct str args;    /* group: set when new */
    struct str result;  /* group: loaded with a terminal step, or set by its outcome; absent: none.
                           `null` is a value. */
    struct str error;   /* group: likewise */
    struct str rule_id; /* group: of a denied or held step */
    struct str affects; /* owned by the row: the keys of the resources that it declared when it was
                           last told to proceed, a JSON list of texts; absent: none */
    struct usage usage; /* of a succeeded llm_call; both -1: none */
    int64_t created_at, started_at, completed_at; /* wall; 0: not yet */
};

/* A step that a rate limit parked: it has its token, from `until` on. */
struct parked {
    struct hash step_id;
    uint8_t bucket[16]; /* first bytes of sha256 of the bucket's key */
    int64_t until;      /* wall */
};

/* External state of an execution (docs/resources.md). Texts are owned by the row. */
struct resource {
    struct str key, driver_id;
    struct str configuration;       /* JSON as it came; absent: none */
    struct hash configuration_hash; /* of its canonical form; of `null` without one */
    bool coverage_reuse;
    int64_t every_steps; /* 0: no checkpoints */
    bool on_completion;
    int64_t generation, count, registered_seq;
    struct str binding; /* JSON as it came; absent: none */
    struct hash binding_hash;
    struct str checkpoint_ref; /* of the newest checkpoint, or of the one it was restored from */
    bool covered;              /* a checkpoint of the current generation is open */
    bool inherited;            /* from the turn before */
    /* A fork: what it was restored from (absent: nothing), and whose checkpoint that is when it is
     * neither the source's nor its own (nil). */
    struct str restored_ref;
    struct uuid restored_from;
    bool stored_open;  /* the store may hold open checkpoints of it */
    int64_t ended_seq; /* group: those end here; 0: they do not */
    /* Steps that affect it and are under way under this claim: 32 bytes of step id each. Those of
     * an older claim are orphans, and write no more. */
    struct str writers;
    int64_t writers_claim;
    unsigned row;
};

/* A captured state, and the events of its execution that it covers: [covered_seq, invalidated_seq).
 * Group arena. */
struct checkpoint {
    struct execution *execution; /* borrowed */
    struct str resource;         /* its key */
    int64_t generation;
    struct str checkpoint_ref;
    int64_t covered_seq, invalidated_seq; /* 0: open */
};

/* How a subagent ended. Group arena. */
struct ending {
    struct uuid execution_id;
    struct str output;         /* JSON; absent: none */
    struct str failure_reason; /* absent: none */
};

/* A fork that is being copied, slice by slice, and pins its source. Its rows lie under an execution
 * key that no execution has yet, so nobody sees them. Loading it locks it. Group arena. */
struct fork_pin {
    int64_t key; /* the fork's; 0 until applied */
    struct uuid id, source;
    int64_t source_key;
    int64_t touched_at; /* wall, of the last slice */
    bool gone;          /* it has appeared, or was given up: the row goes */
    bool abandoned;     /* given up: what lies under its key is to be removed */
    unsigned row;
};

/* A copied step: the source's row under the fork's id. Arguments, result and error stay where they
 * are, in the row `payload_key`. */
struct step_copy {
    struct hash id;
    enum step_kind kind;
    struct str target;
    struct hash args_hash;
    int64_t occurrence;
    enum step_status status;
    enum idempotency idempotency;
    struct str rule_id, affects; /* absent: none */
    struct usage usage;
    int64_t created_at, started_at, completed_at;
    int64_t payload_key;
};
/* Copied events of one transition. */
struct event_copy {
    int64_t first_seq, count, occurred_at;
    struct str body;
};
/* What one command brings of a fork: rows under its key. Borrowed from the command. */
struct fork_slice {
    int64_t key;
    const struct step_copy *steps;
    size_t n_steps;
    const struct event_copy *events;
    size_t n_events;
    const struct checkpoint *checkpoints;
    size_t n_checkpoints;
};

/* Why an ended execution must be kept. Group arena. */
struct keepers {
    struct uuid execution_id;
    bool session_live; /* one of its session has not ended, or not as long ago */
    bool continued;    /* another one has it as its parent */
    bool spawner_kept; /* the one that spawned it is still there */
    bool pinned;       /* it is being forked */
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

#endif
