/* SPDX-License-Identifier: Apache-2.0
 * Events as lines. Unknown types are shown with their payload, so that a newer kernel can be
 * watched. */
#include "cli/event_line.h"

#include "cli/event_put.h"
#include "cli/restoration.h"
#include "cli/text.h"
#include "cli/view.h"
#include "cli/when.h"

enum { BINDING_COLUMNS = 120 };

struct event_step {
    struct str kind, target;
    int64_t started_us;
    unsigned runs;
    bool settled;
};

/* What lines are made of; absent fields are STR_NONE. */
struct payload {
    struct str step_id, kind, target, error, usage, rule, reason, output, attempt, by, of, status;
    struct str approval, decided_by, rationale, until, key, session, parent;
    struct str source, fork_seq, override, restoration, spawned_by;
    struct str resources, driver, every, on_completion, ref, covered_seq, binding;
};

bool event_read(struct str json, struct arena *a, struct event *out)
{
    struct str seq, at;
    const struct view_field fields[] = {{"event_seq", false, &seq},
                                        {"type", true, &out->type},
                                        {"occurred_at", true, &at},
                                        {"payload", false, &out->payload}};
    struct err ignored;

    *out = (struct event){0};
    if (!json_check(json, &ignored) || json_type_of(json) != JSON_OBJECT)
        return false;
    view_read(json, fields, COUNT(fields), a);
    if (!str_present(seq) || !json_int64(seq, &out->seq))
        out->seq = 0;
    if (!str_present(at) || !clock_parse_rfc3339(at, &out->at_us))
        out->at_us = 0;
    return str_present(out->type);
}

static void read_payload(struct str json, struct payload *p, struct arena *a)
{
    const struct view_field fields[] = {
        {"step_id", true, &p->step_id},
        {"step_type", true, &p->kind},
        {"target", true, &p->target},
        {"error", false, &p->error},
        {"usage", false, &p->usage},
        {"rule_id", true, &p->rule},
        {"reason", true, &p->reason},
        {"output", false, &p->output},
        {"attempt", false, &p->attempt},
        {"created_by", true, &p->by},
        {"on_behalf_of", true, &p->of},
        {"status", true, &p->status},
        {"approval_id", true, &p->approval},
        {"decided_by", true, &p->decided_by},
        {"rationale", true, &p->rationale},
        {"until", true, &p->until},
        {"key", true, &p->key},
        {"session", true, &p->session},
        {"parent_execution_id", true, &p->parent},
        {"source_execution_id", true, &p->source},
        {"fork_seq", false, &p->fork_seq},
        {"policy_override", false, &p->override},
        {"restoration", false, &p->restoration},
        {"spawned_by", false, &p->spawned_by},
        {"resources", false, &p->resources},
        {"driver_id", true, &p->driver},
        {"every_steps", false, &p->every},
        {"on_completion", false, &p->on_completion},
        {"checkpoint_ref", true, &p->ref},
        {"covered_seq", false, &p->covered_seq},
        {"binding", false, &p->binding},
    };

    view_read(json, fields, COUNT(fields), a);
}

/* ---- what the log so far says ---- */

static struct event_step *step_of(struct event_log *log, struct str step_id)
{
    struct event_step *step = map_get(&log->steps, step_id);

    if (step == NULL) {
        step = arena_new(&log->a, struct event_step);
        map_put(&log->steps, step_id, step);
    }
    return step;
}

static void add_took(struct buf *out, const struct event_step *step, int64_t at_us)
{
    if (step->started_us == 0 || at_us < step->started_us)
        return;
    buf_add(out, STR("in "));
    when_duration(out, at_us - step->started_us);
}

static void add_usage(struct buf *out, struct str usage, struct arena *a)
{
    struct str in, made;
    const struct view_field fields[] = {{"input_tokens", false, &in},
                                        {"output_tokens", false, &made}};

    view_read(usage, fields, COUNT(fields), a);
    if (str_present(in) && str_present(made))
        buf_printf(out, "%s%.*s tokens in, %.*s out", out->n > 0 ? ", " : "", STR_ARG(in),
                   STR_ARG(made));
}

/* ---- lines by family ---- */

static void add_rule(struct buf *out, struct str rule)
{
    if (str_present(rule))
        buf_printf(out, "%sby rule %.*s", out->n > 0 ? ", " : "", STR_ARG(rule));
}

/* A step that is not allowed to run now. */
static void describe_limit(const struct payload *p, struct event_words *l)
{
    int64_t until = 0;

    l->type_paint = l->detail_paint = PAINT_BUSY;
    if (str_present(p->until) && clock_parse_rfc3339(p->until, &until)) {
        buf_add(&l->detail, STR("waits until "));
        when_clock(&l->detail, until);
    } else {
        buf_add(&l->detail, STR("refused"));
    }
    add_rule(&l->detail, p->rule);
}

/* A model call that was answered with an error succeeds as a step. It took no tokens, so most need
 * not be asked about. */
static void add_failed_status(const struct event_log *log, const struct payload *p,
                              struct event_words *l)
{
    if (log->failed_status == NULL || !str_eq(p->kind, STR("llm_call")) || str_present(p->usage))
        return;
    int64_t status = log->failed_status(log->ctx, p->step_id);

    if (status == 0)
        return;
    buf_printf(&l->detail, "%sHTTP %lld", l->detail.n > 0 ? ", " : "", (long long)status);
    l->detail_paint = PAINT_BAD;
}

static void describe_run(struct event_step *step, const struct event *ev, const struct payload *p,
                         struct event_words *l, struct arena *a)
{
    struct str changes = view_names(p->resources, a);

    step->runs++;
    step->started_us = ev->at_us;
    if (step->runs > 1) {
        buf_printf(&l->detail, "executed again (run %u)", step->runs);
        l->detail_paint = PAINT_BUSY;
    }
    if (str_present(changes))
        buf_printf(&l->detail, "%smay change %.*s", l->detail.n > 0 ? ", " : "", STR_ARG(changes));
}

static void describe_step(struct event_log *log, const struct event *ev, const struct payload *p,
                          struct event_words *l, struct arena *a)
{
    struct event_step *step = step_of(log, p->step_id);
    struct str verb = str_slice(ev->type, STR("step.").n, ev->type.n);

    if (!str_present(step->kind)) {
        step->kind = arena_str(&log->a, p->kind);
        step->target = arena_str(&log->a, p->target);
    }
    buf_printf(&l->what, "%.*s %.*s", STR_ARG(p->kind), STR_ARG(p->target));
    l->type_paint = view_status_paint(verb);
    if (str_eq(verb, STR("rate_limited"))) {
        describe_limit(p, l);
        return;
    }
    if (str_eq(verb, STR("executing"))) {
        describe_run(step, ev, p, l, a);
        return;
    }
    if (str_eq(verb, STR("allowed"))) {
        if (str_present(p->rule) && !str_eq(p->rule, STR("permissive")))
            add_rule(&l->detail, p->rule);
        return;
    }
    bool settles = str_eq(verb, STR("succeeded")) || str_eq(verb, STR("failed")) ||
                   str_eq(verb, STR("denied"));
    if (settles && !step->settled) {
        step->settled = true;
        log->settled++;
    }
    if (settles)
        add_took(&l->detail, step, ev->at_us);
    if (str_eq(verb, STR("succeeded")))
        add_failed_status(log, p, l);
    add_usage(&l->detail, p->usage, a);
    if (str_present(p->error))
        buf_printf(&l->detail, "%s%.*s", l->detail.n > 0 ? ": " : "",
                   STR_ARG(view_error_text(p->error, a)));
    add_rule(&l->detail, p->rule);
}

static void describe_ack(struct event_log *log, struct event_words *l)
{
    bool again = log->acked;

    log->acked = true;
    buf_add_z(&l->detail, again ? "the agent starts over" : "the agent has it");
    if (!again)
        return;
    l->detail_paint = PAINT_BUSY;
    if (log->settled > 0)
        buf_printf(&l->detail, "; %zu recorded step%s will replay", log->settled,
                   log->settled == 1 ? "" : "s");
}

static void describe_dispatch(struct event_log *log, const struct event *ev,
                              const struct payload *p, struct event_words *l)
{
    struct str verb = str_slice(ev->type, STR("dispatch.").n, ev->type.n);
    int64_t attempt = 0;

    if (!str_present(p->attempt) || !json_int64(p->attempt, &attempt))
        attempt = 0;
    if (attempt > 0)
        buf_printf(&l->what, "attempt %lld", (long long)attempt);
    if (str_eq(verb, STR("acked"))) {
        describe_ack(log, l);
    } else if (str_eq(verb, STR("failed"))) {
        buf_add_z(&l->detail, "the webhook did not take it; the kernel's log says why");
        l->type_paint = PAINT_BAD;
    }
}

static void end_execution(struct event_log *log, const struct event *ev, const struct payload *p)
{
    log->ended = true;
    log->completed = str_eq(ev->type, STR("execution.completed"));
    buf_clear(&log->status);
    buf_add(&log->status, str_slice(ev->type, STR("execution.").n, ev->type.n));
    log->took_us =
        log->created_us > 0 && ev->at_us > log->created_us ? ev->at_us - log->created_us : 0;
    buf_clear(&log->outcome);
    if (log->completed)
        buf_add(&log->outcome, str_present(p->output) ? p->output : STR("null"));
    else
        buf_add(&log->outcome, p->reason);
}

static void describe_created(const struct payload *p, struct event_words *l, struct arena *a)
{
    struct str parent;
    const struct view_field fields[] = {{"execution_id", true, &parent}};

    if (str_present(p->by))
        buf_printf(&l->what, "by %.*s", STR_ARG(p->by));
    if (str_present(p->of))
        buf_printf(&l->what, " on behalf of %.*s", STR_ARG(p->of));
    if (str_present(p->session))
        buf_printf(&l->detail, "in session %.*s", STR_ARG(p->session));
    view_read(p->spawned_by, fields, COUNT(fields), a);
    if (str_present(parent))
        buf_printf(&l->detail, "%sfor a step of %.*s", l->detail.n > 0 ? ", " : "",
                   STR_ARG(view_short_id(parent)));
}

static void describe_forked(const struct payload *p, struct event_words *l, struct arena *a)
{
    struct json_walk walk = {0};
    struct restored r;

    buf_printf(&l->what, "from %.*s at event %.*s", STR_ARG(view_short_id(p->source)),
               STR_ARG(p->fork_seq));
    if (str_eq(p->override, STR("true")))
        buf_add(&l->detail, STR("under a policy of its own"));
    while (restoration_next(p->restoration, &walk, a, &r)) {
        struct str told = restoration_text(&r, STR_NONE, a);

        buf_printf(&l->detail, "%s%.*s %.*s%s", l->detail.n > 0 ? "; " : "", STR_ARG(r.key),
                   STR_ARG(told), r.covered ? "" : ", not covered there");
        if (!r.covered)
            l->detail_paint = PAINT_BUSY;
    }
}

static void describe_execution(struct event_log *log, const struct event *ev,
                               const struct payload *p, struct event_words *l, struct arena *a)
{
    struct str verb = str_slice(ev->type, STR("execution.").n, ev->type.n);

    l->type_paint = view_status_paint(verb);
    if (str_eq(verb, STR("created"))) {
        log->created_us = ev->at_us;
        describe_created(p, l, a);
        return;
    }
    if (str_eq(verb, STR("forked"))) {
        describe_forked(p, l, a);
        return;
    }
    if (str_eq(verb, STR("started")) && str_present(p->parent))
        buf_printf(&l->what, "continues %.*s", STR_ARG(view_short_id(p->parent)));
    if (str_eq(verb, STR("completed")) || str_eq(verb, STR("failed")) ||
        str_eq(verb, STR("cancelled")))
        end_execution(log, ev, p);
    if (str_eq(verb, STR("blocked"))) {
        bool steps = str_eq(p->reason, STR("awaiting_steps"));

        buf_add_z(&l->what, steps ? "waits for its subagents" : "waits for a person");
    } else if (str_present(p->reason)) {
        buf_add(&l->what, p->reason);
    }
}

/* ---- resources ---- */

static void add_checkpoint_policy(struct buf *out, const struct payload *p)
{
    int64_t every = 0;

    if (!str_present(p->every) || !json_int64(p->every, &every) || every < 1) {
        buf_add(out, STR("no checkpoints"));
        return;
    }
    if (every == 1)
        buf_add(out, STR("captured after each step that may change it"));
    else
        buf_printf(out, "captured after every %lld steps that may change it", (long long)every);
    if (str_eq(p->on_completion, STR("true")))
        buf_add(out, STR(", and at the end"));
}

static void describe_resource(const struct event *ev, const struct payload *p,
                              struct event_words *l, struct arena *a)
{
    struct str verb = str_slice(ev->type, STR("resource.").n, ev->type.n);

    buf_add(&l->what, p->key);
    if (str_eq(verb, STR("registered"))) {
        buf_printf(&l->detail, "%.*s, ", STR_ARG(p->driver));
        add_checkpoint_policy(&l->detail, p);
    } else if (str_eq(verb, STR("initialized"))) {
        if (str_present(p->ref))
            buf_printf(&l->detail, "from checkpoint %.*s", STR_ARG(p->ref));
        else
            buf_add(&l->detail, STR("from its initial environment"));
    } else if (str_eq(verb, STR("bound"))) {
        buf_add(&l->detail, view_json_short(p->binding, BINDING_COLUMNS, a));
    } else if (str_eq(verb, STR("checkpointed"))) {
        l->type_paint = PAINT_GOOD;
        buf_printf(&l->detail, "%.*s, covers from event %.*s", STR_ARG(p->ref),
                   STR_ARG(p->covered_seq));
    } else if (str_eq(verb, STR("checkpoint_failed"))) {
        l->type_paint = PAINT_BAD;
        buf_add(&l->detail, view_error_text(p->error, a));
    } else {
        text_json_line(&l->detail, ev->payload);
        l->detail_paint = PAINT_DIM;
    }
}

/* ---- approvals ---- */

static void note_requested(struct event_log *log, struct str id)
{
    struct event_approval **end = &log->open;

    while (*end != NULL)
        end = &(*end)->next;
    *end = arena_new(&log->a, struct event_approval);
    (*end)->id = arena_str(&log->a, id);
}

static void note_decided(struct event_log *log, struct str id)
{
    for (struct event_approval **at = &log->open; *at != NULL; at = &(*at)->next) {
        if (str_eq((*at)->id, id)) {
            *at = (*at)->next;
            return;
        }
    }
}

static void describe_approval(struct event_log *log, const struct event *ev,
                              const struct payload *p, struct event_words *l)
{
    struct str verb = str_slice(ev->type, STR("approval.").n, ev->type.n);
    const struct event_step *step = str_present(p->step_id) ? step_of(log, p->step_id) : NULL;

    if (step != NULL && str_present(step->kind))
        buf_printf(&l->what, "%.*s %.*s", STR_ARG(step->kind), STR_ARG(step->target));
    if (str_eq(verb, STR("requested"))) {
        l->type_paint = PAINT_BOLD;
        buf_printf(&l->detail, "approval %.*s", STR_ARG(view_short_id(p->approval)));
        note_requested(log, p->approval);
        return;
    }
    l->type_paint = view_status_paint(verb);
    note_decided(log, p->approval);
    if (str_present(p->decided_by))
        buf_printf(&l->detail, "by %.*s", STR_ARG(p->decided_by));
    else if (str_eq(verb, STR("expired")) && !log->ended)
        buf_add(&l->detail, STR("nobody decided in time"));
    if (str_present(p->rationale))
        buf_printf(&l->detail, "%s%.*s", l->detail.n > 0 ? ": " : "", STR_ARG(p->rationale));
}

static void describe_other(const struct event *ev, const struct payload *p, struct event_words *l)
{
    if (str_present(p->key))
        buf_add(&l->what, p->key);
    text_json_line(&l->detail, ev->payload);
    l->detail_paint = PAINT_DIM;
}

/* ---- all ---- */

void event_print(struct event_log *log, const struct event *ev, struct cli *c)
{
    struct arena a = {0};
    struct payload p;
    struct event_words l = {.detail_paint = PAINT_NONE};

    read_payload(ev->payload, &p, &a);
    if (str_starts(ev->type, STR("step.")) && str_present(p.step_id))
        describe_step(log, ev, &p, &l, &a);
    else if (str_starts(ev->type, STR("dispatch.")))
        describe_dispatch(log, ev, &p, &l);
    else if (str_starts(ev->type, STR("execution.")))
        describe_execution(log, ev, &p, &l, &a);
    else if (str_starts(ev->type, STR("resource.")) && str_present(p.key))
        describe_resource(ev, &p, &l, &a);
    else if (str_starts(ev->type, STR("approval.")) && str_present(p.approval))
        describe_approval(log, ev, &p, &l);
    else
        describe_other(ev, &p, &l);
    if (c != NULL) {
        event_put_day(c, ev, &log->day);
        event_put(c, ev, &l);
    }
    buf_free(&l.what);
    buf_free(&l.detail);
    arena_free(&a);
}

void event_log_free(struct event_log *log)
{
    map_free(&log->steps);
    arena_free(&log->a);
    buf_free(&log->status);
    buf_free(&log->outcome);
    buf_free(&log->day);
}
