/* SPDX-License-Identifier: Apache-2.0
 * Rate limits, budgets and judges by tables, as docs/policy.md states them. */
#include "support/check.h"

#include "base/clock.h"
#include "support/rules_world.h"

static void begin(struct world *w, int both, const char *yaml)
{
    world_init(w, both == 0);
    w->settings.judge_configured = true;
    set_policy(w, yaml);
    claim(w);
    delivered(w, true);
}

#define RULES(then) "rules:\n  - id: r\n    when: { target: t }\n    then: " then "\n"

/* Three calls a minute: the fourth is refused, and one more is there after each twenty seconds. */
static void test_refused_and_refilled(void **state)
{
    (void)state;
    ON_BOTH(w)
    {
        struct world w;
        struct step_answer over;
        size_t before;

        begin(&w, both_, RULES("{ decision: allow, rate_limit: { max_calls: 3, window: 1m } }"));
        for (int i = 0; i < 3; i++)
            submit(&w, i, DECISION_PROCEED);
        before = log_length(&w);
        over = call(&w, "t", "3", DECISION_RATE_LIMITED);
        CHECK_STR(over.reason, STR("rate_limit_exceeded"));
        CHECK_STR(over.rule_id, STR("r"));
        CHECK_STR(log_types_after(&w, before), STR("step.rate_limited"));
        assert_int_equal(w.m.all_steps.n, 3); /* no row */
        pass(&w, 20 * US_PER_S);
        submit(&w, 3, DECISION_PROCEED); /* the same call: it was not counted before */
        submit(&w, 4, DECISION_RATE_LIMITED);
        world_free(&w);
    }
}

/* A replay takes no token, nor does a denial. */
static void test_what_counts(void **state)
{
    struct world w;

    (void)state;
    begin(&w, 0, RULES("{ decision: allow, rate_limit: { max_calls: 2, window: 1h } }"));
    submit(&w, 0, DECISION_PROCEED);
    pass(&w, 121 * US_PER_S);
    assert_true(reclaim(&w));
    claim(&w);
    submit(&w, 0, DECISION_PROCEED); /* run again, not decided again */
    submit(&w, 1, DECISION_PROCEED);
    submit(&w, 2, DECISION_RATE_LIMITED);
    world_free(&w);

    begin(&w, 0, RULES("{ decision: deny, rate_limit: { max_calls: 1, window: 1h } }"));
    for (int i = 0; i < 3; i++)
        submit(&w, i, DECISION_DENIED);
    assert_int_equal(w.m.buckets.count, 0);
    world_free(&w);
}

/* Over the limit with max_wait: parked until the token that it has taken in advance. */
static void test_parked_and_back(void **state)
{
    (void)state;
    ON_BOTH(w)
    {
        struct world w;
        struct step_answer parked;
        struct lease_ref old;
        int64_t t0;
        size_t before;

        begin(&w, both_,
              RULES("{ decision: allow, rate_limit: { max_calls: 1, window: 1m, max_wait: 2m } }"));
        t0 = w.m.wall_us;
        submit(&w, 0, DECISION_PROCEED);
        before = log_length(&w);
        parked = call(&w, "t", "1", DECISION_BLOCKED);
        assert_true(parked.parked);
        assert_false(parked.has_approval);
        CHECK_STR(log_types_after(&w, before), STR("step.rate_limited"));
        assert_int_equal(row(&w)->status, EXECUTION_RUNNING);
        assert_int_equal(row(&w)->dispatch.status, DISPATCH_QUEUED);
        assert_int_equal(row(&w)->dispatch.due_at, t0 + 60 * US_PER_S);
        old = lease(&w);
        submit(&w, 7, DECISION_EXECUTION_BLOCKED); /* nothing starts under the ended delivery */
        pass(&w, 60 * US_PER_S);
        struct command early = {.type = COMMAND_CLAIM};
        early.in.delivery.ref = (struct dispatch_ref){w.id, row(&w)->dispatch.id, 0};
        early.in.delivery.agent_id = STR("a");
        decide(&w, &early);
        assert_false(early.out.claimed.claimed); /* step 0 is open until its term has passed */
        claim(&w);
        assert_true(lease(&w).attempt > old.attempt);
        assert_int_equal(row(&w)->dispatch.charged, 1); /* the parked attempt is not charged */
        submit(&w, 0, DECISION_PROCEED);
        submit(&w, 1, DECISION_PROCEED); /* finds its token */
        assert_int_equal(row(&w)->parked.n, 0);
        world_free(&w);
    }
}

#define PARKS(id, window)                                                                          \
    "rules:\n  - id: " id                                                                          \
    "\n    then: { decision: allow, rate_limit: { max_calls: 1, window: " window                   \
    ", max_wait: 5h } }\n"

/* Parks step 1 of a run for a minute, from when on it is delivered again. */
static void park_and_claim(struct world *w, const char *before, const char *meanwhile)
{
    struct hash first;

    begin(w, 0, before);
    first = submit(w, 0, DECISION_PROCEED);
    settle(w, &first);
    set_policy(w, PARKS("r", "1m"));
    if (strcmp(before, PARKS("r", "1m")) != 0) {
        first = submit(w, 9, DECISION_PROCEED);
        settle(w, &first);
    }
    submit(w, 1, DECISION_BLOCKED);
    pass(w, 60 * US_PER_S);
    set_policy(w, meanwhile);
    claim(w);
}

/* Once parked, a step is not parked again: without its token it is refused. */
static void test_back_without_its_token(void **state)
{
    struct world w;

    (void)state;
    park_and_claim(&w, PARKS("r", "1m"), PARKS("r", "1m"));
    w.m.wall_us -= 1; /* a clock that was set back */
    submit(&w, 1, DECISION_RATE_LIMITED);
    assert_int_equal(row(&w)->parked.n, 0);
    world_free(&w);

    /* Another rule's by now, whose bucket is empty: its patience is for those that come anew. */
    park_and_claim(&w, PARKS("other", "1h"), PARKS("other", "1h"));
    submit(&w, 1, DECISION_RATE_LIMITED);
    assert_int_equal(row(&w)->parked.n, 0);
    submit(&w, 1, DECISION_BLOCKED);
    world_free(&w);

    /* One whose bucket is full gives a token of its own. */
    park_and_claim(&w, PARKS("r", "1m"), PARKS("fresh", "1h"));
    submit(&w, 1, DECISION_PROCEED);
    assert_int_equal(row(&w)->parked.n, 0);
    submit(&w, 2, DECISION_BLOCKED);
    world_free(&w);
}

static void test_a_wait_that_is_too_long(void **state)
{
    struct world w;

    (void)state;
    begin(&w, 0,
          RULES("{ decision: allow, rate_limit: { max_calls: 1, window: 1m, max_wait: 59s } }"));
    submit(&w, 0, DECISION_PROCEED);
    submit(&w, 1, DECISION_RATE_LIMITED);
    pass(&w, US_PER_S);
    submit(&w, 1, DECISION_BLOCKED); /* 59 s are left */
    world_free(&w);
}

/* Parked again and again, each time for another step: that is no failure to deliver. */
static void test_parking_exhausts_nothing(void **state)
{
    struct world w;

    (void)state;
    begin(&w, 0,
          RULES("{ decision: allow, rate_limit: { max_calls: 1, window: 1m, max_wait: 5m } }"));
    w.settings.dispatch_max_attempts = 2;
    w.settings.dispatch_max_attempts_by_hand = true;
    for (int n = 0; n < 60; n++) {
        struct command cmd;

        fill_call(&w, &cmd, "t", arena_printf(&w.arena, "%d", n).p);
        decide(&w, &cmd);
        if (cmd.out.step.decision == DECISION_BLOCKED) {
            claim(&w);
            for (int i = 0; i < n; i++)
                submit(&w, i, DECISION_REPLAY);
            fill_call(&w, &cmd, "t", arena_printf(&w.arena, "%d", n).p);
            decide(&w, &cmd);
        }
        assert_int_equal(cmd.out.step.decision, DECISION_PROCEED);
        settle(&w, &cmd.out.step.step_id);
    }
    assert_true(row(&w)->owner_attempt > 50);
    delivered(&w, true);
    pass(&w, 121 * US_PER_S);
    assert_true(reclaim(&w));
    assert_int_equal(row(&w)->status, EXECUTION_RUNNING);
    world_free(&w);
}

/* A limit of all executions together. */
static void test_scopes(void **state)
{
    static const struct {
        const char *scope;
        bool shared;
    } cases[] = {{"execution", false}, {"session", false}, {"agent", true}, {"global", true}};

    (void)state;
    for (size_t i = 0; i < COUNT(cases); i++) {
        struct world w;
        struct command create = {.type = COMMAND_CREATE};
        char yaml[256];

        snprintf(
            yaml, sizeof(yaml),
            RULES("{ decision: allow, rate_limit: { max_calls: 1, window: 1h, per_what: %s } }"),
            cases[i].scope);
        begin(&w, 0, yaml);
        submit(&w, 0, DECISION_PROCEED);
        create.in.create =
            (struct execution_creation){.agent_id = STR("a"), .created_by = STR("me")};
        decide(&w, &create);
        w.id = create.out.created.id;
        claim(&w);
        submit(&w, 0, cases[i].shared ? DECISION_RATE_LIMITED : DECISION_PROCEED);
        world_free(&w);
    }
}

static void test_an_unreadable_bucket(void **state)
{
    static const struct {
        const char *then;
        enum decision want;
    } cases[] = {
        {"{ decision: allow, rate_limit: { max_calls: 9, window: 1h } }", DECISION_PROCEED},
        {"{ decision: allow, rate_limit: { max_calls: 9, window: 1h, on_limiter_error: deny } }",
         DECISION_RATE_LIMITED},
    };

    (void)state;
    for (size_t i = 0; i < COUNT(cases); i++) {
        struct world w;
        char yaml[256];
        struct step_answer answer;

        snprintf(yaml, sizeof(yaml), RULES("%s"), cases[i].then);
        begin(&w, 0, yaml);
        submit(&w, 0, DECISION_PROCEED);
        assert_int_equal(w.m.buckets.count, 1);
        struct memory_bucket *b = map_next(&w.m.buckets, &(size_t){0});
        b->unreadable = true;
        answer = call(&w, "t", "1", cases[i].want);
        if (cases[i].want == DECISION_RATE_LIMITED)
            CHECK_STR(answer.reason, STR("rate_limiter_unavailable"));
        world_free(&w);
    }
}

/* ---- budgets ---- */

static void spend(struct world *w, const char *args, int64_t in, int64_t out)
{
    struct step_answer a = call(w, "t", args, DECISION_PROCEED);
    struct command cmd = {.type = COMMAND_SETTLE};

    memory_step(&w->m, &a.step_id)->kind = KIND_LLM_CALL;
    ws_clear(&w->ws);
    cmd.in.settle = (struct step_outcome){.execution_id = w->id,
                                          .agent_id = STR("a"),
                                          .lease = lease(w),
                                          .step_id = a.step_id,
                                          .value = STR("1"),
                                          .usage = {in, out}};
    decide(w, &cmd);
    assert_int_equal(cmd.out.step.decision, DECISION_RECORDED);
}

static void test_a_budget_is_reached_in_the_middle(void **state)
{
    (void)state;
    ON_BOTH(w)
    {
        struct world w;
        struct step_answer a;

        begin(&w, both_, RULES("{ decision: allow, budget: { max_tokens: 100 } }"));
        spend(&w, "1", 60, 30);
        spend(&w, "2", 9, -1);   /* 99: still below */
        spend(&w, "3", 500, 50); /* what it will cost nobody knows before */
        a = call(&w, "t", "4", DECISION_DENIED);
        CHECK_STR(a.reason, STR("execution_token_budget_exceeded"));
        CHECK_STR(a.rule_id, STR("r"));
        assert_int_equal(row(&w)->tokens, 649);
        world_free(&w);
    }
}

static void test_a_budget_that_asks(void **state)
{
    struct world w;
    struct step_answer a;

    (void)state;
    begin(&w, 0,
          RULES("{ decision: allow, budget: { max_tokens: 100, on_exceed: require_approval } }"));
    spend(&w, "1", 100, 0);
    a = call(&w, "t", "2", DECISION_BLOCKED);
    CHECK_STR(str_of(memory_approval(&w.m, &a.approval_id)->message),
              STR("execution_token_budget_exceeded"));
    world_free(&w);
}

/* ---- judges ---- */

static void test_the_judge_is_asked_aside(void **state)
{
    static const struct {
        enum policy_action says;
        enum decision want;
    } cases[] = {{POLICY_ALLOW, DECISION_PROCEED},
                 {POLICY_DENY, DECISION_DENIED},
                 {POLICY_REQUIRE_APPROVAL, DECISION_BLOCKED}};

    (void)state;
    for (size_t i = 0; i < COUNT(cases); i++) {
        struct world w;
        struct command cmd;
        struct policy_found *found = &cmd.in.submit.found;

        begin(&w, 0, RULES("{ decision: judge, judge: { instructions: be careful } }"));
        fill_call(&w, &cmd, "t", "1");
        cmd.arena = &w.arena;
        command_names(&w.ws, &cmd);
        memory_store_load(&w.m, &w.ws);
        command_decide(&w.ws, &cmd);
        assert_int_equal(cmd.verdict, VERDICT_ASIDE);
        assert_int_equal(cmd.out.step.wanted.work, POLICY_WORK_JUDGE);
        assert_false(ws_has_changes(&w.ws));
        ws_end_group(&w.ws);
        *found = (struct policy_found){.matched = true,
                                       .hash = cmd.out.step.wanted.hash,
                                       .rule = cmd.out.step.wanted.rule,
                                       .judged = true,
                                       .judgement = cases[i].says,
                                       .rounds = 1};
        decide(&w, &cmd);
        assert_int_equal(cmd.verdict, VERDICT_DONE);
        assert_int_equal(cmd.out.step.decision, cases[i].want);
        world_free(&w);
    }
}

static void test_no_judge_and_a_stale_word(void **state)
{
    struct world w;
    struct command cmd;

    (void)state;
    begin(&w, 0, RULES("{ decision: judge }"));
    w.settings.judge_configured = false;
    CHECK_STR(call(&w, "t", "1", DECISION_DENIED).reason, STR("judge_unavailable"));
    w.settings.judge_configured = true;
    fill_call(&w, &cmd, "t", "2");
    cmd.in.submit.found = (struct policy_found){
        .matched = true, .hash = {.b = {1}}, .judged = true, .judgement = POLICY_ALLOW};
    cmd.arena = &w.arena;
    command_names(&w.ws, &cmd);
    memory_store_load(&w.m, &w.ws);
    command_decide(&w.ws, &cmd);
    assert_int_equal(cmd.verdict,
                     VERDICT_ASIDE); /* another bundle's judgement counts for nothing */
    ws_end_group(&w.ws);
    world_free(&w);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_refused_and_refilled),
        cmocka_unit_test(test_what_counts),
        cmocka_unit_test(test_parked_and_back),
        cmocka_unit_test(test_back_without_its_token),
        cmocka_unit_test(test_a_wait_that_is_too_long),
        cmocka_unit_test(test_parking_exhausts_nothing),
        cmocka_unit_test(test_scopes),
        cmocka_unit_test(test_an_unreadable_bucket),
        cmocka_unit_test(test_a_budget_is_reached_in_the_middle),
        cmocka_unit_test(test_a_budget_that_asks),
        cmocka_unit_test(test_the_judge_is_asked_aside),
        cmocka_unit_test(test_no_judge_and_a_stale_word),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
