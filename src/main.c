/* SPDX-License-Identifier: Apache-2.0
 * The program: cli/commands.c picks and runs what the command line names. */
#include "cli/commands.h"

int main(int argc, char **argv)
{
    return commands_main(argc, argv);
}
