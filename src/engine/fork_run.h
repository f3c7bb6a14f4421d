/* SPDX-License-Identifier: Apache-2.0
 * Makes one fork, from its pin to its appearance. Private to engine/. */
#ifndef ENGINE_FORK_RUN_H
#define ENGINE_FORK_RUN_H

#include "engine/fork_job.h"

/* Fills what comes out of the job, but for `done`. Once *stopping, it gives up before its next
 * command. */
void fork_run(struct engine *en, struct store_reader *r, struct fork_job *job,
              const atomic_bool *stopping);

#endif
