/* SPDX-License-Identifier: Apache-2.0
 * Cancels the subagents of executions that have ended: in slices, by commands of their own, each of
 * which brings about the same one level down. Private to engine/. */
#ifndef ENGINE_ORPHANS_H
#define ENGINE_ORPHANS_H

#include "engine/follow_up.h"

struct engine;
struct orphans;

struct orphans *orphans_new(struct engine *en);
/* Any thread; does not block. `waits` is done when its direct subagents have been cancelled, after
 * a second at the latest, or when the engine stops. */
void orphans_cancel(struct orphans *o, const struct uuid *spawner, struct ticket *waits);
/* Ends the thread. Whatever comes afterwards is only answered. */
void orphans_stop(struct orphans *o);
void orphans_free(struct orphans *o); /* NULL is fine */

#endif
