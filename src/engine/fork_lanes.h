/* SPDX-License-Identifier: Apache-2.0
 * The threads that make forks: small ones and large ones have their own, started at the first need.
 * Private to engine/. */
#ifndef ENGINE_FORK_LANES_H
#define ENGINE_FORK_LANES_H

#include "engine/fork_job.h"

struct fork_lanes;

struct fork_lanes *fork_lanes_new(struct engine *en); /* starts nothing */
/* Answers what has not begun, and waits for the others to give up after their current command.
 * Whatever comes afterwards is only answered. False: the time was too short, and threads run. */
MUST_USE bool fork_lanes_stop(struct fork_lanes *f, int64_t until_us);
void fork_lanes_free(struct fork_lanes *f); /* NULL is fine */

#endif
