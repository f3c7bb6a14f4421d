/* SPDX-License-Identifier: Apache-2.0
 * Reading cases: YAML files and the API's JSON. */
#include <stdlib.h>

#include "base/yaml_json.h"
#include "policy/tester.h"

enum case_key {
    CASE_NAME,
    CASE_AGENT_ID,
    CASE_TARGET,
    CASE_KIND,
    CASE_ARGS,
    CASE_EXPECT,
    CASE_EXPECT_RULE
};
static const char *const CASE_KEYS[] = {
    [CASE_NAME] = "name",
    [CASE_AGENT_ID] = "agent_id",
    [CASE_TARGET] = "target",
    [CASE_KIND] = "kind",
    [CASE_ARGS] = "args",
    [CASE_EXPECT] = "expect",
    [CASE_EXPECT_RULE] = "expect_rule",
};

static const char ACTIONS[] = "allow, deny, require_approval or judge";
static const char KINDS[] = "tool_call, llm_call or local";

struct list {
    struct policy_case *p; /* malloc */
    size_t n, cap;
};

static void list_add(struct list *l, const struct policy_case *c)
{
    if (l->n == l->cap) {
        l->cap = l->cap == 0 ? 16 : l->cap * 2;
        l->p = xrealloc(l->p, l->cap * sizeof *l->p);
    }
    l->p[l->n++] = *c;
}

/* The list as the caller gets it. */
static bool list_give(struct list *l, struct arena *a, struct policy_case **out, size_t *n,
                      struct err *e)
{
    *n = l->n;
    *out = arena_array(a, struct policy_case, l->n + 1);
    if (*out == NULL)
        return err_set(e, ERR_INTERNAL, "out of memory");
    if (l->n > 0)
        memcpy(*out, l->p, l->n * sizeof *l->p);
    return true;
}

static bool keep_canonical(struct str json, struct arena *a, struct str *out, struct err *e)
{
    struct buf b = {0};
    bool ok = canonical_json(json, &b, e);

    if (ok) {
        *out = arena_str(a, buf_str(&b));
        ok = str_present(*out) || err_set(e, ERR_INTERNAL, "out of memory");
    }
    buf_free(&b);
    return ok;
}

/* ---- YAML ---- */

struct reader {
    struct yaml *y;
    struct arena *a;
    struct err *e;
    struct str agent_id; /* of the file; STR("") before it is read */
    struct list list;
    struct str who;
};

static bool fail(struct reader *r, const char *what, const char *wrong)
{
    return yaml_fail(r->y, yaml_place(r->y), "%.*s: %s %s", STR_ARG(r->who), what, wrong);
}

static bool read_text(struct reader *r, const char *name, struct str *out)
{
    if (yaml_event(r->y) != YAML_SCALAR)
        return fail(r, name, "must be a single value");
    struct str text = yaml_text(r->y);
    if (!str_present(text))
        return fail(r, name, "has no value");
    if (!str_is_utf8(text))
        return fail(r, name, "is not valid UTF-8");
    *out = arena_str(r->a, text);
    return str_present(*out) || err_set(r->e, ERR_INTERNAL, "out of memory");
}

static bool read_kind(struct reader *r, struct policy_case *c)
{
    struct str text = STR_NONE;

    if (!read_text(r, "kind", &text))
        return false;
    return step_kind_parse(text, &c->kind) ||
           yaml_fail(r->y, yaml_place(r->y), "%.*s: kind must be %s", STR_ARG(r->who), KINDS);
}

static bool read_expect(struct reader *r, struct policy_case *c)
{
    struct str text = STR_NONE;

    if (!read_text(r, "expect", &text))
        return false;
    c->expects = policy_action_parse(text, &c->expect);
    return c->expects ||
           yaml_fail(r->y, yaml_place(r->y), "%.*s: expect must be %s", STR_ARG(r->who), ACTIONS);
}

static bool read_args(struct reader *r, struct policy_case *c)
{
    struct yaml_place start = yaml_place(r->y);
    struct buf json = {0};
    struct err wrong;
    bool ok = yaml_to_json(r->y, r->who, &json);

    if (ok && !keep_canonical(buf_str(&json), r->a, &c->args, &wrong))
        ok = yaml_fail(r->y, start, "%.*s: args: %.*s", STR_ARG(r->who),
                       STR_ARG(yaml_shown(r->y, str_of(wrong.message))));
    buf_free(&json);
    return ok;
}

static bool read_case_value(struct reader *r, enum case_key key, struct policy_case *c)
{
    switch (key) {
    case CASE_NAME:
        return read_text(r, "name", &c->name);
    case CASE_AGENT_ID:
        return read_text(r, "agent_id", &c->agent_id);
    case CASE_TARGET:
        return read_text(r, "target", &c->target);
    case CASE_KIND:
        return read_kind(r, c);
    case CASE_ARGS:
        return read_args(r, c);
    case CASE_EXPECT:
        return read_expect(r, c);
    case CASE_EXPECT_RULE:
        return read_text(r, "expect_rule", &c->expect_rule);
    }
    return false;
}

static bool add_case(struct reader *r, struct yaml_place start, const struct policy_case *c)
{
    if (!str_present(c->target))
        return yaml_fail(r->y, start, "%.*s: target is missing", STR_ARG(r->who));
    list_add(&r->list, c);
    return true;
}

/* At a list's item. */
static bool read_case(struct reader *r)
{
    struct yaml_keys keys = {.names = CASE_KEYS, .n = COUNT(CASE_KEYS)};
    struct yaml_place start = yaml_place(r->y);
    struct policy_case c = {.kind = KIND_TOOL_CALL};
    size_t key;

    r->who = arena_printf(yaml_scratch(r->y), "case %zu", r->list.n + 1);
    if (yaml_event(r->y) != YAML_MAPPING)
        return yaml_fail(r->y, start, "%.*s must be a mapping with a target", STR_ARG(r->who));
    while (yaml_next(r->y)) {
        if (yaml_event(r->y) == YAML_MAPPING_END)
            return add_case(r, start, &c);
        if (!yaml_read_key(r->y, &keys, r->who, &key) || !yaml_next(r->y) ||
            !read_case_value(r, (enum case_key)key, &c))
            return false;
        if (key == CASE_NAME)
            r->who = arena_printf(yaml_scratch(r->y), "case %zu (%.*s)", r->list.n + 1,
                                  STR_ARG(yaml_shown(r->y, c.name)));
    }
    return false;
}

static bool read_cases(struct reader *r)
{
    struct yaml_place start = yaml_place(r->y);

    if (yaml_event(r->y) != YAML_LIST)
        return fail(r, "cases", "must be a list");
    while (yaml_next(r->y)) {
        if (yaml_event(r->y) == YAML_LIST_END) {
            r->who = STR("cases");
            return r->list.n > 0 || yaml_fail(r->y, start, "there are no cases");
        }
        if (!read_case(r))
            return false;
    }
    return false;
}

static bool read_root(struct reader *r)
{
    static const char *const names[] = {"agent_id", "cases"};
    struct yaml_keys keys = {.names = names, .n = COUNT(names)};
    struct yaml_place start = yaml_place(r->y);
    size_t key;

    r->who = STR("cases");
    if (yaml_event(r->y) != YAML_MAPPING)
        return yaml_fail(r->y, start, "there must be a mapping with the keys agent_id and cases");
    while (yaml_next(r->y)) {
        if (yaml_event(r->y) == YAML_MAPPING_END)
            return (keys.seen & 2u) != 0 || yaml_fail(r->y, start, "the key cases is missing");
        if (!yaml_read_key(r->y, &keys, r->who, &key) || !yaml_next(r->y))
            return false;
        if (!(key == 0 ? read_text(r, "agent_id", &r->agent_id) : read_cases(r)))
            return false;
    }
    return false;
}

bool policy_cases_load(struct str yaml, const char *name, struct arena *a, struct policy_case **out,
                       size_t *n, struct err *e)
{
    struct yaml_source source = {.text = yaml, .name = name, .what = "a case file"};
    struct reader r = {.a = a, .e = e, .agent_id = STR("")};

    r.y = yaml_open(&source, e);
    bool ok = r.y != NULL && read_root(&r) && yaml_finish(r.y);
    for (size_t i = 0; ok && i < r.list.n; i++) { /* agent_id may stand behind the cases */
        if (!str_present(r.list.p[i].agent_id))
            r.list.p[i].agent_id = r.agent_id;
    }
    ok = ok && list_give(&r.list, a, out, n, e);
    yaml_close(r.y);
    free(r.list.p);
    return ok;
}

/* ---- JSON ---- */

/* Fields as they came: kind and expect still words. */
static bool read_json_fields(struct str json, struct policy_case *c, struct str *kind,
                             struct str *expect, struct arena *a, struct err *e)
{
    const unsigned text = 1u << JSON_STRING;
    struct str *texts[] = {&c->name, &c->agent_id, &c->target, &c->expect_rule, kind, expect};
    const struct json_field fields[] = {
        {"name", false, false, text, &c->name},
        {"agent_id", false, false, text, &c->agent_id},
        {"target", true, false, text, &c->target},
        {"kind", false, false, text, kind},
        {"args", false, true, 0, &c->args},
        {"expect", false, false, text, expect},
        {"expect_rule", false, false, text, &c->expect_rule},
    };

    if (!json_fields(json, false, fields, COUNT(fields), a, e))
        return false;
    for (size_t i = 0; i < COUNT(texts); i++) {
        if (!str_present(*texts[i]))
            continue;
        *texts[i] = json_string(*texts[i], a);
        if (!str_present(*texts[i]))
            return err_set(e, ERR_INTERNAL, "out of memory");
    }
    return !str_present(c->args) || keep_canonical(c->args, a, &c->args, e);
}

static bool read_json_case(struct str json, size_t number, struct policy_case *c, struct arena *a,
                           struct err *e)
{
    struct str kind, expect;
    struct err wrong;

    if (json_type_of(json) != JSON_OBJECT)
        return err_set(e, ERR_VALIDATION, "case %zu must be an object with a target", number);
    if (!read_json_fields(json, c, &kind, &expect, a, &wrong))
        return err_set(e, wrong.code, "case %zu: %s", number, wrong.message);
    if (str_present(kind) && !step_kind_parse(kind, &c->kind))
        return err_set(e, ERR_VALIDATION, "case %zu: field \"kind\" must be %s", number, KINDS);
    c->expects = str_present(expect);
    return !c->expects || policy_action_parse(expect, &c->expect) ||
           err_set(e, ERR_VALIDATION, "case %zu: field \"expect\" must be %s", number, ACTIONS);
}

bool policy_cases_read(struct str json, struct str agent_id, struct arena *a,
                       struct policy_case **out, size_t *n, struct err *e)
{
    struct json_walk walk = {0};
    struct list list = {0};
    struct str item;
    bool ok = json_type_of(json) == JSON_ARRAY ||
              err_set(e, ERR_VALIDATION, "cases must be an array of objects");

    while (ok && json_next_item(json, &walk, &item)) {
        struct policy_case c = {.kind = KIND_TOOL_CALL};
        ok = read_json_case(item, list.n + 1, &c, a, e);
        if (!str_present(c.agent_id))
            c.agent_id = agent_id;
        list_add(&list, &c);
    }
    ok = ok && list_give(&list, a, out, n, e);
    free(list.p);
    return ok;
}
