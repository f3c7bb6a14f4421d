/* SPDX-License-Identifier: Apache-2.0
 * Starting, draining and stopping a server. */
#include "http/server.h"

#include "http/budget.h"
#include "http/exchange.h"
#include "http/loop.h"

#include "base/clock.h"

#include <signal.h>
#include <stddef.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

#define DEFAULT(field, value) ((field) = (field) == 0 ? (value) : (field))

static void fill_defaults(struct http_options *o)
{
    long cores = sysconf(_SC_NPROCESSORS_ONLN);
    unsigned fit = listen_raise_file_limit();

    DEFAULT(o->threads, cores > 1 ? (unsigned)(cores + 1) / 2 : 1);
    DEFAULT(o->max_head_bytes, 16 * 1024);
    DEFAULT(o->max_body_bytes, 10 * 1024 * 1024);
    DEFAULT(o->body_budget, 8 * o->max_body_bytes);
    DEFAULT(o->head_timeout_us, 10 * US_PER_S);
    DEFAULT(o->body_idle_timeout_us, 10 * US_PER_S);
    DEFAULT(o->idle_timeout_us, 75 * US_PER_S);
    DEFAULT(o->body_total_timeout_us, 60 * US_PER_S);
    DEFAULT(o->stream_max_pending, 1024 * 1024);
    DEFAULT(o->max_connections, fit);
    DEFAULT(o->spare_idle_us, 5 * US_PER_S);
    if (o->max_head_bytes > HEAD_BYTES_MAX) /* positions in a head are 16 bits */
        o->max_head_bytes = HEAD_BYTES_MAX;
}

/* Under the budget's lock, on any loop's thread. */
static void budget_granted(struct claim *claim)
{
    struct http_exchange *x =
        (struct http_exchange *)(void *)((char *)claim - offsetof(struct http_exchange, claim));

    loop_post(x->loop, &x->budget_mail);
}

struct http_server *http_server_new(const struct http_options *opt, struct err *e)
{
    struct http_server *s = xzalloc(sizeof(*s));
    pthread_condattr_t attr;

    ASSERT(opt->on_request != NULL);
    s->opt = *opt;
    fill_defaults(&s->opt);
    s->drain_grace_us = 200 * US_PER_MS;
    s->budget = budget_new(s->opt.body_budget, s->opt.max_body_bytes, budget_granted);
    pthread_mutex_init(&s->lock, NULL);
    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    pthread_cond_init(&s->ended, &attr);
    pthread_condattr_destroy(&attr);
    s->loops = xzalloc(s->opt.threads * sizeof(struct loop *));
    while (s->loop_count < s->opt.threads) {
        int fd = listen_open(s->opt.listen_addr, &s->port, s->opt.threads > 1, e);
        struct loop *l = fd < 0 ? NULL : loop_new(s, fd, e);
        if (l == NULL) {
            http_server_free(s);
            return NULL;
        }
        s->loops[s->loop_count++] = l;
    }
    return s;
}

uint16_t http_server_port(const struct http_server *s)
{
    return s->port;
}

bool http_server_start(struct http_server *s, struct err *e)
{
    sigset_t all, before;

    /* Signals are for the thread that started us. */
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    s->started = true;
    int rc = 0;
    for (unsigned i = 0; i < s->loop_count && rc == 0; i++) {
        pthread_mutex_lock(&s->lock);
        rc = pthread_create(&s->loops[i]->started_thread, NULL, loop_main, s->loops[i]);
        s->running += rc == 0;
        s->loops[i]->has_thread = rc == 0;
        pthread_mutex_unlock(&s->lock);
    }
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (rc == 0)
        return true;
    http_server_stop(s, 0);
    return err_set(e, ERR_UNAVAILABLE, "cannot start an HTTP thread: %s", strerror(rc));
}

static void set_and_wake(struct http_server *s, atomic_bool *flag)
{
    if (atomic_exchange(flag, true))
        return;
    for (unsigned i = 0; i < s->loop_count; i++)
        loop_wake(s->loops[i]);
}

void http_server_drain(struct http_server *s)
{
    set_and_wake(s, &s->draining);
}

void http_server_stop(struct http_server *s, int64_t deadline_mono_us)
{
    struct timespec until = {.tv_sec = deadline_mono_us / US_PER_S,
                             .tv_nsec = deadline_mono_us % US_PER_S * 1000};

    if (s->stopped)
        return;
    s->stopped = true;
    http_server_drain(s);
    pthread_mutex_lock(&s->lock);
    while (s->running > 0 && pthread_cond_timedwait(&s->ended, &s->lock, &until) == 0)
        ;
    pthread_mutex_unlock(&s->lock);
    set_and_wake(s, &s->leaving);
    for (unsigned i = 0; i < s->loop_count; i++)
        if (s->loops[i]->has_thread)
            pthread_join(s->loops[i]->started_thread, NULL);
}

/* Answers that came after the loops had left. Opening one may post another, perhaps to a loop
 * before. */
static void open_late_mail(struct http_server *s)
{
    for (bool more = true; more;) {
        more = false;
        for (unsigned i = 0; i < s->loop_count; i++) {
            more |= atomic_load(&s->loops[i]->mailbox) != NULL;
            loop_open_mail(s->loops[i]);
        }
    }
}

void http_server_free(struct http_server *s)
{
    if (s == NULL)
        return;
    ASSERT(!s->started || s->stopped);
    open_late_mail(s);
    for (unsigned i = 0; i < s->loop_count; i++)
        loop_free(s->loops[i]);
    free(s->loops);
    budget_free(s->budget);
    pthread_cond_destroy(&s->ended);
    pthread_mutex_destroy(&s->lock);
    free(s);
}

void http_server_stats(struct http_server *s, struct http_stats *out)
{
    *out = (struct http_stats){.body_budget_used = budget_used(s->budget)};
    for (unsigned i = 0; i < s->loop_count; i++) {
        struct loop *l = s->loops[i];
        out->connections += atomic_load_explicit(&l->connections, memory_order_relaxed);
        out->accepted += atomic_load_explicit(&l->accepted, memory_order_relaxed);
        out->requests += atomic_load_explicit(&l->requests, memory_order_relaxed);
        out->streams += atomic_load_explicit(&l->streams, memory_order_relaxed);
    }
}
