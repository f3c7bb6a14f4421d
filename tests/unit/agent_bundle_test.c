/* SPDX-License-Identifier: Apache-2.0
 * Which bundle counts for a new step when the set remembers it: the one that was set last, always.
 * Two bundles that answer differently show which one was asked. */
#include "support/check.h"

#include "base/clock.h"
#include "support/rules_world.h"

#define ALLOWS "default_action: allow\nrules: []\n"
#define DENIES "default_action: deny\nrules: []\n"

static void begin(struct world *w, int both)
{
    world_init(w, both == 0);
    claim(w);
    delivered(w, true);
}

static void setting(struct world *w, struct command *cmd, const char *yaml)
{
    struct err e;
    struct policy *p = policy_compile(str_of(yaml), "", &e);

    assert_non_null(p);
    *cmd = (struct command){.type = COMMAND_POLICY_SET};
    cmd->in.policy_set = (struct policy_setting){
        .agent_id = STR("a"), .bundle = str_of(yaml), .hash = *policy_hash(p)};
    policy_cache_put(w->ws.policies, policy_hash(p), p);
    policy_unref(p);
}

/* How many agents a submission names before anything is loaded. */
static size_t agents_named(struct world *w)
{
    struct command cmd;
    size_t n;

    fill_call(w, &cmd, "t", "0");
    command_names(&w->ws, &cmd);
    n = w->ws.need.agents.n;
    ws_clear_needs(&w->ws);
    return n;
}

/* What the test is about: on SQLite the second step reads no agent; on Postgres each does. */
static void test_the_agent_is_named_once(void **state)
{
    (void)state;
    ON_BOTH(w)
    {
        struct world w;

        begin(&w, both_);
        assert_int_equal(agents_named(&w), 1);
        submit(&w, 1, DECISION_PROCEED);
        assert_int_equal(agents_named(&w), both_ == 0 ? 0 : 1);
        set_policy(&w, ALLOWS);
        assert_int_equal(agents_named(&w), 1);
        submit(&w, 2, DECISION_PROCEED);
        assert_int_equal(agents_named(&w), both_ == 0 ? 0 : 1);
        world_free(&w);
    }
}

static void test_a_policy_counts_for_the_next_step(void **state)
{
    (void)state;
    ON_BOTH(w)
    {
        struct world w;

        begin(&w, both_);
        submit(&w, 1, DECISION_PROCEED); /* that there is none is remembered too */
        set_policy(&w, DENIES);
        submit(&w, 2, DECISION_DENIED);
        set_policy(&w, ALLOWS);
        submit(&w, 3, DECISION_PROCEED);
        world_free(&w);
    }
}

static void test_a_registration_brings_a_policy(void **state)
{
    (void)state;
    ON_BOTH(w)
    {
        struct world w;
        struct command reg = {.type = COMMAND_AGENT_REGISTER}, set;

        begin(&w, both_);
        submit(&w, 1, DECISION_PROCEED);
        setting(&w, &set, DENIES);
        reg.in.agent_register = (struct agent_registration){.id = STR("a"),
                                                            .webhook_url = STR("http://x/"),
                                                            .secret = STR("s"),
                                                            .policy_bundle = STR(DENIES),
                                                            .policy_hash = set.in.policy_set.hash};
        decide(&w, &reg);
        submit(&w, 2, DECISION_DENIED);
        world_free(&w);
    }
}

static void test_within_one_group(void **state)
{
    (void)state;
    ON_BOTH(w)
    {
        struct world w;
        struct command cmds[5];

        begin(&w, both_);
        submit(&w, 1, DECISION_PROCEED);
        fill_call(&w, &cmds[0], "t", "2");
        setting(&w, &cmds[1], DENIES);
        fill_call(&w, &cmds[2], "t", "3");
        setting(&w, &cmds[3], ALLOWS);
        fill_call(&w, &cmds[4], "t", "4");
        decide_group(&w, cmds, 5);
        assert_int_equal(cmds[0].out.step.decision, DECISION_PROCEED);
        assert_int_equal(cmds[2].out.step.decision, DECISION_DENIED);
        assert_int_equal(cmds[4].out.step.decision, DECISION_PROCEED);
        apply_group(&w);
        submit(&w, 5, DECISION_PROCEED);
        world_free(&w);
    }
}

/* A group that was decided and did not happen has set no policy. */
static void test_a_group_that_failed(void **state)
{
    (void)state;
    ON_BOTH(w)
    {
        struct world w;
        struct command cmds[2];
        uint64_t before;

        begin(&w, both_);
        set_policy(&w, DENIES);
        setting(&w, &cmds[0], ALLOWS);
        fill_call(&w, &cmds[1], "t", "1");
        decide_group(&w, cmds, 2);
        assert_int_equal(cmds[1].out.step.decision, DECISION_PROCEED);
        before = w.ws.agents_version;
        memory_store_forget(&w.m, &w.ws);
        assert_true(w.ws.agents_version > before);
        submit(&w, 1, DECISION_DENIED);
        world_free(&w);
    }
}

/* What another kernel has set is seen at once where there may be another kernel. */
static void test_another_kernel_sets_a_policy(void **state)
{
    struct world w;
    struct command set;
    struct agent *stored;

    (void)state;
    begin(&w, 1);
    submit(&w, 1, DECISION_PROCEED);
    setting(&w, &set, DENIES);
    stored = map_get(&w.m.agents, STR("a"));
    stored->has_policy = true;
    stored->policy_hash = set.in.policy_set.hash;
    submit(&w, 2, DECISION_DENIED);
    world_free(&w);
}

/* Nor does the group that read it leave anything behind. */
static void test_only_the_one_writer_remembers(void **state)
{
    (void)state;
    ON_BOTH(w)
    {
        struct world w;
        struct execution *exec;

        begin(&w, both_);
        ws_need_execution(&w.ws, &w.id);
        ws_need_agent(&w.ws, STR("a"), false);
        memory_store_load(&w.m, &w.ws);
        exec = ws_execution(&w.ws, &w.id);
        assert_non_null(ws_agent_bundle(&w.ws, exec));
        assert_int_equal(ws_remembers_bundle(&w.ws, exec), both_ == 0);
        ws_end_group(&w.ws);
        world_free(&w);
    }
}

/* A process that has just started: its set has seen no agent change, and no agent. */
static void test_a_new_set(void **state)
{
    struct world w;
    struct policy_cache *policies;

    (void)state;
    begin(&w, 0);
    set_policy(&w, DENIES);
    policies = w.ws.policies;
    ws_free(&w.ws);
    ws_init(&w.ws, &w.settings, &w.ids, &w.random);
    w.ws.keep_leased = true;
    w.ws.policies = policies;
    submit(&w, 1, DECISION_DENIED);
    world_free(&w);
}

/* An execution that comes back into the set has remembered nothing, whatever its row holds. */
static void test_a_row_that_leaves_and_comes_back(void **state)
{
    struct execution kept = {0};
    struct world w;
    struct execution *exec;

    (void)state;
    begin(&w, 0);
    submit(&w, 1, DECISION_PROCEED);
    exec = ws_execution(&w.ws, &w.id);
    assert_true(ws_remembers_bundle(&w.ws, exec));
    kept.id.b[0] = 1;
    kept.agent_id = STR("a");
    kept.bundle = exec->bundle;
    assert_false(ws_remembers_bundle(&w.ws, ws_put_execution(&w.ws, &kept, NULL)));
    ws_end_group(&w.ws);

    pass(&w, 121 * US_PER_S);
    assert_true(reclaim(&w)); /* it leaves */
    assert_null(ws_execution(&w.ws, &w.id));
    set_policy(&w, DENIES);
    claim(&w);
    delivered(&w, true);
    submit(&w, 2, DECISION_DENIED);
    set_policy(&w, ALLOWS);
    submit(&w, 3, DECISION_PROCEED);
    world_free(&w);
}

/* Rules refuse to remove an agent that has live executions; the set does not rely on it. */
static void test_an_agent_that_goes_and_comes(void **state)
{
    struct world w;
    struct execution *exec;
    struct agent *agent;

    (void)state;
    begin(&w, 0);
    set_policy(&w, DENIES);
    submit(&w, 1, DECISION_DENIED);
    exec = ws_execution(&w.ws, &w.id);
    assert_true(ws_remembers_bundle(&w.ws, exec));
    ws_need_agent(&w.ws, STR("a"), true);
    memory_store_load(&w.m, &w.ws);
    agent = ws_agent(&w.ws, STR("a"));
    agent->removed = true;
    ws_touch_agent(&w.ws, agent, 0);
    assert_null(ws_agent_bundle(&w.ws, exec));
    ws_new_agent(&w.ws, STR("a"));
    assert_false(ws_agent_bundle(&w.ws, exec)->has_policy);
    memory_store_forget(&w.m, &w.ws);
    submit(&w, 2, DECISION_DENIED);
    world_free(&w);
}

/* A new agent alone is a change too: what was remembered was of an earlier one of its name. */
static void test_a_new_agent(void **state)
{
    struct world w;
    struct execution *exec;

    (void)state;
    begin(&w, 0);
    submit(&w, 1, DECISION_PROCEED);
    exec = ws_execution(&w.ws, &w.id);
    ws_new_agent(&w.ws, STR("a"));
    assert_false(ws_remembers_bundle(&w.ws, exec));
    memory_store_forget(&w.m, &w.ws);
    world_free(&w);
}

/* ---- at random ---- */

static const char *const BUNDLES[] = {ALLOWS, DENIES};

static int said(const struct command *cmd)
{
    return cmd->out.step.decision == DECISION_PROCEED ? 0 : 1;
}

/* One group of random commands; whether a step may run is a matter of the last setting before it. A
 * group that is lost has set nothing. */
static void random_group(struct world *w, struct prng *r, int *current, int *calls)
{
    struct command cmds[6];
    int want[6], now = *current;
    size_t n = 1 + prng_below(r, 6);

    for (size_t i = 0; i < n; i++) {
        want[i] = -1;
        if (prng_below(r, 4) == 0) {
            now = (int)prng_below(r, 2);
            setting(w, &cmds[i], BUNDLES[now]);
            continue;
        }
        want[i] = now;
        fill_call(w, &cmds[i], "t", arena_printf(&w->arena, "%d", ++*calls).p);
    }
    decide_group(w, cmds, n);
    for (size_t i = 0; i < n; i++)
        if (want[i] >= 0)
            CHECKF(said(&cmds[i]) == want[i], "command %zu of %zu", i, n);
    if (prng_below(r, 5) == 0) {
        memory_store_forget(&w->m, &w->ws);
        return;
    }
    apply_group(w);
    *current = now;
}

static void test_random_groups(void **state)
{
    (void)state;
    for (uint64_t seed = 1; seed <= 40; seed++) {
        struct world w;
        struct prng r;
        int current = 0, calls = 0;

        prng_seed(&r, seed);
        begin(&w, (int)(seed % 2));
        for (int i = 0; i < 60; i++)
            random_group(&w, &r, &current, &calls);
        world_free(&w);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_the_agent_is_named_once),
        cmocka_unit_test(test_a_policy_counts_for_the_next_step),
        cmocka_unit_test(test_a_registration_brings_a_policy),
        cmocka_unit_test(test_within_one_group),
        cmocka_unit_test(test_a_group_that_failed),
        cmocka_unit_test(test_another_kernel_sets_a_policy),
        cmocka_unit_test(test_only_the_one_writer_remembers),
        cmocka_unit_test(test_a_new_set),
        cmocka_unit_test(test_a_row_that_leaves_and_comes_back),
        cmocka_unit_test(test_an_agent_that_goes_and_comes),
        cmocka_unit_test(test_a_new_agent),
        cmocka_unit_test(test_random_groups),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
