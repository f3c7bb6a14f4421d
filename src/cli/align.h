/* SPDX-License-Identifier: Apache-2.0
 * Two runs laid beside each other, step by step. */
#ifndef CLI_ALIGN_H
#define CLI_ALIGN_H

#include "cli/run.h"

enum pair_kind {
    PAIR_SAME,
    PAIR_CHANGED, /* the same call with another outcome or decision */
    PAIR_ARGS,    /* the same kind and target with other arguments, at the same point */
    PAIR_MOVED,   /* the same call, in another order */
    PAIR_ONLY_A,
    PAIR_ONLY_B,
};
enum { PAIR_KINDS = PAIR_ONLY_B + 1 };

enum pair_differs { /* a bit each */
                    DIFFERS_ORDER = 1,
                    DIFFERS_ARGS = 2,
                    DIFFERS_DECISION = 4, /* what the policy said, or by which rule */
                    DIFFERS_STATUS = 8,
                    DIFFERS_RESULT = 16,
                    DIFFERS_ERROR = 32,
};

struct pair {
    enum pair_kind kind;
    const struct run_step *a, *b; /* NULL: the run has none */
    unsigned differs;
};

/* In the order of both runs, as far as they agree on one; a step that moved stands where a has it.
 */
struct alignment {
    struct pair *pairs; /* owned */
    size_t n;
    size_t counts[PAIR_KINDS];
    size_t same_before; /* pairs before the first difference */
};

void align_runs(const struct run *a, const struct run *b, struct alignment *out);
void alignment_free(struct alignment *al);

#endif
