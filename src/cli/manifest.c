/* SPDX-License-Identifier: Apache-2.0
 * Reads the manifest from the YAML reader's events: the first thing that does not belong ends the
 * reading. */
#include "cli/manifest.h"

#include <stdlib.h>

#include "base/map.h"
#include "base/yaml.h"
#include "cli/file.h"
#include "policy/policy.h"

enum { MANIFEST_MAX_BYTES = 4 * 1024 * 1024, LEASE_MAX_SECONDS = 365 * 24 * 3600 };

struct reader {
    struct yaml *y;
    const char *path;
    struct arena *a; /* the manifest's */
    struct err *e;
    struct manifest_agent *agents; /* malloc, grows */
    size_t n, cap;
    struct map ids; /* id → struct yaml_place */
};

/* What a message says of an agent: its id once that is known, else its number. */
struct agent_draft {
    struct manifest_agent agent;
    size_t number;
    struct yaml_place start;
    struct yaml_keys keys;
};

enum agent_key {
    KEY_ID,
    KEY_WEBHOOK_URL,
    KEY_SECRET,
    KEY_LEASE_TIMEOUT,
    KEY_POLICY,
    KEY_POLICY_FILE
};
static const char *const AGENT_KEYS[] = {
    [KEY_ID] = "id",         [KEY_WEBHOOK_URL] = "webhook_url",
    [KEY_SECRET] = "secret", [KEY_LEASE_TIMEOUT] = "lease_timeout_seconds",
    [KEY_POLICY] = "policy", [KEY_POLICY_FILE] = "policy_file",
};

/* About the value at the current event. */
#define FAIL(r, ...) yaml_fail((r)->y, yaml_place((r)->y), __VA_ARGS__)

static struct str draft_name(struct reader *r, const struct agent_draft *d)
{
    struct arena *a = yaml_scratch(r->y);

    if (d->agent.id.p == NULL)
        return arena_printf(a, "agent %zu", d->number);
    return arena_printf(a, "agent \"%.*s\"", STR_ARG(yaml_shown(r->y, d->agent.id)));
}

/* ---- ${NAME} ---- */

static size_t name_length(struct str s)
{
    size_t n = 0;

    while (n < s.n &&
           (s.p[n] == '_' || (s.p[n] >= 'A' && s.p[n] <= 'Z') || (s.p[n] >= 'a' && s.p[n] <= 'z') ||
            (n > 0 && s.p[n] >= '0' && s.p[n] <= '9')))
        n++;
    return n;
}

/* Replaces each ${NAME} once: what a variable holds is text, not a template. */
static bool substitute(struct reader *r, struct str who, const char *key, struct str text,
                       struct str *out)
{
    struct buf b = {.max = MANIFEST_MAX_BYTES};
    bool ok = false;

    for (size_t i = 0; i < text.n;) {
        if (text.p[i] != '$' || i + 1 >= text.n || text.p[i + 1] != '{') {
            buf_add_byte(&b, text.p[i++]);
            continue;
        }
        struct str rest = str_slice(text, i + 2, text.n);
        size_t n = name_length(rest);
        if (n == 0 || n >= rest.n || rest.p[n] != '}') {
            FAIL(r, "%.*s: %s: \"${\" must be followed by a variable's name and \"}\"",
                 STR_ARG(who), key);
            goto done;
        }
        struct str name = arena_str(yaml_scratch(r->y), str_slice(rest, 0, n));
        const char *value = getenv(name.p);
        if (value == NULL) {
            FAIL(r, "%.*s: %s: the environment variable %.*s is not set", STR_ARG(who), key,
                 STR_ARG(yaml_shown(r->y, name)));
            goto done;
        }
        buf_add_z(&b, value);
        i += 2 + n + 1;
    }
    if (b.failed) {
        FAIL(r, "%.*s: %s is too long", STR_ARG(who), key);
        goto done;
    }
    *out = arena_str(r->a, buf_str(&b));
    ok = out->p != NULL || err_set(r->e, ERR_INTERNAL, "out of memory");
done:
    buf_free(&b);
    return ok;
}

/* ---- one agent ---- */

static bool read_text(struct reader *r, struct agent_draft *d, enum agent_key key, struct str *out)
{
    struct str who = draft_name(r, d);

    if (yaml_event(r->y) != YAML_SCALAR)
        return FAIL(r, "%.*s: %s must be a single value", STR_ARG(who), AGENT_KEYS[key]);
    struct str text = yaml_text(r->y);
    if (text.p == NULL)
        return FAIL(r, "%.*s: %s has no value", STR_ARG(who), AGENT_KEYS[key]);
    if (!substitute(r, who, AGENT_KEYS[key], text, out))
        return false;
    if (out->n == 0)
        return FAIL(r, "%.*s: %s is empty", STR_ARG(who), AGENT_KEYS[key]);
    if (!str_is_utf8(*out))
        return FAIL(r, "%.*s: %s is not valid UTF-8", STR_ARG(who), AGENT_KEYS[key]);
    return true;
}

static bool read_lease(struct reader *r, struct agent_draft *d)
{
    struct str text = STR_NONE;

    if (!read_text(r, d, KEY_LEASE_TIMEOUT, &text))
        return false;
    if (str_to_int64(text, &d->agent.lease_timeout_seconds) && d->agent.lease_timeout_seconds > 0 &&
        d->agent.lease_timeout_seconds <= LEASE_MAX_SECONDS)
        return true;
    return FAIL(r, "%.*s: lease_timeout_seconds must be a whole number of seconds above zero",
                STR_ARG(draft_name(r, d)));
}

/* One folder level of a URL must be able to hold it; dots alone would be resolved away. */
static bool is_agent_id(struct str id)
{
    size_t dots = 0;

    if (str_has_control(id))
        return false;
    for (size_t i = 0; i < id.n; i++) {
        if (memchr("/?#% ", id.p[i], 5) != NULL)
            return false;
        dots += id.p[i] == '.';
    }
    return dots < id.n;
}

static bool read_id(struct reader *r, struct agent_draft *d)
{
    struct str id = STR_NONE;

    if (!read_text(r, d, KEY_ID, &id))
        return false;
    if (!is_agent_id(id))
        return FAIL(
            r,
            "agent %zu: id \"%.*s\" must not have / ? # %%, white space or control characters, "
            "nor be just dots",
            d->number, STR_ARG(yaml_shown(r->y, id)));
    struct yaml_place *first = map_get(&r->ids, id);
    if (first != NULL)
        return FAIL(r, "the agent \"%.*s\" is already in line %d", STR_ARG(yaml_shown(r->y, id)),
                    first->line);
    struct yaml_place *at = arena_new(yaml_scratch(r->y), struct yaml_place);
    *at = yaml_place(r->y);
    map_put(&r->ids, id, at);
    d->agent.id = id;
    return true;
}

static bool read_webhook_url(struct reader *r, struct agent_draft *d)
{
    if (!read_text(r, d, KEY_WEBHOOK_URL, &d->agent.webhook_url))
        return false;
    if (str_starts(d->agent.webhook_url, STR("http://")) ||
        str_starts(d->agent.webhook_url, STR("https://")))
        return true;
    return FAIL(r, "%.*s: webhook_url must begin with http:// or https://",
                STR_ARG(draft_name(r, d)));
}

/* ---- policies ---- */

/* It must compile here: a kernel never starts with a bundle that would deny everything. */
static bool check_policy(struct agent_draft *d, const char *name, struct err *e)
{
    struct policy *p = policy_compile(d->agent.policy_bundle, name, e);

    if (p == NULL)
        return false;
    d->agent.policy_hash = *policy_hash(p);
    policy_unref(p);
    return true;
}

/* No ${NAME} in here: to a regex it means something else. */
static bool read_policy(struct reader *r, struct agent_draft *d)
{
    struct str who = draft_name(r, d);
    struct yaml_place at = yaml_place(r->y);
    struct err wrong;

    if (yaml_event(r->y) != YAML_SCALAR)
        return FAIL(r, "%.*s: policy must be a block of YAML: \"policy: |\"", STR_ARG(who));
    struct str text = yaml_text(r->y);
    if (!str_present(text))
        return FAIL(r, "%.*s: policy has no value", STR_ARG(who));
    d->agent.policy_bundle = arena_str(r->a, text);
    if (!str_present(d->agent.policy_bundle))
        return err_set(r->e, ERR_INTERNAL, "out of memory");
    return check_policy(d, "", &wrong) ||
           yaml_fail(r->y, at, "%.*s: policy: %s", STR_ARG(who), wrong.message);
}

/* Beside the manifest, unless it is an absolute path. */
static const char *policy_path(struct reader *r, struct str name)
{
    const char *slash = strrchr(r->path, '/');

    if (str_starts(name, STR("/")) || slash == NULL)
        return arena_str(yaml_scratch(r->y), name).p;
    return arena_printf(yaml_scratch(r->y), "%.*s/%.*s", (int)(slash - r->path), r->path,
                        STR_ARG(name))
        .p;
}

static bool read_policy_file(struct reader *r, struct agent_draft *d)
{
    struct buf text = {.max = POLICY_BUNDLE_MAX};
    struct str name = STR_NONE, who = draft_name(r, d);
    struct err wrong;

    if (!read_text(r, d, KEY_POLICY_FILE, &name))
        return false;
    if (str_has_control(name)) /* a NUL would end the path early, the others reach a terminal */
        return FAIL(r, "%.*s: policy_file must not have control characters", STR_ARG(who));
    const char *path = policy_path(r, name);
    if (path == NULL || !file_read(path, &text, &wrong)) {
        buf_free(&text);
        return FAIL(r, "%.*s: policy_file: %s", STR_ARG(who),
                    path == NULL ? "out of memory" : wrong.message);
    }
    d->agent.policy_bundle = arena_str(r->a, buf_str(&text));
    buf_free(&text);
    if (!str_present(d->agent.policy_bundle))
        return err_set(r->e, ERR_INTERNAL, "out of memory");
    return check_policy(d, path, r->e);
}

/* ---- the whole ---- */

static bool read_agent_value(struct reader *r, struct agent_draft *d, enum agent_key key)
{
    switch (key) {
    case KEY_ID:
        return read_id(r, d);
    case KEY_WEBHOOK_URL:
        return read_webhook_url(r, d);
    case KEY_SECRET:
        return read_text(r, d, key, &d->agent.secret);
    case KEY_LEASE_TIMEOUT:
        return read_lease(r, d);
    case KEY_POLICY:
        return read_policy(r, d);
    case KEY_POLICY_FILE:
        return read_policy_file(r, d);
    }
    return false;
}

static bool add_agent(struct reader *r, const struct agent_draft *d)
{
    static const enum agent_key required[] = {KEY_ID, KEY_WEBHOOK_URL, KEY_SECRET};

    for (size_t i = 0; i < COUNT(required); i++) {
        if ((d->keys.seen & 1u << required[i]) == 0)
            return yaml_fail(r->y, d->start, "%.*s: %s is missing", STR_ARG(draft_name(r, d)),
                             AGENT_KEYS[required[i]]);
    }
    if (r->n == r->cap) {
        r->cap = r->cap == 0 ? 8 : r->cap * 2;
        r->agents = xrealloc(r->agents, r->cap * sizeof *r->agents);
    }
    r->agents[r->n++] = d->agent;
    return true;
}

/* The key at the current event. A policy stands in the manifest or in a file, not in both. */
static bool read_agent_key(struct reader *r, struct agent_draft *d, size_t *key)
{
    const unsigned both = 1u << KEY_POLICY | 1u << KEY_POLICY_FILE;

    if (!yaml_read_key(r->y, &d->keys, draft_name(r, d), key))
        return false;
    return (d->keys.seen & both) != both ||
           FAIL(r, "%.*s: policy and policy_file exclude each other", STR_ARG(draft_name(r, d)));
}

/* At a list's item. */
static bool read_agent(struct reader *r)
{
    struct agent_draft d = {.number = r->n + 1,
                            .start = yaml_place(r->y),
                            .keys = {.names = AGENT_KEYS, .n = COUNT(AGENT_KEYS)}};
    size_t key;

    if (yaml_event(r->y) != YAML_MAPPING)
        return FAIL(r, "agent %zu must be a mapping with id, webhook_url and secret", d.number);
    while (yaml_next(r->y)) {
        if (yaml_event(r->y) == YAML_MAPPING_END)
            return add_agent(r, &d);
        if (!read_agent_key(r, &d, &key) || !yaml_next(r->y) ||
            !read_agent_value(r, &d, (enum agent_key)key))
            return false;
    }
    return false;
}

static bool read_agents(struct reader *r)
{
    if (yaml_event(r->y) != YAML_LIST)
        return FAIL(r, "agents must be a list");
    while (yaml_next(r->y)) {
        if (yaml_event(r->y) == YAML_LIST_END)
            return true;
        if (!read_agent(r))
            return false;
    }
    return false;
}

static bool read_root(struct reader *r)
{
    static const char *const names[] = {"agents"};
    struct yaml_keys keys = {.names = names, .n = COUNT(names)};
    struct yaml_place start = yaml_place(r->y);
    size_t key;

    if (yaml_event(r->y) == YAML_END)
        return FAIL(r, "the manifest is empty; it needs the key agents");
    if (yaml_event(r->y) != YAML_MAPPING)
        return FAIL(r, "the manifest must be a mapping with the key agents");
    while (yaml_next(r->y)) {
        if (yaml_event(r->y) == YAML_MAPPING_END)
            return keys.seen != 0 || yaml_fail(r->y, start, "the key agents is missing");
        if (!yaml_read_key(r->y, &keys, STR("manifest"), &key) || !yaml_next(r->y) ||
            !read_agents(r))
            return false;
    }
    return false;
}

bool manifest_load(const char *path, struct arena *a, struct manifest *out, struct err *e)
{
    struct reader r = {.path = path, .a = a, .e = e};
    struct buf text = {.max = MANIFEST_MAX_BYTES};
    struct err wrong;
    bool ok = false;

    if (!file_read(path, &text, &wrong)) {
        err_set(e, wrong.code, "%s; expected a manifest, which lists agents", wrong.message);
        goto done;
    }
    struct yaml_source source = {.text = buf_str(&text), .name = path, .what = "a manifest"};
    r.y = yaml_open(&source, e);
    if (r.y == NULL || !read_root(&r) || !yaml_finish(r.y))
        goto done;
    out->n = r.n;
    out->agents = arena_array(a, struct manifest_agent, r.n + 1);
    if (out->agents == NULL) {
        err_set(e, ERR_INTERNAL, "out of memory");
        goto done;
    }
    if (r.n > 0)
        memcpy(out->agents, r.agents, r.n * sizeof *r.agents);
    ok = true;
done:
    yaml_close(r.y);
    free(r.agents);
    map_free(&r.ids);
    buf_free(&text);
    return ok;
}
