/* SPDX-License-Identifier: Apache-2.0 */
#include "api/reader.h"

#include "base/arena.h"
#include "base/clock.h"

#include <pthread.h>
#include <stdlib.h>
#include <sys/resource.h>

enum { THREADS_LOCAL = 2, ASIDE_NICENESS = 10 };
static const int64_t RETRY_US = 100 * US_PER_MS;

struct owned_reader { /* of a thread that is not ours; closed with the readers */
    struct owned_reader *next;
    struct store_reader *reader;
};

struct job_list {
    struct read_job *first, *last;
};

struct readers {
    struct store *store; /* borrowed */
    bool local, aside;
    pthread_t *threads; /* owned */
    unsigned wanted, n_threads;
    pthread_key_t here; /* the calling thread's own struct store_reader */

    pthread_mutex_t lock; /* everything below */
    pthread_cond_t cond, ended;
    unsigned running; /* threads */
    struct job_list jobs;
    struct job_list retries; /* each a fixed time after it came, so the first is the next */
    bool stopping, stopped;
    struct owned_reader *owned;
};

struct readers *readers_new(struct store *store, unsigned threads)
{
    struct readers *rs = xzalloc(sizeof(*rs));
    pthread_condattr_t attr;

    rs->store = store;
    rs->local = store_is_sqlite(store);
    rs->wanted = rs->local ? THREADS_LOCAL : threads;
    rs->threads = xzalloc(rs->wanted * sizeof(*rs->threads));
    pthread_mutex_init(&rs->lock, NULL);
    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    pthread_cond_init(&rs->cond, &attr);
    pthread_cond_init(&rs->ended, &attr);
    pthread_condattr_destroy(&attr);
    ASSERT(pthread_key_create(&rs->here, NULL) == 0);
    return rs;
}

struct readers *readers_new_aside(struct store *store)
{
    struct readers *rs = readers_new(store, 1);

    rs->aside = true;
    rs->wanted = 1;
    return rs;
}

static void append(struct job_list *list, struct read_job *job)
{
    job->next = NULL;
    if (list->first == NULL)
        list->first = job;
    else
        list->last->next = job;
    list->last = job;
}

static struct read_job *pop(struct job_list *list)
{
    struct read_job *job = list->first;

    if (job != NULL)
        list->first = job->next;
    return job;
}

/* Under the lock. */
static struct read_job *next_job(struct readers *rs)
{
    const struct read_job *retry = rs->retries.first;

    if (retry != NULL && (rs->stopping || retry->not_before_us <= clock_mono_us()))
        return pop(&rs->retries);
    return pop(&rs->jobs);
}

static void sleep_until_signal(struct readers *rs)
{
    const struct read_job *retry = rs->retries.first;
    struct timespec until;

    if (retry == NULL) {
        pthread_cond_wait(&rs->cond, &rs->lock);
        return;
    }
    until = (struct timespec){.tv_sec = retry->not_before_us / US_PER_S,
                              .tv_nsec = retry->not_before_us % US_PER_S * 1000};
    pthread_cond_timedwait(&rs->cond, &rs->lock, &until);
}

static struct read_job *take(struct readers *rs)
{
    struct read_job *job;

    pthread_mutex_lock(&rs->lock);
    while ((job = next_job(rs)) == NULL && !rs->stopping)
        sleep_until_signal(rs);
    pthread_mutex_unlock(&rs->lock);
    return job;
}

static void *reader_main(void *arg)
{
    struct readers *rs = arg;
    struct store_reader *r = NULL;
    struct read_job *job;
    struct err e = {0};

    if (rs->aside) /* of the calling thread alone, on Linux; if it is refused, so be it */
        (void)setpriority(PRIO_PROCESS, 0, ASIDE_NICENESS);
    while ((job = take(rs)) != NULL) {
        if (r == NULL)
            r = store_reader_open(rs->store, &e);
        job->run(job, r, &e);
    }
    store_reader_close(r);
    pthread_mutex_lock(&rs->lock);
    rs->running--;
    pthread_cond_signal(&rs->ended);
    pthread_mutex_unlock(&rs->lock);
    return NULL;
}

bool readers_start(struct readers *rs, struct err *e)
{
    bool ok = true;

    pthread_mutex_lock(&rs->lock); /* none ends before it is counted */
    while (ok && rs->n_threads < rs->wanted) {
        ok = pthread_create(&rs->threads[rs->n_threads], NULL, reader_main, rs) == 0;
        rs->n_threads += ok;
        rs->running += ok;
    }
    pthread_mutex_unlock(&rs->lock);
    return ok || err_set(e, ERR_INTERNAL, "cannot start a thread");
}

void readers_push(struct readers *rs, struct read_job *job)
{
    struct err e;
    bool stopped;

    pthread_mutex_lock(&rs->lock);
    stopped = rs->stopped;
    if (!stopped) {
        append(&rs->jobs, job);
        pthread_cond_signal(&rs->cond);
    }
    pthread_mutex_unlock(&rs->lock);
    if (!stopped)
        return;
    err_set(&e, ERR_UNAVAILABLE, "the kernel is stopping");
    job->run(job, NULL, &e);
}

bool readers_retry(struct readers *rs, struct read_job *job)
{
    bool ok;

    pthread_mutex_lock(&rs->lock);
    ok = !rs->stopping;
    if (ok) {
        job->not_before_us = clock_mono_us() + RETRY_US;
        append(&rs->retries, job);
        pthread_cond_signal(&rs->cond);
    }
    pthread_mutex_unlock(&rs->lock);
    return ok;
}

struct store_reader *readers_here(struct readers *rs)
{
    struct store_reader *r;
    struct err e;

    if (!rs->local)
        return NULL;
    r = pthread_getspecific(rs->here);
    if (r != NULL)
        return r;
    r = store_reader_open(rs->store, &e);
    if (r == NULL)
        return NULL;
    struct owned_reader *o = xmalloc(sizeof(*o));
    o->reader = r;
    pthread_mutex_lock(&rs->lock);
    o->next = rs->owned;
    rs->owned = o;
    pthread_mutex_unlock(&rs->lock);
    ASSERT(pthread_setspecific(rs->here, r) == 0);
    return r;
}

bool readers_are_local(const struct readers *rs)
{
    return rs->local;
}

/* Under the lock. False: the time is up. */
static bool wait_for_the_last(struct readers *rs, int64_t deadline_us)
{
    const struct timespec until = {.tv_sec = deadline_us / US_PER_S,
                                   .tv_nsec = deadline_us % US_PER_S * 1000};

    while (rs->running > 0)
        if (pthread_cond_timedwait(&rs->ended, &rs->lock, &until) != 0)
            break;
    return rs->running == 0;
}

bool readers_stop_by(struct readers *rs, int64_t deadline_us)
{
    struct read_job *left;
    struct err e;
    bool over;

    pthread_mutex_lock(&rs->lock);
    rs->stopping = true;
    pthread_cond_broadcast(&rs->cond);
    over = wait_for_the_last(rs, deadline_us);
    pthread_mutex_unlock(&rs->lock);
    if (!over)
        return false;
    for (unsigned i = 0; i < rs->n_threads; i++)
        pthread_join(rs->threads[i], NULL);
    rs->n_threads = 0;
    pthread_mutex_lock(&rs->lock);
    rs->stopped = true;
    left = rs->jobs.first; /* pushed when the last thread had looked for the last time */
    rs->jobs.first = NULL;
    pthread_mutex_unlock(&rs->lock);
    err_set(&e, ERR_UNAVAILABLE, "the kernel is stopping");
    while (left != NULL) {
        struct read_job *job = left;
        left = job->next;
        job->run(job, NULL, &e);
    }
    return true;
}

void readers_stop(struct readers *rs)
{
    bool joined = readers_stop_by(rs, INT64_MAX);

    ASSERT(joined);
}

void readers_free(struct readers *rs)
{
    if (rs == NULL)
        return;
    while (rs->owned != NULL) {
        struct owned_reader *o = rs->owned;
        rs->owned = o->next;
        store_reader_close(o->reader);
        free(o);
    }
    pthread_key_delete(rs->here);
    pthread_cond_destroy(&rs->cond);
    pthread_cond_destroy(&rs->ended);
    pthread_mutex_destroy(&rs->lock);
    free(rs->threads);
    free(rs);
}
