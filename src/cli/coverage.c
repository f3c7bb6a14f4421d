/* SPDX-License-Identifier: Apache-2.0
 * Covered points. A checkpoint covers from its covered_seq to the event before its invalidated_seq;
 * before it is registered, a resource leaves no point uncovered. */
#include "cli/coverage.h"

#include <stdlib.h>

#include "base/json.h"
#include "cli/view.h"

/* ---- reading ---- */

static int by_registration(const void *x, const void *y)
{
    const struct coverage_resource *a = x, *b = y;

    if (a->registered_seq != b->registered_seq)
        return a->registered_seq < b->registered_seq ? -1 : 1;
    return str_cmp(a->key, b->key);
}

static int by_key(const void *x, const void *y)
{
    const struct coverage_resource *a = x, *b = y;

    return str_cmp(a->key, b->key);
}

static int by_place(const void *x, const void *y)
{
    const struct coverage_checkpoint *a = x, *b = y;

    if (a->covered_seq != b->covered_seq)
        return a->covered_seq < b->covered_seq ? -1 : 1;
    return a->generation < b->generation ? -1 : a->generation > b->generation;
}

static size_t count_members(struct str object, struct arena *a)
{
    struct json_walk walk = {0};
    struct json_member m;
    size_t n = 0;

    while (json_next_member(object, &walk, a, &m))
        n++;
    return n;
}

/* Left in the order of their keys, for finding. */
static bool read_resources(struct str object, struct arena *a, struct coverage *out)
{
    struct json_walk walk = {0};
    struct json_member m;

    if (json_type_of(object) != JSON_OBJECT)
        return false;
    out->resources = arena_array(a, struct coverage_resource, count_members(object, a) + 1);
    if (out->resources == NULL)
        return false;
    while (json_next_member(object, &walk, a, &m)) {
        struct coverage_resource *r = &out->resources[out->n_resources++];

        r->key = arena_str(a, m.key);
        if (!json_int64(m.value, &r->registered_seq) || r->registered_seq < 0)
            return false;
    }
    qsort(out->resources, out->n_resources, sizeof *out->resources, by_key);
    return true;
}

struct read_checkpoint {
    struct str key;
    struct coverage_checkpoint is;
};

static bool read_checkpoint(struct str json, struct read_checkpoint *out, struct arena *a)
{
    struct str generation, covered, invalidated;
    const struct view_field fields[] = {
        {"key", true, &out->key},
        {"checkpoint_ref", true, &out->is.ref},
        {"generation", false, &generation},
        {"covered_seq", false, &covered},
        {"invalidated_seq", false, &invalidated},
    };

    view_read(json, fields, COUNT(fields), a);
    out->is.generation = out->is.invalidated_seq = 0;
    return str_present(out->key) && json_int64(covered, &out->is.covered_seq) &&
           out->is.covered_seq >= 0 &&
           (!str_present(generation) || json_int64(generation, &out->is.generation)) &&
           (!str_present(invalidated) ||
            (json_int64(invalidated, &out->is.invalidated_seq) && out->is.invalidated_seq >= 0));
}

static struct coverage_resource *find(const struct coverage *c, struct str key)
{
    const struct coverage_resource wanted = {.key = key};

    return bsearch(&wanted, c->resources, c->n_resources, sizeof wanted, by_key);
}

/* `count`: only how many each resource has. */
static bool walk_checkpoints(struct str list, struct arena *a, struct coverage *out, bool count)
{
    struct json_walk walk = {0};
    struct read_checkpoint one;
    struct str item;

    while (json_next_item(list, &walk, &item)) {
        if (!read_checkpoint(item, &one, a))
            return false;
        struct coverage_resource *r = find(out, one.key);
        if (r == NULL) /* nothing that a fork would have */
            continue;
        if (!count) {
            one.is.ref = arena_str(a, one.is.ref);
            r->checkpoints[r->n_checkpoints] = one.is;
        }
        r->n_checkpoints++;
    }
    return true;
}

static bool read_checkpoints(struct str list, struct arena *a, struct coverage *out)
{
    if (json_type_of(list) != JSON_ARRAY || !walk_checkpoints(list, a, out, true))
        return false;
    for (size_t i = 0; i < out->n_resources; i++) {
        struct coverage_resource *r = &out->resources[i];

        r->checkpoints = arena_array(a, struct coverage_checkpoint, r->n_checkpoints + 1);
        if (r->checkpoints == NULL)
            return false;
        r->n_checkpoints = 0;
    }
    if (!walk_checkpoints(list, a, out, false))
        return false;
    for (size_t i = 0; i < out->n_resources; i++) {
        struct coverage_resource *r = &out->resources[i];

        qsort(r->checkpoints, r->n_checkpoints, sizeof *r->checkpoints, by_place);
    }
    return true;
}

/* ---- ranges ---- */

struct ranges {
    struct coverage_range *list;
    size_t n;
};

static void add_range(struct ranges *r, int64_t first, int64_t last)
{
    struct coverage_range *before = r->n > 0 ? &r->list[r->n - 1] : NULL;

    if (first > last)
        return;
    if (before != NULL && first - 1 <= before->last)
        before->last = last > before->last ? last : before->last;
    else
        r->list[r->n++] = (struct coverage_range){first, last};
}

/* Where this resource alone leaves nothing uncovered. */
static void ranges_of(const struct coverage_resource *resource, int64_t latest, struct ranges *out)
{
    out->n = 0;
    add_range(out, 1, resource->registered_seq - 1);
    for (size_t i = 0; i < resource->n_checkpoints; i++) {
        const struct coverage_checkpoint *one = &resource->checkpoints[i];
        int64_t last = one->invalidated_seq == 0 ? latest : one->invalidated_seq - 1;

        add_range(out, one->covered_seq, last < latest ? last : latest);
    }
}

static void intersect(const struct ranges *x, const struct ranges *y, struct ranges *out)
{
    out->n = 0;
    for (size_t i = 0, j = 0; i < x->n && j < y->n;) {
        struct coverage_range a = x->list[i], b = y->list[j];

        add_range(out, a.first > b.first ? a.first : b.first, a.last < b.last ? a.last : b.last);
        if (a.last < b.last)
            i++;
        else
            j++;
    }
}

/* How many ranges any step of the work can make: each checkpoint and each registration adds one at
 * most. */
static size_t ranges_max(const struct coverage *c)
{
    size_t n = 2;

    for (size_t i = 0; i < c->n_resources; i++)
        n += c->resources[i].n_checkpoints + 1;
    return n;
}

static bool find_ranges(struct coverage *c, struct arena *a)
{
    size_t max = ranges_max(c);
    struct coverage_range *room = arena_array(a, struct coverage_range, 3 * max);

    if (room == NULL)
        return false;
    struct ranges all = {.list = room}, one = {.list = room + max}, both = {.list = room + 2 * max};
    add_range(&all, 1, c->latest_seq);
    for (size_t i = 0; i < c->n_resources; i++) {
        ranges_of(&c->resources[i], c->latest_seq, &one);
        intersect(&all, &one, &both);
        struct ranges before = all;
        all = both;
        both = before;
    }
    c->ranges = all.list;
    c->n_ranges = all.n;
    return true;
}

bool coverage_read(struct str fork_points, struct arena *a, struct coverage *out)
{
    struct str latest, resources, checkpoints;
    const struct view_field fields[] = {{"latest_seq", false, &latest},
                                        {"resources", false, &resources},
                                        {"checkpoints", false, &checkpoints}};

    *out = (struct coverage){0};
    view_read(fork_points, fields, COUNT(fields), a);
    if (!str_present(latest) || !json_int64(latest, &out->latest_seq) ||
        !read_resources(resources, a, out) || !read_checkpoints(checkpoints, a, out) ||
        !find_ranges(out, a))
        return false;
    qsort(out->resources, out->n_resources, sizeof *out->resources, by_registration);
    return true;
}

bool coverage_at(const struct coverage *c, int64_t seq)
{
    size_t from = 0, to = c->n_ranges;

    while (from < to) {
        size_t middle = from + (to - from) / 2;

        if (c->ranges[middle].last < seq)
            from = middle + 1;
        else
            to = middle;
    }
    return from < c->n_ranges && c->ranges[from].first <= seq;
}

const struct coverage_resource *coverage_find(const struct coverage *c, struct str key)
{
    for (size_t i = 0; i < c->n_resources; i++) {
        if (str_eq(c->resources[i].key, key))
            return &c->resources[i];
    }
    return NULL;
}

bool coverage_fetch(struct visit *v, struct arena *a, struct coverage *out, struct err *e)
{
    struct buf answer = {0};

    *out = (struct coverage){0};
    bool ok = client_get(v->client, visit_path(v, "/fork-points"), &answer, e) &&
              (coverage_read(buf_str(&answer), a, out) ||
               err_set(e, ERR_VALIDATION, "the kernel's answer has no fork points"));
    buf_free(&answer);
    return ok;
}
