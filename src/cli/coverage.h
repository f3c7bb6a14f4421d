/* SPDX-License-Identifier: Apache-2.0
 * Which points of an execution are covered, worked out from what /fork-points says. */
#ifndef CLI_COVERAGE_H
#define CLI_COVERAGE_H

#include "cli/visit.h"

struct coverage_checkpoint {
    struct str ref;
    int64_t generation, covered_seq;
    int64_t invalidated_seq; /* 0: none, it covers to the end */
};
struct coverage_resource {
    struct str key;
    int64_t registered_seq;
    struct coverage_checkpoint *checkpoints; /* by covered_seq */
    size_t n_checkpoints;
};
struct coverage_range {
    int64_t first, last; /* both belong to it */
};
struct coverage {
    int64_t latest_seq;
    struct coverage_resource *resources; /* in the order of registration */
    size_t n_resources;
    /* Every resource that is registered by then is covered there: ascending, none touches the next.
     */
    struct coverage_range *ranges;
    size_t n_ranges;
};

/* False: the answer is none, or there is no memory for it. All lives in the arena. */
MUST_USE bool coverage_read(struct str fork_points, struct arena *a, struct coverage *out);
bool coverage_at(const struct coverage *c, int64_t seq);
/* NULL: no such resource. */
const struct coverage_resource *coverage_find(const struct coverage *c, struct str key);
/* Asks the kernel about v->id; v->answer is left alone. */
MUST_USE bool coverage_fetch(struct visit *v, struct arena *a, struct coverage *out, struct err *e);

#endif
