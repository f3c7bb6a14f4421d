/* SPDX-License-Identifier: Apache-2.0
 * A served connection from end to end, with well-behaved clients: one by one, pipelined, in crowds,
 * from other threads. The hostile ones are in http_hostile_test.c, streams in http_stream_test.c.
 */
#include "unit/http_app.h"

#include <sys/resource.h>

#define REQ(method, target) method " " target " HTTP/1.1\r\nHost: test\r\n"
#define GET(target) REQ("GET", target) "\r\n"

static int start(void **state)
{
    (void)state;
    app_start((struct http_options){0});
    return 0;
}

static int stop(void **state)
{
    (void)state;
    app_stop();
    return 0;
}

static void one_connection_many_requests(void **state)
{
    (void)state;
    struct peer p = peer_connect(app.port);
    struct answer a = {0};

    for (int i = 0; i < 5; i++) {
        SEND(&p, GET("/hello"));
        peer_answer(&p, &a, false);
        assert_int_equal(a.status, 200);
        assert_true(str_starts(a.head, STR("HTTP/1.1 200 OK\r\n")));
        assert_true(str_eq(a.body, STR("hello")));
        assert_true(str_eq(answer_header(&a, "Content-Type"), STR("text/plain")));
        assert_false(str_present(answer_header(&a, "Connection")));
    }
    WAIT_FOR(atomic_load(&app.done) == 5);
    assert_int_equal(app_stats().accepted, 1);
    assert_int_equal(app_stats().connections, 1);
    assert_int_equal(app_stats().requests, 5);
    SEND(&p, GET("/empty")); /* 204: neither body nor length */
    peer_answer(&p, &a, false);
    assert_int_equal(a.status, 204);
    assert_false(str_present(answer_header(&a, "Content-Length")));
    SEND(&p, GET("/say-again"));
    peer_expect(&p, 200, "/say-again");
    answer_free(&a);
    peer_close(&p);
    WAIT_FOR(app_stats().connections == 0);
}

static void date_is_an_imf_fixdate_of_now(void **state)
{
    (void)state;
    struct peer p = peer_connect(app.port);
    struct answer a = {0};
    struct tm tm = {0};
    char text[64], again[64];

    time_t before = time(NULL);
    SEND(&p, GET("/hello"));
    peer_answer(&p, &a, false);
    struct str date = answer_header(&a, "Date");
    snprintf(text, sizeof(text), "%.*s", STR_ARG(date));
    char *end = strptime(text, "%a, %d %b %Y %H:%M:%S GMT", &tm);
    assert_true(end != NULL && *end == '\0');
    time_t said = timegm(&tm);
    assert_true(said >= before && said <= time(NULL));
    strftime(again, sizeof(again), "%a, %d %b %Y %H:%M:%S GMT", &tm);
    assert_string_equal(text, again);
    answer_free(&a);
    peer_close(&p);
}

static void bodies_of_every_kind_come_back(void **state)
{
    (void)state;
    struct peer p = peer_connect(app.port);
    struct buf request = {0}, body = {0};
    static const size_t sizes[] = {0,     1,     100,   16383,  16384,           32768,
                                   65535, 65536, 65537, 300000, 10 * 1024 * 1024};

    for (size_t i = 0; i < COUNT(sizes); i++)
        for (int chunked = 0; chunked < 2; chunked++) {
            struct answer a = {0};
            buf_clear(&body);
            for (size_t k = 0; k < sizes[i]; k++)
                buf_add_byte(&body, (char)('a' + (k + k / 251) % 26));
            buf_clear(&request);
            buf_add_z(&request, REQ("POST", "/echo"));
            if (chunked) {
                buf_add_z(&request, "Transfer-Encoding: chunked\r\n\r\n");
                for (size_t at = 0, n = 1; at < body.n; at += n, n = n * 3 + 1) {
                    n = n < body.n - at ? n : body.n - at;
                    buf_printf(&request, "%zx;ext=1\r\n", n);
                    buf_add(&request, str_make(body.p + at, n));
                    buf_add_z(&request, "\r\n");
                }
                buf_add_z(&request, "0\r\n\r\n");
            } else {
                buf_printf(&request, "Content-Length: %zu\r\n\r\n", sizes[i]);
                buf_add(&request, buf_str(&body));
            }
            buf_add_z(&request, GET("/say/after")); /* where the body ends was understood */
            peer_send(&p, buf_str(&request));
            peer_answer(&p, &a, false);
            assert_int_equal(a.status, 200);
            assert_true(str_eq(a.body, buf_str(&body)));
            peer_expect(&p, 200, "/say/after");
            answer_free(&a);
        }
    assert_int_equal(app_stats().body_budget_used, 0);
    assert_int_equal(app_stats().accepted, 1);
    buf_free(&request);
    buf_free(&body);
    peer_close(&p);
}

/* Split anywhere, a request means the same. Each part is sent when the server has nothing else to
 * read. */
static void any_split_means_the_same(void **state)
{
    (void)state;
    static const char request[] = "POST /echo?x HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: "
                                  "chunked\r\n\r\n3\r\nabc\r\n2;x\r\nde\r\n"
                                  "0\r\n\r\nPOST /echo HTTP/1.1\r\nHost: a\r\nContent-Length: "
                                  "3\r\n\r\nxyzGET /say HTTP/1.1\r\n"
                                  "Host: a\r\n\r\n";
    struct peer p = peer_connect(app.port);

    for (size_t cut = 1; cut < sizeof(request) - 1; cut++) {
        unsigned long long before = atomic_load(&app.server->loops[0]->turns);
        peer_send(&p, str_make(request, cut));
        WAIT_FOR(atomic_load(&app.server->loops[0]->turns) != before);
        peer_send(&p, str_make(request + cut, sizeof(request) - 1 - cut));
        peer_expect(&p, 200, "abcde");
        peer_expect(&p, 200, "xyz");
        peer_expect(&p, 200, "/say");
    }
    for (size_t i = 0; i < sizeof(request) - 1; i++) /* byte by byte */
        peer_send(&p, str_make(request + i, 1));
    peer_expect(&p, 200, "abcde");
    peer_expect(&p, 200, "xyz");
    peer_expect(&p, 200, "/say");
    assert_int_equal(app_stats().accepted, 1);
    peer_close(&p);
}

static void head_and_options(void **state)
{
    (void)state;
    struct peer p = peer_connect(app.port);
    struct answer a = {0};

    SEND(&p, REQ("HEAD", "/hello") "\r\n" REQ("HEAD", "/big/100000") "\r\n" REQ("HEAD",
                                                                                "/stream") "\r\n");
    peer_answer(&p, &a, true);
    assert_int_equal(a.status, 200);
    assert_true(str_eq(answer_header(&a, "Content-Length"), STR("5")));
    peer_answer(&p, &a, true);
    assert_true(str_eq(answer_header(&a, "Content-Length"), STR("100000")));
    peer_answer(&p, &a, true);
    assert_true(str_eq(answer_header(&a, "Transfer-Encoding"), STR("chunked")));
    SEND(&p, REQ("OPTIONS", "/say/options") "\r\n");
    peer_expect(&p, 200, "/say/options");
    SEND(&p, REQ("HEAD", "/none") "\r\n" GET("/hello"));
    peer_answer(&p, &a, true);
    assert_int_equal(a.status, 404);
    peer_expect(&p, 200, "hello");
    SEND(&p, "HEAD / HTTP/1.1\r\n\r\n"); /* refused by the parser: no body either */
    peer_answer(&p, &a, true);
    assert_int_equal(a.status, 400);
    peer_expect_end(&p);
    answer_free(&a);
    peer_close(&p);
    WAIT_FOR(atomic_load(&app.stream_gone) == 1);
}

static void http_1_0(void **state)
{
    (void)state;
    struct peer p = peer_connect(app.port);
    struct answer a = {0};

    SEND(&p, "GET /hello HTTP/1.0\r\nConnection: keep-alive\r\n\r\n");
    peer_answer(&p, &a, false);
    assert_true(str_eq(answer_header(&a, "Connection"), STR("keep-alive")));
    SEND(&p, "GET /hello HTTP/1.0\r\n\r\n");
    peer_answer(&p, &a, false);
    assert_true(str_eq(a.body, STR("hello")));
    assert_true(str_eq(answer_header(&a, "Connection"), STR("close")));
    peer_expect_end(&p);
    peer_close(&p);
    p = peer_connect(app.port);
    SEND(&p, REQ("GET", "/hello") "Connection: close\r\n\r\n");
    peer_answer(&p, &a, false);
    assert_true(str_eq(answer_header(&a, "Connection"), STR("close")));
    peer_expect_end(&p);
    answer_free(&a);
    peer_close(&p);
}

static void expect_continue(void **state)
{
    (void)state;
    struct peer p = peer_connect(app.port);
    struct answer a = {0};

    SEND(&p, REQ("POST", "/echo") "Expect: 100-continue\r\nContent-Length: 3\r\n\r\n");
    peer_answer_head(&p, &a);
    assert_int_equal(a.status, 100);
    assert_true(str_eq(a.head, STR("HTTP/1.1 100 Continue\r\n\r\n")));
    SEND(&p, "abc");
    peer_expect(&p, 200, "abc");
    SEND(&p, REQ("POST", "/echo") "Expect: 100-continue\r\nTransfer-Encoding: chunked\r\n\r\n");
    peer_answer_head(&p, &a);
    assert_int_equal(a.status, 100);
    SEND(&p, "1\r\nx\r\n0\r\n\r\n");
    peer_expect(&p, 200, "x");
    SEND(&p,
         REQ("POST",
             "/echo") "Expect: 100-continue\r\nContent-Length: 3\r\n\r\nabc"); /* did not wait */
    peer_expect(&p, 200, "abc");
    SEND(&p, REQ("GET", "/hello") "Expect: 100-continue\r\n\r\n"); /* no body to wait with */
    peer_expect(&p, 200, "hello");
    SEND(&p, REQ("POST", "/refuse") "Expect: 100-continue\r\nContent-Length: 3\r\n\r\n");
    peer_expect(&p, 401, "refused");
    peer_expect_end(&p);
    peer_close(&p);
    p = peer_connect(app.port);
    SEND(&p, REQ("POST", "/echo") "Expect: 100-continue\r\nContent-Length: 99999999999\r\n\r\n");
    peer_expect(&p, 413, NULL);
    peer_expect_end(&p);
    answer_free(&a);
    peer_close(&p);
}

static void refused_at_the_head(void **state)
{
    (void)state;
    struct peer p = peer_connect(app.port);
    struct answer a = {0};

    SEND(&p,
         GET("/refuse") GET("/hello")); /* nothing is left unread: the connection is still good */
    peer_expect(&p, 401, "refused");
    peer_expect(&p, 200, "hello");
    SEND(&p, REQ("POST", "/refuse") "Content-Length: 5\r\n\r\nabc");
    peer_answer(&p, &a, false);
    assert_int_equal(a.status, 401);
    assert_true(str_eq(answer_header(&a, "Connection"), STR("close")));
    peer_expect_end(&p);
    assert_int_equal(atomic_load(&app.requests), 1);
    assert_int_equal(atomic_load(&app.heads), 3);
    answer_free(&a);
    peer_close(&p);
}

static void answers_from_another_thread(void **state)
{
    (void)state;
    struct peer p = peer_connect(app.port);

    for (int i = 0; i < 200; i++) {
        SEND(&p, GET("/later"));
        peer_expect(&p, 200, "/later");
    }
    SEND(&p, GET("/twice"));
    peer_expect(&p, 200, "resumed twice");
    assert_int_equal(atomic_load(&app.resumed), 2);
    peer_close(&p);
}

static void a_body_that_could_not_be_made(void **state)
{
    (void)state;
    struct peer p = peer_connect(app.port);

    SEND(&p, GET("/fail"));
    peer_expect(&p, 500, "{\"status\":500,\"message\":\"no memory for the answer\"}");
    peer_expect_end(&p);
    assert_int_equal(atomic_load(&app.last_done_status), 500);
    peer_close(&p);
}

/* 1,000 requests in one go, every other one answered by another thread, in order and one at a time.
 */
static void pipelining(void **state)
{
    (void)state;
    struct peer p = peer_connect(app.port);
    struct buf all = {0};
    char target[32];

    for (int i = 0; i < 1000; i++)
        buf_printf(&all, "GET /%s/%d HTTP/1.1\r\nHost: a\r\n\r\n", i % 2 == 0 ? "say" : "later", i);
    peer_send(&p, buf_str(&all));
    for (int i = 0; i < 1000; i++) {
        snprintf(target, sizeof(target), "/%s/%d", i % 2 == 0 ? "say" : "later", i);
        peer_expect(&p, 200, target);
    }
    assert_int_equal(app_stats().accepted, 1);
    SEND(&p, GET("/hold/1") GET("/hold/2"));
    WAIT_FOR(atomic_load(&app.held_count) == 1);
    app_release();
    peer_expect(&p, 200, "/hold/1");
    WAIT_FOR(atomic_load(&app.held_count) == 2);
    app_release();
    peer_expect(&p, 200, "/hold/2");
    buf_free(&all);
    peer_close(&p);
}

/* Exactly as many connections become ready while the loop cannot look: powers of two are where
 * another server hangs. */
static void crowd(size_t n)
{
    struct peer *peers = calloc(n, sizeof(*peers));
    struct peer blocker = peer_connect(app.port);
    unsigned before = atomic_load(&app.requests);

    for (size_t i = 0; i < n; i++)
        peers[i] = peer_connect(app.port);
    WAIT_FOR(app_stats().connections == n + 1);
    for (int kind = 0; kind < 3; kind++) {
        SEND(&blocker, GET("/block"));
        app_wait_blocked();
        for (size_t i = 0; i < n; i++)
            peer_send(&peers[i], kind == 0   ? STR(GET("/say"))
                                 : kind == 1 ? STR(GET("/later"))
                                             : STR(GET("/hold")));
        app_unblock();
        peer_expect(&blocker, 200, "unblocked");
        if (kind == 2) { /* all answers in one burst */
            WAIT_FOR(atomic_load(&app.requests) == before + 3 * (n + 1));
            app_release();
        }
        for (size_t i = 0; i < n; i++)
            peer_expect(&peers[i], 200, kind == 0 ? "/say" : kind == 1 ? "/later" : "/hold");
    }
    for (size_t i = 0; i < n; i++)
        peer_close(&peers[i]);
    peer_close(&blocker);
    free(peers);
    WAIT_FOR(app_stats().connections == 0);
}

static void crowds(void **state)
{
    (void)state;
    crowd(128);
    crowd(256);
    crowd(1024);
}

/* A loop that is busy is not woken; one that sleeps is woken once for a burst. */
static void one_wake_up_a_burst(void **state)
{
    (void)state;
    enum { N = 100 };
    struct peer blocker = peer_connect(app.port), peers[N];
    struct loop *l = app.server->loops[0];

    for (size_t i = 0; i < N; i++) {
        peers[i] = peer_connect(app.port);
        SEND(&peers[i], GET("/hold"));
    }
    WAIT_FOR(atomic_load(&app.held_count) == N);
    SEND(&blocker, GET("/block"));
    app_wait_blocked();
    unsigned long long before = atomic_load(&l->wakes);
    app_release();
    assert_int_equal(atomic_load(&l->wakes), before);
    app_unblock();
    for (size_t i = 0; i < N; i++) {
        peer_expect(&peers[i], 200, "/hold");
        peer_close(&peers[i]);
    }
    peer_close(&blocker);
}

/* A client that sends and then shuts its side is answered to the last request. */
static void half_closed_clients(void **state)
{
    (void)state;
    static const struct {
        const char *requests;
        int answers;
    } cases[] = {
        {GET("/say"), 1},
        {GET("/later"), 1},
        {GET("/say") GET("/later") GET("/say"), 3},
        {GET("/later") GET("/later") GET("/big/3000000"), 3},
    };
    for (size_t i = 0; i < COUNT(cases); i++)
        for (int pause = 0; pause < 2; pause++) {
            struct peer p = peer_connect(app.port);
            unsigned heads = atomic_load(&app.heads);
            peer_send(&p, str_of(cases[i].requests));
            if (pause != 0)
                WAIT_FOR(atomic_load(&app.heads) > heads);
            shutdown(p.fd, SHUT_WR);
            for (int k = 0; k < cases[i].answers; k++)
                peer_expect(&p, 200, NULL);
            peer_expect_end(&p);
            peer_close(&p);
        }
    struct peer p =
        peer_connect(app.port); /* known to be half-closed while it waits: only a hint */
    SEND(&p, GET("/hold"));
    WAIT_FOR(atomic_load(&app.held_count) == 1);
    shutdown(p.fd, SHUT_WR);
    WAIT_FOR(atomic_load(&app.gone) >= 1);
    app_release();
    peer_expect(&p, 200, "/hold");
    peer_expect_end(&p);
    peer_close(&p);
    WAIT_FOR(app_stats().connections == 0);
}

/* The next request is not begun while an answer waits for a client that does not read. */
static void output_is_bounded(void **state)
{
    (void)state;
    enum { N = 200, BYTES = 200000 };
    struct peer p = peer_connect(app.port);

    for (int i = 0; i < N; i++)
        SEND(&p, GET("/big/200000"));
    WAIT_FOR(atomic_load(&app.requests) > 3);
    for (unsigned seen = 0, now; (now = atomic_load(&app.requests)) != seen; seen = now)
        for (int i = 0; i < 50; i++)
            peer_pause();
    assert_true(atomic_load(&app.requests) <
                N / 2); /* what the kernel's buffers take, and one more */
    for (int i = 0; i < N; i++) {
        struct answer a = {0};
        peer_answer(&p, &a, false);
        assert_int_equal(a.body.n, BYTES);
        answer_free(&a);
    }
    peer_close(&p);
}

static void several_loops(void **state)
{
    (void)state;
    enum { N = 200 };
    struct peer peers[N];

    app_stop();
    app_start((struct http_options){.threads = 3});
    for (size_t i = 0; i < N; i++)
        peers[i] = peer_connect(app.port);
    for (int round = 0; round < 10; round++) {
        for (size_t i = 0; i < N; i++)
            peer_send(&peers[i], i % 3 == 0 ? STR(GET("/say")) : STR(GET("/later")));
        for (size_t i = 0; i < N; i++)
            peer_expect(&peers[i], 200, i % 3 == 0 ? "/say" : "/later");
    }
    for (unsigned i = 0; i < 3; i++) /* the kernel spreads them */
        assert_true(atomic_load(&app.server->loops[i]->accepted) > 0);
    for (size_t i = 0; i < N; i++)
        peer_close(&peers[i]);
}

static void addresses(void **state)
{
    (void)state;
    struct err e;
    char taken[64];
    static const char *const bad[] = {
        "", "127.0.0.1", "127.0.0.1:", ":x", "::1:80", "127.0.0.1:99999"};
    static const char *const good[] = {":0", "127.0.0.1:0", "localhost:0", "[::1]:0", "0.0.0.0:0"};
    struct http_options o = {.on_request = app_on_request, .threads = 1};

    for (size_t i = 0; i < COUNT(bad); i++) {
        o.listen_addr = bad[i];
        assert_null(http_server_new(&o, &e));
        assert_int_equal(e.code, ERR_UNAVAILABLE);
        assert_non_null(strstr(e.message, bad[i]));
    }
    for (size_t i = 0; i < COUNT(good); i++) {
        o.listen_addr = good[i];
        struct http_server *s = http_server_new(&o, &e);
        if (s == NULL && strstr(good[i], "::1") != NULL)
            continue; /* a machine without IPv6 */
        assert_non_null(s);
        assert_true(http_server_port(s) > 0);
        http_server_free(s); /* never started */
    }
    snprintf(taken, sizeof(taken), "127.0.0.1:%u", app.port);
    o.listen_addr = taken; /* a port is not shared between servers, however many loops they have */
    for (o.threads = 1; o.threads <= 2; o.threads++) {
        assert_null(http_server_new(&o, &e));
        assert_non_null(strstr(e.message, taken));
    }
}

/* Set on the listening socket alone: the server relies on accepted ones inheriting it. */
static void accepted_sockets_do_not_wait_to_send(void **state)
{
    (void)state;
    struct peer p = peer_connect(app.port);
    int found = 0;

    SEND(&p, GET("/hello"));
    peer_expect(&p, 200, "hello");
    for (int fd = 0; fd < 100; fd++) { /* the server lives in this process */
        struct sockaddr_in here = {0}, there = {0};
        socklen_t n = sizeof(here), m = sizeof(there), one = sizeof(int);
        int no_delay = 0, alive = 0;
        if (getsockname(fd, (struct sockaddr *)&here, &n) != 0 ||
            ntohs(here.sin_port) != app.port || getpeername(fd, (struct sockaddr *)&there, &m) != 0)
            continue;
        getsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &no_delay, &one);
        getsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &alive, &one);
        assert_true(no_delay != 0 && alive != 0);
        found++;
    }
    assert_int_equal(found, 1);
    peer_close(&p);
}

static void the_file_limit_is_raised(void **state)
{
    (void)state;
    struct rlimit limit;

    getrlimit(RLIMIT_NOFILE, &limit);
    assert_int_equal(limit.rlim_cur, limit.rlim_max);
}

int main(void)
{
#define WITH_SERVER(test) cmocka_unit_test_setup_teardown(test, start, stop)
    const struct CMUnitTest tests[] = {
        WITH_SERVER(one_connection_many_requests),
        WITH_SERVER(date_is_an_imf_fixdate_of_now),
        WITH_SERVER(bodies_of_every_kind_come_back),
        WITH_SERVER(any_split_means_the_same),
        WITH_SERVER(head_and_options),
        WITH_SERVER(http_1_0),
        WITH_SERVER(expect_continue),
        WITH_SERVER(refused_at_the_head),
        WITH_SERVER(answers_from_another_thread),
        WITH_SERVER(a_body_that_could_not_be_made),
        WITH_SERVER(pipelining),
        WITH_SERVER(crowds),
        WITH_SERVER(one_wake_up_a_burst),
        WITH_SERVER(half_closed_clients),
        WITH_SERVER(output_is_bounded),
        WITH_SERVER(several_loops),
        WITH_SERVER(addresses),
        WITH_SERVER(accepted_sockets_do_not_wait_to_send),
        WITH_SERVER(the_file_limit_is_raised),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
