/* SPDX-License-Identifier: Apache-2.0
 * Reading runs. Step ids contain the execution's, so steps are told apart by their calls: kind,
 * target, arguments, and how many such there were before. */
#include "cli/run.h"

#include <stdlib.h>

#include "cli/pages.h"
#include "cli/text.h"
#include "cli/view.h"

enum { STEPS_PAGE = 200, EVENTS_PAGE = 1000, ARGS_COLUMNS = 160, OUTCOME_COLUMNS = 80 };

/* ---- steps ---- */

static struct run_payload payload_of(struct str json)
{
    struct run_payload p = {.present = str_present(json)};
    struct err ignored;

    /* What it only carries may have a key twice, which no canonical form has. */
    if (p.present && !args_hash(json, &p.hash, &ignored))
        hash_sha256(json, &p.hash);
    return p;
}

struct call_text {
    char bytes[sizeof(struct call_key) + sizeof(int64_t)];
};

static struct call_text call_text(const struct run_step *s)
{
    const struct call call = {.kind = s->kind, .target = s->target, .args_hash = s->args_hash};
    struct call_text text;
    struct call_key key;

    call_key(&call, &key);
    memcpy(text.bytes, key.b, sizeof key.b);
    memcpy(text.bytes + sizeof key.b, &s->occurrence, sizeof s->occurrence);
    return text;
}

static void add_step(struct run *r, struct run_step *s)
{
    const struct call_text call = call_text(s);

    if (r->n == r->cap) {
        r->cap = r->cap == 0 ? 256 : r->cap * 2;
        r->steps = xrealloc(r->steps, r->cap * sizeof(struct run_step *));
    }
    r->steps[r->n++] = s;
    s->place = r->n;
    map_put(&r->by_id, s->id, s);
    map_put(&r->by_call, str_make(call.bytes, sizeof call.bytes), s);
}

/* Absent when it has none yet. */
static struct str outcome_text(struct str result, struct str error, struct arena *a)
{
    struct buf clean = {0}, cut = {0};

    if (!str_present(error))
        return view_json_short(result, OUTCOME_COLUMNS, a);
    text_clean(&clean, view_error_text(error, a), TEXT_ONE_LINE);
    text_fit(&cut, buf_str(&clean), OUTCOME_COLUMNS);
    struct str out = arena_str(a, buf_str(&cut));
    buf_free(&clean);
    buf_free(&cut);
    return out;
}

void run_take_step(struct run *r, struct str json)
{
    struct run_step *s = arena_new(&r->a, struct run_step);
    struct arena scratch = {0};
    struct str id, kind, target, status, args, hash, occurrence, result, error;
    const struct view_field fields[] = {
        {"step_id", true, &id},     {"kind", true, &kind},
        {"target", true, &target},  {"status", true, &status},
        {"args", false, &args},     {"args_hash", true, &hash},
        {"result", false, &result}, {"occurrence", false, &occurrence},
        {"error", false, &error},
    };

    view_read(json, fields, COUNT(fields), &scratch);
    s->id = arena_str(&r->a, str_present(id) ? id : STR(""));
    s->kind = arena_str(&r->a, str_present(kind) ? kind : STR(""));
    s->target = arena_str(&r->a, str_present(target) ? target : STR(""));
    s->status = arena_str(&r->a, str_present(status) ? status : STR(""));
    s->args = arena_str(&r->a, view_json_short(args, ARGS_COLUMNS, &scratch));
    s->outcome = arena_str(&r->a, outcome_text(result, error, &scratch));
    if (!str_present(hash) || !hash_parse(hash, &s->args_hash))
        s->args_hash = payload_of(args).hash;
    if (!str_present(occurrence) || !json_int64(occurrence, &s->occurrence))
        s->occurrence = 0;
    s->result = payload_of(result);
    s->error = payload_of(error);
    add_step(r, s);
    arena_free(&scratch);
}

/* ---- what the policy said ---- */

struct decision {
    struct str type, step_id, rule, by;
};

static void note_rule(struct run *r, struct run_step *s, const struct decision *d)
{
    if (str_present(d->rule))
        s->rule = arena_str(&r->a, d->rule);
}

/* A person's decision is taken from the step's own events: a fork has no others of what it copied.
 */
static void note_decision(struct run *r, struct run_step *s, const struct decision *d)
{
    bool held = s->decision == RUN_HELD;

    if (str_eq(d->type, STR("step.allowed"))) {
        s->decision = held ? RUN_GRANTED : RUN_ALLOWED;
        if (!held)
            note_rule(r, s, d);
    } else if (str_eq(d->type, STR("step.denied"))) {
        s->decision = held ? RUN_REFUSED : RUN_DENIED;
        if (!held)
            note_rule(r, s, d);
    } else if (str_eq(d->type, STR("step.awaiting_approval"))) {
        s->decision = RUN_HELD;
        note_rule(r, s, d);
    } else if (str_starts(d->type, STR("approval.")) && str_present(d->by)) {
        s->decided_by = arena_str(&r->a, d->by);
    }
}

void run_take_event(struct run *r, struct str json)
{
    struct arena scratch = {0};
    struct decision d;
    struct str payload;
    const struct view_field fields[] = {{"type", true, &d.type}, {"payload", false, &payload}};
    const struct view_field of_payload[] = {
        {"step_id", true, &d.step_id}, {"rule_id", true, &d.rule}, {"decided_by", true, &d.by}};

    view_read(json, fields, COUNT(fields), &scratch);
    if (str_starts(d.type, STR("step.")) || str_starts(d.type, STR("approval."))) {
        view_read(payload, of_payload, COUNT(of_payload), &scratch);
        struct run_step *s = str_present(d.step_id) ? map_get(&r->by_id, d.step_id) : NULL;
        if (s != NULL)
            note_decision(r, s, &d);
    }
    arena_free(&scratch);
}

struct str run_decision_text(const struct run_step *s, struct arena *a)
{
    static const char *const words[] = {
        [RUN_UNDECIDED] = "not decided", [RUN_ALLOWED] = "allowed",
        [RUN_DENIED] = "denied",         [RUN_HELD] = "held",
        [RUN_GRANTED] = "held",          [RUN_REFUSED] = "held",
    };
    struct buf text = {0};

    buf_add_z(&text, words[s->decision]);
    if (str_eq(s->rule, STR("permissive")))
        buf_add(&text, STR(", no policy"));
    else if (str_present(s->rule))
        buf_printf(&text, " by rule %.*s", STR_ARG(s->rule));
    if (s->decision == RUN_GRANTED || s->decision == RUN_REFUSED) {
        buf_add_z(&text, s->decision == RUN_GRANTED ? ", granted" : ", refused");
        if (str_present(s->decided_by))
            buf_printf(&text, " by %.*s", STR_ARG(s->decided_by));
    }
    struct str out = arena_str(a, buf_str(&text));
    buf_free(&text);
    return out;
}

/* ---- all of it ---- */

static void take_step(void *ctx, struct str json)
{
    run_take_step(ctx, json);
}

static void take_event(void *ctx, struct str json)
{
    run_take_event(ctx, json);
}

static bool read_execution(struct run *r, struct err *e)
{
    struct str id;
    const struct view_field fields[] = {
        {"id", true, &id},
        {"agent_id", true, &r->agent},
        {"status", true, &r->status},
        {"failure_reason", true, &r->failure},
        {"input", false, &r->input},
        {"output", false, &r->output},
        {"forked_from", true, &r->forked_from},
        {"fork_seq", false, &r->fork_seq},
    };

    if (!client_get(r->v.client, visit_path(&r->v, ""), &r->execution, e))
        return false;
    view_read(buf_str(&r->execution), fields, COUNT(fields), &r->a);
    return str_present(id) ||
           err_set(e, ERR_VALIDATION, "the kernel's answer has no execution's id");
}

bool run_read(struct run *r, struct err *e)
{
    const struct pages steps = {.route = "/steps",
                                .after = "after",
                                .last_field = "step_id",
                                .limit = STEPS_PAGE,
                                .take = take_step,
                                .ctx = r};
    const struct pages events = {.route = "/events",
                                 .after = "after_seq",
                                 .last_field = "event_seq",
                                 .limit = EVENTS_PAGE,
                                 .take = take_event,
                                 .ctx = r};

    return read_execution(r, e) && pages_read(&r->v, &steps, e) && pages_read(&r->v, &events, e);
}

void run_free(struct run *r)
{
    visit_end(&r->v);
    map_free(&r->by_id);
    map_free(&r->by_call);
    free(r->steps);
    buf_free(&r->execution);
    arena_free(&r->a);
}

struct run_step *run_counterpart(const struct run *r, const struct run_step *step)
{
    const struct call_text call = call_text(step);

    return map_get(&r->by_call, str_make(call.bytes, sizeof call.bytes));
}

bool run_fetch_step(struct run *r, const struct run_step *step, struct buf *answer, struct err *e)
{
    struct buf path = {0};

    buf_add_z(&path, visit_path(&r->v, "/steps/"));
    client_escape(&path, step->id);
    buf_add_byte(&path, '\0');
    bool ok = client_get(r->v.client, path.p, answer, e);
    buf_free(&path);
    return ok;
}
