/* SPDX-License-Identifier: Apache-2.0
 * Who may write. Every rule of an agent's call begins here. */
#include "kernel/event.h"
#include "kernel/move.h"
#include "kernel/verdict.h"

enum verdict agent_reaches(struct working_set *ws, const struct uuid *execution_id,
                           struct str agent_id, struct execution **exec, struct err *e)
{
    if (!ws_knows_execution(ws, execution_id)) {
        ws_need_execution(ws, execution_id);
        return VERDICT_NEED;
    }
    *exec = ws_execution(ws, execution_id);
    if (*exec == NULL)
        return REFUSE(e, ERR_NOT_FOUND, "no such execution");
    if (!str_eq((*exec)->agent_id, agent_id))
        return REFUSE(e, ERR_FORBIDDEN, "this execution belongs to another agent");
    return VERDICT_DONE;
}

enum verdict lease_owns(struct working_set *ws, struct execution *exec, const struct lease_ref *ref,
                        struct err *e)
{
    struct uuid of;

    if (exec->owner != OWNER_NONE && uuid_eq(&exec->owner_dispatch, &ref->dispatch_id) &&
        exec->owner_attempt == ref->attempt)
        return VERDICT_DONE;
    if (uuid_eq(&exec->owner_dispatch, &ref->dispatch_id) ||
        (exec->dispatch != NULL && uuid_eq(&exec->dispatch->id, &ref->dispatch_id)))
        return REFUSE(e, ERR_LEASE_SUPERSEDED, "dispatch lease superseded");
    /* An older dispatch of this execution is known and owns nothing; any other id was never ours to
     * give. */
    if (!ws_knows_dispatch(ws, &ref->dispatch_id)) {
        ws_need_dispatch(ws, &ref->dispatch_id);
        return VERDICT_NEED;
    }
    if (ws_dispatch_execution(ws, &ref->dispatch_id, &of) && uuid_eq(&of, &exec->id))
        return REFUSE(e, ERR_LEASE_SUPERSEDED, "dispatch lease superseded");
    return REFUSE(e, ERR_VALIDATION,
                  "header Rebuno-Dispatch-Id names no dispatch of this execution");
}

enum verdict agent_owns_live(struct working_set *ws, const struct uuid *execution_id,
                             struct str agent_id, const struct lease_ref *ref,
                             struct execution **exec, struct err *e)
{
    enum verdict v = agent_reaches(ws, execution_id, agent_id, exec, e);

    if (v != VERDICT_DONE)
        return v;
    if (execution_status_is_terminal((*exec)->status))
        return REFUSE(e, ERR_EXECUTION_TERMINAL, "the execution has already ended: it is %s",
                      execution_status_name((*exec)->status).p);
    return lease_owns(ws, *exec, ref, e);
}

void lease_renew(struct working_set *ws, struct execution *exec)
{
    struct dispatch *d = exec->dispatch;

    if (exec->owner == OWNER_ENDED) {
        exec->lease_until = ws->now.lease_us + exec->owner_lease_us;
        ws_touch_lease(ws, exec);
    }
    if (exec->owner != OWNER_WORKING || d == NULL)
        return;
    if (d->status == DISPATCH_CLAIMED) {
        dispatch_move(ws, exec, DISPATCH_ACKED);
        event_dispatch(ws, exec, d, EVENT_DISPATCH_ACKED);
    }
    exec->lease_until = ws->now.lease_us + d->lease_us;
    ws_touch_lease(ws, exec);
}
