/* SPDX-License-Identifier: Apache-2.0
 * Rules that tell by tables better than by chance: how deliveries are charged, spaced and given up;
 * what events say and in which order; cancels with many steps. Under a fake clock, on the store in
 * memory, with leases in the set and stored. */
#include "support/check.h"

#include "base/clock.h"
#include "base/json.h"
#include "kernel/event.h"
#include "support/rules_world.h"

#include <stdlib.h>

static void test_order_of_a_plain_run(void **state)
{
    struct world w;
    struct command done = {.type = COMMAND_FINISH};
    struct hash step;

    (void)state;
    world_init(&w, true);
    claim(&w);
    delivered(&w, true);
    step = submit(&w, 1, DECISION_PROCEED);
    settle(&w, &step);
    done.in.finish =
        (struct execution_finish){w.id, STR("a"), lease(&w), false, STR("7"), STR_NONE, STR_NONE};
    decide(&w, &done);
    CHECK_STR(log_types(&w), STR("execution.created execution.started dispatch.queued "
                                 "dispatch.acked step.proposed step.allowed "
                                 "step.executing step.succeeded execution.completed"));
    world_free(&w);
}

static void test_a_call_stands_for_the_ack(void **state)
{
    struct world w;

    (void)state;
    world_init(&w, true);
    claim(&w);
    submit(&w, 1, DECISION_PROCEED);
    delivered(&w, false); /* too late: the agent is at work */
    assert_int_equal(row(&w)->dispatch.status, DISPATCH_ACKED);
    CHECK_STR(
        log_types(&w),
        STR("execution.created execution.started dispatch.queued dispatch.acked step.proposed "
            "step.allowed step.executing"));
    world_free(&w);
}

/* min(1 s * 2^(n-1), 30 s) with full jitter: never later than that, and not always at once. */
static void test_back_off_grows_and_is_bounded(void **state)
{
    static const int64_t most_s[] = {1, 2, 4, 8, 16, 30, 30, 30};

    (void)state;
    for (size_t n = 0; n < COUNT(most_s); n++) {
        int64_t longest = 0;

        for (uint64_t seed = 1; seed <= 60; seed++) {
            struct world w;

            world_init(&w, false);
            prng_seed(&w.random, seed);
            for (size_t i = 0; i <= n; i++) {
                claim(&w);
                delivered(&w, false);
            }
            assert_int_equal(row(&w)->status, EXECUTION_RUNNING); /* ten minutes have not passed */
            if (row(&w)->dispatch.due_at - w.m.wall_us > longest)
                longest = row(&w)->dispatch.due_at - w.m.wall_us;
            world_free(&w);
        }
        CHECKF(longest <= most_s[n] * US_PER_S, "after %zu failures: %lld us", n + 1,
               (long long)longest);
        CHECKF(longest > most_s[n] * US_PER_S / 2, "after %zu failures never over half: %lld us",
               n + 1, (long long)longest);
    }
}

static void test_a_maximum_by_hand_is_kept(void **state)
{
    struct world w;

    (void)state;
    world_init(&w, false);
    w.settings.dispatch_max_attempts = 3;
    w.settings.dispatch_max_attempts_by_hand = true;
    for (int i = 0; i < 3; i++) {
        assert_int_equal(row(&w)->status, EXECUTION_RUNNING);
        claim(&w);
        delivered(&w, false);
    }
    assert_int_equal(row(&w)->status, EXECUTION_FAILED);
    CHECK_STR(
        log_types(&w),
        STR("execution.created execution.started dispatch.queued dispatch.failed dispatch.failed "
            "dispatch.failed execution.failed"));
    world_free(&w);
}

static void test_patience_of_ten_minutes(void **state)
{
    struct world w;
    int64_t began;

    (void)state;
    world_init(&w, false);
    began = w.m.wall_us;
    while (row(&w)->status == EXECUTION_RUNNING) {
        claim(&w);
        pass(&w, US_PER_S);
        delivered(&w, false);
    }
    assert_int_equal(row(&w)->status, EXECUTION_FAILED);
    assert_true(w.m.wall_us - began >= 600 * US_PER_S);
    assert_true(w.m.wall_us - began < 700 * US_PER_S);
    world_free(&w);
}

/* A new step that settles breaks the row of failures; ten times the maximum bounds all of them. */
static void test_progress_is_not_charged_but_bounded(void **state)
{
    struct world w;
    int attempts = 0;

    (void)state;
    world_init(&w, true);
    w.settings.dispatch_max_attempts = 2;
    w.settings.dispatch_max_attempts_by_hand = true;
    while (row(&w)->status == EXECUTION_RUNNING) {
        struct hash step;

        claim(&w);
        delivered(&w, true);
        attempts++;
        for (int i = 1; i < attempts; i++)
            submit(&w, i, DECISION_REPLAY);
        step = submit(&w, attempts, DECISION_PROCEED);
        settle(&w, &step);
        pass(&w, 121 * US_PER_S);
        assert_true(reclaim(&w));
    }
    assert_int_equal(attempts, 20);
    world_free(&w);
}

static void test_release_is_not_charged(void **state)
{
    struct world w;

    (void)state;
    world_init(&w, true);
    w.settings.dispatch_max_attempts = 2;
    w.settings.dispatch_max_attempts_by_hand = true;
    for (int i = 0; i < 6; i++) {
        struct command release = {.type = COMMAND_RELEASE};
        struct lease_ref old;

        claim(&w);
        delivered(&w, true);
        old = lease(&w);
        release.in.lease = (struct lease_call){w.id, STR("a"), old};
        decide(&w, &release);
        assert_int_equal(release.verdict, VERDICT_DONE);
        assert_int_equal(row(&w)->dispatch.due_at, w.m.wall_us); /* delivered again at once */
        decide(&w, &release);                                    /* it owns nothing any more */
        assert_int_equal(release.err.code, ERR_LEASE_SUPERSEDED);
        claim(&w);
        delivered(&w, false); /* nobody is there yet: within the term it does not count */
        assert_int_equal(row(&w)->status, EXECUTION_RUNNING);
    }
    world_free(&w);
}

static void test_leases_end_when_they_should(void **state)
{
    (void)state;
    ON_BOTH(w)
    {
        struct world w;
        struct command beat = {.type = COMMAND_HEARTBEAT};

        world_init(&w, both_ == 0);
        claim(&w);
        delivered(&w, true);
        for (int i = 0; i < 5; i++) {
            pass(&w, 119 * US_PER_S);
            assert_false(reclaim(&w));
            beat.in.lease = (struct lease_call){w.id, STR("a"), lease(&w)};
            decide(&w, &beat);
            assert_int_equal(beat.verdict, VERDICT_DONE);
        }
        pass(&w, 120 * US_PER_S);
        assert_true(reclaim(&w));
        decide(&w, &beat);
        assert_int_equal(beat.err.code, ERR_LEASE_SUPERSEDED);
        world_free(&w);
    }
}

static void test_a_foreign_dispatch_is_told_from_an_old_one(void **state)
{
    struct world w, other;
    struct command beat = {.type = COMMAND_HEARTBEAT};

    (void)state;
    world_init(&w, true);
    world_init(&other, true);
    claim(&w);
    delivered(&w, true);
    beat.in.lease = (struct lease_call){w.id, STR("a"), {{.b = {1, 2, 3}}, 1}};
    decide(&w, &beat);
    assert_int_equal(beat.err.code, ERR_VALIDATION);
    beat.in.lease = (struct lease_call){w.id, STR("b"), lease(&w)};
    decide(&w, &beat);
    assert_int_equal(beat.err.code, ERR_FORBIDDEN);
    beat.in.lease =
        (struct lease_call){w.id, STR("a"), {lease(&w).dispatch_id, 2}}; /* from the future */
    decide(&w, &beat);
    assert_int_equal(beat.err.code, ERR_LEASE_SUPERSEDED);
    world_free(&w);
    world_free(&other);
}

/* A cancel of a thousand running steps: in order of creation, in rows of bounded size, and exactly
 * once each. */
static void test_cancel_of_many_steps(void **state)
{
    (void)state;
    ON_BOTH(w)
    {
        struct world w;
        struct command cancel = {.type = COMMAND_CANCEL};
        struct buf scratch = {0};
        int cancelled = 0;

        world_init(&w, both_ == 0);
        claim(&w);
        delivered(&w, true);
        for (int i = 0; i < 1000; i++)
            submit(&w, i, DECISION_PROCEED);
        cancel.in.cancel.execution_id = w.id;
        decide(&w, &cancel);
        assert_int_equal(cancel.verdict, VERDICT_DONE);
        for (size_t i = 0; i < row(&w)->events.n; i++) {
            struct event_reader r = {
                .body = str_make(row(&w)->events.at[i].body, row(&w)->events.at[i].n)};
            struct event_line line;

            assert_true(row(&w)->events.at[i].count <= 256);
            while (event_next(&r, &scratch, &line)) {
                struct hash id;
                struct str hex = json_get(line.payload, STR("step_id"), &w.arena);

                if (!str_eq(line.type, STR("step.cancelled")))
                    continue;
                assert_true(hash_parse(str_slice(hex, 1, hex.n - 1), &id));
                assert_int_equal(memory_step(&w.m, &id)->key, ++cancelled);
            }
        }
        assert_int_equal(cancelled, 1000);
        decide(&w, &cancel);
        assert_int_equal(cancel.err.code, ERR_CONFLICT);
        buf_free(&scratch);
        world_free(&w);
    }
}

/* The sender saw it in the queue, then a cancel came: nothing is delivered, and the log says so. */
static void test_a_claim_after_the_end_is_discarded(void **state)
{
    (void)state;
    ON_BOTH(w)
    {
        struct world w;
        struct command cancel = {.type = COMMAND_CANCEL}, late = {.type = COMMAND_CLAIM};

        world_init(&w, both_ == 0);
        late.in.delivery.ref.execution_id = cancel.in.cancel.execution_id = w.id;
        late.in.delivery.ref.dispatch_id = row(&w)->dispatch.id;
        late.in.delivery.agent_id = STR("a");
        decide(&w, &cancel);
        decide(&w, &late);
        assert_int_equal(late.verdict, VERDICT_DONE);
        assert_false(late.out.claimed.claimed);
        assert_int_equal(row(&w)->status, EXECUTION_CANCELLED);
        CHECK_STR(log_types(&w), STR("execution.created execution.started dispatch.queued "
                                     "execution.cancelled dispatch.discarded"));
        world_free(&w);
    }
}

static void test_events_read_back(void **state)
{
    struct buf scratch = {0};
    struct event_line line;
    struct event_reader r = {
        .body = STR(
            "step.proposed\t\"a\":1\nstep.allowed\t&,\"b\":2\nexecution.completed\t\"output\":@\n"),
        .output = STR("[1,2]")};

    (void)state;
    assert_true(event_needs_output(r.body));
    assert_true(event_next(&r, &scratch, &line));
    CHECK_STR(line.type, STR("step.proposed"));
    CHECK_STR(line.payload, STR("{\"a\":1}"));
    assert_true(event_next(&r, &scratch, &line));
    CHECK_STR(line.payload, STR("{\"a\":1,\"b\":2}"));
    assert_true(event_next(&r, &scratch, &line));
    CHECK_STR(line.payload, STR("{\"output\":[1,2]}"));
    assert_false(event_next(&r, &scratch, &line));
    buf_free(&scratch);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_order_of_a_plain_run),
        cmocka_unit_test(test_a_call_stands_for_the_ack),
        cmocka_unit_test(test_back_off_grows_and_is_bounded),
        cmocka_unit_test(test_a_maximum_by_hand_is_kept),
        cmocka_unit_test(test_patience_of_ten_minutes),
        cmocka_unit_test(test_progress_is_not_charged_but_bounded),
        cmocka_unit_test(test_release_is_not_charged),
        cmocka_unit_test(test_leases_end_when_they_should),
        cmocka_unit_test(test_a_foreign_dispatch_is_told_from_an_old_one),
        cmocka_unit_test(test_cancel_of_many_steps),
        cmocka_unit_test(test_a_claim_after_the_end_is_discarded),
        cmocka_unit_test(test_events_read_back),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
