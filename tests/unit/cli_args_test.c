/* SPDX-License-Identifier: Apache-2.0
 * The argument parser and its suggestions. */
#include "support/check.h"

#include "cli/args.h"

static const struct arg_flag FLAGS[] = {
    {"status", "STATUS", ""}, {"limit", "N", ""}, {"json", NULL, ""}};

static bool parse(struct args *out, struct err *e, const char *const *words)
{
    static char copies[8][64];
    char *argv[8];
    int argc = 0;

    for (; words[argc] != NULL; argc++) {
        snprintf(copies[argc], sizeof copies[argc], "%s", words[argc]);
        argv[argc] = copies[argc];
    }
    return args_parse(FLAGS, COUNT(FLAGS), argc, argv, out, e);
}
#define PARSE(out, e, ...) parse((out), (e), (const char *const[]){__VA_ARGS__, NULL})

static void takes_flags_and_arguments_in_any_order(void **state)
{
    struct args a;
    struct err e;

    (void)state;
    assert_true(PARSE(&a, &e, "one", "--status", "failed", "-", "--json", "-5", "--limit=3"));
    assert_int_equal(a.n_positional, 3);
    assert_string_equal(a.positional[0], "one");
    assert_string_equal(a.positional[1], "-");
    assert_string_equal(a.positional[2], "-5");
    assert_string_equal(args_get(&a, "status"), "failed");
    assert_string_equal(args_get(&a, "limit"), "3");
    assert_non_null(args_get(&a, "json"));
    args_free(&a);
    assert_true(PARSE(&a, &e, "--limit=", "--", "--json"));
    assert_string_equal(args_get(&a, "limit"), "");
    assert_null(args_get(&a, "json"));
    assert_string_equal(a.positional[0], "--json");
    args_free(&a);
    assert_true(parse(&a, &e, (const char *const[]){NULL}));
    assert_int_equal(a.n_positional, 0);
    args_free(&a);
}

static void help_wins(void **state)
{
    struct args a;
    struct err e;

    (void)state;
    assert_true(PARSE(&a, &e, "--nonsense", "--help"));
    assert_true(a.help);
    assert_true(PARSE(&a, &e, "-h"));
    assert_true(a.help);
    assert_true(PARSE(&a, &e, "--", "--help"));
    assert_false(a.help);
    args_free(&a);
}

static void refuses(void **state)
{
    static const struct {
        const char *words[4];
        const char *message;
    } cases[] = {
        {{"--staus", "x"}, "unknown flag --staus; did you mean --status?"},
        {{"--staus=x"}, "unknown flag --staus; did you mean --status?"},
        {{"--stat=x"}, "unknown flag --stat; did you mean --status?"},
        {{"--zebra"}, "unknown flag --zebra"},
        {{"-x"}, "unknown flag -x"},
        {{"-l"}, "unknown flag -l; did you mean --limit?"},
        {{"--json=1"}, "--json takes no value"},
        {{"--limit"}, "--limit needs a value: --limit N"},
        {{"--limit", "--json"}, "--limit needs a value: --limit N"},
        {{"--limit=1", "--limit", "2"}, "--limit is given twice"},
        {{"--json", "--json"}, "--json is given twice"},
        {{"--=x"}, "unknown flag --"},
    };
    struct args a;
    struct err e;

    (void)state;
    for (size_t i = 0; i < COUNT(cases); i++) {
        CHECKF(!parse(&a, &e, cases[i].words), "case %zu", i);
        CHECK_STR(str_of(e.message), str_of(cases[i].message));
        args_free(&a);
    }
}

static void suggests_what_is_close(void **state)
{
    static const char *const words[] = {"ls",     "create", "get",   "watch",
                                        "events", "steps",  "cancel"};
    static const struct {
        const char *word, *meant;
    } cases[] = {
        {"lst", "ls"},       {"crate", "create"},    {"wacth", "watch"},
        {"event", "events"}, {"canceled", "cancel"}, {"gte", "get"},
        {"st", "steps"},     {"delete", NULL},       {"x", NULL},
        {"", NULL},
    };

    (void)state;
    for (size_t i = 0; i < COUNT(cases); i++) {
        const char *meant = suggest(cases[i].word, words, COUNT(words));

        CHECKF((meant == NULL) == (cases[i].meant == NULL) &&
                   (meant == NULL || strcmp(meant, cases[i].meant) == 0),
               "%s: %s", cases[i].word, meant == NULL ? "nothing" : meant);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(takes_flags_and_arguments_in_any_order),
        cmocka_unit_test(help_wins),
        cmocka_unit_test(refuses),
        cmocka_unit_test(suggests_what_is_close),
    };

    return cmocka_run_group_tests_name("cli_args", tests, NULL, NULL);
}
