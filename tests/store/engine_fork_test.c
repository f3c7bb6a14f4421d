/* SPDX-License-Identifier: Apache-2.0
 * Forks by the engine, on both databases: what is copied, and that there is a fork or none. */
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

#include "base/json.h"
#include "engine/fork_job.h"
#include "kernel/event.h"
#include "kernel/fork.h"
#include "support/engine_bench.h"
#include "support/fork_world.h"
#include "support/store_both.h"

/* ---- a source ---- */

enum { AT_ONCE = 400 };
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
enum { LONG_RUN = 2000 };
#else
enum { LONG_RUN = 20000 };
#endif

static void wait_done(struct bench *b, size_t n)
{
    WAIT_FOR(b, b->n_done == n);
}

/* Steps from..to of a run, each to a target of its own, of so many digits at least: submitted, and
 * settled but for every tenth. Every seventh of the others fails. */
static void add_wide_steps(struct bench *b, const struct run *run, size_t from, size_t to,
                           int digits)
{
    struct job *jobs = xzalloc(AT_ONCE * sizeof(*jobs));
    size_t done = b->n_done;

    for (size_t first = from; first < to; first += AT_ONCE) {
        size_t n = to - first < AT_ONCE ? to - first : AT_ONCE;

        for (size_t i = 0; i < n; i++) {
            char target[1024];

            snprintf(target, sizeof(target), "t%0*zu", digits, first + i);
            job_step(&jobs[i], run, arena_str(&b->f.arena, str_of(target)).p, STR("{\"x\":1}"));
            job_submit(b, &jobs[i]);
        }
        wait_done(b, done += n);
        for (size_t i = 0; i < n; i++) {
            struct hash id = jobs[i].cmd.out.step.step_id;
            bool failed = (first + i) % 7 == 3;

            assert_int_equal(jobs[i].cmd.out.step.decision, DECISION_PROCEED);
            job_free(&jobs[i]);
            jobs[i] = (struct job){.cmd.type = COMMAND_SETTLE};
            if ((first + i) % 10 == 9)
                continue;
            jobs[i].cmd.in.settle = (struct step_outcome){
                .execution_id = run->id,
                .agent_id = STR("a"),
                .lease = run->lease,
                .step_id = id,
                .failed = failed,
                .value = failed ? STR("{\"message\":\"no\"}") : STR("[1,2,3]"),
                .usage = USAGE_NONE,
            };
            job_submit(b, &jobs[i]);
            done++;
        }
        wait_done(b, done);
        for (size_t i = 0; i < n; i++) {
            CHECKF(jobs[i].cmd.verdict == VERDICT_DONE || jobs[i].done == 0, "%s",
                   jobs[i].cmd.err.message);
            job_free(&jobs[i]);
        }
    }
    free(jobs);
}

static void add_steps(struct bench *b, const struct run *run, size_t from, size_t to)
{
    add_wide_steps(b, run, from, to, 1);
}

/* ---- forking ---- */

struct fork_wait {
    struct fork_job job; /* first */
    struct bench *bench;
    int done;
};

static void on_forked(struct fork_job *job)
{
    struct fork_wait *w = (struct fork_wait *)job;
    struct bench *b = w->bench;

    pthread_mutex_lock(&b->lock);
    w->done++;
    pthread_cond_broadcast(&b->cond);
    pthread_mutex_unlock(&b->lock);
}

static void start_fork(struct bench *b, struct fork_wait *w, const struct uuid *source,
                       int64_t at_seq)
{
    *w = (struct fork_wait){.bench = b};
    w->job.source = *source;
    w->job.at_seq = at_seq;
    w->job.created_by = STR("somebody");
    w->job.done = on_forked;
    engine_fork(b->en, &w->job);
}

static struct uuid make_fork(struct bench *b, const struct uuid *source, int64_t at_seq)
{
    struct fork_wait w;

    start_fork(b, &w, source, at_seq);
    WAIT_FOR(b, w.done == 1);
    CHECKF(w.job.ok, "%s", w.job.err.message);
    return w.job.id;
}

static bool is_there(struct bench *b, const struct uuid *id)
{
    struct execution_view v;
    bool found;
    struct err e;

    assert_true(store_read_execution(b->f.r, id, &b->f.arena, &v, &found, &e));
    return found;
}

/* ---- a log ---- */

struct entry {
    struct str type, step_id, rest; /* rest: the payload without the id */
};
struct log {
    struct entry *at;
    size_t n;
};

/* Every event, from the first. */
static struct log read_log(struct bench *b, const struct uuid *id)
{
    struct arena *a = &b->f.arena;
    struct buf scratch = {0};
    struct log log = {arena_array(a, struct entry, 400000), 0};
    int64_t after = 0, last_seq = 1;

    while (after < last_seq) {
        struct event_row *rows;
        bool terminal, found;
        struct err e;
        size_t n;

        assert_true(store_read_events(b->f.r, id, after, 1000, 1 << 20, a, &rows, &n, &last_seq,
                                      &terminal, &found, &e));
        assert_true(found && n > 0);
        for (size_t i = 0; i < n; i++) {
            struct event_reader r = {.body = rows[i].body};
            struct event_line line;

            assert_int_equal(rows[i].first_seq, after + 1); /* no gaps */
            while (event_next(&r, &scratch, &line)) {
                struct entry *entry = &log.at[log.n++];

                entry->type = arena_str(a, line.type);
                entry->step_id = arena_str(a, json_get(line.payload, STR("step_id"), a));
                entry->rest = arena_str(a, line.payload);
                if (str_present(entry->step_id)) {
                    assert_memory_equal(entry->rest.p + 11, entry->step_id.p, entry->step_id.n);
                    entry->rest = str_slice(entry->rest, 11 + entry->step_id.n, entry->rest.n);
                }
            }
            after += rows[i].count;
            assert_int_equal(log.n, after);
        }
    }
    buf_free(&scratch);
    return log;
}

static bool settles(struct str type)
{
    return str_eq(type, STR("step.succeeded")) || str_eq(type, STR("step.failed")) ||
           str_eq(type, STR("step.denied"));
}

/* The log of a fork is what one by one is chosen from its source's. */
static size_t check_log(struct bench *b, const struct uuid *source, int64_t at_seq,
                        const struct uuid *fork)
{
    struct log from = read_log(b, source), to = read_log(b, fork);
    struct map settled = {0}, ids = {0};
    size_t at = 2, n_settled;

    CHECK_STR(to.at[0].type, STR("execution.created"));
    CHECK_STR(to.at[1].type, STR("execution.forked"));
    for (int64_t i = 0; i < at_seq; i++)
        if (settles(from.at[i].type))
            map_put(&settled, from.at[i].step_id, &from.at[i]);
    n_settled = settled.count;
    for (int64_t i = 0; i < at_seq; i++) {
        struct entry *entry = &from.at[i], *first;

        if (!str_present(entry->step_id) || map_get(&settled, entry->step_id) == NULL)
            continue;
        CHECK_STR(to.at[at].type, entry->type);
        CHECK_STR(to.at[at].rest, entry->rest);
        first = map_get(&ids, entry->step_id);
        if (first == NULL)
            map_put(&ids, entry->step_id, &to.at[at]);
        else
            CHECK_STR(to.at[at].step_id, first->step_id); /* the same one all along */
        assert_false(str_eq(to.at[at].step_id, entry->step_id));
        at++;
    }
    CHECK_STR(to.at[at].type, STR("execution.started"));
    CHECK_STR(to.at[at + 1].type, STR("dispatch.queued"));
    assert_int_equal(to.n, at + 2);
    map_free(&settled);
    map_free(&ids);
    return n_settled;
}

static void check_steps(struct bench *b, const struct uuid *fork, size_t n_settled)
{
    struct step_view *views;
    struct err e;
    size_t n;

    assert_true(
        store_read_steps(b->f.r, fork, STR_NONE, 0, 100000, SIZE_MAX, &b->f.arena, &views, &n, &e));
    assert_int_equal(n, n_settled);
    for (size_t i = 0; i < n; i++) {
        bool failed = str_eq(views[i].status, STR("failed"));
        int64_t number;

        assert_true(str_to_int64(str_slice(views[i].target, 1, views[i].target.n), &number));
        assert_int_equal(failed, number % 7 == 3);
        CHECK_STR(views[i].args, STR("{\"x\":1}"));
        if (failed)
            CHECK_STR(views[i].error, STR("{\"message\":\"no\"}"));
        else
            CHECK_STR(views[i].result, STR("[1,2,3]"));
    }
}

/* ---- tests ---- */

/* More than a part of everything; at the end, at the beginning and in the middle of transitions. */
static void a_fork_holds_what_had_settled(void **state)
{
    enum { STEPS = 1500 };
    struct bench b;
    struct run *run;
    int64_t last;

    bench_open(&b, state, 1);
    run = &b.runs[0];
    add_steps(&b, run, 0, STEPS);
    last = (int64_t)read_log(&b, &run->id).n;
    for (int64_t at_seq = last; at_seq > 0; at_seq = at_seq == last ? last / 2 : at_seq / 7) {
        struct uuid fork = make_fork(&b, &run->id, at_seq), again;
        size_t n = check_log(&b, &run->id, at_seq, &fork);

        check_steps(&b, &fork, n);
        again = make_fork(&b, &fork, (int64_t)read_log(&b, &fork).n);
        assert_int_equal(check_log(&b, &fork, (int64_t)read_log(&b, &fork).n, &again), n);
        check_steps(&b, &again, n);
    }
    assert_int_equal(world_count(&b.f, "forks"), 0);
    bench_close(&b);
}

static void what_cannot_be_forked_is_refused(void **state)
{
    struct uuid unknown;
    struct fork_wait w;
    struct bench b;
    int64_t last;

    bench_open(&b, state, 1);
    last = (int64_t)read_log(&b, &b.runs[0].id).n;
    start_fork(&b, &w, &b.runs[0].id, last + 1);
    WAIT_FOR(&b, w.done == 1);
    assert_false(w.job.ok || w.job.unknown);
    assert_int_equal(w.job.err.code, ERR_VALIDATION);
    unknown = fixture_uuid(&b.f);
    start_fork(&b, &w, &unknown, 1);
    WAIT_FOR(&b, w.done == 1);
    assert_false(w.job.ok);
    assert_int_equal(w.job.err.code, ERR_NOT_FOUND);
    assert_int_equal(world_count(&b.f, "forks"), 0);
    bench_close(&b);
}

static void many_at_once(void **state)
{
    enum { N = 24, STEPS = 300 };
    struct fork_wait waits[N];
    struct bench b;
    int64_t last;

    bench_open(&b, state, 1);
    add_steps(&b, &b.runs[0], 0, STEPS);
    last = (int64_t)read_log(&b, &b.runs[0].id).n;
    for (int i = 0; i < N; i++)
        start_fork(&b, &waits[i], &b.runs[0].id, last - i);
    for (int i = 0; i < N; i++) {
        WAIT_FOR(&b, waits[i].done == 1);
        CHECKF(waits[i].job.ok, "%s", waits[i].job.err.message);
        (void)check_log(&b, &b.runs[0].id, last - i, &waits[i].job.id);
    }
    bench_close(&b);
}

/* Steps of a run one after the other until the fork is done: how many were answered. */
static size_t steps_beside(struct bench *b, const struct run *run, const struct fork_wait *w)
{
    size_t answered = 0;
    bool over = false;

    while (!over) {
        size_t done = b->n_done;
        struct job job;
        char target[24];

        snprintf(target, sizeof(target), "beside%zu", done);
        job_step(&job, run, target, STR("{}"));
        job_submit(b, &job);
        wait_done(b, done + 1);
        job_free(&job);
        pthread_mutex_lock(&b->lock);
        over = w->done == 1;
        pthread_mutex_unlock(&b->lock);
        answered += !over;
    }
    return answered;
}

/* In many small parts, between which others have their turn. (How long all that takes is the
 * bench's to say.) */
static void a_long_run_is_forked_beside_others(void **state)
{
    enum { FEWEST = LONG_RUN / 1000 };
    struct fork_wait w;
    struct bench b;
    int64_t last;
    size_t answered;

    bench_open(&b, state, 2);
    add_steps(&b, &b.runs[0], 0, LONG_RUN);
    last = (int64_t)read_log(&b, &b.runs[0].id).n;
    start_fork(&b, &w, &b.runs[0].id, last);
    answered = steps_beside(&b, &b.runs[1], &w);
    CHECKF(w.job.ok, "%s", w.job.err.message);
    CHECKF(answered >= FEWEST, "%zu steps were answered while it was made", answered);
    check_steps(&b, &w.job.id, (size_t)(LONG_RUN - LONG_RUN / 10));
    bench_close(&b);
}

static void run_command(struct bench *b, struct command *cmd, enum err_code code)
{
    cmd->arena = &b->f.arena;
    engine_run(b->en, cmd);
    if (code == ERR_NONE)
        CHECKF(cmd->verdict == VERDICT_DONE, "%s", cmd->err.message);
    else
        assert_int_equal(cmd->err.code, code);
}

static int64_t sql_int(struct bench *b, const char *sql)
{
    int64_t n;

    assert_true(str_to_int64(str_of(fixture_sql(&b->f, sql)), &n));
    return n;
}

/* Rows of one transaction have one xmin. */
#define WRITTEN                                                                                    \
    "WITH rows (part, bytes) AS (SELECT s.xmin::text, length(s.target) FROM steps s"               \
    " WHERE s.execution_key = (SELECT max(key) FROM executions) UNION ALL"                         \
    " SELECT v.xmin::text, length(v.body) FROM events v"                                           \
    " WHERE v.execution_key = (SELECT max(key) FROM executions)),"                                 \
    " parts (rows, bytes) AS (SELECT count(*), sum(bytes) FROM rows GROUP BY part) "

static void nothing_is_written_in_large_parts(void **state)
{
    enum { STEPS = 1000, DIGITS = 1000 };
    struct bench b;
    int64_t most, largest, row;

    bench_open(&b, state, 1);
    add_wide_steps(&b, &b.runs[0], 0, STEPS, DIGITS);
    (void)make_fork(&b, &b.runs[0].id, (int64_t)read_log(&b, &b.runs[0].id).n);
    assert_true(sql_int(&b, WRITTEN "SELECT sum(bytes) FROM rows") > STEPS * 9 / 10 * 2 * DIGITS);
    most = sql_int(&b, WRITTEN "SELECT max(rows) FROM parts");
    largest = sql_int(&b, WRITTEN "SELECT max(bytes) FROM parts");
    row = sql_int(&b, WRITTEN "SELECT max(bytes) FROM rows");
    CHECKF(most <= FORK_PART_ROWS + 2, "%lld rows at once", (long long)most); /* 2: its own */
    CHECKF(largest <= FORK_PART_BYTES + row, "%lld bytes at once, of rows up to %lld",
           (long long)largest, (long long)row);
    bench_close(&b);
}

/* A part that takes its time, since somebody has its pin: what else comes is not held up. (On
 * SQLite the one writer has both; there a part is small.) */
static void nobody_waits_behind_a_part(void **state)
{
    struct command begin = {.type = COMMAND_FORK_BEGIN};
    struct event_copy event = {3, 1, 5, STR("resource.registered\t\"key\":\"k\"\n")};
    struct job part = {.cmd.type = COMMAND_FORK_PART}, steps[RUNS_MAX];
    struct bench b;

    bench_open(&b, state, RUNS_MAX);
    begin.in.fork_begin = (struct fork_begin){b.runs[0].id, 2, STR_NONE};
    run_command(&b, &begin, ERR_NONE);
    ws_need_fork(&b.f.ws, &begin.out.begun.id);
    fixture_load(&b.f);
    part.cmd.in.fork_part = (struct fork_part){.fork_id = begin.out.begun.id,
                                               .slice = {.events = &event, .n_events = 1}};
    job_submit(&b, &part);
    for (int i = 0; i < RUNS_MAX; i++)
        bench_step(&b, &steps[i], &b.runs[i], "t");
    wait_done(&b, RUNS_MAX);
    assert_int_equal(part.done, 0);
    store_abandon(b.f.w);
    ws_clear(&b.f.ws);
    wait_done(&b, RUNS_MAX + 1);
    CHECKF(part.cmd.verdict == VERDICT_DONE, "%s", part.cmd.err.message);
    for (int i = 0; i < RUNS_MAX; i++) {
        assert_int_equal(steps[i].cmd.out.step.decision, DECISION_PROCEED);
        job_free(&steps[i]);
    }
    job_free(&part);
    bench_close(&b);
}

/* Each is there, or nothing of it; and each is answered. */
static void stopping_leaves_no_half_forks(void **state)
{
    enum { N = 12, STEPS = 1000 };
    struct fork_wait waits[N];
    struct bench b;
    int64_t last, rows;
    size_t made = 0;

    bench_open(&b, state, 1);
    add_steps(&b, &b.runs[0], 0, STEPS);
    last = (int64_t)read_log(&b, &b.runs[0].id).n;
    rows = world_count(&b.f, "steps");
    for (int i = 0; i < N; i++)
        start_fork(&b, &waits[i], &b.runs[0].id, last);
    WAIT_FOR(&b, waits[0].done + waits[1].done > 0);
    bench_engine_down(&b);
    assert_int_equal(world_count(&b.f, "forks"), 0);
    world_tidy(&b.f);
    for (int i = 0; i < N; i++) {
        assert_int_equal(waits[i].done, 1);
        made += waits[i].job.ok;
        if (waits[i].job.ok) {
            check_steps(&b, &waits[i].job.id, (size_t)(STEPS - STEPS / 10));
            continue;
        }
        assert_false(waits[i].job.unknown);
        assert_int_equal(waits[i].job.err.code, ERR_UNAVAILABLE);
        assert_false(is_there(&b, &waits[i].job.id));
    }
    assert_true(made > 0);
    assert_int_equal(world_count(&b.f, "steps"), rows + (int64_t)made * (STEPS - STEPS / 10));
    bench_close(&b);
}

/* The kernel that was at it is gone between two parts: nobody sees it, until somebody clears it
 * away; and if it was only slow, it cannot go on. */
static void a_fork_that_was_left_is_given_up(void **state)
{
    struct command begin = {.type = COMMAND_FORK_BEGIN}, part = {.type = COMMAND_FORK_PART},
                   abandon = {.type = COMMAND_FORK_ABANDON};
    struct event_copy event = {3, 1, 5, STR("resource.registered\t\"key\":\"k\"\n")};
    struct uuid fork, *stale;
    struct bench b;
    int64_t events;
    size_t n;
    struct err e;

    bench_open(&b, state, 1);
    events = world_count(&b.f, "events");
    begin.in.fork_begin = (struct fork_begin){b.runs[0].id, 2, STR_NONE};
    run_command(&b, &begin, ERR_NONE);
    fork = begin.out.begun.id;
    part.in.fork_part =
        (struct fork_part){.fork_id = fork, .slice = {.events = &event, .n_events = 1}};
    run_command(&b, &part, ERR_NONE);
    bench_engine_down(&b);
    bench_engine_up(&b);
    assert_false(is_there(&b, &fork));
    assert_int_equal(world_count(&b.f, "events"), events + 1);
    abandon.in.fork_abandon.fork_id = fork; /* too early */
    run_command(&b, &abandon, ERR_NONE);
    assert_int_equal(world_count(&b.f, "forks"), 1);
    (void)fixture_sql(&b.f, "UPDATE forks SET touched_at = 5");
    assert_true(store_stale_forks(b.f.r, 6, 10, &b.f.arena, &stale, &n, &e));
    assert_int_equal(n, 1);
    assert_true(uuid_eq(stale, &fork));
    run_command(&b, &abandon, ERR_NONE);
    assert_int_equal(world_count(&b.f, "forks"), 0);
    event.first_seq = 4;
    run_command(&b, &part, ERR_UNAVAILABLE);
    bench_engine_down(&b);
    world_tidy(&b.f);
    assert_int_equal(world_count(&b.f, "events"), events);
    assert_false(is_there(&b, &fork));
    bench_close(&b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        ON_BOTH(a_fork_holds_what_had_settled),
        ON_BOTH(what_cannot_be_forked_is_refused),
        ON_BOTH(many_at_once),
        ON_BOTH(a_long_run_is_forked_beside_others),
        ON_POSTGRES(nothing_is_written_in_large_parts),
        ON_POSTGRES(nobody_waits_behind_a_part),
        ON_BOTH(stopping_leaves_no_half_forks),
        ON_BOTH(a_fork_that_was_left_is_given_up),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
