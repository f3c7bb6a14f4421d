/* SPDX-License-Identifier: Apache-2.0
 * What is applied comes back as it was: every kind of row, on both databases with production
 * settings. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

#include "base/clock.h"
#include "support/check.h"
#include "support/store_both.h"
#include "support/store_fixture.h"

/* ---- executions ---- */

static void execution_round_trip(void **state)
{
    struct fixture f;
    struct uuid id, dispatch;
    struct execution *x;
    struct call_key calls[2] = {fixture_call(1), fixture_call(2)};
    struct execution_view v;
    struct err e = {0};
    bool found;

    fixture_open(&f, *(enum fixture_kind *)*state);
    fixture_agent(&f, "a");
    fixture_load(&f);
    x = fixture_execution(&f, "a");
    id = x->id;
    dispatch = x->dispatch->id;
    x->created_at = 1001;
    x->deadline_at = 1002;
    x->input = STR("{\"n\":1e2}");
    x->idempotency_key = STR("key-1");
    x->created_by = ODD;
    x->on_behalf_of = STR("");
    x->tokens = 5;
    buf_add(&x->indeterminate, str_make(calls[0].b, sizeof(calls[0].b)));
    buf_add(&x->parked, ODD);
    fixture_commit(&f);
    x = fixture_get(&f, &id);
    assert_non_null(x);
    assert_true(x->key != 0);
    assert_str(x->agent_id, STR("a"));
    assert_int_equal(x->status, EXECUTION_RUNNING);
    assert_int_equal(x->created_at, 1001);
    assert_int_equal(x->deadline_at, 1002);
    assert_int_equal(x->ended_at, 0);
    assert_int_equal(x->claim, 0);
    assert_int_equal(x->owner, OWNER_NONE);
    assert_true(uuid_is_nil(&x->owner_dispatch));
    assert_true(x->tallies_complete);
    assert_int_equal(x->owner_lease_us, 0);
    assert_int_equal(x->tokens, 5);
    assert_str(buf_str(&x->parked), ODD);
    assert_int_equal(x->indeterminate.n, sizeof(calls[0].b));
    assert_true(uuid_eq(&x->dispatch->id, &dispatch));
    fixture_claim(&f, x);
    x->owner_attempt = 7;
    x->owner_lease_us = 8;
    x->tokens = INT64_MAX;
    buf_clear(&x->parked);
    buf_add(&x->parked, STR("12"));
    buf_add(&x->indeterminate, str_make(calls[1].b, sizeof(calls[1].b)));
    fixture_event(&f, x, "dispatch.acked\t\n");
    fixture_commit(&f);
    fixture_reopen(&f);
    x = fixture_get(&f, &id);
    assert_int_equal(x->claim, 1);
    assert_int_equal(x->owner, OWNER_WORKING);
    assert_true(uuid_eq(&x->owner_dispatch, &dispatch));
    assert_int_equal(x->owner_attempt, 7);
    assert_int_equal(x->owner_lease_us, 8);
    assert_int_equal(x->tokens, INT64_MAX);
    assert_str(buf_str(&x->parked), STR("12"));
    assert_int_equal(x->last_seq, 2);
    assert_int_equal(x->indeterminate.n, sizeof(calls));
    assert_memory_equal(x->indeterminate.p, calls, sizeof(calls));
    x->status = EXECUTION_FAILED;
    x->failure_reason = ODD;
    x->output = STR("null");
    x->state = STR("");
    x->ended_at = 2000;
    x->owner = OWNER_NONE;
    buf_clear(&x->parked);
    ws_touch_execution(&f.ws, x);
    ws_retire_dispatch(&f.ws, x);
    fixture_event(&f, x, "execution.failed\t\n");
    fixture_commit(&f);
    x = fixture_get(&f, &id);
    assert_int_equal(x->parked.n, 0);
    assert_int_equal(x->status, EXECUTION_FAILED);
    assert_int_equal(x->ended_at, 2000);
    assert_null(x->dispatch);
    assert_int_equal(x->last_seq, 3);
    assert_true(store_read_execution(f.r, &id, &f.arena, &v, &found, &e));
    assert_true(found);
    assert_str(v.status, STR("failed"));
    assert_str(v.input, STR("{\"n\":1e2}"));
    assert_str(v.output, STR("null"));
    assert_str(v.failure_reason, ODD);
    assert_str(v.idempotency_key, STR("key-1"));
    assert_str(v.created_by, ODD);
    assert_str(v.on_behalf_of, STR(""));
    assert_int_equal(v.created_at, 1001);
    assert_int_equal(v.deadline_at, 1002);
    assert_int_equal(v.last_seq, 3);
    assert_true(v.updated_at > 2000); /* of the last event */
    assert_str(v.dispatch_status, STR_NONE);
    fixture_close(&f);
}

/* What the API says of each: it is parked while its ended delivery waits in the queue. */
static void a_parked_execution_is_shown(void **state)
{
    static const struct {
        enum owner_state owner;
        enum execution_status status;
        enum dispatch_status dispatch;
        bool rows, shown;
    } cases[] = {
        {OWNER_ENDED, EXECUTION_RUNNING, DISPATCH_QUEUED, true, true},
        {OWNER_ENDED, EXECUTION_RUNNING, DISPATCH_QUEUED, false, false},
        {OWNER_ENDED, EXECUTION_BLOCKED, DISPATCH_QUEUED, true, false},
        {OWNER_WORKING, EXECUTION_RUNNING, DISPATCH_ACKED, true, false},
        {OWNER_NONE, EXECUTION_RUNNING, DISPATCH_QUEUED, true, false},
        {OWNER_ENDED, EXECUTION_BLOCKED, DISPATCH_RETIRED, true, false}, /* there is none */
    };
    struct fixture f;
    struct uuid ids[COUNT(cases)];
    struct err e = {0};

    fixture_open(&f, *(enum fixture_kind *)*state);
    fixture_agent(&f, "a");
    fixture_load(&f);
    for (size_t i = 0; i < COUNT(cases); i++) {
        struct execution *x = fixture_execution(&f, "a");

        ids[i] = x->id;
        x->owner = cases[i].owner;
        x->status = cases[i].status;
        if (cases[i].rows)
            buf_add(&x->parked, STR("row"));
        if (cases[i].dispatch == DISPATCH_RETIRED)
            ws_retire_dispatch(&f.ws, x);
        else
            x->dispatch->status = cases[i].dispatch;
    }
    fixture_commit(&f);
    for (size_t i = 0; i < COUNT(cases); i++) {
        struct execution_view v;
        bool found;

        assert_true(store_read_execution(f.r, &ids[i], &f.arena, &v, &found, &e));
        CHECKF(v.parked == cases[i].shown, "case %zu", i);
    }
    fixture_close(&f);
}

static void execution_every_status(void **state)
{
    struct fixture f;
    struct uuid ids[6];

    fixture_open(&f, *(enum fixture_kind *)*state);
    fixture_agent(&f, "a");
    fixture_load(&f);
    for (unsigned s = 0; s < COUNT(ids); s++) {
        struct execution *x = fixture_execution(&f, "a");

        ids[s] = x->id;
        x->status = (enum execution_status)s;
    }
    fixture_commit(&f);
    for (unsigned s = 0; s < COUNT(ids); s++)
        assert_int_equal(fixture_get(&f, &ids[s])->status, s);
    fixture_close(&f);
}

static void request_keys(void **state)
{
    struct fixture f;
    struct uuid id, got;
    struct execution *x;

    fixture_open(&f, *(enum fixture_kind *)*state);
    fixture_agent(&f, "a");
    fixture_load(&f);
    x = fixture_execution(&f, "a");
    x->idempotency_key = STR("k");
    id = x->id;
    fixture_commit(&f);
    ws_need_request_key(&f.ws, STR("a"), STR("k"));
    ws_need_request_key(&f.ws, STR("a"), STR("other"));
    ws_need_request_key(&f.ws, STR("b"), STR("k"));
    fixture_load(&f);
    assert_true(ws_request_key(&f.ws, STR("a"), STR("k"), &got));
    assert_true(uuid_eq(&got, &id));
    assert_true(ws_knows_request_key(&f.ws, STR("a"), STR("other")));
    assert_false(ws_request_key(&f.ws, STR("a"), STR("other"), &got));
    assert_false(ws_request_key(&f.ws, STR("b"), STR("k"), &got));
    fixture_close(&f);
}

/* Two writers race for one request key: the second is told to decide again. */
static void request_key_taken(void **state)
{
    struct fixture f;
    struct err e = {0};
    bool unknown;

    fixture_open(&f, *(enum fixture_kind *)*state);
    fixture_agent(&f, "a");
    fixture_load(&f);
    fixture_execution(&f, "a")->idempotency_key = STR("k");
    fixture_commit(&f);
    fixture_load(&f);
    fixture_execution(&f, "a")->idempotency_key = STR("k");
    assert_false(store_commit(f.w, &f.ws, &unknown, &e));
    assert_int_equal(e.code, ERR_STORE_RACE);
    assert_false(unknown);
    ws_clear(&f.ws);
    fixture_load(&f); /* the writer is as good as before */
    fixture_execution(&f, "a")->idempotency_key = STR("k2");
    fixture_commit(&f);
    fixture_close(&f);
}

/* ---- steps and events ---- */

static struct step *load_step(struct fixture *f, const struct uuid *execution,
                              const struct hash *id)
{
    ws_need_step(&f->ws, execution, id);
    fixture_load(f);
    assert_true(ws_knows_step(&f->ws, id));
    return ws_step(&f->ws, id);
}

static void step_round_trip(void **state)
{
    struct fixture f;
    struct uuid id;
    struct hash h = fixture_hash(1), absent = fixture_hash(2);
    struct execution *x;
    struct step *s;

    fixture_open(&f, *(enum fixture_kind *)*state);
    fixture_agent(&f, "a");
    fixture_load(&f);
    x = fixture_execution(&f, "a");
    id = x->id;
    s = fixture_step(&f, x, &h, STR("[1.0]"));
    free((void *)(uintptr_t)s->target.p);
    s->target = str_make(xstrdup(ODD), ODD.n);
    s->kind = KIND_LOCAL;
    s->occurrence = 5;
    s->claim = 6;
    s->created_at = 21;
    s->started_at = 22;
    fixture_commit(&f);
    fixture_reopen(&f);
    s = load_step(&f, &id, &h); /* brings its execution */
    assert_non_null(s);
    assert_ptr_equal(s->execution, ws_execution(&f.ws, &id));
    assert_str(s->target, ODD);
    assert_int_equal(s->kind, KIND_LOCAL);
    assert_int_equal(s->occurrence, 5);
    assert_int_equal(s->status, STEP_EXECUTING);
    assert_int_equal(s->idempotency, AT_MOST_ONCE);
    assert_int_equal(s->claim, 6);
    assert_int_equal(s->created_at, 21);
    assert_int_equal(s->started_at, 22);
    assert_int_equal(s->completed_at, 0);
    assert_str(s->result, STR_NONE);
    assert_str(s->error, STR_NONE);
    s->status = STEP_FAILED;
    s->error = STR("null");
    s->rule_id = ODD;
    s->completed_at = 23;
    ws_touch_step(&f.ws, s);
    ws_step_left_live(s);
    fixture_commit(&f);
    s = load_step(&f, &id, &h);
    assert_int_equal(s->status, STEP_FAILED);
    assert_str(s->error, STR("null"));
    assert_str(s->result, STR_NONE);
    assert_str(s->rule_id, ODD);
    assert_int_equal(s->completed_at, 23);
    assert_null(load_step(&f, &id, &absent));
    fixture_close(&f);
}

/* A held step says which rule holds it, and later who denied it does not change that. */
static void step_held_and_decided(void **state)
{
    struct fixture f;
    struct uuid id;
    struct hash h = fixture_hash(1);
    struct execution *x;
    struct step *s;

    fixture_open(&f, *(enum fixture_kind *)*state);
    fixture_agent(&f, "a");
    fixture_load(&f);
    x = fixture_execution(&f, "a");
    id = x->id;
    s = fixture_step(&f, x, &h, STR("{}"));
    s->status = STEP_AWAITING_APPROVAL;
    s->started_at = 0;
    s->rule_id = STR("hold");
    fixture_commit(&f);
    s = load_step(&f, &id, &h);
    assert_int_equal(s->status, STEP_AWAITING_APPROVAL);
    assert_int_equal(s->started_at, 0);
    assert_str(s->rule_id, STR("hold"));
    s->status = STEP_DENIED;
    s->error = STR("{}");
    s->rule_id = STR_NONE; /* a set that kept the row between groups has it no more */
    s->completed_at = 9;
    ws_touch_step(&f.ws, s);
    ws_step_left_live(s);
    fixture_commit(&f);
    s = load_step(&f, &id, &h);
    assert_int_equal(s->status, STEP_DENIED);
    assert_str(s->rule_id, STR("hold"));
    fixture_close(&f);
}

static void step_every_status(void **state)
{
    struct fixture f;
    struct uuid id;
    struct execution *x;

    fixture_open(&f, *(enum fixture_kind *)*state);
    fixture_agent(&f, "a");
    fixture_load(&f);
    x = fixture_execution(&f, "a");
    id = x->id;
    for (unsigned i = 0; i < 8 * 3; i++) {
        struct hash h = fixture_hash(i);
        struct step *s = fixture_step(&f, x, &h, STR_NONE);

        s->status = (enum step_status)(i % 8);
        s->kind = (enum step_kind)(i % 3);
        s->idempotency = (enum idempotency)(i % 2);
        if (step_status_is_terminal(s->status))
            ws_step_left_live(s);
    }
    fixture_commit(&f);
    for (unsigned i = 0; i < 8 * 3; i++) {
        struct hash h = fixture_hash(i);
        struct step *s = load_step(&f, &id, &h);

        assert_int_equal(s->status, i % 8);
        assert_int_equal(s->kind, i % 3);
        assert_int_equal(s->idempotency, i % 2);
    }
    fixture_commit(&f);
    fixture_reopen(&f);
    ws_need_live_steps(&f.ws, &id);
    fixture_load(&f);
    x = ws_execution(&f.ws, &id);
    assert_true(x->live_known);
    assert_int_equal(x->n_live, 4 * 3);
    for (size_t i = 1; i < x->n_live; i++)
        assert_true(x->live[i - 1]->key < x->live[i]->key);
    fixture_close(&f);
}

static void last_seq_comes_from_the_log(void **state)
{
    struct fixture f;
    struct uuid id;
    struct execution *x;

    fixture_open(&f, *(enum fixture_kind *)*state);
    fixture_agent(&f, "a");
    fixture_load(&f);
    x = fixture_execution(&f, "a");
    id = x->id;
    fixture_commit(&f);
    for (int i = 0; i < 5; i++) {
        x = fixture_get(&f, &id);
        fixture_event(&f, x, "a\t\nb\t\nc\t\n"); /* the row of the execution is not touched */
        fixture_commit(&f);
    }
    fixture_reopen(&f);
    assert_int_equal(fixture_get(&f, &id)->last_seq, 16);
    fixture_close(&f);
}

/* ---- a group ---- */

static void group_of_many_executions(void **state)
{
    enum { N = 64, STEPS = 5 };
    struct fixture f;
    struct uuid ids[N];

    fixture_open(&f, *(enum fixture_kind *)*state);
    fixture_agent(&f, "a");
    fixture_load(&f);
    for (size_t i = 0; i < N; i++) {
        struct execution *x = fixture_execution(&f, "a");

        ids[i] = x->id;
        fixture_claim(&f, x);
    }
    fixture_commit(&f);
    for (unsigned s = 0; s < STEPS; s++) {
        for (size_t i = 0; i < N; i++) {
            struct tally_ref ref = {.execution_id = ids[i], .call = fixture_call(s % 2)};

            ws_need_tally(&f.ws, &ref);
        }
        fixture_load(&f);
        for (size_t i = 0; i < N; i++) {
            struct hash h = fixture_hash(i * 1000 + s);
            struct step *step = fixture_step(&f, ws_execution(&f.ws, &ids[i]), &h, STR("{}"));

            fixture_count(&f, step->execution, s % 2, NULL, &h);
            if (s % 2 == 0)
                fixture_settle(&f, step, STR("true"));
        }
        fixture_commit(&f);
    }
    fixture_reopen(&f);
    for (size_t i = 0; i < N; i++) {
        struct tally_ref ref = {.execution_id = ids[i], .call = fixture_call(0)};

        ws_need_live_steps(&f.ws, &ids[i]);
        ws_need_tally(&f.ws, &ref);
    }
    fixture_load(&f);
    for (size_t i = 0; i < N; i++) {
        struct execution *x = ws_execution(&f.ws, &ids[i]);
        struct call_key call = fixture_call(0);

        assert_int_equal(x->n_live, STEPS / 2);
        assert_int_equal(x->last_seq, 1 + STEPS * 3 + (STEPS + 1) / 2);
        assert_int_equal(ws_tally(x, &call), (STEPS + 1) / 2);
    }
    fixture_close(&f);
}

static void absent_rows_are_facts(void **state)
{
    struct fixture f;
    struct uuid id = {{7}};
    struct hash h = fixture_hash(3);
    struct tally_ref ref = {.execution_id = id, .has_key = true};

    fixture_open(&f, *(enum fixture_kind *)*state);
    ws_need_execution(&f.ws, &id);
    ws_need_step(&f.ws, &id, &h);
    ws_need_tally(&f.ws, &ref);
    ws_need_live_steps(&f.ws, &id);
    fixture_load(&f);
    assert_true(ws_knows_execution(&f.ws, &id));
    assert_null(ws_execution(&f.ws, &id));
    assert_true(ws_knows_step(&f.ws, &h));
    assert_null(ws_step(&f.ws, &h));
    assert_false(ws_has_needs(&f.ws));
    fixture_commit(&f);
    fixture_close(&f);
}

static void abandoned_changes_are_gone(void **state)
{
    struct fixture f;
    struct uuid id;

    fixture_open(&f, *(enum fixture_kind *)*state);
    fixture_agent(&f, "a");
    fixture_load(&f);
    id = fixture_execution(&f, "a")->id;
    store_abandon(f.w);
    ws_clear(&f.ws);
    assert_null(fixture_get(&f, &id));
    fixture_close(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        ON_BOTH(execution_round_trip),        ON_BOTH(a_parked_execution_is_shown),
        ON_BOTH(execution_every_status),      ON_BOTH(request_keys),
        ON_BOTH(request_key_taken),           ON_BOTH(step_round_trip),
        ON_BOTH(step_held_and_decided),       ON_BOTH(step_every_status),
        ON_BOTH(last_seq_comes_from_the_log), ON_BOTH(group_of_many_executions),
        ON_BOTH(absent_rows_are_facts),       ON_BOTH(abandoned_changes_are_gone),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
