/* SPDX-License-Identifier: Apache-2.0 */
#include "base/uuid.h"

#include "support/check.h"

#include <sys/wait.h>
#include <unistd.h>

static int64_t ms_of(const struct uuid *u)
{
    int64_t ms = 0;

    for (size_t i = 0; i < 6; i++)
        ms = ms << 8 | u->b[i];
    return ms;
}

static void is_version_7(void **state)
{
    struct uuid_gen g = {0};

    (void)state;
    for (int64_t i = 0; i < 1000; i++) {
        int64_t now_us = INT64_C(1767323045678901) + i * 1000;
        struct uuid u = uuid_next(&g, now_us);
        assert_int_equal(ms_of(&u), now_us / 1000);
        assert_int_equal(u.b[6] >> 4, 7);
        assert_int_equal(u.b[8] >> 6, 2);
    }
}

static void increases(void **state)
{
    struct prng r;
    struct uuid_gen gens[2] = {{0}, {.random = &r}};

    (void)state;
    prng_seed(&r, 4);
    for (size_t k = 0; k < COUNT(gens); k++) {
        int64_t now_us = INT64_C(1700000000000000);
        struct uuid last = {{0}};
        for (int i = 0; i < 200000; i++) {
            /* Stands still long enough to use up the counter, runs, and steps back by up to a
             * second. */
            if (i % 10000 == 0)
                now_us += (int64_t)prng_below(&r, 5000000) - 1000000;
            else if (i / 10000 % 2 == 1)
                now_us += (int64_t)prng_below(&r, 1000);
            struct uuid u = uuid_next(&gens[k], now_us);
            if (memcmp(&last, &u, sizeof u) >= 0)
                CHECKF(false, "generator %zu, id %d is not greater than the one before", k, i);
            last = u;
        }
    }
}

static void runs_ahead_only_when_the_counter_is_full(void **state)
{
    struct uuid_gen g = {0};
    const int64_t now_us = INT64_C(1700000000000000);

    (void)state;
    for (int i = 0; i < 2048; i++) { /* a new millisecond leaves room for as many */
        struct uuid u = uuid_next(&g, now_us);
        assert_int_equal(ms_of(&u), now_us / 1000);
    }
    for (int i = 0; i < 2048; i++)
        (void)uuid_next(&g, now_us);
    assert_int_equal(g.last_ms, now_us / 1000 + 1);
    struct uuid u = uuid_next(&g, now_us + 10000);
    assert_int_equal(ms_of(&u), now_us / 1000 + 10);
}

static void is_reproducible_with_a_prng(void **state)
{
    struct prng r1, r2;
    struct uuid_gen g1 = {.random = &r1}, g2 = {.random = &r2};

    (void)state;
    prng_seed(&r1, 5);
    prng_seed(&r2, 5);
    for (int64_t i = 0; i < 100; i++) {
        struct uuid a = uuid_next(&g1, i * 700), b = uuid_next(&g2, i * 700);
        assert_true(uuid_eq(&a, &b));
    }
}

static void a_forked_child_has_ids_of_its_own(void **state)
{
    struct uuid_gen g = {0};
    int out[2];
    struct uuid child_id;

    (void)state;
    (void)uuid_next(&g, 1000); /* stocks random bytes, if such a stock is kept */
    assert_int_equal(pipe(out), 0);
    pid_t child = fork();
    if (child == 0) {
        struct uuid u = uuid_next(&g, 2000000);
        _exit(write(out[1], &u, sizeof u) == (ssize_t)sizeof u ? 0 : 1);
    }
    struct uuid id = uuid_next(&g, 2000000);
    assert_int_equal(read(out[0], &child_id, sizeof child_id), sizeof child_id);
    assert_false(uuid_eq(&id, &child_id));
    int status;
    assert_int_equal(waitpid(child, &status, 0), child);
    close(out[0]);
    close(out[1]);
}

static void survives_mad_clocks(void **state)
{
    static const int64_t clocks[] = {INT64_MIN, -1, 0, INT64_MAX};

    (void)state;
    for (size_t i = 0; i < COUNT(clocks); i++) {
        struct uuid_gen g = {0};
        struct uuid a = uuid_next(&g, clocks[i]), b = uuid_next(&g, clocks[i]);
        CHECKF(memcmp(&a, &b, sizeof a) < 0, "clock %zu", i);
        CHECKF(a.b[6] >> 4 == 7 && b.b[6] >> 4 == 7, "clock %zu", i);
    }
}

static void parses_and_formats(void **state)
{
    static const struct {
        struct str s;
        bool ok;
    } cases[] = {
        {STR_INIT("0192f1a0-0000-7000-8000-0123456789ab"), true},
        {STR_INIT("0192F1A0-0000-7000-8000-0123456789AB"), true},
        {STR_INIT("00000000-0000-0000-0000-000000000000"), true},
        {STR_INIT("ffffffff-ffff-ffff-ffff-ffffffffffff"), true},
        {STR_INIT("0192f1a0-0000-7000-8000-0123456789a"), false},
        {STR_INIT("0192f1a0-0000-7000-8000-0123456789abc"), false},
        {STR_INIT("0192f1a000007000800000123456789abcdef"), false},
        {STR_INIT("0192f1a00-000-7000-8000-0123456789ab"), false},
        {STR_INIT("0192f1a0-0000-7000-8000-0123456789ag"), false},
        {STR_INIT("{192f1a0-0000-7000-8000-0123456789a}"), false},
        {STR_INIT("0192f1a0-0000-7000-8000-01234567 9ab"), false},
        {STR_INIT("0192f1a0-0000-7000-8000_0123456789ab"), false},
        {STR_INIT("0192f1a0-0000-7000-8000-0123456789\xc3\xa9"), false},
        {STR_INIT("0192f1a0-0000-7000-8000-0123456789`b"), false},
        {STR_INIT("0192f1a0-0000-7000-8000-0123456789@b"), false},
        {STR_INIT("0192f1a0-0000-7000-8000-0123456789:b"), false},
        {STR_INIT("0192f1a0-0000-7000-8000-0123456789/b"), false},
        {STR_INIT(""), false},
    };

    (void)state;
    for (size_t i = 0; i < COUNT(cases); i++) {
        struct uuid u;
        char text[UUID_TEXT_LEN];
        CHECKF(uuid_parse(cases[i].s, &u) == cases[i].ok, "%.*s", STR_ARG(cases[i].s));
        if (!cases[i].ok)
            continue;
        uuid_format(&u, text);
        CHECKF(str_eq_nocase(str_make(text, sizeof text), cases[i].s), "%.*s", STR_ARG(cases[i].s));
        for (size_t j = 0; j < sizeof text; j++)
            assert_false(text[j] >= 'A' && text[j] <= 'Z');
    }
    struct uuid u;
    static const uint8_t bytes[] = {0x01, 0x92, 0xf1, 0xa0, 0,    0,    0x70, 0,
                                    0x80, 0,    0x01, 0x23, 0x45, 0x67, 0x89, 0xab};
    assert_true(uuid_parse(cases[0].s, &u));
    assert_memory_equal(u.b, bytes, sizeof bytes);
    assert_false(uuid_is_nil(&u));
    assert_true(uuid_parse(cases[2].s, &u));
    assert_true(uuid_is_nil(&u));
    assert_false(uuid_parse(STR_NONE, &u));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(is_version_7),
        cmocka_unit_test(increases),
        cmocka_unit_test(runs_ahead_only_when_the_counter_is_full),
        cmocka_unit_test(is_reproducible_with_a_prng),
        cmocka_unit_test(a_forked_child_has_ids_of_its_own),
        cmocka_unit_test(survives_mad_clocks),
        cmocka_unit_test(parses_and_formats),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
