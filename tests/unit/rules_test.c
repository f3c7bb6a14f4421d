/* SPDX-License-Identifier: Apache-2.0
 * Rules that tell by tables better than by chance: how deliveries are charged, spaced and given up;
 * what events say and in which order; cancels with many steps. Under a fake clock, on the store in
 * memory, with leases in the set and stored. */
#include "support/check.h"

#include "base/clock.h"
#include "base/json.h"
#include "engine/decide.h"
#include "kernel/event.h"
#include "support/memory_store.h"

#include <stdlib.h>

struct world {
    struct memory_store m;
    struct working_set ws;
    struct kernel_settings settings;
    struct uuid_gen ids;
    struct prng random;
    struct arena arena;
    struct uuid id;
};

static void decide(struct world *w, struct command *cmd)
{
    cmd->arena = &w->arena;
    cmd->verdict = VERDICT_NEED;
    command_names(&w->ws, cmd);
    for (int round = 0; cmd->verdict == VERDICT_NEED; round++) {
        assert_true(round < 8);
        memory_store_load(&w->m, &w->ws);
        command_decide(&w->ws, cmd);
    }
    assert_true(command_keep_answer(cmd));
    memory_store_apply(&w->m, &w->ws);
    ws_end_group(&w->ws);
}

static void world_init(struct world *w, bool leases_in_set)
{
    struct command reg = {.type = COMMAND_AGENT_REGISTER}, create = {.type = COMMAND_CREATE};

    *w = (struct world){.settings = {.dispatch_max_attempts = 5,
                                     .dispatch_timeout_us = 30 * US_PER_S,
                                     .lease_timeout_us = 120 * US_PER_S}};
    prng_seed(&w->random, 7);
    w->ids.random = &w->random;
    memory_store_init(&w->m, leases_in_set);
    ws_init(&w->ws, &w->settings, &w->ids, &w->random);
    w->ws.keep_leased = leases_in_set;
    reg.in.agent_register = (struct agent_registration){STR("a"), STR("http://x/"), STR("s"), 0};
    decide(w, &reg);
    create.in.create = (struct execution_creation){.agent_id = STR("a"), .created_by = STR("me")};
    decide(w, &create);
    w->id = create.out.created.id;
}

static void world_free(struct world *w)
{
    ws_free(&w->ws);
    memory_store_free(&w->m);
    arena_free(&w->arena);
}

static struct memory_execution *row(struct world *w)
{
    return memory_execution(&w->m, &w->id);
}

static void pass(struct world *w, int64_t us)
{
    w->m.wall_us += us;
    w->m.mono_us += us;
}

/* The claim of the queued dispatch once it is due. */
static void claim(struct world *w)
{
    struct command cmd = {.type = COMMAND_CLAIM};

    assert_true(row(w)->has_dispatch);
    if (row(w)->dispatch.due_at > w->m.wall_us)
        pass(w, row(w)->dispatch.due_at - w->m.wall_us);
    cmd.in.delivery.ref.execution_id = w->id;
    cmd.in.delivery.ref.dispatch_id = row(w)->dispatch.id;
    cmd.in.delivery.agent_id = STR("a");
    decide(w, &cmd);
    assert_true(cmd.out.claimed.claimed);
}

static void delivered(struct world *w, bool acked)
{
    struct command cmd = {.type = COMMAND_DELIVERED};

    cmd.in.delivery.ref =
        (struct dispatch_ref){w->id, row(w)->dispatch.id, row(w)->dispatch.attempt};
    cmd.in.delivery.acked = acked;
    decide(w, &cmd);
}

static struct lease_ref lease(struct world *w)
{
    return (struct lease_ref){row(w)->owner_dispatch, row(w)->owner_attempt};
}

static struct hash submit(struct world *w, int n, enum decision want)
{
    struct command cmd = {.type = COMMAND_SUBMIT};
    struct step_submission *in = &cmd.in.submit;
    struct err e;
    struct call c;

    in->execution_id = in->tally.execution_id = w->id;
    in->agent_id = STR("a");
    in->lease = lease(w);
    in->kind = KIND_TOOL_CALL;
    in->target = STR("t");
    in->args = in->raw_args = arena_printf(&w->arena, "%d", n);
    assert_true(args_hash(in->args, &in->args_hash, &e));
    c = (struct call){STR("tool_call"), in->target, in->args_hash};
    call_key(&c, &in->tally.call);
    decide(w, &cmd);
    assert_int_equal(cmd.verdict, VERDICT_DONE);
    assert_int_equal(cmd.out.step.decision, want);
    return cmd.out.step.step_id;
}

static void settle(struct world *w, const struct hash *step)
{
    struct command cmd = {.type = COMMAND_SETTLE};

    cmd.in.settle = (struct step_outcome){.execution_id = w->id,
                                          .agent_id = STR("a"),
                                          .lease = lease(w),
                                          .step_id = *step,
                                          .value = STR("1"),
                                          .usage = USAGE_NONE};
    decide(w, &cmd);
    assert_int_equal(cmd.out.step.decision, DECISION_RECORDED);
}

static bool reclaim(struct world *w)
{
    struct command cmd = {.type = COMMAND_RECLAIM};

    cmd.in.reclaim = w->id;
    decide(w, &cmd);
    return cmd.out.reclaimed;
}

/* The types of the log's events, in order, joined by spaces. */
static struct str log_types(struct world *w)
{
    struct buf types = {0}, scratch = {0};
    struct str out;

    for (size_t i = 0; i < row(w)->events.n; i++) {
        struct event_reader r = {.body =
                                     str_make(row(w)->events.at[i].body, row(w)->events.at[i].n)};
        struct event_line line;

        while (event_next(&r, &scratch, &line)) {
            if (types.n > 0)
                buf_add_byte(&types, ' ');
            buf_add(&types, line.type);
        }
    }
    out = arena_str(&w->arena, buf_str(&types));
    buf_free(&types);
    buf_free(&scratch);
    return out;
}

#define ON_BOTH(w) for (int both_ = 0; both_ < 2; both_++)

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
        cmocka_unit_test(test_events_read_back),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
