/* SPDX-License-Identifier: Apache-2.0
 * Agents: what is applied comes back as it was, on both databases. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

#include "support/store_both.h"
#include "support/store_fixture.h"

static const struct str ODD =
    STR_INIT("a\0b\x01\xff\xfe ' \" \\ \xe2\x82\xac"); /* text of users may hold any byte */

static void assert_str(struct str got, struct str want)
{
    assert_int_equal(str_present(got), str_present(want));
    assert_int_equal(got.n, want.n);
    if (want.n > 0)
        assert_memory_equal(got.p, want.p, want.n);
}

static struct agent *load_agent(struct fixture *f, const char *id, bool want_live)
{
    ws_need_agent(&f->ws, str_of(id), want_live);
    fixture_load(f);
    assert_true(ws_knows_agent(&f->ws, str_of(id)));
    return ws_agent(&f->ws, str_of(id));
}

static void agent_round_trip(void **state)
{
    struct fixture f;
    struct agent *a;

    fixture_open(&f, *(enum fixture_kind *)*state);
    assert_null(load_agent(&f, "full", false));
    a = ws_new_agent(&f.ws, STR("full"));
    a->webhook_url = STR("https://example.com/hook?x=1");
    a->secret = ODD;
    a->previous_secret = STR("old");
    a->previous_secret_until = 123;
    a->policy_bundle = STR("rules: []\n");
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
    assert_str(a->policy_bundle, STR("rules: []\n"));
    assert_str(a->description, ODD);
    assert_str(a->input_schema, STR("{}"));
    assert_str(a->output_schema, STR("null"));
    assert_int_equal(a->lease_timeout_us, 45);
    assert_int_equal(a->registered_at, 678);
    assert_false(a->live_known);
    a->description = a->previous_secret = a->input_schema = STR_NONE;
    a->previous_secret_until = a->lease_timeout_us = 0;
    a->policy_bundle = STR("");
    ws_touch_agent(&f.ws, a);
    fixture_commit(&f);
    a = load_agent(&f, "full", false);
    assert_str(a->description, STR_NONE);
    assert_str(a->previous_secret, STR_NONE);
    assert_str(a->input_schema, STR_NONE);
    assert_str(a->policy_bundle, STR(""));
    assert_int_equal(a->lease_timeout_us, 0);
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
    ws_touch_agent(&f.ws, a);
    a = ws_new_agent(&f.ws, STR("a"));
    a->webhook_url = STR("http://new/");
    a->secret = STR("s2");
    a->registered_at = 9;
    fixture_commit(&f);
    a = load_agent(&f, "a", false);
    assert_str(a->webhook_url, STR("http://new/"));
    a->removed = true;
    ws_touch_agent(&f.ws, a);
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

int main(void)
{
    const struct CMUnitTest tests[] = {
        ON_BOTH(agent_round_trip),
        ON_BOTH(agent_removed_and_registered_anew),
        ON_BOTH(agent_has_live_executions),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
