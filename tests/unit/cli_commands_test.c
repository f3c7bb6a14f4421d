/* SPDX-License-Identifier: Apache-2.0
 * Picking commands, and that the help says all there is. */
#include "support/check.h"

#include <stdlib.h>

#include "cli/commands.h"
#include "cli/settings.h"

struct result {
    int code;
    char *out, *err; /* owned */
};

/* Runs `rebuno` with these words. Only what needs no kernel. */
static struct result run(const char *const *words)
{
    char *argv[8] = {(char *)(uintptr_t) "rebuno"};
    struct result r = {0};
    struct cli c = {0};
    size_t out_n = 0, err_n = 0;
    int argc = 1;

    for (; words[argc - 1] != NULL; argc++)
        argv[argc] = (char *)(uintptr_t)words[argc - 1];
    c.out = open_memstream(&r.out, &out_n);
    c.err = open_memstream(&r.err, &err_n);
    r.code = commands_run(&c, argc, argv);
    fclose(c.out);
    fclose(c.err);
    return r;
}
#define RUN(...) run((const char *const[]){__VA_ARGS__, NULL})

static void result_free(struct result *r)
{
    free(r->out);
    free(r->err);
}

static void check_contains(const char *text, const char *what)
{
    CHECKF(strstr(text, what) != NULL, "no \"%s\" in:\n%s", what, text);
}

/* The same in a help text, where it may go on in a line below. */
static void check_tells(const char *text, const char *what)
{
    struct buf joined = {0};

    for (; *text != '\0'; text++) {
        if (*text != '\n') {
            buf_add_byte(&joined, *text);
            continue;
        }
        text += strspn(text + 1, " ");
        buf_add_byte(&joined, ' ');
    }
    buf_add_byte(&joined, '\0');
    check_contains(joined.p, what);
    buf_free(&joined);
}

static void check_fits_a_terminal(const char *help)
{
    while (*help != '\0') {
        size_t n = strcspn(help, "\n");

        CHECKF(n <= 80, "%zu columns: %.*s", n, (int)n, help);
        help += n + 1;
    }
}

static void usage_errors_exit_with_2(void **state)
{
    static const struct {
        const char *words[6];
        const char *err;
    } cases[] = {
        {{"serve"}, "error: unknown command 'serve'; did you mean 'server'?\nsee 'rebuno help'\n"},
        {{"agents"}, "error: unknown command 'agents'; did you mean 'agent'?\nsee 'rebuno help'\n"},
        {{"frobnicate"}, "error: unknown command 'frobnicate'\nsee 'rebuno help'\n"},
        {{"exec"},
         "error: 'rebuno exec' needs a command: ls, create, get, watch, events, steps, "
         "fork, fork-points, diff, export, cancel\nsee 'rebuno help'\n"},
        {{"exec", "list"}, "error: unknown command 'exec list'; did you mean 'exec ls'?\n"},
        {{"exec", "zip"}, "error: unknown command 'exec zip'\nsee 'rebuno help'\n"},
        {{"exec", "watc"},
         "error: unknown command 'exec watc'; did you mean 'exec watch'?\n"
         "see 'rebuno help'\n"},
        {{"exec", "get"}, "error: 'rebuno exec get' needs ID\nsee 'rebuno exec get --help'\n"},
        {{"exec", "get", "1", "2"},
         "error: unexpected argument \"2\"\nsee 'rebuno exec get --help'\n"},
        {{"exec", "ls", "--statsu", "x"},
         "error: unknown flag --statsu; did you mean --status?\nsee 'rebuno exec ls --help'\n"},
        {{"exec", "ls", "--limit", "0"},
         "error: --limit: expected a whole number from 1 to 1000000, "
         "not \"0\"\nsee 'rebuno exec ls --help'\n"},
        {{"exec", "fork", "0199"},
         "error: --at is missing: the number of an event, as 'rebuno exec events' has it\n"
         "see 'rebuno exec fork --help'\n"},
        {{"exec", "fork", "0199", "--at", "0"},
         "error: --at: expected an event's number, from 1, not \"0\"\n"},
        {{"exec", "diff", "0199"}, "error: 'rebuno exec diff' needs A B\n"},
        {{"exec", "create", "a", "{\"x\": }"},
         "error: the input must be JSON: invalid JSON at byte 6 "},
        {{"exec", "create", "a", "hello"},
         "error: the input must be JSON: invalid JSON at byte 0 (line 1, column 1): expected a "
         "value; a text is JSON with quotes of its own: '\"hello\"'\n"
         "see 'rebuno exec create --help'\n"},
        {{"exec", "create", "a", "it's"},
         "error: the input must be JSON: invalid JSON at byte 0 (line 1, column 1): expected a "
         "value; a text is JSON with quotes of its own: '\"some text\"'\n"},
        {{"exec", "create", "a", "{x: 1}"},
         "error: the input must be JSON: invalid JSON at byte 1 (line 1, column 2): expected a "
         "string as key; in a shell, JSON goes between single quotes and has double ones inside: "
         "'{\"task\": \"fix the build\"}'\n"},
        {{"exec", "create", "a", "{x:", "1}"},
         "error: unexpected argument \"1}\"; the input is one argument, in quotes: "
         "'{\"task\": \"fix the build\"}'\nsee 'rebuno exec create --help'\n"},
        {{"exec", "export", "0199", "-o", "x"}, "error: unknown flag -o; did you mean --output?\n"},
        {{"agent", "ls", "--url", "http://h:1/v0/"},
         "error: --url: expected the kernel's address alone, without /v0\n"},
        {{"agent", "ls", "--url", "ftp://x"},
         "error: --url: expected http://host:port or https://host, not \"ftp://x\"\n"},
        {{"approvals"},
         "error: unknown command 'approvals'; did you mean 'approval'?\nsee 'rebuno help'\n"},
        {{"approval", "approve"},
         "error: unknown command 'approval approve'; did you mean 'approval grant'?\n"},
        {{"approval", "reject"},
         "error: unknown command 'approval reject'; did you mean 'approval deny'?\n"},
        {{"approve", "0199"}, "error: unknown command 'approve'; did you mean 'approval grant'?\n"},
        {{"run", "coder"}, "error: unknown command 'run'; did you mean 'exec create'?\n"},
        {{"exec", "run"}, "error: unknown command 'exec run'; did you mean 'exec create'?\n"},
        {{"exec", "logs"}, "error: unknown command 'exec logs'; did you mean 'exec events'?\n"},
        {{"ps"}, "error: unknown command 'ps'; did you mean 'exec ls'?\n"},
        {{"agent", "list"}, "error: unknown command 'agent list'; did you mean 'agent ls'?\n"},
        {{"agent", "run"}, "error: unknown command 'agent run'\n"}, /* no group's but exec's */
        {{"watch", "0199"}, "error: unknown command 'watch'; did you mean 'exec watch'?\n"},
        {{"exce", "ls"}, "error: unknown command 'exce'; did you mean 'exec ls'?\n"},
        {{"exce", "logs"}, "error: unknown command 'exce'; did you mean 'exec events'?\n"},
        {{"exce", "wacth"}, "error: unknown command 'exce'; did you mean 'exec watch'?\n"},
        {{"exce", "zip"}, "error: unknown command 'exce'; did you mean 'exec'?\n"},
        {{"help", "exce", "ls"}, "error: unknown command 'exce'; did you mean 'exec ls'?\n"},
        {{"agent", "ls", "--url", "http://localhost:80800"},
         "error: --url: the port must be a number from 1 to 65535: \"http://localhost:80800\"\n"},
        {{"agent", "ls", "--url", "http://localhost:x"},
         "error: --url: the port must be a number from 1 to 65535: \"http://localhost:x\"\n"},
        {{"approval"}, "error: 'rebuno approval' needs a command: ls, get, grant, deny\n"},
        {{"approval", "grant"}, "error: 'rebuno approval grant' needs ID\n"},
        {{"approval", "ls", "--limit", "1001"},
         "error: --limit: expected a whole number from 1 to 1000, not \"1001\"\n"},
        {{"approval", "ls", "--status", "open"},
         "error: --status: expected one of pending, granted, denied, expired, all, not \"open\"\n"},
        {{"policy"}, "error: 'rebuno policy' needs a command: test, set\n"},
        {{"policy", "set", "agent"}, "error: 'rebuno policy set' needs AGENT BUNDLE\n"},
        {{"policy", "test", "b", "--cases=c", "--target=t"},
         "error: --cases, --target and --execution are three ways: give one of them\n"},
        {{"policy", "test", "b", "--args", "{}"}, "error: --args and --kind belong to --target\n"},
        {{"help", "nonsense"}, "error: unknown command 'nonsense'\nsee 'rebuno help'\n"},
        {{"version", "x"}, "error: unexpected argument \"x\"\nsee 'rebuno version --help'\n"},
        {{"dev", "x"}, "error: unexpected argument \"x\"\nsee 'rebuno dev --help'\n"},
    };

    (void)state;
    for (size_t i = 0; i < COUNT(cases); i++) {
        struct result r = run(cases[i].words);

        CHECKF(r.code == EXIT_USAGE, "case %zu: %d", i, r.code);
        CHECKF(strncmp(r.err, cases[i].err, strlen(cases[i].err)) == 0, "case %zu: %s", i, r.err);
        CHECKF(r.out[0] == '\0', "case %zu: %s", i, r.out);
        result_free(&r);
    }
}

static void no_command_shows_the_overview(void **state)
{
    struct result r = run((const char *const[]){NULL});

    (void)state;
    assert_int_equal(r.code, EXIT_USAGE);
    check_contains(r.err, "usage: rebuno COMMAND");
    result_free(&r);
}

static void help_has_every_command_and_flag(void **state)
{
    size_t n = 0;
    const struct command *table = commands_table(&n);
    struct result overview = RUN("help");

    (void)state;
    assert_int_equal(overview.code, EXIT_OK);
    for (size_t i = 0; i < n; i++) {
        char name[64];
        const char *second;
        size_t n_flags = 0;
        const struct arg_flag *flags = command_flags(&table[i], &n_flags);

        check_contains(overview.out, table[i].name);
        check_tells(overview.out, table[i].summary);
        snprintf(name, sizeof name, "%s", table[i].name);
        second = strchr(name, ' ');
        if (second != NULL)
            name[second++ - name] = '\0';
        struct result r = second != NULL ? RUN(name, second, "--help") : RUN(name, "--help");
        struct result same = second != NULL ? RUN("help", name, second) : RUN("help", name);
        CHECKF(r.code == EXIT_OK, "%s", table[i].name);
        CHECKF(strcmp(r.out, same.out) == 0, "%s", table[i].name);
        for (size_t j = 0; j < n_flags; j++)
            check_contains(r.out, flags[j].name);
        check_fits_a_terminal(r.out);
        result_free(&r);
        result_free(&same);
    }
    check_fits_a_terminal(overview.out);
    result_free(&overview);
}

static void kernel_help_has_every_setting(void **state)
{
    size_t n = 0;
    const struct setting *table = settings_table(&n);
    struct result server = RUN("server", "--help"), dev = RUN("dev", "-h");

    (void)state;
    for (size_t i = 0; i < n; i++) {
        const char *text = (table[i].modes & SETTING_IN_SERVER) != 0 ? server.out : dev.out;

        if (table[i].flag != NULL)
            check_contains(text, table[i].flag);
        if (table[i].env != NULL)
            check_contains(text, table[i].env);
        check_tells(text, table[i].help);
    }
    check_tells(dev.out, "REBUNO_LISTEN_ADDR; default 127.0.0.1:8080");
    check_tells(server.out, "REBUNO_LISTEN_ADDR; default :8080");
    check_tells(server.out, "REBUNO_DB_URL; required");
    result_free(&server);
    result_free(&dev);
}

static void flags_say_what_they_are_here(void **state)
{
    struct result version = RUN("version", "--help"), fork = RUN("exec", "fork", "--help");

    (void)state;
    check_contains(version.out, "print it as JSON, for scripts");
    check_tells(fork.out, "instead of the source's own or the agent's");
    result_free(&version);
    result_free(&fork);
}

static void groups_have_help(void **state)
{
    struct result a = RUN("exec", "--help"), b = RUN("help", "exec");

    (void)state;
    assert_int_equal(a.code, EXIT_OK);
    assert_string_equal(a.out, b.out);
    check_contains(a.out, "exec create AGENT [JSON]");
    assert_null(strstr(a.out, "agent add"));
    result_free(&a);
    result_free(&b);
}

static void tells_the_version(void **state)
{
    struct result plain = RUN("version"), json = RUN("version", "--json"), flag = RUN("--version");

    (void)state;
    assert_int_equal(strncmp(plain.out, "rebuno ", 7), 0);
    assert_string_equal(plain.out, flag.out);
    assert_int_equal(strncmp(json.out, "{\"version\":\"", 12), 0);
    result_free(&plain);
    result_free(&json);
    result_free(&flag);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(usage_errors_exit_with_2),
        cmocka_unit_test(no_command_shows_the_overview),
        cmocka_unit_test(help_has_every_command_and_flag),
        cmocka_unit_test(kernel_help_has_every_setting),
        cmocka_unit_test(groups_have_help),
        cmocka_unit_test(flags_say_what_they_are_here),
        cmocka_unit_test(tells_the_version),
    };

    return cmocka_run_group_tests_name("cli_commands", tests, NULL, NULL);
}
