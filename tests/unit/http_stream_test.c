/* SPDX-License-Identifier: Apache-2.0
 * Streams (answers written bit by bit, from any thread) and the server's end: draining, stopping,
 * late answers. */
#include "http/stream.h"
#include "unit/http_app.h"

#include <malloc.h>

#define MS US_PER_MS
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

static struct peer open_stream(size_t nth, struct http_stream **st)
{
    struct peer p = peer_connect(app.port);
    struct answer a = {0};

    SEND(&p, GET("/stream"));
    peer_answer_head(&p, &a);
    assert_int_equal(a.status, 200);
    assert_true(str_eq(answer_header(&a, "Transfer-Encoding"), STR("chunked")));
    assert_true(str_eq(answer_header(&a, "Content-Type"), STR("text/event-stream")));
    assert_true(str_eq(answer_header(&a, "X-Kind"), STR("s")));
    answer_free(&a);
    *st = app_stream(nth);
    return p;
}

static void expect_bytes(struct peer *p, const char *text)
{
    struct buf got = {0};

    while (got.n < strlen(text))
        assert_true(peer_chunk(p, &got));
    assert_true(str_eq(buf_str(&got), str_of(text)));
    buf_free(&got);
}

static void a_stream_from_head_to_end(void **state)
{
    (void)state;
    struct http_stream *st;
    struct peer p = open_stream(0, &st);
    struct buf rest = {0};

    WAIT_FOR(app_stats().streams == 1);
    WAIT_FOR(http_stream_pending(st) == 0);
    assert_true(http_stream_write(st, STR("data: 1\n\n")));
    expect_bytes(&p, "data: 1\n\n");
    WAIT_FOR(atomic_load(&app.stream_writable) > 0);
    assert_true(http_stream_write(st, STR(""))); /* nothing, and not the end */
    assert_true(http_stream_write(st, STR("0123456789abcdef")));
    expect_bytes(&p, "0123456789abcdef");
    assert_int_equal(atomic_load(&app.done), 0);
    assert_true(http_stream_write(st, STR("last")));
    app_stream_end_once(st);
    assert_true(peer_chunk(&p, &rest));
    assert_false(peer_chunk(&p, &rest));
    assert_true(str_eq(buf_str(&rest), STR("last")));
    WAIT_FOR(atomic_load(&app.done) == 1);
    assert_int_equal(app_stats().streams, 0);
    SEND(&p, GET("/hello")); /* the connection is as good as before */
    peer_expect(&p, 200, "hello");
    assert_int_equal(atomic_load(&app.stream_gone), 0);
    buf_free(&rest);
    peer_close(&p);
}

static void pipelined_around_streams(void **state)
{
    (void)state;
    struct peer p = peer_connect(app.port);
    struct answer a = {0};

    SEND(&p, GET("/later") GET("/stream") GET("/say/1") GET("/stream") GET("/say/2"));
    for (int i = 1; i <= 2; i++) {
        if (i == 1)
            peer_expect(&p, 200, "/later");
        struct http_stream *st = app_stream(0);
        http_stream_write(st, STR("x"));
        app_stream_end_once(st);
        peer_answer(&p, &a, false);
        assert_true(str_eq(a.body, STR("x")));
        peer_expect(&p, 200, i == 1 ? "/say/1" : "/say/2");
    }
    answer_free(&a);
    peer_close(&p);
}

static void http_1_0_has_no_chunks(void **state)
{
    (void)state;
    struct peer p = peer_connect(app.port);
    struct answer a = {0};

    SEND(&p, "GET /stream HTTP/1.0\r\nConnection: keep-alive\r\n\r\n");
    struct http_stream *st = app_stream(0);
    http_stream_write(st, STR("raw "));
    http_stream_write(st, STR("bytes"));
    app_stream_end_once(st);
    peer_answer(&p, &a, false);
    assert_false(str_present(answer_header(&a, "Transfer-Encoding")));
    assert_true(str_eq(answer_header(&a, "Connection"), STR("close")));
    assert_true(str_eq(a.body, STR("raw bytes")));
    answer_free(&a);
    peer_close(&p);
}

/* One is told once a write is out, never of the head alone: who writes when told, and only then,
 * has one write waiting at most, so even large ones are not taken for a reader that lags. */
static void told_of_what_was_written(void **state)
{
    enum { BYTES = 3 * 1024 * 1024, ROUNDS = 6 }; /* each far over what may wait */
    static char bytes[BYTES];
    struct http_stream *st;
    struct peer p = open_stream(0, &st); /* its head is out */
    struct peer other = peer_connect(app.port);

    (void)state;
    SEND(&other, GET("/hello"));
    peer_expect(&other, 200, "hello"); /* the loop has been round since */
    assert_int_equal(http_stream_pending(st), 0);
    assert_int_equal(atomic_load(&app.stream_writable), 0);
    memset(bytes, 'w', sizeof(bytes));
    for (unsigned i = 0; i < ROUNDS; i++) {
        struct buf got = {0};

        assert_true(http_stream_write(st, str_make(bytes, BYTES)));
        while (got.n < BYTES)
            assert_true(peer_chunk(&p, &got));
        WAIT_FOR(atomic_load(&app.stream_writable) == i + 1);
        buf_free(&got);
    }
    app_stream_end_once(st);
    peer_close(&other);
    peer_close(&p);
}

static void a_reader_that_leaves_is_noticed_at_once(void **state)
{
    (void)state;
    struct http_stream *st;

    for (unsigned reset = 0; reset < 2; reset++) {
        atomic_store(&app.keep_streams, true);
        struct peer p = open_stream(0, &st);
        (reset != 0 ? peer_reset : peer_close)(&p);
        WAIT_FOR(atomic_load(&app.stream_gone) == reset + 1);
        WAIT_FOR(app_stats().connections == 0);
        assert_false(http_stream_write(st, STR("too late")));
        assert_int_equal(http_stream_pending(st), 0);
        assert_int_equal(app_stats().streams, 0);
        assert_int_equal(atomic_load(&app.done), reset);
        app_stream_end_once(st);
        WAIT_FOR(atomic_load(&app.done) == reset + 1);
    }
    assert_int_equal(atomic_load(&app.stream_gone), 2);
}

/* Who shut its sending side with the request still gets all of it. */
static void half_closed_readers(void **state)
{
    (void)state;
    struct peer p = peer_connect(app.port);
    struct answer a = {0};

    SEND(&p, GET("/block")); /* so that request and FIN are seen together */
    app_wait_blocked();
    SEND(&p, GET("/stream"));
    shutdown(p.fd, SHUT_WR);
    app_unblock();
    peer_expect(&p, 200, "unblocked");
    struct http_stream *st = app_stream(0);
    for (int i = 0; i < 100; i++)
        assert_true(http_stream_write(st, STR("0123456789")));
    app_stream_end_once(st);
    peer_answer(&p, &a, false);
    assert_int_equal(a.body.n, 1000);
    peer_expect_end(&p);
    answer_free(&a);
    peer_close(&p);
}

static void a_reader_that_does_not_read_is_dropped(void **state)
{
    (void)state;
    struct http_stream *st;
    struct peer p = open_stream(0, &st);
    static char bytes[10000];
    size_t written = 0;

    atomic_store(&app.keep_streams, true);
    memset(bytes, 's', sizeof(bytes));
    while (http_stream_write(st, str_make(bytes, sizeof(bytes)))) {
        written += sizeof(bytes);
        assert_true(http_stream_pending(st) <= 1024 * 1024 + 64);
        assert_true(written < (size_t)100 * 1024 * 1024);
    }
    WAIT_FOR(atomic_load(&app.stream_gone) == 1);
    WAIT_FOR(app_stats().connections == 0);
    app_stream_end_once(st);
    WAIT_FOR(atomic_load(&app.done) == 1);
    peer_close(&p);
}

static void a_stalled_reader_is_dropped(void **state)
{
    (void)state;
    struct http_stream *st;
    static char bytes[900000];

    app_stop();
    app_start((struct http_options){.idle_timeout_us = 100 * MS,
                                    .stream_max_pending = (size_t)64 * 1024 * 1024});
    atomic_store(&app.keep_streams, true); /* else they might end under our hands */
    struct peer quiet = open_stream(0, &st), p = peer_connect(app.port);
    SEND(&p, GET("/stream"));
    struct http_stream *full = app_stream(1);
    for (int i = 0; i < 20; i++)
        http_stream_write(full, str_make(bytes, sizeof(bytes)));
    WAIT_FOR(atomic_load(&app.stream_gone) == 1); /* it has taken nothing for long */
    WAIT_FOR(app_stats().connections == 1); /* one to which nothing was sent may wait for ever */
    peer_close(&quiet);
    peer_close(&p);
    WAIT_FOR(atomic_load(&app.stream_gone) == 2);
    app_stream_end_once(full);
    app_stream_end_once(st);
}

struct writer {
    struct http_stream *st;
    char letter;
};

static void *write_lines(void *arg)
{
    struct writer *w = arg;
    char line[32];

    for (int i = 0; i < 1000; i++) {
        int n = snprintf(line, sizeof(line), "%c%d\n", w->letter, i);
        assert_true(http_stream_write(w->st, str_make(line, (size_t)n)));
    }
    return NULL;
}

/* Several threads write to one stream: each one's bytes stay whole and in order. */
static void many_writers(void **state)
{
    (void)state;
    struct http_stream *st;
    struct peer p = open_stream(0, &st);
    struct writer w[4];
    pthread_t t[4];
    struct buf got = {0};
    int next[4] = {0};

    for (size_t i = 0; i < 4; i++) {
        w[i] = (struct writer){st, (char)('a' + i)};
        pthread_create(&t[i], NULL, write_lines, &w[i]);
    }
    for (size_t i = 0; i < 4; i++)
        pthread_join(t[i], NULL);
    app_stream_end_once(st);
    while (peer_chunk(&p, &got))
        ;
    buf_add_byte(&got, '\0');
    for (char *line = strtok(got.p, "\n"); line != NULL; line = strtok(NULL, "\n")) {
        assert_true(line[0] >= 'a' && line[0] <= 'd');
        assert_int_equal(atoi(line + 1), next[line[0] - 'a']++);
    }
    for (size_t i = 0; i < 4; i++)
        assert_int_equal(next[i], 1000);
    buf_free(&got);
    peer_close(&p);
}

struct crossing_writer {
    atomic_bool stop;
};

static void *write_to_all(void *arg)
{
    struct crossing_writer *w = arg;

    while (!atomic_load(&w->stop)) {
        pthread_mutex_lock(&app.lock); /* a stream in the list has not been ended */
        for (size_t i = 0; i < app.stream_count; i++)
            http_stream_write(app.streams[i], STR("data: x\n\n"));
        pthread_mutex_unlock(&app.lock);
        peer_pause(); /* mutexes are not fair */
    }
    return NULL;
}

/* Writers, ends and departures that cross. */
static void crossing(void **state)
{
    (void)state;
    enum { N = 20 };
    struct crossing_writer w = {0};
    pthread_t t;

    pthread_create(&t, NULL, write_to_all, &w);
    for (size_t round = 0; round < 50; round++) {
        struct peer peers[N];
        unsigned begun = atomic_load(&app.requests);
        for (size_t i = 0; i < N; i++) {
            peers[i] = peer_connect(app.port);
            SEND(&peers[i], GET("/stream"));
        }
        if (round % 2 == 0)
            WAIT_FOR(atomic_load(&app.requests) == begun + N);
        for (size_t i = 0; i < N; i++) {
            pthread_mutex_lock(&app.lock);
            struct http_stream *st = i % 3 == 0 && app.stream_count > 0 ? app.streams[0] : NULL;
            if (st != NULL) {
                app.streams[0] = app.streams[--app.stream_count];
                http_stream_end(st);
            }
            pthread_mutex_unlock(&app.lock);
            (i % 2 == 0 ? peer_reset : peer_close)(&peers[i]);
        }
        WAIT_FOR(app_stats().accepted == (round + 1) * N);
        WAIT_FOR(app_stats().connections == 0 &&
                 atomic_load(&app.done) == atomic_load(&app.requests));
    }
    atomic_store(&w.stop, true);
    pthread_join(t, NULL);
    assert_int_equal(app_stats().streams, 0);
}

static void small_streams(void **state)
{
    (void)state;
    enum { N = 500 };
    struct peer peers[N];
    struct http_stream *st;

    if (SANITIZED)
        skip();
    for (int pass = 0; pass < 2; pass++) {
        size_t before = mallinfo2().uordblks;
        for (size_t i = 0; i < N; i++) {
            peers[i] = open_stream(i, &st);
            http_stream_write(st, STR(": hello\n\n"));
            expect_bytes(&peers[i], ": hello\n\n");
            buf_free(&peers[i].in);
        }
        WAIT_FOR(http_stream_pending(st) == 0);
        size_t each = (mallinfo2().uordblks - before) / N;
        if (pass == 1) {
            printf("stream: %zu bytes\n", each);
            assert_true(each < 1536);
        }
        for (size_t i = 0; i < N; i++)
            peer_close(&peers[i]);
        WAIT_FOR(app_stats().connections == 0);
    }
}

/* ---- the end ---- */

static void draining(void **state)
{
    (void)state;
    struct peer idle = peer_connect(app.port), waiting = peer_connect(app.port),
                late = peer_connect(app.port), stream;
    struct peer sending = peer_connect(app.port);
    struct http_stream *st;
    struct answer a = {0};
    struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons(app.port)};

    SEND(&idle, GET("/hello"));
    peer_expect(&idle, 200, "hello");
    SEND(&waiting, GET("/hold"));
    SEND(&sending, REQ("POST", "/echo") "Content-Length: 6\r\n\r\nabc");
    stream = open_stream(0, &st);
    WAIT_FOR(atomic_load(&app.held_count) == 1 && atomic_load(&app.heads) == 4);
    http_server_drain(app.server);
    WAIT_FOR(atomic_load(&app.stream_drain) == 1); /* its user ended it */
    struct buf rest = {0};
    while (peer_chunk(&stream, &rest))
        ;
    SEND(&late, GET("/hello")); /* a connection that was open: answered, then closed */
    peer_answer(&late, &a, false);
    assert_int_equal(a.status, 200);
    assert_true(str_eq(answer_header(&a, "Connection"), STR("close")));
    peer_expect_end(&late);
    peer_expect_end(&idle);
    SEND(&sending, "def");
    peer_answer(&sending, &a, false);
    assert_true(str_eq(a.body, STR("abcdef")));
    assert_true(str_eq(answer_header(&a, "Connection"), STR("close")));
    app_release();
    peer_answer(&waiting, &a, false);
    assert_int_equal(a.status, 200);
    assert_true(str_eq(answer_header(&a, "Connection"), STR("close")));
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    assert_int_not_equal(connect(fd, (struct sockaddr *)&to, sizeof(to)), 0); /* nobody listens */
    close(fd);
    struct peer *all[] = {&idle, &waiting, &late, &sending, &stream};
    for (size_t i = 0; i < COUNT(all); i++)
        peer_close(all[i]);
    int64_t begun = clock_mono_us();
    http_server_stop(app.server, begun + DEADLINE_US);
    assert_true(clock_mono_us() - begun <
                DEADLINE_US / 2); /* it left when the last connection did */
    answer_free(&a);
    buf_free(&rest);
}

static void those_in_the_accept_queue_are_answered(void **state)
{
    (void)state;
    struct peer blocker = peer_connect(app.port), queued[20];

    SEND(&blocker, GET("/block"));
    app_wait_blocked();
    for (size_t i = 0; i < COUNT(queued); i++) {
        queued[i] = peer_connect(app.port);
        SEND(&queued[i], GET("/hello"));
    }
    http_server_drain(app.server);
    app_unblock();
    peer_expect(&blocker, 200, "unblocked");
    for (size_t i = 0; i < COUNT(queued); i++) {
        peer_expect(&queued[i], 200, "hello");
        peer_close(&queued[i]);
    }
    peer_close(&blocker);
}

/* The deadline passes with everything in flight; what is answered after that is thrown away, and
 * nothing leaks. */
static void stopping_at_the_deadline(void **state)
{
    (void)state;
    struct http_stream *st;
    struct peer waiting = peer_connect(app.port), stream, twice = peer_connect(app.port);

    atomic_store(&app.keep_streams, true);
    SEND(&waiting, GET("/hold"));
    SEND(&twice, GET("/hold"));
    stream = open_stream(0, &st);
    WAIT_FOR(atomic_load(&app.held_count) == 2);
    http_server_stop(app.server, clock_mono_us() + 20 * MS);
    peer_expect_end(&waiting);
    assert_int_equal(atomic_load(&app.stream_drain), 1);
    assert_int_equal(atomic_load(&app.stream_gone), 1);
    assert_int_equal(atomic_load(&app.gone), 2);
    assert_false(http_stream_write(st, STR("x")));
    pthread_mutex_lock(&app.lock);
    struct held *h = app.held;
    app.held = h->next;
    pthread_mutex_unlock(&app.lock);
    unsigned first = 1, second = 2;
    http_resume(h->x, app_resumed, &first); /* also late: the second one answers */
    http_resume(h->x, app_resumed, &second);
    app_stop();
    assert_int_equal(atomic_load(&app.done), 3);
    assert_int_equal(atomic_load(&app.resumed), 2);
    peer_close(&waiting);
    peer_close(&twice);
    peer_close(&stream);
    app_start((struct http_options){0});
}

/* The loop has queued the head and not sent it when the writer brings its first piece: however
 * large that is, it is taken. What the writer itself left waiting bounds the next one. */
static void the_head_bounds_no_writer(void **state)
{
    static char piece[4096];
    struct http_stream st = {.max_pending = 1000, .chunked = true, .posted = true};
    const struct str large = str_make(piece, sizeof(piece));

    (void)state;
    pthread_mutex_init(&st.lock, NULL);
    atomic_store(&st.pending_bytes, 150); /* stream_bound */
    assert_true(http_stream_write(&st, large));
    assert_false(http_stream_write(&st, large));
    assert_true(stream_is_gone(&st));
    pthread_mutex_destroy(&st.lock);
}

/* Nothing of a stream is sent before its start, and then all that was written by then. */
static void written_and_ended_before_its_start(void **state)
{
    struct peer p = peer_connect(app.port);

    (void)state;
    SEND(&p, GET("/early"));
    peer_expect(&p, 200, "one two");
    WAIT_FOR(atomic_load(&app.done) == 1);
    SEND(&p, GET("/hello"));
    peer_expect(&p, 200, "hello");
    peer_close(&p);
}

int main(void)
{
#define WITH_SERVER(test) cmocka_unit_test_setup_teardown(test, start, stop)
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_head_bounds_no_writer),
        WITH_SERVER(a_stream_from_head_to_end),
        WITH_SERVER(written_and_ended_before_its_start),
        WITH_SERVER(told_of_what_was_written),
        WITH_SERVER(pipelined_around_streams),
        WITH_SERVER(http_1_0_has_no_chunks),
        WITH_SERVER(a_reader_that_leaves_is_noticed_at_once),
        WITH_SERVER(half_closed_readers),
        WITH_SERVER(a_reader_that_does_not_read_is_dropped),
        WITH_SERVER(a_stalled_reader_is_dropped),
        WITH_SERVER(many_writers),
        WITH_SERVER(crossing),
        WITH_SERVER(small_streams),
        WITH_SERVER(draining),
        WITH_SERVER(those_in_the_accept_queue_are_answered),
        WITH_SERVER(stopping_at_the_deadline),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
