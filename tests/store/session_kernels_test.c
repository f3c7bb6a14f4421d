/* SPDX-License-Identifier: Apache-2.0
 * The executions of a session by the kernel's rules: one at a time, in the order of their ids, also
 * when several kernels create, end and admit at once. */
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

#include "kernel/event.h"
#include "kernel/execution.h"
#include "kernel/move.h"
#include "kernel/session.h"
#include "support/check.h"
#include "support/store_both.h"
#include "support/store_fixture.h"

#define SESSION STR("s")

static void assert_id(struct uuid got, struct uuid want)
{
    assert_memory_equal(got.b, want.b, sizeof(got.b));
}

static struct execution_view view(struct fixture *f, const struct uuid *id)
{
    struct execution_view v = {0};
    struct err e = {0};
    bool found;

    assert_true(store_read_execution(f->r, id, &f->arena, &v, &found, &e));
    assert_true(found);
    return v;
}

typedef enum verdict rule_fn(struct fixture *f, void *arg, struct err *e);

/* As an executor does it. False: a race, or the error; nothing has happened. */
static bool run_rule(struct fixture *f, rule_fn *rule, void *arg, struct err *e)
{
    enum verdict v;
    bool ok = true, unknown;

    while ((v = rule(f, arg, e)) == VERDICT_NEED && ok)
        ok = store_load(f->w, &f->ws, e);
    if (ok && v == VERDICT_DONE && store_commit(f->w, &f->ws, &unknown, e)) {
        ws_end_group(&f->ws);
        return true;
    }
    store_abandon(f->w);
    ws_clear(&f->ws);
    return false;
}

struct creation {
    struct str session;
    struct execution_created created;
};

static enum verdict create(struct fixture *f, void *arg, struct err *e)
{
    struct creation *c = arg;
    const struct execution_creation cmd = {
        .agent_id = STR("a"), .input = STR("1"), .created_by = STR("test"), .session = c->session};

    return execution_create(&f->ws, &cmd, &c->created, e);
}

static enum verdict admit(struct fixture *f, void *arg, struct err *e)
{
    return session_admit(&f->ws, *(const struct str *)arg, e);
}

/* The agent's completion, without its lease. */
static enum verdict complete(struct fixture *f, void *arg, struct err *e)
{
    const struct uuid *id = arg;
    struct execution *x = ws_execution(&f->ws, id);

    (void)e;
    if (x == NULL) {
        ws_need_execution(&f->ws, id);
        return VERDICT_NEED;
    }
    if (!execution_status_is_terminal(x->status)) {
        x->state = STR("{}");
        execution_end(&f->ws, x, EXECUTION_COMPLETED, STR_NONE);
        event_execution(&f->ws, x, EVENT_EXECUTION_COMPLETED, STR(""));
    }
    return VERDICT_DONE;
}

/* Newest first. */
static size_t list(struct fixture *f, struct str session, struct str status,
                   struct execution_view **out)
{
    struct execution_filter filter = {.session = session, .status = status, .limit = 1000};
    struct err e = {0};
    size_t n;

    memset(&filter.high, 0xff, sizeof(filter.high));
    assert_true(store_list_executions(f->r, &filter, &f->arena, out, &n, &e));
    return n;
}

/* What waits is started in the order of the ids, each when the one before it has ended, and
 * continues the newest that has completed. */
static void drain(struct fixture *f, struct str session)
{
    struct execution_view *running, *pending, *completed;
    struct err e = {0};

    while (list(f, session, STR("running"), &running) > 0) {
        size_t n = list(f, session, STR("pending"), &pending);

        assert_int_equal(list(f, session, STR("running"), &running), 1);
        assert_true(run_rule(f, admit, &session, &e)); /* held: nothing happens */
        assert_int_equal(list(f, session, STR("pending"), &pending), n);
        assert_true(run_rule(f, complete, &running->id, &e));
        for (int times = 0; times < 2; times++) /* a second one finds nothing to do */
            assert_true(run_rule(f, admit, &session, &e));
        if (n == 0)
            continue;
        (void)list(f, session, STR("completed"), &completed);
        assert_str(view(f, &pending[n - 1].id).status, STR("running"));
        assert_id(view(f, &pending[n - 1].id).parent, completed->id);
    }
    assert_int_equal(list(f, session, STR("pending"), &pending), 0);
}

static void one_at_a_time(void **state)
{
    enum { N = 12 };
    struct fixture f;
    struct creation runs[N];
    struct execution_view *rows;
    struct err e = {0};

    fixture_open(&f, *(enum fixture_kind *)*state);
    fixture_agent(&f, "a");
    for (size_t i = 0; i < N; i++) {
        runs[i].session = SESSION;
        assert_true(run_rule(&f, create, &runs[i], &e));
    }
    assert_int_equal(list(&f, SESSION, STR("running"), &rows), 1);
    assert_id(rows->id, runs[0].created.id);
    assert_id(rows->parent, (struct uuid){{0}});
    assert_int_equal(list(&f, SESSION, STR("pending"), &rows), N - 1);
    for (size_t i = 1; i < N; i++)
        assert_id(rows[i - 1].id, runs[N - i].created.id);
    assert_str(rows[0].dispatch_status, STR_NONE);
    fixture_reopen(&f);
    drain(&f, SESSION);
    assert_int_equal(list(&f, SESSION, STR("completed"), &rows), N);
    assert_true(run_rule(&f, create, &runs[0], &e)); /* and it is free again */
    assert_str(view(&f, &runs[0].created.id).status, STR("running"));
    assert_id(view(&f, &runs[0].created.id).parent, rows[0].id);
    fixture_close(&f);
}

/* Each kernel creates, ends what runs, and admits, at random. */
enum { KERNELS = 3, ROUNDS = 60 };
struct kernel {
    struct fixture *f;
    uint64_t seed;
    size_t created, most_running;
    struct err err; /* of the first failure that is no race */
};

static void do_something(struct kernel *k, struct fixture *own)
{
    struct execution_view *running;
    struct creation creation = {.session = SESSION};
    struct err e = {0};
    size_t n = list(own, SESSION, STR("running"), &running);
    bool ok = true;

    if (n > k->most_running)
        k->most_running = n;
    if (prng_below(&own->random, 2) == 0) {
        ok = run_rule(own, create, &creation, &e);
        k->created += ok;
    } else {
        ok = n == 0 || run_rule(own, complete, &running->id, &e);
        ok = ok && run_rule(own, admit, &creation.session, &e);
    }
    if (!ok && e.code != ERR_STORE_RACE)
        k->err = e;
}

static void *work(void *arg)
{
    struct kernel *k = arg;
    struct fixture own;

    fixture_second_open(k->f, &own);
    prng_seed(&own.random, k->seed);
    own.r = store_reader_open(k->f->store, &k->err);
    for (int round = 0; own.r != NULL && round < ROUNDS && k->err.code == ERR_NONE; round++)
        do_something(k, &own);
    store_reader_close(own.r);
    fixture_second_close(&own);
    return NULL;
}

static void kernels_start_one_at_a_time(void **state)
{
    struct fixture f;
    struct kernel kernels[KERNELS];
    pthread_t threads[KERNELS];
    struct execution_view *rows;
    struct str session = SESSION;
    struct err e = {0};
    size_t created = 0;

    fixture_open(&f, *(enum fixture_kind *)*state);
    fixture_agent(&f, "a");
    for (size_t k = 0; k < KERNELS; k++) {
        kernels[k] = (struct kernel){.f = &f, .seed = k + 1};
        assert_int_equal(pthread_create(&threads[k], NULL, work, &kernels[k]), 0);
    }
    for (size_t k = 0; k < KERNELS; k++) {
        pthread_join(threads[k], NULL);
        CHECKF(kernels[k].err.code == ERR_NONE, "%s", kernels[k].err.message);
        assert_in_range(kernels[k].most_running, 0, 1);
        created += kernels[k].created;
    }
    assert_true(run_rule(&f, admit, &session, &e));
    drain(&f, SESSION);
    assert_int_equal(list(&f, SESSION, STR("completed"), &rows), created);
    assert_string_equal(fixture_sql(&f, "SELECT count(*) FROM executions"),
                        fixture_sql(&f, "SELECT count(*) FROM dispatches"));
    fixture_close(&f);
}

/* All of them at the same name, that is new, or free again. */
struct newcomer {
    struct fixture own;
    pthread_barrier_t *barrier;
    struct creation creation;
    bool ok;
};

static void *come(void *arg)
{
    struct newcomer *n = arg;
    struct err e = {0};

    (void)pthread_barrier_wait(n->barrier);
    n->ok = run_rule(&n->own, create, &n->creation, &e);
    return NULL;
}

static void meet(struct newcomer *comers, struct str session)
{
    pthread_t threads[KERNELS];

    for (size_t k = 0; k < KERNELS; k++) {
        comers[k].creation.session = session;
        assert_int_equal(pthread_create(&threads[k], NULL, come, &comers[k]), 0);
    }
    for (size_t k = 0; k < KERNELS; k++)
        pthread_join(threads[k], NULL);
    for (size_t k = 0; k < KERNELS; k++)
        assert_true(comers[k].ok);
}

static void kernels_meet_in_a_session(void **state)
{
    struct fixture f;
    static struct newcomer comers[KERNELS];
    pthread_barrier_t barrier;
    struct execution_view *rows;
    char name[16];

    fixture_open(&f, *(enum fixture_kind *)*state);
    fixture_agent(&f, "a");
    assert_int_equal(pthread_barrier_init(&barrier, NULL, KERNELS), 0);
    for (size_t k = 0; k < KERNELS; k++) {
        fixture_second_open(&f, &comers[k].own);
        comers[k].barrier = &barrier;
    }
    for (int round = 0; round < 30; round++) {
        snprintf(name, sizeof(name), "s-%d", round / 3);
        meet(comers, str_of(name));
        assert_int_equal(list(&f, str_of(name), STR("running"), &rows), 1);
        assert_int_equal(list(&f, str_of(name), STR("pending"), &rows), KERNELS - 1);
        drain(&f, str_of(name));
    }
    for (size_t k = 0; k < KERNELS; k++)
        fixture_second_close(&comers[k].own);
    pthread_barrier_destroy(&barrier);
    fixture_close(&f);
}

/* Sessions in any order: nobody waits for another in a circle, or it would end as a race. */
static void *lock_pairs(void *arg)
{
    static const char *const names[] = {"a", "b", "c", "d", "e"};
    struct kernel *k = arg;
    struct fixture own;

    fixture_second_open(k->f, &own);
    prng_seed(&own.random, k->seed);
    for (int round = 0; round < ROUNDS && k->err.code == ERR_NONE; round++) {
        char fresh[24];

        snprintf(fresh, sizeof(fresh), "c-%d", round); /* new to whoever comes first */
        ws_need_session(&own.ws, str_of(fresh));
        for (int i = 0; i < 3; i++)
            ws_need_session(&own.ws, str_of(names[prng_below(&own.random, COUNT(names))]));
        if (store_load(own.w, &own.ws, &k->err)) {
            fixture_pending(&own, "a", STR_NONE)->status = EXECUTION_FAILED;
            fixture_commit(&own);
        }
    }
    fixture_second_close(&own);
    return NULL;
}

static void sessions_are_locked_in_one_order(void **state)
{
    struct fixture f;
    struct kernel kernels[KERNELS];
    pthread_t threads[KERNELS];

    fixture_open(&f, *(enum fixture_kind *)*state);
    for (size_t k = 0; k < KERNELS; k++) {
        kernels[k] = (struct kernel){.f = &f, .seed = k + 1};
        assert_int_equal(pthread_create(&threads[k], NULL, lock_pairs, &kernels[k]), 0);
    }
    for (size_t k = 0; k < KERNELS; k++) {
        pthread_join(threads[k], NULL);
        CHECKF(kernels[k].err.code == ERR_NONE, "%s", kernels[k].err.message);
    }
    fixture_close(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        ON_BOTH(one_at_a_time),
        ON_POSTGRES(kernels_start_one_at_a_time),
        ON_POSTGRES(kernels_meet_in_a_session),
        ON_POSTGRES(sessions_are_locked_in_one_order),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
