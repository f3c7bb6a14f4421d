/* SPDX-License-Identifier: Apache-2.0
 * Restorations in words. What is asked for beyond the answer itself (a time, the step that ended a
 * checkpoint) may be gone with its execution, or not be for the caller: then it is left out. */
#include "cli/restoration.h"

#include "cli/text.h"
#include "cli/view.h"
#include "cli/when.h"

enum { NAME_COLUMNS = 60, REF_COLUMNS = 120 };

static struct str clean_text(struct str text, size_t columns, struct arena *a)
{
    struct buf clean = {0}, cut = {0};

    if (!str_present(text))
        return STR_NONE;
    text_clean(&clean, text, TEXT_ONE_LINE);
    text_fit(&cut, buf_str(&clean), columns);
    struct str out = arena_str(a, buf_str(&cut));
    buf_free(&clean);
    buf_free(&cut);
    return out;
}

bool restoration_next(struct str restoration, struct json_walk *walk, struct arena *a,
                      struct restored *out)
{
    struct str seq, covered;
    const struct view_field fields[] = {
        {"checkpoint_ref", true, &out->ref},
        {"checkpoint_seq", false, &seq},
        {"checkpoint_execution_id", true, &out->from_execution},
        {"covered", false, &covered},
    };
    struct json_member m;

    *out = (struct restored){0};
    if (json_type_of(restoration) != JSON_OBJECT || !json_next_member(restoration, walk, a, &m))
        return false;
    view_read(m.value, fields, COUNT(fields), a);
    out->key = clean_text(m.key, REF_COLUMNS, a);
    out->ref = clean_text(out->ref, REF_COLUMNS, a);
    if (!str_present(seq) || !json_int64(seq, &out->seq))
        out->seq = 0;
    out->covered = str_eq(covered, STR("true"));
    return true;
}

struct str restoration_text(const struct restored *r, struct str when, struct arena *a)
{
    struct buf text = {0};

    if (!str_present(r->ref)) {
        buf_add(&text, STR("starts from its initial environment"));
    } else {
        buf_printf(&text, "restored from checkpoint %.*s", STR_ARG(r->ref));
        if (str_present(r->from_execution))
            buf_printf(&text, " of an earlier turn, %.*s",
                       STR_ARG(view_short_id(r->from_execution)));
        if (r->seq > 0)
            buf_printf(&text, ", captured after event %lld%s", (long long)r->seq,
                       str_present(r->from_execution) ? " there" : "");
        if (str_present(when))
            buf_printf(&text, " (%.*s)", STR_ARG(when));
    }
    struct str out = arena_str(a, buf_str(&text));
    buf_free(&text);
    return out;
}

/* ---- what only the kernel knows ---- */

struct seen_event {
    struct str type, at, kind, target;
};

/* False: it cannot be had. */
static bool fetch_event(struct visit *v, struct str execution, int64_t seq, struct seen_event *out,
                        struct arena *a)
{
    struct buf answer = {0};
    struct json_walk walk = {0};
    struct str event, payload;
    const struct view_field fields[] = {
        {"type", true, &out->type}, {"occurred_at", true, &out->at}, {"payload", false, &payload}};
    const struct view_field of_step[] = {{"step_type", true, &out->kind},
                                         {"target", true, &out->target}};
    struct err ignored;
    const char *path = arena_printf(a, "/v0/executions/%.*s/events?after_seq=%lld&limit=1",
                                    STR_ARG(execution), (long long)seq - 1)
                           .p;

    bool ok = client_get(v->client, path, &answer, &ignored) &&
              json_type_of(buf_str(&answer)) == JSON_ARRAY &&
              json_next_item(buf_str(&answer), &walk, &event);
    if (ok) {
        event = arena_str(a, event);
        view_read(event, fields, COUNT(fields), a);
        view_read(payload, of_step, COUNT(of_step), a);
    }
    buf_free(&answer);
    return ok;
}

/* "2026-01-02 15:04:05, 3m05s ago"; absent when it is no time. */
static struct str when_captured(struct str at, struct arena *a)
{
    struct buf text = {0};
    int64_t at_us = 0;

    if (!str_present(at) || !clock_parse_rfc3339(at, &at_us))
        return STR_NONE;
    when_full(&text, at_us);
    buf_add(&text, STR(", "));
    when_age(&text, clock_wall_us() - at_us);
    buf_add(&text, STR(" ago"));
    struct str out = arena_str(a, buf_str(&text));
    buf_free(&text);
    return out;
}

struct str restoration_told(struct visit *v, struct str source, const struct restored *r,
                            struct arena *a)
{
    struct seen_event event = {0};
    struct str of = str_present(r->from_execution) ? r->from_execution : source;

    if (!str_present(r->ref) || r->seq < 1 || !str_present(of) ||
        !fetch_event(v, of, r->seq, &event, a))
        return restoration_text(r, STR_NONE, a);
    return restoration_text(r, when_captured(event.at, a), a);
}

/* The one that was taken; NULL: the source's points do not show it. */
static const struct coverage_checkpoint *taken(const struct coverage *c, const struct restored *r)
{
    const struct coverage_resource *resource = coverage_find(c, r->key);
    const struct coverage_checkpoint *found = NULL;

    for (size_t i = 0; resource != NULL && i < resource->n_checkpoints; i++) {
        if (resource->checkpoints[i].covered_seq == r->seq)
            found = &resource->checkpoints[i];
    }
    return found;
}

static struct str told_end(struct visit *v, int64_t seq, struct arena *a)
{
    struct seen_event event = {0};

    if (!fetch_event(v, v->id, seq, &event, a) || !str_present(event.target))
        return arena_printf(a, "its checkpoint ended at event %lld", (long long)seq);
    return arena_printf(a, "its checkpoint ended at event %lld, when %.*s %.*s ran", (long long)seq,
                        STR_ARG(event.kind), STR_ARG(clean_text(event.target, NAME_COLUMNS, a)));
}

struct str restoration_gap(struct visit *v, const struct coverage *c, const struct restored *r,
                           struct arena *a)
{
    if (str_present(r->from_execution))
        return STR("this turn had captured nothing of it by then, only an earlier turn");
    if (!str_present(r->ref))
        return STR("nothing of it had been captured by then");
    const struct coverage_checkpoint *one = taken(c, r);
    if (one == NULL || one->invalidated_seq == 0)
        return STR("its checkpoint is of an earlier state");
    return told_end(v, one->invalidated_seq, a);
}
