/* SPDX-License-Identifier: Apache-2.0
 * What a committed end brings about elsewhere: its session admits the next one, the step that
 * spawned it settles, its subagents are cancelled. Commands of their own, so that nothing cascades
 * inside a transaction. The one that ended something is answered when its own are done, so that its
 * caller reads what follows; what a crash interrupts, the clock's sweeps find. Private to engine/.
 */
#ifndef ENGINE_FOLLOW_UP_H
#define ENGINE_FOLLOW_UP_H

#include "engine/command.h"

struct engine;

/* After the commit of a group that `changes` are of. `first` is answered when what it brought about
 * is done, whatever came of it; at once if it is a follow-up itself. */
void follow_up(struct engine *en, struct command *first, const struct changes *changes);

/* An answer that waits for several things. */
struct ticket;
void ticket_done(struct ticket *t); /* one of them is done, or is not waited for any longer */

#endif
