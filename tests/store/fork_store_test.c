/* SPDX-License-Identifier: Apache-2.0
 * Forks in the store: pins, and copied steps whose payloads stand in another row. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

#include "support/check.h"
#include "support/fork_world.h"
#include "support/store_both.h"

enum { STEPS = 8, SMALL = 40, LARGE = 300 * 1000 };

/* ---- pins ---- */

static void a_pin_is_kept_until_it_is_dropped(void **state)
{
    struct fixture f;
    struct uuid source, fork, unknown;
    struct fork_pin *pin;
    int64_t key;

    fixture_open(&f, *(enum fixture_kind *)*state);
    fixture_agent(&f, "a");
    source = world_run(&f, STR_NONE, 0, SMALL);
    fork = world_pin(&f, &source);
    fixture_reopen(&f);
    unknown = fixture_uuid(&f);
    ws_need_fork(&f.ws, &fork);
    ws_need_fork(&f.ws, &unknown);
    fixture_load(&f);
    pin = ws_fork(&f.ws, &fork);
    assert_non_null(pin);
    key = pin->key;
    assert_true(key > 0);
    assert_true(uuid_eq(&pin->source, &source));
    assert_int_equal(pin->source_key, fixture_get(&f, &source)->key);
    assert_true(key != pin->source_key);
    assert_true(ws_knows_fork(&f.ws, &unknown));
    assert_null(ws_fork(&f.ws, &unknown));
    pin->touched_at = 1234567;
    ws_touch_fork(&f.ws, pin);
    fixture_commit(&f);
    ws_need_fork(&f.ws, &fork);
    fixture_load(&f);
    assert_int_equal(ws_fork(&f.ws, &fork)->touched_at, 1234567);
    ws_clear(&f.ws);
    store_abandon(f.w);
    world_appear(&f, &fork, &source);
    assert_int_equal(world_count(&f, "forks"), 0);
    assert_int_equal(world_count(&f, "unlinked"), 0);
    assert_int_equal(fixture_get(&f, &fork)->key, key);
    store_abandon(f.w);
    fixture_close(&f);
}

static void stale_forks_are_found(void **state)
{
    struct fixture f;
    struct uuid source, forks[3], *ids;
    struct err e;
    size_t n;

    fixture_open(&f, *(enum fixture_kind *)*state);
    fixture_agent(&f, "a");
    source = world_run(&f, STR_NONE, 0, SMALL);
    for (int i = 0; i < 3; i++) {
        forks[i] = world_pin(&f, &source);
        ws_need_fork(&f.ws, &forks[i]);
        fixture_load(&f);
        ws_fork(&f.ws, &forks[i])->touched_at = 100 * (i + 1);
        ws_touch_fork(&f.ws, ws_fork(&f.ws, &forks[i]));
        fixture_commit(&f);
    }
    assert_true(store_stale_forks(f.r, 100, 10, &f.arena, &ids, &n, &e));
    assert_int_equal(n, 0);
    assert_true(store_stale_forks(f.r, 300, 10, &f.arena, &ids, &n, &e));
    assert_int_equal(n, 2);
    assert_false(uuid_eq(&ids[0], &forks[2]) || uuid_eq(&ids[1], &forks[2]));
    assert_true(store_stale_forks(f.r, 300, 1, &f.arena, &ids, &n, &e));
    assert_int_equal(n, 1);
    fixture_close(&f);
}

/* ---- copied rows ---- */

static void check_view(struct fixture *f, const struct step_view *v, const struct uuid *id,
                       size_t i, size_t size)
{
    struct hash step_id = world_step_id(id, i);

    assert_memory_equal(v->id.b, step_id.b, sizeof(step_id.b));
    assert_str(v->args, world_args(f, i, size));
    assert_str(v->result, world_failed(i) ? STR_NONE : world_outcome(f, i, size));
    assert_str(v->error, world_failed(i) ? world_outcome(f, i, size) : STR_NONE);
    assert_str(v->status, world_failed(i) ? STR("failed") : STR("succeeded"));
    assert_str(v->target, STR("send"));
    assert_str(v->kind, STR("tool_call"));
    assert_str(v->idempotency, STR("at_most_once"));
    assert_true(v->started_at > 0 && v->completed_at > 0);
    assert_int_equal(v->usage.input_tokens, -1);
}

static void check_reads(struct fixture *f, const struct uuid *id, size_t size)
{
    struct hash step_ids[STEPS];
    struct step_call_query query = {id, step_ids, STEPS, SIZE_MAX};
    struct step_call *calls;
    struct step_view *views, one;
    bool found;
    struct err e;
    size_t n;

    assert_true(store_read_steps(f->r, id, STR_NONE, 0, 100, SIZE_MAX, &f->arena, &views, &n, &e));
    assert_int_equal(n, STEPS);
    for (size_t i = 0; i < STEPS; i++)
        check_view(f, &views[i], id, i, size);
    assert_true(
        store_read_steps(f->r, id, STR("terminal"), 0, 100, SIZE_MAX, &f->arena, &views, &n, &e));
    assert_int_equal(n, STEPS);
    check_view(f, &views[STEPS - 1], id, STEPS - 1, size);
    for (size_t i = 0; i < STEPS; i++)
        step_ids[i] = world_step_id(id, i);
    assert_true(store_read_step(f->r, id, &step_ids[3], &f->arena, &one, &found, &e));
    assert_true(found);
    check_view(f, &one, id, 3, size);
    assert_true(store_read_calls(f->r, &query, &f->arena, &calls, &n, &e));
    assert_int_equal(n, STEPS);
    for (size_t i = 0; i < STEPS; i++) {
        assert_str(calls[i].args, world_args(f, i, size));
        assert_str(calls[i].target, STR("send"));
    }
}

/* What a replay is answered from. */
static void check_load(struct fixture *f, const struct uuid *id, size_t size)
{
    for (size_t i = 0; i < STEPS; i++) {
        struct hash step_id = world_step_id(id, i);

        ws_need_step(&f->ws, id, &step_id);
    }
    fixture_load(f);
    for (size_t i = 0; i < STEPS; i++) {
        struct hash step_id = world_step_id(id, i);
        const struct step *step = ws_step(&f->ws, &step_id);

        assert_non_null(step);
        assert_str(step->result, world_failed(i) ? STR_NONE : world_outcome(f, i, size));
        assert_str(step->error, world_failed(i) ? world_outcome(f, i, size) : STR_NONE);
    }
    store_abandon(f->w);
    ws_clear(&f->ws);
}

static void payloads_are_shared(void **state, size_t size)
{
    struct fixture f;
    struct uuid root, fork, again;
    struct step *of_root, *of_fork;
    int64_t blobs, last_key;
    size_t n;
    struct err e;

    fixture_open(&f, *(enum fixture_kind *)*state);
    fixture_agent(&f, "a");
    root = world_run(&f, STR_NONE, STEPS, size);
    blobs = world_count(&f, "blobs");
    fork = world_fork(&f, &root);
    again = world_fork(&f, &fork);
    assert_int_equal(world_count(&f, "blobs"), blobs);
    fixture_reopen(&f);
    check_reads(&f, &root, size);
    check_reads(&f, &fork, size);
    check_reads(&f, &again, size);
    check_load(&f, &root, size);
    check_load(&f, &fork, size);
    check_load(&f, &again, size);
    assert_true(store_read_fork_steps(f.r, &root, 0, 100, &f.arena, &of_root, &n, &last_key, &e));
    assert_int_equal(n, STEPS);
    assert_true(store_read_fork_steps(f.r, &again, 0, 100, &f.arena, &of_fork, &n, &last_key, &e));
    assert_int_equal(n, STEPS);
    for (size_t i = 0; i < n; i++) {
        assert_int_equal(of_fork[i].key, of_root[i].key);
        assert_str(of_fork[i].error, world_failed(i) ? world_outcome(&f, i, size) : STR_NONE);
        assert_false(str_present(of_fork[i].args) || str_present(of_fork[i].result));
    }
    fixture_close(&f);
}

static void small_payloads_are_shared(void **state)
{
    payloads_are_shared(state, SMALL);
}

static void large_payloads_are_shared(void **state)
{
    payloads_are_shared(state, LARGE);
}

/* Its rows are written long before it is there. */
static void nobody_sees_a_fork_before_it_appears(void **state)
{
    struct fixture f;
    struct uuid root, fork;
    struct execution_filter any = {.limit = 10};
    struct execution_view v, *list;
    struct step_view *steps;
    struct event_row *events;
    int64_t last_seq;
    bool found, terminal;
    size_t n;
    struct err e;

    fixture_open(&f, *(enum fixture_kind *)*state);
    memset(any.high.b, 0xff, sizeof(any.high.b));
    fixture_agent(&f, "a");
    root = world_run(&f, STR_NONE, STEPS, SMALL);
    fork = world_pin(&f, &root);
    world_copy(&f, &fork, &root);
    assert_true(store_read_execution(f.r, &fork, &f.arena, &v, &found, &e));
    assert_false(found);
    assert_true(store_list_executions(f.r, &any, &f.arena, &list, &n, &e));
    assert_int_equal(n, 1);
    assert_true(store_read_steps(f.r, &fork, STR_NONE, 0, 100, 1000, &f.arena, &steps, &n, &e));
    assert_int_equal(n, 0);
    world_appear(&f, &fork, &root);
    assert_true(store_read_execution(f.r, &fork, &f.arena, &v, &found, &e));
    assert_true(found);
    assert_true(uuid_eq(&v.forked_from, &root));
    assert_int_equal(v.last_seq, 4);
    assert_true(store_read_events(f.r, &fork, 0, 100, 10000, &f.arena, &events, &n, &last_seq,
                                  &terminal, &found, &e));
    assert_int_equal(n, 2);
    assert_int_equal(events[1].first_seq, 3);
    assert_int_equal(events[1].count, 2);
    assert_int_equal(events[1].occurred_at, 77);
    assert_str(events[1].body, STR("step.proposed\t\"step_id\":1\nstep.allowed\t&\n"));
    fixture_close(&f);
}

/* ---- what is read of a source ---- */

static void steps_are_read_in_pages(void **state)
{
    struct fixture f;
    struct uuid root, fork, other;
    struct step *rows;
    int64_t after = 0;
    size_t seen = 0, n = 1;
    struct err e;

    fixture_open(&f, *(enum fixture_kind *)*state);
    fixture_agent(&f, "a");
    root = world_run(&f, STR_NONE, STEPS, SMALL);
    other = world_run(&f, STR_NONE, 3, SMALL);
    fork = world_fork(&f, &root);
    (void)other;
    for (; n > 0; seen += n) {
        assert_true(store_read_fork_steps(f.r, &fork, after, 3, &f.arena, &rows, &n, &after, &e));
        for (size_t i = 0; i < n; i++) {
            struct hash id = world_step_id(&fork, seen + i);

            assert_memory_equal(rows[i].id.b, id.b, sizeof(id.b));
        }
    }
    assert_int_equal(seen, STEPS);
    fixture_close(&f);
}

static void a_source_is_read(void **state)
{
    struct fixture f;
    struct forking forking;
    struct execution *exec;
    struct fork_source source;
    struct call_key call = fixture_call(3);
    struct uuid id, parent, unknown;
    struct str bundle;
    bool found;
    struct err e;

    fixture_open(&f, *(enum fixture_kind *)*state);
    fixture_agent(&f, "a");
    parent = fixture_uuid(&f);
    unknown = fixture_uuid(&f);
    fixture_load(&f);
    exec = fixture_execution(&f, "a");
    id = exec->id;
    exec->parent = parent;
    exec->input = world_args(&f, 1, LARGE);
    exec->on_behalf_of = ODD;
    exec->forked = exec->has_policy = true;
    exec->bundle.hash = fixture_hash(5);
    forking = (struct forking){.source = parent, .policy_bundle = world_args(&f, 2, 5000)};
    exec->forking = &forking;
    buf_add(&exec->indeterminate, str_make(call.b, sizeof(call.b)));
    fixture_commit(&f);
    assert_true(store_read_fork_source(f.r, &id, &f.arena, &source, &found, &e));
    assert_true(found);
    assert_str(source.agent_id, STR("a"));
    assert_str(source.input, world_args(&f, 1, LARGE));
    assert_str(source.on_behalf_of, ODD);
    assert_str(source.policy_bundle, world_args(&f, 2, 5000));
    assert_memory_equal(source.policy_hash.b, fixture_hash(5).b, sizeof(source.policy_hash.b));
    assert_str(source.indeterminate, str_make(call.b, sizeof(call.b)));
    assert_true(uuid_eq(&source.parent, &parent));
    assert_int_equal(source.last_seq, 1);
    assert_true(store_read_own_policy(f.r, &id, &f.arena, &bundle, &e));
    assert_str(bundle, world_args(&f, 2, 5000));
    id = world_run(&f, STR_NONE, 0, SMALL);
    assert_true(store_read_fork_source(f.r, &id, &f.arena, &source, &found, &e));
    assert_true(found);
    assert_str(source.policy_bundle, STR_NONE);
    assert_true(store_read_own_policy(f.r, &id, &f.arena, &bundle, &e));
    assert_str(bundle, STR_NONE);
    assert_true(store_read_fork_source(f.r, &unknown, &f.arena, &source, &found, &e));
    assert_false(found);
    fixture_close(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        ON_BOTH(a_pin_is_kept_until_it_is_dropped),
        ON_BOTH(stale_forks_are_found),
        ON_BOTH(small_payloads_are_shared),
        ON_BOTH(large_payloads_are_shared),
        ON_BOTH(nobody_sees_a_fork_before_it_appears),
        ON_BOTH(steps_are_read_in_pages),
        ON_BOTH(a_source_is_read),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
