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

#include "base/chunk.h"
#include "kernel/rows.h"
#include "kernel/settings.h"
#include "policy/cache.h"

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
struct keepers_ref {
    struct uuid execution_id;
    int64_t cutoff; /* wall: what ended before is old */
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
    LIST(struct uuid) resources;      /* of these executions: all of them */
    LIST(struct uuid) inheritances; /* of these ended executions: their resources, without a lock */
    LIST(struct uuid) endings;      /* of these ended executions */
    LIST(struct uuid) forks;        /* pins, by the fork's id; they lock after the executions */
    LIST(struct keepers_ref) keepers; /* of these ended executions */
};

struct resource_change {
    struct execution *execution;
    size_t index; /* into its resources */
};
struct owed {
    struct uuid child, parent;
    struct hash step_id;
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
    LIST(struct resource_change) resources;
    LIST(struct checkpoint *) checkpoints; /* new ones; after ended_seq of the resources */
    LIST(struct fork_pin *) forks;
    LIST(const struct fork_slice *) slices;
    LIST(struct execution *) unlinked; /* their rows go, what is theirs goes later */
    LIST(struct chunks *) chunks; /* how payloads of this group are cut, by their bytes' place */
    /* Follow-ups of the group. */
    LIST(struct str) freed;     /* sessions that may admit their next one */
    LIST(struct owed) owed;     /* ends that the step they were spawned for waits to hear of */
    LIST(struct uuid) orphaned; /* ended executions whose subagents may live */
};

struct working_set {
    struct now now;
    const struct kernel_settings *settings;
    struct uuid_gen *ids;
    struct prng *random;
    bool keep_leased; /* SQLite: rows of leased executions outlive the group */
    /* Never 0. Raised by whatever changes an agent, and by whatever takes a change back. */
    uint64_t agents_version;
    struct arena arena; /* the group's; reset by ws_end_group */
    struct need need;
    struct changes changes;
    /* identity maps; values are rows, or a marker for "looked for, not there" */
    struct map agents, executions, request_keys, steps, dispatches, approvals, buckets, sessions,
        parents, inheritances, endings, forks, keepers;
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
void ws_need_resources(struct working_set *ws, const struct uuid *execution_id);
void ws_need_inheritance(struct working_set *ws, const struct uuid *execution_id);
void ws_need_ending(struct working_set *ws, const struct uuid *execution_id);
void ws_need_fork(struct working_set *ws, const struct uuid *fork_id);
void ws_need_keepers(struct working_set *ws, const struct uuid *execution_id, int64_t cutoff);
bool ws_has_needs(const struct working_set *ws);
void ws_clear_needs(struct working_set *ws);

/* ---- reading: ws_knows_* says whether the key was looked for; the row is NULL when it is not
 * there ---- */
bool ws_knows_agent(const struct working_set *ws, struct str id);
struct agent *ws_agent(const struct working_set *ws, struct str id);
/* What its agent's row says of the bundle, from the row or remembered; NULL: the row is not known,
 * or not there. */
const struct agent_bundle *ws_agent_bundle(const struct working_set *ws, struct execution *exec);
/* It is remembered: the agent need not be named for it. */
bool ws_remembers_bundle(const struct working_set *ws, const struct execution *exec);
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
/* NULL: not known. Rows in order of registration. */
struct inheritance {
    const struct resource *rows;
    size_t n;
};
const struct inheritance *ws_inheritance(const struct working_set *ws,
                                         const struct uuid *execution_id);
const struct ending *ws_ending(const struct working_set *ws, const struct uuid *execution_id);
const struct keepers *ws_keepers(const struct working_set *ws, const struct uuid *execution_id);
bool ws_knows_fork(const struct working_set *ws, const struct uuid *fork_id);
struct fork_pin *ws_fork(const struct working_set *ws, const struct uuid *fork_id);
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
/* `rows` (all of them, in order of registration) and their texts are copied; sets resources_known.
 * A set that knows them keeps what it has. */
void ws_put_resources(struct working_set *ws, struct execution *exec, const struct resource *rows,
                      size_t n);
/* These are borrowed from the group's arena, texts too. */
void ws_put_inheritance(struct working_set *ws, const struct uuid *execution_id,
                        const struct resource *rows, size_t n);
void ws_put_ending(struct working_set *ws, const struct ending *row);
void ws_put_keepers(struct working_set *ws, const struct keepers *row);
void ws_put_fork(struct working_set *ws, const struct fork_pin *row);
void ws_put_absent_fork(struct working_set *ws, const struct uuid *fork_id);

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
/* Texts are copied. The pointer holds until the next one is added. */
struct resource *ws_new_resource(struct working_set *ws, struct execution *exec,
                                 const struct resource *row);
void ws_touch_resource(struct working_set *ws, struct execution *exec, struct resource *resource);
/* Replaces an owned text of a resource or step. */
void ws_set_text(struct str *text, struct str value);
struct checkpoint *ws_new_checkpoint(struct working_set *ws, struct execution *exec,
                                     const struct checkpoint *row);
/* The open checkpoints of a resource end with this event: it is not covered any more. */
void ws_end_checkpoints(struct working_set *ws, struct execution *exec, struct resource *resource,
                        int64_t seq);
struct fork_pin *ws_new_fork(struct working_set *ws, const struct uuid *id);
void ws_touch_fork(struct working_set *ws, struct fork_pin *pin);
void ws_add_slice(struct working_set *ws, const struct fork_slice *slice);
void ws_unlink(struct working_set *ws, struct execution *exec);
/* A payload that this group may store, told from others by where its bytes are. Borrowed until the
 * group ends. */
void ws_add_chunks(struct working_set *ws, struct chunks *chunks);
/* Follow-ups of an end. */
void ws_owe(struct working_set *ws, const struct execution *child);
void ws_orphan(struct working_set *ws, const struct execution *exec);
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
