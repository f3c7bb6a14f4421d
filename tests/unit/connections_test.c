/* SPDX-License-Identifier: Apache-2.0
 * How connections are divided. */
#include "support/check.h"

#include "engine/connections.h"

static const unsigned CORES[] = {1, 2, 3, 4, 8, 16, 17, 200};

static void nothing_is_left_and_nobody_goes_without(void **state)
{
    (void)state;
    for (size_t i = 0; i < COUNT(CORES); i++) {
        for (unsigned max = CONNECTIONS_LEAST; max <= 1000; max++) {
            struct connections c = connections_divide(max, CORES[i]);

            CHECKF(connections_total(&c) == max, "%u on %u cores", max, CORES[i]);
            CHECKF(c.executors > 0 && c.readers > 0 && c.small_forks > 0 && c.large_forks > 0,
                   "%u on %u cores", max, CORES[i]);
            CHECKF(c.small_forks <= FORKS_MAX && c.large_forks <= FORKS_MAX, "%u on %u cores", max,
                   CORES[i]);
        }
    }
}

static void more_never_takes_from_anybody(void **state)
{
    (void)state;
    for (size_t i = 0; i < COUNT(CORES); i++) {
        struct connections before = connections_divide(CONNECTIONS_LEAST, CORES[i]);

        for (unsigned max = CONNECTIONS_LEAST + 1; max <= 100; max++) {
            struct connections c = connections_divide(max, CORES[i]);

            CHECKF(c.executors >= before.executors && c.readers >= before.readers &&
                       c.small_forks >= before.small_forks && c.large_forks >= before.large_forks,
                   "%u on %u cores", max, CORES[i]);
            before = c;
        }
    }
}

static void by_cores(void **state)
{
    static const struct {
        unsigned cores, executors; /* with that of forks */
    } cases[] = {{1, 3}, {2, 3}, {3, 3}, {4, 3}, {8, 5}, {16, 9}, {17, 9}, {200, 9}};

    (void)state;
    for (size_t i = 0; i < COUNT(cases); i++) {
        struct connections c = connections_divide(0, cases[i].cores);
        struct connections same = connections_divide(connections_total(&c), cases[i].cores);

        CHECKF(c.executors == cases[i].executors, "%u cores", cases[i].cores);
        assert_int_equal(c.readers, 4);
        assert_int_equal(c.small_forks, 2);
        assert_int_equal(c.large_forks, 2);
        CHECKF(connections_total(&c) == cases[i].executors + 15, "%u cores", cases[i].cores);
        CHECKF(memcmp(&c, &same, sizeof(c)) == 0, "the same number by hand: %u cores",
               cases[i].cores);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(nothing_is_left_and_nobody_goes_without),
        cmocka_unit_test(more_never_takes_from_anybody),
        cmocka_unit_test(by_cores),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
