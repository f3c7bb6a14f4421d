/* SPDX-License-Identifier: Apache-2.0
 * What a bundle says of one step: top to bottom, the first rule that matches. A usual step costs no
 * allocation: the arguments' members are found once, when the first rule asks for one, and each
 * argument that rules ask for is looked up and decoded once. */
#include <stdlib.h>

#include "policy/rule.h"

enum { MEMBERS_LOCAL = 32, VALUES_LOCAL = 32 };

struct value {
    bool looked_up;
    struct str text; /* what predicates see; absent: there is no such argument */
};

struct evaluation {
    const struct policy *p;
    const struct policy_input *in;
    bool opened;    /* the members below are there */
    bool no_memory; /* some argument could not be looked at */
    size_t n_members;
    struct json_member *members; /* sorted by key, as canonical JSON is */
    struct value *values;        /* by the policy's keys */
    struct arena arena;          /* what does not fit below */
    struct json_member members_local[MEMBERS_LOCAL];
    struct value values_local[VALUES_LOCAL];
};

static void evaluation_start(struct evaluation *ev, const struct policy *p,
                             const struct policy_input *in)
{
    ev->p = p;
    ev->in = in;
    ev->opened = ev->no_memory = false;
    ev->arena = (struct arena){0};
}

/* ---- arguments ---- */

static bool members_grow(struct evaluation *ev, size_t *cap)
{
    struct json_member *more =
        arena_alloc(&ev->arena, *cap * 2 * sizeof *more); /* the smaller one stays: half as much */

    if (more == NULL) {
        ev->no_memory = true;
        return false;
    }
    memcpy(more, ev->members, ev->n_members * sizeof *more);
    ev->members = more;
    *cap *= 2;
    return true;
}

static void open_members(struct evaluation *ev)
{
    struct json_walk walk = {0};
    size_t cap = MEMBERS_LOCAL;

    ev->members = ev->members_local;
    ev->n_members = 0;
    for (;;) {
        if (ev->n_members == cap && !members_grow(ev, &cap))
            return;
        struct json_member *m = &ev->members[ev->n_members];
        if (!json_next_member(ev->in->args, &walk, &ev->arena, m))
            return;
        ev->no_memory = ev->no_memory || !str_present(m->key);
        ev->n_members++;
    }
}

static void open_arguments(struct evaluation *ev)
{
    size_t n = ev->p->n_keys;

    ev->opened = true;
    ev->values =
        n <= VALUES_LOCAL ? ev->values_local : arena_alloc(&ev->arena, n * sizeof *ev->values);
    if (ev->values == NULL) {
        ev->no_memory = true;
        return;
    }
    for (size_t i = 0; i < n; i++)
        ev->values[i].looked_up = false;
    open_members(ev);
}

static struct str find_member(const struct evaluation *ev, struct str key)
{
    size_t low = 0, high = ev->n_members;

    while (low < high) {
        size_t middle = low + (high - low) / 2;
        int order = str_cmp(ev->members[middle].key, key);
        if (order == 0)
            return ev->members[middle].value;
        if (order < 0)
            low = middle + 1;
        else
            high = middle;
    }
    return STR_NONE;
}

/* Whole first, then as a path. */
static struct str find_argument(struct evaluation *ev, struct str key)
{
    struct str value = find_member(ev, key);
    const char *dot = value.p != NULL || key.n == 0 ? NULL : memchr(key.p, '.', key.n);

    if (dot == NULL)
        return value;
    size_t at = (size_t)(dot - key.p);
    value = find_member(ev, str_slice(key, 0, at));
    while (str_present(value) && at < key.n) {
        struct str rest = str_slice(key, at + 1, key.n);
        dot = rest.n == 0 ? NULL : memchr(rest.p, '.', rest.n);
        size_t n = dot == NULL ? rest.n : (size_t)(dot - rest.p);
        value = json_get(value, str_slice(rest, 0, n), &ev->arena);
        at += 1 + n;
    }
    return value;
}

/* A string as the text that it means, anything else as it is written. */
static struct str text_of(struct evaluation *ev, struct str value)
{
    if (json_type_of(value) != JSON_STRING)
        return value;
    struct str text = json_string(value, &ev->arena);
    ev->no_memory = ev->no_memory || !str_present(text);
    return text;
}

static struct str argument_text(struct evaluation *ev, size_t key)
{
    struct value *v = &ev->values[key];

    if (!v->looked_up) {
        struct str value = find_argument(ev, ev->p->keys[key]);
        v->looked_up = true;
        v->text = str_present(value) ? text_of(ev, value) : STR_NONE;
    }
    return v->text;
}

/* What there is no memory to look at counts against the step. */
static bool arguments_match(struct evaluation *ev, const struct rule *rule)
{
    const struct rule_when *when = rule->when;

    if (!ev->opened)
        open_arguments(ev);
    for (size_t i = 0; i < when->n_arguments && !ev->no_memory; i++) {
        struct str text = argument_text(ev, when->arguments[i].key);
        if (!ev->no_memory &&
            (!str_present(text) ||
             !predicate_holds(&when->arguments[i].predicate, text, &ev->no_memory)) &&
            !ev->no_memory)
            return false;
    }
    return !ev->no_memory || rule->decision != POLICY_ALLOW;
}

/* ---- rules ---- */

static bool any_target(const struct rule_when *when, struct str target)
{
    for (size_t i = 0; i < when->n_targets; i++) {
        if (glob_matches(&when->targets[i], target))
            return true;
    }
    return when->n_targets == 0;
}

static bool any_agent(const struct rule_when *when, struct str agent_id)
{
    for (size_t i = 0; i < when->n_agent_ids; i++) {
        if (str_eq(when->agent_ids[i], agent_id))
            return true;
    }
    return when->n_agent_ids == 0;
}

/* All but the arguments. */
static bool call_matches(const struct rule_when *when, const struct policy_input *in)
{
    return (!when->has_kind || when->kind == in->kind) &&
           (!str_present(when->target.pattern) || glob_matches(&when->target, in->target)) &&
           any_target(when, in->target) &&
           (!str_present(when->agent_id) || str_eq(when->agent_id, in->agent_id)) &&
           any_agent(when, in->agent_id);
}

static int first_match(struct evaluation *ev)
{
    const struct policy *p = ev->p;

    for (size_t i = 0; i < p->n_rules; i++) {
        const struct rule *rule = &p->rules[i];

        if (call_matches(rule->when, ev->in) &&
            (rule->when->n_arguments == 0 || arguments_match(ev, rule)))
            return (int)i;
    }
    return POLICY_NO_RULE;
}

void policy_match_of(const struct policy *p, int rule, enum step_kind kind,
                     struct policy_match *out)
{
    if (rule != POLICY_NO_RULE) {
        const struct rule *r = policy_rule(p, (size_t)rule);
        *out = (struct policy_match){rule, r->decision, r->id, r->reason};
    } else if (kind == KIND_LOCAL) {
        *out = (struct policy_match){rule, POLICY_ALLOW, STR("local"), STR_NONE};
    } else {
        *out = (struct policy_match){rule, p->default_action, STR("default"),
                                     p->default_action == POLICY_ALLOW
                                         ? STR("default allow")
                                         : STR("no explicit allow rule matched")};
    }
}

void policy_evaluate(const struct policy *p, const struct policy_input *in,
                     struct policy_match *out)
{
    struct evaluation ev;

    evaluation_start(&ev, p, in);
    policy_match_of(p, first_match(&ev), in->kind, out);
    arena_free(&ev.arena);
}

/* ---- cost ---- */

enum { COSTLY_NS = 1000000, FIND_MAX_BYTES = 128 * 1024 };

static int64_t rule_arguments_cost(struct evaluation *ev, const struct rule_when *when)
{
    int64_t ns = 0;

    if (!ev->opened)
        open_arguments(ev);
    for (size_t i = 0; i < when->n_arguments && !ev->no_memory; i++) {
        const struct argument *argument = &when->arguments[i];
        int64_t n = (int64_t)argument_text(ev, argument->key).n;
        ns += n * predicate_cost_per_byte(&argument->predicate);
    }
    return ev->no_memory ? COSTLY_NS : ns;
}

/* Of the rules that look at this step's arguments, with the lengths of what they look at. */
static int64_t arguments_cost(struct evaluation *ev)
{
    const struct policy *p = ev->p;
    int64_t ns = 0;

    for (size_t i = 0; i < p->n_rules && ns < COSTLY_NS; i++) {
        const struct rule_when *when = p->rules[i].when;

        if (!call_matches(when, ev->in))
            continue;
        if (when->n_arguments == 0)
            break; /* it matches: no rule behind it is looked at */
        if (ev->in->args.n > FIND_MAX_BYTES)
            return COSTLY_NS; /* finding the arguments is much already */
        ns += rule_arguments_cost(ev, when);
    }
    return ns;
}

bool policy_is_costly(const struct policy *p, const struct policy_input *in)
{
    int64_t rules = p->cost.rules + (int64_t)in->target.n * p->cost.per_target_byte;
    struct evaluation ev;

    if (rules >= COSTLY_NS)
        return true;
    if (rules + (int64_t)in->args.n * p->cost.per_args_byte < COSTLY_NS)
        return false;
    evaluation_start(&ev, p, in);
    int64_t ns = rules + arguments_cost(&ev);
    arena_free(&ev.arena);
    return ns >= COSTLY_NS;
}
