/* SPDX-License-Identifier: Apache-2.0
 * The judging model's question, and what its answers come to. */
#include "support/check.h"

#include "policy/judgement.h"

static void asks(void **state)
{
    const struct policy_input in = {STR("coder"), KIND_TOOL_CALL, STR("shell \"x\""),
                                    STR("{\"command\":\"ls\"}")};
    struct judge judge = {.instructions = STR("is it\nsafe?")};
    struct buf out = {0};

    (void)state;
    judgement_question(&out, &in, &judge);
    CHECK_STR(buf_str(&out), STR("{\"agent_id\":\"coder\",\"target\":\"shell \\\"x\\\"\","
                                 "\"arguments\":{\"command\":\"ls\"},"
                                 "\"instructions\":\"is it\\nsafe?\"}"));
    buf_clear(&out);
    judge.instructions = STR_NONE;
    judgement_question(&out, &in, &judge);
    CHECK_STR(buf_str(&out), STR("{\"agent_id\":\"coder\",\"target\":\"shell \\\"x\\\"\","
                                 "\"arguments\":{\"command\":\"ls\"},\"instructions\":\"\"}"));
    buf_free(&out);
}

#define HOLD POLICY_REQUIRE_APPROVAL
#define SCORES(allow, deny, hold)                                                                  \
    STR_INIT("{\"scores\":{\"allow\":" allow ",\"deny\":" deny ",\"require_approval\":" hold "}}")

static void reads_answers(void **state)
{
    static const struct {
        struct str answer;
        double threshold;
        enum policy_action fallback, action;
    } cases[] = {
        /* the top choice, when it reaches the threshold */
        {SCORES("0.9", "0.05", "0.05"), 0.6, HOLD, POLICY_ALLOW},
        {SCORES("0.1", "0.8", "0.1"), 0.6, HOLD, POLICY_DENY},
        {SCORES("0.1", "0.1", "0.8"), 0.6, POLICY_DENY, HOLD},
        {SCORES("0.6", "0.4", "0"), 0.6, HOLD, POLICY_ALLOW},
        {SCORES("0.59", "0.41", "0"), 0.6, HOLD, HOLD},
        {SCORES("0.59", "0.41", "0"), 0.6, POLICY_ALLOW, POLICY_ALLOW},
        {SCORES("0.59", "0.41", "0"), 0.5, POLICY_DENY, POLICY_ALLOW},
        {SCORES("1", "0", "0"), 1, HOLD, POLICY_ALLOW},
        {SCORES("0.999", "0", "0"), 1, POLICY_DENY, POLICY_DENY},
        {SCORES("0.34", "0.33", "0.33"), 0, POLICY_DENY, POLICY_ALLOW},
        {SCORES("1e-1", "0.0", "0.05e0"), 0.1, POLICY_DENY, POLICY_ALLOW},
        /* of equal scores the stricter */
        {SCORES("0.5", "0.5", "0"), 0.5, HOLD, POLICY_DENY},
        {SCORES("0.5", "0", "0.5"), 0.5, POLICY_DENY, HOLD},
        {SCORES("0.4", "0.4", "0.4"), 0.3, HOLD, POLICY_DENY},
        /* a choice that is not named has no score; other members are nobody's business, but a score
         * of something else makes the rest worth nothing */
        {STR_INIT("{\"scores\":{\"deny\":0.7}}"), 0.6, HOLD, POLICY_DENY},
        {STR_INIT(" {\"model\":\"m\",\"scores\":{\"allow\":0.7}} "), 0.6, HOLD, POLICY_ALLOW},
        {STR_INIT("{\"scores\":{\"allow\":1,\"other\":0.1}}"), 0.6, HOLD, HOLD},
        /* garbage */
        {{NULL, 0}, 0.6, POLICY_DENY, POLICY_DENY},
        {STR_INIT(""), 0.6, POLICY_DENY, POLICY_DENY},
        {STR_INIT("allow"), 0, POLICY_DENY, POLICY_DENY},
        {STR_INIT("{}"), 0, POLICY_DENY, POLICY_DENY},
        {STR_INIT("[]"), 0, POLICY_DENY, POLICY_DENY},
        {STR_INIT("\"scores\""), 0, POLICY_DENY, POLICY_DENY},
        {STR_INIT("{\"scores\":{}}"), 0, POLICY_DENY, POLICY_DENY},
        {STR_INIT("{\"scores\":null}"), 0, POLICY_DENY, POLICY_DENY},
        {STR_INIT("{\"scores\":[0.9]}"), 0, POLICY_DENY, POLICY_DENY},
        {STR_INIT("{\"scores\":{\"allow\":\"0.9\"}}"), 0, POLICY_DENY, POLICY_DENY},
        {STR_INIT("{\"scores\":{\"allow\":true}}"), 0, POLICY_DENY, POLICY_DENY},
        {STR_INIT("{\"scores\":{\"allow\":90}}"), 0, POLICY_DENY, POLICY_DENY},
        {STR_INIT("{\"scores\":{\"allow\":1e999}}"), 0, POLICY_DENY, POLICY_DENY},
        {STR_INIT("{\"scores\":{\"allow\":0.9,\"deny\":-0.1}}"), 0, POLICY_DENY, POLICY_DENY},
        {STR_INIT("{\"scores\":{\"allow\":NaN}}"), 0, POLICY_DENY, POLICY_DENY},
        {STR_INIT("{\"scores\":{\"allow\":0.9}"), 0, POLICY_DENY, POLICY_DENY},
        {STR_INIT("{\"scores\":{\"allow\":0.9}} x"), 0, POLICY_DENY, POLICY_DENY},
        {STR_INIT("{\"scores\":{\"allow\":0.9,\"allow\":0.1}}"), 0, POLICY_DENY, POLICY_DENY},
        {STR_INIT("{\"scores\":{\"deny\":1},\"scores\":{\"allow\":1}}"), 0, HOLD, HOLD},
        {STR_INIT("{\"Scores\":{\"allow\":1}}"), 0, POLICY_DENY, POLICY_DENY},
        {STR_INIT("\xff\xfe"), 0, POLICY_DENY, POLICY_DENY},
    };

    (void)state;
    for (size_t i = 0; i < COUNT(cases); i++) {
        const struct judge judge = {.threshold = cases[i].threshold, .fallback = cases[i].fallback};
        CHECKF(judgement_read(cases[i].answer, &judge) == cases[i].action, "%.*s",
               STR_ARG(cases[i].answer));
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(asks),
        cmocka_unit_test(reads_answers),
    };

    return cmocka_run_group_tests_name("policy_judgement", tests, NULL, NULL);
}
