/* SPDX-License-Identifier: Apache-2.0 */
#include "api/encode.h"

#include "base/clock.h"

static void member_uuid(struct json_writer *w, const char *key, const struct uuid *id)
{
    char text[UUID_TEXT_LEN];

    uuid_format(id, text);
    jw_member_str(w, key, str_make(text, sizeof(text)));
}

static void member_hash(struct json_writer *w, const char *key, const struct hash *h)
{
    char text[HASH_HEX_LEN];

    hash_hex(h, text);
    jw_member_str(w, key, str_make(text, sizeof(text)));
}

static void member_bool(struct json_writer *w, const char *key, bool value)
{
    jw_key(w, key);
    jw_bool(w, value);
}

static void member_time_opt(struct json_writer *w, const char *key,
                            int64_t wall_us) /* 0: left out */
{
    if (wall_us == 0)
        return;
    jw_key(w, key);
    jw_raw(w, STR("\""));
    clock_format_rfc3339(w->out, wall_us);
    buf_add_byte(w->out, '"');
}

static bool is_live(struct str status)
{
    enum execution_status s;

    return execution_status_parse(status, &s) && !execution_status_is_terminal(s);
}

static void add_approval_waits(struct json_writer *w, const struct waits *waits)
{
    for (size_t i = 0; i < waits->n; i++) {
        jw_open(w, '{');
        jw_member_str(w, "kind", STR("approval"));
        member_uuid(w, "id", &waits->approvals[i].id);
        member_time_opt(w, "until", waits->approvals[i].timeout_at);
        jw_close(w, '}');
    }
}

static void add_subagent_waits(struct json_writer *w, const struct waits *waits)
{
    for (size_t i = 0; i < waits->n_subagents; i++) {
        jw_open(w, '{');
        jw_member_str(w, "kind", STR("subagent"));
        member_uuid(w, "id", &waits->subagents[i]);
        jw_close(w, '}');
    }
}

/* A rate limit's time may be up, and then its delivery has only to find its turn. */
static void add_delivery_wait(struct json_writer *w, const struct execution_view *v, int64_t now_us)
{
    bool leased = str_present(v->dispatch_status) &&
                  !str_eq(v->dispatch_status, dispatch_status_name(DISPATCH_QUEUED));
    bool later = v->due_at > now_us, limited = !leased && v->parked && later;

    jw_open(w, '{');
    jw_member_str(w, "kind", leased ? STR("agent") : limited ? STR("rate_limit") : STR("dispatch"));
    if (leased) {
        jw_member_str(w, "id", v->agent_id);
        member_time_opt(w, "until", v->lease_until);
    } else if (str_present(v->dispatch_status)) {
        if (!limited)
            member_uuid(w, "id", &v->dispatch_id);
        member_time_opt(w, "until", later ? v->due_at : 0);
    }
    jw_close(w, '}');
}

static void add_session_wait(struct json_writer *w, const struct execution_view *v)
{
    jw_open(w, '{');
    jw_member_str(w, "kind", STR("session"));
    jw_member_str_opt(w, "id", v->session);
    jw_close(w, '}');
}

static void member_waiting_on(struct json_writer *w, const struct execution_view *v,
                              const struct waits *waits, int64_t now_us)
{
    bool pending = str_eq(v->status, execution_status_name(EXECUTION_PENDING)),
         blocked = str_eq(v->status, execution_status_name(EXECUTION_BLOCKED)),
         waits_for_steps = waits->n + waits->n_subagents > 0;

    jw_key(w, "waiting_on");
    jw_open(w, '[');
    if (pending)
        add_session_wait(w, v);
    else if (!blocked || !waits_for_steps)
        add_delivery_wait(w, v, now_us);
    add_approval_waits(w, waits);
    add_subagent_waits(w, waits);
    jw_close(w, ']');
}

static void member_spawned_by(struct json_writer *w, const struct execution_view *v)
{
    if (uuid_is_nil(&v->spawned_by))
        return;
    jw_key(w, "spawned_by");
    jw_open(w, '{');
    member_uuid(w, "execution_id", &v->spawned_by);
    member_hash(w, "step_id", &v->spawned_step);
    jw_close(w, '}');
}

static void members_of_fork(struct json_writer *w, const struct execution_view *v)
{
    if (uuid_is_nil(&v->forked_from))
        return;
    member_uuid(w, "forked_from", &v->forked_from);
    jw_member_int(w, "fork_seq", v->fork_seq);
    jw_member_raw_opt(w, "restoration", v->restoration);
}

void encode_execution(struct json_writer *w, const struct execution_view *v,
                      const struct waits *waits, int64_t now_us)
{
    jw_open(w, '{');
    member_uuid(w, "id", &v->id);
    jw_member_str(w, "agent_id", v->agent_id);
    jw_member_str(w, "status", v->status);
    jw_member_raw_opt(w, "input", str_present(v->input) ? v->input : STR("null"));
    jw_member_raw_opt(w, "output", v->output);
    jw_member_str_opt(w, "failure_reason", v->failure_reason);
    jw_member_str_opt(w, "session", v->session);
    if (!uuid_is_nil(&v->parent))
        member_uuid(w, "parent_execution_id", &v->parent);
    jw_member_str_opt(w, "idempotency_key", v->idempotency_key);
    member_spawned_by(w, v);
    members_of_fork(w, v);
    jw_member_str_opt(w, "created_by", v->created_by);
    jw_member_str_opt(w, "on_behalf_of", v->on_behalf_of);
    member_time_opt(w, "created_at", v->created_at);
    member_time_opt(w, "updated_at", v->updated_at);
    member_time_opt(w, "deadline_at", v->deadline_at);
    if (is_live(v->status))
        member_waiting_on(w, v, waits, now_us);
    jw_close(w, '}');
}

void encode_step(struct json_writer *w, const struct uuid *execution_id, const struct step_view *v)
{
    jw_open(w, '{');
    member_hash(w, "step_id", &v->id);
    member_uuid(w, "execution_id", execution_id);
    jw_member_str(w, "kind", v->kind);
    jw_member_str(w, "target", str_present(v->target) ? v->target : STR(""));
    member_hash(w, "args_hash", &v->args_hash);
    jw_member_int(w, "occurrence", v->occurrence);
    jw_member_str(w, "status", v->status);
    jw_member_str(w, "idempotency", v->idempotency);
    jw_member_raw_opt(w, "args", v->args);
    jw_member_raw_opt(w, "result", v->result);
    jw_member_raw_opt(w, "error", v->error);
    jw_member_raw_opt(w, "resources", v->affects);
    if (usage_known(v->usage)) {
        jw_key(w, "usage");
        usage_write(w, v->usage);
    }
    member_time_opt(w, "started_at", v->started_at);
    member_time_opt(w, "completed_at", v->completed_at);
    jw_close(w, '}');
}

void encode_agent(struct json_writer *w, const struct agent_view *v)
{
    jw_open(w, '{');
    jw_member_str(w, "id", v->id);
    jw_member_str(w, "webhook_url", v->webhook_url);
    jw_member_str_opt(w, "policy_bundle", v->policy_bundle);
    member_time_opt(w, "registered_at", v->registered_at);
    if (v->lease_timeout_us > 0)
        jw_member_int(w, "lease_timeout_seconds", v->lease_timeout_us / US_PER_S);
    jw_member_str_opt(w, "description", v->description);
    jw_member_raw_opt(w, "input_schema", v->input_schema);
    jw_member_raw_opt(w, "output_schema", v->output_schema);
    jw_close(w, '}');
}

void encode_approval(struct json_writer *w, const struct approval_view *v)
{
    jw_open(w, '{');
    member_uuid(w, "id", &v->id);
    member_hash(w, "step_id", &v->step_id);
    member_uuid(w, "execution_id", &v->execution_id);
    jw_member_str(w, "status", v->status);
    jw_member_raw_opt(w, "approvers", v->approvers);
    jw_member_str_opt(w, "message", v->message);
    member_time_opt(w, "timeout_at", v->timeout_at);
    jw_member_str_opt(w, "decided_by", v->decided_by);
    jw_member_str_opt(w, "asserted_by", v->asserted_by);
    member_time_opt(w, "decided_at", v->decided_at);
    jw_member_str_opt(w, "rationale", v->rationale);
    member_time_opt(w, "created_at", v->created_at);
    jw_member_str(w, "agent_id", v->agent_id);
    jw_member_str(w, "kind", v->kind);
    jw_member_str(w, "target", str_present(v->target) ? v->target : STR(""));
    jw_member_raw_opt(w, "args", v->args);
    jw_close(w, '}');
}

static void member_touched(struct json_writer *w, const struct step_answer *answer)
{
    if (answer->n_resources == 0)
        return;
    jw_key(w, "resources");
    jw_open(w, '[');
    for (size_t i = 0; i < answer->n_resources; i++) {
        const struct touched_resource *touched = &answer->resources[i];
        jw_open(w, '{');
        jw_member_str(w, "key", touched->key);
        jw_member_int(w, "generation", touched->generation);
        if (touched->due)
            member_bool(w, "due", true);
        jw_close(w, '}');
    }
    jw_close(w, ']');
}

void encode_decision(struct json_writer *w, const struct step_answer *answer)
{
    jw_open(w, '{');
    jw_member_str(w, "decision", decision_name(answer->decision));
    if (answer->has_step_id)
        member_hash(w, "step_id", &answer->step_id);
    jw_member_raw_opt(w, "result", answer->result);
    jw_member_raw_opt(w, "error", answer->error);
    if (answer->has_approval)
        member_uuid(w, "approval_id", &answer->approval_id);
    jw_member_str_opt(w, "reason", answer->reason);
    jw_member_str_opt(w, "rule_id", answer->rule_id);
    member_touched(w, answer);
    jw_close(w, '}');
}

void encode_resource(struct json_writer *w, const struct resource *row)
{
    jw_open(w, '{');
    jw_member_str(w, "key", row->key);
    jw_member_str(w, "driver_id", row->driver_id);
    jw_member_raw_opt(w, "configuration", row->configuration);
    member_bool(w, "coverage_reuse", row->coverage_reuse);
    jw_member_int(w, "every_steps", row->every_steps);
    member_bool(w, "on_completion", row->on_completion);
    jw_member_int(w, "generation", row->generation);
    jw_member_int(w, "count", row->count);
    jw_member_int(w, "registered_seq", row->registered_seq);
    jw_member_raw_opt(w, "binding", row->binding);
    jw_member_str_opt(w, "checkpoint_ref", row->checkpoint_ref);
    member_bool(w, "covered", row->covered);
    jw_close(w, '}');
}

void encode_checkpoint(struct json_writer *w, const struct checkpoint *row)
{
    jw_open(w, '{');
    jw_member_str(w, "key", row->resource);
    jw_member_int(w, "generation", row->generation);
    jw_member_str(w, "checkpoint_ref", row->checkpoint_ref);
    jw_member_int(w, "covered_seq", row->covered_seq);
    if (row->invalidated_seq > 0)
        jw_member_int(w, "invalidated_seq", row->invalidated_seq);
    jw_close(w, '}');
}
