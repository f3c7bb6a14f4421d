/* SPDX-License-Identifier: Apache-2.0
 * Sessions by tables: what the next turn takes over when the one before ends in the very group that
 * starts it. */
#include "support/check.h"

#include "kernel/event.h"
#include "support/rules_world.h"

static void decide_all(struct world *w, struct command *cmds, size_t n)
{
    decide_group(w, cmds, n);
    for (size_t i = 0; i < n; i++)
        CHECKF(cmds[i].verdict == VERDICT_DONE, "command %zu: %s", i, cmds[i].err.message);
    apply_group(w);
}

static struct uuid turn(struct world *w)
{
    struct command cmd = {.type = COMMAND_CREATE};

    cmd.in.create = (struct execution_creation){
        .agent_id = STR("a"), .created_by = STR("me"), .session = STR("s")};
    decide(w, &cmd);
    assert_int_equal(cmd.verdict, VERDICT_DONE);
    return cmd.out.created.id;
}

static struct command registering(struct world *w)
{
    struct command cmd = {.type = COMMAND_RESOURCE_REGISTER};

    cmd.in.resource_register = (struct resource_registration){.execution_id = w->id,
                                                              .agent_id = STR("a"),
                                                              .lease = lease(w),
                                                              .key = STR("ws"),
                                                              .driver_id = STR("d")};
    hash_sha256(STR("null"), &cmd.in.resource_register.configuration_hash);
    return cmd;
}

static struct command finishing(struct world *w, bool failed)
{
    struct command cmd = {.type = COMMAND_FINISH};

    cmd.in.finish = (struct execution_finish){.execution_id = w->id,
                                              .agent_id = STR("a"),
                                              .lease = lease(w),
                                              .failed = failed,
                                              .error = STR("no"),
                                              .output = STR("1")};
    return cmd;
}

static struct command admitting(void)
{
    struct command cmd = {.type = COMMAND_ADMIT};

    cmd.in.admit = STR("s");
    return cmd;
}

/* The second turn ends, in a group with what starts the third: that continues the second, and has
 * what it registered, be it in the same group or before. One that failed is nobody's parent. */
static void test_ends_and_starts_in_one_group(void **state)
{
    (void)state;
    ON_BOTH(w) for (int i = 0; i < 4; i++)
    {
        bool before = i < 2, failed = i % 2 == 1;
        struct world w;
        struct uuid first, second, third;
        struct command cmds[3];
        size_t n = 0;

        world_init(&w, both_ == 0);
        first = w.id = turn(&w);
        second = turn(&w);
        third = turn(&w);
        claim(&w);
        cmds[0] = finishing(&w, false);
        decide(&w, &cmds[0]);
        cmds[0] = admitting();
        decide(&w, &cmds[0]);
        w.id = second;
        assert_true(uuid_eq(&row(&w)->parent, &first));
        claim(&w);
        cmds[0] = registering(&w);
        if (before)
            decide(&w, &cmds[0]);
        else
            cmds[n++] = registering(&w);
        cmds[n++] = finishing(&w, failed);
        cmds[n++] = admitting();
        decide_all(&w, cmds, n);
        w.id = third;
        assert_int_equal(row(&w)->status, EXECUTION_RUNNING);
        assert_true(uuid_eq(&row(&w)->parent, failed ? &first : &second));
        CHECK_STR(log_types(&w), failed ? STR("execution.created execution.started dispatch.queued")
                                        : STR("execution.created resource.registered "
                                              "execution.started dispatch.queued"));
        world_free(&w);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_ends_and_starts_in_one_group)};

    return cmocka_run_group_tests(tests, NULL, NULL);
}
