/* SPDX-License-Identifier: Apache-2.0
 * The cache of compiled bundles. */
#include "support/policy.h"

#include <pthread.h>

#include "policy/cache.h"

static void hash_of(int number, struct hash *out)
{
    hash_sha256(str_make(&number, sizeof number), out);
}

static void knows_what_was_put(void **state)
{
    struct policy_cache *c = policy_cache_new();
    struct policy *p = must_load(STR("default_action: allow"));
    struct hash broken;
    bool known = true;

    (void)state;
    assert_null(policy_cache_get(c, policy_hash(p), &known));
    assert_false(known);
    policy_cache_put(c, policy_hash(p), p);
    struct policy *got = policy_cache_get(c, policy_hash(p), &known);
    assert_true(known && got == p);
    policy_unref(got);
    hash_of(1, &broken);
    policy_cache_put(c, &broken, NULL); /* does not compile */
    assert_null(policy_cache_get(c, &broken, &known));
    assert_true(known);
    policy_cache_free(c);
    policy_cache_free(NULL);
    CHECK_STR(evaluate(p, KIND_TOOL_CALL, STR("t"), STR("{}")).rule_id, STR("default")); /* ours */
    policy_unref(p);
}

static void the_last_put_counts(void **state)
{
    struct policy_cache *c = policy_cache_new();
    struct policy *p = must_load(STR("default_action: allow"));
    bool known;

    (void)state;
    policy_cache_put(c, policy_hash(p), NULL);
    policy_cache_put(c, policy_hash(p), p);
    struct policy *got = policy_cache_get(c, policy_hash(p), &known);
    assert_ptr_equal(got, p);
    policy_unref(got);
    policy_cache_put(c, policy_hash(p), NULL);
    assert_null(policy_cache_get(c, policy_hash(p), &known));
    assert_true(known);
    policy_unref(p);
    policy_cache_free(c);
}

/* What was used last stays, what was not used for longest goes; what is held outlives the cache's
 * own reference. */
static void forgets_the_oldest(void **state)
{
    enum { MANY = 2000 };
    struct policy_cache *c = policy_cache_new();
    struct policy *p = must_load(STR("default_action: allow"));
    struct hash first, second, hash;
    bool known;

    (void)state;
    hash_of(0, &first);
    hash_of(1, &second);
    for (int i = 0; i < MANY; i++) {
        hash_of(i, &hash);
        policy_cache_put(c, &hash, p);
        policy_unref(policy_cache_get(c, &first, &known)); /* in use all the time */
        assert_true(known);
    }
    policy_unref(policy_cache_get(c, &second, &known));
    assert_false(known);
    policy_unref(policy_cache_get(c, &hash, &known)); /* the last one */
    assert_true(known);
    policy_cache_free(c);
    policy_unref(p);
}

/* By size: a bundle of many rules takes megabytes. */
static void holds_a_bounded_amount(void **state)
{
    enum { RULE_COUNT = 2000, COPIES = 100 };
    struct policy_cache *c = policy_cache_new();
    struct buf yaml = {0};
    struct hash hash;
    int kept = 0;
    bool known;

    (void)state;
    buf_add_z(&yaml, "rules:\n");
    for (int i = 0; i < RULE_COUNT; i++)
        buf_printf(&yaml,
                   "- {id: r%d, when: {arguments: {a: {regex: 'x%d'}}}, then: {decision: deny}}\n",
                   i, i);
    struct policy *p = must_load(buf_str(&yaml));
    for (int i = 0; i < COPIES; i++) {
        hash_of(i, &hash);
        policy_cache_put(c, &hash, p);
    }
    for (int i = 0; i < COPIES; i++) {
        hash_of(i, &hash);
        policy_unref(policy_cache_get(c, &hash, &known));
        kept += known;
    }
    CHECKF(kept >= 1 && kept < 20, "%d bundles of %d rules", kept, RULE_COUNT);
    policy_cache_free(c);
    policy_unref(p);
    buf_free(&yaml);
}

struct crowd {
    struct policy_cache *cache;
    int seed;
};

static void *put_and_get(void *arg)
{
    const struct crowd *crowd = arg;
    struct str yaml = STR("rules:\n- {id: a, when: {target: 'a*'}, then: {decision: allow}}\n");
    struct policy_input in = {STR("x"), KIND_TOOL_CALL, STR("ab"), STR("{}")};
    struct policy_match match;
    struct hash hash;
    struct err e;
    bool known;

    for (int i = 0; i < 300; i++) {
        hash_of(crowd->seed + i % 40, &hash);
        struct policy *p = policy_cache_get(crowd->cache, &hash, &known);
        if (p == NULL) {
            p = policy_compile(yaml, "", &e);
            policy_cache_put(crowd->cache, &hash, p);
        }
        policy_evaluate(p, &in, &match);
        policy_unref(p);
        if (match.rule != 0)
            return arg;
    }
    return NULL;
}

static void threads_share_it(void **state)
{
    struct crowd crowds[4];
    pthread_t threads[COUNT(crowds)];
    struct policy_cache *c = policy_cache_new();
    void *wrong;

    (void)state;
    for (size_t i = 0; i < COUNT(crowds); i++) {
        crowds[i] = (struct crowd){c, (int)i * 20};
        assert_int_equal(pthread_create(&threads[i], NULL, put_and_get, &crowds[i]), 0);
    }
    for (size_t i = 0; i < COUNT(threads); i++) {
        pthread_join(threads[i], &wrong);
        assert_null(wrong);
    }
    policy_cache_free(c);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(knows_what_was_put), cmocka_unit_test(the_last_put_counts),
        cmocka_unit_test(forgets_the_oldest), cmocka_unit_test(holds_a_bounded_amount),
        cmocka_unit_test(threads_share_it),
    };

    return cmocka_run_group_tests_name("policy_cache", tests, NULL, NULL);
}
