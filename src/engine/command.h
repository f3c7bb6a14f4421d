/* SPDX-License-Identifier: Apache-2.0
 * A command: one write, decided by one rule. Plain data; who submits it owns it and gets it back
 * through `done`. */
#ifndef ENGINE_COMMAND_H
#define ENGINE_COMMAND_H

#include "base/queue.h"
#include "kernel/agent.h"
#include "kernel/approval.h"
#include "kernel/dispatch.h"
#include "kernel/execution.h"
#include "kernel/fork.h"
#include "kernel/resource.h"
#include "kernel/retention.h"
#include "kernel/session.h"
#include "kernel/step.h"
#include "kernel/subagent.h"

enum command_type {
    COMMAND_CREATE,
    COMMAND_CANCEL,
    COMMAND_FINISH,
    COMMAND_SUBMIT,
    COMMAND_SETTLE,
    COMMAND_DELTA,
    COMMAND_HEARTBEAT,
    COMMAND_RELEASE,
    COMMAND_SUSPEND,
    COMMAND_AGENT_REGISTER,
    COMMAND_AGENT_DESCRIBE,
    COMMAND_AGENT_REMOVE,
    COMMAND_RESOURCE_REGISTER,
    COMMAND_RESOURCE_BIND,
    COMMAND_RESOURCE_CAPTURE,
    COMMAND_ADMIT,
    COMMAND_SUBAGENT_SETTLE,
    COMMAND_FORK_BEGIN,
    COMMAND_FORK_PART,
    COMMAND_FORK_FINISH,
    COMMAND_FORK_ABANDON,
    COMMAND_UNLINK,
    COMMAND_POLICY_SET,
    COMMAND_APPROVAL_DECIDE,
    COMMAND_APPROVAL_EXPIRE,
    COMMAND_CLAIM,
    COMMAND_DELIVERED,
    COMMAND_RETURN,
    COMMAND_RECOVER,
    COMMAND_RECLAIM,
};

struct delivery { /* COMMAND_CLAIM, _DELIVERED, _RETURN */
    struct dispatch_ref ref;
    struct str agent_id; /* claims */
    bool acked;          /* _DELIVERED */
};

struct command {
    struct queue_node node; /* the queue's; must be first */
    enum command_type type;
    union {
        struct execution_creation create;
        struct execution_cancellation cancel;
        struct execution_finish finish;
        struct step_submission submit;
        struct step_outcome settle;
        struct step_delta delta;
        struct lease_call lease; /* heartbeat, release, suspend */
        struct agent_registration agent_register;
        struct agent_description agent_describe;
        struct str agent_remove;
        struct resource_registration resource_register;
        struct resource_binding resource_bind;
        struct resource_capture resource_capture;
        struct str admit; /* the session */
        struct subagent_end subagent_settle;
        struct fork_begin fork_begin;
        struct fork_part fork_part;
        struct fork_finish fork_finish;
        struct fork_abandon fork_abandon;
        struct execution_unlinking unlink;
        struct policy_setting policy_set;
        struct approval_decision approval; /* decide, expire */
        struct delivery delivery;
        struct {
            struct uuid execution_id;
            bool at_start;
        } recover;
        struct uuid reclaim;
    } in;
    /* Filled when verdict is VERDICT_DONE. Slices live in `arena`. */
    union {
        struct execution_created created;
        struct step_answer step; /* submit, settle */
        struct approval_decided approval;
        struct resource_answer resource;
        struct fork_begun begun;
        bool suspended;
        bool unlinked;
        bool reclaimed;
        struct dispatch_claimed claimed;
    } out;
    enum verdict verdict; /* DONE, or REFUSED with `err` (also when the store is unavailable) */
    struct err err;
    bool unknown; /* refused, but it may have happened: the connection broke during the commit.
                     `out` holds what it would have answered, uncopied slices aside. */
    struct arena *
        arena; /* borrowed: takes copies of the answer's slices; nobody else may use it meanwhile */
    size_t bytes;          /* of its payloads: a group is bounded in bytes too */
    struct chunks *chunks; /* how its large payload is cut, borrowed; NULL: it is stored whole */
    /* After the commit, on the executor's thread: hand the news on and return; it must not block.
     * May free the command. */
    void (*done)(struct command *cmd);
    void *ctx;
    /* The engine's own; zero at first. */
    int64_t queued_us; /* when it was submitted last */
    int64_t decide_ns; /* time that its rule took so far */
    bool aside;        /* handed out for work that others may not wait for, and still waiting */
    /* Its follow-ups: which of the group's changes.freed, .owed and .orphaned is its own, from 1;
     * 0: none. */
    size_t frees, owes, orphans;
    bool follow_up; /* it is one itself: its answer does not wait for its own */
};

#endif
