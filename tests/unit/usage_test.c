/* SPDX-License-Identifier: Apache-2.0
 * Token counts in the shapes that the providers document. */
#include "support/check.h"

#include "base/json.h"
#include "domain/usage.h"

static struct usage of_body(const char *body)
{
    static struct arena a;
    struct buf result = {0};
    struct usage u;

    buf_add(&result, STR("{\"status\":200,\"headers\":{\"content-type\":\"x\"},\"body\":"));
    json_add_string(&result, str_of(body));
    buf_add_byte(&result, '}');
    u = usage_read(buf_str(&result), &a);
    buf_free(&result);
    arena_free(&a);
    return u;
}

static void test_shapes(void **state)
{
    static const struct {
        const char *body;
        int64_t in, out;
    } cases[] = {
        {"{\"usage\":{\"prompt_tokens\":12,\"completion_tokens\":34,\"total_tokens\":46}}", 12, 34},
        {"{\"usage\": {\"input_tokens\" : 5, \"output_tokens\" : 6 }}", 5, 6},
        {"{\"usageMetadata\":{\"promptTokenCount\":7,\"candidatesTokenCount\":8}}", 7, 8},
        {"{\"prompt_eval_count\":26,\"eval_count\":298}", 26, 298},
        {"{\"usage\":{\"inputTokens\":1,\"outputTokens\":2}}", 1, 2},
        {"data: "
         "{\"type\":\"message_start\",\"message\":{\"usage\":{\"input_tokens\":25,\"output_"
         "tokens\":1}}}\n\n"
         "data: {\"type\":\"message_delta\",\"usage\":{\"output_tokens\":15}}\n\n",
         25, 15},
        {"data: {\"choices\":[]}\r\n\r\ndata: "
         "{\"usage\":{\"prompt_tokens\":3,\"completion_tokens\":4}}\r\n\r\ndata: [DONE]\n",
         3, 4},
        {"{\"text\":\"\\\"input_tokens\\\": 99\"}", -1, -1}, /* in a string it is text */
        {"{\"input_tokens\":\"12\"}", -1, -1},
        {"{\"input_tokens\":null,\"output_tokens\":{}}", -1, -1},
        {"{\"choices\":[]}", -1, -1},
        {"no JSON with tokens", -1, -1},
        {"{\"input_tokens\":99999999999999999999}", -1, -1},
        {"{\"usage\":{\"input_tokens\":9}}", 9, -1},
        {"{\"response\":\"a\",\"done\":false}\n" /* Ollama's own streams have no data: */
         "{\"response\":\"\",\"done\":true,\"prompt_eval_count\":26,\"eval_count\":298}\n",
         26, 298},
        {"{\"done\":false}\r\n{\"eval_count\":2}\r\n{\"cut\":\"eval_count", -1, 2},
        {"event: x\nid: 1\n: {\"eval_count\":3}\neval_count: 4\ndata: {\"eval_count\":1}\n", -1, 1},
        {"{\"input_tokens\":12.0,\"output_tokens\":1.5e3}", 12, 1500},
        {"{\"input_tokens\":12.5,\"output_tokens\":1e-1}", -1, -1}, /* not 12, not 1 */
        {"{\"input_tokens\":1e300,\"output_tokens\":1e5}", -1, 100000},
        {"{\"input_tokens\":-12,\"output_tokens\":-0.0}", -1, -1},
    };

    (void)state;
    for (size_t i = 0; i < COUNT(cases); i++) {
        struct usage u = of_body(cases[i].body);

        CHECKF(u.input_tokens == cases[i].in && u.output_tokens == cases[i].out,
               "case %zu: %lld %lld", i, (long long)u.input_tokens, (long long)u.output_tokens);
    }
}

static void test_results_of_another_shape(void **state)
{
    struct arena a = {0};
    struct usage u = usage_read(STR("{\"usage\":{\"input_tokens\":1,\"output_tokens\":2}}"), &a);

    (void)state;
    assert_true(u.input_tokens == 1 && u.output_tokens == 2);
    assert_false(usage_known(usage_read(STR("\"input_tokens\""), &a)));
    assert_false(usage_known(usage_read(STR("null"), &a)));
    arena_free(&a);
}

/* A provider may answer what it likes: the sum that a budget looks at must not become smaller. */
static void test_sums(void **state)
{
    static const struct {
        int64_t sum;
        struct usage u;
        int64_t expected;
    } cases[] = {
        {5, {3, 4}, 12},
        {5, {-1, -1}, 5},
        {5, {-1, 4}, 9},
        {5, {0, 0}, 5},
        {0, {INT64_MAX, INT64_MAX}, INT64_MAX},
        {INT64_MAX - 1, {1, 1}, INT64_MAX},
        {INT64_MAX, {INT64_MAX, -1}, INT64_MAX},
        {1, {INT64_MAX - 1, -1}, INT64_MAX},
    };

    (void)state;
    for (size_t i = 0; i < COUNT(cases); i++)
        CHECKF(usage_add(cases[i].sum, cases[i].u) == cases[i].expected, "case %zu", i);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_shapes),
                                       cmocka_unit_test(test_results_of_another_shape),
                                       cmocka_unit_test(test_sums)};

    return cmocka_run_group_tests(tests, NULL, NULL);
}
