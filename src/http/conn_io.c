/* SPDX-License-Identifier: Apache-2.0
 * A connection's bytes in and out. Input is looked at in the loop's scratch buffer; what cannot be
 * used yet is stashed, so that a connection that waits holds just that. */
#include "http/conn.h"

#include "http/stream.h"

#include <errno.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

enum { FILL_MIN = 8 * 1024, IOV_MAX_USED = 16 };

struct str conn_window(const struct conn *c)
{
    return str_make(c->loop->scratch + c->window_at, c->window_bytes);
}

void conn_window_take(struct conn *c, size_t n)
{
    ASSERT(n <= c->window_bytes);
    c->window_bytes -= (uint32_t)n;
    c->window_at = c->window_bytes == 0 ? 0 : c->window_at + (uint32_t)n;
}

void conn_window_load(struct conn *c)
{
    if (c->stash == NULL)
        return;
    ASSERT(c->window_bytes == 0);
    memcpy(c->loop->scratch, c->stash, c->stash_bytes);
    c->window_at = 0;
    c->window_bytes = c->stash_bytes;
    free(c->stash);
    c->stash = NULL;
}

void conn_window_save(struct conn *c)
{
    if (c->window_bytes > 0) {
        struct str w = conn_window(c);
        c->stash = xmalloc(w.n);
        memcpy(c->stash, w.p, w.n);
        c->stash_bytes = (uint32_t)w.n;
    }
    c->window_at = c->window_bytes = 0;
}

size_t conn_read(struct conn *c, char *p, size_t room)
{
    ssize_t n;

    if (!c->readable)
        return 0;
    /* What was answered goes out before more is asked for: the read may find the client's end and
     * close. */
    if (c->loop->out.n > 0)
        conn_flush(c, NULL);
    if (c->state == CONN_CLOSED || c->out != NULL)
        return 0;
    do
        n = recv(c->fd, p, room, 0);
    while (n < 0 && errno == EINTR);
    if (n < 0 && errno == EAGAIN) {
        c->readable = false;
        return 0;
    }
    if (n <= 0) {
        conn_close(c);
        return 0;
    }
    /* A short read has emptied the socket, so the next bytes raise an event of their own and the
     * read that would only say EAGAIN is saved. A FIN that has been reported raises none: then read
     * on to the end. */
    if ((size_t)n < room && !c->fin)
        c->readable = false;
    return (size_t)n;
}

bool conn_fill(struct conn *c)
{
    struct loop *l = c->loop;

    if (!c->readable)
        return false;
    if (l->scratch_bytes - c->window_at - c->window_bytes < FILL_MIN) {
        memmove(l->scratch, l->scratch + c->window_at, c->window_bytes);
        c->window_at = 0;
    }
    size_t end = (size_t)c->window_at + c->window_bytes;
    ASSERT(end < l->scratch_bytes);
    size_t n = conn_read(c, l->scratch + end, l->scratch_bytes - end);
    c->window_bytes += (uint32_t)n;
    return n > 0;
}

void conn_free_out(struct conn *c)
{
    while (c->out != NULL) {
        struct out *o = c->out;
        c->out = o->next;
        free(o->p);
        free(o);
    }
    c->out_last = NULL;
}

/* Takes over p, of which the bytes from `at` are unsent. */
static void wait_for_room(struct conn *c, char *p, size_t n, size_t at)
{
    struct out *o = xmalloc(sizeof(*o));

    *o = (struct out){NULL, p, n, at};
    if (c->out_last != NULL)
        c->out_last->next = o;
    else
        c->out = o;
    c->out_last = o;
    if (!c->writing) {
        struct epoll_event ev = {.events = EPOLLIN | EPOLLOUT | EPOLLRDHUP | EPOLLET,
                                 .data.ptr = c};
        c->writing = true; /* stays so: in edge-triggered mode it costs nothing more */
        epoll_ctl(c->loop->epoll_fd, EPOLL_CTL_MOD, c->fd, &ev);
    }
}

static void wait_for_room_copy(struct conn *c, struct str bytes)
{
    char *p = xmalloc(bytes.n);

    memcpy(p, bytes.p, bytes.n);
    wait_for_room(c, p, bytes.n, 0);
}

/* False: the connection was closed. *sent may be 0. */
static bool send_some(struct conn *c, struct iovec *iov, size_t count, size_t *sent)
{
    struct msghdr msg = {.msg_iov = iov, .msg_iovlen = count};
    ssize_t n;

    *sent = 0;
    do
        n = sendmsg(c->fd, &msg, MSG_NOSIGNAL);
    while (n < 0 && errno == EINTR);
    if (n < 0 && errno != EAGAIN) {
        conn_close(c);
        return false;
    }
    if (n > 0) {
        *sent = (size_t)n;
        if (c->stream != NULL)
            stream_sent(c->stream, *sent);
    }
    return true;
}

/* A client that takes nothing for as long as an idle one may stay is no client. States that wait
 * for input have their own time-outs. */
static void watch_output(struct conn *c)
{
    if (c->state == CONN_IDLE || c->state == CONN_CLOSING || c->state == CONN_STREAM)
        timer_set(&c->loop->timers, &c->timer,
                  c->loop->now_us + c->loop->server->opt.idle_timeout_us);
}

void conn_flush(struct conn *c, struct buf *body)
{
    struct loop *l = c->loop;
    struct buf none = {0};
    struct iovec iov[2];
    size_t count = 0, sent = 0;

    if (body == NULL)
        body = &none;
    if (l->out.n > 0)
        iov[count++] = (struct iovec){l->out.p, l->out.n};
    if (body->n > 0)
        iov[count++] = (struct iovec){body->p, body->n};
    if (count > 0 && c->out == NULL && !send_some(c, iov, count, &sent)) {
        buf_clear(&l->out);
        buf_free(body);
        return;
    }
    if (sent < l->out.n)
        wait_for_room_copy(c, str_make(l->out.p + sent, l->out.n - sent));
    sent = sent < l->out.n ? 0 : sent - l->out.n;
    buf_clear(&l->out);
    if (sent < body->n)
        wait_for_room(c, body->p, body->n, sent);
    else
        free(body->p);
    *body = (struct buf){0};
    if (c->out != NULL)
        watch_output(c);
}

static void forget_sent(struct conn *c, size_t sent)
{
    while (sent > 0) {
        struct out *o = c->out;
        ASSERT(o != NULL);
        size_t left = o->n - o->at;
        if (sent < left) {
            o->at += sent;
            return;
        }
        sent -= left;
        c->out = o->next;
        if (c->out == NULL)
            c->out_last = NULL;
        free(o->p);
        free(o);
    }
}

void conn_flush_waiting(struct conn *c)
{
    while (c->out != NULL) {
        struct iovec iov[IOV_MAX_USED];
        size_t count = 0, all = 0, sent;

        for (struct out *o = c->out; o != NULL && count < COUNT(iov); o = o->next) {
            iov[count++] = (struct iovec){o->p + o->at, o->n - o->at};
            all += o->n - o->at;
        }
        if (!send_some(c, iov, count, &sent))
            return;
        if (sent == 0)
            return;
        forget_sent(c, sent);
        watch_output(c);
        if (sent < all)
            return;
    }
    if (c->state == CONN_STREAM)
        timer_set(&c->loop->timers, &c->timer, TIMER_OFF);
}
