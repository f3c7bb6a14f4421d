/* SPDX-License-Identifier: Apache-2.0
 * Deliveries and leases. What counts against the maximum: deliveries in a row without progress
 * (`charged`). */
#include "kernel/dispatch.h"

#include "base/clock.h"
#include "kernel/agent.h"
#include "kernel/event.h"
#include "kernel/execution.h"
#include "kernel/move.h"

static const int64_t BACKOFF_BASE_US = US_PER_S;
static const int64_t BACKOFF_MAX_US = 30 * US_PER_S;
/* Unless the maximum was set by hand, an agent that is being deployed has this long to come back.
 */
static const int64_t PATIENCE_US = 600 * US_PER_S;
/* An agent that makes progress and dies each time must not go on for ever. */
enum { ATTEMPTS_IN_ALL = 10 };

void dispatch_enqueue(struct working_set *ws, struct execution *exec)
{
    struct uuid id = uuid_next(ws->ids, ws->now.wall_us);
    struct dispatch *d = ws_new_dispatch(ws, exec, &id);

    d->status = DISPATCH_QUEUED;
    d->due_at = d->queued_at = ws->now.wall_us;
    event_dispatch(ws, exec, d, EVENT_DISPATCH_QUEUED);
}

/* ---- claims ---- */

void dispatch_claim_names(struct working_set *ws, const struct dispatch_ref *cmd,
                          struct str agent_id)
{
    ws_need_execution(ws, &cmd->execution_id);
    ws_need_agent(ws, agent_id, false);
}

static int64_t lease_term(const struct working_set *ws, const struct agent *agent)
{
    return agent->lease_timeout_us >= AGENT_LEASE_MIN_S * US_PER_S ? agent->lease_timeout_us
                                                                   : ws->settings->lease_timeout_us;
}

/* The execution ended between the look at the queue and the claim. */
static void discard(struct working_set *ws, struct execution *exec, const struct uuid *dispatch_id)
{
    struct dispatch d = {.id = *dispatch_id, .attempt = exec->owner_attempt};

    event_dispatch(ws, exec, &d, EVENT_DISPATCH_DISCARDED);
    ws_touch_execution(ws, exec);
}

static void take(struct working_set *ws, struct execution *exec, const struct agent *agent)
{
    struct dispatch *d = exec->dispatch;
    int64_t answered_by = ws->settings->dispatch_timeout_us;

    dispatch_move(ws, exec, DISPATCH_CLAIMED);
    d->attempt++;
    d->charged++;
    if (d->charged == 1)
        d->charged_since = ws->now.wall_us;
    d->lease_us = exec->owner_lease_us = lease_term(ws, agent);
    exec->claim++;
    ws_clear_tallies(exec);
    exec->owner = OWNER_WORKING;
    exec->owner_dispatch = d->id;
    exec->owner_attempt = d->attempt;
    exec->lease_until = ws->now.lease_us + (d->lease_us > answered_by ? d->lease_us : answered_by);
    ws_touch_execution(ws, exec);
    ws_touch_lease(ws, exec);
}

/* Calls of the previous attempt still run: a newer one would cancel its handler, and what is nearly
 * done would be done twice or become indeterminate. */
static bool open_calls(const struct execution *exec)
{
    for (size_t i = 0; i < exec->n_live; i++)
        if (exec->live[i]->status == STEP_EXECUTING && exec->live[i]->claim == exec->claim)
            return true;
    return false;
}

static bool may_have_open_calls(const struct working_set *ws, const struct execution *exec)
{
    return exec->owner == OWNER_ENDED && exec->lease_until > ws->now.lease_us;
}

enum verdict dispatch_claim(struct working_set *ws, const struct dispatch_ref *cmd,
                            struct dispatch_claimed *answer, struct err *e)
{
    struct execution *exec = ws_execution(ws, &cmd->execution_id);
    const struct agent *agent;

    *answer = (struct dispatch_claimed){0};
    if (!ws_knows_execution(ws, &cmd->execution_id)) {
        ws_need_execution(ws, &cmd->execution_id);
        return VERDICT_NEED;
    }
    if (exec == NULL)
        return REFUSE(e, ERR_NOT_FOUND, "no such execution");
    if (execution_status_is_terminal(exec->status)) {
        discard(ws, exec, &cmd->dispatch_id);
        return VERDICT_DONE;
    }
    if (exec->dispatch == NULL || !uuid_eq(&exec->dispatch->id, &cmd->dispatch_id) ||
        exec->dispatch->status != DISPATCH_QUEUED || exec->dispatch->due_at > ws->now.wall_us)
        return VERDICT_DONE;
    if (!ws_knows_agent(ws, exec->agent_id)) {
        ws_need_agent(ws, exec->agent_id, false);
        return VERDICT_NEED;
    }
    if (may_have_open_calls(ws, exec)) {
        if (!exec->live_known) {
            ws_need_live_steps(ws, &exec->id);
            return VERDICT_NEED;
        }
        if (open_calls(exec)) {
            exec->dispatch->due_at = ws->now.wall_us + (exec->lease_until - ws->now.lease_us);
            ws_touch_dispatch(ws, exec);
            return VERDICT_DONE;
        }
    }
    agent = ws_agent(ws, exec->agent_id);
    if (agent == NULL) /* cannot be removed while this execution lives */
        return REFUSE(e, ERR_INTERNAL, "a live execution has no agent");
    take(ws, exec, agent);
    *answer = (struct dispatch_claimed){
        .claimed = true,
        .attempt = exec->dispatch->attempt,
        .agent_id = agent->id,
        .webhook_url = agent->webhook_url,
        .secret = agent->secret,
        .lease_us = exec->dispatch->lease_us,
    };
    return VERDICT_DONE;
}

/* ---- the end of an attempt ---- */

static bool exhausted(const struct working_set *ws, const struct dispatch *d)
{
    int64_t max = ws->settings->dispatch_max_attempts;

    if (d->attempt - d->spared >= ATTEMPTS_IN_ALL * max)
        return true;
    if (d->charged < max)
        return false;
    return ws->settings->dispatch_max_attempts_by_hand ||
           ws->now.wall_us - d->charged_since >= PATIENCE_US;
}

static void uncharge(struct dispatch *d)
{
    if (d->charged > 0)
        d->charged--;
    if (d->charged == 0)
        d->charged_since = 0;
}

/* Nobody owns the execution until the next claim. */
static void requeue(struct working_set *ws, struct execution *exec, int64_t delay_us)
{
    dispatch_move(ws, exec, DISPATCH_QUEUED);
    exec->dispatch->due_at = ws->now.wall_us + delay_us;
    exec->owner = OWNER_NONE;
    ws_clear_tallies(exec);
    ws_touch_execution(ws, exec);
}

static void requeue_or_fail(struct working_set *ws, struct execution *exec, int64_t delay_us)
{
    if (exhausted(ws, exec->dispatch))
        execution_fail(ws, exec, STR("dispatch_exhausted"));
    else
        requeue(ws, exec, delay_us);
}

/* min(base * 2^(n-1), max) with full jitter, n: the counted attempts so far. */
static int64_t backoff(struct working_set *ws, const struct dispatch *d)
{
    int64_t delay = BACKOFF_BASE_US;

    for (int64_t n = 1; n < d->charged && delay < BACKOFF_MAX_US; n++)
        delay *= 2;
    if (delay > BACKOFF_MAX_US)
        delay = BACKOFF_MAX_US;
    return (int64_t)prng_below(ws->random, (uint64_t)delay + 1);
}

void dispatch_park(struct working_set *ws, struct execution *exec, int64_t due_at)
{
    struct dispatch *d = exec->dispatch;

    ASSERT(exec->owner == OWNER_WORKING && d != NULL);
    uncharge(d);
    d->spared++;
    dispatch_move(ws, exec, DISPATCH_QUEUED);
    d->due_at = due_at;
    exec->owner = OWNER_ENDED;
    exec->lease_until = ws->now.lease_us + exec->owner_lease_us;
    ws_touch_execution(ws, exec);
    ws_touch_lease(ws, exec);
}

/* A rate limit holds it until then; 0: none does. */
static int64_t parked_until(const struct execution *exec)
{
    int64_t until = 0;

    for (size_t at = 0; at < exec->parked.n; at += sizeof(struct parked)) {
        struct parked row;

        memcpy(&row, exec->parked.p + at, sizeof(row));
        until = row.until > until ? row.until : until;
    }
    return until;
}

void dispatch_release_held(struct working_set *ws, struct execution *exec)
{
    struct dispatch *d = exec->dispatch;
    int64_t due = parked_until(exec);

    if (d == NULL || d->status != DISPATCH_QUEUED || d->due_at <= ws->now.wall_us ||
        (may_have_open_calls(ws, exec) && open_calls(exec)))
        return;
    if (due < ws->now.wall_us)
        due = ws->now.wall_us;
    if (due >= d->due_at)
        return;
    d->due_at = due;
    ws_touch_dispatch(ws, exec);
}

/* The execution of a delivery that is still the one in flight; else *exec is NULL. */
static enum verdict in_flight(struct working_set *ws, const struct dispatch_ref *cmd,
                              struct execution **exec)
{
    struct execution *found = ws_execution(ws, &cmd->execution_id);

    *exec = NULL;
    if (!ws_knows_execution(ws, &cmd->execution_id)) {
        ws_need_execution(ws, &cmd->execution_id);
        return VERDICT_NEED;
    }
    if (found != NULL && found->dispatch != NULL &&
        uuid_eq(&found->dispatch->id, &cmd->dispatch_id) &&
        found->dispatch->attempt == cmd->attempt && found->dispatch->status == DISPATCH_CLAIMED)
        *exec = found;
    return VERDICT_DONE;
}

enum verdict dispatch_delivered(struct working_set *ws, const struct dispatch_ref *cmd, bool acked,
                                struct err *e)
{
    struct execution *exec;
    struct dispatch *d;

    (void)e;
    if (in_flight(ws, cmd, &exec) == VERDICT_NEED)
        return VERDICT_NEED;
    if (exec == NULL)
        return VERDICT_DONE;
    if (acked) {
        lease_renew(ws, exec);
        return VERDICT_DONE;
    }
    d = exec->dispatch;
    event_dispatch(ws, exec, d, EVENT_DISPATCH_FAILED);
    if (ws->now.wall_us < d->grace_until)
        uncharge(d);
    requeue_or_fail(ws, exec, backoff(ws, d));
    return VERDICT_DONE;
}

enum verdict dispatch_return(struct working_set *ws, const struct dispatch_ref *cmd, struct err *e)
{
    struct execution *exec;

    (void)e;
    if (in_flight(ws, cmd, &exec) == VERDICT_NEED)
        return VERDICT_NEED;
    if (exec == NULL)
        return VERDICT_DONE;
    uncharge(exec->dispatch);
    requeue(ws, exec, 0);
    return VERDICT_DONE;
}

enum verdict dispatch_recover(struct working_set *ws, const struct uuid *execution_id,
                              bool at_start, struct err *e)
{
    struct execution *exec = ws_execution(ws, execution_id);

    (void)e;
    if (!ws_knows_execution(ws, execution_id)) {
        ws_need_execution(ws, execution_id);
        return VERDICT_NEED;
    }
    if (exec == NULL || exec->dispatch == NULL || !at_start)
        return VERDICT_DONE;
    if (exec->dispatch->status == DISPATCH_CLAIMED) {
        uncharge(exec->dispatch);
        requeue(ws, exec, 0);
    } else if (exec->dispatch->status == DISPATCH_ACKED && exec->owner == OWNER_WORKING) {
        exec->lease_until = ws->now.lease_us + exec->dispatch->lease_us;
        ws_touch_lease(ws, exec);
    }
    return VERDICT_DONE;
}

enum verdict lease_reclaim(struct working_set *ws, const struct uuid *execution_id, bool *reclaimed,
                           struct err *e)
{
    struct execution *exec = ws_execution(ws, execution_id);

    (void)e;
    *reclaimed = false;
    if (!ws_knows_execution(ws, execution_id)) {
        ws_need_execution(ws, execution_id);
        return VERDICT_NEED;
    }
    if (exec == NULL)
        return VERDICT_DONE;
    ws_let_go(ws, exec); /* an ended delivery whose last call is long ago */
    if (exec->dispatch == NULL || exec->owner != OWNER_WORKING ||
        exec->lease_until > ws->now.lease_us)
        return VERDICT_DONE;
    *reclaimed = true;
    requeue_or_fail(ws, exec, 0);
    return VERDICT_DONE;
}

/* ---- agents' calls ---- */

enum verdict lease_heartbeat(struct working_set *ws, const struct lease_call *cmd, struct err *e)
{
    struct execution *exec;
    enum verdict v = agent_reaches(ws, &cmd->execution_id, cmd->agent_id, &exec, e);

    if (v != VERDICT_DONE)
        return v;
    if (execution_status_is_terminal(exec->status)) /* this code is what stops a running handler */
        return REFUSE(e, ERR_LEASE_SUPERSEDED, "dispatch lease superseded");
    v = lease_owns(ws, exec, &cmd->lease, e);
    if (v == VERDICT_DONE)
        lease_renew(ws, exec);
    return v;
}

enum verdict lease_release(struct working_set *ws, const struct lease_call *cmd, struct err *e)
{
    struct execution *exec;
    enum verdict v = agent_owns_live(ws, &cmd->execution_id, cmd->agent_id, &cmd->lease, &exec, e);

    if (v != VERDICT_DONE)
        return v;
    if (exec->owner == OWNER_ENDED) { /* nothing to give back but the ownership */
        exec->owner = OWNER_NONE;
        ws_touch_execution(ws, exec);
        dispatch_release_held(ws, exec);
        return VERDICT_DONE;
    }
    lease_renew(ws, exec); /* a call under an unanswered delivery stands for its ack */
    uncharge(exec->dispatch);
    exec->dispatch->grace_until = ws->now.wall_us + exec->dispatch->lease_us;
    requeue(ws, exec, 0);
    return VERDICT_DONE;
}

enum verdict lease_suspend(struct working_set *ws, const struct lease_call *cmd, bool *suspended,
                           struct err *e)
{
    struct execution *exec;
    enum verdict v = agent_owns_live(ws, &cmd->execution_id, cmd->agent_id, &cmd->lease, &exec, e);

    if (v != VERDICT_DONE)
        return v;
    lease_renew(ws, exec);
    /* Blocked by an approval already, it waits for its subagents too. */
    if (exec->awaited > 0 && (exec->owner == OWNER_WORKING || exec->status == EXECUTION_BLOCKED))
        execution_block(ws, exec, true);
    *suspended = exec->owner == OWNER_ENDED;
    return VERDICT_DONE;
}
