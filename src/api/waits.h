/* SPDX-License-Identifier: Apache-2.0
 * The decisions that a blocked execution waits for. Private to api/. */
#ifndef API_WAITS_H
#define API_WAITS_H

#include "store/store.h"

struct waits {
    struct approval_view *approvals; /* pending ones, soonest timeout first; arena */
    size_t n;
};

/* Of an execution that was just read. One that is not blocked has none. The two reads are not of
 * one moment: when the last decision fell between them, `v` is read again, so that what it shows
 * agrees. */
MUST_USE bool waits_read(struct store_reader *r, struct execution_view *v, struct arena *a,
                         struct waits *out, struct err *e);

#endif
