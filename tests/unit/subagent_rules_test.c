/* SPDX-License-Identifier: Apache-2.0
 * Subagents by tables (docs/subagents.md): who may start one, what its end brings about, when its
 * parent waits and goes on. What the engine does after a commit is done here by hand. */
#include "support/check.h"

#include "base/clock.h"
#include "kernel/event.h"
#include "support/rules_world.h"

static void begin(struct world *w, int both)
{
    world_init(w, both == 0);
    claim(w);
    delivered(w, true);
}

static struct command spawning(struct world *w, const struct hash *step)
{
    struct command cmd = {.type = COMMAND_CREATE};

    cmd.in.create = (struct execution_creation){
        .agent_id = STR("a"), .created_by = STR("me"), .spawner = w->id, .spawned_step = *step};
    return cmd;
}

static struct uuid spawned(struct world *w, const struct hash *step)
{
    struct command cmd = spawning(w, step);

    decide(w, &cmd);
    CHECKF(cmd.verdict == VERDICT_DONE, "%s", cmd.err.message);
    return cmd.out.created.id;
}

static bool suspended(struct world *w)
{
    struct command cmd = {.type = COMMAND_SUSPEND};

    cmd.in.lease =
        (struct lease_call){.execution_id = w->id, .agent_id = STR("a"), .lease = lease(w)};
    decide(w, &cmd);
    CHECKF(cmd.verdict == VERDICT_DONE, "%s", cmd.err.message);
    return cmd.out.suspended;
}

/* The world's execution is another one for a while. */
static void run_to_end(struct world *w, const struct uuid *id, bool failed, const char *value)
{
    struct command cmd = {.type = COMMAND_FINISH};
    struct uuid own = w->id;

    w->id = *id;
    claim(w);
    delivered(w, true);
    cmd.in.finish = (struct execution_finish){.execution_id = *id,
                                              .agent_id = STR("a"),
                                              .lease = lease(w),
                                              .failed = failed,
                                              .output = failed ? STR_NONE : str_of(value),
                                              .error = str_of(value)};
    decide(w, &cmd);
    CHECKF(cmd.verdict == VERDICT_DONE, "%s", cmd.err.message);
    w->id = own;
}

static void cancelled(struct world *w, const struct uuid *id, enum cancel_cause cause)
{
    struct command cmd = {.type = COMMAND_CANCEL};

    cmd.in.cancel = (struct execution_cancellation){*id, cause};
    decide(w, &cmd);
    CHECKF(cmd.verdict == VERDICT_DONE, "%s", cmd.err.message);
}

/* The follow-up of a subagent's end. */
static void told(struct world *w, const struct uuid *child, const struct hash *step)
{
    struct command cmd = {.type = COMMAND_SUBAGENT_SETTLE};

    cmd.in.subagent_settle = (struct subagent_end){*child, w->id, *step};
    decide(w, &cmd);
    CHECKF(cmd.verdict == VERDICT_DONE, "%s", cmd.err.message);
}

/* ---- starting ---- */

static void test_one_a_step(void **state)
{
    (void)state;
    ON_BOTH(w)
    {
        struct world w;
        struct hash step;
        struct uuid child, again;
        struct command cmd;

        begin(&w, both_);
        step = submit(&w, 1, DECISION_PROCEED);
        child = spawned(&w, &step);
        again = spawned(&w, &step);
        assert_true(uuid_eq(&child, &again));
        assert_int_equal(w.m.all.n, 2);
        /* Whatever its state and the step's. */
        run_to_end(&w, &child, false, "7");
        told(&w, &child, &step);
        again = spawned(&w, &step);
        assert_true(uuid_eq(&child, &again));
        /* What the step has settled starts no other. */
        step = submit(&w, 2, DECISION_PROCEED);
        settle(&w, &step);
        cmd = spawning(&w, &step);
        decide(&w, &cmd);
        assert_int_equal(cmd.err.code, ERR_CONFLICT);
        world_free(&w);
    }
}

static void test_who_may_not(void **state)
{
    static const enum err_code want[] = {ERR_NOT_FOUND, ERR_VALIDATION, ERR_CONFLICT,
                                         ERR_VALIDATION};

    (void)state;
    ON_BOTH(w)
    {
        struct world w;
        struct hash step;

        begin(&w, both_);
        step = submit(&w, 1, DECISION_PROCEED);
        for (size_t i = 0; i < COUNT(want); i++) {
            struct command cmd = spawning(&w, &step), other = {.type = COMMAND_CREATE};

            if (i == 0) /* nobody */
                cmd.in.create.spawner.b[3] ^= 1;
            if (i == 1) /* a step of another execution */
                cmd.in.create.spawned_step.b[3] ^= 1;
            if (i == 2) { /* a key that belongs to another */
                other.in.create = (struct execution_creation){
                    .agent_id = STR("a"), .created_by = STR("me"), .idempotency_key = STR("k")};
                decide(&w, &other);
                cmd.in.create.idempotency_key = STR("k");
            }
            if (i == 3) { /* the session that its parent holds */
                other.in.create = (struct execution_creation){
                    .agent_id = STR("a"), .created_by = STR("me"), .session = STR("s")};
                decide(&w, &other);
                w.id = other.out.created.id;
                claim(&w);
                delivered(&w, true);
                step = submit(&w, 1, DECISION_PROCEED);
                cmd = spawning(&w, &step);
                cmd.in.create.session = STR("s");
            }
            decide(&w, &cmd);
            CHECKF(cmd.verdict == VERDICT_REFUSED && cmd.err.code == want[i], "case %zu: %s", i,
                   cmd.err.message);
        }
        world_free(&w);
    }
}

/* A grandchild must not want the session of its grandparent. */
static void test_sessions_all_the_way_up(void **state)
{
    (void)state;
    ON_BOTH(w)
    {
        struct world w;
        struct command cmd = {.type = COMMAND_CREATE};
        struct hash step;

        begin(&w, both_);
        cmd.in.create = (struct execution_creation){
            .agent_id = STR("a"), .created_by = STR("me"), .session = STR("top")};
        decide(&w, &cmd);
        w.id = cmd.out.created.id;
        for (int depth = 0; depth < 3; depth++) {
            claim(&w);
            delivered(&w, true);
            step = submit(&w, 1, DECISION_PROCEED);
            cmd = spawning(&w, &step);
            cmd.in.create.session = STR("top");
            decide(&w, &cmd);
            CHECKF(cmd.err.code == ERR_VALIDATION, "depth %d", depth);
            cmd = spawning(&w, &step);
            if (depth == 1)
                cmd.in.create.session = STR("middle");
            decide(&w, &cmd);
            assert_int_equal(cmd.verdict, VERDICT_DONE);
            w.id = cmd.out.created.id;
        }
        claim(&w);
        delivered(&w, true);
        step = submit(&w, 1, DECISION_PROCEED);
        cmd = spawning(&w, &step);
        cmd.in.create.session = STR("middle");
        decide(&w, &cmd);
        assert_int_equal(cmd.err.code, ERR_VALIDATION);
        world_free(&w);
    }
}

/* ---- its end ---- */

static void test_ends(void **state)
{
    static const struct {
        bool failed, cancelled;
        const char *value, *result, *reason;
    } rows[] = {
        {false, false, "{\"x\":1}", "{\"x\":1}", NULL},
        {true, false, "agent_error: boom", NULL, "\"subagent_failed\""},
        {false, true, NULL, NULL, "\"subagent_cancelled\""},
    };

    (void)state;
    ON_BOTH(w) for (size_t i = 0; i < COUNT(rows); i++)
    {
        struct world w;
        struct hash step;
        struct uuid child;
        const struct memory_step *s;
        size_t before;

        begin(&w, both_);
        step = submit(&w, 1, DECISION_PROCEED);
        child = spawned(&w, &step);
        assert_true(suspended(&w));
        assert_int_equal(row(&w)->status, EXECUTION_BLOCKED);
        assert_false(row(&w)->has_dispatch);
        before = log_length(&w);
        if (rows[i].cancelled)
            cancelled(&w, &child, CANCEL_BY_CLIENT);
        else
            run_to_end(&w, &child, rows[i].failed, rows[i].value);
        told(&w, &child, &step);
        told(&w, &child, &step); /* follow-ups may come twice */
        CHECK_STR(log_types_after(&w, before),
                  rows[i].result != NULL ? STR("step.succeeded execution.resumed dispatch.queued")
                                         : STR("step.failed execution.resumed dispatch.queued"));
        s = memory_step(&w.m, &step);
        if (rows[i].result != NULL)
            CHECK_STR(str_of(s->result), str_of(rows[i].result));
        else
            CHECK_STR(json_get(str_of(s->error), STR("reason"), &w.arena), str_of(rows[i].reason));
        assert_false(memory_execution(&w.m, &child)->owes);
        world_free(&w);
    }
}

/* Two calls of one turn: it goes on when the last one has its outcome. */
static void test_waits_for_all(void **state)
{
    (void)state;
    ON_BOTH(w)
    {
        struct world w;
        struct hash first, second;
        struct uuid one, two;

        begin(&w, both_);
        assert_false(suspended(&w)); /* nothing waits */
        first = submit(&w, 1, DECISION_PROCEED);
        second = submit(&w, 2, DECISION_PROCEED);
        one = spawned(&w, &first);
        two = spawned(&w, &second);
        run_to_end(&w, &one, false, "1");
        told(&w, &one, &first);
        assert_true(suspended(&w));
        assert_true(suspended(&w)); /* the delivery has ended already */
        assert_int_equal(row(&w)->status, EXECUTION_BLOCKED);
        run_to_end(&w, &two, false, "2");
        told(&w, &two, &second);
        assert_int_equal(row(&w)->status, EXECUTION_RUNNING);
        claim(&w);
        delivered(&w, true);
        (void)submit(&w, 1, DECISION_REPLAY);
        (void)submit(&w, 2, DECISION_REPLAY);
        assert_false(suspended(&w));
        world_free(&w);
    }
}

/* An end that nobody was told of yet: false promises that every such step has settled. */
static void test_suspends_until_told(void **state)
{
    (void)state;
    ON_BOTH(w)
    {
        struct world w;
        struct hash step;
        struct uuid child;

        begin(&w, both_);
        step = submit(&w, 1, DECISION_PROCEED);
        child = spawned(&w, &step);
        run_to_end(&w, &child, false, "1");
        assert_true(suspended(&w));
        told(&w, &child, &step);
        assert_int_equal(row(&w)->status, EXECUTION_RUNNING);
        world_free(&w);
    }
}

/* The agent died while its subagent ran: once the step is at_most_once, the next attempt waits
 * instead of calling the outcome unknown. */
static void test_orphaned_once_only(void **state)
{
    (void)state;
    ON_BOTH(w)
    {
        struct world w;
        struct command cmd;
        struct hash step;
        struct uuid child;
        size_t before;

        begin(&w, both_);
        fill_call(&w, &cmd, "t", "1");
        cmd.in.submit.idempotency = AT_MOST_ONCE;
        decide(&w, &cmd);
        step = cmd.out.step.step_id;
        child = spawned(&w, &step);
        pass(&w, 200 * US_PER_S);
        assert_true(reclaim(&w));
        claim(&w);
        delivered(&w, true);
        before = log_length(&w);
        fill_call(&w, &cmd, "t", "1");
        cmd.in.submit.idempotency = AT_MOST_ONCE;
        decide(&w, &cmd);
        assert_int_equal(cmd.out.step.decision, DECISION_BLOCKED);
        assert_false(cmd.out.step.has_approval);
        CHECK_STR(log_types_after(&w, before), STR("execution.blocked"));
        run_to_end(&w, &child, false, "5");
        told(&w, &child, &step);
        claim(&w);
        delivered(&w, true);
        fill_call(&w, &cmd, "t", "1");
        cmd.in.submit.idempotency = AT_MOST_ONCE;
        decide(&w, &cmd);
        assert_int_equal(cmd.out.step.decision, DECISION_REPLAY);
        CHECK_STR(cmd.out.step.result, STR("5"));
        world_free(&w);
    }
}

/* What asks for a person, and is granted at once or later. */
static const char GATE[] = "default_action: allow\n"
                           "rules:\n"
                           "  - { id: gate, when: { target: pay },"
                           " then: { decision: require_approval } }\n";

static void granted(struct world *w, const struct uuid *approval)
{
    struct command cmd = {.type = COMMAND_APPROVAL_DECIDE};

    cmd.in.approval = (struct approval_decision){
        .execution_id = w->id, .approval_id = *approval, .granted = true, .decided_by = STR("me")};
    decide(w, &cmd);
    assert_int_equal(cmd.verdict, VERDICT_DONE);
}

/* Blocked by an approval, its agent suspends: from then on it waits for both, whichever comes
 * first. */
static void test_suspends_beside_an_approval(void **state)
{
    (void)state;
    ON_BOTH(w) for (int approval_first = 0; approval_first < 2; approval_first++)
    {
        struct world w;
        struct hash step;
        struct uuid child;
        struct step_answer held;
        size_t before;

        begin(&w, both_);
        set_policy(&w, GATE);
        step = submit(&w, 1, DECISION_PROCEED);
        child = spawned(&w, &step);
        held = call(&w, "pay", "1", DECISION_BLOCKED);
        before = log_length(&w);
        assert_true(suspended(&w));
        assert_int_equal(log_length(&w), before); /* it is blocked already */
        if (approval_first)
            granted(&w, &held.approval_id);
        run_to_end(&w, &child, false, "1");
        assert_int_equal(row(&w)->status, EXECUTION_BLOCKED);
        told(&w, &child, &step);
        if (!approval_first) {
            assert_int_equal(row(&w)->status, EXECUTION_BLOCKED);
            granted(&w, &held.approval_id);
        }
        assert_int_equal(row(&w)->status, EXECUTION_RUNNING);
        CHECK_STR(log_types_after(&w, before),
                  approval_first ? STR("approval.granted step.allowed step.succeeded "
                                       "execution.resumed dispatch.queued")
                                 : STR("step.succeeded approval.granted step.allowed "
                                       "execution.resumed dispatch.queued"));
        world_free(&w);
    }
}

/* The answer was lost, and the same request comes again: it must not be told to run now. */
static void test_orphaned_and_repeated(void **state)
{
    (void)state;
    ON_BOTH(w)
    {
        struct world w;
        struct command cmd;
        struct hash step;
        size_t before = 0;

        begin(&w, both_);
        fill_call(&w, &cmd, "t", "1");
        cmd.in.submit.idempotency = AT_MOST_ONCE;
        decide(&w, &cmd);
        step = cmd.out.step.step_id;
        (void)spawned(&w, &step);
        pass(&w, 200 * US_PER_S);
        assert_true(reclaim(&w));
        claim(&w);
        delivered(&w, true);
        for (int i = 0; i < 2; i++) {
            fill_call(&w, &cmd, "t", "1");
            cmd.in.submit.idempotency = AT_MOST_ONCE;
            cmd.in.submit.tally.has_key = true;
            cmd.in.submit.tally.key[0] = 7;
            decide(&w, &cmd);
            assert_int_equal(cmd.verdict, VERDICT_DONE);
            CHECK_STR(decision_name(cmd.out.step.decision), decision_name(DECISION_BLOCKED));
            assert_true(hash_eq(&cmd.out.step.step_id, &step));
            assert_true(i == 0 || log_length(&w) == before);
            before = log_length(&w);
        }
        world_free(&w);
    }
}

/* A parent that ended owes nothing to anybody, and nobody to it. */
static void test_parent_ends_first(void **state)
{
    (void)state;
    ON_BOTH(w)
    {
        struct world w;
        struct hash step;
        struct uuid child;
        size_t before;

        begin(&w, both_);
        step = submit(&w, 1, DECISION_PROCEED);
        child = spawned(&w, &step);
        cancelled(&w, &w.id, CANCEL_BY_CLIENT);
        before = log_length(&w);
        cancelled(&w, &child, CANCEL_BY_PARENT);
        CHECK_STR(str_of(memory_execution(&w.m, &child)->failure_reason),
                  STR("parent_agent_terminal"));
        told(&w, &child, &step);
        assert_int_equal(log_length(&w), before);
        assert_false(memory_execution(&w.m, &child)->owes);
        world_free(&w);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_one_a_step),
        cmocka_unit_test(test_who_may_not),
        cmocka_unit_test(test_sessions_all_the_way_up),
        cmocka_unit_test(test_ends),
        cmocka_unit_test(test_waits_for_all),
        cmocka_unit_test(test_suspends_until_told),
        cmocka_unit_test(test_suspends_beside_an_approval),
        cmocka_unit_test(test_orphaned_once_only),
        cmocka_unit_test(test_orphaned_and_repeated),
        cmocka_unit_test(test_parent_ends_first),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
