/* SPDX-License-Identifier: Apache-2.0 */
#include "kernel/execution.h"

#include "base/json.h"
#include "kernel/approval.h"
#include "kernel/dispatch.h"
#include "kernel/event.h"
#include "kernel/move.h"
#include "kernel/resource.h"
#include "kernel/subagent.h"

static struct str string_member(struct working_set *ws, const char *name, struct str value)
{
    struct buf text = {0};
    struct str member;

    buf_printf(&text, ",\"%s\":", name);
    json_add_string(&text, value);
    member = arena_str(&ws->arena, buf_str(&text));
    buf_free(&text);
    return member;
}

/* ---- creating and starting ---- */

static struct str request_key(struct working_set *ws, const struct execution_creation *cmd)
{
    char hex[HASH_HEX_LEN];

    if (str_present(cmd->idempotency_key) || uuid_is_nil(&cmd->spawner))
        return cmd->idempotency_key;
    hash_hex(&cmd->spawned_step, hex);
    return arena_str(&ws->arena, str_make(hex, sizeof(hex)));
}

void execution_create_names(struct working_set *ws, const struct execution_creation *cmd)
{
    struct str key = request_key(ws, cmd);

    ws_need_agent_kept(ws, cmd->agent_id);
    if (str_present(key))
        ws_need_request_key(ws, cmd->agent_id, key);
    if (!uuid_is_nil(&cmd->spawner))
        subagent_create_names(ws, cmd);
    if (str_present(cmd->session)) {
        ws_need_session(ws, cmd->session);
        ws_need_parent(ws, cmd->session, cmd->agent_id);
    }
    if (!uuid_is_nil(&cmd->parent))
        ws_need_execution(ws, &cmd->parent);
}

static bool knows_what_creating_needs(struct working_set *ws, const struct execution_creation *cmd)
{
    const struct agent *agent = ws_agent(ws, cmd->agent_id);
    struct str key = request_key(ws, cmd);

    return ws_knows_agent(ws, cmd->agent_id) && (agent == NULL || agent->kept) &&
           (!str_present(key) || ws_knows_request_key(ws, cmd->agent_id, key)) &&
           (!str_present(cmd->session) || (ws_session(ws, cmd->session) != NULL &&
                                           ws_knows_parent(ws, cmd->session, cmd->agent_id))) &&
           (uuid_is_nil(&cmd->parent) || ws_knows_execution(ws, &cmd->parent));
}

/* A branch continues a given execution, in a session of its own if in any. */
static enum verdict check_branch(struct working_set *ws, const struct execution_creation *cmd,
                                 struct err *e)
{
    const struct execution *parent = ws_execution(ws, &cmd->parent);

    if (parent == NULL)
        return REFUSE(e, ERR_NOT_FOUND, "parent_execution_id: no such execution");
    if (!str_eq(parent->agent_id, cmd->agent_id))
        return REFUSE(e, ERR_CONFLICT,
                      "parent_execution_id names an execution of another agent, %.*s",
                      STR_ARG(parent->agent_id));
    if (parent->status != EXECUTION_COMPLETED)
        return REFUSE(e, ERR_CONFLICT,
                      "parent_execution_id must name a completed execution; it is %s",
                      execution_status_name(parent->status).p);
    if (str_present(cmd->session) && ws_session(ws, cmd->session)->used)
        return REFUSE(e, ERR_CONFLICT,
                      "with parent_execution_id the session must be new; %.*s is in use",
                      STR_ARG(cmd->session));
    return VERDICT_DONE;
}

static void add_spawned_by(struct buf *out, const struct execution *exec)
{
    char id[UUID_TEXT_LEN];

    uuid_format(&exec->spawned_by, id);
    buf_printf(out, ",\"spawned_by\":{\"execution_id\":\"%.*s\",\"step_id\":\"", (int)sizeof(id),
               id);
    buf_add_hex(out, exec->spawned_step.b, sizeof(exec->spawned_step.b));
    buf_add(out, STR("\"}"));
}

void execution_created_event(struct working_set *ws, struct execution *exec)
{
    struct buf extra = {0};

    buf_add(&extra, string_member(ws, "created_by", exec->created_by));
    if (str_present(exec->on_behalf_of))
        buf_add(&extra, string_member(ws, "on_behalf_of", exec->on_behalf_of));
    if (!uuid_is_nil(&exec->spawned_by))
        add_spawned_by(&extra, exec);
    event_execution(ws, exec, EVENT_EXECUTION_CREATED, buf_str(&extra));
    buf_free(&extra);
}

void execution_start(struct working_set *ws, struct execution *exec, const struct uuid *parent)
{
    char id[UUID_TEXT_LEN];
    struct str member = STR("");

    exec->parent = *parent;
    execution_move(ws, exec, EXECUTION_RUNNING);
    uuid_format(parent, id);
    if (!uuid_is_nil(parent))
        member = string_member(ws, "parent_execution_id", str_make(id, sizeof(id)));
    event_execution(ws, exec, EVENT_EXECUTION_STARTED, member);
    dispatch_enqueue(ws, exec);
}

bool execution_inheritance(struct working_set *ws, const struct uuid *parent,
                           struct inheritance *out)
{
    struct execution *exec = ws_execution(ws, parent);
    const struct inheritance *stored = ws_inheritance(ws, parent);

    *out = (struct inheritance){NULL, 0};
    if (uuid_is_nil(parent))
        return true;
    if (exec != NULL && exec->resources_known) /* this group may have changed them */
        *out = (struct inheritance){exec->resources, exec->n_resources};
    else if (stored != NULL)
        *out = *stored;
    else
        ws_need_inheritance(ws, parent);
    return (exec != NULL && exec->resources_known) || stored != NULL;
}

static bool must_wait(const struct session *session)
{
    return !uuid_is_nil(&session->holder) || !uuid_is_nil(&session->waiter);
}

/* What the turn that starts now takes over from the one before. */
static bool knows_inheritance(struct working_set *ws, const struct execution_creation *cmd,
                              struct inheritance *out)
{
    struct uuid parent;

    *out = (struct inheritance){NULL, 0};
    if (!str_present(cmd->session) || !uuid_is_nil(&cmd->parent) ||
        must_wait(ws_session(ws, cmd->session)))
        return true;
    parent = ws_parent(ws, cmd->session, cmd->agent_id);
    return execution_inheritance(ws, &parent, out);
}

/* At once, unless its session is held or others wait for it. */
static void start_or_wait(struct working_set *ws, struct execution *exec,
                          const struct inheritance *inherited)
{
    struct session *session;
    struct uuid parent = exec->parent;

    if (!str_present(exec->session)) {
        execution_start(ws, exec, &parent);
        return;
    }
    session = ws_session(ws, exec->session);
    session->used = true;
    if (must_wait(session)) {
        if (uuid_is_nil(&session->waiter))
            session->waiter = exec->id;
        return;
    }
    session->holder = exec->id;
    if (uuid_is_nil(&parent))
        parent = ws_parent(ws, exec->session, exec->agent_id);
    resources_inherit(ws, exec, inherited->rows, inherited->n);
    execution_start(ws, exec, &parent);
}

static struct execution *new_execution(struct working_set *ws, const struct execution_creation *cmd)
{
    struct uuid id = uuid_next(ws->ids, ws->now.wall_us);
    struct execution *exec = ws_new_execution(ws, &id, cmd->agent_id, cmd->session);

    exec->input = cmd->input;
    exec->idempotency_key = request_key(ws, cmd);
    exec->created_by = cmd->created_by;
    exec->on_behalf_of = cmd->on_behalf_of;
    exec->parent = cmd->parent;
    exec->created_at = ws->now.wall_us;
    if (ws->settings->deadline_timeout_us > 0)
        exec->deadline_at = ws->now.wall_us + ws->settings->deadline_timeout_us;
    return exec;
}

enum verdict execution_create(struct working_set *ws, const struct execution_creation *cmd,
                              struct execution_created *answer, struct err *e)
{
    struct str key = request_key(ws, cmd);
    struct agent *agent = ws_agent(ws, cmd->agent_id);
    struct inheritance inherited;
    struct execution *exec;
    enum verdict v;

    if (!knows_what_creating_needs(ws, cmd)) {
        execution_create_names(ws, cmd);
        return VERDICT_NEED;
    }
    if (!uuid_is_nil(&cmd->spawner)) {
        v = subagent_find(ws, cmd, answer, e);
        if (v != VERDICT_DONE || answer->existing)
            return v;
    } else if (str_present(key) && ws_request_key(ws, cmd->agent_id, key, &answer->id)) {
        answer->existing = true;
        return VERDICT_DONE;
    }
    if (agent == NULL)
        return REFUSE(e, ERR_NOT_FOUND, "no such agent: register it first");
    if (!uuid_is_nil(&cmd->parent) && check_branch(ws, cmd, e) != VERDICT_DONE)
        return VERDICT_REFUSED;
    if (!uuid_is_nil(&cmd->spawner) && subagent_check(ws, cmd, key, e) != VERDICT_DONE)
        return VERDICT_REFUSED;
    if (!knows_inheritance(ws, cmd, &inherited))
        return VERDICT_NEED;
    exec = new_execution(ws, cmd);
    if (str_present(key))
        ws_put_request_key(ws, cmd->agent_id, key, &exec->id);
    agent->has_live = true; /* a removal later in this group must see it */
    if (!uuid_is_nil(&cmd->spawner))
        subagent_link(ws, exec, cmd);
    execution_created_event(ws, exec);
    start_or_wait(ws, exec, &inherited);
    *answer = (struct execution_created){.id = exec->id};
    return VERDICT_DONE;
}

/* ---- waiting ---- */

void execution_block(struct working_set *ws, struct execution *exec, bool suspended)
{
    if (exec->status == EXECUTION_BLOCKED) {
        exec->suspended |= suspended;
        ws_touch_execution(ws, exec);
        return;
    }
    execution_move(ws, exec, EXECUTION_BLOCKED);
    exec->suspended = suspended;
    exec->owner = OWNER_ENDED;
    exec->lease_until = ws->now.lease_us + exec->owner_lease_us;
    ws_touch_lease(ws, exec);
    ws_retire_dispatch(ws, exec);
    event_execution(ws, exec, EVENT_EXECUTION_BLOCKED,
                    suspended ? STR(",\"reason\":\"awaiting_steps\"") : STR(""));
}

void execution_resume(struct working_set *ws, struct execution *exec)
{
    ASSERT(exec->pending_known);
    if (exec->status != EXECUTION_BLOCKED || exec->n_pending > 0 ||
        (exec->suspended && exec->awaited > 0))
        return;
    exec->suspended = false;
    execution_move(ws, exec, EXECUTION_RUNNING);
    event_execution(ws, exec, EVENT_EXECUTION_RESUMED, STR(""));
    dispatch_enqueue(ws, exec);
}

/* What its end will touch of a blocked one, beside itself. */
static bool knows_what_waits(struct working_set *ws, struct execution *exec)
{
    if (exec->status != EXECUTION_BLOCKED || (exec->pending_known && exec->live_known))
        return true;
    ws_need_pending(ws, &exec->id);
    if (!exec->live_known)
        ws_need_live_steps(ws, &exec->id);
    return false;
}

/* ---- cancel ---- */

void execution_cancel_names(struct working_set *ws, const struct execution_cancellation *cmd)
{
    ws_need_execution(ws, &cmd->execution_id);
}

/* What was executing, or allowed and not yet run, in order of creation. */
static void cancel_steps(struct working_set *ws, struct execution *exec)
{
    static const struct str error = STR_INIT("{\"reason\":\"execution_cancelled\"}");
    static const struct str member = STR_INIT(",\"error\":{\"reason\":\"execution_cancelled\"}");
    size_t i = 0;

    while (i < exec->n_live) {
        struct step *step = exec->live[i];

        if (step->status != STEP_EXECUTING && step->status != STEP_ALLOWED) {
            i++;
            continue;
        }
        step->error = error;
        step_move(ws, step, STEP_CANCELLED); /* leaves exec->live */
        event_step(ws, step, EVENT_STEP_CANCELLED, member);
    }
}

static const struct str CANCEL_REASON[] = {
    [CANCEL_BY_CLIENT] = STR_INIT("client_cancelled"),
    [CANCEL_BY_DEADLINE] = STR_INIT("deadline_exceeded"),
    [CANCEL_BY_PARENT] = STR_INIT("parent_agent_terminal"),
};

enum verdict execution_cancel(struct working_set *ws, const struct execution_cancellation *cmd,
                              struct err *e)
{
    struct execution *exec = ws_execution(ws, &cmd->execution_id);
    struct str reason = CANCEL_REASON[cmd->cause];

    if (!ws_knows_execution(ws, &cmd->execution_id)) {
        ws_need_execution(ws, &cmd->execution_id);
        return VERDICT_NEED;
    }
    if (exec == NULL)
        return REFUSE(e, ERR_NOT_FOUND, "no such execution");
    if (execution_status_is_terminal(exec->status)) {
        return REFUSE(e, ERR_CONFLICT, "the execution has already ended: it is %s",
                      execution_status_name(exec->status).p);
    }
    if (cmd->cause == CANCEL_BY_DEADLINE &&
        (exec->deadline_at == 0 || exec->deadline_at > ws->now.wall_us))
        return REFUSE(e, ERR_CONFLICT, "the deadline has not passed");
    if (!knows_what_waits(ws, exec))
        return VERDICT_NEED;
    if (!exec->live_known) {
        ws_need_live_steps(ws, &cmd->execution_id);
        return VERDICT_NEED;
    }
    execution_end(ws, exec, EXECUTION_CANCELLED, reason);
    event_execution(ws, exec, EVENT_EXECUTION_CANCELLED, string_member(ws, "reason", reason));
    approvals_end(ws, exec);
    cancel_steps(ws, exec);
    return VERDICT_DONE;
}

/* ---- the agent's final word ---- */

void execution_finish_names(struct working_set *ws, const struct execution_finish *cmd)
{
    ws_need_execution(ws, &cmd->execution_id);
}

enum verdict execution_finish(struct working_set *ws, const struct execution_finish *cmd,
                              struct err *e)
{
    struct execution *exec;
    enum verdict v = agent_owns_live(ws, &cmd->execution_id, cmd->agent_id, &cmd->lease, &exec, e);

    if (v != VERDICT_DONE)
        return v;
    if (!knows_what_waits(ws, exec))
        return VERDICT_NEED;
    if (!cmd->failed && exec->owner == OWNER_ENDED)
        return REFUSE(e, ERR_CONFLICT, "this delivery has ended: the run goes on under the next");
    lease_renew(ws, exec);
    if (cmd->failed) {
        execution_fail(ws, exec, cmd->error);
        return VERDICT_DONE;
    }
    exec->output = cmd->output;
    exec->state = cmd->state;
    execution_end(ws, exec, EXECUTION_COMPLETED, STR_NONE);
    event_execution(ws, exec, EVENT_EXECUTION_COMPLETED, STR(",\"output\":@"));
    return VERDICT_DONE;
}

void execution_fail(struct working_set *ws, struct execution *exec, struct str reason)
{
    execution_end(ws, exec, EXECUTION_FAILED, reason);
    event_execution(ws, exec, EVENT_EXECUTION_FAILED, string_member(ws, "reason", reason));
    approvals_end(ws, exec);
}
