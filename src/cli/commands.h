/* SPDX-License-Identifier: Apache-2.0
 * The table of commands: names, what the help says of them, their flags and what runs them. */
#ifndef CLI_COMMANDS_H
#define CLI_COMMANDS_H

#include "cli/cli.h"

struct command {
    const char *name;             /* "exec create" */
    const char *synopsis;         /* the arguments, as the help shows them */
    const char *summary;          /* one line for the overview */
    const char *text;             /* the help's paragraphs; lines end with \n */
    const struct arg_flag *flags; /* NULL: the kernel's, from config.c */
    size_t n_flags;
    size_t min_args, max_args;
    const char *surplus; /* what to say to more arguments; NULL: nothing */
    int (*run)(struct cli *c);
};

const struct command *commands_table(size_t *n);
const struct command *command_find(const char *name);
/* What the commands of two words begin with, in the order of the overview, and what its heading
 * says of them; ends with a NULL word. Static. */
struct command_group {
    const char *word, *heading;
};
extern const struct command_group COMMAND_GROUPS[];
/* Whether the table has commands of two words that begin with this one. */
bool command_is_group(const char *word);
/* What stands at the place of a command's first word; with a group other than "", of its second.
 * How many, at most max. */
size_t command_words(const char *group, const char **words, size_t max);
/* The command's flags. `rebuno dev` and `rebuno server` share a table, so they are asked for. */
const struct arg_flag *command_flags(const struct command *cmd, size_t *n);

/* Picks the command, parses its arguments, runs it; the exit code. argv[0] is the program. */
int commands_main(int argc, char **argv);
/* The same with other streams, for tests; c->out and c->err are set, the rest is zero. */
int commands_run(struct cli *c, int argc, char **argv);

/* What the table names. */
int cmd_dev(struct cli *c);
int cmd_server(struct cli *c);
int cmd_agent_ls(struct cli *c);
int cmd_agent_get(struct cli *c);
int cmd_agent_add(struct cli *c);
int cmd_agent_rm(struct cli *c);
int cmd_exec_ls(struct cli *c);
int cmd_exec_create(struct cli *c);
int cmd_exec_get(struct cli *c);
int cmd_exec_watch(struct cli *c);
int cmd_exec_events(struct cli *c);
int cmd_exec_steps(struct cli *c);
int cmd_exec_fork(struct cli *c);
int cmd_exec_fork_points(struct cli *c);
int cmd_exec_diff(struct cli *c);
int cmd_exec_export(struct cli *c);
int cmd_exec_cancel(struct cli *c);
int cmd_approval_ls(struct cli *c);
int cmd_approval_get(struct cli *c);
int cmd_approval_grant(struct cli *c);
int cmd_approval_deny(struct cli *c);
int cmd_policy_test(struct cli *c);
int cmd_policy_set(struct cli *c);
int cmd_help(struct cli *c);
int cmd_version(struct cli *c);

#endif
