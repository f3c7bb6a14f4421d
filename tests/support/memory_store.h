/* SPDX-License-Identifier: Apache-2.0
 * A store in memory for simulations: loads a working set and applies its changes as the real ones
 * do, with a clock that the test turns. It can forget what a killed process forgets. */
#ifndef SUPPORT_MEMORY_STORE_H
#define SUPPORT_MEMORY_STORE_H

#include "kernel/working_set.h"

struct memory_event_row {
    int64_t first_seq, count, occurred_at;
    char *body;
    size_t n;
};

struct memory_checkpoint {
    char *resource, *checkpoint_ref;
    int64_t generation, covered_seq, invalidated_seq;
};

struct memory_execution {
    int64_t key;
    struct uuid id;
    char *agent_id, *session; /* session NULL: none */
    struct uuid parent;
    enum execution_status status;
    int64_t last_seq, created_at, deadline_at, claim;
    enum owner_state owner;
    struct uuid owner_dispatch;
    int64_t owner_attempt, lease_until, owner_lease_us, tokens;
    struct buf indeterminate, parked;
    bool has_dispatch;
    struct dispatch dispatch;
    LIST(struct memory_event_row) events;
    LIST(struct submission) submissions;
    LIST(struct uuid) old_dispatches;
    /* Subagents and forks. */
    int64_t awaited, spawns, fork_seq;
    bool suspended, owes, forked, has_policy;
    struct uuid spawned_by, forked_from;
    struct hash spawned_step, policy_hash;
    struct buf above;
    char *output, *failure_reason, *restoration; /* NULL: none */
    LIST(struct resource) resources;             /* with malloc'ed texts */
    LIST(struct memory_checkpoint) checkpoints;
};

struct memory_step {
    int64_t key;
    struct hash id;
    struct uuid execution_id;
    enum step_kind kind;
    char *target;
    struct hash args_hash;
    int64_t occurrence, claim;
    enum step_status status;
    enum idempotency idempotency;
    char *result, *error, *rule_id, *affects; /* NULL: none */
    struct uuid subagent;
    struct usage usage;
    int64_t created_at, started_at, completed_at;
    int64_t payload_key; /* of the row that its result and error were copied from; 0: its own */
};

/* Rows under a key that no execution has yet. */
struct memory_slice {
    int64_t key;
    LIST(struct memory_step *) steps;
    LIST(struct memory_event_row) events;
};

struct memory_approval {
    int64_t key;
    struct uuid id, execution_id;
    struct hash step_id;
    enum approval_status status;
    char *approvers, *message, *decided_by, *asserted_by, *rationale; /* NULL: none */
    int64_t created_at, timeout_at, decided_at;
};

struct memory_bucket {
    int64_t full_at;
    bool unreadable;
};

struct memory_store {
    bool leases_in_set; /* like SQLite: leases are not stored, counts are complete */
    int64_t wall_us, mono_us;
    int64_t set_since; /* when the working set was last empty: what it remembers of leases */
    int64_t next_key, next_execution; /* of steps and approvals; of executions and pins */
    struct map executions, steps, request_keys, agents, buckets;
    LIST(struct memory_execution *) all;
    LIST(struct memory_step *) all_steps;
    LIST(struct memory_approval *) approvals;
    LIST(struct fork_pin) pins;
    LIST(struct memory_slice) slices; /* of the forks that are being copied */
};

/* The part of memory_resources.c and memory_forks.c in the functions below. */
void memory_resources_load(struct memory_store *m, struct working_set *ws);
void memory_resources_apply(struct memory_store *m, struct working_set *ws);
void memory_resources_free(struct memory_execution *x);
void memory_sessions_load(struct memory_store *m, struct working_set *ws);
void memory_forks_load(struct memory_store *m, struct working_set *ws);
void memory_forks_apply(struct memory_store *m, struct working_set *ws);
void memory_forks_free(struct memory_store *m);
void memory_step_free(struct memory_step *step);

void memory_store_init(struct memory_store *m, bool leases_in_set);
void memory_store_free(struct memory_store *m);
void memory_store_load(struct memory_store *m, struct working_set *ws);
/* The set is thrown away, as after a failed commit or by a new process. */
void memory_store_forget(struct memory_store *m, struct working_set *ws);
void memory_store_apply(struct memory_store *m, struct working_set *ws);
struct memory_execution *memory_execution(struct memory_store *m, const struct uuid *id);
struct memory_step *memory_step(struct memory_store *m, const struct hash *id);
struct memory_approval *memory_approval(struct memory_store *m, const struct uuid *id);
const struct fork_pin *memory_pin(const struct memory_store *m, const struct uuid *fork_id);
/* NULL: nothing lies under this key that nobody sees. */
const struct memory_slice *memory_slice(const struct memory_store *m, int64_t key);

#endif
