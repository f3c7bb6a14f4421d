/* SPDX-License-Identifier: Apache-2.0
 * Help texts, made from the table of commands and the table of settings. */
#ifndef CLI_HELP_H
#define CLI_HELP_H

#include <stdio.h>

#include "cli/commands.h"

void help_overview(FILE *out);
void help_group(FILE *out, const char *group); /* the commands that begin with this word */
void help_command(FILE *out, const struct command *cmd);

#endif
