/* SPDX-License-Identifier: Apache-2.0
 * The rules of subagents. The step that starts one remembers it, so that whatever asks whether a
 * step waits finds it on the step's own side. */
#include "kernel/subagent.h"

#include "base/json.h"
#include "kernel/step.h"

/* ---- starting one ---- */

void subagent_create_names(struct working_set *ws, const struct execution_creation *cmd)
{
    ws_need_execution(ws, &cmd->spawner);
    ws_need_step(ws, &cmd->spawner, &cmd->spawned_step);
}

/* NULL: the step is not of that execution. */
static struct step *spawning_step(const struct working_set *ws,
                                  const struct execution_creation *cmd)
{
    struct step *step = ws_step(ws, &cmd->spawned_step);

    return step != NULL && uuid_eq(&step->execution->id, &cmd->spawner) ? step : NULL;
}

enum verdict subagent_find(struct working_set *ws, const struct execution_creation *cmd,
                           struct execution_created *answer, struct err *e)
{
    struct step *step;

    answer->existing = false;
    if (!ws_knows_execution(ws, &cmd->spawner) ||
        (ws_execution(ws, &cmd->spawner) != NULL && !ws_knows_step(ws, &cmd->spawned_step))) {
        subagent_create_names(ws, cmd);
        return VERDICT_NEED;
    }
    if (ws_execution(ws, &cmd->spawner) == NULL)
        return REFUSE(e, ERR_NOT_FOUND, "spawned_by: no such execution");
    step = spawning_step(ws, cmd);
    if (step == NULL)
        return REFUSE(e, ERR_VALIDATION, "spawned_by: the step is not of that execution");
    if (!uuid_is_nil(&step->subagent))
        *answer = (struct execution_created){.id = step->subagent, .existing = true};
    return VERDICT_DONE;
}

/* Is `session` one of those that `above` lists, each with a NUL behind it? */
static bool lists(struct str above, struct str session)
{
    struct str rest = above;

    while (rest.n > 0) {
        size_t n = strnlen(rest.p, rest.n);

        if (str_eq(str_slice(rest, 0, n), session))
            return true;
        rest = str_slice(rest, n < rest.n ? n + 1 : n, rest.n);
    }
    return false;
}

enum verdict subagent_check(struct working_set *ws, const struct execution_creation *cmd,
                            struct str key, struct err *e)
{
    const struct execution *spawner = ws_execution(ws, &cmd->spawner);
    const struct step *step = spawning_step(ws, cmd);
    struct uuid other;

    ASSERT(spawner != NULL && step != NULL); /* subagent_find saw to that */
    if (execution_status_is_terminal(spawner->status))
        return REFUSE(e, ERR_CONFLICT, "spawned_by: the execution has already ended: it is %s",
                      execution_status_name(spawner->status).p);
    if (step->status != STEP_EXECUTING)
        return REFUSE(e, ERR_CONFLICT, "spawned_by: the step is %s, not executing",
                      step_status_name(step->status).p);
    if (str_present(cmd->session) &&
        (str_eq(cmd->session, spawner->session) || lists(spawner->above, cmd->session)))
        return REFUSE(e, ERR_VALIDATION,
                      "session: %.*s is held by an execution that waits for this one; they would "
                      "wait for each other",
                      STR_ARG(cmd->session));
    if (ws_request_key(ws, cmd->agent_id, key, &other))
        return REFUSE(e, ERR_CONFLICT,
                      "idempotency_key: it belongs to an execution that was not started by this "
                      "step");
    return VERDICT_DONE;
}

/* What a subagent of it must not want to hold. */
static struct str sessions_above(struct working_set *ws, const struct execution *spawner)
{
    struct buf names = {0};
    struct str copy;

    if (!str_present(spawner->session))
        return spawner->above;
    buf_add(&names, spawner->above);
    buf_add(&names, spawner->session);
    buf_add_byte(&names, '\0');
    copy = arena_str(&ws->arena, buf_str(&names));
    buf_free(&names);
    return copy;
}

void subagent_link(struct working_set *ws, struct execution *exec,
                   const struct execution_creation *cmd)
{
    struct step *step = spawning_step(ws, cmd);
    struct execution *spawner;

    ASSERT(step != NULL);
    spawner = step->execution;
    exec->spawned_by = cmd->spawner;
    exec->spawned_step = cmd->spawned_step;
    exec->owes = true;
    ws_set_text(&exec->above, sessions_above(ws, spawner));
    step->subagent = exec->id;
    ws_touch_step(ws, step);
    spawner->spawns++;
    spawner->awaited++;
    ws_touch_execution(ws, spawner);
}

/* ---- its end ---- */

void subagent_settle_names(struct working_set *ws, const struct subagent_end *cmd)
{
    ws_need_execution(ws, &cmd->child);
    ws_need_execution(ws, &cmd->parent);
    ws_need_step(ws, &cmd->parent, &cmd->step_id);
    ws_need_ending(ws, &cmd->child);
}

static bool knows_both(const struct working_set *ws, const struct subagent_end *cmd)
{
    if (!ws_knows_execution(ws, &cmd->child) || !ws_knows_execution(ws, &cmd->parent))
        return false;
    return ws_execution(ws, &cmd->child) == NULL || ws_execution(ws, &cmd->parent) == NULL ||
           (ws_knows_step(ws, &cmd->step_id) && ws_ending(ws, &cmd->child) != NULL);
}

/* {"reason","message","execution_id","failure_reason"?}: SDKs show the message. */
static struct str error_of(struct working_set *ws, const struct execution *child,
                           const struct ending *ending)
{
    bool failed = child->status == EXECUTION_FAILED;
    struct buf text = {0}, message = {0};
    struct json_writer w = {.out = &text};
    char id[UUID_TEXT_LEN];
    struct str json;

    uuid_format(&child->id, id);
    buf_printf(&message, "subagent %.*s (%.*s) %s", STR_ARG(child->agent_id), (int)sizeof(id), id,
               failed ? "failed" : "was cancelled");
    if (str_present(ending->failure_reason))
        buf_printf(&message, ": %.*s", STR_ARG(ending->failure_reason));
    jw_open(&w, '{');
    jw_member_str(&w, "reason", failed ? STR("subagent_failed") : STR("subagent_cancelled"));
    jw_member_str(&w, "message", buf_str(&message));
    jw_member_str(&w, "execution_id", str_make(id, sizeof(id)));
    jw_member_str_opt(&w, "failure_reason", ending->failure_reason);
    jw_close(&w, '}');
    json = arena_str(&ws->arena, buf_str(&text));
    buf_free(&text);
    buf_free(&message);
    return json;
}

static struct step *waiting_step(const struct working_set *ws, const struct subagent_end *cmd)
{
    struct execution *parent = ws_execution(ws, &cmd->parent);
    struct step *step = parent == NULL ? NULL : ws_step(ws, &cmd->step_id);

    if (step == NULL || step->execution != parent || execution_status_is_terminal(parent->status) ||
        step->status != STEP_EXECUTING || !uuid_eq(&step->subagent, &cmd->child))
        return NULL;
    return step;
}

enum verdict subagent_settle(struct working_set *ws, const struct subagent_end *cmd, struct err *e)
{
    struct execution *child = ws_execution(ws, &cmd->child);
    const struct ending *ending = ws_ending(ws, &cmd->child);
    struct step *step;
    struct str value;

    (void)e;
    if (!knows_both(ws, cmd)) {
        subagent_settle_names(ws, cmd);
        return VERDICT_NEED;
    }
    if (child == NULL || !child->owes || !execution_status_is_terminal(child->status))
        return VERDICT_DONE;
    step = waiting_step(ws, cmd);
    if (step != NULL) {
        if (!step_may_settle(ws, step))
            return VERDICT_NEED;
        if (child->status != EXECUTION_COMPLETED)
            value = error_of(ws, child, ending);
        else
            value = str_present(ending->output) ? ending->output : STR("null");
        step_settle_subagent(ws, step, child->status != EXECUTION_COMPLETED, value);
    }
    child->owes = false;
    ws_touch_execution(ws, child);
    return VERDICT_DONE;
}
