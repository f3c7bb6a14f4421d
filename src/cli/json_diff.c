/* SPDX-License-Identifier: Apache-2.0
 * Two JSON values, walked side by side. */
#include "cli/json_diff.h"

#include "base/json.h"
#include "base/map.h"

enum { DEPTH_MAX = 64 }; /* what is deeper differs as a whole, if its texts do */

struct walk {
    size_t found, max;
    json_difference *take;
    void *ctx;
    struct buf path;
    struct arena a;
};

static void compare(struct walk *w, struct str a, struct str b, size_t depth);

static void report(struct walk *w, struct str a, struct str b)
{
    if (++w->found <= w->max)
        w->take(w->ctx, buf_str(&w->path), a, b);
}

static bool is_plain_key(struct str key)
{
    for (size_t i = 0; i < key.n; i++) {
        char c = key.p[i];

        if (!((c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
              c == '_' || c == '-'))
            return false;
    }
    return key.n > 0;
}

static void compare_member(struct walk *w, struct str key, struct str a, struct str b, size_t depth)
{
    size_t before = w->path.n;

    if (is_plain_key(key)) {
        buf_add_byte(&w->path, '.');
        buf_add(&w->path, key);
    } else {
        buf_add_byte(&w->path, '[');
        json_add_string(&w->path, key);
        buf_add_byte(&w->path, ']');
    }
    compare(w, a, b, depth);
    w->path.n = before;
}

static void compare_objects(struct walk *w, struct str a, struct str b, size_t depth)
{
    struct json_walk at = {0};
    struct json_member m;
    struct map others = {0};

    while (json_next_member(b, &at, &w->a, &m)) {
        struct str *value = arena_new(&w->a, struct str);

        *value = m.value;
        map_put(&others, m.key, value);
    }
    at = (struct json_walk){0};
    while (w->found <= w->max && json_next_member(a, &at, &w->a, &m)) {
        const struct str *other = map_remove(&others, m.key);

        compare_member(w, m.key, m.value, other == NULL ? STR_NONE : *other, depth);
    }
    at = (struct json_walk){0};
    while (w->found <= w->max && json_next_member(b, &at, &w->a, &m)) {
        if (map_remove(&others, m.key) != NULL)
            compare_member(w, m.key, STR_NONE, m.value, depth);
    }
    map_free(&others);
}

static void compare_lists(struct walk *w, struct str a, struct str b, size_t depth)
{
    struct json_walk at_a = {0}, at_b = {0};
    struct str x, y;
    size_t before = w->path.n;

    for (size_t i = 0; w->found <= w->max; i++) {
        bool in_a = json_next_item(a, &at_a, &x), in_b = json_next_item(b, &at_b, &y);

        if (!in_a && !in_b)
            break;
        buf_printf(&w->path, "[%zu]", i);
        compare(w, in_a ? x : STR_NONE, in_b ? y : STR_NONE, depth);
        w->path.n = before;
    }
}

/* Whatever their escapes. Without memory for them they count as different. */
static bool same_strings(struct walk *w, struct str a, struct str b)
{
    if (json_type_of(a) != JSON_STRING || json_type_of(b) != JSON_STRING)
        return false;
    a = json_string(a, &w->a);
    b = json_string(b, &w->a);
    return str_present(a) && str_present(b) && str_eq(a, b);
}

static bool is_tree(struct str json)
{
    return json_type_of(json) == JSON_OBJECT || json_type_of(json) == JSON_ARRAY;
}

/* Of two strings that hold an object or a list each, as the bodies of answers do. False: nothing
 * was found inside them. */
static bool compare_inside(struct walk *w, struct str a, struct str b, size_t depth)
{
    size_t before = w->found;
    struct err ignored;

    a = json_string(a, &w->a);
    b = json_string(b, &w->a);
    if (str_present(a) && str_present(b) && json_check(a, &ignored) && json_check(b, &ignored) &&
        is_tree(a) && json_type_of(a) == json_type_of(b))
        compare(w, a, b, depth);
    return w->found > before;
}

static void compare(struct walk *w, struct str a, struct str b, size_t depth)
{
    enum json_type type = json_type_of(a);

    if (str_present(a) && str_present(b)) {
        a = json_trim(a);
        b = json_trim(b);
        if (str_eq(a, b) || same_strings(w, a, b))
            return;
    }
    if (!str_present(a) || !str_present(b) || type != json_type_of(b) || depth >= DEPTH_MAX)
        report(w, a, b);
    else if (type == JSON_OBJECT)
        compare_objects(w, a, b, depth + 1);
    else if (type == JSON_ARRAY)
        compare_lists(w, a, b, depth + 1);
    else if (type != JSON_STRING || !compare_inside(w, a, b, depth + 1))
        report(w, a, b);
}

size_t json_diff(struct str a, struct str b, size_t max, json_difference *take, void *ctx)
{
    struct walk w = {.max = max, .take = take, .ctx = ctx};

    if (str_present(a) || str_present(b))
        compare(&w, a, b, 0);
    buf_free(&w.path);
    arena_free(&w.a);
    return w.found < max + 1 ? w.found : max + 1;
}
