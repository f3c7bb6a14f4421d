/* SPDX-License-Identifier: Apache-2.0
 * From a command to its rule. */
#ifndef ENGINE_DECIDE_H
#define ENGINE_DECIDE_H

#include "engine/command.h"

/* Names the rows that the command's rule will look at first. */
void command_names(struct working_set *ws, const struct command *cmd);
/* Runs the rule: sets cmd->verdict and, when it is decided, the answer or the error. */
void command_decide(struct working_set *ws, struct command *cmd);
/* Copies the answer's slices into cmd->arena, before the group's memory goes. False: out of memory.
 */
MUST_USE bool command_keep_answer(struct command *cmd);
/* Which executor decides it: all commands of one execution, and all of one agent's registration, go
 * to one. */
uint64_t command_route(const struct command *cmd);

#endif
