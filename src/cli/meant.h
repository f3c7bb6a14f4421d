/* SPDX-License-Identifier: Apache-2.0
 * Which command somebody means who names one that there is not. */
#ifndef CLI_MEANT_H
#define CLI_MEANT_H

#include <stdbool.h>

enum { MEANT_MAX = 64 };

/* `word` names no command of `group`; "": nor a group. `next` stands behind it, or is NULL. Writes
 * the command or group that is meant. False: nobody can say. */
bool meant_command(const char *group, const char *word, const char *next, char name[MEANT_MAX]);

#endif
