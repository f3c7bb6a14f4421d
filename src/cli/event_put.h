/* SPDX-License-Identifier: Apache-2.0
 * Where an event's words go: one line in a pipe, what the width allows on a terminal. Knows nothing
 * of what events mean. */
#ifndef CLI_EVENT_PUT_H
#define CLI_EVENT_PUT_H

#include "cli/event_line.h"

struct event_words {
    struct buf what;   /* the target, or who */
    struct buf detail; /* in words */
    enum paint type_paint, detail_paint;
};

void event_put(struct cli *c, const struct event *event, const struct event_words *words);
/* Below it, for a terminal: all of the payload, unless it is empty. */
void event_put_payload(struct cli *c, const struct event *event);
/* The day of the events that follow, when it is not `*day` (2026-01-02; empty: today); which it
 * then is. A pipe has no such lines. */
void event_put_day(struct cli *c, const struct event *event, struct buf *day);

#endif
