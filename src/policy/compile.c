/* SPDX-License-Identifier: Apache-2.0
 * Loading a bundle: the whole, its rules, and what reading their parts has in common. */
#include "policy/compile.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

/* ---- shared ---- */

void *compile_grow(void *p, size_t n, size_t *cap, size_t size)
{
    if (n < *cap)
        return p;
    *cap = *cap == 0 ? 8 : *cap * 2;
    return xrealloc(p, *cap * size);
}

void *compile_keep_array(struct compile *c, const void *p, size_t n, size_t size)
{
    void *out = arena_alloc(&c->p->arena, n * size);

    if (out == NULL)
        err_set(c->e, ERR_INTERNAL, "out of memory");
    else if (n > 0)
        memcpy(out, p, n * size);
    return out;
}

bool compile_fail(struct compile *c, const char *fmt, ...)
{
    char text[ERR_MESSAGE_MAX];
    va_list args;

    va_start(args, fmt);
    vsnprintf(text, sizeof text, fmt, args);
    va_end(args);
    return yaml_fail(c->y, yaml_place(c->y), "%.*s: %s", STR_ARG(c->who), text);
}

bool compile_scalar(struct compile *c, const char *name)
{
    return yaml_event(c->y) == YAML_SCALAR || compile_fail(c, "%s must be a single value", name);
}

bool compile_keep_text(struct compile *c, const char *name, struct str text, struct str *out)
{
    if (!str_present(text))
        return compile_fail(c, "%s has no value", name);
    if (!str_is_utf8(text))
        return compile_fail(c, "%s is not valid UTF-8", name);
    *out = arena_str(&c->p->arena, text);
    return str_present(*out) || err_set(c->e, ERR_INTERNAL, "out of memory");
}

enum { NAME_MAX_BYTES = 256, SENTENCE_MAX_BYTES = 4096, INSTRUCTIONS_MAX_BYTES = 64 * 1024 };

static size_t longest(const char *name)
{
    if (strcmp(name, "instructions") == 0)
        return INSTRUCTIONS_MAX_BYTES;
    if (strcmp(name, "reason") == 0 || strcmp(name, "message") == 0)
        return SENTENCE_MAX_BYTES;
    return NAME_MAX_BYTES;
}

bool compile_text(struct compile *c, const char *name, struct str *out)
{
    if (!compile_scalar(c, name) || !compile_keep_text(c, name, yaml_text(c->y), out))
        return false;
    if (out->n == 0)
        return compile_fail(c, "%s is empty", name);
    if (out->n > longest(name))
        return compile_fail(c, "%s is longer than %zu bytes", name, longest(name));
    return memchr(out->p, '\0', out->n) == NULL || compile_fail(c, "%s holds a NUL", name);
}

bool compile_list(struct compile *c, const char *name, compile_item *read_item)
{
    struct texts *list = &c->texts;

    list->n = 0;
    if (yaml_event(c->y) != YAML_LIST)
        return compile_fail(c, "%s must be a list", name);
    struct yaml_place start = yaml_place(c->y);
    while (yaml_next(c->y)) {
        if (yaml_event(c->y) == YAML_LIST_END)
            return list->n > 0 ||
                   yaml_fail(c->y, start, "%.*s: %s is empty", STR_ARG(c->who), name);
        list->p = compile_grow(list->p, list->n, &list->cap, sizeof *list->p);
        if (!read_item(c, name, &list->p[list->n]))
            return false;
        list->n++;
    }
    return false;
}

bool compile_choice(struct compile *c, const char *name, const struct str *names, size_t n,
                    size_t *out)
{
    struct buf list = {0};

    if (!compile_scalar(c, name))
        return false;
    struct str text = yaml_text(c->y);
    for (*out = 0; *out < n; (*out)++) {
        if (str_present(text) && str_eq(text, names[*out])) {
            buf_free(&list);
            return true;
        }
        buf_printf(&list, "%s%.*s",
                   *out == 0       ? ""
                   : *out + 1 == n ? " or "
                                   : ", ",
                   STR_ARG(names[*out]));
    }
    compile_fail(c, "%s must be %.*s", name, STR_ARG(buf_str(&list)));
    buf_free(&list);
    return false;
}

/* ---- one rule ---- */

enum rule_key { RULE_ID, RULE_WHEN, RULE_THEN };
static const char *const RULE_KEYS[] = {
    [RULE_ID] = "id", [RULE_WHEN] = "when", [RULE_THEN] = "then"};

static void name_rule(struct compile *c)
{
    struct arena *a = yaml_scratch(c->y);

    if (str_present(c->id))
        c->who = arena_printf(a, "rule \"%.*s\"", STR_ARG(yaml_shown(c->y, c->id)));
    else
        c->who = arena_printf(a, "rule %zu", c->number);
}

static bool read_id(struct compile *c, struct rule *rule)
{
    c->at_id = true;
    if (!compile_text(c, "id", &rule->id))
        return false;
    if (str_has_control(rule->id))
        return compile_fail(c, "id must not have control characters");
    struct yaml_place *first = map_get(&c->ids, rule->id), *at;
    if (first != NULL)
        return compile_fail(c, "the id \"%.*s\" is already in line %d",
                            STR_ARG(yaml_shown(c->y, rule->id)), first->line);
    at = arena_new(yaml_scratch(c->y), struct yaml_place);
    *at = yaml_place(c->y);
    map_put(&c->ids, rule->id, at);
    c->id = rule->id;
    c->at_id = false;
    name_rule(c);
    return true;
}

static bool read_rule_value(struct compile *c, enum rule_key key, struct rule *rule,
                            struct rule_when *when)
{
    switch (key) {
    case RULE_ID:
        return read_id(c, rule);
    case RULE_WHEN:
        return compile_when(c, when);
    case RULE_THEN:
        return compile_then(c, rule);
    }
    return false;
}

static bool add_rule(struct compile *c, const struct rule *rule, struct yaml_place start,
                     unsigned seen)
{
    static const enum rule_key required[] = {RULE_ID, RULE_THEN};
    struct policy *p = c->p;

    for (size_t i = 0; i < COUNT(required); i++) {
        if ((seen & 1u << required[i]) == 0)
            return yaml_fail(c->y, start, "%.*s: %s is missing", STR_ARG(c->who),
                             RULE_KEYS[required[i]]);
    }
    p->rules = compile_grow(p->rules, p->n_rules, &c->rules_cap, sizeof *p->rules);
    p->rules[p->n_rules++] = *rule;
    return true;
}

/* At a list's item. */
static bool read_rule(struct compile *c)
{
    struct yaml_place start = yaml_place(c->y);
    struct yaml_keys keys = {.names = RULE_KEYS, .n = COUNT(RULE_KEYS)};
    struct rule_when *when = arena_new(&c->p->arena, struct rule_when);
    struct rule rule = {.when = when};
    size_t key;

    c->number = c->p->n_rules + 1;
    c->id = c->number == c->hint_number ? c->hint_id : STR_NONE;
    name_rule(c);
    if (yaml_event(c->y) != YAML_MAPPING)
        return compile_fail(c, "it must be a mapping with id, when and then");
    while (yaml_next(c->y)) {
        if (yaml_event(c->y) == YAML_MAPPING_END)
            return add_rule(c, &rule, start, keys.seen);
        if (!yaml_read_key(c->y, &keys, c->who, &key) || !yaml_next(c->y) ||
            !read_rule_value(c, (enum rule_key)key, &rule, when))
            return false;
    }
    return false;
}

/* ---- the whole ---- */

enum root_key { ROOT_DEFAULT_ACTION, ROOT_RULES };
static const char *const ROOT_KEYS[] = {
    [ROOT_DEFAULT_ACTION] = "default_action", [ROOT_RULES] = "rules"};

static bool read_rules(struct compile *c)
{
    if (yaml_event(c->y) != YAML_LIST)
        return compile_fail(c, "rules must be a list");
    while (yaml_next(c->y)) {
        if (yaml_event(c->y) == YAML_LIST_END) {
            c->number = 0;
            c->who = STR("policy");
            return true;
        }
        if (!read_rule(c))
            return false;
    }
    return false;
}

static bool read_default_action(struct compile *c)
{
    static const struct str names[] = {STR_INIT("allow"), STR_INIT("deny")};
    static const enum policy_action actions[] = {POLICY_ALLOW, POLICY_DENY};
    size_t i;

    if (!compile_choice(c, "default_action", names, COUNT(names), &i))
        return false;
    c->p->default_action = actions[i];
    return true;
}

static bool read_root(struct compile *c)
{
    struct yaml_place start = yaml_place(c->y);
    struct yaml_keys keys = {.names = ROOT_KEYS, .n = COUNT(ROOT_KEYS)};
    size_t key;

    c->who = STR("policy");
    if (yaml_event(c->y) == YAML_END)
        return compile_fail(c, "it is empty");
    if (yaml_event(c->y) != YAML_MAPPING)
        return compile_fail(c, "it must be a mapping with the keys default_action and rules");
    while (yaml_next(c->y)) {
        if (yaml_event(c->y) == YAML_MAPPING_END)
            return keys.seen != 0 || yaml_fail(c->y, start, "policy: it is empty");
        if (!yaml_read_key(c->y, &keys, c->who, &key) || !yaml_next(c->y))
            return false;
        if (!(key == ROOT_RULES ? read_rules(c) : read_default_action(c)))
            return false;
    }
    return false;
}

static void add_rule_cost(struct rule_cost *cost, const struct rule_when *when)
{
    enum { RULE_NS = 10, GLOB_NS = 2, AGENT_NS = 3, LOOKUP_NS = 50 };

    cost->rules += RULE_NS + (int64_t)when->n_agent_ids * AGENT_NS;
    cost->per_target_byte +=
        (int64_t)(when->target.goes_back ? when->target.pattern.n : 0) * GLOB_NS;
    for (size_t i = 0; i < when->n_targets; i++) {
        const struct glob *glob = &when->targets[i];
        cost->rules += RULE_NS;
        cost->per_target_byte += (int64_t)(glob->goes_back ? glob->pattern.n : 0) * GLOB_NS;
    }
    for (size_t i = 0; i < when->n_arguments; i++) {
        cost->rules += LOOKUP_NS + predicate_cost(&when->arguments[i].predicate);
        cost->per_args_byte += predicate_cost_per_byte(&when->arguments[i].predicate);
    }
}

static void add_costs(struct policy *p)
{
    enum { KEY_NS = 2 };

    p->cost.per_args_byte = (int64_t)p->n_keys * KEY_NS; /* a dotted one walks into its value */
    for (size_t i = 0; i < p->n_rules; i++)
        add_rule_cost(&p->cost, p->rules[i].when);
}

static bool compile_source(const struct yaml_source *source, struct compile *c)
{
    c->y = yaml_open(source, c->e);
    bool ok = c->y != NULL && read_root(c) && yaml_finish(c->y);

    yaml_close(c->y);
    map_free(&c->ids);
    map_free(&c->keys);
    free(c->texts.p);
    free(c->arguments);
    return ok;
}

/* In a mapping: moves to the value of a key. */
static bool seek_key(struct yaml *y, struct str key)
{
    while (yaml_next(y) && yaml_event(y) != YAML_MAPPING_END) {
        bool found = yaml_event(y) == YAML_SCALAR && str_eq(yaml_text(y), key);
        if (!yaml_skip(y) || !yaml_next(y))
            return false;
        if (found)
            return true;
        if (!yaml_skip(y))
            return false;
    }
    return false;
}

/* In a list: moves to an item, counted from 1. */
static bool seek_item(struct yaml *y, size_t number)
{
    for (size_t i = 1; yaml_next(y) && yaml_event(y) != YAML_LIST_END; i++) {
        if (i == number)
            return true;
        if (!yaml_skip(y))
            return false;
    }
    return false;
}

/* The id of a rule whose beginning was refused, owned; NULL when it has none that can be read. */
static char *find_id(const struct yaml_source *source, size_t number)
{
    struct err ignored;
    struct yaml *y = yaml_open(source, &ignored);
    char *id = NULL;

    if (y != NULL && yaml_event(y) == YAML_MAPPING && seek_key(y, STR("rules")) &&
        yaml_event(y) == YAML_LIST && seek_item(y, number) && yaml_event(y) == YAML_MAPPING &&
        seek_key(y, STR("id")) && yaml_event(y) == YAML_SCALAR && str_present(yaml_text(y)))
        id = xstrdup(yaml_text(y));
    yaml_close(y);
    return id;
}

static struct policy *try_compile(const struct yaml_source *source, size_t hint_number,
                                  struct str hint_id, size_t *failed_at, struct err *e)
{
    struct policy *p = xzalloc(sizeof *p);
    struct compile c = {.p = p, .e = e, .hint_number = hint_number, .hint_id = hint_id};

    atomic_init(&p->references, 1);
    p->default_action = POLICY_DENY;
    if (compile_source(source, &c)) {
        add_costs(p);
        hash_sha256(source->text, &p->hash);
        return p;
    }
    *failed_at = c.at_id || str_present(c.id) ? 0 : c.number;
    policy_unref(p);
    return NULL;
}

struct policy *policy_compile(struct str yaml, const char *name, struct err *e)
{
    struct yaml_source source = {.text = yaml, .name = name, .what = "a policy"};
    size_t failed_at = 0;

    if (yaml.n > POLICY_BUNDLE_MAX) {
        err_set(e, ERR_VALIDATION, "%s%sthe policy has %zu bytes; at most %d are taken", name,
                name[0] == '\0' ? "" : ": ", yaml.n, POLICY_BUNDLE_MAX);
        return NULL;
    }
    struct policy *p = try_compile(&source, 0, STR_NONE, &failed_at, e);
    if (p != NULL || failed_at == 0)
        return p;
    char *id = find_id(&source, failed_at);
    if (id != NULL)
        (void)try_compile(&source, failed_at, str_of(id), &failed_at, e);
    free(id);
    return NULL;
}
