/* SPDX-License-Identifier: Apache-2.0 */
#include "kernel/session.h"

#include "kernel/execution.h"
#include "kernel/resource.h"

void session_admit_names(struct working_set *ws, struct str session)
{
    ws_need_session(ws, session);
}

enum verdict session_admit(struct working_set *ws, struct str name, struct err *e)
{
    struct session *session = ws_session(ws, name);
    struct execution *exec;
    struct inheritance inherited = {NULL, 0};
    struct uuid parent;

    (void)e;
    if (session == NULL) {
        ws_need_session(ws, name);
        return VERDICT_NEED;
    }
    if (!uuid_is_nil(&session->holder) || uuid_is_nil(&session->waiter))
        return VERDICT_DONE;
    if (!ws_knows_execution(ws, &session->waiter)) {
        ws_need_execution(ws, &session->waiter);
        return VERDICT_NEED;
    }
    exec = ws_execution(ws, &session->waiter);
    if (exec == NULL || exec->status != EXECUTION_PENDING) /* its end brings a follow-up too */
        return VERDICT_DONE;
    if (uuid_is_nil(&exec->parent) && !ws_knows_parent(ws, name, exec->agent_id)) {
        ws_need_parent(ws, name, exec->agent_id);
        return VERDICT_NEED;
    }
    parent = uuid_is_nil(&exec->parent) ? ws_parent(ws, name, exec->agent_id) : exec->parent;
    if (uuid_is_nil(&exec->parent) && !execution_inheritance(ws, &parent, &inherited))
        return VERDICT_NEED;
    session->holder = exec->id;
    session->waiter = (struct uuid){{0}};
    resources_inherit(ws, exec, inherited.rows, inherited.n);
    execution_start(ws, exec, &parent);
    return VERDICT_DONE;
}
