/* SPDX-License-Identifier: Apache-2.0
 * What a live execution's steps wait for: decisions and subagents. Private to api/. */
#ifndef API_WAITS_H
#define API_WAITS_H

#include "store/store.h"

struct waits {
    struct approval_view *approvals; /* pending ones, soonest timeout first; arena */
    size_t n;
    struct uuid *subagents; /* of executing steps, oldest first; arena */
    size_t n_subagents;
};

/* Of an execution that was just read. A running one has no pending decisions, and a blocked one
 * waits for something. The reads are not of one moment: when the last of it ended between them, `v`
 * is read again, so that what it shows agrees. */
MUST_USE bool waits_read(struct store_reader *r, struct execution_view *v, struct arena *a,
                         struct waits *out, struct err *e);

#endif
