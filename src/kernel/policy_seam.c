/* SPDX-License-Identifier: Apache-2.0 */
#include "kernel/policy_seam.h"

#include "policy/bucket.h"

enum {
    ROUNDS_MAX = 8,    /* aside: a bundle that changes all the time denies in the end */
    PARKED_MAX = 1000, /* parked steps that never came back, of one execution */
};

static const struct str BUNDLE_ERROR = STR_INIT("bundle-error");
static const struct str POLICY_DENIED = STR_INIT("policy_denied");
static const struct str OVER_BUDGET = STR_INIT("execution_token_budget_exceeded");

void policy_names(struct working_set *ws, const struct execution *exec, struct str agent_id)
{
    if (exec == NULL || !ws_remembers_bundle(ws, exec))
        ws_need_agent(ws, agent_id, false);
}

/* ---- parked steps ---- */

static bool find_parked(const struct execution *exec, const struct hash *step_id,
                        struct parked *out, size_t *at)
{
    for (*at = 0; *at < exec->parked.n; *at += sizeof(*out)) {
        memcpy(out, exec->parked.p + *at, sizeof(*out));
        if (hash_eq(&out->step_id, step_id))
            return true;
    }
    return false;
}

static void bucket_hash(struct str key, uint8_t out[sizeof(((struct parked *)0)->bucket)])
{
    struct hash h;

    hash_sha256(key, &h);
    memcpy(out, h.b, sizeof(((struct parked *)0)->bucket));
}

void policy_take(struct working_set *ws, const struct policy_question *q,
                 const struct policy_answer *answer)
{
    struct execution *exec = q->execution;
    struct parked row;
    size_t at;

    if (answer->bucket != NULL) {
        answer->bucket->full_at = answer->bucket_full_at;
        ws_touch_bucket(ws, answer->bucket);
    }
    if (answer->unpark && find_parked(exec, q->step_id, &row, &at)) {
        size_t rest = exec->parked.n - at - sizeof(row);

        memmove(exec->parked.p + at, exec->parked.p + at + sizeof(row), rest);
        exec->parked.n -= sizeof(row);
        ws_touch_execution(ws, exec);
    }
    if (answer->outcome == OUTCOME_PARKED) {
        ASSERT(answer->bucket != NULL); /* it waits for that bucket's token */
        memset(&row, 0, sizeof(row));   /* it is written as it lies */
        row.step_id = *q->step_id;
        row.until = answer->parked_until;
        bucket_hash(answer->bucket->key, row.bucket);
        buf_add(&exec->parked, str_make(&row, sizeof(row)));
        ws_touch_execution(ws, exec);
    }
}

/* ---- what a rule decides ---- */

/* One decision on its way. */
struct deciding {
    struct working_set *ws;
    const struct policy_question *q;
    const struct policy *policy;
    struct policy_match match;
    const struct rule *rule; /* NULL: none matched */
    enum policy_action action;
    struct policy_answer *out;
};

static enum policy_verdict decided(struct deciding *d, enum policy_outcome outcome,
                                   struct str reason)
{
    d->out->outcome = outcome;
    d->out->reason = arena_str(&d->ws->arena, reason);
    return POLICY_DECIDED;
}

static struct str denial_reason(const struct deciding *d)
{
    return str_present(d->match.reason) ? d->match.reason : POLICY_DENIED;
}

/* Of all executions of its session, if it has one. */
static bool by_session(const struct deciding *d, enum policy_scope scope)
{
    return scope == SCOPE_SESSION && str_present(d->q->execution->session);
}

static int64_t tokens_spent(const struct deciding *d)
{
    const struct execution *exec = d->q->execution;
    int64_t others = by_session(d, d->rule->budget.scope) ? exec->session_tokens : 0, sum;

    return __builtin_add_overflow(exec->tokens, others, &sum) ? INT64_MAX : sum;
}

/* Keyed by the rule's id, so that a bundle that changes keeps its buckets. */
static struct str bucket_key(struct deciding *d)
{
    enum policy_scope scope = d->rule->rate_limit.per_what;
    char id[UUID_TEXT_LEN];
    struct buf key = {0};
    struct str copy;

    buf_add(&key, d->rule->id);
    buf_add_byte(&key, '\0');
    buf_add(&key, policy_scope_name(scope));
    buf_add_byte(&key, '\0');
    if (scope == SCOPE_AGENT) {
        buf_add(&key, d->q->execution->agent_id);
    } else if (by_session(d, scope)) {
        buf_add(&key, d->q->execution->session);
    } else if (scope != SCOPE_GLOBAL) {
        uuid_format(&d->q->execution->id, id);
        buf_add(&key, str_make(id, sizeof(id)));
    }
    copy = arena_str(&d->ws->arena, buf_str(&key));
    buf_free(&key);
    return copy;
}

enum limit_verdict { LIMIT_PASSES, LIMIT_DECIDED, LIMIT_NEEDS_ROWS };

/* A step that was parked has its token from `until` on; one that is still over is refused. */
static enum limit_verdict come_back(struct deciding *d, const struct parked *row, struct str key)
{
    uint8_t hash[sizeof(row->bucket)];
    int64_t full_at, until;

    bucket_hash(key, hash);
    if (memcmp(hash, row->bucket, sizeof(hash)) == 0) {
        d->out->limit_passed = row->until <= d->ws->now.wall_us;
    } else { /* another rule's by now */
        struct bucket *bucket = ws_bucket(d->ws, key);
        struct rate_limit limit = d->rule->rate_limit;

        limit.max_wait_us = 0;
        full_at = bucket->full_at;
        d->out->limit_passed =
            bucket_take(&limit, d->ws->now.wall_us, &full_at, &until) == BUCKET_TAKEN;
        d->out->bucket = d->out->limit_passed ? bucket : NULL;
        d->out->bucket_full_at = full_at;
    }
    if (d->out->limit_passed)
        return LIMIT_PASSES;
    (void)decided(d, OUTCOME_LIMITED, STR("rate_limit_exceeded"));
    return LIMIT_DECIDED;
}

static enum limit_verdict take_token(struct deciding *d, struct bucket *bucket)
{
    int64_t full_at = bucket->full_at, until = 0;
    enum bucket_answer answer =
        bucket_take(&d->rule->rate_limit, d->ws->now.wall_us, &full_at, &until);

    if (answer == BUCKET_WAIT && d->q->execution->parked.n >= PARKED_MAX * sizeof(struct parked))
        answer = BUCKET_REFUSED;
    if (answer == BUCKET_REFUSED) {
        (void)decided(d, OUTCOME_LIMITED, STR("rate_limit_exceeded"));
        return LIMIT_DECIDED;
    }
    d->out->bucket = bucket;
    d->out->bucket_full_at = full_at;
    if (answer == BUCKET_TAKEN) {
        d->out->limit_passed = true;
        return LIMIT_PASSES;
    }
    d->out->parked_until = until;
    (void)decided(d, OUTCOME_PARKED, STR_NONE);
    return LIMIT_DECIDED;
}

static enum limit_verdict limit(struct deciding *d)
{
    struct str key = bucket_key(d);
    struct bucket *bucket;
    struct parked row;
    size_t at;

    if (!ws_knows_bucket(d->ws, key)) {
        ws_need_bucket(d->ws, key);
        return LIMIT_NEEDS_ROWS;
    }
    bucket = ws_bucket(d->ws, key);
    if (bucket->unreadable) {
        if (!d->rule->rate_limit.deny_on_error)
            return LIMIT_PASSES;
        (void)decided(d, OUTCOME_LIMITED, STR("rate_limiter_unavailable"));
        return LIMIT_DECIDED;
    }
    if (find_parked(d->q->execution, d->q->step_id, &row, &at))
        return come_back(d, &row, key);
    return take_token(d, bucket);
}

/* The judge's word for this very rule; without one it is to be asked. */
static enum policy_verdict judged(struct deciding *d, bool *asked)
{
    const struct policy_found *found = d->q->found;

    *asked = found->judged && found->rule == d->match.rule &&
             hash_eq(&found->hash, policy_hash(d->policy));
    if (*asked) {
        d->action = found->judgement;
        return POLICY_DECIDED;
    }
    d->out->bucket = NULL;
    d->out->wanted = (struct policy_wanted){.work = POLICY_WORK_JUDGE,
                                            .hash = *policy_hash(d->policy),
                                            .own = d->q->execution->has_policy,
                                            .rule = d->match.rule};
    return POLICY_NEEDS_WORK;
}

static enum policy_verdict hold(struct deciding *d, struct str because)
{
    ASSERT(d->rule != NULL); /* a default action allows or denies */
    const struct approval_config *config = &d->rule->approval;
    struct str message = str_present(config->message) ? config->message : d->rule->reason;

    if (!str_present(message))
        message = because;
    d->out->approvers = arena_str(&d->ws->arena, config->approvers);
    d->out->message = arena_str(&d->ws->arena, message);
    d->out->approval_timeout_us = config->timeout_us;
    return decided(d, OUTCOME_HELD, STR_NONE);
}

static enum policy_verdict finish(struct deciding *d, struct str because)
{
    switch (d->action) {
    case POLICY_ALLOW:
        return decided(d, OUTCOME_ALLOWED, STR_NONE);
    case POLICY_REQUIRE_APPROVAL:
        return hold(d, because);
    case POLICY_DENY:
        return decided(d, OUTCOME_DENIED, str_present(because) ? because : denial_reason(d));
    case POLICY_JUDGE:
        ASSERT(d->action != POLICY_JUDGE); /* its word has replaced it */
    }
    return POLICY_DECIDED;
}

/* In the order that wastes nothing: a denial takes no token, and nobody asks a judge in vain. */
static enum policy_verdict decide_by_rule(struct deciding *d)
{
    struct str because = STR_NONE;
    bool asked = true;

    if (d->action == POLICY_JUDGE && !d->ws->settings->judge_configured)
        return decided(d, OUTCOME_DENIED, STR("judge_unavailable"));
    if (d->action == POLICY_ALLOW && d->rule->budget.set && by_session(d, d->rule->budget.scope) &&
        !d->q->execution->session_tokens_known) {
        ws_need_session_tokens(d->ws, &d->q->execution->id);
        return POLICY_NEEDS_ROWS;
    }
    if (d->action == POLICY_ALLOW && d->rule->budget.set &&
        tokens_spent(d) >= d->rule->budget.max_tokens) {
        d->action = d->rule->budget.on_exceed;
        because = OVER_BUDGET;
    }
    if (d->rule->rate_limit.set && d->action != POLICY_DENY) {
        switch (limit(d)) {
        case LIMIT_NEEDS_ROWS:
            return POLICY_NEEDS_ROWS;
        case LIMIT_DECIDED:
            return POLICY_DECIDED;
        case LIMIT_PASSES:
            break;
        }
    }
    if (d->action == POLICY_JUDGE) {
        enum policy_verdict v = judged(d, &asked);

        if (!asked)
            return v;
    }
    return finish(d, because);
}

/* The bundle that the decision's event names. */
static void name_bundle(struct working_set *ws, const struct hash *hash, struct policy_answer *out)
{
    char hex[HASH_HEX_LEN];

    hash_hex(hash, hex);
    out->policy_hash = arena_str(&ws->arena, str_make(hex, sizeof(hex)));
}

static enum policy_verdict decide_by_bundle(struct deciding *d)
{
    struct parked row;
    size_t at;

    name_bundle(d->ws, policy_hash(d->policy), d->out);
    d->out->rule_id = arena_str(&d->ws->arena, d->match.rule_id);
    d->out->unpark =
        d->q->execution->parked.n > 0 && find_parked(d->q->execution, d->q->step_id, &row, &at);
    d->action = d->match.action;
    if (d->match.rule != POLICY_NO_RULE)
        d->rule = policy_rule(d->policy, (size_t)d->match.rule);
    if (d->q->only_holds &&
        (d->action != POLICY_REQUIRE_APPROVAL || d->rule == NULL || d->rule->rate_limit.set)) {
        d->out->outcome = OUTCOME_NOT_NOW;
        return POLICY_DECIDED;
    }
    if (d->rule != NULL)
        return decide_by_rule(d);
    return finish(d, STR_NONE);
}

/* ---- which bundle counts, and what it says ---- */

/* `hash` NULL: not even which bundle it is can be told. */
static enum policy_verdict bundle_error(struct working_set *ws, const struct policy_question *q,
                                        const struct hash *hash, struct str reason,
                                        struct policy_answer *out)
{
    out->outcome = q->only_holds ? OUTCOME_NOT_NOW : OUTCOME_DENIED;
    out->rule_id = BUNDLE_ERROR;
    out->reason = reason;
    if (hash != NULL)
        name_bundle(ws, hash, out);
    return POLICY_DECIDED;
}

static enum policy_verdict match_and_decide(struct deciding *d)
{
    const struct policy_question *q = d->q;
    const struct policy_input input = {q->execution->agent_id, q->kind, q->target, q->args};
    const struct policy_found *found = q->found;

    if (found->matched && hash_eq(&found->hash, policy_hash(d->policy))) {
        policy_match_of(d->policy, found->rule, q->kind, &d->match);
    } else if (policy_is_costly(d->policy, &input)) {
        if (found->rounds >= ROUNDS_MAX)
            return bundle_error(d->ws, q, policy_hash(d->policy),
                                STR("the policy changed while this step was decided"), d->out);
        d->out->wanted = (struct policy_wanted){.work = POLICY_WORK_MATCH,
                                                .hash = *policy_hash(d->policy),
                                                .own = q->execution->has_policy};
        return POLICY_NEEDS_WORK;
    } else {
        policy_evaluate(d->policy, &input, &d->match);
    }
    return decide_by_bundle(d);
}

/* An execution's own bundle counts, which only a fork has; else its agent's. */
enum policy_verdict policy_decide(struct working_set *ws, const struct policy_question *q,
                                  struct policy_answer *out)
{
    const struct agent_bundle own = {.has_policy = true, .hash = q->execution->bundle.hash};
    const struct agent_bundle *bundle =
        q->execution->has_policy ? &own : ws_agent_bundle(ws, q->execution);
    struct deciding d = {.ws = ws, .q = q, .out = out};
    enum policy_verdict v;
    struct policy *policy;
    bool known;

    *out = (struct policy_answer){.outcome = OUTCOME_ALLOWED, .rule_id = STR("permissive")};
    if (bundle == NULL && !ws_knows_agent(ws, q->execution->agent_id)) {
        policy_names(ws, q->execution, q->execution->agent_id);
        return POLICY_NEEDS_ROWS;
    }
    if (bundle == NULL)
        return bundle_error(ws, q, NULL, STR("the agent cannot be read"), out);
    if (!bundle->has_policy) {
        out->outcome = q->only_holds ? OUTCOME_NOT_NOW : OUTCOME_ALLOWED;
        return POLICY_DECIDED;
    }
    policy = policy_cache_get(ws->policies, &bundle->hash, &known);
    if (policy == NULL && (known || q->found->rounds >= ROUNDS_MAX))
        return bundle_error(ws, q, &bundle->hash,
                            STR("the policy bundle cannot be read or does not compile"), out);
    if (policy == NULL) {
        out->wanted = (struct policy_wanted){
            .work = POLICY_WORK_COMPILE, .hash = bundle->hash, .own = q->execution->has_policy};
        return POLICY_NEEDS_WORK;
    }
    d.policy = policy;
    v = match_and_decide(&d);
    policy_unref(policy);
    return v;
}
