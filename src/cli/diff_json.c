/* SPDX-License-Identifier: Apache-2.0
 * `rebuno exec diff --json`. Lean, as logs are: payloads only of the first difference. */
#include "base/json.h"
#include "cli/diff_view.h"

static bool same_json(struct str x, struct str y)
{
    struct hash of_x, of_y;
    struct err ignored;

    if (!str_present(x) || !str_present(y))
        return str_present(x) == str_present(y);
    return str_eq(x, y) || (args_hash(x, &of_x, &ignored) && args_hash(y, &of_y, &ignored) &&
                            hash_eq(&of_x, &of_y));
}

bool comparison_same_start(const struct comparison *d)
{
    return str_eq(d->a.agent, d->b.agent) && same_json(d->a.input, d->b.input);
}

bool comparison_same_end(const struct comparison *d)
{
    return str_eq(d->a.status, d->b.status) && str_eq(d->a.failure, d->b.failure) &&
           same_json(d->a.output, d->b.output);
}

bool comparison_same(const struct comparison *d)
{
    return d->steps.same_before == d->steps.n && comparison_same_start(d) && comparison_same_end(d);
}

static void write_run(struct json_writer *w, const char *key, const struct run *r)
{
    jw_key(w, key);
    jw_open(w, '{');
    jw_member_str(w, "id", r->v.id);
    jw_member_str_opt(w, "agent_id", r->agent);
    jw_member_str_opt(w, "status", r->status);
    jw_member_str_opt(w, "failure_reason", r->failure);
    jw_member_str_opt(w, "forked_from", r->forked_from);
    jw_member_raw_opt(w, "fork_seq", r->fork_seq);
    jw_member_int(w, "steps", (int64_t)r->n);
    jw_close(w, '}');
}

/* Of the executions themselves. */
static void write_differing(struct json_writer *w, const struct comparison *d)
{
    jw_key(w, "executions_differ_in");
    jw_open(w, '[');
    if (!str_eq(d->a.agent, d->b.agent))
        jw_str(w, STR("agent_id"));
    if (!same_json(d->a.input, d->b.input))
        jw_str(w, STR("input"));
    if (!str_eq(d->a.status, d->b.status))
        jw_str(w, STR("status"));
    if (!str_eq(d->a.failure, d->b.failure))
        jw_str(w, STR("failure_reason"));
    if (!same_json(d->a.output, d->b.output))
        jw_str(w, STR("output"));
    jw_close(w, ']');
}

static void write_step(struct json_writer *w, const char *key, const struct run_step *s)
{
    static const char *const decisions[] = {
        [RUN_UNDECIDED] = NULL, [RUN_ALLOWED] = "allowed", [RUN_DENIED] = "denied",
        [RUN_HELD] = "held",    [RUN_GRANTED] = "granted", [RUN_REFUSED] = "refused",
    };

    if (s == NULL)
        return;
    jw_key(w, key);
    jw_open(w, '{');
    jw_member_int(w, "place", (int64_t)s->place);
    jw_member_str(w, "step_id", s->id);
    jw_member_str(w, "kind", s->kind);
    jw_member_str(w, "target", s->target);
    jw_member_int(w, "occurrence", s->occurrence);
    jw_member_str(w, "status", s->status);
    jw_member_str_opt(w, "decision", str_of(decisions[s->decision]));
    jw_member_str_opt(w, "rule_id", s->rule);
    jw_member_str_opt(w, "decided_by", s->decided_by);
    jw_close(w, '}');
}

static void write_fields(struct json_writer *w, unsigned differs)
{
    static const struct {
        unsigned bit;
        struct str name;
    } names[] = {
        {DIFFERS_ORDER, STR_INIT("order")},       {DIFFERS_ARGS, STR_INIT("args")},
        {DIFFERS_DECISION, STR_INIT("decision")}, {DIFFERS_STATUS, STR_INIT("status")},
        {DIFFERS_RESULT, STR_INIT("result")},     {DIFFERS_ERROR, STR_INIT("error")},
    };

    jw_key(w, "differs_in");
    jw_open(w, '[');
    for (size_t i = 0; i < COUNT(names); i++) {
        if ((differs & names[i].bit) != 0)
            jw_str(w, names[i].name);
    }
    jw_close(w, ']');
}

static void write_pair(struct json_writer *w, const struct pair *p)
{
    jw_open(w, '{');
    if (p->a != NULL && p->b != NULL)
        write_fields(w, p->differs);
    write_step(w, "a", p->a);
    write_step(w, "b", p->b);
    jw_close(w, '}');
}

static bool write_whole(struct json_writer *w, const char *key, struct run *r,
                        const struct run_step *s, struct err *e)
{
    struct buf answer = {0};

    if (s == NULL)
        return true;
    bool ok = run_fetch_step(r, s, &answer, e);
    if (ok)
        jw_member_raw_opt(w, key, json_trim(buf_str(&answer)));
    buf_free(&answer);
    return ok;
}

static bool write_first(struct json_writer *w, struct comparison *d, struct err *e)
{
    if (d->steps.same_before == d->steps.n)
        return true;
    const struct pair *first = &d->steps.pairs[d->steps.same_before];
    jw_key(w, "first_difference");
    jw_open(w, '{');
    bool ok = write_whole(w, "a", &d->a, first->a, e) && write_whole(w, "b", &d->b, first->b, e);
    jw_close(w, '}');
    return ok;
}

bool diff_write(struct comparison *d, struct buf *out, struct err *e)
{
    struct json_writer w = {.out = out};

    jw_open(&w, '{');
    jw_key(&w, "same");
    jw_bool(&w, comparison_same(d));
    write_run(&w, "a", &d->a);
    write_run(&w, "b", &d->b);
    write_differing(&w, d);
    jw_member_int(&w, "same_steps_before", (int64_t)d->steps.same_before);
    jw_member_int(&w, "same_steps", (int64_t)d->steps.counts[PAIR_SAME]);
    if (!write_first(&w, d, e))
        return false;
    jw_key(&w, "differences");
    jw_open(&w, '[');
    for (size_t i = 0; i < d->steps.n; i++) {
        if (d->steps.pairs[i].kind != PAIR_SAME)
            write_pair(&w, &d->steps.pairs[i]);
    }
    jw_close(&w, ']');
    jw_close(&w, '}');
    return true;
}
