/* SPDX-License-Identifier: Apache-2.0
 * Loading what a rule matches. */
#include "policy/compile.h"

enum when_key {
    WHEN_TARGET,
    WHEN_TARGETS,
    WHEN_AGENT_ID,
    WHEN_AGENT_IDS,
    WHEN_STEP_KIND,
    WHEN_ARGUMENTS
};
static const char *const WHEN_KEYS[] = {
    [WHEN_TARGET] = "target",       [WHEN_TARGETS] = "targets",     [WHEN_AGENT_ID] = "agent_id",
    [WHEN_AGENT_IDS] = "agent_ids", [WHEN_STEP_KIND] = "step_kind", [WHEN_ARGUMENTS] = "arguments",
};

enum predicate_key { PREDICATE_EQUALS, PREDICATE_CONTAINS, PREDICATE_ONE_OF, PREDICATE_REGEX };
static const char *const PREDICATE_KEYS[] = {
    [PREDICATE_EQUALS] = "equals",
    [PREDICATE_CONTAINS] = "contains",
    [PREDICATE_ONE_OF] = "one_of",
    [PREDICATE_REGEX] = "regex",
};

/* Of all regexes together: a bundle of a few hundred thousand bytes could otherwise take gigabytes.
 * Ten thousand rules with long regexes stay far below. */
enum { INSTRUCTIONS_MAX = 4000000 };

/* ---- arguments ---- */

/* What arguments are compared with: numbers, booleans and null are meant as the words they are. */
static bool read_word(struct compile *c, const char *name, struct str *out)
{
    return compile_scalar(c, name) && compile_keep_text(c, name, yaml_source_text(c->y), out);
}

static bool read_some_word(struct compile *c, const char *name, struct str *out)
{
    return read_word(c, name, out) && (out->n > 0 || compile_fail(c, "%s is empty", name));
}

static bool read_regex(struct compile *c, const struct regex **out)
{
    struct str pattern;
    char why[128];

    if (!read_some_word(c, "regex", &pattern))
        return false;
    if (pattern.n > REGEX_PATTERN_MAX)
        return compile_fail(c, "regex is longer than %d bytes", REGEX_PATTERN_MAX);
    struct regex *re = regex_new(pattern.p, pattern.n, why, sizeof why);
    if (re == NULL)
        return compile_fail(c, "invalid regex: %.*s", STR_ARG(yaml_shown(c->y, str_of(why))));
    struct policy *p = c->p;
    p->regexes = compile_grow(p->regexes, p->n_regexes, &c->regexes_cap, sizeof *p->regexes);
    p->regexes[p->n_regexes++] = re;
    p->instructions += regex_size(re);
    *out = re;
    return p->instructions <= INSTRUCTIONS_MAX ||
           yaml_fail(c->y, yaml_place(c->y), "policy: its regexes take too much together");
}

static bool read_one_of(struct compile *c, struct predicate *out)
{
    if (!compile_list(c, "one_of", read_word))
        return false;
    out->n_one_of = c->texts.n;
    out->one_of = compile_keep_array(c, c->texts.p, c->texts.n, sizeof *c->texts.p);
    return out->one_of != NULL;
}

static bool read_predicate_value(struct compile *c, enum predicate_key key, struct predicate *out)
{
    switch (key) {
    case PREDICATE_EQUALS:
        return read_some_word(c, "equals", &out->equals);
    case PREDICATE_CONTAINS:
        return read_some_word(c, "contains", &out->contains);
    case PREDICATE_ONE_OF:
        return read_one_of(c, out);
    case PREDICATE_REGEX:
        return read_regex(c, &out->regex);
    }
    return false;
}

static bool read_predicate(struct compile *c, struct predicate *out)
{
    struct yaml_keys keys = {.names = PREDICATE_KEYS, .n = COUNT(PREDICATE_KEYS)};
    struct yaml_place start = yaml_place(c->y);
    size_t key;

    if (yaml_event(c->y) != YAML_MAPPING)
        return compile_fail(c, "it must be a mapping with equals, contains, one_of or regex");
    while (yaml_next(c->y)) {
        if (yaml_event(c->y) == YAML_MAPPING_END)
            return keys.seen != 0 ||
                   yaml_fail(c->y, start, "%.*s: the predicate is empty", STR_ARG(c->who));
        if (!yaml_read_key(c->y, &keys, c->who, &key) || !yaml_next(c->y) ||
            !read_predicate_value(c, (enum predicate_key)key, out))
            return false;
    }
    return false;
}

/* The argument's name at the current event: its index, once for all rules. */
static bool read_argument(struct compile *c, size_t *index)
{
    struct policy *p = c->p;
    struct str name;

    if (!read_word(c, "an argument's name", &name))
        return false;
    struct argument_key *key = map_get(&c->keys, name);
    if (key == NULL) {
        key = arena_new(yaml_scratch(c->y), struct argument_key);
        key->index = p->n_keys;
        map_put(&c->keys, name, key);
        p->keys = compile_grow(p->keys, p->n_keys, &c->keys_cap, sizeof *p->keys);
        p->keys[p->n_keys++] = name;
    }
    if (key->last_rule == c->number)
        return compile_fail(c, "argument \"%.*s\" is given twice", STR_ARG(yaml_shown(c->y, name)));
    key->last_rule = c->number;
    *index = key->index;
    return true;
}

static bool read_argument_predicate(struct compile *c)
{
    struct argument argument = {0};
    struct str rule = c->who;

    if (!read_argument(c, &argument.key) || !yaml_next(c->y))
        return false;
    c->who = arena_printf(yaml_scratch(c->y), "%.*s: argument \"%.*s\"", STR_ARG(rule),
                          STR_ARG(yaml_shown(c->y, c->p->keys[argument.key])));
    if (!read_predicate(c, &argument.predicate))
        return false;
    c->who = rule;
    c->arguments = compile_grow(c->arguments, c->n_arguments, &c->arguments_cap, sizeof argument);
    c->arguments[c->n_arguments++] = argument;
    return true;
}

static bool keep_arguments(struct compile *c, struct yaml_place start, struct rule_when *out)
{
    if (c->n_arguments == 0)
        return yaml_fail(c->y, start, "%.*s: arguments is empty", STR_ARG(c->who));
    out->n_arguments = c->n_arguments;
    out->arguments = compile_keep_array(c, c->arguments, c->n_arguments, sizeof *c->arguments);
    return out->arguments != NULL;
}

static bool read_arguments(struct compile *c, struct rule_when *out)
{
    struct yaml_place start = yaml_place(c->y);

    if (yaml_event(c->y) != YAML_MAPPING)
        return compile_fail(c, "arguments must be a mapping");
    c->n_arguments = 0;
    while (yaml_next(c->y)) {
        if (yaml_event(c->y) == YAML_MAPPING_END)
            return keep_arguments(c, start, out);
        if (!read_argument_predicate(c))
            return false;
    }
    return false;
}

/* ---- targets, agents, kinds ---- */

/* May be empty: so is the target of a model call without a model. */
static bool read_pattern(struct compile *c, const char *name, struct str *out)
{
    struct glob glob;

    if (!compile_scalar(c, name) || !compile_keep_text(c, name, yaml_text(c->y), out))
        return false;
    const char *wrong = glob_parse(*out, &glob);
    return wrong == NULL || compile_fail(c, "%s: malformed glob \"%.*s\": %s", name,
                                         STR_ARG(yaml_shown(c->y, *out)), wrong);
}

static bool read_target(struct compile *c, struct glob *out)
{
    struct str pattern;

    return read_pattern(c, "target", &pattern) && glob_parse(pattern, out) == NULL;
}

static bool read_targets(struct compile *c, struct rule_when *out)
{
    if (!compile_list(c, "targets", read_pattern))
        return false;
    struct glob *globs = arena_alloc(&c->p->arena, c->texts.n * sizeof *globs);
    if (globs == NULL)
        return err_set(c->e, ERR_INTERNAL, "out of memory");
    for (size_t i = 0; i < c->texts.n; i++)
        ASSERT(glob_parse(c->texts.p[i], &globs[i]) == NULL);
    out->targets = globs;
    out->n_targets = c->texts.n;
    return true;
}

static bool read_agent_ids(struct compile *c, struct rule_when *out)
{
    if (!compile_list(c, "agent_ids", compile_text))
        return false;
    out->n_agent_ids = c->texts.n;
    out->agent_ids = compile_keep_array(c, c->texts.p, c->texts.n, sizeof *c->texts.p);
    return out->agent_ids != NULL;
}

static bool read_kind(struct compile *c, struct rule_when *out)
{
    static const enum step_kind kinds[] = {KIND_TOOL_CALL, KIND_LLM_CALL, KIND_LOCAL};
    struct str names[COUNT(kinds)];
    size_t i;

    for (i = 0; i < COUNT(kinds); i++)
        names[i] = step_kind_name(kinds[i]);
    if (!compile_choice(c, "step_kind", names, COUNT(kinds), &i))
        return false;
    out->has_kind = true;
    out->kind = kinds[i];
    return true;
}

static bool read_when_value(struct compile *c, enum when_key key, struct rule_when *out)
{
    switch (key) {
    case WHEN_TARGET:
        return read_target(c, &out->target);
    case WHEN_TARGETS:
        return read_targets(c, out);
    case WHEN_AGENT_ID:
        return compile_text(c, "agent_id", &out->agent_id);
    case WHEN_AGENT_IDS:
        return read_agent_ids(c, out);
    case WHEN_STEP_KIND:
        return read_kind(c, out);
    case WHEN_ARGUMENTS:
        return read_arguments(c, out);
    }
    return false;
}

bool compile_when(struct compile *c, struct rule_when *out)
{
    struct yaml_keys keys = {.names = WHEN_KEYS, .n = COUNT(WHEN_KEYS)};
    size_t key;

    if (yaml_event(c->y) != YAML_MAPPING)
        return compile_fail(c, "when must be a mapping; leave it out to match every step");
    while (yaml_next(c->y)) {
        if (yaml_event(c->y) == YAML_MAPPING_END)
            return true;
        if (!yaml_read_key(c->y, &keys, c->who, &key) || !yaml_next(c->y) ||
            !read_when_value(c, (enum when_key)key, out))
            return false;
    }
    return false;
}
