/* SPDX-License-Identifier: Apache-2.0
 * Deliveries: queued, claimed, answered, leased, taken back (docs/protocol.md, "Leases and
 * attempts"). */
#ifndef KERNEL_DISPATCH_H
#define KERNEL_DISPATCH_H

#include "kernel/verdict.h"

/* Queues the next delivery of a running execution, due at once, with its event. */
void dispatch_enqueue(struct working_set *ws, struct execution *exec);
/* The delivery ends and the run is delivered again at `due_at` (wall), uncharged: a rate limit has
 * parked a step. The attempt keeps the ownership. */
void dispatch_park(struct working_set *ws, struct execution *exec, int64_t due_at);
/* A call of an ended delivery has settled. A delivery that was held back for it is due now, unless
 * others are still open or a rate limit holds it. The live steps must be known while its owner is
 * ENDED. */
void dispatch_release_held(struct working_set *ws, struct execution *exec);

/* Which delivery a command is about. */
struct dispatch_ref {
    struct uuid execution_id, dispatch_id;
    int64_t attempt; /* not for claims */
};

/* Takes a due dispatch for delivery: the next attempt, with fresh occurrence counts and a lease. */
struct dispatch_claimed {
    bool claimed; /* false: it is not due (any more); nothing was changed */
    int64_t attempt;
    struct str agent_id, webhook_url, secret; /* arena of the set: copy before the group ends */
    int64_t lease_us;
};
void dispatch_claim_names(struct working_set *ws, const struct dispatch_ref *cmd,
                          struct str agent_id);
MUST_USE
enum verdict dispatch_claim(struct working_set *ws, const struct dispatch_ref *cmd,
                            struct dispatch_claimed *answer, struct err *e);

/* What the webhook answered. Outdated news changes nothing. */
MUST_USE
enum verdict dispatch_delivered(struct working_set *ws, const struct dispatch_ref *cmd, bool acked,
                                struct err *e);

/* Gives a claimed delivery back that was never sent, or whose answer nobody will hear: a stopping
 * kernel, or one that finds it at its start. Not charged. */
MUST_USE
enum verdict dispatch_return(struct working_set *ws, const struct dispatch_ref *cmd, struct err *e);

/* At the start of a kernel: what it finds claimed is given back, what it finds acked keeps its
 * attempt, under a fresh full lease. Otherwise (its memory of the leases was lost while it ran) it
 * is loaded, and nothing else: that renews it. */
MUST_USE
enum verdict dispatch_recover(struct working_set *ws, const struct uuid *execution_id,
                              bool at_start, struct err *e);

/* Takes back an execution whose lease has run out, if it has. */
MUST_USE
enum verdict lease_reclaim(struct working_set *ws, const struct uuid *execution_id, bool *reclaimed,
                           struct err *e);

/* Agents' calls. */
struct lease_call {
    struct uuid execution_id;
    struct str agent_id;
    struct lease_ref lease;
};
MUST_USE
enum verdict lease_heartbeat(struct working_set *ws, const struct lease_call *cmd, struct err *e);
MUST_USE
enum verdict lease_release(struct working_set *ws, const struct lease_call *cmd, struct err *e);
/* *suspended: the delivery has ended; else nothing waits, and the agent goes on. */
MUST_USE
enum verdict lease_suspend(struct working_set *ws, const struct lease_call *cmd, bool *suspended,
                           struct err *e);

#endif
