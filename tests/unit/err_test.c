/* SPDX-License-Identifier: Apache-2.0 */
#include "base/err.h"

#include "support/check.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

static void sets(void **state)
{
    struct err e = {.details = "{\"a\":1}"};

    (void)state;
    assert_false(err_set(&e, ERR_NOT_FOUND, "no %s %d", "step", 7));
    assert_int_equal(e.code, ERR_NOT_FOUND);
    assert_string_equal(e.message, "no step 7");
    assert_string_equal(e.details, "");
    assert_false(err_set(&e, ERR_INTERNAL, "while loading: %s",
                         e.message)); /* its own message as an argument */
    assert_string_equal(e.message, "while loading: no step 7");
}

static void cuts_at_characters(void **state)
{
    static const struct {
        const char *unit; /* repeated until far too long */
        size_t bytes;
    } cases[] = {{"x", 1}, {"\u00e9", 2}, {"\u20ac", 3}, {"\U0001f600", 4}};

    (void)state;
    for (size_t i = 0; i < COUNT(cases); i++) {
        for (int lead = 0; lead < 4; lead++) { /* each offset of the character to the cut */
            struct buf text = {0};
            struct err e;
            for (int j = 0; j < lead; j++)
                buf_add_byte(&text, '-');
            while (text.n < 2 * ERR_MESSAGE_MAX)
                buf_add_z(&text, cases[i].unit);
            buf_add_byte(&text, '\0');
            (void)err_set(&e, ERR_VALIDATION, "%s", text.p);
            size_t n = strlen(e.message), room = ERR_MESSAGE_MAX - 1 - (size_t)lead;
            CHECKF(n == (size_t)lead + room / cases[i].bytes * cases[i].bytes,
                   "case %zu, lead %d: %zu", i, lead, n);
            CHECKF(str_is_utf8(str_of(e.message)), "case %zu, lead %d", i, lead);
            CHECKF(memcmp(e.message, text.p, n) == 0, "case %zu, lead %d", i, lead);
            buf_free(&text);
        }
    }
}

static void names_are_the_wire_s(void **state)
{
    static const struct {
        enum err_code code;
        const char *name;
    } cases[] = {
        {ERR_VALIDATION, "validation_error"},
        {ERR_UNAUTHORIZED, "unauthorized"},
        {ERR_FORBIDDEN, "forbidden"},
        {ERR_NOT_FOUND, "not_found"},
        {ERR_METHOD_NOT_ALLOWED, "method_not_allowed"},
        {ERR_CONFLICT, "conflict"},
        {ERR_LEASE_SUPERSEDED, "lease_superseded"},
        {ERR_EXECUTION_TERMINAL, "execution_terminal"},
        {ERR_PAYLOAD_TOO_LARGE, "payload_too_large"},
        {ERR_INTERNAL, "internal_error"},
        {ERR_UNAVAILABLE, "unavailable"},
    };

    (void)state;
    for (size_t i = 0; i < COUNT(cases); i++)
        assert_string_equal(err_code_name(cases[i].code), cases[i].name);
}

static void assert_logs_and_aborts(void **state)
{
    int out[2];
    char text[512];

    (void)state;
    assert_int_equal(pipe(out), 0);
    pid_t child = fork();
    if (child == 0) {
        dup2(out[1], STDERR_FILENO);
        signal(SIGABRT, SIG_DFL); /* cmocka's and the sanitizers' handlers would speak too */
        int two = 2;
        ASSERT(two == 2);
        ASSERT(two == 3);
        _exit(0);
    }
    close(out[1]);
    ssize_t n = read(out[0], text, sizeof text);
    close(out[0]);
    int status;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT);
    assert_true(n > 0);
    struct str line = {text, (size_t)n};
    CHECKF(memmem(line.p, line.n, "assert.failed expr=\"two == 3\"", 29) != NULL, "%.*s",
           STR_ARG(line));
    CHECKF(memmem(line.p, line.n, "err_test.c", 10) != NULL, "%.*s", STR_ARG(line));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sets),
        cmocka_unit_test(cuts_at_characters),
        cmocka_unit_test(names_are_the_wire_s),
        cmocka_unit_test(assert_logs_and_aborts),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
