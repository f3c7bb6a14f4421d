/* SPDX-License-Identifier: Apache-2.0
 * The readers' queue: a job that is tried again, beside others, and at the end. */
#include "support/check.h"

#include "api/reader.h"
#include "base/clock.h"
#include "support/store_fixture.h"

#include <pthread.h>
#include <stdatomic.h>

struct tried {
    struct read_job job; /* first */
    struct readers *readers;
    int wanted; /* runs before it is content */
    atomic_int runs, refused, without;
    atomic_bool done;
};

static void try_again(struct read_job *job, struct store_reader *r, const struct err *why)
{
    struct tried *t = (struct tried *)job;
    int runs = atomic_fetch_add(&t->runs, 1) + 1;

    if (r == NULL) {
        atomic_fetch_add(&t->without, 1);
        assert_int_equal(why->code, ERR_UNAVAILABLE);
    }
    if (runs < t->wanted && readers_retry(t->readers, job))
        return;
    if (runs < t->wanted)
        atomic_fetch_add(&t->refused, 1);
    atomic_store(&t->done, true);
}

static void wait_until(atomic_bool *flag)
{
    struct timespec moment = {.tv_nsec = 1000000};
    int64_t until = clock_mono_us() + 20 * US_PER_S;

    while (!atomic_load(flag) && clock_mono_us() < until)
        nanosleep(&moment, NULL);
    assert_true(atomic_load(flag));
}

static void tried_again_after_a_moment(void **state)
{
    struct fixture f;
    struct tried again = {.job.run = try_again, .wanted = 3};
    struct tried other = {.job.run = try_again, .wanted = 1};
    int64_t begun;
    struct err e;

    (void)state;
    fixture_open(&f, FIXTURE_MEMORY);
    struct readers *rs = readers_new(f.store, 1);
    again.readers = other.readers = rs;
    assert_true(readers_start(rs, &e));
    begun = clock_mono_us();
    readers_push(rs, &again.job);
    readers_push(rs, &other.job);
    wait_until(&other.done); /* it does not stand behind the one that waits */
    wait_until(&again.done);
    assert_int_equal(atomic_load(&again.runs), 3);
    assert_int_equal(atomic_load(&again.without), 0);
    assert_true(clock_mono_us() - begun >= 150 * US_PER_MS); /* it did not spin */
    readers_stop(rs);
    readers_free(rs);
    fixture_close(&f);
}

static void not_beyond_the_end(void **state)
{
    struct fixture f;
    struct tried again = {.job.run = try_again, .wanted = 1000};
    struct tried late = {.job.run = try_again, .wanted = 2};
    struct err e;

    (void)state;
    fixture_open(&f, FIXTURE_MEMORY);
    struct readers *rs = readers_new(f.store, 1);
    again.readers = late.readers = rs;
    assert_true(readers_start(rs, &e));
    readers_push(rs, &again.job);
    readers_stop(rs); /* returns at once, and nothing is left in the queue */
    assert_true(atomic_load(&again.done));
    assert_int_equal(atomic_load(&again.refused), 1);
    readers_push(rs, &late.job);
    assert_int_equal(atomic_load(&late.without), 1);
    assert_int_equal(atomic_load(&late.refused), 1);
    readers_free(rs);
    fixture_close(&f);
}

struct stuck {
    struct read_job job; /* first */
    atomic_bool begun, release, done;
};

static void wait_for_release(struct read_job *job, struct store_reader *r, const struct err *why)
{
    struct stuck *s = (struct stuck *)job;

    (void)r;
    (void)why;
    atomic_store(&s->begun, true);
    wait_until(&s->release);
    atomic_store(&s->done, true);
}

static void an_end_that_does_not_wait_for_ever(void **state)
{
    struct fixture f;
    struct stuck stuck = {.job.run = wait_for_release};
    struct tried behind = {.job.run = try_again, .wanted = 1};
    struct err e;

    (void)state;
    fixture_open(&f, FIXTURE_MEMORY);
    struct readers *rs = readers_new_aside(f.store);
    assert_true(readers_start(rs, &e));
    readers_push(rs, &stuck.job);
    readers_push(rs, &behind.job); /* there is one thread */
    wait_until(&stuck.begun);
    assert_false(readers_stop_by(rs, clock_mono_us()));
    assert_false(atomic_load(&behind.done));
    atomic_store(&stuck.release, true);
    readers_stop(rs);
    assert_true(atomic_load(&stuck.done));
    assert_true(atomic_load(&behind.done));
    readers_free(rs);
    fixture_close(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(tried_again_after_a_moment),
        cmocka_unit_test(not_beyond_the_end),
        cmocka_unit_test(an_end_that_does_not_wait_for_ever),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
