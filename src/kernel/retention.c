/* SPDX-License-Identifier: Apache-2.0 */
#include "kernel/retention.h"

void execution_unlink_names(struct working_set *ws, const struct execution_unlinking *cmd)
{
    ws_need_execution(ws, &cmd->execution_id);
    ws_need_keepers(ws, &cmd->execution_id, cmd->cutoff);
}

enum verdict execution_unlink(struct working_set *ws, const struct execution_unlinking *cmd,
                              bool *unlinked, struct err *e)
{
    struct execution *exec = ws_execution(ws, &cmd->execution_id);
    const struct keepers *keepers = ws_keepers(ws, &cmd->execution_id);

    (void)e;
    *unlinked = false;
    if (!ws_knows_execution(ws, &cmd->execution_id) || (exec != NULL && keepers == NULL)) {
        execution_unlink_names(ws, cmd);
        return VERDICT_NEED;
    }
    if (exec == NULL || !execution_status_is_terminal(exec->status) ||
        exec->ended_at >= cmd->cutoff || exec->owes)
        return VERDICT_DONE;
    if (keepers->session_live || keepers->continued || keepers->spawner_kept || keepers->pinned)
        return VERDICT_DONE;
    ws_unlink(ws, exec);
    *unlinked = true;
    return VERDICT_DONE;
}
