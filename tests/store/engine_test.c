/* SPDX-License-Identifier: Apache-2.0
 * The engine on both databases: commands that are aside are handed out once and answered once,
 * whatever becomes of the group they came in, and nobody waits for them. */
#include <libpq-fe.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include <cmocka.h>

#include "support/engine_bench.h"
#include "support/cutting_proxy.h"
#include "support/postgres_cluster.h"
#include "support/store_both.h"

/* ---- aside ---- */

static void a_hanging_judge_delays_its_own_step_only(void **state)
{
    enum { EACH = 10, MORE = 50 };
    struct job asks[EACH], goes[EACH], more[MORE], held;
    struct bench b;

    bench_open(&b, state, 2 * EACH);
    bench_hold(&b, &held); /* all in one group */
    for (size_t i = 0; i < EACH; i++) {
        bench_step(&b, &asks[i], &b.runs[i], "ask");
        bench_step(&b, &goes[i], &b.runs[EACH + i], "go");
    }
    bench_let_go(&b);
    WAIT_FOR(&b, b.n_asked == EACH && b.n_done == EACH + 1);
    for (size_t i = 0; i < MORE; i++) { /* also the runs that wait may go on beside it */
        char target[16];

        snprintf(target, sizeof(target), "go%zu", i);
        bench_step(&b, &more[i], &b.runs[i % (2 * EACH)], target);
        WAIT_FOR(&b, b.n_done == EACH + 2 + i);
        assert_int_equal(more[i].cmd.out.step.decision, DECISION_PROCEED);
    }
    assert_int_equal(b.n_asked, EACH);
    assert_int_equal(atomic_load(&engine_stats(b.en)->waiting), EACH);
    bench_judge(&b, POLICY_DENY);
    WAIT_FOR(&b, b.n_done == 2 * EACH + MORE + 1);
    for (size_t i = 0; i < EACH; i++) {
        assert_int_equal(asks[i].asked, 1);
        assert_int_equal(asks[i].done, 1);
        assert_int_equal(asks[i].cmd.out.step.decision, DECISION_DENIED);
        CHECK_STR(asks[i].cmd.out.step.rule_id, STR("ask"));
        assert_int_equal(goes[i].cmd.out.step.decision, DECISION_PROCEED);
    }
    assert_int_equal(atomic_load(&engine_stats(b.en)->waiting), 0);
    assert_int_equal(atomic_load(&engine_stats(b.en)->denied), EACH);
    assert_int_equal(atomic_load(&engine_stats(b.en)->allowed), EACH + MORE);
    assert_int_equal(atomic_load(&engine_stats(b.en)->decided_count), 2 * EACH + MORE);
    for (size_t i = 0; i < EACH; i++) {
        job_free(&asks[i]);
        job_free(&goes[i]);
    }
    for (size_t i = 0; i < MORE; i++)
        job_free(&more[i]);
    job_free(&held);
    bench_close(&b);
}

/* The bundle was never compiled by this process; many ask for it at once. */
static void a_bundle_is_compiled_at_its_first_use(void **state)
{
    enum { N = 20 };
    struct job jobs[N];
    struct bench b;

    bench_open(&b, state, N);
    bench_engine_down(&b);
    policy_cache_free(b.policies);
    b.policies = policy_cache_new();
    bench_engine_up(&b);
    for (size_t i = 0; i < N; i++)
        bench_step(&b, &jobs[i], &b.runs[i], "each");
    WAIT_FOR(&b, b.n_done == N);
    for (size_t i = 0; i < N; i++) {
        assert_int_equal(jobs[i].cmd.out.step.decision, DECISION_PROCEED);
        job_free(&jobs[i]);
    }
    assert_int_equal(atomic_load(&engine_stats(b.en)->limit_passed), N);
    bench_close(&b);
}

static void a_bundle_that_does_not_compile_denies(void **state)
{
    struct bench b;
    struct job job;

    bench_open(&b, state, 1);
    bench_agent(&b, "a", STR("rules: 7\n"));
    bench_step(&b, &job, &b.runs[0], "go");
    WAIT_FOR(&b, b.n_done == 1);
    assert_int_equal(job.cmd.out.step.decision, DECISION_DENIED);
    CHECK_STR(job.cmd.out.step.rule_id, STR("bundle-error"));
    job_free(&job);
    bench_agent(&b, "a", str_of(BENCH_BUNDLE)); /* mended: for the next new step */
    bench_step(&b, &job, &b.runs[0], "went");
    WAIT_FOR(&b, b.n_done == 2);
    assert_int_equal(job.cmd.out.step.decision, DECISION_PROCEED);
    job_free(&job);
    bench_close(&b);
}

static void large_arguments_are_matched_aside(void **state)
{
    struct buf args = {0};
    struct job slow, other;
    struct bench b;

    bench_open(&b, state, 2);
    buf_add(&args, STR("{\"text\":\""));
    for (size_t i = 0; i < 1 << 20; i++)
        buf_add_byte(&args, 'x');
    buf_add(&args, STR("y\"}"));
    job_step(&slow, &b.runs[0], "slow", buf_str(&args));
    slow.cmd.bytes = args.n;
    job_submit(&b, &slow);
    bench_step(&b, &other, &b.runs[1], "go");
    WAIT_FOR(&b, b.n_done == 2);
    assert_int_equal(slow.cmd.out.step.decision, DECISION_DENIED);
    CHECK_STR(slow.cmd.out.step.reason, STR("too_slow"));
    assert_true(slow.cmd.in.submit.found.matched); /* not on the executor */
    assert_int_equal(other.cmd.out.step.decision, DECISION_PROCEED);
    assert_false(other.cmd.in.submit.found.matched);
    job_free(&slow);
    job_free(&other);
    buf_free(&args);
    bench_close(&b);
}

/* The bundle changes while the judge thinks: its word was about another rule. */
static void a_judgement_counts_for_its_bundle_alone(void **state)
{
    struct bench b;
    struct job job;

    bench_open(&b, state, 1);
    bench_step(&b, &job, &b.runs[0], "ask");
    WAIT_FOR(&b, b.n_asked == 1);
    bench_agent(&b, "a", STR("default_action: deny\n"));
    bench_judge(&b, POLICY_ALLOW);
    WAIT_FOR(&b, b.n_done == 1);
    assert_int_equal(job.cmd.out.step.decision, DECISION_DENIED);
    CHECK_STR(job.cmd.out.step.rule_id, STR("default"));
    job_free(&job);
    bench_close(&b);
}

static void *stop_engine(void *arg)
{
    struct bench *b = arg;

    assert_true(engine_stop(b->en, PATIENCE_US));
    pthread_mutex_lock(&b->lock);
    assert_int_equal(b->n_done, 5); /* it leaves no command behind */
    pthread_mutex_unlock(&b->lock);
    return NULL;
}

static void stopping_waits_for_what_is_aside(void **state)
{
    struct job jobs[5];
    pthread_t thread;
    struct bench b;

    bench_open(&b, state, 5);
    for (size_t i = 0; i < 5; i++)
        bench_step(&b, &jobs[i], &b.runs[i], "ask");
    WAIT_FOR(&b, b.n_asked == 5);
    assert_int_equal(pthread_create(&thread, NULL, stop_engine, &b), 0);
    bench_judge(&b, POLICY_ALLOW);
    pthread_join(thread, NULL);
    for (size_t i = 0; i < 5; i++) {
        assert_int_equal(jobs[i].cmd.out.step.decision, DECISION_PROCEED);
        assert_int_equal(jobs[i].done, 1);
        job_free(&jobs[i]);
    }
    bench_close(&b);
}

/* ---- groups that fail ---- */

/* Another kernel takes the idempotency key that the group wants: the group is decided again. */
static void a_lost_race(void **state)
{
    struct job create, asks[4], held;
    struct uuid other;
    char sql[256], id[UUID_TEXT_LEN];
    PGresult *done;
    PGconn *c;
    bool waits = false;
    struct bench b;

    bench_open(&b, state, 5);
    other = b.runs[4].id;
    uuid_format(&other, id);
    c = PQconnectdb(b.f.url);
    assert_int_equal(PQstatus(c), CONNECTION_OK);
    snprintf(sql, sizeof(sql),
             "BEGIN; UPDATE executions SET idempotency_key = 'k'"
             " WHERE encode(id, 'hex') = replace('%.36s', '-', '')",
             id);
    done = PQexec(c, sql);
    CHECKF(PQresultStatus(done) == PGRES_COMMAND_OK, "%s", PQerrorMessage(c));
    PQclear(done);
    bench_hold(&b, &held);
    create = (struct job){.cmd.type = COMMAND_CREATE};
    create.cmd.in.create.agent_id = STR("a");
    create.cmd.in.create.created_by = STR("test");
    create.cmd.in.create.idempotency_key = STR("k");
    job_submit(&b, &create);
    for (size_t i = 0; i < 4; i++)
        bench_step(&b, &asks[i], &b.runs[i], "ask");
    bench_let_go(&b);
    for (int64_t until = clock_mono_us() + PATIENCE_US; clock_mono_us() < until && !waits;)
        waits = strcmp(postgres_cluster_query(b.f.url,
                                              "SELECT count(*) FROM pg_locks WHERE NOT granted"),
                       "0") != 0;
    assert_true(waits); /* the group, in its insert; nothing has been handed out */
    assert_int_equal(b.n_asked, 0);
    PQclear(PQexec(c, "COMMIT"));
    PQfinish(c);
    WAIT_FOR(&b, b.n_asked == 4 && create.done == 1);
    assert_int_equal(create.cmd.verdict, VERDICT_DONE);
    assert_true(create.cmd.out.created.existing);
    assert_true(uuid_eq(&create.cmd.out.created.id, &other));
    bench_judge(&b, POLICY_ALLOW);
    WAIT_FOR(&b, b.n_done == 6);
    for (size_t i = 0; i < 4; i++) {
        assert_int_equal(asks[i].asked, 1);
        assert_int_equal(asks[i].cmd.out.step.decision, DECISION_PROCEED);
        job_free(&asks[i]);
    }
    job_free(&create);
    job_free(&held);
    bench_close(&b);
}

/* The connection breaks in the COMMIT of a group and nobody can say what became of it: that is no
 * news for those that were aside. */
static void a_commit_whose_fate_is_unknown(void **state)
{
    struct cutting_proxy *p;
    struct job go, ask, held;
    const char *database;
    char direct[256];
    struct bench b = {0};

    (void)state;
    fixture_open(&b.f, FIXTURE_POSTGRES);
    if (postgres_cluster_socket()[0] == '\0') {
        fixture_close(&b.f);
        skip();
    }
    p = cutting_proxy_start(postgres_cluster_socket());
    snprintf(direct, sizeof(direct), "%s", b.f.url);
    database = strstr(direct, "/store_test_");
    assert_non_null(database);
    snprintf(b.f.url, sizeof(b.f.url), "postgres://postgres@/%.*s?host=%s",
             (int)strcspn(database + 1, "?"), database + 1, cutting_proxy_folder(p));
    fixture_reopen(&b.f);
    bench_begin(&b, 2);
    bench_hold(&b, &held);
    bench_step(&b, &go, &b.runs[0], "go");
    bench_step(&b, &ask, &b.runs[1], "ask");
    cutting_proxy_arm(p, CUT_AFTER, 1);
    bench_let_go(&b);
    WAIT_FOR(&b, go.done == 1 && b.n_asked == 1);
    assert_int_equal(go.cmd.verdict, VERDICT_REFUSED);
    assert_true(go.cmd.unknown);
    assert_int_equal(ask.done, 0);
    cutting_proxy_arm(p, CUT_NEVER, 0);
    bench_judge(&b, POLICY_ALLOW);
    WAIT_FOR(&b, ask.done == 1);
    assert_int_equal(ask.asked, 1);
    assert_int_equal(ask.cmd.verdict, VERDICT_DONE);
    assert_int_equal(ask.cmd.out.step.decision, DECISION_PROCEED);
    job_free(&go);
    job_free(&ask);
    job_free(&held);
    bench_end(&b);
    fixture_close(&b.f);
    cutting_proxy_stop(p);
}

/* ---- starting ---- */

static void on_dispatches_queued(void *ctx)
{
    atomic_fetch_add((atomic_int *)ctx, 1);
}

static struct engine *new_engine(struct fixture *f, struct policy_cache *policies, atomic_int *told)
{
    struct connections one = connections_for(0);
    struct engine_options opt = {
        .store = f->store,
        .settings = &f->settings,
        .policies = policies,
        .connections = &one,
        .signals = {.ctx = told, .dispatches_queued = on_dispatches_queued}};
    struct err e;
    struct engine *en;

    one.executors = 2; /* and that of forks */
    en = engine_new(&opt, &e);
    CHECKF(en != NULL, "%s", e.message);
    return en;
}

/* What a kernel that is gone had claimed is given back, all of it, before this one may claim
 * anything: its own claims would look the same. */
static void nothing_is_delivered_before_what_was_claimed_is_given_back(void **state)
{
    enum { CLAIMED = 600 }; /* several batches */
    struct policy_cache *policies = policy_cache_new();
    atomic_int told = 0;
    struct fixture f;
    struct engine *en;
    struct err e;

    fixture_open(&f, *(enum fixture_kind *)*state);
    fixture_agent(&f, "a");
    for (size_t i = 0; i < CLAIMED; i++) {
        struct uuid id = fixture_claimed(&f);
        struct execution *x = fixture_get(&f, &id);

        x->dispatch->status = DISPATCH_CLAIMED;
        ws_touch_dispatch(&f.ws, x);
        fixture_commit(&f);
    }
    fixture_reopen(&f);
    store_writer_close(f.w);
    en = new_engine(&f, policies, &told);
    assert_false(engine_may_deliver(en));
    CHECKF(engine_start(en, &e), "%s", e.message);
    for (int64_t until = clock_mono_us() + PATIENCE_US; !engine_may_deliver(en);)
        CHECKF(clock_mono_us() < until, "it never may");
    assert_string_equal(fixture_sql(&f, "SELECT count(*) FROM dispatches WHERE status = 'claimed'"),
                        "0");
    assert_true(engine_stop(en, PATIENCE_US));
    assert_true(atomic_load(&told) > 0);
    engine_free(en);
    f.w = store_writer_open(f.store, &e);
    CHECKF(f.w != NULL, "%s", e.message);
    fixture_close(&f);
    policy_cache_free(policies);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        ON_BOTH(nothing_is_delivered_before_what_was_claimed_is_given_back),
        ON_BOTH(a_hanging_judge_delays_its_own_step_only),
        ON_BOTH(a_bundle_is_compiled_at_its_first_use),
        ON_BOTH(a_bundle_that_does_not_compile_denies),
        ON_BOTH(large_arguments_are_matched_aside),
        ON_BOTH(a_judgement_counts_for_its_bundle_alone),
        ON_BOTH(stopping_waits_for_what_is_aside),
        ON_POSTGRES(a_lost_race),
        ON_POSTGRES(a_commit_whose_fate_is_unknown),
    };

    return cmocka_run_group_tests_name("engine", tests, NULL, NULL);
}
