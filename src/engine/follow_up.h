/* SPDX-License-Identifier: Apache-2.0
 * What a committed end brings about elsewhere: its session admits the next one. A command of its
 * own, so that nothing cascades inside a transaction. The one that ended something is answered when
 * that is done, so that its caller reads the next one as started; what a crash interrupts, the
 * clock's sweep finds. Private to engine/. */
#ifndef ENGINE_FOLLOW_UP_H
#define ENGINE_FOLLOW_UP_H

#include "engine/command.h"

struct engine;

/* After the commit. `first` is answered when the session has been looked at, whatever came of it;
 * `session` is copied. */
void follow_up_admit(struct engine *en, struct command *first, struct str session);

#endif
