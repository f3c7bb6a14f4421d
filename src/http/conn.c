/* SPDX-License-Identifier: Apache-2.0
 * The life of a connection. conn_step owns the moves between states that more bytes or an answer
 * allow; conn_close is the only way into CONN_CLOSED, conn_refuse the only other way to an answer
 * than the user's. */
#include "http/conn.h"

#include "http/stream.h"

#include "base/clock.h"

#include <errno.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

enum {
    STEPS_MAX = 64, /* a connection's share of a turn */
    OUT_MAX =
        32 * 1024, /* answers to pipelined requests gather up to here before they are written */
    BODY_COPIED_MAX =
        16 *
        1024, /* an answer's body up to this is copied behind its head, so one write takes both */
};
/* How long to wait for the client's end after the last answer: so much without a byte, so much in
 * all. */
#define LINGER_IDLE_US (2 * US_PER_S)
#define LINGER_MAX_US (30 * US_PER_S)

static void set_timer(struct conn *c, int64_t at_us)
{
    timer_set(&c->loop->timers, &c->timer, at_us);
}

static const struct http_options *options(const struct conn *c)
{
    return &c->loop->server->opt;
}

struct conn *conn_new(struct loop *l, int fd)
{
    struct epoll_event ev = {.events = EPOLLIN | EPOLLRDHUP | EPOLLET};
    struct conn *c = xzalloc(sizeof(*c));

    ev.data.ptr = c;
    if (epoll_ctl(l->epoll_fd, EPOLL_CTL_ADD, fd, &ev) !=
        0) { /* no kernel memory, or over the user's watches */
        close(fd);
        free(c);
        return NULL;
    }
    c->loop = l;
    c->fd = fd;
    conn_idle_enter(c);
    c->next = l->conns;
    if (l->conns != NULL)
        l->conns->prev = c;
    l->conns = c;
    atomic_fetch_add_explicit(&l->connections, 1, memory_order_relaxed);
    atomic_fetch_add_explicit(&l->accepted, 1, memory_order_relaxed);
    set_timer(c, l->now_us + l->server->opt.idle_timeout_us);
    return c;
}

/* ---- leaving ---- */

/* The hint that nobody waits for the answer any more. It may be answered on the spot. */
static void tell_gone(struct conn *c)
{
    struct http_exchange *x = c->x;

    if (x->gone_told)
        return;
    x->gone_told = true;
    atomic_store_explicit(&x->gone, true, memory_order_relaxed);
    if (options(c)->on_gone != NULL && atomic_load(&x->owed))
        options(c)->on_gone(x, options(c)->ctx);
}

/* What a closed connection still has in flight. */
static void leave_exchange(struct conn *c, enum conn_state was)
{
    struct http_exchange *x = c->x;
    bool keep = false;

    if (was == CONN_HANDED) {
        tell_gone(c);
        keep = !x->answered; /* the answer will come by mail */
    } else if (was == CONN_ADMIT) {
        keep = !budget_cancel(c->loop->server->budget, &x->claim); /* the grant will come by mail */
    }
    if (keep)
        return;
    c->x = NULL;
    if (was == CONN_HANDED)
        exchange_finish(x);
    else
        exchange_drop(x);
}

void conn_close(struct conn *c)
{
    enum conn_state was = c->state;

    ASSERT(was != CONN_CLOSED);
    conn_idle_leave(c);
    c->state = CONN_CLOSED;
    close(c->fd); /* also leaves the epoll: nobody has duplicated the descriptor */
    c->fd = -1;
    timer_remove(&c->loop->timers, &c->timer);
    free(c->stash);
    c->stash = NULL;
    c->window_bytes = 0;
    conn_free_out(c);
    atomic_fetch_sub_explicit(&c->loop->connections, 1, memory_order_relaxed);
    loop_file_freed(c->loop);
    if (c->stream != NULL)
        stream_lose(c->stream);
    if (c->x != NULL)
        leave_exchange(c, was);
    if (c->x == NULL)
        loop_bury(c->loop, c);
}

/* ---- a request ---- */

static bool keeps_alive(const struct http_exchange *x)
{
    bool wanted =
        x->head.minor == 1 ? !x->head.says_close : x->head.says_keep_alive && !x->head.says_close;

    return wanted && !x->close && !x->loop->draining;
}

void conn_refuse(struct conn *c, int status, const char *message)
{
    if (c->x->started_us == 0)
        c->x->started_us = c->loop->now_us;
    c->state = CONN_HANDED;
    set_timer(c, TIMER_OFF);
    answer_refusal(c->x, status, message);
}

/* on_head has answered. When the whole body is here it is skipped; else the connection cannot be
 * used again. */
static void skip_body(struct conn *c)
{
    struct http_exchange *x = c->x;

    if (!x->head.chunked && x->head.content_length <= c->window_bytes)
        conn_window_take(c, (size_t)x->head.content_length);
    else
        x->close = true;
    c->state = CONN_HANDED;
    set_timer(c, TIMER_OFF);
}

static void head_complete(struct conn *c)
{
    struct http_exchange *x = c->x;
    size_t n = x->head.at;
    char *bytes = arena_alloc(&x->arena, n); /* at most HEAD_BYTES_MAX: never fails */

    memcpy(bytes, conn_window(c).p, n);
    conn_window_take(c, n);
    x->bytes = bytes;
    x->body = STR("");
    x->started_us = clock_mono_us();
    x->head_only = str_eq(http_method(x), STR("HEAD"));
    atomic_store_explicit(&x->owed, true, memory_order_relaxed);
    atomic_fetch_add_explicit(&c->loop->requests, 1, memory_order_relaxed);
    bool accepted = options(c)->on_head == NULL || options(c)->on_head(x, options(c)->ctx);
    ASSERT(accepted || x->answered); /* http.h: reply and return false */
    if (x->answered)
        skip_body(c);
    else if (http_body_too_large(x))
        conn_refuse(c, 413, http_too_large_message(x));
    else
        conn_body_begin(c);
}

static void head_refused(struct conn *c)
{
    struct head *h = &c->x->head;
    struct str bytes = conn_window(c);

    /* So that the answer to a HEAD has no body, and on_done may see the method. */
    if (h->method.n > 0) {
        char *copy = arena_alloc(&c->x->arena, h->at);
        memcpy(copy, bytes.p, h->at);
        c->x->bytes = copy;
        c->x->head_only = str_eq(http_method(c->x), STR("HEAD"));
    }
    conn_refuse(c, h->status, h->message);
}

static bool step_head(struct conn *c)
{
    if (c->out != NULL) /* a client that does not read its answers is not asked for more requests */
        return false;
    conn_window_load(c);
    size_t seen = c->x == NULL ? 0 : c->x->head.at;
    if (seen == c->window_bytes && !conn_fill(c))
        return false;
    if (c->x == NULL)
        c->x = exchange_new(c->loop, c);
    switch (head_parse(&c->x->head, conn_window(c), options(c)->max_head_bytes)) {
    case PARSE_DONE:
        conn_idle_leave(c);
        head_complete(c);
        return true;
    case PARSE_REFUSED:
        conn_idle_leave(c);
        head_refused(c);
        return true;
    case PARSE_MORE:
        if (c->state == CONN_IDLE && head_begun(&c->x->head)) {
            conn_idle_leave(c);
            c->state = CONN_HEAD;
            set_timer(c, c->loop->now_us + options(c)->head_timeout_us);
        }
        return true;
    }
    return false;
}

void conn_request_ready(struct conn *c)
{
    struct http_exchange *x = c->x;

    c->state = CONN_HANDED;
    x->half_closed = c->fin;
    set_timer(c, TIMER_OFF);
    options(c)->on_request(x, options(c)->ctx);
}

/* ---- its answer ---- */

/* It is answered: the next request may come, or the end. */
static void rest(struct conn *c)
{
    if (c->keep_alive)
        conn_idle_enter(c);
    else
        c->state = CONN_CLOSING;
    set_timer(c, c->loop->now_us + options(c)->idle_timeout_us);
}

/* The answer to the connection's exchange is here: write it, and be free for the next request. */
static void give_answer(struct conn *c)
{
    struct loop *l = c->loop;
    struct http_exchange *x = c->x;
    struct buf body = {0};

    if (x->answer.failed) { /* better no answer than half of one */
        buf_free(&x->answer);
        answer_refusal(x, 500, "no memory for the answer");
    }
    c->keep_alive = keeps_alive(x);
    answer_write_head(l, x, &x->answer.n, c->keep_alive, &l->out);
    if (!x->head_only && answer_has_body(x->status)) {
        if (x->answer.n <= BODY_COPIED_MAX)
            buf_add(&l->out, buf_str(&x->answer));
        else {
            body = x->answer;
            x->answer = (struct buf){0};
        }
    }
    c->x = NULL;
    exchange_finish(x);
    rest(c);
    if (body.n > 0 || l->out.n > OUT_MAX)
        conn_flush(c, &body);
}

static bool step_handed(struct conn *c)
{
    if (!c->x->answered && c->fin && (!c->x->half_closed || c->loop->draining))
        tell_gone(c);
    if (!c->x->answered)
        return false;
    give_answer(c);
    return c->state != CONN_CLOSED;
}

/* ---- its stream ---- */

/* A stream's last byte is out. A drain that has passed by already asks nothing more of connections
 * that become idle. */
static void stream_answered(struct conn *c)
{
    rest(c);
    if (c->loop->draining)
        conn_drain(c);
}

void conn_bind_stream(struct conn *c, struct http_stream *st)
{
    struct http_exchange *x = c->x;
    struct loop *l = c->loop;
    size_t waiting = 0;

    c->x = NULL;
    x->conn = NULL;
    if (c->state == CONN_CLOSED) {
        exchange_release_request(x);
        loop_bury(l, c);
        stream_lose(st);
        return;
    }
    c->keep_alive = keeps_alive(x) && (st->chunked || x->head_only);
    answer_write_head(l, x, NULL, c->keep_alive, &l->out);
    exchange_release_request(x);
    if (x->head_only) { /* the head is all that may be sent */
        stream_answered(c);
        stream_lose(st);
    } else {
        for (struct out *o = c->out; o != NULL; o = o->next)
            waiting += o->n - o->at;
        c->state = CONN_STREAM;
        c->stream = st;
        stream_bound(st, c, waiting + l->out.n);
    }
    conn_run(c);
}

static bool step_stream(struct conn *c)
{
    struct http_stream *st = c->stream;
    struct buf bytes;
    bool last;

    if (stream_is_gone(st) || (c->fin && !st->x->half_closed && !stream_is_ended(st))) {
        conn_close(c);
        return false;
    }
    if (c->out != NULL) /* what is pending gathers until the socket has taken what came before */
        return false;
    if (stream_take(st, &bytes, &last) || c->loop->out.n > 0) {
        conn_flush(c, &bytes);
        return c->state == CONN_STREAM;
    }
    buf_free(&bytes);
    if (!last)
        return false;
    stream_answered(c);
    stream_finish(st);
    return true;
}

/* ---- the end ---- */

/* To close a socket that holds unread bytes resets it, and the reset may overtake the answer. So:
 * send, shut our side, and throw away what comes until the client has closed too. */
static bool step_closing(struct conn *c)
{
    if (c->loop->out.n > 0)
        conn_flush(c, NULL);
    if (c->state != CONN_CLOSING || c->out != NULL)
        return false;
    shutdown(c->fd, SHUT_WR);
    free(c->stash);
    c->stash = NULL;
    c->window_bytes = 0;
    c->state = CONN_LINGER;
    c->linger_end_us = c->loop->now_us + LINGER_MAX_US;
    set_timer(c, c->loop->now_us + LINGER_IDLE_US);
    return true;
}

static bool step_linger(struct conn *c)
{
    int64_t idle_us = c->loop->now_us + LINGER_IDLE_US;

    if (!c->readable)
        return false;
    /* MSG_TRUNC: the kernel drops the bytes without copying them. */
    ssize_t n = recv(c->fd, c->loop->scratch, c->loop->scratch_bytes, MSG_TRUNC);
    if (n < 0 && errno == EINTR)
        return true;
    if (n < 0 && errno == EAGAIN) {
        c->readable = false;
        return false;
    }
    if (n <= 0) {
        conn_close(c);
        return false;
    }
    set_timer(c, idle_us < c->linger_end_us ? idle_us : c->linger_end_us);
    return true;
}

/* ---- what drives it ---- */

/* True: call again, more may be possible. */
static bool conn_step(struct conn *c)
{
    switch ((enum conn_state)c->state) {
    case CONN_IDLE:
    case CONN_HEAD:
        return step_head(c);
    case CONN_BODY:
        return conn_body_step(c);
    case CONN_HANDED:
        return step_handed(c);
    case CONN_STREAM:
        return step_stream(c);
    case CONN_CLOSING:
        return step_closing(c);
    case CONN_LINGER:
        return step_linger(c);
    case CONN_ADMIT:
    case CONN_CLOSED:
        return false;
    }
    return false;
}

void conn_run(struct conn *c)
{
    struct loop *l = c->loop;
    int steps = STEPS_MAX;

    if (c->state == CONN_CLOSED)
        return;
    ASSERT(l->running == NULL);
    l->running = c;
    while (steps > 0 && conn_step(c))
        steps--;
    if (c->state != CONN_CLOSED && l->out.n > 0)
        conn_flush(c, NULL);
    buf_clear(&l->out);
    if (c->state != CONN_CLOSED) {
        conn_window_save(c);
        if (steps == 0)
            loop_again(l, c);
    }
    l->running = NULL;
}

void conn_event(struct conn *c, uint32_t events)
{
    if (c->state == CONN_CLOSED) /* earlier in this batch */
        return;
    if ((events & (EPOLLIN | EPOLLRDHUP | EPOLLHUP | EPOLLERR)) != 0)
        c->readable = true;
    if ((events & (EPOLLRDHUP | EPOLLHUP | EPOLLERR)) != 0)
        c->fin = true;
    if ((events & (EPOLLHUP | EPOLLERR)) != 0 &&
        c->state != CONN_LINGER) { /* reset: no answer can reach it */
        conn_close(c);
        return;
    }
    if ((events & EPOLLOUT) != 0)
        conn_flush_waiting(c);
    conn_run(c);
}

void conn_mail(struct conn *c, enum mail_kind kind)
{
    if (kind == MAIL_BUDGET) {
        conn_body_granted(c);
        return;
    }
    ASSERT(kind == MAIL_ANSWER && c->x != NULL);
    c->x->answered = true;
    if (c->state != CONN_CLOSED) {
        conn_run(c);
        return;
    }
    struct http_exchange *x = c->x;
    c->x = NULL;
    exchange_finish(x);
    loop_bury(c->loop, c);
}

void conn_timeout(struct conn *c)
{
    bool refuse = c->state == CONN_HEAD || c->state == CONN_BODY;

    if (refuse && c->out == NULL) {
        conn_refuse(c, 408,
                    c->state == CONN_HEAD ? "the request's head took too long"
                                          : "the body took too long");
        conn_run(c);
    } else {
        conn_close(c);
    }
}

void conn_drain(struct conn *c)
{
    int64_t grace_us = c->loop->now_us + c->loop->server->drain_grace_us;

    /* A client that is about to send on a kept connection would find it reset, and some never
     * repeat a call. So idle connections stay for a moment, in which busy clients come by and are
     * told to close. */
    if (c->state == CONN_IDLE && c->out == NULL && grace_us < c->timer.at_us)
        set_timer(c, grace_us);
    else if (c->state == CONN_STREAM)
        stream_tell_drain(c->stream);
    else if (c->state == CONN_HANDED && c->fin)
        conn_run(c); /* it has most likely gone: no work is done for it that can be saved */
}

bool conn_leave(struct conn *c)
{
    bool whole = c->state != CONN_HEAD && c->state != CONN_BODY && c->state != CONN_ADMIT;

    /* A grant that is on its way names the exchange, so it cannot be answered. */
    if (whole || c->out != NULL ||
        (c->state == CONN_ADMIT && !budget_cancel(c->loop->server->budget, &c->x->claim))) {
        conn_close(c);
        return false;
    }
    conn_refuse(c, 503, "the server is stopping");
    conn_run(c);
    return c->state != CONN_CLOSED;
}
