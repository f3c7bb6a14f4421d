/* SPDX-License-Identifier: Apache-2.0
 * Streams: from the writers' side (any thread, under the lock) and from the loop's. Callbacks are
 * never called under the lock, since writers often hold a lock of their own that the callbacks want
 * too. */
#include "http/stream.h"

#include "http/conn.h"

#include <stdlib.h>

struct http_stream *http_stream_new(struct http_exchange *x, const struct http_answer *head,
                                    const struct http_stream_events *events)
{
    struct http_stream *st = xzalloc(sizeof(*st));

    ASSERT(atomic_exchange(&x->owed, false));
    x->status = head->status;
    x->close |= head->close;
    x->content_type = arena_str(&x->arena, head->content_type);
    x->headers = arena_str(&x->arena, head->headers);
    pthread_mutex_init(&st->lock, NULL);
    st->mail.kind = MAIL_STREAM;
    st->loop = x->loop;
    st->x = x;
    st->events = *events;
    st->max_pending = x->loop->server->opt.stream_max_pending;
    st->chunked = x->head.minor == 1;
    st->posted = true; /* http_stream_start does it: until then it is nobody else's to post */
    return st;
}

void http_stream_start(struct http_stream *st)
{
    loop_post(st->loop, &st->mail);
}

static void append(struct http_stream *st, struct str bytes)
{
    if (st->chunked) {
        static const char hex[] = "0123456789abcdef";
        char size[18];
        size_t at = sizeof(size);

        size[--at] = '\n';
        size[--at] = '\r';
        for (size_t n = bytes.n; n > 0; n >>= 4)
            size[--at] = hex[n & 15];
        buf_add(&st->pending, str_make(size + at, sizeof(size) - at));
    }
    buf_add(&st->pending, bytes);
    if (st->chunked)
        buf_add(&st->pending, STR("\r\n"));
}

static void abandon(struct http_stream *st)
{
    st->gone = true;
    buf_free(&st->pending);
    atomic_store(&st->pending_bytes, 0);
}

bool http_stream_write(struct http_stream *st, struct str bytes)
{
    if (bytes.n == 0) /* an empty chunk would end the body */
        return !stream_is_gone(st);
    pthread_mutex_lock(&st->lock);
    ASSERT(!st->ended);
    bool ok = !st->gone;
    bool post = ok && !st->posted;
    if (ok) {
        size_t before = st->pending.n, waiting = atomic_load(&st->pending_bytes);
        /* The head alone may wait already: what bounds a writer is what it wrote itself. */
        if (waiting == 0 || !st->written || waiting + bytes.n <= st->max_pending)
            append(st, bytes);
        else
            ok = false;
        if (!ok || st->pending.failed) {
            abandon(st); /* the loop finds it so and closes the connection */
            ok = false;
        } else {
            atomic_fetch_add(&st->pending_bytes, st->pending.n - before);
            st->written = true;
        }
        st->posted = true;
    }
    pthread_mutex_unlock(&st->lock);
    if (post)
        loop_post(st->loop, &st->mail);
    return ok;
}

size_t http_stream_pending(const struct http_stream *st)
{
    return atomic_load(&st->pending_bytes);
}

void http_stream_end(struct http_stream *st)
{
    pthread_mutex_lock(&st->lock);
    ASSERT(!st->ended);
    st->ended = true;
    if (!st->gone && st->chunked) {
        buf_add(&st->pending, STR("0\r\n\r\n"));
        atomic_fetch_add(&st->pending_bytes, sizeof("0\r\n\r\n") - 1);
        if (st->pending.failed)
            abandon(st);
    }
    bool post = !st->posted;
    st->posted = true;
    pthread_mutex_unlock(&st->lock);
    if (post)
        loop_post(st->loop, &st->mail);
}

/* ---- the loop's side ---- */

bool stream_is_gone(struct http_stream *st)
{
    pthread_mutex_lock(&st->lock);
    bool gone = st->gone;
    pthread_mutex_unlock(&st->lock);
    return gone;
}

bool stream_is_ended(struct http_stream *st)
{
    pthread_mutex_lock(&st->lock);
    bool ended = st->ended;
    pthread_mutex_unlock(&st->lock);
    return ended;
}

bool stream_take(struct http_stream *st, struct buf *out, bool *last)
{
    pthread_mutex_lock(&st->lock);
    *out = st->pending;
    st->pending = (struct buf){0};
    *last = st->ended;
    pthread_mutex_unlock(&st->lock);
    return out->n > 0;
}

void stream_sent(struct http_stream *st, size_t n)
{
    pthread_mutex_lock(&st->lock);
    size_t before = atomic_load(&st->pending_bytes);
    ASSERT(st->gone || before >= n);
    if (!st->gone)
        atomic_store(&st->pending_bytes, before - n);
    /* Not of the head alone: by the time it is told, the first write may wait again. */
    bool tell = !st->gone && !st->ended && st->written && before > 0 && before == n;
    pthread_mutex_unlock(&st->lock);
    if (tell && st->events.on_writable != NULL)
        st->events.on_writable(st, st->events.ctx);
}

void stream_tell_drain(struct http_stream *st)
{
    if (st->drain_told || st->gone_told || stream_is_ended(st))
        return;
    st->drain_told = true;
    if (st->events.on_drain != NULL)
        st->events.on_drain(st, st->events.ctx);
}

/* Its user has ended it and nothing more will be sent. */
static void settle(struct http_stream *st)
{
    pthread_mutex_lock(&st->lock);
    bool named = st->posted; /* opening that mail comes back here */
    pthread_mutex_unlock(&st->lock);
    if (named)
        return;
    exchange_finish(st->x);
    buf_free(&st->pending);
    pthread_mutex_destroy(&st->lock);
    free(st);
}

static void detach(struct http_stream *st)
{
    if (st->conn == NULL)
        return;
    st->conn->stream = NULL;
    st->conn = NULL;
    atomic_fetch_sub_explicit(&st->loop->streams, 1, memory_order_relaxed);
}

void stream_bound(struct http_stream *st, struct conn *c, size_t unsent)
{
    st->conn = c;
    atomic_fetch_add_explicit(&st->loop->streams, 1, memory_order_relaxed);
    pthread_mutex_lock(&st->lock);
    if (!st->gone)
        atomic_fetch_add(&st->pending_bytes, unsent);
    pthread_mutex_unlock(&st->lock);
    if (st->loop->draining)
        stream_tell_drain(st);
}

void stream_finish(struct http_stream *st)
{
    detach(st);
    settle(st);
}

void stream_lose(struct http_stream *st)
{
    detach(st);
    pthread_mutex_lock(&st->lock);
    abandon(st);
    bool ended = st->ended;
    pthread_mutex_unlock(&st->lock);
    if (ended) {
        settle(st);
    } else if (!st->gone_told) {
        st->gone_told = true;
        if (st->events.on_gone != NULL)
            st->events.on_gone(st, st->events.ctx);
    }
}

void stream_mail(struct http_stream *st)
{
    pthread_mutex_lock(&st->lock);
    st->posted = false;
    pthread_mutex_unlock(&st->lock);
    if (!st->bound) {
        st->bound = true;
        conn_bind_stream(st->x->conn, st);
        return;
    }
    if (st->conn != NULL)
        conn_run(st->conn); /* may free st */
    else if (stream_is_ended(st))
        settle(st);
}
