/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/fork_job.h"

#include "base/clock.h"
#include "base/log.h"
#include "engine/clock.h"
#include "engine/executor.h"
#include "engine/fork_lanes.h"
#include "engine/fork_run.h"

#include <errno.h>
#include <stdlib.h>

enum lane_kind { LANE_SMALL, LANE_LARGE, LANES };
enum {
    SMALL_EVENTS = 5000, /* a fork at most that far into its source is a small one */
};

struct lane {
    struct fork_lanes *all; /* borrowed */
    struct queue_node *head, **tail;
    pthread_t workers[FORKS_MAX];
    unsigned max_workers, n_workers, n_running, n_idle, n_queued;
    pthread_cond_t came;
};

struct fork_lanes {
    struct engine *engine; /* borrowed */
    atomic_bool stopping;
    pthread_mutex_t lock; /* everything below */
    pthread_cond_t quiet; /* a worker has ended */
    struct lane lanes[LANES];
};

/* ---- the threads ---- */

/* Under the lock. */
static struct fork_job *pop(struct lane *lane)
{
    struct queue_node *node = lane->head;

    if (node == NULL)
        return NULL;
    lane->head = node->next;
    if (lane->head == NULL)
        lane->tail = &lane->head;
    lane->n_queued--;
    return (struct fork_job *)node;
}

/* NULL: it is time to end. An idle worker holds no connection to the database. */
static struct fork_job *take(struct lane *lane, struct store_reader **r)
{
    struct fork_lanes *f = lane->all;
    struct fork_job *job;

    pthread_mutex_lock(&f->lock);
    while ((job = pop(lane)) == NULL && !atomic_load(&f->stopping)) {
        if (*r != NULL) {
            pthread_mutex_unlock(&f->lock);
            store_reader_close(*r);
            *r = NULL;
            pthread_mutex_lock(&f->lock);
            continue;
        }
        lane->n_idle++;
        pthread_cond_wait(&lane->came, &f->lock);
        lane->n_idle--;
    }
    pthread_mutex_unlock(&f->lock);
    return job;
}

static void work(struct fork_lanes *f, struct store_reader **r, struct fork_job *job)
{
    static struct log_limit limit;

    job->ok = false;
    if (*r == NULL)
        *r = store_reader_open(f->engine->store, &job->err);
    if (*r != NULL)
        fork_run(f->engine, *r, job, &f->stopping);
    if (job->ok || job->err.code < ERR_INTERNAL || atomic_load(&f->stopping))
        return;
    atomic_fetch_add(&f->engine->stats.worker_errors, 1);
    if (log_allowed(&limit, 6))
        log_event(LOG_WARN, "worker.failed", {"worker", STR("forks")},
                  {"error", str_of(job->err.message)});
    store_reader_close(*r); /* who knows what it is good for */
    *r = NULL;
}

static void *worker_main(void *arg)
{
    struct lane *lane = arg;
    struct fork_lanes *f = lane->all;
    struct store_reader *r = NULL;
    struct fork_job *job;

    (void)pthread_setname_np(pthread_self(), "rebuno-fork");
    while ((job = take(lane, &r)) != NULL) {
        work(f, &r, job);
        job->done(job);
    }
    store_reader_close(r);
    pthread_mutex_lock(&f->lock);
    lane->n_running--;
    pthread_cond_signal(&f->quiet);
    pthread_mutex_unlock(&f->lock);
    return NULL;
}

/* Under the lock. False: there is nobody to do the work. */
static bool staffed(struct lane *lane)
{
    if (lane->n_queued > lane->n_idle && lane->n_workers < lane->max_workers &&
        pthread_create(&lane->workers[lane->n_workers], NULL, worker_main, lane) == 0)
        lane->n_running = ++lane->n_workers; /* none ends before the stop */
    return lane->n_workers > 0;
}

static void refuse(struct fork_job *job, const char *why)
{
    job->ok = job->unknown = false;
    err_set(&job->err, ERR_UNAVAILABLE, "%s", why);
    job->done(job);
}

void engine_fork(struct engine *en, struct fork_job *job)
{
    struct fork_lanes *f = en->forks;
    struct lane *lane = &f->lanes[job->at_seq <= SMALL_EVENTS ? LANE_SMALL : LANE_LARGE];
    bool taken = false;

    pthread_mutex_lock(&f->lock);
    if (!atomic_load(&f->stopping)) {
        job->node.next = NULL;
        *lane->tail = &job->node;
        lane->tail = &job->node.next;
        lane->n_queued++;
        taken = staffed(lane);
        if (taken)
            pthread_cond_signal(&lane->came);
        else
            (void)pop(lane); /* no worker ever was, so it is the only one */
    }
    pthread_mutex_unlock(&f->lock);
    if (!taken)
        refuse(job, "the kernel makes no forks now; try again later");
}

/* ---- life ---- */

struct fork_lanes *fork_lanes_new(struct engine *en)
{
    struct fork_lanes *f = xzalloc(sizeof(*f));

    f->engine = en;
    pthread_mutex_init(&f->lock, NULL);
    cond_init_mono(&f->quiet);
    for (int i = 0; i < LANES; i++) {
        f->lanes[i].all = f;
        f->lanes[i].tail = &f->lanes[i].head;
        pthread_cond_init(&f->lanes[i].came, NULL);
    }
    f->lanes[LANE_SMALL].max_workers = en->connections.small_forks;
    f->lanes[LANE_LARGE].max_workers = en->connections.large_forks;
    return f;
}

static void answer_queued(struct fork_lanes *f)
{
    for (int i = 0; i < LANES; i++) {
        struct fork_job *job;

        do {
            pthread_mutex_lock(&f->lock);
            job = pop(&f->lanes[i]);
            pthread_cond_broadcast(&f->lanes[i].came);
            pthread_mutex_unlock(&f->lock);
            if (job != NULL)
                refuse(job, "the kernel is stopping; nothing was forked");
        } while (job != NULL);
    }
}

/* Under the lock. */
static bool is_quiet(const struct fork_lanes *f)
{
    return f->lanes[LANE_SMALL].n_running + f->lanes[LANE_LARGE].n_running == 0;
}

static void join(struct lane *lane)
{
    for (unsigned i = 0; i < lane->n_workers; i++)
        pthread_join(lane->workers[i], NULL);
    lane->n_workers = 0;
}

bool fork_lanes_stop(struct fork_lanes *f, int64_t until_us)
{
    const struct timespec ts = {until_us / US_PER_S, until_us % US_PER_S * 1000};
    bool quiet;

    pthread_mutex_lock(&f->lock);
    atomic_store(&f->stopping, true);
    pthread_mutex_unlock(&f->lock);
    answer_queued(f);
    pthread_mutex_lock(&f->lock);
    while (!is_quiet(f))
        if (pthread_cond_timedwait(&f->quiet, &f->lock, &ts) == ETIMEDOUT)
            break;
    quiet = is_quiet(f);
    pthread_mutex_unlock(&f->lock);
    if (quiet)
        for (int i = 0; i < LANES; i++)
            join(&f->lanes[i]);
    return quiet;
}

void fork_lanes_free(struct fork_lanes *f)
{
    if (f == NULL)
        return;
    for (int i = 0; i < LANES; i++)
        pthread_cond_destroy(&f->lanes[i].came);
    pthread_cond_destroy(&f->quiet);
    pthread_mutex_destroy(&f->lock);
    free(f);
}
