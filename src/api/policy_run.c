/* SPDX-License-Identifier: Apache-2.0 */
#include "api/policy_run.h"

#include "api/listing.h"
#include "base/clock.h"

#include <stdlib.h>

/* How long one run keeps the thread from another that wants it. */
static const int64_t SLICE_US = 50 * US_PER_MS;

struct run_listing {
    struct listing listing; /* first */
    struct policy_run run;
    size_t next_case;
    bool *reached; /* by rule */
    bool any;      /* was written */
    int64_t failed;
};

/* ---- what a step was, and what it would be ---- */

static const struct rule *rule_by_id(const struct policy *p, struct str id)
{
    for (size_t i = 0; i < policy_rule_count(p); i++)
        if (str_eq(policy_rule(p, i)->id, id))
            return policy_rule(p, i);
    return NULL;
}

static bool has_hash(const struct policy *p, struct str hex)
{
    struct hash hash;

    return p != NULL && str_present(hex) && hash_parse(hex, &hash) &&
           hash_eq(policy_hash(p), &hash);
}

/* What the rule can make of a step beside its own decision: a judge anything, a budget what it
 * says. */
static bool may_become(const struct rule *rule, const struct recorded_step *was)
{
    if (rule->decision == POLICY_JUDGE)
        return true;
    if (rule->decision != POLICY_ALLOW || !rule->budget.set ||
        rule->budget.on_exceed != was->decision)
        return false;
    return was->decision != POLICY_DENY ||
           str_eq(was->reason, STR("execution_token_budget_exceeded"));
}

/* Judges and budgets go by more than the step, so what they would say now is not known: a step
 * agrees when the rule of the same id decided it then and could do so now. Where the bundle of then
 * is at hand, that rule must have been of this kind in it, too: one that used to allow and now asks
 * a judge is a change. */
static bool agrees(const struct policy_run *run, const struct policy_match *now,
                   const struct recorded_step *was)
{
    const struct policy *then = has_hash(run->tested, was->policy_hash) ? run->tested
                                : has_hash(run->own, was->policy_hash)  ? run->own
                                                                        : NULL;
    const struct rule *rule, *before;

    if (now->action == was->decision)
        return true;
    if (now->rule == POLICY_NO_RULE)
        return false;
    rule = policy_rule(run->tested, (size_t)now->rule);
    if (!str_eq(rule->id, was->rule_id) || !may_become(rule, was))
        return false;
    before = then == NULL ? NULL : rule_by_id(then, rule->id);
    return before == NULL || before->decision == rule->decision;
}

/* ---- results ---- */

static void write_result(struct run_listing *l, const struct policy_case *c,
                         const struct policy_result *result, struct buf *out)
{
    struct json_writer w = {.out = out, .comma = l->any};

    if (result->match.rule != POLICY_NO_RULE)
        l->reached[result->match.rule] = true;
    l->failed += !result->pass;
    l->any = true;
    policy_result_write(&w, c, result);
}

static void run_case(struct run_listing *l, struct buf *out)
{
    const struct policy_case *c = &l->run.cases[l->next_case++];
    struct policy_result result;
    struct arena arena = {0};

    policy_case_run(l->run.tested, c, &arena, &result);
    write_result(l, c, &result, out);
    arena_free(&arena);
}

static struct str uuid_text(const struct uuid *id, struct arena *a)
{
    char text[UUID_TEXT_LEN];

    uuid_format(id, text);
    return arena_str(a, str_make(text, sizeof(text)));
}

static struct str hash_text(const struct hash *h, struct arena *a)
{
    char text[HASH_HEX_LEN];

    hash_hex(h, text);
    return arena_str(a, str_make(text, sizeof(text)));
}

static void run_recorded(struct run_listing *l, const struct recorded_step *was, struct arena *a,
                         struct buf *out)
{
    const struct policy_case c = {
        .agent_id = l->run.agent_id,
        .kind = was->kind,
        .target = was->target,
        .args = was->args,
        .expects = true,
        .expect = was->decision,
        .execution_id = uuid_text(&was->execution_id, a),
        .step_id = hash_text(&was->step_id, a),
        .was_rule = was->rule_id,
    };
    struct policy_result result;

    policy_case_run(l->run.tested, &c, a, &result);
    result.pass = agrees(&l->run, &result.match, was);
    result.failure = STR_NONE;
    if (!result.pass)
        result.failure = arena_printf(
            a, "was %.*s by rule %.*s, would now be %.*s by rule %.*s",
            STR_ARG(policy_action_name(was->decision)), STR_ARG(was->rule_id),
            STR_ARG(policy_action_name(result.match.action)), STR_ARG(result.match.rule_id));
    write_result(l, &c, &result, out);
}

static bool run_log(struct run_listing *l, struct store_reader *r, struct buf *out, bool *more,
                    struct err *e)
{
    struct arena arena = {0};
    struct recorded_step *steps;
    size_t n;
    bool ok = recorded_next(l->run.recorded, r, &arena, &steps, &n, more, e);

    for (size_t i = 0; ok && i < n; i++)
        run_recorded(l, &steps[i], &arena, out);
    arena_free(&arena);
    return ok;
}

static bool fill(struct listing *listing, struct store_reader *r, struct buf *out, bool *more,
                 struct err *e)
{
    struct run_listing *l = (struct run_listing *)listing;

    if (l->next_case < l->run.n_cases) {
        run_case(l, out);
        *more = l->next_case < l->run.n_cases || l->run.recorded != NULL;
        return true;
    }
    *more = l->run.recorded != NULL;
    return !*more || run_log(l, r, out, more, e);
}

/* ---- the end ---- */

static void write_unexercised(const struct run_listing *l, struct buf *out)
{
    size_t n = policy_rule_count(l->run.tested), left = 0;
    struct json_writer w = {.out = out, .comma = true};

    for (size_t i = 0; i < n; i++)
        left += !l->reached[i];
    if (left == 0)
        return;
    jw_key(&w, "unexercised_rules");
    jw_open(&w, '[');
    for (size_t i = 0; i < n; i++)
        if (!l->reached[i])
            jw_str(&w, policy_rule(l->run.tested, i)->id);
    jw_close(&w, ']');
}

static void close_run(struct listing *listing, struct buf *out)
{
    const struct run_listing *l = (struct run_listing *)listing;

    buf_printf(out, "],\"failed\":%lld", (long long)l->failed);
    write_unexercised(l, out);
    buf_add_byte(out, '}');
}

static void release(struct listing *listing)
{
    struct run_listing *l = (struct run_listing *)listing;

    recorded_free(l->run.recorded);
    policy_unref(l->run.tested);
    policy_unref(l->run.own);
    arena_free(&l->run.arena);
    free(l->reached);
}

void policy_run_start(struct request *rq, const struct policy_run *run, struct store_reader *r)
{
    struct run_listing *l = xzalloc(sizeof(*l) + run->agent_id.n);

    l->listing.fill = fill;
    l->listing.open = STR("{\"results\":[");
    l->listing.close = close_run;
    l->listing.readers = rq->api->aside;
    l->listing.slice_us = SLICE_US;
    l->listing.release = release;
    l->run = *run;
    memcpy(l + 1, run->agent_id.p, run->agent_id.n);
    l->run.agent_id = str_make(l + 1, run->agent_id.n);
    l->reached = xzalloc(policy_rule_count(run->tested) + 1);
    listing_run(rq, &l->listing, r);
}
