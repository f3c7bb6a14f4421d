/* SPDX-License-Identifier: Apache-2.0
 * `waiting_on` in words. */
#include "cli/waiting.h"

#include "cli/view.h"
#include "cli/when.h"

struct entry {
    struct str kind, id, until;
};

static struct entry read_entry(struct str json, struct arena *a)
{
    struct entry entry;
    const struct view_field fields[] = {
        {"kind", true, &entry.kind}, {"id", true, &entry.id}, {"until", true, &entry.until}};

    view_read(json, fields, COUNT(fields), a);
    return entry;
}

static void add_until(struct buf *out, const char *before, struct str until, const char *after,
                      int64_t now_us)
{
    int64_t at = 0;

    if (!str_present(until) || !clock_parse_rfc3339(until, &at) || at <= now_us)
        return;
    buf_add_z(out, before);
    when_age(out, at - now_us);
    buf_add_z(out, after);
}

static void add_text(struct buf *out, const struct entry *entry, int64_t now_us)
{
    if (out->n > 0)
        buf_add(out, STR(", "));
    if (str_eq(entry->kind, STR("agent"))) {
        buf_add(out, STR("the agent"));
        add_until(out, " (lease ends in ", entry->until, ")", now_us);
    } else if (str_eq(entry->kind, STR("dispatch"))) {
        buf_add(out, STR("its delivery"));
        add_until(out, " (due in ", entry->until, ")", now_us);
    } else if (str_eq(entry->kind, STR("approval"))) {
        buf_printf(out, "approval %.*s", STR_ARG(view_short_id(entry->id)));
        add_until(out, " (expires in ", entry->until, ")", now_us);
    } else if (str_eq(entry->kind, STR("rate_limit"))) {
        buf_add(out, STR("its rate limit"));
        add_until(out, " (free in ", entry->until, ")", now_us);
    } else if (str_eq(entry->kind, STR("session"))) {
        buf_printf(out, "session %.*s", STR_ARG(entry->id));
    } else if (str_eq(entry->kind, STR("subagent"))) {
        buf_printf(out, "subagent %.*s", STR_ARG(view_short_id(entry->id)));
    } else {
        buf_add(out, entry->kind);
        add_until(out, " (until in ", entry->until, ")", now_us);
    }
}

static void add_advice(struct buf *out, const struct entry *entry, int64_t now_us)
{
    buf_add_z(out, out->n > 0 ? ", and for " : "waiting for ");
    if (str_eq(entry->kind, STR("agent"))) {
        buf_add(out, STR("the agent"));
        if (!str_present(entry->until))
            return;
        buf_add(out, STR("; if it is gone, the run is delivered again when its lease ends"));
        add_until(out, ", in ", entry->until, "", now_us);
    } else if (str_eq(entry->kind, STR("dispatch"))) {
        buf_add(out, STR("the next delivery"));
        add_until(out, ", in ", entry->until, "", now_us);
    } else if (str_eq(entry->kind, STR("approval"))) {
        buf_printf(out, "a person to decide on approval %.*s", STR_ARG(view_short_id(entry->id)));
        add_until(out, ", which expires in ", entry->until, "", now_us);
    } else if (str_eq(entry->kind, STR("rate_limit"))) {
        buf_add(out, STR("its rate limit"));
        add_until(out, ", free in ", entry->until, "", now_us);
    } else if (str_eq(entry->kind, STR("session"))) {
        buf_printf(out, "its turn in session %.*s", STR_ARG(entry->id));
    } else if (str_eq(entry->kind, STR("subagent"))) {
        buf_printf(out, "subagent %.*s to end", STR_ARG(view_short_id(entry->id)));
    } else {
        buf_add(out, entry->kind);
    }
}

size_t waiting_approvals(struct str waiting_on, struct str *ids, size_t max, struct arena *a)
{
    struct json_walk walk = {0};
    struct str item;
    size_t n = 0;

    while (json_type_of(waiting_on) == JSON_ARRAY && n < max &&
           json_next_item(waiting_on, &walk, &item)) {
        struct entry entry = read_entry(item, a);

        if (str_eq(entry.kind, STR("approval")) && str_present(entry.id))
            ids[n++] = entry.id;
    }
    return n;
}

typedef void add_entry(struct buf *out, const struct entry *entry, int64_t now_us);

static struct str all_entries(struct str waiting_on, add_entry *add, int64_t now_us,
                              struct arena *a)
{
    struct buf text = {0};
    struct json_walk walk = {0};
    struct str item;

    if (json_type_of(waiting_on) != JSON_ARRAY)
        return STR_NONE;
    while (json_next_item(waiting_on, &walk, &item)) {
        struct entry entry = read_entry(item, a);

        add(&text, &entry, now_us);
    }
    struct str out = text.n == 0 ? STR_NONE : arena_str(a, buf_str(&text));
    buf_free(&text);
    return out;
}

struct str waiting_text(struct str waiting_on, int64_t now_us, struct arena *a)
{
    return all_entries(waiting_on, add_text, now_us, a);
}

struct str waiting_advice(struct str waiting_on, int64_t now_us, struct arena *a)
{
    return all_entries(waiting_on, add_advice, now_us, a);
}
