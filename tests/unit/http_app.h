/* SPDX-License-Identifier: Apache-2.0
 * The application that the HTTP tests serve, and the knobs by which a test holds it.
 *
 *   /hello            "hello"
 *   /say…             the target, at once
 *   /later…           the target, from the worker thread
 *   /echo             the body
 *   /big/N            N bytes 'x'
 *   /hold…            waits until app_release; the answer is the target
 *   /block            holds the loop's thread until app_unblock
 *   /stream…          a stream that the test writes: app_stream()
 *   /early            a stream that was written and ended before its start
 *   /twice            two resumes from the worker; the second answers
 *   /refuse…          on_head answers 401
 *   /empty            204
 *   /fail             a body whose memory ran out */
#ifndef UNIT_HTTP_APP_H
#define UNIT_HTTP_APP_H

#include "http/http.h"
#include "http/exchange.h"
#include "http/loop.h"
#include "http/server.h"

#include "unit/http_peer.h"

#include <pthread.h>
#include <stdatomic.h>

struct held {
    struct held *next;
    struct http_exchange *x;
};

struct app {
    struct http_server *server;
    uint16_t port;
    pthread_t worker;

    pthread_mutex_t lock;
    pthread_cond_t changed;
    struct held *work, *held; /* newest first */
    struct http_stream *streams[512];
    size_t stream_count;
    bool blocked, quit;

    atomic_uint heads, requests, gone, done, errors, held_count, resumed;
    atomic_uint stream_gone, stream_drain, stream_writable;
    atomic_int last_done_status;
    atomic_bool keep_streams; /* on_gone and on_drain do not end the stream: the test will */
};

static struct app app;

static inline void app_answer(struct http_exchange *x, int status, struct str body)
{
    struct buf b = {0};
    struct http_answer a = {.status = status, .content_type = STR("text/plain"), .body = &b};

    buf_add(&b, body);
    http_reply(x, &a);
}

static inline void app_big(struct http_exchange *x)
{
    struct buf b = {0};
    struct http_answer a = {.status = 200, .content_type = STR("text/plain"), .body = &b};
    int64_t n = 0;

    assert_true(str_to_int64(str_slice(http_path(x), 5, http_path(x).n), &n));
    buf_reserve(&b, (size_t)n);
    memset(b.p, 'x', (size_t)n);
    b.n = (size_t)n;
    http_reply(x, &a);
}

static inline void app_push(struct held **list, struct http_exchange *x)
{
    struct held *h = arena_new(http_arena(x), struct held);

    h->x = x;
    pthread_mutex_lock(&app.lock);
    h->next = *list;
    *list = h;
    pthread_cond_broadcast(&app.changed);
    pthread_mutex_unlock(&app.lock);
}

static inline void app_stream_end_once(struct http_stream *st)
{
    bool mine = false;

    pthread_mutex_lock(&app.lock);
    for (size_t i = 0; i < app.stream_count; i++)
        if (app.streams[i] == st) {
            app.streams[i] = app.streams[--app.stream_count];
            mine = true;
        }
    pthread_mutex_unlock(&app.lock);
    if (mine)
        http_stream_end(st);
}

static inline void app_stream_gone(struct http_stream *st, void *ctx)
{
    assert_ptr_equal(ctx, &app);
    atomic_fetch_add(&app.stream_gone, 1);
    if (!atomic_load(&app.keep_streams))
        app_stream_end_once(st);
}

static inline void app_stream_drain(struct http_stream *st, void *ctx)
{
    (void)ctx;
    atomic_fetch_add(&app.stream_drain, 1);
    if (!atomic_load(&app.keep_streams))
        app_stream_end_once(st);
}

static inline void app_stream_writable(struct http_stream *st, void *ctx)
{
    (void)st, (void)ctx;
    atomic_fetch_add(&app.stream_writable, 1);
}

static inline struct http_stream *app_stream_new(struct http_exchange *x)
{
    static const struct http_stream_events events = {&app, app_stream_gone, app_stream_drain,
                                                     app_stream_writable};
    struct http_answer head = {
        .status = 200, .content_type = STR("text/event-stream"), .headers = STR("X-Kind: s\r\n")};

    return http_stream_new(x, &head, &events);
}

static inline void app_stream_start(struct http_exchange *x)
{
    struct http_stream *st = app_stream_new(x);

    pthread_mutex_lock(&app.lock); /* a callback must find it in the list */
    assert_true(app.stream_count < COUNT(app.streams));
    app.streams[app.stream_count++] = st;
    pthread_cond_broadcast(&app.changed);
    pthread_mutex_unlock(&app.lock);
    http_stream_start(st);
}

static inline void app_stream_early(struct http_exchange *x)
{
    struct http_stream *st = app_stream_new(x);

    assert_true(http_stream_write(st, STR("one ")));
    assert_true(http_stream_write(st, STR("two")));
    http_stream_end(st);
    http_stream_start(st);
}

static inline void app_block(struct http_exchange *x)
{
    pthread_mutex_lock(&app.lock);
    app.blocked = true;
    pthread_cond_broadcast(&app.changed);
    while (app.blocked)
        pthread_cond_wait(&app.changed, &app.lock);
    pthread_mutex_unlock(&app.lock);
    app_answer(x, 200, STR("unblocked"));
}

static inline bool app_on_head(struct http_exchange *x, void *ctx)
{
    assert_ptr_equal(ctx, &app);
    atomic_fetch_add(&app.heads, 1);
    if (!str_starts(http_path(x), STR("/refuse")))
        return true;
    app_answer(x, 401, STR("refused"));
    return false;
}

static inline void app_on_request(struct http_exchange *x, void *ctx)
{
    struct str path = http_path(x);

    assert_ptr_equal(ctx, &app);
    atomic_fetch_add(&app.requests, 1);
    if (str_eq(path, STR("/hello")))
        app_answer(x, 200, STR("hello"));
    else if (str_starts(path, STR("/say")))
        app_answer(x, 200, http_target(x));
    else if (str_eq(path, STR("/echo")))
        app_answer(x, 200, http_body(x));
    else if (str_starts(path, STR("/big/")))
        app_big(x);
    else if (str_starts(path, STR("/later")) || str_eq(path, STR("/twice")))
        app_push(&app.work, x);
    else if (str_starts(path, STR("/hold"))) {
        app_push(&app.held, x);
        atomic_fetch_add(&app.held_count, 1);
    } else if (str_eq(path, STR("/block")))
        app_block(x);
    else if (str_eq(path, STR("/early")))
        app_stream_early(x);
    else if (str_starts(path, STR("/stream")))
        app_stream_start(x);
    else if (str_eq(path, STR("/empty")))
        http_reply(x, &(struct http_answer){.status = 204});
    else if (str_eq(path, STR("/fail"))) {
        struct buf b = {.max = 3};
        buf_add(&b, STR("abcdef"));
        http_reply(x, &(struct http_answer){.status = 200, .body = &b});
    } else
        app_answer(x, 404, STR("no such path"));
}

static inline void app_on_gone(struct http_exchange *x, void *ctx)
{
    assert_ptr_equal(ctx, &app);
    assert_true(http_is_gone(x));
    atomic_fetch_add(&app.gone, 1);
}

static inline void app_on_done(struct http_exchange *x, int status, int64_t duration_us, void *ctx)
{
    (void)x, (void)ctx;
    assert_true(duration_us >= 0);
    atomic_store(&app.last_done_status, status);
    atomic_fetch_add(&app.done, 1);
}

static inline void app_on_error(int status, const char *message, struct http_answer *answer,
                                struct buf *body, void *ctx)
{
    (void)ctx;
    atomic_fetch_add(&app.errors, 1);
    answer->content_type = STR("application/json");
    buf_printf(body, "{\"status\":%d,\"message\":\"%s\"}", status, message);
}

static inline void app_resumed(struct http_exchange *x, void *ctx)
{
    unsigned nth = atomic_fetch_add(&app.resumed, 1) + 1;

    assert_true(loop_is_here(x->loop) || app.server->stopped);
    assert_int_equal(nth, *(unsigned *)ctx);
    if (nth == 2)
        app_answer(x, 200, STR("resumed twice"));
}

static inline void app_work(struct http_exchange *x)
{
    static unsigned first = 1, second = 2;

    if (!str_eq(http_path(x), STR("/twice"))) {
        app_answer(x, 200, http_target(x));
        return;
    }
    http_resume(x, app_resumed, &first);
    http_resume(x, app_resumed, &second);
}

/* Answers in bursts, as an executor does. */
static inline void *app_worker(void *arg)
{
    (void)arg;
    for (;;) {
        pthread_mutex_lock(&app.lock);
        while (app.work == NULL && !app.quit)
            pthread_cond_wait(&app.changed, &app.lock);
        struct held *h = app.work;
        app.work = NULL;
        pthread_mutex_unlock(&app.lock);
        if (h == NULL)
            return NULL;
        while (h != NULL) {
            struct held *next = h->next; /* before the answer: h lies in the exchange's arena */
            app_work(h->x);
            h = next;
        }
    }
}

static inline void app_release(void)
{
    pthread_mutex_lock(&app.lock);
    struct held *h = app.held;
    app.held = NULL;
    pthread_mutex_unlock(&app.lock);
    while (h != NULL) {
        struct held *next = h->next;
        app_answer(h->x, 200, http_target(h->x));
        h = next;
    }
}

static inline void app_wait_blocked(void)
{
    pthread_mutex_lock(&app.lock);
    while (!app.blocked)
        pthread_cond_wait(&app.changed, &app.lock);
    pthread_mutex_unlock(&app.lock);
}

static inline void app_unblock(void)
{
    pthread_mutex_lock(&app.lock);
    app.blocked = false;
    pthread_cond_broadcast(&app.changed);
    pthread_mutex_unlock(&app.lock);
}

/* The nth stream that is open, once it is. */
static inline struct http_stream *app_stream(size_t n)
{
    pthread_mutex_lock(&app.lock);
    while (app.stream_count <= n)
        pthread_cond_wait(&app.changed, &app.lock);
    struct http_stream *st = app.streams[n];
    pthread_mutex_unlock(&app.lock);
    return st;
}

static inline struct http_stats app_stats(void)
{
    struct http_stats stats;

    http_server_stats(app.server, &stats);
    return stats;
}

static inline void app_start(struct http_options o)
{
    struct err e;

    memset(&app, 0, sizeof(app));
    pthread_mutex_init(&app.lock, NULL);
    pthread_cond_init(&app.changed, NULL);
    o.listen_addr = o.listen_addr == NULL ? "127.0.0.1:0" : o.listen_addr;
    o.threads = o.threads == 0 ? 1 : o.threads;
    o.ctx = &app;
    o.on_head = app_on_head;
    o.on_request = app_on_request;
    o.on_gone = app_on_gone;
    o.on_done = app_on_done;
    o.on_error = app_on_error;
    app.server = http_server_new(&o, &e);
    if (app.server == NULL)
        fail_msg("%s", e.message);
    app.port = http_server_port(app.server);
    assert_true(http_server_start(app.server, &e));
    assert_int_equal(pthread_create(&app.worker, NULL, app_worker, NULL), 0);
}

/* Every request got exactly one answer, and nothing is held any more. */
static inline void app_stop(void)
{
    app_release();
    http_server_stop(app.server, clock_mono_us());
    pthread_mutex_lock(&app.lock);
    app.quit = true;
    pthread_cond_broadcast(&app.changed);
    pthread_mutex_unlock(&app.lock);
    pthread_join(app.worker, NULL);
    app_release();
    while (app.stream_count > 0)
        app_stream_end_once(app.streams[0]);
    http_server_free(app.server);
    pthread_cond_destroy(&app.changed);
    pthread_mutex_destroy(&app.lock);
}

#endif
