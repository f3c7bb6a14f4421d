/* SPDX-License-Identifier: Apache-2.0
 * The queue by which threads meet: a mutex, a condition on the monotonic clock, a list. */
#include "base/queue.h"

#include <pthread.h>
#include <stdlib.h>
#include <time.h>

#include "base/arena.h"
#include "base/err.h"

struct queue {
    pthread_mutex_t lock;
    pthread_cond_t wakeup;
    struct queue_node *head, **tail; /* tail: where the next node is linked in */
    bool waiting; /* the consumer sleeps (or is about to, holding the lock until it does) */
    bool woken;   /* queue_wake was called since the last take */
};

struct queue *queue_new(void)
{
    struct queue *q = xzalloc(sizeof *q);
    pthread_condattr_t attr;

    q->tail = &q->head;
    ASSERT(pthread_mutex_init(&q->lock, NULL) == 0);
    ASSERT(pthread_condattr_init(&attr) == 0);
    ASSERT(pthread_condattr_setclock(&attr, CLOCK_MONOTONIC) == 0);
    ASSERT(pthread_cond_init(&q->wakeup, &attr) == 0);
    pthread_condattr_destroy(&attr);
    return q;
}

void queue_free(struct queue *q)
{
    if (q == NULL)
        return;
    pthread_cond_destroy(&q->wakeup);
    pthread_mutex_destroy(&q->lock);
    free(q);
}

/* The signal is sent while the lock is held: a producer that signalled afterwards could touch a
 * queue that the consumer, having taken the node, has already freed. */
static void wake_locked(struct queue *q)
{
    if (q->waiting) {
        q->waiting = false;
        pthread_cond_signal(&q->wakeup);
    }
}

void queue_push(struct queue *q, struct queue_node *n)
{
    n->next = NULL;
    pthread_mutex_lock(&q->lock);
    *q->tail = n;
    q->tail = &n->next;
    wake_locked(q);
    pthread_mutex_unlock(&q->lock);
}

void queue_wake(struct queue *q)
{
    pthread_mutex_lock(&q->lock);
    q->woken = true;
    wake_locked(q);
    pthread_mutex_unlock(&q->lock);
}

/* False when the deadline has passed. Called and returns with the lock held. */
static bool wait_locked(struct queue *q, int64_t deadline_mono_us)
{
    q->waiting = true;
    int rc;
    if (deadline_mono_us == INT64_MAX)
        rc = pthread_cond_wait(&q->wakeup, &q->lock);
    else {
        struct timespec t = {.tv_sec = (time_t)(deadline_mono_us / 1000000),
                             .tv_nsec = (long)(deadline_mono_us % 1000000) * 1000};
        rc = pthread_cond_timedwait(&q->wakeup, &q->lock, &t);
    }
    q->waiting = false;
    return rc == 0;
}

struct queue_node *queue_take_all(struct queue *q, int64_t deadline_mono_us)
{
    pthread_mutex_lock(&q->lock);
    while (q->head == NULL && !q->woken && deadline_mono_us > 0)
        if (!wait_locked(q, deadline_mono_us))
            break;
    struct queue_node *all = q->head;
    q->head = NULL;
    q->tail = &q->head;
    q->woken = false;
    pthread_mutex_unlock(&q->lock);
    return all;
}
