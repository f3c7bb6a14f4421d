/* SPDX-License-Identifier: Apache-2.0
 * What comes while an engine stops: commands that its own threads submit. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

#include "engine/executor.h"
#include "support/engine_bench.h"
#include "support/store_both.h"

struct late {
    struct command first, second; /* the one submits the other */
    struct engine *en;
    atomic_bool done;
};

static void second_done(struct command *cmd)
{
    atomic_store((atomic_bool *)cmd->ctx, true);
}

/* The executor's thread, as its sweep of leases would: when it was told to stop, and a moment
 * later, so that the wake-up has come, too. */
static void first_done(struct command *cmd)
{
    struct late *late = cmd->ctx;
    const struct timespec moment = {0, 20 * 1000 * 1000};

    while (!atomic_load(&late->en->executors[0].stopping))
        nanosleep(&moment, NULL);
    nanosleep(&moment, NULL);
    engine_submit(late->en, &late->second);
}

static void what_comes_last_does_not_keep_it(void **state)
{
    struct late late = {.first = {.type = COMMAND_RECLAIM, .done = first_done, .ctx = &late},
                        .second = {.type = COMMAND_RECLAIM, .done = second_done}};
    struct bench b;

    bench_open(&b, state, 0);
    late.en = b.en;
    late.second.ctx = &late.done;
    alarm(120); /* a thread that waits for ever ends the test */
    engine_submit(b.en, &late.first);
    bench_engine_down(&b);
    alarm(0);
    assert_true(atomic_load(&late.done));
    bench_engine_up(&b);
    bench_close(&b);
}

struct ended {
    struct command cancel;
    struct engine *en;
    int64_t waiting; /* when it was answered */
};

static void cancelled(struct command *cmd)
{
    struct ended *ended = cmd->ctx;

    ended->waiting = atomic_load(&engine_stats(ended->en)->waiting);
}

static struct uuid create_turn(struct bench *b)
{
    struct command create = {.type = COMMAND_CREATE, .arena = &b->f.arena};

    create.in.create.agent_id = STR("a");
    create.in.create.created_by = STR("test");
    create.in.create.session = STR("s");
    engine_run(b->en, &create);
    assert_int_equal(create.verdict, VERDICT_DONE);
    return create.out.created.id;
}

/* A follow-up's own follow-up is counted before it is answered: between the two an engine that
 * stops would find nothing to wait for. One executor, so that none is done meanwhile. */
static void a_follow_up_is_counted_before_what_it_follows_is_answered(void **state)
{
    struct ended ended = {
        .cancel = {.type = COMMAND_CANCEL, .follow_up = true, .done = cancelled, .ctx = &ended}};
    struct bench b;

    bench_open(&b, state, 0);
    ended.en = b.en;
    ended.cancel.in.cancel.execution_id = create_turn(&b);
    (void)create_turn(&b); /* waits for the session */
    engine_submit(b.en, &ended.cancel);
    bench_engine_down(&b);
    assert_int_equal(ended.cancel.verdict, VERDICT_DONE);
    assert_int_equal(ended.waiting, 1);
    assert_string_equal(
        fixture_sql(&b.f, "SELECT count(*) FROM executions WHERE status = 'pending'"), "0");
    bench_engine_up(&b);
    bench_close(&b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        ON_BOTH(what_comes_last_does_not_keep_it),
        ON_SQLITE(a_follow_up_is_counted_before_what_it_follows_is_answered),
    };

    return cmocka_run_group_tests_name("engine_stop", tests, NULL, NULL);
}
