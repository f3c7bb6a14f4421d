/* SPDX-License-Identifier: Apache-2.0
 * Work that the decision of a step needs and that no other command may wait for: a bundle that is
 * not compiled yet, one whose evaluation takes long. A few threads of low priority, started at the
 * first need. Private to engine/. */
#ifndef ENGINE_ASIDE_H
#define ENGINE_ASIDE_H

#include "engine/command.h"

struct engine;
struct aside;

struct aside *aside_new(struct engine *en); /* starts nothing */
/* Takes a submission over (its out.step.wanted says what for) and gives it back by engine_submit,
 * with what was found in in.submit.found. Any thread. */
void aside_push(struct aside *a, struct command *cmd);
void aside_stop(struct aside *a); /* after the last of them has come back */
void aside_free(struct aside *a);

#endif
