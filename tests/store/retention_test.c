/* SPDX-License-Identifier: Apache-2.0
 * What goes, what is kept, and what is left of what went: nothing, but for payloads that a copy
 * refers to. */
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

#include "base/clock.h"
#include "support/check.h"
#include "support/fork_world.h"
#include "support/store_both.h"

enum { STEPS = 8, SMALL = 40, LARGE = 300 * 1000 };

/* Everything of a test was born before it; an end is old or young by the test's will. */
static int64_t cutoff_of(void)
{
    return clock_wall_us() + 3600 * US_PER_S;
}

static void open_world(struct fixture *f, void **state)
{
    fixture_open(f, *(enum fixture_kind *)*state);
    fixture_agent(f, "a");
}

static struct uuid ended(struct fixture *f, struct str session, int64_t at)
{
    struct uuid id = world_run(f, session, 0, SMALL);

    world_end(f, &id, at);
    return id;
}

/* Both ways by which it is asked: by the sweep, and by the rule. */
static void check_goes(struct fixture *f, const struct uuid *id, int64_t cutoff, bool goes)
{
    struct uuid *ids, last;
    bool listed = false;
    struct err e;
    size_t n;

    assert_true(store_retired_executions(f->r, cutoff, NULL, 1000, &f->arena, &ids, &n, &last, &e));
    for (size_t i = 0; i < n; i++)
        listed |= uuid_eq(&ids[i], id);
    assert_int_equal(listed, goes);
    assert_int_equal(world_unlink(f, id, cutoff), goes);
    assert_int_equal(fixture_get(f, id) == NULL, goes);
    store_abandon(f->w);
    ws_clear(&f->ws);
}

/* ---- what is kept ---- */

static void only_what_ended_long_ago_goes(void **state)
{
    struct fixture f;
    struct uuid live, young, old;
    int64_t cutoff = cutoff_of();

    open_world(&f, state);
    live = world_run(&f, STR_NONE, 0, SMALL);
    young = ended(&f, STR_NONE, cutoff);
    old = ended(&f, STR_NONE, cutoff - 1);
    check_goes(&f, &live, cutoff, false);
    check_goes(&f, &young, cutoff, false);
    check_goes(&f, &old, cutoff, true);
    fixture_close(&f);
}

static void a_session_goes_when_all_of_it_is_old(void **state)
{
    struct fixture f;
    struct uuid first, second, waiting;
    int64_t cutoff = cutoff_of();

    open_world(&f, state);
    first = ended(&f, STR("s"), cutoff - 100);
    second = ended(&f, STR("s"), cutoff + 1); /* not so long ago */
    ws_need_session(&f.ws, STR("s"));
    fixture_load(&f);
    waiting = fixture_pending(&f, "a", STR("s"))->id;
    fixture_commit(&f);
    check_goes(&f, &first, cutoff, false);
    world_end(&f, &waiting, cutoff - 50);
    check_goes(&f, &first, cutoff, false);
    check_goes(&f, &first, cutoff + 2, true);
    check_goes(&f, &waiting, cutoff + 2, true);
    if (f.kind == FIXTURE_POSTGRES)
        assert_int_equal(world_count(&f, "sessions"), 1);
    check_goes(&f, &second, cutoff + 2, true);
    if (f.kind == FIXTURE_POSTGRES)
        assert_int_equal(world_count(&f, "sessions"), 0);
    fixture_close(&f);
}

static void what_is_continued_is_kept(void **state)
{
    struct fixture f;
    struct uuid parent, child;
    struct execution *exec;
    int64_t cutoff = cutoff_of();

    open_world(&f, state);
    parent = ended(&f, STR_NONE, cutoff - 1);
    child = world_run(&f, STR_NONE, 0, SMALL);
    exec = fixture_get(&f, &child);
    exec->parent = parent;
    ws_touch_execution(&f.ws, exec);
    fixture_commit(&f);
    check_goes(&f, &parent, cutoff, false);
    world_end(&f, &child, cutoff - 1);
    check_goes(&f, &parent, cutoff, false);
    check_goes(&f, &child, cutoff, true);
    check_goes(&f, &parent, cutoff, true);
    fixture_close(&f);
}

static void what_a_kept_one_spawned_is_kept(void **state)
{
    struct fixture f;
    struct uuid spawner, child;
    struct execution *exec;
    int64_t cutoff = cutoff_of();

    open_world(&f, state);
    spawner = ended(&f, STR_NONE, cutoff - 1);
    fixture_load(&f);
    exec = fixture_execution(&f, "a");
    child = exec->id;
    exec->spawned_by = spawner;
    fixture_commit(&f);
    world_end(&f, &child, cutoff - 1);
    check_goes(&f, &child, cutoff, false);
    check_goes(&f, &spawner, cutoff, true);
    check_goes(&f, &child, cutoff, true);
    fixture_close(&f);
}

static void what_is_being_forked_is_kept(void **state)
{
    struct fixture f;
    struct uuid source, fork;
    int64_t cutoff = cutoff_of();

    open_world(&f, state);
    source = world_run(&f, STR_NONE, STEPS, SMALL);
    world_end(&f, &source, cutoff - 1);
    fork = world_pin(&f, &source);
    check_goes(&f, &source, cutoff, false);
    world_copy(&f, &fork, &source);
    check_goes(&f, &source, cutoff, false);
    world_appear(&f, &fork, &source); /* complete in itself */
    check_goes(&f, &source, cutoff, true);
    fixture_close(&f);
}

static void candidates_come_in_pages(void **state)
{
    struct fixture f;
    enum { N = 7 };
    struct uuid ids[N], *page, last, before;
    int64_t cutoff = cutoff_of();
    size_t n, seen = 0, pages = 0;
    struct err e;

    open_world(&f, state);
    for (int i = 0; i < N; i++)
        ids[i] = i == 3 ? world_run(&f, STR_NONE, 0, SMALL) : ended(&f, STR_NONE, cutoff - 1);
    for (bool more = true; more; pages++) {
        assert_true(store_retired_executions(f.r, cutoff, pages == 0 ? NULL : &before, 2, &f.arena,
                                             &page, &n, &last, &e));
        for (size_t i = 0; i < n; i++, seen++) { /* newest first, without the live one */
            size_t at = N - 1 - seen;

            assert_true(uuid_eq(&page[i], &ids[at > 3 ? at : at - 1]));
        }
        more = !uuid_is_nil(&last);
        before = last;
    }
    assert_int_equal(seen, N - 1);
    assert_int_equal(pages, 4);
    /* Born behind the cutoff: not even looked at. */
    assert_true(store_retired_executions(f.r, 1000000, NULL, 2, &f.arena, &page, &n, &last, &e));
    assert_int_equal(n, 0);
    assert_true(uuid_is_nil(&last));
    fixture_close(&f);
}

/* ---- what is left ---- */

static void add_extras(struct fixture *f, const struct uuid *id)
{
    struct execution *exec = fixture_get(f, id);
    struct hash step_id = world_step_id(id, 0);
    struct resource resource = {.key = STR("box"), .driver_id = STR("docker"), .registered_seq = 1};
    struct checkpoint checkpoint = {
        .resource = STR("box"), .generation = 1, .checkpoint_ref = STR("c"), .covered_seq = 1};

    fixture_count(f, exec, 1, "key", &step_id);
    (void)fixture_approval(f, exec, &step_id, 5);
    (void)ws_new_resource(&f->ws, exec, &resource);
    (void)ws_new_checkpoint(&f->ws, exec, &checkpoint);
    fixture_commit(f);
    exec = fixture_get(f, id);
    exec->output = world_outcome(f, 1, LARGE);
    exec->state = world_outcome(f, 2, LARGE);
    ws_touch_execution(&f->ws, exec);
    fixture_commit(f);
}

/* One with everything that can be an execution's. */
static struct uuid full_run(struct fixture *f, struct str session)
{
    struct uuid id = world_run(f, session, STEPS, LARGE), dispatch = fixture_uuid(f);
    struct execution *exec;

    add_extras(f, &id);
    exec = fixture_get(f, &id);
    ws_retire_dispatch(&f->ws, exec);
    ws_new_dispatch(&f->ws, exec, &dispatch);
    exec->dispatch->status = DISPATCH_QUEUED;
    fixture_commit(f);
    return id;
}

static void nothing_is_left(void **state)
{
    static const char *const tables[] = {"executions", "steps",     "events",
                                         "dispatches", "approvals", "submissions",
                                         "blobs",      "resources", "checkpoints"};
    struct fixture f;
    struct uuid id, kept;
    int64_t cutoff = cutoff_of(), before[COUNT(tables)];

    open_world(&f, state);
    kept = full_run(&f, STR("kept"));
    world_tidy(&f);
    for (size_t i = 0; i < COUNT(tables); i++)
        before[i] = world_count(&f, tables[i]);
    id = full_run(&f, STR("gone"));
    for (size_t i = 0; i < COUNT(tables); i++)
        assert_true(world_count(&f, tables[i]) > before[i]);
    world_end(&f, &id, cutoff - 1);
    assert_true(world_unlink(&f, &id, cutoff));
    assert_int_equal(world_count(&f, "executions"), 1);
    world_tidy(&f);
    for (size_t i = 0; i < COUNT(tables); i++)
        assert_int_equal(world_count(&f, tables[i]), before[i]);
    world_end(&f, &kept, cutoff - 1);
    assert_true(world_unlink(&f, &kept, cutoff));
    fixture_reopen(&f); /* whoever comes next goes on */
    world_tidy(&f);
    assert_int_equal(world_rows(&f), 0);
    fixture_close(&f);
}

/* Of the execution's own row: each of its columns, small and large. */
static void its_own_payloads_are_freed(void **state)
{
    struct fixture f;
    struct uuid id;
    struct execution *exec;
    int64_t cutoff = cutoff_of();

    open_world(&f, state);
    for (int large = 0; large < 2; large++) {
        size_t size = large ? LARGE : SMALL;

        fixture_load(&f);
        exec = fixture_execution(&f, "a");
        id = exec->id;
        exec->input = world_args(&f, 1, size);
        exec->forking = &(const struct forking){.restoration = world_args(&f, 2, size),
                                                .policy_bundle = world_args(&f, 3, size)};
        exec->has_policy = true;
        fixture_commit(&f);
        exec = fixture_get(&f, &id);
        exec->output = world_args(&f, 4, size);
        exec->state = world_args(&f, 5, size);
        ws_touch_execution(&f.ws, exec);
        fixture_commit(&f);
        assert_int_equal(world_count(&f, "blobs"), large ? 5 * 2 : 0);
        world_end(&f, &id, cutoff - 1);
        assert_true(world_unlink(&f, &id, cutoff));
        world_tidy(&f);
        assert_int_equal(world_rows(&f), 0);
    }
    fixture_close(&f);
}

static void check_payloads(struct fixture *f, const struct uuid *id, size_t size)
{
    struct step_view *views;
    struct err e;
    size_t n;

    assert_true(store_read_steps(f->r, id, STR_NONE, 0, 100, SIZE_MAX, &f->arena, &views, &n, &e));
    assert_int_equal(n, STEPS);
    for (size_t i = 0; i < n; i++) {
        struct str outcome = world_failed(i) ? views[i].error : views[i].result;

        assert_str(views[i].args, world_args(f, i, size));
        assert_str(outcome, world_outcome(f, i, size));
    }
}

static void goes(struct fixture *f, const struct uuid *id)
{
    int64_t cutoff = cutoff_of();

    world_end(f, id, cutoff - 1);
    assert_true(world_unlink(f, id, cutoff));
}

static void payloads_outlive_their_source(void **state)
{
    struct fixture f;
    struct uuid root, fork, again, third;
    int64_t blobs;

    open_world(&f, state);
    root = world_run(&f, STR_NONE, STEPS, LARGE);
    blobs = world_count(&f, "blobs");
    fork = world_fork(&f, &root);
    again = world_fork(&f, &fork);
    goes(&f, &root);
    world_tidy(&f);
    assert_int_equal(world_count(&f, "blobs"), blobs);
    check_payloads(&f, &fork, LARGE);
    check_payloads(&f, &again, LARGE);
    third = world_fork(&f, &again); /* of what no execution has any more */
    goes(&f, &again);
    goes(&f, &fork);
    world_tidy(&f);
    fixture_reopen(&f);
    check_payloads(&f, &third, LARGE);
    assert_int_equal(world_count(&f, "blobs"), blobs);
    assert_int_equal(world_count(&f, "steps"), 2 * STEPS);
    goes(&f, &third);
    world_tidy(&f);
    assert_int_equal(world_rows(&f), 0);
    fixture_close(&f);
}

/* All of a family in one slice, whose copies are each other's last. */
static void a_family_goes_at_once(void **state)
{
    struct fixture f;
    struct uuid root, forks[3];

    open_world(&f, state);
    root = world_run(&f, STR_NONE, STEPS, LARGE);
    for (int i = 0; i < 3; i++)
        forks[i] = world_fork(&f, i == 0 ? &root : &forks[i - 1]);
    goes(&f, &root);
    for (int i = 0; i < 3; i++)
        goes(&f, &forks[i]);
    world_tidy(&f);
    assert_int_equal(world_rows(&f), 0);
    fixture_close(&f);
}

static void what_a_crash_left_of_a_fork_goes(void **state)
{
    struct fixture f;
    struct uuid root, fork;
    int64_t rows;

    open_world(&f, state);
    root = world_run(&f, STR_NONE, STEPS, LARGE);
    world_tidy(&f);
    rows = world_rows(&f);
    fork = world_pin(&f, &root);
    world_copy(&f, &fork, &root);
    fixture_reopen(&f);
    world_tidy(&f);
    assert_int_equal(world_rows(&f), rows + 1 + STEPS + 1); /* pin, steps, event */
    world_abandon(&f, &fork);
    world_tidy(&f);
    assert_int_equal(world_rows(&f), rows);
    check_payloads(&f, &root, LARGE);
    goes(&f, &root);
    world_tidy(&f);
    assert_int_equal(world_rows(&f), 0);
    fixture_close(&f);
}

/* Rows of one that went must never be another's. */
static void keys_are_not_given_out_again(void **state)
{
    struct fixture f;
    struct uuid root, fork, next;
    int64_t key;

    open_world(&f, state);
    root = world_run(&f, STR_NONE, STEPS, SMALL);
    fork = world_pin(&f, &root); /* the largest key is no execution's */
    ws_need_fork(&f.ws, &fork);
    fixture_load(&f);
    key = ws_fork(&f.ws, &fork)->key;
    store_abandon(f.w);
    ws_clear(&f.ws);
    for (int life = 0; life < 4; life++) {
        fixture_reopen(&f);
        if (life == 1)
            world_abandon(&f, &fork);
        if (life > 1)
            world_tidy(&f);
        next = world_run(&f, STR_NONE, 1, SMALL);
        assert_true(fixture_get(&f, &next)->key > key);
        key = fixture_get(&f, &next)->key;
        store_abandon(f.w);
        ws_clear(&f.ws);
        goes(&f, &next);
        if (life == 2)
            world_tidy(&f);
    }
    fixture_close(&f);
}

static void a_slice_is_small(void **state)
{
    enum { MANY = 2000 };
    struct fixture f;
    struct uuid id;
    int64_t left, before;
    bool more = true;
    struct err e = {0};

    open_world(&f, state);
    id = world_run(&f, STR_NONE, MANY, SMALL);
    goes(&f, &id);
    before = left = world_rows(&f);
    assert_true(before > MANY);
    while (more) {
        assert_true(store_tidy(f.w, &f.ws, &more, &e));
        left = world_rows(&f);
        assert_true(before - left <= 600);
        before = left;
        if (left == MANY / 2)
            fixture_reopen(&f);
    }
    assert_int_equal(left, 0);
    fixture_close(&f);
}

/* ---- several kernels ---- */

struct sweeper {
    struct fixture *f;
    struct err e;
    bool ok;
};

static void *sweep(void *arg)
{
    struct sweeper *s = arg;
    struct fixture second;

    fixture_second_open(s->f, &second);
    s->ok = true;
    for (int i = 0; i < 200 && s->ok; i++) {
        bool more = true;

        while (s->ok && more)
            s->ok = store_tidy(second.w, &second.ws, &more, &s->e);
    }
    fixture_second_close(&second);
    return NULL;
}

/* Each removes the last copy that the other one sees. */
static void two_sweepers_leave_nothing(void **state)
{
    enum { FAMILIES = 12 };
    struct fixture f;
    struct sweeper sweepers[2];
    pthread_t threads[2];

    open_world(&f, state);
    for (int i = 0; i < 2; i++) {
        sweepers[i] = (struct sweeper){.f = &f};
        assert_int_equal(pthread_create(&threads[i], NULL, sweep, &sweepers[i]), 0);
    }
    for (int i = 0; i < FAMILIES; i++) {
        struct uuid root = world_run(&f, STR_NONE, STEPS, SMALL);
        struct uuid one = world_fork(&f, &root), two = world_fork(&f, &one);

        goes(&f, &root);
        goes(&f, &one);
        goes(&f, &two);
    }
    for (int i = 0; i < 2; i++) {
        pthread_join(threads[i], NULL);
        CHECKF(sweepers[i].ok, "%s", sweepers[i].e.message);
    }
    world_tidy(&f);
    assert_int_equal(world_rows(&f), 0);
    fixture_close(&f);
}

/* Who wants a session at the moment at which its last execution goes finds it anew. */
static void a_session_in_use_is_not_removed(void **state)
{
    struct fixture f, second;
    struct uuid old;
    int64_t cutoff = cutoff_of();

    open_world(&f, state);
    old = ended(&f, STR("s"), cutoff - 1);
    fixture_second_open(&f, &second);
    ws_need_session(&second.ws, STR("s"));
    fixture_load(&second);
    assert_false(world_unlink(&f, &old, cutoff)); /* it is not waited for either */
    store_abandon(second.w);
    ws_clear(&second.ws);
    assert_true(world_unlink(&f, &old, cutoff));
    ws_need_session(&second.ws, STR("s"));
    fixture_load(&second);
    assert_false(ws_session(&second.ws, STR("s"))->used);
    store_abandon(second.w);
    ws_clear(&second.ws);
    fixture_second_close(&second);
    fixture_close(&f);
}

struct waiter {
    struct fixture *f;
    struct err e;
    bool ok;
};

static void *want_session(void *arg)
{
    struct waiter *w = arg;

    w->ok = store_load(w->f->w, &w->f->ws, &w->e);
    return NULL;
}

static void who_waits_for_a_session_that_goes_begins_anew(void **state)
{
    struct fixture f, second;
    struct waiter waiter = {.f = &second};
    struct uuid old;
    pthread_t thread;
    int64_t cutoff = cutoff_of();
    bool waits = false;

    open_world(&f, state);
    old = ended(&f, STR("s"), cutoff - 1);
    fixture_second_open(&f, &second);
    ws_need_execution(&f.ws, &old);
    ws_need_keepers(&f.ws, &old, cutoff);
    fixture_load(&f);
    assert_false(ws_keepers(&f.ws, &old)->session_live);
    ws_need_session(&second.ws, STR("s"));
    assert_int_equal(pthread_create(&thread, NULL, want_session, &waiter), 0);
    for (int64_t until = clock_mono_us() + 20 * US_PER_S; clock_mono_us() < until && !waits;)
        waits = strcmp(fixture_sql(&f, "SELECT count(*) FROM pg_locks WHERE NOT granted"), "0");
    assert_true(waits);
    ws_unlink(&f.ws, ws_execution(&f.ws, &old));
    fixture_commit(&f);
    pthread_join(thread, NULL);
    assert_false(waiter.ok); /* what it waited for locks nothing any more */
    assert_int_equal(waiter.e.code, ERR_STORE_RACE);
    store_abandon(second.w);
    ws_clear(&second.ws);
    ws_need_session(&second.ws, STR("s"));
    fixture_load(&second);
    assert_false(ws_session(&second.ws, STR("s"))->used);
    store_abandon(second.w);
    ws_clear(&second.ws);
    fixture_second_close(&second);
    fixture_close(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        ON_BOTH(only_what_ended_long_ago_goes),
        ON_BOTH(a_session_goes_when_all_of_it_is_old),
        ON_BOTH(what_is_continued_is_kept),
        ON_BOTH(what_a_kept_one_spawned_is_kept),
        ON_BOTH(what_is_being_forked_is_kept),
        ON_BOTH(candidates_come_in_pages),
        ON_BOTH(nothing_is_left),
        ON_BOTH(its_own_payloads_are_freed),
        ON_BOTH(payloads_outlive_their_source),
        ON_BOTH(a_family_goes_at_once),
        ON_BOTH(what_a_crash_left_of_a_fork_goes),
        ON_BOTH(keys_are_not_given_out_again),
        ON_BOTH(a_slice_is_small),
        ON_POSTGRES(two_sweepers_leave_nothing),
        ON_POSTGRES(a_session_in_use_is_not_removed),
        ON_POSTGRES(who_waits_for_a_session_that_goes_begins_anew),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
