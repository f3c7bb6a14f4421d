/* SPDX-License-Identifier: Apache-2.0
 * The state machines, as docs/events.md draws them. */
#include "support/check.h"

#include "domain/types.h"

enum { EXECUTION_STATES = EXECUTION_CANCELLED + 1, STEP_STATES = STEP_CANCELLED + 1 };

static void test_executions_move_as_drawn(void **state)
{
    static const char *const moves[] = {
        "pending>running",   "pending>cancelled", "running>blocked",
        "running>completed", "running>failed",    "running>cancelled",
        "blocked>running",   "blocked>cancelled", "blocked>failed"};
    (void)state;
    for (int from = 0; from < EXECUTION_STATES; from++) {
        for (int to = 0; to < EXECUTION_STATES; to++) {
            char move[64];
            bool drawn = false;

            snprintf(move, sizeof(move), "%s>%s",
                     execution_status_name((enum execution_status)from).p,
                     execution_status_name((enum execution_status)to).p);
            for (size_t i = 0; i < COUNT(moves); i++)
                drawn |= strcmp(move, moves[i]) == 0;
            CHECKF(execution_may_move((enum execution_status)from, (enum execution_status)to) ==
                       drawn,
                   "%s", move);
        }
    }
}

static void test_steps_move_as_drawn(void **state)
{
    static const char *const moves[] = {
        "proposed>executing",        "proposed>denied",          "proposed>awaiting_approval",
        "awaiting_approval>allowed", "awaiting_approval>denied", "allowed>executing",
        "allowed>cancelled",         "executing>succeeded",      "executing>failed",
        "executing>cancelled",       "executing>executing"};

    (void)state;
    for (int from = 0; from < STEP_STATES; from++) {
        for (int to = 0; to < STEP_STATES; to++) {
            char move[64];
            bool drawn = false;

            snprintf(move, sizeof(move), "%s>%s", step_status_name((enum step_status)from).p,
                     step_status_name((enum step_status)to).p);
            for (size_t i = 0; i < COUNT(moves); i++)
                drawn |= strcmp(move, moves[i]) == 0;
            CHECKF(step_may_move((enum step_status)from, (enum step_status)to) == drawn, "%s",
                   move);
        }
    }
}

static void test_terminal_states_have_no_way_out(void **state)
{
    (void)state;
    for (int from = 0; from < STEP_STATES; from++) {
        bool way_out = false;

        for (int to = 0; to < STEP_STATES; to++)
            way_out |= step_may_move((enum step_status)from, (enum step_status)to);
        CHECKF(way_out != step_status_is_terminal((enum step_status)from), "step state %d", from);
    }
    for (int from = 0; from < EXECUTION_STATES; from++) {
        bool way_out = false;

        for (int to = 0; to < EXECUTION_STATES; to++)
            way_out |= execution_may_move((enum execution_status)from, (enum execution_status)to);
        CHECKF(way_out != execution_status_is_terminal((enum execution_status)from),
               "execution state %d", from);
    }
}

static void test_names_parse_back(void **state)
{
    enum execution_status e;
    enum step_status s;
    enum step_kind k;
    enum idempotency i;

    (void)state;
    for (int n = 0; n < EXECUTION_STATES; n++)
        assert_true(execution_status_parse(execution_status_name((enum execution_status)n), &e) &&
                    (int)e == n);
    for (int n = 0; n < STEP_STATES; n++)
        assert_true(step_status_parse(step_status_name((enum step_status)n), &s) && (int)s == n);
    assert_true(step_kind_parse(STR("llm_call"), &k) && k == KIND_LLM_CALL);
    assert_true(idempotency_parse(STR("at_most_once"), &i) && i == AT_MOST_ONCE);
    assert_false(step_kind_parse(STR("LLM_CALL"), &k));
    assert_false(step_kind_parse(STR(""), &k));
    assert_false(idempotency_parse(STR("at_most_once "), &i));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_executions_move_as_drawn),
        cmocka_unit_test(test_steps_move_as_drawn),
        cmocka_unit_test(test_terminal_states_have_no_way_out),
        cmocka_unit_test(test_names_parse_back),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
