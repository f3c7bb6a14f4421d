/* SPDX-License-Identifier: Apache-2.0
 * The table of commands and how one is picked. */
#include "cli/commands.h"

#include <errno.h>

#include "cli/help.h"
#include "cli/meant.h"
#include "cli/settings.h"

#define URL_FLAG                                                                                   \
    {                                                                                              \
        "url", "URL", "the kernel (REBUNO_URL; else http://localhost:8080)"                        \
    }
#define JSON_FLAG                                                                                  \
    {                                                                                              \
        "json", NULL, "print the API's JSON, for scripts"                                          \
    }

static const struct arg_flag NO_FLAGS[] = {{NULL, NULL, NULL}};
static const struct arg_flag VERSION_FLAGS[] = {{"json", NULL, "print it as JSON, for scripts"}};
static const struct arg_flag CALL_FLAGS[] = {URL_FLAG};
static const struct arg_flag SHOW_FLAGS[] = {JSON_FLAG, URL_FLAG};
static const struct arg_flag WATCH_FLAGS[] = {{"json", NULL, "print one event a line, as JSON"},
                                              URL_FLAG};
static const struct arg_flag LIST_FLAGS[] = {
    {"agent", "ID", "only this agent's"},
    {"status", "STATUS", "pending, running, blocked, completed, failed or cancelled"},
    {"session", "NAME", "only this session's"},
    {"spawned-by", "ID", "only the subagents that this execution's steps started"},
    {"limit", "N", "at most so many, newest first (default 50)"},
    JSON_FLAG,
    URL_FLAG,
};
static const struct arg_flag CREATE_FLAGS[] = {
    {"session", "NAME", "the session it belongs to: one of its runs goes on at a time"},
    {"parent", "ID", "the completed run that it continues, instead of the session's last"},
    {"idempotency-key", "KEY", "create once: a repeat with the same key shows the first one"},
    {"on-behalf-of", "NAME", "the end user whom the run serves; recorded"},
    {"watch", NULL, "then follow it, as 'rebuno exec watch' does"},
    JSON_FLAG,
    URL_FLAG,
};
static const struct arg_flag FORK_FLAGS[] = {
    {"at", "SEQ", "the last event that the fork begins with; required"},
    {"session", "NAME", "a new session for it (default: none)"},
    {"policy", "FILE", "the bundle that decides in it, instead of the source's own or the agent's"},
    JSON_FLAG,
    URL_FLAG,
};
static const struct arg_flag DIFF_FLAGS[] = {
    {"json", NULL, "print what differs as JSON"},
    URL_FLAG,
};
static const struct arg_flag EXPORT_FLAGS[] = {
    {"output", "FILE", "write to this file ('-' or none: standard output)"},
    URL_FLAG,
};

static const struct arg_flag APPROVAL_LIST_FLAGS[] = {
    {"status", "STATUS", "pending (default), granted, denied, expired or all"},
    {"limit", "N", "at most so many, soonest to expire first (default 50)"},
    JSON_FLAG,
    URL_FLAG,
};
static const struct arg_flag DECISION_FLAGS[] = {
    {"by", "NAME", "who decides (default: $USER, else the name of the key)"},
    {"reason", "TEXT", "why; recorded, and told to the agent when it is a denial"},
    JSON_FLAG,
    URL_FLAG,
};
static const struct arg_flag POLICY_TEST_FLAGS[] = {
    {"cases", "FILE", "the cases (default: BUNDLE's name with .policytest.yaml)"},
    {"target", "NAME", "no cases: try one step with this target"},
    {"args", "JSON", "its arguments"},
    {"kind", "KIND", "tool_call (default), llm_call or local"},
    {"execution", "ID", "no cases: the steps of this past execution, on a kernel"},
    {"agent-id", "ID", "the agent whose steps they are said to be"},
    JSON_FLAG,
    URL_FLAG,
};

#define FLAGS(list) .flags = (list), .n_flags = COUNT(list)

static const struct command COMMANDS[] = {
    {.name = "dev",
     .synopsis = "",
     .summary = "start a kernel on this machine, without any set-up",
     .text = "Starts a kernel for development: its state is in one file, it asks for no\n"
             "token and listens on this machine only.\n",
     .run = cmd_dev},
    {.name = "server",
     .synopsis = "",
     .summary = "start a kernel for production",
     .text = "Starts a kernel on PostgreSQL or on an SQLite file. It needs a database and\n"
             "a token, by flag or by environment. A token or database URL given by flag is\n"
             "wiped from the process list at start; the environment or --bearer-token-file\n"
             "never shows it.\n",
     .run = cmd_server},
    {.name = "help",
     .synopsis = "[COMMAND]",
     .summary = "this text, or a command's",
     .max_args = 2,
     .text = "Prints the overview, or what a command does.\n",
     .flags = NO_FLAGS,
     .run = cmd_help},
    {.name = "version",
     .synopsis = "",
     .summary = "print the version",
     .text = "Prints the version of this program.\n",
     FLAGS(VERSION_FLAGS),
     .run = cmd_version},
    {.name = "agent ls",
     .synopsis = "",
     .summary = "list the agents",
     .text = "Lists the registered agents.\n",
     FLAGS(SHOW_FLAGS),
     .run = cmd_agent_ls},
    {.name = "agent get",
     .synopsis = "ID",
     .summary = "show an agent and what it published of itself",
     .text = "Shows an agent: its webhook, its lease timeout, the description and schemas\n"
             "that it published of itself, and its policy.\n",
     .min_args = 1,
     .max_args = 1,
     FLAGS(SHOW_FLAGS),
     .run = cmd_agent_get},
    {.name = "agent add",
     .synopsis = "MANIFEST",
     .summary = "register the agents of a manifest",
     .text = "Registers each agent of a YAML file, or changes its registration. Agents\n"
             "that the file does not name are left alone. ${NAME} in a value comes from\n"
             "the environment.\n"
             "\n"
             "  agents:\n"
             "    - id: coder\n"
             "      webhook_url: http://localhost:5000/webhook\n"
             "      secret: ${CODER_SECRET}\n"
             "      lease_timeout_seconds: 600     # optional\n"
             "      policy_file: policy.yaml       # optional; beside the manifest\n",
     .min_args = 1,
     .max_args = 1,
     FLAGS(SHOW_FLAGS),
     .run = cmd_agent_add},
    {.name = "agent rm",
     .synopsis = "ID",
     .summary = "remove an agent",
     .text = "Removes an agent. Refused while it has live executions; ended ones stay\n"
             "readable.\n",
     .min_args = 1,
     .max_args = 1,
     FLAGS(CALL_FLAGS),
     .run = cmd_agent_rm},
    {.name = "exec ls",
     .synopsis = "",
     .summary = "list executions, newest first",
     .text = "Lists executions, newest first.\n",
     FLAGS(LIST_FLAGS),
     .run = cmd_exec_ls},
    {.name = "exec create",
     .synopsis = "AGENT [JSON]",
     .summary = "start a run of an agent",
     .text = "Starts a run of an agent on an input, which is any JSON ('-' reads it from\n"
             "standard input; without one it is null). A text is JSON with quotes of its\n"
             "own, and the shell's around them. The bytes are sent as they are.\n"
             "In a session it waits for those that were created before it, and continues\n"
             "the last one of this agent that completed.\n"
             "\n"
             "  rebuno exec create coder '{\"task\": \"fix the build\"}' --watch\n"
             "  rebuno exec create coder '{\"task\": \"and the tests\"}' --session build-7\n"
             "  rebuno exec create greeter '\"hello\"'\n",
     .min_args = 1,
     .max_args = 2,
     .surplus = "; the input is one argument, in quotes: '{\"task\": \"fix the build\"}'",
     FLAGS(CREATE_FLAGS),
     .run = cmd_exec_create},
    {.name = "exec get",
     .synopsis = "ID",
     .summary = "show an execution",
     .text = "Shows an execution: its state, what it waits for, the tokens that its model\n"
             "calls took, its input and its outcome.\n",
     .min_args = 1,
     .max_args = 1,
     FLAGS(SHOW_FLAGS),
     .run = cmd_exec_get},
    {.name = "exec watch",
     .synopsis = "ID",
     .summary = "follow an execution until it ends",
     .text = "Prints the events of an execution as they happen, from its first one, and its\n"
             "outcome at the end. An approval that it waits for is shown with its arguments\n"
             "and the commands that decide it. A kernel that goes away is waited for. Exits\n"
             "with 1 if the execution failed or was cancelled.\n",
     .min_args = 1,
     .max_args = 1,
     FLAGS(WATCH_FLAGS),
     .run = cmd_exec_watch},
    {.name = "exec events",
     .synopsis = "ID",
     .summary = "print an execution's log, with payloads",
     .text = "Prints all events of an execution so far, with their payloads. On a terminal\n"
             "each is a line as 'rebuno exec watch' has it, and its payload below; in a pipe\n"
             "each is one line. If it has resources, a dot marks the events at which a fork\n"
             "restores all of them as they were.\n",
     .min_args = 1,
     .max_args = 1,
     FLAGS(SHOW_FLAGS),
     .run = cmd_exec_events},
    {.name = "exec steps",
     .synopsis = "ID",
     .summary = "list an execution's steps",
     .text = "Lists the steps of an execution in the order in which they were created.\n"
             "'#2' behind a target: the second with the same arguments. TOKENS are those of a\n"
             "model call, in/out. One that was answered with an error has its HTTP status\n"
             "beside its own, and the answer's beginning at the end. --json has whole\n"
             "arguments and results.\n",
     .min_args = 1,
     .max_args = 1,
     FLAGS(SHOW_FLAGS),
     .run = cmd_exec_steps},
    {.name = "exec fork",
     .synopsis = "ID --at SEQ",
     .summary = "start a run from a moment of another one",
     .text = "Starts a new run that begins with what another one had recorded by an event:\n"
             "the steps that had settled by then replay, what follows is decided anew and\n"
             "runs. The source is left as it is. Says what each resource was restored from,\n"
             "and warns when it was not captured in the state that it had at that event.\n"
             "A policy is compiled before anything is sent.\n"
             "\n"
             "  rebuno exec fork 0199c2a4-7d10-7c4e --at 41 --policy stricter.yaml\n",
     .min_args = 1,
     .max_args = 1,
     FLAGS(FORK_FLAGS),
     .run = cmd_exec_fork},
    {.name = "exec fork-points",
     .synopsis = "ID",
     .summary = "show where a fork can restore all resources",
     .text = "Lists the resources of an execution with their checkpoints and the events that\n"
             "each of them covers, and the events at which all resources are covered. Any\n"
             "event can be forked; at the others, a fork begins with an earlier state.\n",
     .min_args = 1,
     .max_args = 1,
     FLAGS(SHOW_FLAGS),
     .run = cmd_exec_fork_points},
    {.name = "exec diff",
     .synopsis = "A B",
     .summary = "show where two runs begin to differ, and how",
     .text = "Compares two executions, or a fork and its source: their inputs, their steps in\n"
             "order (a step is the same if kind, target and arguments are, and it is the\n"
             "same of several such), their results and errors, what the policy said of them,\n"
             "and how the runs ended. Times are not compared. Exits with 0 if nothing\n"
             "differs, 1 if something does, and 2 if they could not be compared.\n",
     .min_args = 2,
     .max_args = 2,
     FLAGS(DIFF_FLAGS),
     .run = cmd_exec_diff},
    {.name = "exec export",
     .synopsis = "ID",
     .summary = "write a run to a file, to test an agent against it",
     .text = "Writes an execution, the session's state that it began with, all its steps with\n"
             "arguments and results, and its log, as one JSON object (docs/testing.md). A run\n"
             "that goes on is written as far as it has got. The file appears when all of it\n"
             "is there; one of that name is replaced. rebuno.testing.replay runs an agent\n"
             "against it.\n"
             "\n"
             "No key, secret or webhook is in it; but inputs, arguments, results and states\n"
             "are, with whatever they hold.\n"
             "\n"
             "  rebuno exec export 0199c2a4-7d10-7c4e --output run.json\n",
     .min_args = 1,
     .max_args = 1,
     FLAGS(EXPORT_FLAGS),
     .run = cmd_exec_export},
    {.name = "exec cancel",
     .synopsis = "ID",
     .summary = "end a run",
     .text = "Cancels an execution that has not ended.\n",
     .min_args = 1,
     .max_args = 1,
     FLAGS(CALL_FLAGS),
     .run = cmd_exec_cancel},
    {.name = "approval ls",
     .synopsis = "",
     .summary = "list what waits for a person",
     .text = "Lists the approvals that are pending, soonest to expire first.\n",
     FLAGS(APPROVAL_LIST_FLAGS),
     .run = cmd_approval_ls},
    {.name = "approval get",
     .synopsis = "ID",
     .summary = "show an approval with all its arguments",
     .text = "Shows who asks for what, with the whole arguments of the step, until when, and\n"
             "who may decide. A string of several lines, or with quotes in it, stands behind\n"
             "a bar; control characters are shown as escapes.\n",
     .min_args = 1,
     .max_args = 1,
     FLAGS(SHOW_FLAGS),
     .run = cmd_approval_get},
    {.name = "approval grant",
     .synopsis = "ID",
     .summary = "let a step run",
     .text = "Grants an approval: the step runs, with exactly the arguments that were shown.\n"
             "Fails when it has been decided already, and says how.\n",
     .min_args = 1,
     .max_args = 1,
     FLAGS(DECISION_FLAGS),
     .run = cmd_approval_grant},
    {.name = "approval deny",
     .synopsis = "ID",
     .summary = "refuse a step",
     .text = "Denies an approval: the step does not run, and the agent goes on with the\n"
             "refusal and its reason. Fails when it has been decided already, and says how.\n",
     .min_args = 1,
     .max_args = 1,
     FLAGS(DECISION_FLAGS),
     .run = cmd_approval_deny},
    {.name = "policy test",
     .synopsis = "BUNDLE",
     .summary = "run a bundle's cases, or try a step on it",
     .text = "Compiles a policy bundle and runs the cases beside it: shell.yaml has its own in\n"
             "shell.policytest.yaml. Exits with 1 if one is not met. No kernel is asked,\n"
             "unless a past execution's steps are replayed through the bundle: those that\n"
             "it would now decide differently count as failed.\n"
             "\n"
             "  agent_id: shell\n"
             "  cases:\n"
             "    - { name: read-only, target: shell_exec, args: { command: \"ls -la\" },\n"
             "        expect: allow, expect_rule: allow-safe }\n"
             "\n"
             "  rebuno policy test shell.yaml\n"
             "  rebuno policy test shell.yaml --target shell_exec --args '{\"command\":\"ls\"}'\n"
             "  rebuno policy test shell.yaml --execution 0199c2a4-7d10-7c4e\n",
     .min_args = 1,
     .max_args = 1,
     FLAGS(POLICY_TEST_FLAGS),
     .run = cmd_policy_test},
    {.name = "policy set",
     .synopsis = "AGENT BUNDLE",
     .summary = "give an agent a policy",
     .text = "Compiles a policy bundle and makes it the agent's. It decides from the next new\n"
             "step on, in runs that are under way too; what has been decided stays.\n",
     .min_args = 2,
     .max_args = 2,
     FLAGS(SHOW_FLAGS),
     .run = cmd_policy_set},
};

const struct command_group COMMAND_GROUPS[] = {
    {"agent", "agents"},
    {"exec", "executions (an ID may be any beginning that only one has)"},
    {"approval", "approvals (their IDs as well)"},
    {"policy", "policies"},
    {NULL, NULL},
};

const struct command *commands_table(size_t *n)
{
    *n = COUNT(COMMANDS);
    return COMMANDS;
}

const struct command *command_find(const char *name)
{
    for (size_t i = 0; i < COUNT(COMMANDS); i++) {
        if (strcmp(COMMANDS[i].name, name) == 0)
            return &COMMANDS[i];
    }
    return NULL;
}

bool command_is_group(const char *word)
{
    size_t n = strlen(word);

    for (size_t i = 0; i < COUNT(COMMANDS); i++) {
        if (strncmp(COMMANDS[i].name, word, n) == 0 && COMMANDS[i].name[n] == ' ')
            return true;
    }
    return false;
}

const struct arg_flag *command_flags(const struct command *cmd, size_t *n)
{
    if (cmd->flags == NULL)
        return settings_flags(cmd->run == cmd_dev, n);
    *n = cmd->n_flags;
    return cmd->flags;
}

/* ---- picking ---- */

static bool is_help_flag(const char *word)
{
    return strcmp(word, "--help") == 0 || strcmp(word, "-h") == 0;
}

size_t command_words(const char *group, const char **words, size_t max)
{
    size_t n = 0, group_n = strlen(group);

    for (size_t i = 0; i < COUNT(COMMANDS) && n < max; i++) {
        const char *name = COMMANDS[i].name;

        if (group_n == 0 && strchr(name, ' ') == NULL)
            words[n++] = name;
        else if (group_n > 0 && strncmp(name, group, group_n) == 0 && name[group_n] == ' ')
            words[n++] = name + group_n + 1;
    }
    return n;
}

/* `next`: what stands behind the word; NULL: nothing. */
static int unknown_command(struct cli *c, const char *group, const char *word, const char *next)
{
    char meant[MEANT_MAX];
    const char *space = group[0] == '\0' ? "" : " ";
    struct err e;

    c->command = NULL; /* of 'help': what is unknown is another one */
    if (meant_command(group, word, next, meant))
        err_set(&e, ERR_VALIDATION, "unknown command '%s%s%.40s'; did you mean '%s'?", group, space,
                word, meant);
    else
        err_set(&e, ERR_VALIDATION, "unknown command '%s%s%.40s'", group, space, word);
    return cli_fail_usage(c, &e);
}

static int missing_subcommand(struct cli *c, const char *group)
{
    const char *words[COUNT(COMMANDS)];
    size_t n = command_words(group, words, COUNT(words));
    struct buf list = {0};
    struct err e;

    for (size_t i = 0; i < n; i++)
        buf_printf(&list, "%s%s", i == 0 ? "" : ", ", words[i]);
    err_set(&e, ERR_VALIDATION, "'rebuno %s' needs a command: %.*s", group,
            STR_ARG(buf_str(&list)));
    buf_free(&list);
    return cli_fail_usage(c, &e);
}

/* A full disk or a closed pipe must not look like success. */
static int finish_output(struct cli *c, int code)
{
    if (fflush(c->out) == 0 && !ferror(c->out))
        return code;
    struct err e;
    err_set(&e, ERR_UNAVAILABLE, "cannot write the output: %s", strerror(errno));
    cli_fail(c, &e);
    return code == EXIT_OK ? EXIT_FAILED : code;
}

static bool check_count(const struct cli *c, struct err *e)
{
    const struct command *cmd = c->command;
    size_t n = c->args.n_positional;

    if (n < cmd->min_args)
        return err_set(e, ERR_VALIDATION, "'rebuno %s' needs %s", cmd->name, cmd->synopsis);
    if (n > cmd->max_args)
        return err_set(e, ERR_VALIDATION, "unexpected argument \"%.80s\"%s",
                       c->args.positional[cmd->max_args], cmd->surplus == NULL ? "" : cmd->surplus);
    return true;
}

static int run_command(struct cli *c)
{
    size_t n_flags = 0;
    const struct arg_flag *flags = command_flags(c->command, &n_flags);
    struct err e;
    int code;

    if (!args_parse(flags, n_flags, c->argc, c->argv, &c->args, &e)) {
        code = cli_fail_usage(c, &e);
    } else if (c->args.help) {
        help_command(c->out, c->command);
        code = EXIT_OK;
    } else if (!check_count(c, &e)) {
        code = cli_fail_usage(c, &e);
    } else {
        code = c->command->run(c);
    }
    args_free(&c->args);
    return finish_output(c, code);
}

static int pick_in_group(struct cli *c, int argc, char **argv)
{
    char name[64];

    if (argc < 3)
        return missing_subcommand(c, argv[1]);
    if (is_help_flag(argv[2])) {
        help_group(c->out, argv[1]);
        return finish_output(c, EXIT_OK);
    }
    snprintf(name, sizeof name, "%s %s", argv[1], argv[2]);
    c->command = command_find(name);
    if (c->command == NULL)
        return unknown_command(c, argv[1], argv[2], NULL);
    c->argc = argc - 3;
    c->argv = argv + 3;
    return run_command(c);
}

int commands_run(struct cli *c, int argc, char **argv)
{
    if (argc < 2) {
        help_overview(c->err);
        return EXIT_USAGE;
    }
    if (command_is_group(argv[1]))
        return pick_in_group(c, argc, argv);
    c->command = is_help_flag(argv[1])               ? command_find("help")
                 : strcmp(argv[1], "--version") == 0 ? command_find("version")
                                                     : command_find(argv[1]);
    if (c->command == NULL)
        return unknown_command(c, "", argv[1], argc > 2 ? argv[2] : NULL);
    c->argc = argc - 2;
    c->argv = argv + 2;
    return run_command(c);
}

int commands_main(int argc, char **argv)
{
    struct cli c = {.out = stdout, .err = stderr};

    cli_look_at_terminal(&c);
    return commands_run(&c, argc, argv);
}

/* ---- the two that need nothing ---- */

int cmd_help(struct cli *c)
{
    char name[64];
    struct str first = cli_arg(c, 0), second = cli_arg(c, 1);

    if (!str_present(first)) {
        help_overview(c->out);
        return EXIT_OK;
    }
    if (!str_present(second) && command_is_group(first.p)) {
        help_group(c->out, first.p);
        return EXIT_OK;
    }
    snprintf(name, sizeof name, "%s%s%s", first.p, str_present(second) ? " " : "",
             str_present(second) ? second.p : "");
    const struct command *cmd = command_find(name);
    if (cmd == NULL)
        return command_is_group(first.p) ? unknown_command(c, first.p, second.p, NULL)
                                         : unknown_command(c, "", first.p, second.p);
    help_command(c->out, cmd);
    return EXIT_OK;
}

int cmd_version(struct cli *c)
{
    fputs(cli_json(c) ? "{\"version\":\"" REBUNO_VERSION "\"}\n" : "rebuno " REBUNO_VERSION "\n",
          c->out);
    return EXIT_OK;
}
