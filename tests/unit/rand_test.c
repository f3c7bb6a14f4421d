/* SPDX-License-Identifier: Apache-2.0 */
#include "base/rand.h"

#include "support/check.h"

static void system_bytes_vary(void **state)
{
    unsigned char a[32] = {0}, b[32] = {0};

    (void)state;
    rand_bytes(a, sizeof a);
    rand_bytes(b, sizeof b);
    assert_memory_not_equal(a, b, sizeof a);
    rand_bytes(a, 0);
}

/* The authors' test values: the state {1,2,3,4}, and splitmix64 from 0. */
static void prng_is_xoshiro256starstar(void **state)
{
    static const uint64_t want[] = {11520, 0, 1509978240, UINT64_C(1215971899390074240)};
    static const uint64_t seeded[] = {UINT64_C(0xe220a8397b1dcdaf), UINT64_C(0x6e789e6aa1b965f4),
                                      UINT64_C(0x06c45d188009454f), UINT64_C(0xf88bb8a8724c81ec)};
    struct prng r = {{1, 2, 3, 4}};

    (void)state;
    for (size_t i = 0; i < COUNT(want); i++)
        CHECKF(prng_next(&r) == want[i], "output %zu", i);
    prng_seed(&r, 0);
    assert_memory_equal(r.s, seeded, sizeof seeded);
}

static void below_is_bounded_and_even(void **state)
{
    enum { N = 70000 };
    static const uint64_t bounds[] = {
        1, 2, 3, 7, 1000, UINT64_C(1) << 63, (UINT64_C(1) << 63) + 1, UINT64_MAX};
    struct prng r;
    unsigned counts[7] = {0};

    (void)state;
    prng_seed(&r, 3);
    for (size_t i = 0; i < COUNT(bounds); i++)
        for (int j = 0; j < 1000; j++)
            CHECKF(prng_below(&r, bounds[i]) < bounds[i], "bound %zu", i);
    for (int i = 0; i < N; i++)
        counts[prng_below(&r, 7)]++;
    for (size_t i = 0; i < COUNT(counts);
         i++) /* 10,000 expected, deviation 93: this is five of them */
        CHECKF(counts[i] > 9535 && counts[i] < 10465, "%zu came %u times", i, counts[i]);
    uint64_t high = 0; /* a modulus would give the lower half of this range twice as often */
    uint64_t bound = UINT64_C(3) << 62;
    for (int i = 0; i < N; i++)
        high += prng_below(&r, bound) >= bound / 2;
    CHECKF(high > N / 2 - 700 && high < N / 2 + 700, "%llu in the upper half",
           (unsigned long long)high);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(system_bytes_vary),
        cmocka_unit_test(prng_is_xoshiro256starstar),
        cmocka_unit_test(below_is_bounded_and_even),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
