/* SPDX-License-Identifier: Apache-2.0
 * Adding up tokens. */
#include "cli/tokens.h"

#include "cli/pages.h"
#include "cli/view.h"

enum { EVENTS_PAGE = 1000 };

static int64_t count_of(struct str json)
{
    int64_t n = -1;

    return str_present(json) && json_int64(json, &n) && n >= 0 ? n : -1;
}

struct tokens tokens_of(struct str usage)
{
    struct arena a = {0};
    struct str input, output;
    const struct view_field fields[] = {{"input_tokens", false, &input},
                                        {"output_tokens", false, &output}};

    view_read(usage, fields, COUNT(fields), &a);
    struct tokens t = {.input = count_of(input), .output = count_of(output)};
    t.known = t.input >= 0 || t.output >= 0;
    arena_free(&a);
    return t;
}

static void add_to(int64_t *sum, int64_t more)
{
    if (more > 0 && __builtin_add_overflow(*sum, more, sum))
        *sum = INT64_MAX;
}

void tokens_add(struct tokens *sum, struct tokens more)
{
    add_to(&sum->input, more.input);
    add_to(&sum->output, more.output);
    sum->known = sum->known || more.known;
}

static void take_event(void *ctx, struct str event)
{
    struct arena a = {0};
    struct str type, payload, usage;
    const struct view_field fields[] = {{"type", true, &type}, {"payload", false, &payload}};
    const struct view_field of_payload[] = {{"usage", false, &usage}};

    view_read(event, fields, COUNT(fields), &a);
    if (str_eq(type, STR("step.succeeded"))) {
        view_read(payload, of_payload, COUNT(of_payload), &a);
        tokens_add(ctx, tokens_of(usage));
    }
    arena_free(&a);
}

bool tokens_read(struct visit *v, struct tokens *sum, struct err *e)
{
    const struct pages events = {.route = "/events",
                                 .after = "after_seq",
                                 .last_field = "event_seq",
                                 .limit = EVENTS_PAGE,
                                 .take = take_event,
                                 .ctx = sum};

    *sum = (struct tokens){0};
    return pages_read(v, &events, e);
}

void tokens_write(struct json_writer *w, struct tokens t)
{
    jw_open(w, '{');
    jw_member_int(w, "input_tokens", t.input);
    jw_member_int(w, "output_tokens", t.output);
    jw_close(w, '}');
}
