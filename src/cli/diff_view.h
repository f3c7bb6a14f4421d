/* SPDX-License-Identifier: Apache-2.0
 * What differs between two runs, shown. */
#ifndef CLI_DIFF_VIEW_H
#define CLI_DIFF_VIEW_H

#include "cli/align.h"

struct comparison {
    struct run a, b;
    struct alignment steps;
};

/* The executions themselves, apart from their steps. */
bool comparison_same_start(const struct comparison *d); /* agent and input */
bool comparison_same_end(const struct comparison *d);   /* status, output and reason */
bool comparison_same(const struct comparison *d);

/* For people: side by side on a wide terminal, else one below the other. */
void diff_print(struct cli *c, struct comparison *d);
/* One object; the first steps that differ are in it as the API has them. */
MUST_USE bool diff_write(struct comparison *d, struct buf *out, struct err *e);

#endif
