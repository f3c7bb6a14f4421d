/* SPDX-License-Identifier: Apache-2.0
 * RE2 behind its C interface. */
#include "support/check.h"

#include <pthread.h>
#include <stdlib.h>

#include "policy/regex.h"

static struct regex *must_compile(const char *pattern)
{
    char why[64] = "";
    struct regex *re = regex_new(pattern, strlen(pattern), why, sizeof why);

    CHECKF(re != NULL, "%s: %s", pattern, why);
    return re;
}

static void finds_patterns(void **state)
{
    static const struct {
        const char *pattern;
        struct str text;
        bool found;
    } cases[] = {
        {"b", STR_INIT("abc"), true}, /* anywhere */
        {"^b", STR_INIT("abc"), false},
        {"^abc$", STR_INIT("abc"), true},
        {"^abc$", STR_INIT("abc\n"), false}, /* $ is the end, not before a last line feed */
        {"^b", STR_INIT("a\nb"), false},     /* ^ is the beginning, not of a line */
        {"(?m)^b", STR_INIT("a\nb"), true},
        {"a.b", STR_INIT("a\nb"), false},
        {"(?s)a.b", STR_INIT("a\nb"), true},
        {"(?i)DROP", STR_INIT("drop"), true},
        {"DROP", STR_INIT("drop"), false},
        {"", STR_INIT(""), true},
        {"a*", STR_INIT(""), true},
        {"\\bcat\\b", STR_INIT("a cat."), true},
        {"\\bcat\\b", STR_INIT("concat"), false},
        {"^.$", STR_INIT("\xf0\x9f\x98\x80"), true}, /* characters, not bytes */
        {"\\pL", STR_INIT("\xc3\xa9"), true},
        {"a\\x00b", STR_INIT("a\0b"), true},
        {"^(a|b)+$", STR_INIT("abba"), true},
    };

    (void)state;
    for (size_t i = 0; i < COUNT(cases); i++) {
        struct regex *re = must_compile(cases[i].pattern);
        CHECKF(regex_found(re, cases[i].text.p, cases[i].text.n, &(bool){false}) == cases[i].found,
               "%s on %.*s", cases[i].pattern, STR_ARG(cases[i].text));
        regex_free(re);
    }
}

static void refuses_patterns(void **state)
{
    static const struct {
        struct str pattern;
        const char *why;
    } cases[] = {
        {STR_INIT("("), "missing ): ("},
        {STR_INIT("["), "missing ]: ["},
        {STR_INIT("*"), "no argument for repetition operator: *"},
        {STR_INIT("a**"), "bad repetition operator: **"},
        {STR_INIT("\\"), "trailing \\"},
        {STR_INIT("(?<=a)b"), "invalid perl operator: (?<"},
        {STR_INIT("(a)\\1"), "invalid escape sequence: \\1"},
        {STR_INIT("\xff"), "invalid UTF-8"},
        {STR_INIT("((a{100}){100}){100}"), "invalid repetition size: {100}"},
        {STR_INIT("(\\pL{200}\\pN{200}){2}"), "pattern too large - compile failed"},
    };
    char why[64];

    (void)state;
    for (size_t i = 0; i < COUNT(cases); i++) {
        CHECKF(regex_new(cases[i].pattern.p, cases[i].pattern.n, why, sizeof why) == NULL, "%.*s",
               STR_ARG(cases[i].pattern));
        CHECKF(strncmp(why, cases[i].why, strlen(cases[i].why)) == 0, "%s", why);
    }
    assert_null(regex_new("(", 1, why, 5));
    assert_string_equal(why, "miss");
    regex_free(NULL);
}

/* A backtracking matcher takes 2^30 steps and more on each of these; here the test simply ends. */
static void stays_linear(void **state)
{
    enum { LENGTH = 100 * 1024 };
    static const char *const patterns[] = {"(x+x+)+y", "(a|a)*b", "(a*)*b", "^(a+)+$b",
                                           "(.*)(.*)(.*)(.*)(.*)z"};
    char *text = malloc(LENGTH);

    (void)state;
    for (size_t i = 0; i < COUNT(patterns); i++) {
        struct regex *re = must_compile(patterns[i]);
        memset(text, patterns[i][1] == 'x' ? 'x' : 'a', LENGTH);
        assert_false(regex_found(re, text, LENGTH, &(bool){false}));
        regex_free(re);
    }
    free(text);
}

/* Neither the stack nor the clock runs out on them; whether RE2 takes them is its own affair. */
static void bears_hostile_patterns(void **state)
{
    static const struct {
        const char *head, *unit, *middle, *tail;
        size_t times;
    } cases[] = {
        {"", "(", "a", ")", 100000},        {"", "(a", "", ")*", 900},
        {"", "(a+)+", "", "", 20000},       {"", "a|", "a", "", 50000},
        {"", "\\b", "a", "", 50000},        {"", "a*", "", "", 50000},
        {"", "(a{0,1000})", "", "", 100},   {"", "[", "a", "]", 100000},
        {"(?i)", "abcdefgh", "", "", 5000}, {"", "(?:", "a", "){30}", 50},
    };
    char why[64];

    (void)state;
    for (size_t i = 0; i < COUNT(cases); i++) {
        struct buf pattern = {0};

        buf_add_z(&pattern, cases[i].head);
        for (size_t j = 0; j < cases[i].times; j++)
            buf_add_z(&pattern, cases[i].unit);
        buf_add_z(&pattern, cases[i].middle);
        for (size_t j = 0; j < cases[i].times; j++)
            buf_add_z(&pattern, cases[i].tail);
        struct regex *re = regex_new(pattern.p, pattern.n, why, sizeof why);
        if (re != NULL)
            (void)regex_found(re, "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa!", 34, &(bool){false});
        regex_free(re);
        buf_free(&pattern);
    }
}

static void size_grows_with_the_pattern(void **state)
{
    struct regex *small = must_compile("^/tmp/"), *large = must_compile("([a-z]+,){50}x");

    (void)state;
    assert_true(regex_size(small) > 0 && regex_size(small) < 20);
    assert_true(regex_size(large) > 100);
    regex_free(small);
    regex_free(large);
}

static void *search(void *arg)
{
    const struct regex *re = arg;
    char text[64];

    for (int i = 0; i < 2000; i++) {
        int n = snprintf(text, sizeof text, "line %d of %d", i, i * i);
        if (regex_found(re, text, (size_t)n, &(bool){false}) != (i % 10 == 7))
            return arg; /* anything but NULL */
    }
    return NULL;
}

/* Threads build a pattern's states together. */
static void threads_share_a_pattern(void **state)
{
    struct regex *re = must_compile("^line [0-9]*7 of");
    pthread_t threads[4];
    void *wrong;

    (void)state;
    for (size_t i = 0; i < COUNT(threads); i++)
        assert_int_equal(pthread_create(&threads[i], NULL, search, re), 0);
    for (size_t i = 0; i < COUNT(threads); i++) {
        pthread_join(threads[i], &wrong);
        assert_null(wrong);
    }
    regex_free(re);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(finds_patterns),
        cmocka_unit_test(refuses_patterns),
        cmocka_unit_test(stays_linear),
        cmocka_unit_test(bears_hostile_patterns),
        cmocka_unit_test(size_grows_with_the_pattern),
        cmocka_unit_test(threads_share_a_pattern),
    };

    return cmocka_run_group_tests_name("policy_regex", tests, NULL, NULL);
}
