/* SPDX-License-Identifier: Apache-2.0
 * The engine on both databases: buckets that several kernels want, approvals that run out. */
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include <cmocka.h>

#include "support/engine_bench.h"
#include "support/postgres_cluster.h"
#include "support/store_both.h"

/* ---- buckets ---- */

/* Steps that want one bucket or another, beside each other and in other orders on two kernels: none
 * is held up by a deadlock. */
static void buckets_are_locked_in_one_order(void **state)
{
    enum { N = 16, ROUNDS = 20 };
    static const char *const WANTED[] = {"shared", "common", "each"};
    static struct job jobs[2][N];
    struct bench a, b;

    bench_open(&a, state, 2 * N);
    bench_beside(&b, &a);
    for (size_t round = 0; round < ROUNDS; round++) {
        for (size_t i = 0; i < N; i++) {
            bench_step(&a, &jobs[0][i], &a.runs[i], WANTED[i % 3]);
            if (b.en != NULL)
                bench_step(&b, &jobs[1][i], &a.runs[2 * N - 1 - i], WANTED[(N - i) % 3]);
        }
        WAIT_FOR(&a, a.n_done == (round + 1) * N);
        if (b.en != NULL)
            WAIT_FOR(&b, b.n_done == (round + 1) * N);
        for (size_t i = 0; i < N; i++) {
            assert_int_equal(jobs[0][i].cmd.out.step.decision, DECISION_PROCEED);
            job_free(&jobs[0][i]);
            if (b.en != NULL)
                job_free(&jobs[1][i]);
        }
    }
    assert_int_equal(atomic_load(&engine_stats(a.en)->limit_passed), N * ROUNDS);
    if (b.en != NULL)
        assert_string_equal(
            postgres_cluster_query(
                a.f.url,
                "SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()"),
            "0");
    bench_leave(&b);
    bench_close(&a);
}

/* ---- approvals ---- */

static struct approval_view approval(struct bench *b, const struct uuid *id)
{
    struct approval_view v;
    struct err e;
    bool found;

    assert_true(store_read_approval(b->f.r, id, &b->f.arena, &v, &found, &e));
    assert_true(found);
    return v;
}

static struct uuid open_approval(struct bench *b, size_t run)
{
    struct uuid id;
    struct job job;
    size_t done = b->n_done;

    bench_step(b, &job, &b->runs[run], "soon");
    WAIT_FOR(b, b->n_done == done + 1);
    assert_int_equal(job.cmd.verdict, VERDICT_DONE);
    assert_int_equal(job.cmd.out.step.decision, DECISION_BLOCKED);
    assert_true(job.cmd.out.step.has_approval);
    id = job.cmd.out.step.approval_id;
    job_free(&job);
    return id;
}

/* Until it has run out; returns how long after its time that was seen. Never before it. */
static int64_t wait_expired(struct bench *b, const struct uuid *id)
{
    int64_t until = clock_mono_us() + PATIENCE_US, now;
    struct approval_view v;

    do {
        v = approval(b, id);
        now = clock_wall_us();
        CHECKF(str_eq(v.status, STR("pending")) || now >= v.timeout_at, "%lld us too early",
               (long long)(v.timeout_at - now));
    } while (!str_eq(v.status, STR("expired")) && clock_mono_us() < until);
    CHECK_STR(v.status, STR("expired"));
    return now - v.timeout_at;
}

/* Counters follow the commit. */
static void wait_counted(struct bench *b, uint64_t expired)
{
    int64_t until = clock_mono_us() + PATIENCE_US;

    while (atomic_load(&engine_stats(b->en)->expired) < expired && clock_mono_us() < until)
        ;
    assert_int_equal(atomic_load(&engine_stats(b->en)->expired), expired);
}

/* Within a second of its time, by the timer: a machine that is busy may miss that once or twice, a
 * clock that only looks now and then misses it often. */
static void approvals_run_out(void **state)
{
    enum { TRIES = 4 };
    size_t in_time = 0, n = 0;
    struct bench b;

    bench_open(&b, state, TRIES);
    for (; n < TRIES && in_time < 2; n++) { /* the clock has slept before the second */
        struct uuid id = open_approval(&b, n);
        struct approval_view v = approval(&b, &id);

        assert_int_equal(v.timeout_at - v.created_at, 100 * US_PER_MS);
        in_time += wait_expired(&b, &id) < US_PER_S;
    }
    assert_int_equal(in_time, 2);
    wait_counted(&b, n);
    assert_int_equal(atomic_load(&engine_stats(b.en)->held), n);
    bench_close(&b);
}

static void approvals_ran_out_while_nobody_was_there(void **state)
{
    struct uuid id;
    struct approval_view v;
    int64_t until;
    struct bench b;

    bench_open(&b, state, 1);
    id = open_approval(&b, 0);
    v = approval(&b, &id);
    bench_engine_down(&b);
    for (until = clock_mono_us() + PATIENCE_US;
         clock_wall_us() <= v.timeout_at && clock_mono_us() < until;)
        ;
    bench_engine_up(&b);
    (void)wait_expired(&b, &id);
    bench_close(&b);
}

/* The kernel that opens it is not the one whose clock looks. */
static void approvals_of_another_kernel_run_out(void **state)
{
    struct uuid id;
    struct bench a, b;

    bench_open(&a, state, 1);
    for (int64_t until = clock_mono_us() + PATIENCE_US;
         !store_leads(a.f.store) && clock_mono_us() < until;)
        ;
    assert_true(store_leads(a.f.store));
    bench_beside(&b, &a);
    assert_false(store_leads(b.f.store));
    id = open_approval(&b, 0);
    (void)wait_expired(&a, &id);
    wait_counted(&a, 1);
    wait_counted(&b, 0);
    bench_leave(&b);
    bench_close(&a);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        ON_BOTH(buckets_are_locked_in_one_order),
        ON_BOTH(approvals_run_out),
        ON_BOTH(approvals_ran_out_while_nobody_was_there),
        ON_POSTGRES(approvals_of_another_kernel_run_out),
    };

    return cmocka_run_group_tests_name("engine gates", tests, NULL, NULL);
}
