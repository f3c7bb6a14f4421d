/* SPDX-License-Identifier: Apache-2.0
 * What was acknowledged is there: after kill -9, a broken connection, a commit whose answer was
 * lost. */
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/clock.h"
#include "support/cutting_proxy.h"
#include "support/postgres_cluster.h"
#include "support/store_both.h"
#include "support/store_fixture.h"

static struct uuid new_execution(struct fixture *f)
{
    struct uuid id;

    fixture_load(f);
    id = fixture_execution(f, "a")->id;
    fixture_commit(f);
    return id;
}

/* ---- kill -9 ---- */

/* Each group adds a step and one event to each execution; the number of a group that is durable
 * goes down the pipe. */
static void write_for_ever(struct fixture *f, const struct uuid *ids, size_t n, int out)
{
    for (int64_t round = 1;; round++) {
        for (size_t i = 0; i < n; i++)
            (void)fixture_get(f, &ids[i]);
        for (size_t i = 0; i < n; i++) {
            struct hash h = fixture_hash((uint64_t)round * 100 + i);
            struct execution *x = ws_execution(&f->ws, &ids[i]);
            struct step *s = ws_new_step(&f->ws, x, &h);

            s->target = str_make(xstrdup(STR("t")), 1);
            s->occurrence = round;
            s->args = STR("{\"some\":\"arguments\"}");
            s->created_at = 1;
            fixture_event(f, x, "e\t\"n\":1\n");
        }
        fixture_commit(f);
        if (write(out, &round, sizeof(round)) != sizeof(round))
            _exit(1);
    }
}

static int64_t run_and_kill(struct fixture *f, const struct uuid *ids, size_t n, int64_t for_us)
{
    int pipe_fds[2], status;
    int64_t last = 0, round, until;
    pid_t pid;

    assert_int_equal(pipe(pipe_fds), 0);
    pid = fork();
    if (pid == 0) {
        struct fixture child = *f;
        struct store_options opt = {.url = f->url};
        struct err e;

        child.store = store_open(&opt, &e);
        child.w = child.store == NULL ? NULL : store_writer_open(child.store, &e);
        if (child.w == NULL)
            _exit(1);
        ws_init(&child.ws, &child.settings, &child.ids, &child.random);
        child.ws.keep_leased = store_is_sqlite(child.store);
        write_for_ever(&child, ids, n, pipe_fds[1]);
    }
    close(pipe_fds[1]);
    until = clock_mono_us() + for_us;
    while (clock_mono_us() < until && read(pipe_fds[0], &round, sizeof(round)) == sizeof(round))
        last = round;
    kill(pid, SIGKILL);
    while (read(pipe_fds[0], &round, sizeof(round)) == sizeof(round))
        last = round;
    waitpid(pid, &status, 0);
    assert_true(WIFSIGNALED(status));
    close(pipe_fds[0]);
    return last;
}

static void check_after_kill(struct fixture *f, const struct uuid *id, size_t i, int64_t reported,
                             int64_t base)
{
    struct execution *x = fixture_get(f, id);
    struct event_row *rows;
    struct err e = {0};
    int64_t seq = 0, after = 0, last;
    bool terminal, found;
    size_t n;

    assert_in_range(x->last_seq, base + reported,
                    base + reported + 1); /* one more may have been on its way */
    for (int64_t round = 1; round <= reported; round++) {
        struct hash h = fixture_hash((uint64_t)round * 100 + i);

        ws_need_step(&f->ws, id, &h);
        fixture_load(f);
        assert_non_null(ws_step(&f->ws, &h));
        assert_int_equal(ws_step(&f->ws, &h)->occurrence, round);
    }
    do { /* no gaps in the log */
        assert_true(store_read_events(f->r, id, after, 100, SIZE_MAX, &f->arena, &rows, &n, &last,
                                      &terminal, &found, &e));
        for (size_t k = 0; k < n; k++) {
            assert_int_equal(rows[k].first_seq, seq + 1);
            seq += rows[k].count;
        }
        after = seq;
    } while (n > 0);
    assert_int_equal(seq, last);
}

static void kill_nine(void **state)
{
    enum { N = 8 };
    struct fixture f;

    fixture_open(&f, *(enum fixture_kind *)*state);
    for (int round = 0; round < 4; round++) {
        struct uuid ids[N];
        int64_t reported;

        for (size_t i = 0; i < N; i++)
            ids[i] = new_execution(&f);
        ws_free(&f.ws);
        store_writer_close(f.w);
        store_reader_close(f.r);
        store_close(f.store);
        reported = run_and_kill(&f, ids, N, 150 * US_PER_MS);
        assert_true(reported > 0);
        struct store_options opt = {.url = f.url};
        struct err e;
        f.store = store_open(&opt, &e);
        if (f.store == NULL)
            fail_msg("%s", e.message);
        f.w = store_writer_open(f.store, &e);
        f.r = store_reader_open(f.store, &e);
        ws_init(&f.ws, &f.settings, &f.ids, &f.random);
        f.ws.keep_leased = store_is_sqlite(f.store);
        for (size_t i = 0; i < N; i++)
            check_after_kill(&f, &ids[i], i, reported, 1);
        fixture_commit(&f);
    }
    fixture_close(&f);
}

/* ---- SQLite: the write-ahead log ---- */

static int64_t file_size(const struct fixture *f, const char *suffix)
{
    char path[128];
    struct stat st;

    snprintf(path, sizeof(path), "%s/test.db%s", f->folder, suffix);
    return stat(path, &st) == 0 ? st.st_size : 0;
}

struct reading {
    struct fixture *f;
    struct uuid id;
    atomic_bool stop;
};

static void *read_for_ever(void *arg)
{
    struct reading *reading = arg;
    struct err e;
    struct store_reader *r = store_reader_open(reading->f->store, &e);
    struct arena a = {0};

    while (!atomic_load(&reading->stop)) {
        struct step_view *rows;
        size_t n;

        if (!store_read_steps(r, &reading->id, STR_NONE, 0, 50, SIZE_MAX, &a, &rows, &n, &e))
            abort();
        arena_reset(&a);
    }
    arena_free(&a);
    store_reader_close(r);
    return NULL;
}

static void the_log_is_bounded(void **state)
{
    enum { GROUPS = 250, STEPS = 16 };
    static char payload[30 * 1024];
    struct fixture f;
    struct reading reading = {.f = &f};
    pthread_t thread;
    int64_t most = 0;

    fixture_open(&f, *(enum fixture_kind *)*state);
    reading.id = new_execution(&f);
    assert_int_equal(pthread_create(&thread, NULL, read_for_ever, &reading), 0);
    for (unsigned g = 0; g < GROUPS; g++) {
        struct execution *x = fixture_get(&f, &reading.id);

        for (unsigned s = 0; s < STEPS; s++) {
            struct hash h = fixture_hash(g * STEPS + s);

            fixture_step(&f, x, &h, str_make(payload, sizeof(payload)));
        }
        fixture_commit(&f);
        if (file_size(&f, "-wal") > most)
            most = file_size(&f, "-wal");
    }
    atomic_store(&reading.stop, true);
    pthread_join(thread, NULL);
    assert_true(most > 4 * 1024 * 1024);
    assert_true(most <= 64 * 1024 * 1024);
    assert_true(file_size(&f, "") > 64 * 1024 * 1024);
    fixture_close(&f);
}

/* ---- Postgres: the connection ---- */

#define OTHER_BACKENDS                                                                             \
    " FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()"

static void backend_terminated(void **state)
{
    struct fixture f;
    struct uuid id;
    struct err e = {0};
    struct execution_view v;
    bool unknown, found;

    fixture_open(&f, *(enum fixture_kind *)*state);
    id = new_execution(&f);
    fixture_event(&f, fixture_get(&f, &id), "lost\t\n");
    (void)postgres_cluster_query(f.url,
                                 "SELECT count(pg_terminate_backend(pid, 5000))" OTHER_BACKENDS);
    assert_false(store_commit(f.w, &f.ws, &unknown, &e));
    assert_int_equal(e.code, ERR_UNAVAILABLE);
    assert_false(unknown); /* it never came to the commit, and the database says so */
    ws_clear(&f.ws);
    assert_true(store_writer_recover(f.w, &e));
    assert_int_equal(fixture_get(&f, &id)->last_seq, 1);
    /* in the midst of a load */
    (void)postgres_cluster_query(f.url,
                                 "SELECT count(pg_terminate_backend(pid, 5000))" OTHER_BACKENDS);
    ws_need_request_key(&f.ws, STR("a"), STR("k"));
    assert_false(store_load(f.w, &f.ws, &e));
    assert_int_equal(e.code, ERR_UNAVAILABLE);
    store_abandon(f.w);
    ws_clear(&f.ws);
    assert_true(store_writer_recover(f.w, &e));
    fixture_event(&f, fixture_get(&f, &id), "kept\t\n");
    fixture_commit(&f);
    /* between transactions nobody notices, and readers come back by themselves */
    (void)postgres_cluster_query(f.url,
                                 "SELECT count(pg_terminate_backend(pid, 5000))" OTHER_BACKENDS);
    assert_int_equal(fixture_get(&f, &id)->last_seq, 2);
    fixture_commit(&f);
    assert_true(store_read_execution(f.r, &id, &f.arena, &v, &found, &e));
    assert_int_equal(v.last_seq, 2);
    fixture_close(&f);
}

/* The fixture's database, seen through a proxy. */
static struct cutting_proxy *behind_proxy(struct fixture *f)
{
    struct cutting_proxy *p;
    char direct[256];
    const char *database;

    fixture_open(f, FIXTURE_POSTGRES);
    if (postgres_cluster_socket()[0] == '\0')
        return NULL;
    p = cutting_proxy_start(postgres_cluster_socket());
    snprintf(direct, sizeof(direct), "%s", f->url);
    database = strstr(direct, "/store_test_");
    assert_non_null(database);
    snprintf(f->url, sizeof(f->url), "postgres://postgres@/%.*s?host=%s",
             (int)strcspn(database + 1, "?"), database + 1, cutting_proxy_folder(p));
    fixture_reopen(f);
    return p;
}

static void leave_proxy(struct fixture *f, struct cutting_proxy *p)
{
    fixture_close(f);
    cutting_proxy_stop(p);
}

static void cut_commit(struct fixture *f, struct cutting_proxy *p, enum cut cut)
{
    struct uuid id = new_execution(f);
    struct err e = {0};
    bool unknown, committed;

    fixture_event(f, fixture_get(f, &id), "one\t\n");
    cutting_proxy_arm(p, cut, 0);
    committed = store_commit(f->w, &f->ws, &unknown, &e);
    assert_false(unknown);
    if (cut == CUT_BEFORE) {
        assert_false(committed);
        assert_int_equal(e.code, ERR_UNAVAILABLE);
    } else if (cut == CUT_AFTER || cut == CUT_SYNC) {
        assert_true(committed);
    }
    ws_clear(&f->ws);
    if (!committed)
        assert_true(store_writer_recover(f->w, &e));
    assert_int_equal(fixture_get(f, &id)->last_seq, committed ? 2 : 1); /* as was said */
    fixture_event(f, ws_execution(&f->ws, &id), "two\t\n");
    fixture_commit(f);
}

static void commit_interrupted(void **state)
{
    struct fixture f;
    struct cutting_proxy *p = behind_proxy(&f);

    (void)state;
    if (p == NULL) {
        fixture_close(&f);
        skip();
    }
    for (int i = 0; i < 5; i++) {
        cut_commit(&f, p, CUT_BEFORE);
        cut_commit(&f, p, CUT_AFTER);
        cut_commit(&f, p, CUT_AT_ONCE);
        cut_commit(&f, p, CUT_SYNC);
    }
    cut_commit(&f, p, CUT_LATE); /* whichever is first: the question, or the COMMIT */
    leave_proxy(&f, p);
}

static void fate_that_cannot_be_learnt(void **state)
{
    struct fixture f;
    struct cutting_proxy *p = behind_proxy(&f);
    struct uuid id;
    struct err e = {0};
    bool unknown;

    (void)state;
    if (p == NULL) {
        fixture_close(&f);
        skip();
    }
    id = new_execution(&f);
    fixture_event(&f, fixture_get(&f, &id), "one\t\n");
    cutting_proxy_arm(p, CUT_AFTER, 1);
    assert_false(store_commit(f.w, &f.ws, &unknown, &e));
    assert_true(unknown);
    assert_int_equal(e.code, ERR_UNAVAILABLE);
    ws_clear(&f.ws);
    assert_false(store_writer_recover(f.w, &e));
    cutting_proxy_arm(p, CUT_NEVER, 0);
    assert_true(store_writer_recover(f.w, &e));
    assert_int_equal(fixture_get(&f, &id)->last_seq, 2);
    leave_proxy(&f, p);
}

/* ---- Postgres: several writers ---- */

enum { WRITERS = 4, EXECUTIONS = 5, ROUNDS = 40 };

struct contender {
    struct fixture *f;
    const struct uuid *ids;
    uint64_t seed;
    size_t appended[EXECUTIONS];
};

/* Takes a few rows in any order, as a group of commands would name them. */
static void contend_once(struct contender *c, struct store_writer *w, struct working_set *ws,
                         struct prng *random)
{
    struct err e;
    bool unknown, wanted[EXECUTIONS] = {false};

    for (size_t k = 0; k < 3; k++) {
        size_t i = (size_t)prng_below(random, EXECUTIONS);

        wanted[i] = true;
        ws_need_execution(ws, &c->ids[i]);
    }
    if (!store_load(w, ws, &e))
        abort();
    for (size_t i = 0; i < EXECUTIONS; i++) {
        struct transition *t;

        if (!wanted[i])
            continue;
        t = ws_transition(ws, ws_execution(ws, &c->ids[i]));
        t->count++;
        ws_execution(ws, &c->ids[i])->last_seq++;
        buf_add_z(&t->body, "x\t\n");
    }
    if (!store_commit(w, ws, &unknown, &e))
        abort();
    for (size_t i = 0; i < EXECUTIONS; i++)
        c->appended[i] += wanted[i];
    ws_end_group(ws);
}

static void *contend(void *arg)
{
    struct contender *c = arg;
    struct err e;
    struct store_writer *w = store_writer_open(c->f->store, &e);
    struct working_set ws;
    struct uuid_gen ids = {0};
    struct prng random;

    if (w == NULL)
        abort();
    prng_seed(&random, c->seed);
    ws_init(&ws, &c->f->settings, &ids, &random);
    for (int round = 0; round < ROUNDS; round++)
        contend_once(c, w, &ws, &random);
    ws_free(&ws);
    store_writer_close(w);
    return NULL;
}

static void rows_are_locked_in_one_order(void **state)
{
    struct fixture f;
    struct uuid ids[EXECUTIONS];
    struct contender contenders[WRITERS];
    pthread_t threads[WRITERS];

    fixture_open(&f, *(enum fixture_kind *)*state);
    for (size_t i = 0; i < EXECUTIONS; i++)
        ids[i] = new_execution(&f);
    for (size_t t = 0; t < WRITERS; t++) {
        contenders[t] = (struct contender){.f = &f, .ids = ids, .seed = t + 1};
        assert_int_equal(pthread_create(&threads[t], NULL, contend, &contenders[t]), 0);
    }
    for (size_t t = 0; t < WRITERS; t++)
        pthread_join(threads[t], NULL);
    for (size_t i = 0; i < EXECUTIONS; i++) {
        int64_t want = 1;

        for (size_t t = 0; t < WRITERS; t++)
            want += (int64_t)contenders[t].appended[i];
        assert_int_equal(fixture_get(&f, &ids[i])->last_seq, want);
    }
    fixture_close(&f);
}

/* A guard fails inside the database, in the same pipeline as the COMMIT behind it. */
static void a_guard_stops_the_commit(void **state)
{
    struct fixture f;
    struct uuid id;
    struct hash h = fixture_hash(1);
    struct execution *x;
    struct err e = {0};
    bool unknown;

    fixture_open(&f, *(enum fixture_kind *)*state);
    id = new_execution(&f);
    x = fixture_get(&f, &id);
    fixture_step(&f, x, &h, STR("1"));
    fixture_commit(&f);
    ws_need_step(&f.ws, &id, &h);
    fixture_load(&f);
    (void)postgres_cluster_query(f.url, "UPDATE steps SET status = 'failed', completed_at = 1");
    fixture_settle(&f, ws_step(&f.ws, &h), STR("2"));
    assert_false(store_commit(f.w, &f.ws, &unknown, &e));
    assert_int_equal(e.code, ERR_STORE_RACE);
    ws_clear(&f.ws);
    ws_need_step(&f.ws, &id, &h);
    fixture_load(&f);
    assert_int_equal(ws_step(&f.ws, &h)->status, STEP_FAILED);
    assert_int_equal(ws_execution(&f.ws, &id)->last_seq,
                     4); /* the event behind it is not there either */
    fixture_close(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        ON_BOTH(kill_nine),
        ON_SQLITE(the_log_is_bounded),
        ON_POSTGRES(backend_terminated),
        cmocka_unit_test(commit_interrupted),
        cmocka_unit_test(fate_that_cannot_be_learnt),
        ON_POSTGRES(rows_are_locked_in_one_order),
        ON_POSTGRES(a_guard_stops_the_commit),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
