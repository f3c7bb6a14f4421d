/* SPDX-License-Identifier: Apache-2.0
 * What a bundle decided, shown to its author. */
#ifndef CLI_POLICY_RESULTS_H
#define CLI_POLICY_RESULTS_H

#include "cli/cli.h"
#include "policy/policy.h"

enum results_of { RESULTS_OF_CASES, RESULTS_OF_STEPS };

/* The API's results, as a table with the failures in words, or with --json as they are:
 * EXIT_FAILED when one is not as expected. */
int results_show(struct cli *c, struct str results, enum results_of what);
/* The decision on one step, with all that its rule adds. */
void probe_show(struct cli *c, const struct policy *p, const struct policy_match *match);

#endif
