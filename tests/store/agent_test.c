/* SPDX-License-Identifier: Apache-2.0
 * Agents: what is applied comes back as it was, on both databases. */
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

#include "base/clock.h"
#include "support/store_both.h"
#include "support/store_fixture.h"

static struct agent *load_agent(struct fixture *f, const char *id, bool want_live)
{
    ws_need_agent(&f->ws, str_of(id), want_live);
    fixture_load(f);
    assert_true(ws_knows_agent(&f->ws, str_of(id)));
    return ws_agent(&f->ws, str_of(id));
}

/* As the API shows it: with what no rule looks at. */
static struct agent_view view_agent(struct fixture *f, const char *id)
{
    struct agent_view v;
    struct err e = {0};
    bool found;

    assert_true(store_read_agent(f->r, str_of(id), &f->arena, &v, &found, &e));
    assert_true(found);
    return v;
}

static struct str hash_str(const struct hash *h)
{
    return str_make(h->b, sizeof(h->b));
}

static void agent_round_trip(void **state)
{
    struct fixture f;
    struct agent *a;
    struct agent_view v;
    struct hash hash = fixture_hash(1);

    fixture_open(&f, *(enum fixture_kind *)*state);
    assert_null(load_agent(&f, "full", false));
    a = ws_new_agent(&f.ws, STR("full"));
    a->webhook_url = STR("https://example.com/hook?x=1");
    a->secret = ODD;
    a->previous_secret = STR("old");
    a->previous_secret_until = 123;
    a->policy_bundle = STR("rules: []\n");
    a->has_policy = true;
    a->policy_hash = hash;
    a->description = ODD;
    a->input_schema = STR("{}");
    a->output_schema = STR("null");
    a->lease_timeout_us = 45;
    a->registered_at = 678;
    fixture_commit(&f);
    fixture_reopen(&f);
    a = load_agent(&f, "full", false);
    assert_non_null(a);
    assert_str(a->webhook_url, STR("https://example.com/hook?x=1"));
    assert_str(a->secret, ODD);
    assert_str(a->previous_secret, STR("old"));
    assert_int_equal(a->previous_secret_until, 123);
    assert_int_equal(a->lease_timeout_us, 45);
    assert_int_equal(a->registered_at, 678);
    assert_true(a->has_policy);
    assert_str(hash_str(&a->policy_hash), hash_str(&hash));
    assert_false(a->live_known);
    v = view_agent(&f, "full");
    assert_str(v.webhook_url, STR("https://example.com/hook?x=1"));
    assert_str(v.secret, ODD);
    assert_str(v.previous_secret, STR("old"));
    assert_str(v.policy_bundle, STR("rules: []\n"));
    assert_str(v.description, ODD);
    assert_str(v.input_schema, STR("{}"));
    assert_str(v.output_schema, STR("null"));
    assert_int_equal(v.previous_secret_until, 123);
    assert_int_equal(v.lease_timeout_us, 45);
    assert_int_equal(v.registered_at, 678);
    fixture_close(&f);
}

/* A rule knows nothing of the parts that it does not change: they stay as they are. */
static void each_part_leaves_the_others(void **state)
{
    struct fixture f;
    struct agent *a;
    struct agent_view v;
    struct hash hash = fixture_hash(2);

    fixture_open(&f, *(enum fixture_kind *)*state);
    fixture_agent(&f, "a");
    a = load_agent(&f, "a", false);
    a->policy_bundle = STR("rules: []\n");
    a->has_policy = true;
    a->policy_hash = hash;
    ws_touch_agent(&f.ws, a, AGENT_POLICY);
    fixture_commit(&f);
    a = load_agent(&f, "a", false);
    a->description = ODD;
    a->input_schema = STR("{}");
    ws_touch_agent(&f.ws, a, AGENT_DESCRIPTION);
    fixture_commit(&f);
    a = load_agent(&f, "a", false);
    a->webhook_url = STR("http://new/");
    a->previous_secret = a->secret;
    a->previous_secret_until = 5;
    a->secret = STR("s2");
    ws_touch_agent(&f.ws, a, AGENT_REGISTRATION);
    fixture_commit(&f);
    a = load_agent(&f, "a", false);
    assert_str(hash_str(&a->policy_hash), hash_str(&hash));
    assert_str(a->secret, STR("s2"));
    v = view_agent(&f, "a");
    assert_str(v.policy_bundle, STR("rules: []\n"));
    assert_str(v.description, ODD);
    assert_str(v.input_schema, STR("{}"));
    assert_str(v.output_schema, STR_NONE);
    assert_str(v.webhook_url, STR("http://new/"));
    assert_str(v.previous_secret, STR("secret"));
    /* several at once, some of them taken back */
    a->previous_secret = STR_NONE;
    a->previous_secret_until = 0;
    ws_touch_agent(&f.ws, a, AGENT_REGISTRATION);
    a->policy_bundle = STR_NONE;
    a->has_policy = false;
    ws_touch_agent(&f.ws, a, AGENT_POLICY);
    a->output_schema = STR("null");
    ws_touch_agent(&f.ws, a, AGENT_DESCRIPTION);
    fixture_commit(&f);
    assert_false(load_agent(&f, "a", false)->has_policy);
    v = view_agent(&f, "a");
    assert_str(v.previous_secret, STR_NONE);
    assert_str(v.policy_bundle, STR_NONE);
    assert_str(v.description, STR_NONE);
    assert_str(v.output_schema, STR("null"));
    fixture_close(&f);
}

static void agent_removed_and_registered_anew(void **state)
{
    struct fixture f;
    struct agent *a;

    fixture_open(&f, *(enum fixture_kind *)*state);
    fixture_agent(&f, "a");
    a = load_agent(&f, "a", true);
    assert_true(a->live_known);
    assert_false(a->has_live);
    a->removed = true;
    ws_touch_agent(&f.ws, a, 0);
    a = ws_new_agent(&f.ws, STR("a"));
    a->webhook_url = STR("http://new/");
    a->secret = STR("s2");
    a->registered_at = 9;
    fixture_commit(&f);
    a = load_agent(&f, "a", false);
    assert_str(a->webhook_url, STR("http://new/"));
    a->removed = true;
    ws_touch_agent(&f.ws, a, 0);
    fixture_commit(&f);
    assert_null(load_agent(&f, "a", false));
    fixture_close(&f);
}

static void agent_has_live_executions(void **state)
{
    struct fixture f;
    struct uuid id;
    struct execution *x;

    fixture_open(&f, *(enum fixture_kind *)*state);
    fixture_agent(&f, "a");
    fixture_agent(&f, "b");
    fixture_load(&f);
    x = fixture_execution(&f, "a");
    id = x->id;
    fixture_commit(&f);
    ws_need_agent(&f.ws, STR("b"), true);
    ws_need_agent(&f.ws, STR("a"), false); /* named twice: want_live wins */
    assert_true(load_agent(&f, "a", true)->has_live);
    assert_false(ws_agent(&f.ws, STR("b"))->has_live);
    fixture_commit(&f);
    x = fixture_get(&f, &id);
    x->status = EXECUTION_COMPLETED;
    ws_touch_execution(&f.ws, x);
    ws_retire_dispatch(&f.ws, x);
    fixture_commit(&f);
    assert_false(load_agent(&f, "a", true)->has_live);
    fixture_close(&f);
}

/* ---- who waits for whom ---- */

static void wait_until_blocked(struct fixture *f)
{
    int64_t until = clock_mono_us() + 10 * US_PER_S;

    while (strcmp(fixture_sql(f, "SELECT count(*) FROM pg_locks WHERE NOT granted"), "0") == 0)
        assert_true(clock_mono_us() < until);
}

/* A submission reads its agent's row whoever holds it, and nobody waits for the submission. */
static void readers_take_no_lock(void **state)
{
    struct fixture f, second;

    fixture_open(&f, *(enum fixture_kind *)*state);
    fixture_agent(&f, "a");
    fixture_second_open(&f, &second);
    assert_non_null(load_agent(&f, "a", true)); /* held alone */
    assert_non_null(load_agent(&second, "a", false));
    fixture_commit(&f);
    assert_non_null(load_agent(&f, "a", true)); /* while the second group is still open */
    fixture_commit(&second);
    fixture_commit(&f);
    fixture_second_close(&second);
    fixture_close(&f);
}

static void *load_for_removal(void *arg)
{
    (void)load_agent(arg, "a", true);
    return NULL;
}

/* An agent is not removed under an execution that is being created. */
static void a_removal_waits_for_a_creation(void **state)
{
    struct fixture f, second;
    pthread_t thread;

    fixture_open(&f, *(enum fixture_kind *)*state);
    fixture_agent(&f, "a");
    fixture_second_open(&f, &second);
    (void)load_agent(&f, "a", false); /* a submission of the same group was asked first */
    assert_false(ws_agent(&f.ws, STR("a"))->kept);
    ws_need_agent_kept(&f.ws, STR("a"));
    fixture_load(&f);
    assert_true(ws_agent(&f.ws, STR("a"))->kept);
    fixture_execution(&f, "a");
    assert_int_equal(pthread_create(&thread, NULL, load_for_removal, &second), 0);
    wait_until_blocked(&f);
    fixture_commit(&f);
    pthread_join(thread, NULL);
    assert_true(ws_agent(&second.ws, STR("a"))->has_live);
    fixture_commit(&second);
    fixture_second_close(&second);
    fixture_close(&f);
}

/* However an agent is named, one row of it is loaded, held as the strongest of them wants. */
static void an_agent_named_in_every_way(void **state)
{
    enum { AGENTS = 40 };
    struct fixture f;
    char names[AGENTS][8];

    fixture_open(&f, *(enum fixture_kind *)*state);
    for (size_t i = 0; i < AGENTS; i++) {
        snprintf(names[i], sizeof(names[i]), "a%zu", i);
        if (i % 4 != 3)
            fixture_agent(&f, names[i]);
    }
    for (size_t i = 0; i < AGENTS; i++) {
        ws_need_agent(&f.ws, str_of(names[i]), false);
        if (i % 3 == 1)
            ws_need_agent_kept(&f.ws, str_of(names[i]));
        if (i % 3 == 2)
            ws_need_agent(&f.ws, str_of(names[i]), true);
        ws_need_agent(&f.ws, str_of(names[i]), false);
    }
    fixture_load(&f);
    for (size_t i = 0; i < AGENTS; i++) {
        const struct agent *a = ws_agent(&f.ws, str_of(names[i]));

        assert_true(ws_knows_agent(&f.ws, str_of(names[i])));
        assert_int_equal(a != NULL, i % 4 != 3);
        if (a == NULL)
            continue;
        assert_str(a->id, str_of(names[i]));
        assert_int_equal(a->live_known, i % 3 == 2);
        assert_int_equal(a->kept, i % 3 != 0 || store_is_sqlite(f.store));
    }
    fixture_close(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        ON_BOTH(agent_round_trip),
        ON_BOTH(agent_removed_and_registered_anew),
        ON_BOTH(agent_has_live_executions),
        ON_BOTH(each_part_leaves_the_others),
        ON_BOTH(an_agent_named_in_every_way),
        ON_POSTGRES(readers_take_no_lock),
        ON_POSTGRES(a_removal_waits_for_a_creation),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
