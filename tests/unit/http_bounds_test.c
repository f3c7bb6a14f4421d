/* SPDX-License-Identifier: Apache-2.0
 * What is bounded in number and time: connections, so that the process keeps files for its own
 * work, and the end of the server, at which nobody who was asking is left without an answer. */
#include "unit/http_app.h"

#include <sys/resource.h>
#include <sys/wait.h>

#define REQ(method, target) method " " target " HTTP/1.1\r\nHost: test\r\n"
#define GET(target) REQ("GET", target) "\r\n"
#define MS US_PER_MS

static int stop(void **state)
{
    (void)state;
    app_stop();
    return 0;
}

static void wait_connections(unsigned n)
{
    WAIT_FOR(app_stats().connections == n);
}

static bool is_closed(struct peer *p)
{
    char byte;

    return peer_poll(p, POLLIN, 0) && recv(p->fd, &byte, 1, MSG_PEEK | MSG_DONTWAIT) <= 0;
}

static void pause_ms(int ms)
{
    struct timespec t = {.tv_nsec = ms * INT64_C(1000000)};

    nanosleep(&t, NULL);
}

/* ---- connections ---- */

static int start_small(void **state)
{
    (void)state;
    app_start((struct http_options){.max_connections = 4, .spare_idle_us = 60 * MS});
    return 0;
}

static void the_longest_idle_makes_room(void **state)
{
    struct peer p[4], newcomer;

    (void)state;
    for (unsigned i = 0; i < COUNT(p); i++) {
        p[i] = peer_connect(app.port);
        wait_connections(i + 1);
    }
    SEND(&p[0], GET("/hold")); /* it has been there longest, but it is not idle */
    SEND(&p[1], GET("/hello"));
    peer_expect(&p[1], 200, "hello"); /* now p[2] is the longest idle */
    pause_ms(100);
    assert_int_equal(app_stats().connections, 4); /* nobody is turned out for nothing */
    newcomer = peer_connect(app.port);
    SEND(&newcomer, GET("/say"));
    peer_expect(&newcomer, 200, "/say");
    assert_true(is_closed(&p[2]));
    SEND(&p[1], GET("/say/1"));
    peer_expect(&p[1], 200, "/say/1");
    SEND(&p[3], GET("/say/3"));
    peer_expect(&p[3], 200, "/say/3");
    app_release();
    peer_expect(&p[0], 200, "/hold");
    for (unsigned i = 0; i < COUNT(p); i++)
        peer_close(&p[i]);
    peer_close(&newcomer);
}

static void busy_connections_keep_their_place(void **state)
{
    struct peer p[4], newcomer;

    (void)state;
    for (unsigned i = 0; i < COUNT(p); i++) {
        p[i] = peer_connect(app.port);
        SEND(&p[i], GET("/hold"));
    }
    WAIT_FOR(atomic_load(&app.held_count) == COUNT(p));
    newcomer = peer_connect(app.port);
    SEND(&newcomer, GET("/say"));
    pause_ms(50);
    uint64_t turns = atomic_load(&app.server->loops[0]->turns);
    pause_ms(300);
    assert_in_range(atomic_load(&app.server->loops[0]->turns) - turns, 0, 20); /* no busy loop */
    assert_int_equal(app_stats().accepted, 4);
    peer_close(&p[0]); /* one place is free */
    app_release();
    peer_expect(&newcomer, 200, "/say");
    for (unsigned i = 1; i < COUNT(p); i++) {
        peer_expect(&p[i], 200, "/hold");
        peer_close(&p[i]);
    }
    peer_close(&newcomer);
}

enum { FILES = 100, CLIENTS = 110, OWN_FILES = 8 };

/* A process with few files: serves, and says whether it can still open some of its own. */
static void serve_with_few_files(int in, int out)
{
    struct rlimit limit = {FILES, FILES};
    char ask, ok = 'y';

    if (setrlimit(RLIMIT_NOFILE, &limit) != 0)
        _exit(1);
    app_start((struct http_options){.spare_idle_us = 100 * MS});
    if (write(out, &app.port, sizeof(app.port)) != sizeof(app.port) || read(in, &ask, 1) != 1)
        _exit(1);
    for (int i = 0; i < OWN_FILES; i++)
        if (open("/dev/null", O_RDONLY | O_CLOEXEC) < 0)
            ok = 'n';
    if (write(out, &ok, 1) != 1)
        _exit(1);
    (void)!read(in, &ask, 1); /* until the other side has gone */
    _exit(0);
}

static void files_are_kept_for_other_work(void **state)
{
    int to[2], from[2], status;
    struct peer p[CLIENTS];
    uint16_t port;
    char ok;

    (void)state;
    assert_int_equal(pipe2(to, O_CLOEXEC), 0);
    assert_int_equal(pipe2(from, O_CLOEXEC), 0);
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        close(to[1]);
        close(from[0]);
        serve_with_few_files(to[0], from[1]);
    }
    close(to[0]);
    close(from[1]);
    assert_int_equal(read(from[0], &port, sizeof(port)), sizeof(port));
    for (size_t i = 0; i < CLIENTS; i++) /* more than it has files, and they say nothing */
        p[i] = peer_connect(port);
    SEND(&p[0], GET("/hello"));
    peer_expect(&p[0], 200, "hello");
    assert_int_equal(write(to[1], "?", 1), 1);
    assert_int_equal(read(from[0], &ok, 1), 1);
    assert_int_equal(ok, 'y');
    SEND(&p[CLIENTS - 1], GET("/hello")); /* the idle ones make room for who came last */
    peer_expect(&p[CLIENTS - 1], 200, "hello");
    assert_true(is_closed(&p[1]));
    for (size_t i = 0; i < CLIENTS; i++)
        peer_close(&p[i]);
    close(to[1]);
    close(from[0]);
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_int_equal(status, 0);
}

/* ---- the end ---- */

static int start_tight(void **state)
{
    (void)state;
    app_start((struct http_options){.max_body_bytes = 200 * 1024, .body_budget = 200 * 1024});
    return 0;
}

static void *stop_soon(void *arg)
{
    (void)arg;
    http_server_stop(app.server, clock_mono_us() + 50 * MS);
    return NULL;
}

static void requests_that_are_not_whole_are_answered(void **state)
{
    static const char *const parts[] = {
        REQ("POST", "/echo") "Content-Length: 10\r\n\r\n12345",
        REQ("POST", "/echo") "Transfer-Encoding: chunked\r\n\r\n5\r\n123",
        REQ("POST", "/echo") "Content-Length: 150000\r\n\r\n1", /* takes the budget */
        REQ("POST", "/echo") "Content-Length: 150000\r\n\r\n1", /* waits for it */
        REQ("POST", "/echo") "Content-Le",
    };
    struct peer p[COUNT(parts)], idle = peer_connect(app.port);
    struct answer a = {0};
    pthread_t stopper;

    (void)state;
    for (size_t i = 0; i < COUNT(parts); i++) {
        p[i] = peer_connect(app.port);
        peer_send(&p[i], str_of(parts[i]));
    }
    WAIT_FOR(atomic_load(&app.heads) == COUNT(parts) - 1);
    wait_connections(COUNT(parts) + 1);
    assert_int_equal(pthread_create(&stopper, NULL, stop_soon, NULL), 0);
    for (size_t i = 0; i < COUNT(parts); i++) {
        peer_answer(&p[i], &a, false);
        assert_int_equal(a.status, 503);
        assert_true(str_eq(a.body, STR("{\"status\":503,\"message\":\"the server is stopping\"}")));
        assert_true(str_eq(answer_header(&a, "Connection"), STR("close")));
        peer_expect_end(&p[i]);
        peer_close(&p[i]);
    }
    answer_free(&a);
    peer_expect_end(&idle);
    peer_close(&idle);
    pthread_join(stopper, NULL);
    assert_int_equal(atomic_load(&app.requests), 0);
    assert_int_equal(app_stats().body_budget_used, 0);
}

/* Whether it has gone or only shut its side cannot be known; at the end no work is done on a guess,
 * but the answer is sent. */
static void who_sent_its_end_is_taken_for_gone(void **state)
{
    struct peer p = peer_connect(app.port);

    (void)state;
    SEND(&p, GET("/block")); /* so that a request and its end come together */
    app_wait_blocked();
    struct peer q = peer_connect(app.port);
    SEND(&q, GET("/hold"));
    shutdown(q.fd, SHUT_WR);
    pause_ms(20);
    app_unblock();
    peer_expect(&p, 200, "unblocked");
    WAIT_FOR(atomic_load(&app.held_count) == 1);
    pause_ms(20);
    assert_int_equal(atomic_load(&app.gone), 0);
    http_server_drain(app.server);
    WAIT_FOR(atomic_load(&app.gone) == 1);
    app_release();
    peer_expect(&q, 200, "/hold");
    peer_expect_end(&q);
    peer_close(&q);
    peer_close(&p);
}

/* Nobody can hold the end up by not reading what it is told. */
static void the_end_comes_all_the_same(void **state)
{
    struct peer p = peer_connect(app.port);
    int64_t begun;

    (void)state;
    SEND(&p, REQ("POST", "/echo") "Content-Length: 10\r\n\r\n12345");
    WAIT_FOR(atomic_load(&app.heads) == 1);
    begun = clock_mono_us();
    http_server_stop(app.server, begun);
    assert_in_range(clock_mono_us() - begun, 0, 3 * US_PER_S);
    peer_expect(&p, 503, NULL);
    peer_close(&p);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(files_are_kept_for_other_work), /* first: it forks */
        cmocka_unit_test_setup_teardown(the_longest_idle_makes_room, start_small, stop),
        cmocka_unit_test_setup_teardown(busy_connections_keep_their_place, start_small, stop),
        cmocka_unit_test_setup_teardown(requests_that_are_not_whole_are_answered, start_tight,
                                        stop),
        cmocka_unit_test_setup_teardown(who_sent_its_end_is_taken_for_gone, start_tight, stop),
        cmocka_unit_test_setup_teardown(the_end_comes_all_the_same, start_tight, stop),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
