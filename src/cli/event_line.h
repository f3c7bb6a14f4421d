/* SPDX-License-Identifier: Apache-2.0
 * One readable line for an event, in the light of the events before it: a step that runs again and
 * a delivery that comes again are told apart from first ones. */
#ifndef CLI_EVENT_LINE_H
#define CLI_EVENT_LINE_H

#include "base/json.h"
#include "base/map.h"
#include "cli/cli.h"

/* One that nobody has decided yet, as far as the log goes. */
struct event_approval {
    struct str id;
    bool asked; /* for who follows the log: it has been shown */
    struct event_approval *next;
};

struct event_log {
    struct map steps;            /* step id → struct event_step */
    struct arena a;              /* of the steps and approvals */
    struct event_approval *open; /* in the order in which they were requested */
    size_t settled;              /* steps whose outcome is recorded */
    bool acked;                  /* an agent has had it */
    int64_t created_us;
    /* Set by the event that ended the execution. */
    bool ended, completed;
    struct buf status;  /* completed, failed, cancelled */
    struct buf outcome; /* output's JSON, or the reason */
    int64_t took_us;
    struct buf day; /* of the last line that was printed */
    /* Who prints may say with which HTTP status a model call failed that was answered; events do
     * not. 0: it did not, or nobody knows. NULL: it is not asked. */
    int64_t (*failed_status)(void *ctx, struct str step_id);
    void *ctx;
};

struct event {
    int64_t seq; /* 0: the event has none, which no kernel sends */
    struct str type, payload;
    int64_t at_us; /* 0: unknown */
    /* Stands behind the number. NULL: no event of this log has one. Static. */
    const char *mark;
};

/* False: the text is no event. Slices point into it or into the arena. */
MUST_USE bool event_read(struct str json, struct arena *a, struct event *out);
/* Takes the event into account and, unless c is NULL, prints its line. */
void event_print(struct event_log *log, const struct event *event, struct cli *c);
void event_log_free(struct event_log *log);

#endif
