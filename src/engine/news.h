/* SPDX-License-Identifier: Apache-2.0
 * What follows a commit: counters, signals, and notes to other kernels. Gathered before it, while
 * the group's rows are there; told after it. Executor's thread. Private to engine/. */
#ifndef ENGINE_NEWS_H
#define ENGINE_NEWS_H

#include "engine/command.h"
#include "store/store.h"

struct engine;

/* Zeroed is empty; reused from group to group. */
struct news {
    LIST(struct {
        struct uuid id;
        bool ended;
    })
    touched; /* executions with new events */
    LIST(struct store_note) notes;
    bool dispatches;               /* some dispatch may be due */
    int64_t now_us, first_timeout; /* wall; of the approvals that were opened. INT64_MAX: none */
    uint64_t granted, rejected, expired; /* approvals */
};

void news_gather(struct news *news, const struct working_set *ws);
void news_tell(struct news *news, struct engine *en, struct command **cmds, size_t n);
void news_free(struct news *news);

#endif
