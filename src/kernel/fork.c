/* SPDX-License-Identifier: Apache-2.0
 * How a fork comes to be: its source is pinned, its rows are written, it appears. */
#include "kernel/fork.h"

#include "base/clock.h"
#include "base/json.h"
#include "kernel/event.h"
#include "kernel/execution.h"

static const char GIVEN_UP[] =
    "the fork was given up before it was complete, since it made no progress; nothing of it is "
    "left, try again";

/* ---- beginning ---- */

void fork_begin_names(struct working_set *ws, const struct fork_begin *cmd)
{
    ws_need_execution(ws, &cmd->source);
    if (str_present(cmd->session))
        ws_need_session(ws, cmd->session);
}

static enum verdict check_session(const struct working_set *ws, struct str session, struct err *e)
{
    if (str_present(session) && ws_session(ws, session)->used)
        return REFUSE(e, ERR_CONFLICT, "the session of a fork must be new; %.*s is in use",
                      STR_ARG(session));
    return VERDICT_DONE;
}

enum verdict fork_begin(struct working_set *ws, const struct fork_begin *cmd,
                        struct fork_begun *answer, struct err *e)
{
    struct execution *source = ws_execution(ws, &cmd->source);
    struct fork_pin *pin;
    struct uuid id;

    if (!ws_knows_execution(ws, &cmd->source) ||
        (str_present(cmd->session) && ws_session(ws, cmd->session) == NULL)) {
        fork_begin_names(ws, cmd);
        return VERDICT_NEED;
    }
    if (source == NULL)
        return REFUSE(e, ERR_NOT_FOUND, "no such execution");
    if (cmd->at_seq < 1 || cmd->at_seq > source->last_seq)
        return REFUSE(e, ERR_VALIDATION,
                      "at_seq must be the sequence of an event of the execution: 1 to %lld",
                      (long long)source->last_seq);
    if (check_session(ws, cmd->session, e) != VERDICT_DONE)
        return VERDICT_REFUSED;
    id = uuid_next(ws->ids, ws->now.wall_us);
    pin = ws_new_fork(ws, &id);
    pin->source = source->id;
    pin->source_key = source->key;
    pin->touched_at = ws->now.wall_us;
    *answer = (struct fork_begun){
        .id = id,
        .last_seq = source->last_seq,
        .agent_id = arena_str(&ws->arena, source->agent_id),
    };
    return VERDICT_DONE;
}

/* ---- its rows ---- */

static void checkpoint_members(const struct checkpoint *c, struct buf *text)
{
    struct json_writer w = {.out = text, .comma = true};

    jw_member_int(&w, "generation", c->generation);
    jw_member_str(&w, "checkpoint_ref", c->checkpoint_ref);
    jw_member_int(&w, "covered_seq", c->covered_seq);
}

/* One row of the log, in the group's arena. */
static struct event_copy *checkpoint_events(struct working_set *ws, const struct fork_part *cmd)
{
    struct event_copy *row = arena_new(&ws->arena, struct event_copy);
    struct buf body = {0}, members = {0};

    for (size_t i = 0; i < cmd->slice.n_checkpoints; i++) {
        const struct checkpoint *c = &cmd->slice.checkpoints[i];

        buf_clear(&members);
        checkpoint_members(c, &members);
        event_resource_line(&body, c->resource, EVENT_RESOURCE_CHECKPOINTED, buf_str(&members));
    }
    *row = (struct event_copy){
        .first_seq = cmd->checkpoint_seq,
        .count = (int64_t)cmd->slice.n_checkpoints,
        .occurred_at = ws->now.wall_us,
        .body = arena_str(&ws->arena, buf_str(&body)),
    };
    buf_free(&body);
    buf_free(&members);
    return row;
}

void fork_part_names(struct working_set *ws, const struct fork_part *cmd)
{
    ws_need_fork(ws, &cmd->fork_id);
}

/* DONE: *pin is the fork's, and in hand. */
static enum verdict find_pin(struct working_set *ws, const struct uuid *fork_id,
                             struct fork_pin **pin, struct err *e)
{
    if (!ws_knows_fork(ws, fork_id)) {
        ws_need_fork(ws, fork_id);
        return VERDICT_NEED;
    }
    *pin = ws_fork(ws, fork_id);
    if (*pin == NULL)
        return REFUSE(e, ERR_UNAVAILABLE, GIVEN_UP);
    return VERDICT_DONE;
}

enum verdict fork_add_part(struct working_set *ws, struct fork_part *cmd, struct err *e)
{
    struct fork_pin *pin;
    enum verdict v = find_pin(ws, &cmd->fork_id, &pin, e);

    if (v != VERDICT_DONE)
        return v;
    pin->touched_at = ws->now.wall_us;
    ws_touch_fork(ws, pin);
    cmd->slice.key = pin->key;
    if (cmd->slice.n_checkpoints > 0) {
        cmd->slice.events = checkpoint_events(ws, cmd);
        cmd->slice.n_events = 1;
    }
    ws_add_slice(ws, &cmd->slice);
    return VERDICT_DONE;
}

/* ---- appearing ---- */

void fork_finish_names(struct working_set *ws, const struct fork_finish *cmd)
{
    ws_need_agent_kept(ws, cmd->agent_id);
    if (str_present(cmd->session))
        ws_need_session(ws, cmd->session);
    ws_need_execution(ws, &cmd->source);
    fork_part_names(ws, &cmd->last);
}

static bool knows_what_appearing_needs(const struct working_set *ws, const struct fork_finish *cmd)
{
    const struct agent *agent = ws_agent(ws, cmd->agent_id);

    return ws_knows_agent(ws, cmd->agent_id) && (agent == NULL || agent->kept) &&
           (!str_present(cmd->session) || ws_session(ws, cmd->session) != NULL) &&
           ws_knows_execution(ws, &cmd->source);
}

static struct execution *new_fork(struct working_set *ws, const struct fork_finish *cmd,
                                  const struct fork_pin *pin)
{
    struct execution *exec = ws_new_execution(ws, &pin->id, cmd->agent_id, cmd->session);
    struct forking *forking = arena_new(&ws->arena, struct forking);

    *forking = (struct forking){cmd->source, cmd->at_seq, cmd->restoration, cmd->policy_bundle};
    exec->key = pin->key;
    exec->forked = true;
    exec->input = cmd->input;
    exec->on_behalf_of = cmd->on_behalf_of;
    exec->created_by = cmd->created_by;
    exec->has_policy = str_present(cmd->policy_bundle);
    exec->bundle.hash = cmd->policy_hash;
    exec->forking = forking;
    exec->tokens = cmd->tokens;
    buf_add(&exec->indeterminate, cmd->indeterminate);
    /* Copied steps were never counted as submissions of a claim: a first claim that is number 1
     * would promise that whatever was not counted is new. */
    exec->claim = 1;
    exec->created_at = ws->now.wall_us;
    if (ws->settings->deadline_timeout_us > 0)
        exec->deadline_at = ws->now.wall_us + ws->settings->deadline_timeout_us;
    return exec;
}

static struct str forked_members(struct working_set *ws, const struct fork_finish *cmd)
{
    struct buf text = {0};
    struct json_writer w = {.out = &text, .comma = true};
    char id[UUID_TEXT_LEN];
    struct str members;

    uuid_format(&cmd->source, id);
    jw_member_str(&w, "source_execution_id", str_make(id, sizeof(id)));
    jw_member_int(&w, "fork_seq", cmd->at_seq);
    jw_key(&w, "policy_override");
    jw_bool(&w, str_present(cmd->policy_bundle));
    jw_member_raw_opt(&w, "restoration", cmd->restoration);
    members = arena_str(&ws->arena, buf_str(&text));
    buf_free(&text);
    return members;
}

static void event_initialized(struct working_set *ws, struct execution *exec,
                              const struct resource *r)
{
    struct buf text = {0};
    struct json_writer w = {.out = &text, .comma = true};

    jw_member_int(&w, "generation", r->generation);
    jw_member_str_opt(&w, "checkpoint_ref", r->checkpoint_ref);
    event_resource(ws, exec, r->key, EVENT_RESOURCE_INITIALIZED, buf_str(&text));
    buf_free(&text);
}

static void event_checkpointed(struct working_set *ws, struct execution *exec,
                               const struct checkpoint *c)
{
    struct buf text = {0};

    checkpoint_members(c, &text);
    event_resource(ws, exec, c->resource, EVENT_RESOURCE_CHECKPOINTED, buf_str(&text));
    buf_free(&text);
}

/* What earlier parts have written stands between what the log has so far and what comes now. */
static void skip_written(struct execution *exec, int64_t next_seq)
{
    ASSERT(exec->last_seq < next_seq);
    exec->last_seq = next_seq - 1;
    exec->transition = NULL;
}

/* Behind the copied events. What a checkpoint was invalidated by may be nothing that was copied:
 * then its coverage ends where the fork starts to live. */
static void add_resources(struct working_set *ws, struct execution *exec,
                          const struct fork_finish *cmd)
{
    int64_t started;

    for (size_t i = 0; i < cmd->n_resources; i++) {
        (void)ws_new_resource(ws, exec, &cmd->resources[i]);
        event_initialized(ws, exec, &cmd->resources[i]);
    }
    if (cmd->n_checkpoints_before > 0)
        skip_written(exec, exec->last_seq + (int64_t)cmd->n_checkpoints_before + 1);
    started = exec->last_seq + (int64_t)cmd->n_checkpoints + 1;
    for (size_t i = 0; i < cmd->n_checkpoints; i++) {
        struct checkpoint c = cmd->checkpoints[i];

        if (c.invalidated_seq < 0)
            c.invalidated_seq = started;
        (void)ws_new_checkpoint(ws, exec, &c);
        event_checkpointed(ws, exec, &c);
    }
}

enum verdict fork_finish(struct working_set *ws, struct fork_finish *cmd, struct err *e)
{
    struct agent *agent = ws_agent(ws, cmd->agent_id);
    const struct execution *source = ws_execution(ws, &cmd->source);
    struct execution *exec;
    struct fork_pin *pin = NULL;
    enum verdict v = find_pin(ws, &cmd->last.fork_id, &pin, e);

    if (!knows_what_appearing_needs(ws, cmd)) {
        fork_finish_names(ws, cmd);
        return VERDICT_NEED;
    }
    if (v != VERDICT_DONE)
        return v;
    if (agent == NULL)
        return REFUSE(e, ERR_NOT_FOUND, "no such agent: register it first");
    if (check_session(ws, cmd->session, e) != VERDICT_DONE)
        return VERDICT_REFUSED;
    ASSERT(source != NULL); /* pinned */
    exec = new_fork(ws, cmd, pin);
    agent->has_live = true;
    execution_created_event(ws, exec);
    event_execution(ws, exec, EVENT_EXECUTION_FORKED, forked_members(ws, cmd));
    cmd->last.slice.key = pin->key;
    ws_add_slice(ws, &cmd->last.slice);
    skip_written(exec, cmd->next_seq); /* the copied events */
    add_resources(ws, exec, cmd);
    if (str_present(cmd->session)) {
        ws_session(ws, cmd->session)->used = true;
        ws_session(ws, cmd->session)->holder = exec->id;
    }
    execution_start(ws, exec, &source->parent);
    pin->gone = true;
    ws_touch_fork(ws, pin);
    return VERDICT_DONE;
}

/* ---- giving up ---- */

void fork_abandon_names(struct working_set *ws, const struct fork_abandon *cmd)
{
    ws_need_fork(ws, &cmd->fork_id);
}

enum verdict fork_abandon(struct working_set *ws, const struct fork_abandon *cmd, struct err *e)
{
    struct fork_pin *pin;

    (void)e;
    if (!ws_knows_fork(ws, &cmd->fork_id)) {
        ws_need_fork(ws, &cmd->fork_id);
        return VERDICT_NEED;
    }
    pin = ws_fork(ws, &cmd->fork_id);
    if (pin == NULL ||
        (!cmd->failed && ws->now.wall_us - pin->touched_at < FORK_PATIENCE_S * US_PER_S))
        return VERDICT_DONE;
    pin->gone = pin->abandoned = true;
    ws_touch_fork(ws, pin);
    return VERDICT_DONE;
}
