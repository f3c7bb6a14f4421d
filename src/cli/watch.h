/* SPDX-License-Identifier: Apache-2.0
 * Following one execution. */
#ifndef CLI_WATCH_H
#define CLI_WATCH_H

#include "cli/visit.h"

/* Prints the events of v->id until it ends: EXIT_FAILED when it failed or was cancelled, or when
 * the kernel refuses. A kernel that goes away is waited for. Ctrl-C ends the process with
 * EXIT_INTERRUPTED. */
int watch_execution(struct cli *c, struct visit *v);

#endif
