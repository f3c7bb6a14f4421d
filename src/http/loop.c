/* SPDX-License-Identifier: Apache-2.0
 * The turn of a loop, its mailbox and its listening socket. */
#include "http/loop.h"

#include "http/conn.h"
#include "http/stream.h"

#include "base/clock.h"

#include <errno.h>
#include <poll.h>
#include <stddef.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

enum {
    EVENTS_MAX = 256,
    ACCEPT_MAX = 128, /* in one turn */
    SCRATCH_ROOM = 16 * 1024,
};
#define ACCEPT_RETRY_US (100 * US_PER_MS)
#define OUT_KEPT_MAX (256 * 1024)
/* For who is told that the server stops to read it, before the connection is closed. */
#define LEAVE_GRACE_US (500 * US_PER_MS)

#define CONTAINER(ptr, type, member) ((type *)((char *)(ptr)-offsetof(type, member)))

/* ---- birth and death ---- */

static bool watch(struct loop *l, int fd, void *tag)
{
    struct epoll_event ev = {.events = EPOLLIN | EPOLLET};

    ev.data.ptr = tag;
    return epoll_ctl(l->epoll_fd, EPOLL_CTL_ADD, fd, &ev) == 0;
}

struct loop *loop_new(struct http_server *s, int listen_fd, struct err *e)
{
    struct loop *l = xzalloc(sizeof(*l));

    l->server = s;
    l->listen_fd = listen_fd;
    l->accept_timer.at_us = l->leave_at_us = TIMER_OFF;
    l->max_connections = s->opt.max_connections / s->opt.threads;
    if (l->max_connections == 0)
        l->max_connections = 1;
    l->epoll_fd = epoll_create1(EPOLL_CLOEXEC);
    l->wake_fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    l->scratch_bytes = s->opt.max_head_bytes + SCRATCH_ROOM;
    l->scratch = xmalloc(l->scratch_bytes);
    l->now_us = clock_mono_us();
    if (l->epoll_fd < 0 || l->wake_fd < 0 || !watch(l, l->wake_fd, &l->wake_fd) ||
        !watch(l, listen_fd, &l->listen_fd)) {
        err_set(e, ERR_UNAVAILABLE, "epoll: %s", strerror(errno));
        loop_free(l);
        return NULL;
    }
    return l;
}

static void free_buried(struct loop *l)
{
    struct conn **at = &l->graveyard;

    while (*at != NULL) {
        struct conn *c = *at;
        if (c->queued) { /* still named by the list of the next turn */
            at = &c->next;
            continue;
        }
        *at = c->next;
        free(c);
    }
}

void loop_free(struct loop *l)
{
    if (l == NULL)
        return;
    for (struct conn *c = l->again; c != NULL; c = c->again_next)
        c->queued = false;
    free_buried(l);
    ASSERT(l->conns == NULL); /* http.h: every exchange must have been answered */
    exchange_pool_free(l);
    timers_free(&l->timers);
    buf_free(&l->out);
    free(l->scratch);
    if (l->listen_fd >= 0)
        close(l->listen_fd);
    if (l->wake_fd >= 0)
        close(l->wake_fd);
    if (l->epoll_fd >= 0)
        close(l->epoll_fd);
    free(l);
}

bool loop_is_here(const struct loop *l)
{
    return pthread_equal(l->thread, pthread_self()) != 0;
}

/* ---- the mailbox ---- */

void loop_wake(struct loop *l)
{
    static const uint64_t one = 1;

    atomic_fetch_add_explicit(&l->wakes, 1, memory_order_relaxed);
    while (write(l->wake_fd, &one, sizeof(one)) < 0 && errno == EINTR)
        ;
}

/* Post, then look whether the loop sleeps; the loop says that it sleeps, then looks for mail. Both
 * in sequentially consistent order, so at least one of the two sees the other. */
void loop_post(struct loop *l, struct mail *m)
{
    struct mail *head = atomic_load_explicit(&l->mailbox, memory_order_relaxed);

    do
        m->next = head;
    while (!atomic_compare_exchange_weak(&l->mailbox, &head, m));
    if (atomic_load(&l->asleep) && atomic_exchange(&l->asleep, false))
        loop_wake(l);
}

static bool may_sleep(struct loop *l)
{
    if (l->again != NULL || l->accept_more)
        return false;
    atomic_store(&l->asleep, true);
    if (atomic_load(&l->mailbox) == NULL)
        return true;
    atomic_store(&l->asleep, false);
    return false;
}

static void open_one(struct mail *m)
{
    switch (m->kind) {
    case MAIL_ANSWER:
        conn_mail(CONTAINER(m, struct http_exchange, mail)->conn, m->kind);
        return;
    case MAIL_BUDGET:
        conn_mail(CONTAINER(m, struct http_exchange, budget_mail)->conn, m->kind);
        return;
    case MAIL_RESUME:
        exchange_resume(CONTAINER(m, struct resume, mail));
        return;
    case MAIL_STREAM:
        stream_mail(CONTAINER(m, struct http_stream, mail));
        return;
    }
}

void loop_open_mail(struct loop *l)
{
    struct mail *m = NULL;

    if (atomic_load_explicit(&l->mailbox, memory_order_relaxed) != NULL)
        m = atomic_exchange_explicit(&l->mailbox, NULL, memory_order_acquire);
    struct mail *oldest = NULL;
    while (m != NULL) {
        struct mail *next = m->next;
        m->next = oldest;
        oldest = m;
        m = next;
    }
    while (oldest != NULL) {
        m = oldest;
        oldest = m->next; /* opening it may free it, or post it anew */
        open_one(m);
    }
}

/* ---- accepting ---- */

/* There is no file or memory for one more connection. The listening socket would not tell again
 * about those that wait, so come back: when a connection has closed, or after a while. */
static void accept_later(struct loop *l, const char *reason)
{
    timer_set(&l->timers, &l->accept_timer, l->now_us + ACCEPT_RETRY_US);
    if (log_allowed(&l->accept_log, 6))
        log_event(LOG_WARN, "http.accept_failed", {"reason", str_of(reason)},
                  {"connections", log_int((int64_t)atomic_load(&l->connections))});
}

static bool is_full(struct loop *l)
{
    return atomic_load_explicit(&l->connections, memory_order_relaxed) >= l->max_connections;
}

/* Nobody is turned out while nobody waits to come in. */
static bool somebody_waits(const struct loop *l)
{
    struct pollfd p = {.fd = l->listen_fd, .events = POLLIN};

    return poll(&p, 1, 0) > 0;
}

void loop_accept(struct loop *l)
{
    l->accept_more = false;
    for (int i = 0; i < ACCEPT_MAX && l->listen_fd >= 0; i++) {
        if (is_full(l)) {
            if (!somebody_waits(l))
                return;
            if (!conn_idle_make_room(l)) {
                accept_later(l, "as many connections as there may be");
                return;
            }
        }
        int fd = accept4(l->listen_fd, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);
        if (fd >= 0) {
            struct conn *c = conn_new(l, fd);
            if (c != NULL && l->draining)
                conn_drain(c);
            continue;
        }
        if (errno == EAGAIN)
            return;
        if (errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM) {
            if (conn_idle_make_room(l))
                continue;
            accept_later(l, strerror(errno));
            return;
        }
        /* The rest are faults of one connection that died in the queue. */
    }
    l->accept_more = true;
}

void loop_file_freed(struct loop *l)
{
    if (l->accept_timer.at_us != TIMER_OFF && l->accept_timer.at_us > l->now_us)
        timer_set(&l->timers, &l->accept_timer, l->now_us);
}

/* ---- the turn ---- */

void loop_again(struct loop *l, struct conn *c)
{
    if (c->queued)
        return;
    c->queued = true;
    c->again_next = l->again;
    l->again = c;
}

void loop_bury(struct loop *l, struct conn *c)
{
    ASSERT(c->state == CONN_CLOSED && c->x == NULL && c->stream == NULL);
    if (c->prev != NULL)
        c->prev->next = c->next;
    else
        l->conns = c->next;
    if (c->next != NULL)
        c->next->prev = c->prev;
    c->next = l->graveyard;
    l->graveyard = c;
}

static int wait_ms(const struct loop *l)
{
    int64_t next_us = timers_next(&l->timers);

    if (next_us > l->leave_at_us)
        next_us = l->leave_at_us;
    if (next_us == TIMER_OFF)
        return -1;
    int64_t ms =
        (next_us - l->now_us + US_PER_MS - 1) / US_PER_MS; /* up: to wake early is to wake twice */
    return ms < 0 ? 0 : ms > 60000 ? 60000 : (int)ms;
}

static void run_again(struct loop *l)
{
    struct conn *list = l->again;

    l->again = NULL;
    while (list != NULL) {
        struct conn *c = list;
        list = c->again_next;
        c->queued = false;
        conn_run(c);
    }
}

static void run_timers(struct loop *l)
{
    struct timer *t;

    while ((t = timers_take(&l->timers, l->now_us)) != NULL) {
        if (t == &l->accept_timer)
            loop_accept(l);
        else
            conn_timeout(CONTAINER(t, struct conn, timer));
    }
}

static void begin_drain(struct loop *l)
{
    l->draining = true;
    do /* who was let in by the kernel has a right to an answer */
        loop_accept(l);
    while (l->accept_more);
    close(l->listen_fd);
    l->listen_fd = -1;
    timer_remove(&l->timers, &l->accept_timer);
    for (struct conn *c = l->conns, *next; c != NULL; c = next) {
        next = c->next;
        conn_drain(c);
    }
}

static void run_events(struct loop *l, const struct epoll_event *events, int n)
{
    for (int i = 0; i < n; i++) {
        void *tag = events[i].data.ptr;
        if (tag == &l->listen_fd)
            loop_accept(l);
        else if (tag != &l->wake_fd) /* edge-triggered, its count is never read: a write is an event
                                        all the same */
            conn_event(tag, events[i].events);
    }
}

static void turn(struct loop *l)
{
    struct epoll_event events[EVENTS_MAX];

    int n = epoll_wait(l->epoll_fd, events, EVENTS_MAX, may_sleep(l) ? wait_ms(l) : 0);
    atomic_store_explicit(&l->asleep, false, memory_order_relaxed);
    l->now_us = clock_mono_us();
    atomic_fetch_add_explicit(&l->turns, 1, memory_order_relaxed);
    if (l->accept_more)
        loop_accept(l);
    run_events(l, events, n);
    loop_open_mail(l);
    run_again(l);
    if (!l->draining && atomic_load(&l->server->draining))
        begin_drain(l);
    run_timers(l);
    free_buried(l);
    if (l->out.cap > OUT_KEPT_MAX)
        buf_free(&l->out);
}

/* Every connection is closed, but those of requests that are not whole yet: they are answered. */
static void leave(struct loop *l)
{
    bool told = false;

    l->now_us = clock_mono_us();
    for (struct conn *c = l->conns, *next; c != NULL; c = next) {
        next = c->next;
        told |= c->state != CONN_CLOSED && conn_leave(c);
    }
    l->leave_at_us = l->now_us + LEAVE_GRACE_US;
    while (told && l->now_us < l->leave_at_us && atomic_load(&l->connections) > 0)
        turn(l);
    for (struct conn *c = l->conns, *next; c != NULL; c = next) {
        next = c->next;
        if (c->state != CONN_CLOSED)
            conn_close(c);
    }
    free_buried(l);
}

void *loop_main(void *loop)
{
    struct loop *l = loop;
    struct http_server *s = l->server;

    l->thread = pthread_self();
    while (!atomic_load(&s->leaving) && !(l->draining && l->conns == NULL))
        turn(l);
    leave(l);
    pthread_mutex_lock(&s->lock);
    s->running--;
    pthread_cond_broadcast(&s->ended);
    pthread_mutex_unlock(&s->lock);
    return NULL;
}
