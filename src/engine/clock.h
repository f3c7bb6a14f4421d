/* SPDX-License-Identifier: Apache-2.0
 * What must happen because time has passed: leases, deadlines and approvals that run out, recovery
 * at the start, housekeeping. One thread. Private to engine/. */
#ifndef ENGINE_CLOCK_H
#define ENGINE_CLOCK_H

#include "base/err.h"

#include <pthread.h>

struct engine;

void cond_init_mono(pthread_cond_t *cond); /* its waits are timed by the monotonic clock */

void clock_init(struct engine *en);
MUST_USE bool clock_start(struct engine *en, struct err *e);
void clock_stop(struct engine *en);
void clock_free(struct engine *en);

/* An approval was committed here that runs out at `timeout_at`; both by the store's wall clock. Any
 * thread. */
void clock_approval_opened(struct engine *en, int64_t timeout_at, int64_t now_us);
/* Looks for approvals that have run out, if this kernel does that work. Any thread. */
void clock_look_at_approvals(struct engine *en);

#endif
