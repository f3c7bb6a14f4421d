/* SPDX-License-Identifier: Apache-2.0 */
#include "kernel/move.h"

void execution_move(struct working_set *ws, struct execution *exec, enum execution_status to)
{
    ASSERT(execution_may_move(exec->status, to));
    exec->status = to;
    ws_touch_execution(ws, exec);
}

void execution_end(struct working_set *ws, struct execution *exec, enum execution_status to,
                   struct str reason)
{
    ASSERT(execution_status_is_terminal(to));
    execution_move(ws, exec, to);
    exec->failure_reason = arena_str(&ws->arena, reason);
    exec->ended_at = ws->now.wall_us;
    exec->owner = OWNER_NONE;
    ws_retire_dispatch(ws, exec);
    ws_free_session(ws, exec);
    if (exec->owes)
        ws_owe(ws, exec);
    if (exec->spawns > 0)
        ws_orphan(ws, exec);
}

void step_move(struct working_set *ws, struct step *step, enum step_status to)
{
    ASSERT(step_may_move(step->status, to));
    if (step->status == STEP_EXECUTING && to != STEP_EXECUTING && !uuid_is_nil(&step->subagent)) {
        step->execution->awaited--;
        ws_touch_execution(ws, step->execution);
    }
    step->status = to;
    ws_touch_step(ws, step);
    if (to == STEP_EXECUTING) {
        step->started_at = ws->now.wall_us;
        step->claim = step->execution->claim;
    }
    if (step_status_is_terminal(to)) {
        step->completed_at = ws->now.wall_us;
        ws_step_left_live(step);
    }
}

void dispatch_move(struct working_set *ws, struct execution *exec, enum dispatch_status to)
{
    ASSERT(dispatch_may_move(exec->dispatch->status, to));
    exec->dispatch->status = to;
    ws_touch_dispatch(ws, exec);
}
