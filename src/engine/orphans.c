/* SPDX-License-Identifier: Apache-2.0
 * One thread, started when it is first needed; idle it holds no connection to the database. */
#include "engine/orphans.h"

#include "base/clock.h"
#include "base/log.h"
#include "engine/executor.h"

#include <stdlib.h>

enum { BATCH = 64 };
static const int64_t PATIENCE_US = US_PER_S;

struct job {
    struct job *next;
    struct uuid spawner;
    struct ticket *waits; /* NULL: nobody waits any longer */
    int64_t came_us;
};

struct orphans {
    struct engine *engine; /* borrowed */
    pthread_t thread;
    pthread_mutex_t lock; /* everything below */
    pthread_cond_t cond;
    struct job *head, **tail; /* the first is the one in hand */
    bool started, stopping;
};

static void answer(struct ticket *waits)
{
    if (waits != NULL)
        ticket_done(waits);
}

/* Takes the tickets of those who have waited long enough. */
static void answer_patient(struct orphans *o)
{
    int64_t now = clock_mono_us();
    bool found = true;

    while (found) {
        struct ticket *waits = NULL;

        pthread_mutex_lock(&o->lock);
        for (struct job *job = o->head; job != NULL && waits == NULL; job = job->next) {
            if (now - job->came_us < PATIENCE_US)
                continue;
            waits = job->waits;
            job->waits = NULL;
        }
        pthread_mutex_unlock(&o->lock);
        found = waits != NULL;
        answer(waits);
    }
}

static bool is_stopping(struct orphans *o)
{
    bool stopping;

    pthread_mutex_lock(&o->lock);
    stopping = o->stopping;
    pthread_mutex_unlock(&o->lock);
    return stopping;
}

/* ---- the work ---- */

/* False: the store does not take it now; the clock's sweep will come by. */
static bool cancel_batch(struct orphans *o, struct command *batch, const struct uuid *ids, size_t n)
{
    memset(batch, 0, n * sizeof(*batch));
    for (size_t i = 0; i < n; i++) {
        batch[i].type = COMMAND_CANCEL;
        batch[i].follow_up = true;
        batch[i].in.cancel.execution_id = ids[i];
        batch[i].in.cancel.cause = CANCEL_BY_PARENT;
    }
    engine_run_all(o->engine, batch, n);
    for (size_t i = 0; i < n; i++)
        if (batch[i].verdict == VERDICT_REFUSED && batch[i].err.code == ERR_UNAVAILABLE)
            return false;
    return true;
}

static bool cancel_all(struct orphans *o, struct store_reader *r, const struct uuid *spawner,
                       struct err *e)
{
    struct command *batch = xmalloc(BATCH * sizeof(*batch));
    struct uuid after = {{0}};
    struct arena arena = {0};
    bool ok = true;

    for (size_t n = BATCH; ok && n == BATCH && !is_stopping(o);) {
        struct uuid *ids;

        arena_reset(&arena);
        ok = store_live_subagents(r, spawner, &after, BATCH, &arena, &ids, &n, e);
        if (!ok || n == 0)
            break;
        after = ids[n - 1];
        if (!cancel_batch(o, batch, ids, n))
            break;
        answer_patient(o);
    }
    arena_free(&arena);
    free(batch);
    return ok;
}

static void work(struct orphans *o, struct store_reader **r, const struct uuid *spawner)
{
    static struct log_limit limit;
    struct err e;

    if (*r == NULL)
        *r = store_reader_open(o->engine->store, &e);
    if (*r != NULL && cancel_all(o, *r, spawner, &e))
        return;
    atomic_fetch_add(&o->engine->stats.worker_errors, 1);
    if (log_allowed(&limit, 6))
        log_event(LOG_WARN, "worker.failed", {"worker", STR("subagents")},
                  {"error", str_of(e.message)});
    store_reader_close(*r);
    *r = NULL;
}

/* ---- the thread ---- */

/* False: it is time to end. */
static bool take(struct orphans *o, struct store_reader **r, struct uuid *spawner)
{
    bool stopping;

    pthread_mutex_lock(&o->lock);
    while (o->head == NULL && !o->stopping) {
        if (*r != NULL) {
            pthread_mutex_unlock(&o->lock);
            store_reader_close(*r);
            *r = NULL;
            pthread_mutex_lock(&o->lock);
            continue;
        }
        pthread_cond_wait(&o->cond, &o->lock);
    }
    stopping = o->stopping;
    if (!stopping)
        *spawner = o->head->spawner;
    pthread_mutex_unlock(&o->lock);
    return !stopping;
}

static void drop_first(struct orphans *o)
{
    struct job *job;

    pthread_mutex_lock(&o->lock);
    job = o->head;
    o->head = job->next;
    if (o->head == NULL)
        o->tail = &o->head;
    pthread_mutex_unlock(&o->lock);
    answer(job->waits);
    free(job);
}

static void *orphans_main(void *arg)
{
    struct orphans *o = arg;
    struct store_reader *r = NULL;
    struct uuid spawner;

    while (take(o, &r, &spawner)) {
        work(o, &r, &spawner);
        drop_first(o);
    }
    store_reader_close(r);
    return NULL;
}

void orphans_cancel(struct orphans *o, const struct uuid *spawner, struct ticket *waits)
{
    struct job *job = xzalloc(sizeof(*job));

    job->spawner = *spawner;
    job->waits = waits;
    job->came_us = clock_mono_us();
    pthread_mutex_lock(&o->lock);
    if (!o->stopping && !o->started)
        o->started = pthread_create(&o->thread, NULL, orphans_main, o) == 0;
    if (o->stopping || !o->started) {
        pthread_mutex_unlock(&o->lock);
        free(job);
        answer(waits);
        return;
    }
    *o->tail = job;
    o->tail = &job->next;
    pthread_cond_signal(&o->cond);
    pthread_mutex_unlock(&o->lock);
}

/* ---- life ---- */

struct orphans *orphans_new(struct engine *en)
{
    struct orphans *o = xzalloc(sizeof(*o));

    o->engine = en;
    o->tail = &o->head;
    pthread_mutex_init(&o->lock, NULL);
    pthread_cond_init(&o->cond, NULL);
    return o;
}

void orphans_stop(struct orphans *o)
{
    bool started;

    pthread_mutex_lock(&o->lock);
    o->stopping = true;
    started = o->started;
    o->started = false;
    pthread_cond_broadcast(&o->cond);
    pthread_mutex_unlock(&o->lock);
    if (started)
        pthread_join(o->thread, NULL);
    while (o->head != NULL)
        drop_first(o);
}

void orphans_free(struct orphans *o)
{
    if (o == NULL)
        return;
    pthread_cond_destroy(&o->cond);
    pthread_mutex_destroy(&o->lock);
    free(o);
}
