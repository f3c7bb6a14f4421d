/* SPDX-License-Identifier: Apache-2.0
 * Loading what a rule decides. */
#include <stdlib.h>

#include "base/clock.h"
#include "policy/compile.h"

enum then_key {
    THEN_DECISION,
    THEN_REASON,
    THEN_APPROVAL_CONFIG,
    THEN_RATE_LIMIT,
    THEN_BUDGET,
    THEN_JUDGE
};
static const char *const THEN_KEYS[] = {
    [THEN_DECISION] = "decision",
    [THEN_REASON] = "reason",
    [THEN_APPROVAL_CONFIG] = "approval_config",
    [THEN_RATE_LIMIT] = "rate_limit",
    [THEN_BUDGET] = "budget",
    [THEN_JUDGE] = "judge",
};

enum approval_key { APPROVAL_APPROVERS, APPROVAL_TIMEOUT, APPROVAL_MESSAGE };
static const char *const APPROVAL_KEYS[] = {
    [APPROVAL_APPROVERS] = "approvers",
    [APPROVAL_TIMEOUT] = "timeout",
    [APPROVAL_MESSAGE] = "message",
};

enum limit_key { LIMIT_MAX_CALLS, LIMIT_WINDOW, LIMIT_PER_WHAT, LIMIT_MAX_WAIT, LIMIT_ON_ERROR };
static const char *const LIMIT_KEYS[] = {
    [LIMIT_MAX_CALLS] = "max_calls",       [LIMIT_WINDOW] = "window",
    [LIMIT_PER_WHAT] = "per_what",         [LIMIT_MAX_WAIT] = "max_wait",
    [LIMIT_ON_ERROR] = "on_limiter_error",
};

enum budget_key { BUDGET_MAX_TOKENS, BUDGET_SCOPE, BUDGET_ON_EXCEED };
static const char *const BUDGET_KEYS[] = {
    [BUDGET_MAX_TOKENS] = "max_tokens",
    [BUDGET_SCOPE] = "scope",
    [BUDGET_ON_EXCEED] = "on_exceed",
};

enum judge_key { JUDGE_INSTRUCTIONS, JUDGE_THRESHOLD, JUDGE_FALLBACK };
static const char *const JUDGE_KEYS[] = {
    [JUDGE_INSTRUCTIONS] = "instructions",
    [JUDGE_THRESHOLD] = "threshold",
    [JUDGE_FALLBACK] = "fallback",
};

static const double THRESHOLD_DEFAULT = 0.6;

/* ---- values ---- */

static bool read_action(struct compile *c, const char *name, const enum policy_action *actions,
                        size_t n, enum policy_action *out)
{
    struct str names[4];
    size_t i;

    ASSERT(n <= COUNT(names));
    for (i = 0; i < n; i++)
        names[i] = policy_action_name(actions[i]);
    if (!compile_choice(c, name, names, n, &i))
        return false;
    *out = actions[i];
    return true;
}

static bool read_scope(struct compile *c, const char *name, size_t n, enum policy_scope *out)
{
    static const enum policy_scope scopes[] = {SCOPE_EXECUTION, SCOPE_SESSION, SCOPE_AGENT,
                                               SCOPE_GLOBAL};
    struct str names[COUNT(scopes)];
    size_t i;

    for (i = 0; i < n; i++)
        names[i] = policy_scope_name(scopes[i]);
    if (!compile_choice(c, name, names, n, &i))
        return false;
    *out = scopes[i];
    return true;
}

static bool read_count(struct compile *c, const char *name, int64_t *out)
{
    if (!compile_scalar(c, name))
        return false;
    struct str text = yaml_text(c->y);
    return (str_present(text) && str_to_int64(text, out) && *out > 0) ||
           compile_fail(c, "%s must be a whole number above zero", name);
}

static bool read_duration(struct compile *c, const char *name, int64_t least_us, int64_t *out)
{
    if (!compile_scalar(c, name))
        return false;
    struct str text = yaml_text(c->y);
    if (!str_present(text) || !duration_parse(text, out))
        return compile_fail(c, "%s must be a duration such as 300ms, 30s, 5m or 1h30m", name);
    return *out >= least_us || compile_fail(c, "%s must be above zero", name);
}

static bool is_decimal(struct str s)
{
    size_t digits = 0, points = 0;

    for (size_t i = 0; i < s.n; i++) {
        digits += s.p[i] >= '0' && s.p[i] <= '9';
        points += s.p[i] == '.';
    }
    return digits > 0 && points <= 1 && digits + points == s.n;
}

static bool read_threshold(struct compile *c, double *out)
{
    if (!compile_scalar(c, "threshold"))
        return false;
    struct str text = yaml_text(c->y);
    if (str_present(text) && is_decimal(text)) {
        *out = strtod(text.p, NULL);
        if (*out <= 1)
            return true;
    }
    return compile_fail(c, "threshold must be a number from 0 to 1");
}

/* ---- the parts ---- */

typedef bool read_part(struct compile *c, size_t key, struct rule *rule);

/* A mapping inside `then`; its keys' messages name it. */
static bool read_mapping(struct compile *c, const char *name, struct yaml_keys *keys,
                         read_part *read_value, struct rule *rule)
{
    struct str who = c->who;
    size_t key;

    if (yaml_event(c->y) != YAML_MAPPING)
        return compile_fail(c, "%s must be a mapping", name);
    c->who = arena_printf(yaml_scratch(c->y), "%.*s: %s", STR_ARG(who), name);
    while (yaml_next(c->y)) {
        if (yaml_event(c->y) == YAML_MAPPING_END) {
            c->who = who;
            return true;
        }
        if (!yaml_read_key(c->y, keys, c->who, &key) || !yaml_next(c->y) ||
            !read_value(c, key, rule))
            return false;
    }
    return false;
}

static bool require(struct compile *c, struct yaml_place start, const char *name,
                    const struct yaml_keys *keys, size_t key)
{
    return (keys->seen & 1u << key) != 0 || yaml_fail(c->y, start, "%.*s: %s: %s is missing",
                                                      STR_ARG(c->who), name, keys->names[key]);
}

/* Nobody could state one with control characters: decided_by and the names of keys have none. */
static bool read_approver(struct compile *c, const char *name, struct str *out)
{
    return compile_text(c, name, out) &&
           (!str_has_control(*out) || compile_fail(c, "%s must not have control characters", name));
}

static bool read_approvers(struct compile *c, struct str *out)
{
    struct buf json = {0};
    struct json_writer w = {.out = &json};

    if (!compile_list(c, "approvers", read_approver))
        return false;
    jw_open(&w, '[');
    for (size_t i = 0; i < c->texts.n; i++)
        jw_str(&w, c->texts.p[i]);
    jw_close(&w, ']');
    bool ok = !json.failed && compile_keep_text(c, "approvers", buf_str(&json), out);
    buf_free(&json);
    return ok;
}

static bool read_approval_value(struct compile *c, size_t key, struct rule *rule)
{
    struct approval_config *out = &rule->approval;

    switch ((enum approval_key)key) {
    case APPROVAL_APPROVERS:
        return read_approvers(c, &out->approvers);
    case APPROVAL_TIMEOUT:
        return read_duration(c, "timeout", 1, &out->timeout_us);
    case APPROVAL_MESSAGE:
        return compile_text(c, "message", &out->message);
    }
    return false;
}

static bool read_limit_value(struct compile *c, size_t key, struct rule *rule)
{
    static const struct str on_error[] = {STR_INIT("allow"), STR_INIT("deny")};
    struct rate_limit *out = &rule->rate_limit;
    size_t i = 0;

    switch ((enum limit_key)key) {
    case LIMIT_MAX_CALLS:
        return read_count(c, "max_calls", &out->max_calls);
    case LIMIT_WINDOW:
        return read_duration(c, "window", 1, &out->window_us);
    case LIMIT_PER_WHAT:
        return read_scope(c, "per_what", SCOPE_GLOBAL + 1, &out->per_what);
    case LIMIT_MAX_WAIT:
        return read_duration(c, "max_wait", 0, &out->max_wait_us);
    case LIMIT_ON_ERROR:
        if (!compile_choice(c, "on_limiter_error", on_error, COUNT(on_error), &i))
            return false;
        out->deny_on_error = i == 1;
        return true;
    }
    return false;
}

static bool read_rate_limit(struct compile *c, struct rule *rule)
{
    struct yaml_keys keys = {.names = LIMIT_KEYS, .n = COUNT(LIMIT_KEYS)};
    struct yaml_place start = yaml_place(c->y);

    rule->rate_limit.set = true;
    return read_mapping(c, "rate_limit", &keys, read_limit_value, rule) &&
           require(c, start, "rate_limit", &keys, LIMIT_MAX_CALLS) &&
           require(c, start, "rate_limit", &keys, LIMIT_WINDOW);
}

static bool read_budget_value(struct compile *c, size_t key, struct rule *rule)
{
    static const enum policy_action on_exceed[] = {POLICY_DENY, POLICY_REQUIRE_APPROVAL};
    struct budget *out = &rule->budget;

    switch ((enum budget_key)key) {
    case BUDGET_MAX_TOKENS:
        return read_count(c, "max_tokens", &out->max_tokens);
    case BUDGET_SCOPE:
        return read_scope(c, "scope", SCOPE_SESSION + 1, &out->scope);
    case BUDGET_ON_EXCEED:
        return read_action(c, "on_exceed", on_exceed, COUNT(on_exceed), &out->on_exceed);
    }
    return false;
}

static bool read_budget(struct compile *c, struct rule *rule)
{
    struct yaml_keys keys = {.names = BUDGET_KEYS, .n = COUNT(BUDGET_KEYS)};
    struct yaml_place start = yaml_place(c->y);

    rule->budget.set = true;
    return read_mapping(c, "budget", &keys, read_budget_value, rule) &&
           require(c, start, "budget", &keys, BUDGET_MAX_TOKENS);
}

static bool read_judge_value(struct compile *c, size_t key, struct rule *rule)
{
    static const enum policy_action fallback[] = {POLICY_ALLOW, POLICY_DENY,
                                                  POLICY_REQUIRE_APPROVAL};
    struct judge *out = &rule->judge;

    switch ((enum judge_key)key) {
    case JUDGE_INSTRUCTIONS:
        return compile_text(c, "instructions", &out->instructions);
    case JUDGE_THRESHOLD:
        return read_threshold(c, &out->threshold);
    case JUDGE_FALLBACK:
        return read_action(c, "fallback", fallback, COUNT(fallback), &out->fallback);
    }
    return false;
}

/* ---- the whole ---- */

/* Where keys stand that only some decisions take. */
struct then_places {
    struct yaml_place key[COUNT(THEN_KEYS)];
};

static bool read_then_value(struct compile *c, enum then_key key, struct rule *rule)
{
    static const enum policy_action decisions[] = {POLICY_ALLOW, POLICY_DENY,
                                                   POLICY_REQUIRE_APPROVAL, POLICY_JUDGE};
    struct yaml_keys approval = {.names = APPROVAL_KEYS, .n = COUNT(APPROVAL_KEYS)};
    struct yaml_keys judge = {.names = JUDGE_KEYS, .n = COUNT(JUDGE_KEYS)};

    switch (key) {
    case THEN_DECISION:
        return read_action(c, "decision", decisions, COUNT(decisions), &rule->decision);
    case THEN_REASON:
        return compile_text(c, "reason", &rule->reason);
    case THEN_APPROVAL_CONFIG:
        return read_mapping(c, "approval_config", &approval, read_approval_value, rule);
    case THEN_RATE_LIMIT:
        return read_rate_limit(c, rule);
    case THEN_BUDGET:
        return read_budget(c, rule);
    case THEN_JUDGE:
        return read_mapping(c, "judge", &judge, read_judge_value, rule);
    }
    return false;
}

static bool check_then(struct compile *c, struct yaml_place start, unsigned seen,
                       const struct then_places *places, const struct rule *rule)
{
    if ((seen & 1u << THEN_DECISION) == 0)
        return yaml_fail(c->y, start, "%.*s: decision is missing", STR_ARG(c->who));
    if ((seen & 1u << THEN_JUDGE) != 0 && rule->decision != POLICY_JUDGE)
        return yaml_fail(c->y, places->key[THEN_JUDGE],
                         "%.*s: judge goes with decision judge, not with %.*s", STR_ARG(c->who),
                         STR_ARG(policy_action_name(rule->decision)));
    if ((seen & 1u << THEN_BUDGET) != 0 && rule->decision != POLICY_ALLOW)
        return yaml_fail(c->y, places->key[THEN_BUDGET],
                         "%.*s: budget goes with decision allow, not with %.*s", STR_ARG(c->who),
                         STR_ARG(policy_action_name(rule->decision)));
    return true;
}

bool compile_then(struct compile *c, struct rule *out)
{
    struct yaml_keys keys = {.names = THEN_KEYS, .n = COUNT(THEN_KEYS)};
    struct yaml_place start = yaml_place(c->y);
    struct then_places places;
    size_t key;

    out->budget.on_exceed = POLICY_DENY;
    out->judge =
        (struct judge){.threshold = THRESHOLD_DEFAULT, .fallback = POLICY_REQUIRE_APPROVAL};
    if (yaml_event(c->y) != YAML_MAPPING)
        return compile_fail(c, "then must be a mapping with a decision");
    while (yaml_next(c->y)) {
        if (yaml_event(c->y) == YAML_MAPPING_END)
            return check_then(c, start, keys.seen, &places, out);
        if (!yaml_read_key(c->y, &keys, c->who, &key))
            return false;
        places.key[key] = yaml_place(c->y);
        if (!yaml_next(c->y) || !read_then_value(c, (enum then_key)key, out))
            return false;
    }
    return false;
}
