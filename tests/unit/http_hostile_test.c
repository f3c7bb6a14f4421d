/* SPDX-License-Identifier: Apache-2.0
 * Clients that are slow, rude, gone or too many. Time-outs are cut to milliseconds; nothing else
 * differs from a server in earnest. */
#include "unit/http_app.h"

#include <malloc.h>
#include <sys/resource.h>

#define MS US_PER_MS
#define MIB ((size_t)1024 * 1024)
#define REQ(method, target) method " " target " HTTP/1.1\r\nHost: test\r\n"
#define GET(target) REQ("GET", target) "\r\n"

static int stop(void **state)
{
    (void)state;
    app_stop();
    return 0;
}

static int start(void **state)
{
    (void)state;
    app_start((struct http_options){0});
    return 0;
}

static int start_impatient(void **state)
{
    (void)state;
    app_start((struct http_options){
        .head_timeout_us = 50 * MS, .body_idle_timeout_us = 50 * MS, .idle_timeout_us = 150 * MS});
    return 0;
}

static int start_hasty(void **state)
{
    (void)state;
    app_start((struct http_options){.body_total_timeout_us = 100 * MS});
    return 0;
}

static struct str megabytes(size_t n)
{
    static char *bytes;
    static size_t have;

    if (have < n * MIB) {
        bytes = realloc(bytes, n * MIB);
        memset(bytes, 'b', n * MIB);
        have = n * MIB;
    }
    return str_make(bytes, n * MIB);
}

static void expect_closed_with(struct peer *p, int status)
{
    struct answer a = {0};

    peer_answer(p, &a, false);
    assert_int_equal(a.status, status);
    assert_true(str_eq(answer_header(&a, "Connection"), STR("close")));
    assert_true(
        str_eq(answer_header(&a, "Content-Type"), STR("application/json"))); /* made by on_error */
    answer_free(&a);
    peer_expect_end(p);
    peer_close(p);
}

/* Sends one byte again and again until the server has enough of it. */
static void drip(struct peer *p, char byte)
{
    while (!peer_poll(p, POLLIN, 5 * MS))
        if (send(p->fd, &byte, 1, MSG_NOSIGNAL) < 0)
            break;
}

static void slow_heads(void **state)
{
    (void)state;
    struct peer p = peer_connect(app.port);

    int64_t begun = clock_mono_us();
    SEND(&p, REQ("GET", "/hello") "X: ");
    drip(&p, 'x'); /* progress buys no time */
    expect_closed_with(&p, 408);
    assert_true(clock_mono_us() - begun >= 50 * MS);
    p = peer_connect(app.port);
    SEND(&p, GET("/hello") "G"); /* also after a good request */
    peer_expect(&p, 200, "hello");
    expect_closed_with(&p, 408);
    WAIT_FOR(app_stats().connections == 0);
}

static void stopping_bodies(void **state)
{
    (void)state;
    struct peer p = peer_connect(app.port);

    SEND(&p, REQ("POST", "/echo") "Content-Length: 1000000\r\n\r\nabc");
    expect_closed_with(&p, 408);
    p = peer_connect(app.port);
    SEND(&p, REQ("POST", "/echo") "Transfer-Encoding: chunked\r\n\r\nfffff\r\nabc");
    expect_closed_with(&p, 408);
    p = peer_connect(app.port);
    SEND(&p, REQ("POST", "/echo") "Expect: 100-continue\r\nContent-Length: 5\r\n\r\n");
    struct answer a = {0};
    peer_answer_head(&p, &a);
    assert_int_equal(a.status, 100);
    expect_closed_with(&p, 408);
    answer_free(&a);
    assert_int_equal(app_stats().body_budget_used, 0);
    assert_int_equal(atomic_load(&app.requests), 0);
}

static void slow_bodies(void **state)
{
    (void)state;
    struct peer p = peer_connect(app.port);

    int64_t begun = clock_mono_us();
    SEND(&p, REQ("POST", "/echo") "Content-Length: 1000000\r\n\r\nabc");
    drip(&p, 'x'); /* never idle, but too slow in all */
    expect_closed_with(&p, 408);
    assert_true(clock_mono_us() - begun >= 100 * MS);
    p = peer_connect(app.port);
    SEND(&p, REQ("POST", "/echo") "Transfer-Encoding: chunked\r\n\r\nfffff\r\n");
    drip(&p, 'x');
    expect_closed_with(&p, 408);
    assert_int_equal(app_stats().body_budget_used, 0);
    assert_int_equal(atomic_load(&app.requests), 0);
}

static void idle_connections_are_closed_without_a_word(void **state)
{
    (void)state;
    struct peer fresh = peer_connect(app.port), used = peer_connect(app.port),
                busy = peer_connect(app.port);

    SEND(&busy, GET("/hold"));
    SEND(&used, GET("/hello") "\r\n"); /* an empty line too many is no slow request */
    peer_expect(&used, 200, "hello");
    peer_expect_end(&used);
    peer_expect_end(&fresh);
    WAIT_FOR(app_stats().connections == 1); /* who waits for an answer is not idle */
    app_release();
    peer_expect(&busy, 200, "/hold");
    peer_expect_end(&busy);
    peer_close(&fresh);
    peer_close(&used);
    peer_close(&busy);
}

static void a_client_that_never_reads_its_answer(void **state)
{
    (void)state;
    struct peer p = peer_connect(app.port);

    SEND(&p, GET("/big/50000000"));
    WAIT_FOR(atomic_load(&app.done) == 1);
    WAIT_FOR(app_stats().connections == 0);
    peer_close(&p);
}

static void refusals_on_the_wire(void **state)
{
    (void)state;
    static const struct {
        const char *request;
        int status;
    } cases[] = {
        {"GET / HTTP/1.1\n\n", 400},
        {"GET / HTTP/1.1\r\n\r\n", 400},
        {"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\nabc",
         400},
        {"BREW / HTTP/1.1\r\nHost: a\r\n\r\n", 501},
        {"GET / HTTP/3.0\r\nHost: a\r\n\r\n", 505},
        {"GET / HTTP/1.1\r\nHost: a\r\nExpect: miracles\r\n\r\n", 417},
        {"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 10485761\r\n\r\n", 413},
        {"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 99999999999999999999999\r\n\r\n", 413},
        {"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\na00001\r\n", 413},
        {"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n1\r\na\r\nzz\r\n", 400},
        {"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n0\r\nTrailer: x\r\n\r\n",
         400},
    };
    for (size_t i = 0; i < COUNT(cases); i++)
        for (int behind = 0; behind < 2; behind++) { /* alone, and behind a good one */
            struct peer p = peer_connect(app.port);
            if (behind != 0)
                SEND(&p, GET("/later"));
            peer_send(&p, str_of(cases[i].request));
            if (behind != 0)
                peer_expect(&p, 200, "/later");
            expect_closed_with(&p, cases[i].status);
        }
    struct peer p = peer_connect(app.port);
    SEND(&p, REQ("GET", "/hello") "X: ");
    for (int i = 0; i < 1100; i++)
        SEND(&p, "0123456789abcdef");
    expect_closed_with(&p, 431);
    assert_int_equal(atomic_load(&app.errors), 2 * COUNT(cases) + 1);
    assert_int_equal(atomic_load(&app.requests), COUNT(cases));
}

static size_t resident_bytes(void)
{
    unsigned long pages = 0, ignored;
    FILE *f = fopen("/proc/self/statm", "r");

    assert_int_equal(fscanf(f, "%lu %lu", &ignored, &pages), 2);
    fclose(f);
    return pages * (size_t)sysconf(_SC_PAGESIZE);
}

/* The answer must survive a client that keeps sending long after it, and nothing of the body may be
 * kept. */
static void too_large_while_still_sending(void **state)
{
    (void)state;
    struct str bytes = megabytes(10);
    struct answer a = {0};

    for (int kind = 0; kind < 2; kind++) {
        struct peer p = peer_connect(app.port);
        size_t before = resident_bytes();
        peer_send(&p,
                  kind == 0
                      ? STR(REQ("POST", "/echo") "Content-Length: 104857600\r\n\r\n")
                      : STR(REQ("POST", "/echo") "Transfer-Encoding: chunked\r\n\r\n6400000\r\n"));
        for (int i = 0; i < 10; i++)
            peer_send(&p, bytes); /* never refused: it is read and thrown away */
        peer_answer(&p, &a, false);
        assert_int_equal(a.status, 413);
        peer_expect_end(&p);
        assert_true(SANITIZED || resident_bytes() < before + 4 * MIB);
        peer_close(&p);
    }
    struct peer p = peer_connect(app.port);
    SEND(&p, REQ("POST", "/refuse") "Content-Length: 10485760\r\n\r\n");
    peer_send(&p, bytes);
    peer_expect(&p, 401, "refused");
    peer_close(&p);
    answer_free(&a);
    assert_int_equal(atomic_load(&app.requests), 0);
    WAIT_FOR(app_stats().connections == 0);
}

static void clients_that_leave(void **state)
{
    (void)state;
    static const char *const half[] = {
        "G",
        "GET /hello HTTP/1.1\r\nHo",
        REQ("POST", "/echo") "Content-Length: 1000\r\n\r\nabc",
        REQ("POST", "/echo") "Content-Length: 1000000\r\n\r\nabc",
        REQ("POST", "/echo") "Transfer-Encoding: chunked\r\n\r\n30000\r\nabc",
        REQ("POST", "/echo") "Expect: 100-continue\r\nContent-Length: 1000000\r\n\r\n",
    };
    unsigned gone = 0;

    for (size_t i = 0; i < COUNT(half); i++)
        for (int reset = 0; reset < 2; reset++) {
            struct peer p = peer_connect(app.port);
            peer_send(&p, str_of(half[i]));
            (reset != 0 ? peer_reset : peer_close)(&p);
            WAIT_FOR(app_stats().connections == 0 && app_stats().body_budget_used == 0);
        }
    assert_int_equal(atomic_load(&app.requests), 0);
    for (int reset = 0; reset < 2;
         reset++) { /* while it waits: noticed at once, and still owed its answer */
        struct peer p = peer_connect(app.port);
        SEND(&p, GET("/hold"));
        WAIT_FOR(atomic_load(&app.held_count) == (unsigned)reset + 1);
        assert_false(http_is_gone(app.held->x));
        (reset != 0 ? peer_reset : peer_close)(&p);
        gone++;
        WAIT_FOR(atomic_load(&app.gone) == gone);
        assert_true(http_is_gone(app.held->x));
        assert_int_equal(atomic_load(&app.done), reset);
        app_release();
        WAIT_FOR(atomic_load(&app.done) == (unsigned)reset + 1);
        WAIT_FOR(app_stats().connections == 0);
    }
    struct peer p = peer_connect(app.port); /* with a large answer on its way */
    SEND(&p, GET("/big/50000000"));
    assert_true(peer_more(&p));
    peer_reset(&p);
    WAIT_FOR(app_stats().connections == 0);
}

/* Answers and departures that cross, many times. */
static void crossing(void **state)
{
    (void)state;
    enum { N = 64 };
    struct peer peers[N];

    for (size_t round = 0; round < 20; round++) {
        for (size_t i = 0; i < N; i++) {
            peers[i] = peer_connect(app.port);
            SEND(&peers[i], GET("/later") GET("/hold") GET("/later"));
        }
        for (size_t i = 0; i < N; i++) {
            if (i % 3 == 0)
                app_release();
            (i % 2 == 0 ? peer_reset : peer_close)(&peers[i]);
        }
        while (app_stats().accepted != (round + 1) * N || app_stats().connections > 0 ||
               atomic_load(&app.done) != atomic_load(&app.requests)) {
            app_release();
            sched_yield();
        }
    }
    assert_int_equal(atomic_load(&app.done), atomic_load(&app.requests));
}

/* ---- memory ---- */

static int start_small_budget(void **state)
{
    (void)state;
    app_start((struct http_options){.body_budget = 30 * MIB, .max_body_bytes = 10 * MIB});
    return 0;
}

struct upload {
    struct peer p;
    struct str rest;
    bool sent;
};

/* Moves all uploads on as far as their sockets let them; the most that bodies held meanwhile. */
static size_t push_uploads(struct upload *u, size_t n)
{
    size_t most = 0, unsent = n;
    int64_t until = clock_mono_us() + DEADLINE_US;

    while (unsent > 0) {
        unsent = 0;
        for (size_t i = 0; i < n; i++) {
            if (u[i].rest.n == 0)
                continue;
            struct str part = str_slice(u[i].rest, 0, u[i].rest.n < MIB ? u[i].rest.n : MIB);
            size_t took = peer_send_some(&u[i].p, part, 0);
            u[i].rest = str_slice(u[i].rest, took, u[i].rest.n);
            unsent += u[i].rest.n > 0;
            size_t used = app_stats().body_budget_used;
            most = used > most ? used : most;
        }
        assert_true(clock_mono_us() < until);
    }
    return most;
}

static void forty_uploads_in_the_memory_of_three(void **state)
{
    (void)state;
    enum { MOST = 40 };
    struct upload u[MOST];
    unsigned sent = 0;
    struct buf chunked = {0}, known = {0};

    buf_add_z(&known, REQ("POST", "/discard") "Content-Length: 10485760\r\n\r\n");
    buf_add(&known, megabytes(10));
    buf_add_z(&chunked, REQ("POST", "/discard") "Transfer-Encoding: chunked\r\n\r\n");
    for (int i = 0; i < 10; i++) {
        buf_add_z(&chunked, "100000\r\n");
        buf_add(&chunked, megabytes(1));
        buf_add_z(&chunked, "\r\n");
    }
    buf_add_z(&chunked, "0\r\n\r\n");
    for (int kind = 0; kind < 3; kind++) { /* all known, all chunked, mixed */
        size_t before = resident_bytes(), n = kind == 2 ? MOST : 8;
        sent += (unsigned)n;
        for (size_t i = 0; i < n; i++) {
            bool c = kind == 1 || (kind == 2 && i % 2 == 0);
            u[i] = (struct upload){.p = peer_connect(app.port),
                                   .rest = buf_str(c ? &chunked : &known)};
        }
        size_t most = push_uploads(u, n);
        assert_true(most <= 30 * MIB && most > 15 * MIB);
        assert_true(SANITIZED || resident_bytes() < before + 45 * MIB);
        for (size_t i = 0; i < n; i++) {
            peer_expect(&u[i].p, 404, NULL);
            peer_close(&u[i].p);
        }
        assert_int_equal(app_stats().body_budget_used, 0);
    }
    assert_int_equal(atomic_load(&app.requests), sent);
    buf_free(&known);
    buf_free(&chunked);
}

static void waiting_for_the_budget(void **state)
{
    (void)state;
    struct peer held[3], p, q;

    for (size_t i = 0; i < 3; i++) { /* three requests that keep their bodies */
        held[i] = peer_connect(app.port);
        SEND(&held[i], REQ("POST", "/hold") "Content-Length: 10485760\r\n\r\n");
        peer_send(&held[i], megabytes(10));
    }
    WAIT_FOR(atomic_load(&app.held_count) == 3);
    assert_int_equal(app_stats().body_budget_used, 30 * MIB);
    p = peer_connect(app.port);
    SEND(&p, REQ("POST", "/echo") "Content-Length: 100000\r\nExpect: 100-continue\r\n\r\n");
    q = peer_connect(app.port);
    SEND(&q, REQ("POST", "/echo") "Content-Length: 200000\r\n\r\n");
    WAIT_FOR(atomic_load(&app.heads) == 5);
    peer_once(app.port, STR(REQ("POST", "/echo") "Content-Length: 3\r\n\r\nabc"), 200,
              "abc"); /* small ones never wait */
    peer_reset(&q);   /* leaves the line */
    WAIT_FOR(app_stats().connections == 4);
    assert_false(peer_poll(&p, POLLIN, 0)); /* not invited while there is no room */
    app_release();
    struct answer a = {0};
    peer_answer_head(&p, &a);
    assert_int_equal(a.status, 100);
    peer_send(&p, str_slice(megabytes(1), 0, 100000));
    peer_expect(&p, 200, NULL);
    for (size_t i = 0; i < 3; i++) {
        peer_expect(&held[i], 200, "/hold");
        peer_close(&held[i]);
    }
    peer_close(&p);
    answer_free(&a);
    assert_int_equal(app_stats().body_budget_used, 0);
}

/* Two clients that left while waiting: one in line, one whose place comes up just then. */
static void leaving_the_budget(void **state)
{
    (void)state;
    for (int round = 0; round < 15; round++) {
        struct peer p[8];
        for (size_t i = 0; i < COUNT(p); i++) {
            p[i] = peer_connect(app.port);
            if (i % 2 == 0) {
                SEND(&p[i], REQ("POST", "/later") "Content-Length: 10000000\r\n\r\n");
                peer_send_some(&p[i], str_slice(megabytes(10), 0, 10000000), 0);
            } else {
                SEND(&p[i], REQ("POST", "/later") "Transfer-Encoding: chunked\r\n\r\n900000\r\n");
                peer_send_some(&p[i], str_slice(megabytes(10), 0, 0x900000), 0);
            }
        }
        for (size_t i = 0; i < COUNT(p); i++)
            ((i + (size_t)round) % 3 == 0 ? peer_close : peer_reset)(&p[i]);
        WAIT_FOR(app_stats().connections == 0 && app_stats().body_budget_used == 0);
    }
}

/* What the process holds for a connection that does nothing, and for a stream that is open. */
static void small_when_idle(void **state)
{
    (void)state;
    enum { N = 500 };
    static struct peer peers[N];

    if (SANITIZED)
        skip();
    for (int pass = 0; pass < 2; pass++) { /* the first fills what is kept for reuse */
        size_t before = mallinfo2().uordblks;
        for (size_t i = 0; i < N; i++) {
            peers[i] = peer_connect(app.port);
            SEND(&peers[i], GET("/hello"));
            peer_expect(&peers[i], 200, "hello");
            buf_free(&peers[i].in);
        }
        size_t each = (mallinfo2().uordblks - before) / N;
        if (pass == 1) {
            printf("idle connection: %zu bytes\n", each);
            assert_true(each < 1024);
        }
        for (size_t i = 0; i < N; i++)
            peer_close(&peers[i]);
        WAIT_FOR(app_stats().connections == 0);
    }
}

/* ---- files ---- */

static void out_of_files(void **state)
{
    (void)state;
    enum { N = 40 };
    struct rlimit old, tight;
    struct peer peers[N];
    struct loop *l = app.server->loops[0];
    int highest = 0;

    getrlimit(RLIMIT_NOFILE, &old);
    tight = old;
    for (size_t i = 0; i < N; i++) {
        peers[i] = (struct peer){.fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)};
        highest = peers[i].fd > highest ? peers[i].fd : highest;
    }
    tight.rlim_cur = (rlim_t)(highest + 11); /* ours are open; about ten are left for the server */
    unsigned left = 0;
    for (int fd = 0; fd < (int)tight.rlim_cur; fd++)
        left += fcntl(fd, F_GETFD) < 0;
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &tight), 0);
    struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons(app.port)};
    to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    for (size_t i = 0; i < N; i++) {
        assert_int_equal(connect(peers[i].fd, (struct sockaddr *)&to, sizeof(to)), 0);
        SEND(&peers[i], GET("/hello"));
    }
    assert_true(left > 0 && left < N);
    WAIT_FOR(app_stats().connections == left);
    unsigned long long turns = atomic_load(&l->turns);
    int64_t begun = clock_mono_us();
    WAIT_FOR(clock_mono_us() - begun > 150 * MS); /* it must not spin */
    assert_true(atomic_load(&l->turns) - turns < 20);
    for (size_t i = 0; i < N; i++) { /* each that leaves lets another in */
        peer_expect(&peers[i], 200, "hello");
        peer_close(&peers[i]);
    }
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &old), 0);
    peer_once(app.port, STR(GET("/hello")), 200, "hello");
}

int main(void)
{
#define WITH(start, test) cmocka_unit_test_setup_teardown(test, start, stop)
    const struct CMUnitTest tests[] = {
        WITH(start_impatient, slow_heads),
        WITH(start_impatient, stopping_bodies),
        WITH(start_hasty, slow_bodies),
        WITH(start_impatient, idle_connections_are_closed_without_a_word),
        WITH(start_impatient, a_client_that_never_reads_its_answer),
        WITH(start, refusals_on_the_wire),
        WITH(start, too_large_while_still_sending),
        WITH(start, clients_that_leave),
        WITH(start, crossing),
        WITH(start_small_budget, forty_uploads_in_the_memory_of_three),
        WITH(start_small_budget, waiting_for_the_budget),
        WITH(start_small_budget, leaving_the_budget),
        WITH(start, small_when_idle),
        WITH(start, out_of_files),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
