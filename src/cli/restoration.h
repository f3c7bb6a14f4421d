/* SPDX-License-Identifier: Apache-2.0
 * What a fork's resources began from (`restoration`), in words. */
#ifndef CLI_RESTORATION_H
#define CLI_RESTORATION_H

#include "base/json.h"
#include "cli/coverage.h"

struct restored {
    struct str key, ref;       /* ref absent: the driver's initial environment */
    struct str from_execution; /* whose checkpoint it is; absent: the source's */
    int64_t seq;               /* of the event that the checkpoint covers; 0: unknown */
    bool covered;
};
/* Walks `restoration`; zero the walk, then call until it returns false. Texts are clean, one line
 * each; in the arena. */
bool restoration_next(struct str restoration, struct json_walk *walk, struct arena *a,
                      struct restored *out);

/* "restored from checkpoint snap-3, captured after event 41"; `when` (absent: unknown) follows in
 * parentheses. In the arena. */
struct str restoration_text(const struct restored *r, struct str when, struct arena *a);
/* The same, and asks the kernel for the time of the capture. `source`: whom it was forked from. */
struct str restoration_told(struct visit *v, struct str source, const struct restored *r,
                            struct arena *a);
/* Why a resource is not covered at the fork point. `c`: the source's; v->id is the source. */
struct str restoration_gap(struct visit *v, const struct coverage *c, const struct restored *r,
                           struct arena *a);

#endif
