/* SPDX-License-Identifier: Apache-2.0
 * Reading a request's body: known length or chunked, within its limit, its time and the memory that
 * all share. */
#include "http/conn.h"

#include "base/clock.h"

enum {
    GROWTH_MIN = 8 * 1024,
    READ_MAX = 128 * 1024, /* in one step, so that other connections have their turn */
    TIME_UNIT = 10 * 1024 * 1024,
};

static bool is_chunked(const struct http_exchange *x)
{
    return x->head.chunked;
}

/* Progress within the idle time, and all of it within the whole: so much for each 10 MiB. */
static void watch_body(struct conn *c)
{
    const struct http_options *opt = &c->loop->server->opt;
    struct http_exchange *x = c->x;
    uint64_t bytes = is_chunked(x) ? x->body_memory.n : x->head.content_length;
    int64_t units = bytes <= TIME_UNIT ? 1 : (int64_t)((bytes + TIME_UNIT - 1) / TIME_UNIT);
    int64_t end_us = x->body_started_us + units * opt->body_total_timeout_us;
    int64_t idle_us = c->loop->now_us + opt->body_idle_timeout_us;

    timer_set(&c->loop->timers, &c->timer, idle_us < end_us ? idle_us : end_us);
}

static void wait_for_budget(struct conn *c)
{
    c->state = CONN_ADMIT;
    c->x->body_waits_us = c->loop->now_us;
    timer_set(&c->loop->timers, &c->timer, TIMER_OFF);
}

static bool resize(struct conn *c, size_t bytes)
{
    if (body_resize(&c->x->body_memory, bytes))
        return true;
    conn_refuse(c, 500, "no memory for the body");
    return false;
}

static void start_reading(struct conn *c)
{
    struct http_exchange *x = c->x;

    c->state = CONN_BODY;
    x->body_started_us = c->loop->now_us;
    if (x->wants_continue)
        buf_add(&c->loop->out, STR("HTTP/1.1 100 Continue\r\n\r\n"));
    x->wants_continue = false;
    watch_body(c);
}

void conn_body_begin(struct conn *c)
{
    struct http_exchange *x = c->x;
    struct str w = conn_window(c);
    size_t bytes = (size_t)x->head.content_length;

    x->wants_continue = x->head.expect_continue && w.n == 0;
    if (is_chunked(x)) {
        x->chunks.room = c->loop->server->opt.max_body_bytes;
        start_reading(c);
    } else if (w.n >= bytes) { /* all here, or none announced: the usual case */
        if (bytes > 0) {
            char *p = arena_alloc(&x->arena, bytes);
            memcpy(p, w.p, bytes);
            x->body = str_make(p, bytes);
            conn_window_take(c, bytes);
        }
        conn_request_ready(c);
    } else if (bytes > BODY_SMALL_BYTES &&
               !budget_take(c->loop->server->budget, &x->claim, bytes, false)) {
        wait_for_budget(c);
    } else if (resize(c, bytes)) {
        start_reading(c);
    }
}

void conn_body_granted(struct conn *c)
{
    struct http_exchange *x = c->x;

    budget_taken(c->loop->server->budget, &x->claim);
    if (c->state == CONN_CLOSED) { /* the grant and the client's leaving crossed */
        c->x = NULL;
        exchange_drop(x);
        loop_bury(c->loop, c);
        return;
    }
    c->state = CONN_BODY;
    if (is_chunked(x)) {
        x->body_started_us +=
            c->loop->now_us - x->body_waits_us; /* our waiting is not the client's time */
        if (resize(c, x->body_wanted))
            watch_body(c);
    } else if (resize(c, (size_t)x->head.content_length)) {
        start_reading(c);
    }
    conn_run(c);
}

/* Room for `need` bytes in all. False: not now (the state says why). */
static bool grow(struct conn *c, size_t need)
{
    struct http_exchange *x = c->x;
    size_t max = c->loop->server->opt.max_body_bytes;
    size_t to = 2 * x->body_memory.cap;

    if (to < GROWTH_MIN)
        to = GROWTH_MIN;
    if (to < need)
        to = need;
    if (to > max)
        to = max;
    if (to > BODY_SMALL_BYTES && !budget_take(c->loop->server->budget, &x->claim, to, true)) {
        x->body_wanted = to;
        wait_for_budget(c);
        return false;
    }
    return resize(c, to);
}

/* The body is complete and grows no more. */
static void give_back_excess(struct conn *c)
{
    struct body *b = &c->x->body_memory;

    size_t holds = body_resize(b, b->n) ? b->n : b->cap;
    budget_settle(c->loop->server->budget, &c->x->claim, holds);
}

static bool step_chunked(struct conn *c)
{
    struct http_exchange *x = c->x;
    struct body *b = &x->body_memory;

    if (c->window_bytes == 0 && !conn_fill(c))
        return false;
    struct str w = conn_window(c);
    /* Made before decoding, since what was decoded cannot be put back. No more data than the window
     * can come of it, and none beyond the limit. */
    size_t max = c->loop->server->opt.max_body_bytes;
    size_t need = w.n < max - b->n ? b->n + w.n : max;
    if (need > b->cap && !grow(c, need))
        return c->state != CONN_ADMIT;
    size_t used;
    struct str data = STR_NONE;
    enum chunk verdict = chunked_next(&x->chunks, w, &used, &data);
    if (verdict == CHUNK_DATA) {
        memcpy(b->p + b->n, data.p, data.n);
        b->n += data.n;
    }
    conn_window_take(c, used);
    watch_body(c);
    if (verdict == CHUNK_REFUSED) {
        conn_refuse(c, x->chunks.status,
                    x->chunks.status == 413 ? http_too_large_message(x) : x->chunks.message);
    } else if (verdict == CHUNK_DONE) {
        if (x->claim.held > 0)
            give_back_excess(c);
        x->body = str_make(b->p, b->n);
        conn_request_ready(c);
    }
    return true;
}

static bool step_known(struct conn *c)
{
    struct http_exchange *x = c->x;
    struct body *b = &x->body_memory;
    size_t left = (size_t)x->head.content_length - b->n;
    struct str w = conn_window(c);
    size_t n = w.n < left ? w.n : left;

    if (n > 0) {
        memcpy(b->p + b->n, w.p, n);
        conn_window_take(c, n);
    } else {
        n = conn_read(c, b->p + b->n, left < READ_MAX ? left : READ_MAX);
        if (n == 0)
            return false;
    }
    b->n += n;
    watch_body(c);
    if (n == left) {
        x->body = str_make(b->p, b->n);
        conn_request_ready(c);
    }
    return true;
}

bool conn_body_step(struct conn *c)
{
    conn_window_load(c);
    return is_chunked(c->x) ? step_chunked(c) : step_known(c);
}
