/* SPDX-License-Identifier: Apache-2.0
 * Approvals by tables: who may decide, what wins, what the log says and in which order, what an
 * ended delivery may still do, and when the next one comes. The orders are those of docs/events.md.
 */
#include "support/check.h"

#include "base/clock.h"
#include "base/json.h"
#include "support/rules_world.h"

static const char GATE[] = "default_action: allow\n"
                           "rules:\n"
                           "  - id: gate\n"
                           "    when: { target: pay }\n"
                           "    then:\n"
                           "      decision: require_approval\n"
                           "      reason: money needs a look\n"
                           "      approval_config: { approvers: [alice, bob], timeout: 5m }\n";

static void begin(struct world *w, int both)
{
    world_init(w, both == 0);
    set_policy(w, GATE);
    claim(w);
    delivered(w, true);
}

static struct command decision(struct world *w, const struct uuid *id, bool granted, const char *by)
{
    struct command cmd = {.type = COMMAND_APPROVAL_DECIDE};

    cmd.in.approval = (struct approval_decision){
        .execution_id = w->id, .approval_id = *id, .granted = granted, .decided_by = str_of(by)};
    return cmd;
}

static void decided(struct world *w, const struct uuid *id, bool granted)
{
    struct command cmd = decision(w, id, granted, "alice");

    decide(w, &cmd);
    assert_int_equal(cmd.verdict, VERDICT_DONE);
    assert_false(cmd.out.approval.late);
}

static struct command expiry(struct world *w, const struct uuid *id)
{
    struct command cmd = {.type = COMMAND_APPROVAL_EXPIRE};

    cmd.in.approval = (struct approval_decision){.execution_id = w->id, .approval_id = *id};
    return cmd;
}

static void test_held_granted_and_run(void **state)
{
    (void)state;
    ON_BOTH(w)
    {
        struct world w;
        struct step_answer held, ran;
        size_t before;

        begin(&w, both_);
        before = log_length(&w);
        held = call(&w, "pay", "{\"to\":1}", DECISION_BLOCKED);
        assert_true(held.has_approval);
        CHECK_STR(log_types_after(&w, before),
                  STR("step.proposed step.awaiting_approval approval.requested execution.blocked"));
        assert_int_equal(row(&w)->status, EXECUTION_BLOCKED);
        assert_false(row(&w)->has_dispatch);
        CHECK_STR(str_of(memory_approval(&w.m, &held.approval_id)->message),
                  STR("money needs a look"));
        assert_int_equal(memory_approval(&w.m, &held.approval_id)->timeout_at,
                         w.m.wall_us + 300 * US_PER_S);

        before = log_length(&w);
        pass(&w, 200 * US_PER_S);
        decided(&w, &held.approval_id, true);
        CHECK_STR(log_types_after(&w, before),
                  STR("approval.granted step.allowed execution.resumed dispatch.queued"));
        claim(&w);
        delivered(&w, true);
        before = log_length(&w);
        set_policy(&w, "default_action: deny\n"); /* it was approved once: it runs all the same */
        ran = call(&w, "pay", "{\"to\":1}", DECISION_PROCEED);
        assert_true(hash_eq(&ran.step_id, &held.step_id));
        CHECK_STR(log_types_after(&w, before), STR("step.executing"));
        world_free(&w);
    }
}

static void test_denied_with_a_rationale(void **state)
{
    static const struct {
        const char *rationale, *reason;
    } cases[] = {{NULL, "approval_denied"}, {"too much \"money\"", "too much \"money\""}};

    (void)state;
    for (size_t i = 0; i < COUNT(cases) * 2; i++) {
        struct world w;
        struct command cmd;
        struct step_answer held;
        size_t before;

        begin(&w, i % 2 != 0);
        held = call(&w, "pay", "1", DECISION_BLOCKED);
        before = log_length(&w);
        cmd = decision(&w, &held.approval_id, false, "bob");
        cmd.in.approval.rationale = str_of(cases[i / 2].rationale);
        decide(&w, &cmd);
        assert_int_equal(cmd.verdict, VERDICT_DONE);
        CHECK_STR(log_types_after(&w, before),
                  STR("approval.denied step.denied execution.resumed dispatch.queued"));
        claim(&w);
        held = call(&w, "pay", "1", DECISION_DENIED);
        CHECK_STR(held.reason, str_of(cases[i / 2].reason));
        CHECK_STR(held.rule_id, STR("gate"));
        world_free(&w);
    }
}

static void test_only_approvers_decide(void **state)
{
    struct world w;
    struct step_answer held;
    struct command cmd;

    (void)state;
    begin(&w, 0);
    held = call(&w, "pay", "1", DECISION_BLOCKED);
    cmd = decision(&w, &held.approval_id, true, "mallory");
    decide(&w, &cmd);
    assert_int_equal(cmd.err.code, ERR_FORBIDDEN);
    assert_int_equal(row(&w)->status, EXECUTION_BLOCKED);
    cmd = decision(&w, &(struct uuid){.b = {9}}, true, "alice");
    decide(&w, &cmd);
    assert_int_equal(cmd.err.code, ERR_NOT_FOUND);
    decided(&w, &held.approval_id, true);
    world_free(&w);
}

/* Whatever comes first wins; the others are told what. */
static void test_exactly_one_decision(void **state)
{
    (void)state;
    for (int first = 0; first < 3; first++) {
        static const char *const status[] = {"granted", "denied", "expired"};
        struct world w;
        struct step_answer held;
        struct command cmd;
        size_t length;

        begin(&w, first % 2);
        held = call(&w, "pay", "1", DECISION_BLOCKED);
        if (first < 2) {
            decided(&w, &held.approval_id, first == 0);
        } else {
            pass(&w, 300 * US_PER_S);
            cmd = expiry(&w, &held.approval_id);
            decide(&w, &cmd);
        }
        length = log_length(&w);
        for (int second = 0; second < 3; second++) {
            struct str got;

            cmd = second < 2 ? decision(&w, &held.approval_id, second == 0, "bob")
                             : expiry(&w, &held.approval_id);
            pass(&w, 600 * US_PER_S);
            decide(&w, &cmd);
            assert_int_equal(cmd.verdict, VERDICT_DONE);
            if (second == 2)
                continue;
            assert_true(cmd.out.approval.late);
            assert_int_equal(cmd.err.code, ERR_CONFLICT);
            got = json_get(str_of(cmd.err.details), STR("status"), &w.arena);
            CHECK_STR(json_string(got, &w.arena), str_of(status[first]));
            got = json_get(str_of(cmd.err.details), STR("decided_by"), &w.arena);
            if (first < 2)
                CHECK_STR(json_string(got, &w.arena), STR("alice"));
            else
                assert_false(str_present(got));
        }
        assert_int_equal(log_length(&w), length);
        world_free(&w);
    }
}

/* The clock has passed, but nobody has looked yet: the decision that comes finds it expired. */
static void test_a_decision_after_the_time_is_late(void **state)
{
    struct world w;
    struct step_answer held;
    struct command cmd;
    size_t before;

    (void)state;
    begin(&w, 0);
    held = call(&w, "pay", "1", DECISION_BLOCKED);
    before = log_length(&w);
    cmd = expiry(&w, &held.approval_id);
    decide(&w, &cmd); /* too early: nothing */
    assert_int_equal(log_length(&w), before);
    pass(&w, 300 * US_PER_S);
    cmd = decision(&w, &held.approval_id, true, "alice");
    decide(&w, &cmd);
    assert_true(cmd.out.approval.late);
    CHECK_STR(log_types_after(&w, before),
              STR("approval.expired step.denied execution.resumed dispatch.queued"));
    claim(&w);
    CHECK_STR(call(&w, "pay", "1", DECISION_DENIED).reason, STR("approval_timeout"));
    world_free(&w);
}

/* Parallel calls of one turn: all that need a person are asked for in one pass, nothing else
 * starts, what runs reports, and the next delivery waits for it. */
static void test_parallel_calls(void **state)
{
    (void)state;
    ON_BOTH(w)
    {
        struct world w;
        struct hash beside;
        struct step_answer held[3];
        size_t before;

        begin(&w, both_);
        beside = call(&w, "work", "1", DECISION_PROCEED).step_id;
        held[0] = call(&w, "pay", "1", DECISION_BLOCKED);
        before = log_length(&w);
        held[1] = call(&w, "pay", "2", DECISION_BLOCKED);
        held[2] = call(&w, "pay", "2", DECISION_BLOCKED); /* equal: another occurrence */
        CHECK_STR(log_types_after(&w, before),
                  STR("step.proposed step.awaiting_approval approval.requested "
                      "step.proposed step.awaiting_approval approval.requested"));
        call(&w, "work", "2", DECISION_EXECUTION_BLOCKED);
        before = log_length(&w);
        for (int i = 0; i < 3; i++) {
            assert_int_equal(row(&w)->status, EXECUTION_BLOCKED);
            decided(&w, &held[i].approval_id, true);
        }
        CHECK_STR(log_types_after(&w, before),
                  STR("approval.granted step.allowed approval.granted step.allowed "
                      "approval.granted step.allowed execution.resumed dispatch.queued"));
        call(&w, "pay", "9", DECISION_EXECUTION_BLOCKED); /* it runs again, but not for this one */

        struct command early = {.type = COMMAND_CLAIM};
        early.in.delivery.ref = (struct dispatch_ref){w.id, row(&w)->dispatch.id, 0};
        early.in.delivery.agent_id = STR("a");
        decide(&w, &early);
        assert_false(early.out.claimed.claimed); /* `beside` is still open */
        pass(&w, 30 * US_PER_S);
        settle(&w, &beside);
        assert_int_equal(row(&w)->dispatch.due_at, w.m.wall_us);
        claim(&w);
        held[0] = call(&w, "work", "1", DECISION_REPLAY);
        assert_true(hash_eq(&held[0].step_id, &beside));
        call(&w, "pay", "1", DECISION_PROCEED);
        call(&w, "pay", "2", DECISION_PROCEED);
        call(&w, "pay", "2", DECISION_PROCEED);
        world_free(&w);
    }
}

/* The agent died with a call open: the next delivery comes when a lease's term has passed. */
static void test_an_open_call_that_never_settles(void **state)
{
    (void)state;
    ON_BOTH(w)
    {
        struct world w;
        struct step_answer held;
        int64_t blocked_at;

        begin(&w, both_);
        call(&w, "work", "1", DECISION_PROCEED);
        held = call(&w, "pay", "1", DECISION_BLOCKED);
        blocked_at = w.m.wall_us;
        pass(&w, US_PER_S);
        decided(&w, &held.approval_id, true);
        struct command early = {.type = COMMAND_CLAIM};
        early.in.delivery.ref = (struct dispatch_ref){w.id, row(&w)->dispatch.id, 0};
        early.in.delivery.agent_id = STR("a");
        decide(&w, &early);
        assert_int_equal(row(&w)->dispatch.due_at, blocked_at + 120 * US_PER_S);
        claim(&w);
        call(&w, "work", "1", DECISION_PROCEED);
        world_free(&w);
    }
}

static void test_the_end_of_a_blocked_run(void **state)
{
    (void)state;
    for (int how = 0; how < 4; how++) {
        struct world w;
        struct command cmd = {.type = COMMAND_CANCEL};
        size_t before;
        struct step_answer one, two;
        bool cancel = how < 2;

        begin(&w, how % 2);
        call(&w, "work", "1", DECISION_PROCEED);
        one = call(&w, "pay", "1", DECISION_BLOCKED);
        two = call(&w, "pay", "2", DECISION_BLOCKED);
        if (cancel) {
            cmd.in.cancel.execution_id = w.id;
        } else {
            cmd.type = COMMAND_FINISH;
            cmd.in.finish = (struct execution_finish){
                .execution_id = w.id, .agent_id = STR("a"), .lease = lease(&w), .output = STR("1")};
            decide(&w, &cmd);
            assert_int_equal(cmd.err.code, ERR_CONFLICT); /* it swallowed its stop */
            cmd.in.finish.failed = true;
            cmd.in.finish.error = STR("x");
        }
        before = log_length(&w);
        decide(&w, &cmd);
        assert_int_equal(cmd.verdict, VERDICT_DONE);
        CHECK_STR(log_types_after(&w, before),
                  cancel ? STR("execution.cancelled approval.expired step.denied approval.expired "
                               "step.denied step.cancelled")
                         : STR("execution.failed approval.expired step.denied approval.expired "
                               "step.denied"));
        assert_int_equal(memory_approval(&w.m, &one.approval_id)->status, APPROVAL_EXPIRED);
        CHECK_STR(str_of(memory_step(&w.m, &two.step_id)->error),
                  STR("{\"reason\":\"execution_cancelled\"}"));
        cmd = decision(&w, &one.approval_id, true, "alice");
        decide(&w, &cmd);
        assert_true(cmd.out.approval.late);
        world_free(&w);
    }
}

/* What was approved is what runs: other arguments are another step. */
static void test_a_grant_belongs_to_its_arguments(void **state)
{
    struct world w;
    struct step_answer held;

    (void)state;
    begin(&w, 0);
    held = call(&w, "pay", "{\"to\":\"alice\"}", DECISION_BLOCKED);
    decided(&w, &held.approval_id, true);
    claim(&w);
    call(&w, "pay", "{\"to\":\"mallory\"}", DECISION_BLOCKED);
    world_free(&w);
}

/* The bundle is tightened while a person looks: what is asked for stays asked for, what is new is
 * decided anew. */
static void test_a_bundle_that_changes_meanwhile(void **state)
{
    struct world w;
    struct step_answer held;

    (void)state;
    begin(&w, 0);
    held = call(&w, "pay", "1", DECISION_BLOCKED);
    set_policy(&w, "default_action: deny\n");
    decided(&w, &held.approval_id, true);
    claim(&w);
    call(&w, "pay", "1", DECISION_PROCEED);
    held = call(&w, "pay", "2", DECISION_DENIED);
    CHECK_STR(held.rule_id, STR("default"));
    CHECK_STR(held.reason, STR("no explicit allow rule matched"));
    world_free(&w);
}

/* A bundle that nobody has compiled is asked for aside; one that does not compile denies. */
static void test_bundles_that_are_not_there(void **state)
{
    struct world w;
    struct command cmd;
    struct command set = {.type = COMMAND_POLICY_SET};

    (void)state;
    begin(&w, 0);
    set.in.policy_set =
        (struct policy_setting){.agent_id = STR("a"), .bundle = STR("}"), .hash = {.b = {1, 2, 3}}};
    decide(&w, &set);
    fill_call(&w, &cmd, "pay", "1");
    cmd.arena = &w.arena;
    command_names(&w.ws, &cmd);
    memory_store_load(&w.m, &w.ws);
    command_decide(&w.ws, &cmd);
    assert_int_equal(cmd.verdict, VERDICT_ASIDE);
    assert_int_equal(cmd.out.step.wanted.work, POLICY_WORK_COMPILE);
    assert_false(ws_has_changes(&w.ws));
    ws_end_group(&w.ws);
    cmd.in.submit.found.rounds = 8; /* again and again in vain */
    decide(&w, &cmd);
    CHECK_STR(cmd.out.step.rule_id, STR("bundle-error"));
    policy_cache_put(w.ws.policies, &set.in.policy_set.hash, NULL);
    CHECK_STR(call(&w, "pay", "2", DECISION_DENIED).rule_id, STR("bundle-error"));
    world_free(&w);
}

/* While a person is asked, what such a bundle cannot hold is not decided either. */
static void test_a_bundle_that_broke_while_a_step_waits(void **state)
{
    struct world w;
    struct command set = {.type = COMMAND_POLICY_SET};
    size_t before;

    (void)state;
    begin(&w, 0);
    (void)call(&w, "pay", "1", DECISION_BLOCKED);
    set.in.policy_set =
        (struct policy_setting){.agent_id = STR("a"), .bundle = STR("}"), .hash = {.b = {1, 2, 3}}};
    decide(&w, &set);
    policy_cache_put(w.ws.policies, &set.in.policy_set.hash, NULL);
    before = log_length(&w);
    (void)call(&w, "pay", "2", DECISION_EXECUTION_BLOCKED);
    assert_int_equal(log_length(&w), before);
    world_free(&w);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_held_granted_and_run),
        cmocka_unit_test(test_denied_with_a_rationale),
        cmocka_unit_test(test_only_approvers_decide),
        cmocka_unit_test(test_exactly_one_decision),
        cmocka_unit_test(test_a_decision_after_the_time_is_late),
        cmocka_unit_test(test_parallel_calls),
        cmocka_unit_test(test_an_open_call_that_never_settles),
        cmocka_unit_test(test_the_end_of_a_blocked_run),
        cmocka_unit_test(test_a_grant_belongs_to_its_arguments),
        cmocka_unit_test(test_a_bundle_that_changes_meanwhile),
        cmocka_unit_test(test_bundles_that_are_not_there),
        cmocka_unit_test(test_a_bundle_that_broke_while_a_step_waits),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
