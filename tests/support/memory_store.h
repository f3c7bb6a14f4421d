/* SPDX-License-Identifier: Apache-2.0
 * A store in memory for simulations: loads a working set and applies its changes as the real ones
 * do, with a clock that the test turns. It can forget what a killed process forgets. */
#ifndef SUPPORT_MEMORY_STORE_H
#define SUPPORT_MEMORY_STORE_H

#include "kernel/working_set.h"

struct memory_event_row {
    int64_t first_seq, count;
    char *body;
    size_t n;
};

struct memory_execution {
    struct uuid id;
    char *agent_id;
    enum execution_status status;
    int64_t last_seq, created_at, deadline_at, claim;
    enum owner_state owner;
    struct uuid owner_dispatch;
    int64_t owner_attempt, lease_until;
    struct buf indeterminate;
    bool has_dispatch;
    struct dispatch dispatch;
    LIST(struct memory_event_row) events;
    LIST(struct submission) submissions;
    LIST(struct uuid) old_dispatches;
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
    char *result, *error, *rule_id; /* NULL: none */
    int64_t created_at, started_at, completed_at;
};

struct memory_store {
    bool leases_in_set; /* like SQLite: leases are not stored, counts are complete */
    int64_t wall_us, mono_us;
    int64_t next_key;
    struct map executions, steps, request_keys, agents;
    LIST(struct memory_execution *) all;
    LIST(struct memory_step *) all_steps;
};

void memory_store_init(struct memory_store *m, bool leases_in_set);
void memory_store_free(struct memory_store *m);
void memory_store_load(struct memory_store *m, struct working_set *ws);
void memory_store_apply(struct memory_store *m, struct working_set *ws);
struct memory_execution *memory_execution(struct memory_store *m, const struct uuid *id);
struct memory_step *memory_step(struct memory_store *m, const struct hash *id);

#endif
