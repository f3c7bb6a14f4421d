/* SPDX-License-Identifier: Apache-2.0
 * Token buckets: by hand, and against a simulation that counts tokens one by one. */
#include "support/check.h"

#include <stdlib.h>

#include "policy/bucket.h"

#define US_PER_S INT64_C(1000000)

__extension__ typedef __int128 wide;

static const int64_t NOW = INT64_C(1800000000000000);

static struct rate_limit limit_of(int64_t max_calls, int64_t window_us, int64_t max_wait_us)
{
    return (struct rate_limit){
        .set = true, .max_calls = max_calls, .window_us = window_us, .max_wait_us = max_wait_us};
}

static void gives_exactly_max_calls_at_once(void **state)
{
    static const struct {
        int64_t max_calls, window_us;
    } cases[] = {
        {1, US_PER_S},         {3, US_PER_S},      {7, US_PER_S},
        {1001, US_PER_S},      {3000, US_PER_S},   {5, 60000000},
        {700000, 1000000},     {1, INT64_MAX / 2}, {1, 1},
        {60, 3600 * US_PER_S}, {11, 17},           {13, US_PER_S},
        {99999, 7 * US_PER_S},
    };
    int64_t until;

    (void)state;
    for (size_t i = 0; i < COUNT(cases); i++) {
        struct rate_limit limit = limit_of(cases[i].max_calls, cases[i].window_us, 0);
        int64_t full_at = 0, taken = 0;

        while (bucket_take(&limit, NOW, &full_at, &until) == BUCKET_TAKEN)
            taken++;
        CHECKF(taken == limit.max_calls, "case %zu: %lld", i, (long long)taken);
        CHECKF(full_at == NOW + limit.window_us, "case %zu", i); /* empty: full in one window */
        assert_false(bucket_has_token(&limit, NOW, full_at));
    }
}

static void refills_with_time(void **state)
{
    struct rate_limit limit = limit_of(5, 10 * US_PER_S, 0); /* one in two seconds */
    int64_t full_at = 0, until;

    (void)state;
    for (int i = 0; i < 5; i++)
        assert_int_equal(bucket_take(&limit, NOW, &full_at, &until), BUCKET_TAKEN);
    int64_t before = full_at;
    assert_int_equal(bucket_take(&limit, NOW + 1999999, &full_at, &until), BUCKET_REFUSED);
    assert_int_equal(full_at, before); /* a refusal takes nothing */
    assert_false(bucket_has_token(&limit, NOW + 1999999, full_at));
    assert_true(bucket_has_token(&limit, NOW + 2000000, full_at));
    assert_int_equal(bucket_take(&limit, NOW + 2000000, &full_at, &until), BUCKET_TAKEN);
    assert_int_equal(bucket_take(&limit, NOW + 2000000, &full_at, &until), BUCKET_REFUSED);
    /* however long nobody comes, it holds five */
    for (int i = 0; i < 5; i++)
        assert_int_equal(bucket_take(&limit, NOW + 3600 * US_PER_S, &full_at, &until),
                         BUCKET_TAKEN);
    assert_int_equal(bucket_take(&limit, NOW + 3600 * US_PER_S, &full_at, &until), BUCKET_REFUSED);
}

/* Who waits takes the token in advance, so that later ones wait behind. */
static void waits_in_order(void **state)
{
    struct rate_limit limit = limit_of(2, 10 * US_PER_S, 12 * US_PER_S); /* one in five seconds */
    int64_t full_at = 0, until = 0;

    (void)state;
    assert_int_equal(bucket_take(&limit, NOW, &full_at, &until), BUCKET_TAKEN);
    assert_int_equal(bucket_take(&limit, NOW, &full_at, &until), BUCKET_TAKEN);
    assert_int_equal(bucket_take(&limit, NOW, &full_at, &until), BUCKET_WAIT);
    assert_int_equal(until, NOW + 5 * US_PER_S);
    assert_int_equal(bucket_take(&limit, NOW, &full_at, &until), BUCKET_WAIT);
    assert_int_equal(until, NOW + 10 * US_PER_S);
    assert_int_equal(bucket_take(&limit, NOW, &full_at, &until), BUCKET_REFUSED); /* 15 s */
    /* three seconds later the wait is 12 s */
    assert_int_equal(bucket_take(&limit, NOW + 3 * US_PER_S, &full_at, &until), BUCKET_WAIT);
    assert_int_equal(until, NOW + 15 * US_PER_S);
    /* nobody overtakes: the two who wait have the next two tokens */
    assert_int_equal(bucket_take(&limit, NOW + 5 * US_PER_S, &full_at, &until), BUCKET_REFUSED);
    assert_false(bucket_has_token(&limit, NOW + 15 * US_PER_S, full_at));
    assert_true(bucket_has_token(&limit, NOW + 20 * US_PER_S, full_at));
}

static void bears_extremes(void **state)
{
    static const int64_t numbers[] = {1, 2, 999, US_PER_S, INT64_MAX / 1000, INT64_MAX};
    int64_t until;

    (void)state;
    for (size_t i = 0; i < COUNT(numbers); i++) {
        for (size_t j = 0; j < COUNT(numbers); j++) {
            int64_t window = numbers[j] > INT64_MAX / 1000 ? INT64_MAX / 1000 : numbers[j];
            struct rate_limit limit = limit_of(numbers[i], window, INT64_MAX / 1000);
            int64_t full_at = 0, last = 0;
            for (int k = 0; k < 50; k++) {
                until = NOW;
                if (bucket_take(&limit, NOW, &full_at, &until) == BUCKET_REFUSED)
                    break;
                assert_true(full_at >= last && until >= NOW);
                last = full_at;
            }
        }
    }
}

/* A clock that was set back, or a rule whose limit was another, must not lock everybody out. */
static void forgets_debts_that_it_cannot_have_made(void **state)
{
    struct rate_limit limit = limit_of(2, 10 * US_PER_S, 0);
    int64_t full_at = NOW + 86400 * US_PER_S, until;

    (void)state;
    assert_int_equal(bucket_take(&limit, NOW, &full_at, &until), BUCKET_REFUSED);
    assert_true(bucket_has_token(&limit, NOW, NOW + 5 * US_PER_S));
    full_at = NOW - 86400 * US_PER_S; /* full since yesterday is full, not more */
    assert_int_equal(bucket_take(&limit, NOW, &full_at, &until), BUCKET_TAKEN);
    assert_int_equal(bucket_take(&limit, NOW, &full_at, &until), BUCKET_TAKEN);
    assert_int_equal(bucket_take(&limit, NOW, &full_at, &until), BUCKET_REFUSED);
}

/* ---- against a simulation ---- */

/* Counts in parts of a token, window_us of them to one: exact. */
struct naive {
    wide parts; /* negative: in debt */
    int64_t at_us;
};

static enum bucket_answer naive_take(struct naive *b, const struct rate_limit *limit,
                                     int64_t now_us, int64_t *wait_us)
{
    wide full = (wide)limit->max_calls * limit->window_us;

    b->parts += (wide)(now_us - b->at_us) * limit->max_calls;
    if (b->parts > full)
        b->parts = full;
    b->at_us = now_us;
    wide lacking = limit->window_us - b->parts;
    *wait_us = lacking <= 0 ? 0 : (int64_t)((lacking + limit->max_calls - 1) / limit->max_calls);
    if (*wait_us > limit->max_wait_us)
        return BUCKET_REFUSED;
    b->parts -= limit->window_us;
    return *wait_us == 0 ? BUCKET_TAKEN : BUCKET_WAIT;
}

/* Windows that hold a whole number of microseconds a token: then there is nothing to round. */
static void agrees_with_a_simulation(void **state)
{
    (void)state;
    srand(4);
    for (int run = 0; run < 200; run++) {
        int64_t max_calls = 1 + rand() % 20, each = 1 + rand() % 1000000;
        struct rate_limit limit =
            limit_of(max_calls, max_calls * each, rand() % 2 == 0 ? 0 : rand() % 5000000);
        struct naive naive = {(wide)max_calls * limit.window_us, NOW};
        int64_t now = NOW, full_at = 0;

        for (int i = 0; i < 500; i++) {
            int64_t until = now, wait;
            now += rand() % 3 == 0 ? rand() % (2 * each) : 0;
            until = now;
            enum bucket_answer expected = naive_take(&naive, &limit, now, &wait);
            CHECKF(bucket_take(&limit, now, &full_at, &until) == expected, "run %d, call %d", run,
                   i);
            if (expected == BUCKET_WAIT)
                CHECKF(until == now + wait, "run %d, call %d", run, i);
        }
    }
}

/* Others round: over a long time, never more than the limit and what was saved, give or take a
 * microsecond a call. */
static void keeps_the_rate(void **state)
{
    struct rate_limit limit = limit_of(7, US_PER_S, 0);
    int64_t now = NOW, full_at = 0, taken = 0, until;

    (void)state;
    srand(5);
    while (now < NOW + 1000 * US_PER_S) {
        taken += bucket_take(&limit, now, &full_at, &until) == BUCKET_TAKEN;
        now += rand() % 20000;
    }
    CHECKF(taken >= 7000 && taken <= 7008, "%lld", (long long)taken);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(gives_exactly_max_calls_at_once),
        cmocka_unit_test(refills_with_time),
        cmocka_unit_test(waits_in_order),
        cmocka_unit_test(bears_extremes),
        cmocka_unit_test(forgets_debts_that_it_cannot_have_made),
        cmocka_unit_test(agrees_with_a_simulation),
        cmocka_unit_test(keeps_the_rate),
    };

    return cmocka_run_group_tests_name("policy_bucket", tests, NULL, NULL);
}
