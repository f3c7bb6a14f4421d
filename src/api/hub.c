/* SPDX-License-Identifier: Apache-2.0 */
#include "api/hub.h"

#include "api/follow.h"
#include "base/clock.h"

#include <pthread.h>
#include <stdlib.h>

enum { SHARDS = 16, DELTAS_BEHIND_MAX = 64 };
static const int64_t KEEP_ALIVE_US = 15 * US_PER_S;

struct topic {
    struct read_job job;
    struct hub *hub;
    struct uuid id;
    struct waiter *first, *last;
    bool queued; /* with the readers, or being run: only then may the lock be let go between looking
                    and freeing */
    bool dirty;  /* new events */
    bool ready;  /* some waiter is */
    bool comment; /* a keep-alive is due */
    bool ended;   /* the execution has */
    bool failed;  /* the log could not be read */
};

struct shard {
    pthread_mutex_t lock;
    struct map topics; /* by execution id */
    struct timers timers;
    atomic_size_t count; /* of topics: who signals need not lock an empty shard */
};

struct hub {
    struct api *api;
    struct shard shards[SHARDS];
    atomic_bool draining;
    pthread_t clock;
    bool started;
    pthread_mutex_t clock_lock;
    pthread_cond_t clock_cond;
    int64_t clock_at; /* when it will look next */
    bool stopping;
};

static struct shard *shard_of(struct hub *hub, const struct uuid *id)
{
    return &hub->shards[id->b[15] % SHARDS];
}

static struct str topic_key(const struct uuid *id)
{
    return str_make(id->b, sizeof(id->b));
}

/* Under the lock. True: the caller hands the topic to the readers once it has let go of the lock.
 */
static bool claim(struct topic *t)
{
    if (t->queued)
        return false;
    t->queued = true;
    return true;
}

static void push(struct topic *t)
{
    readers_push(t->hub->api->readers, &t->job);
}

static void append(struct topic *t, struct waiter *w)
{
    w->topic = t;
    w->next = NULL;
    w->prev = t->last;
    if (t->last == NULL)
        t->first = w;
    else
        t->last->next = w;
    t->last = w;
}

static void unlink_waiter(struct shard *s, struct waiter *w)
{
    struct topic *t = w->topic;

    *(w->prev == NULL ? &t->first : &w->prev->next) = w->next;
    *(w->next == NULL ? &t->last : &w->next->prev) = w->prev;
    w->topic = NULL;
    timer_remove(&s->timers, &w->timer);
}

/* ---- running a topic: reader threads, one at a time a topic ---- */

struct turn {
    struct waiter *w;
    struct follow_news news;
};
struct turns {
    struct turn *at;
    size_t n, cap;
};

static void gather(struct topic *t, struct turns *turns)
{
    bool all = t->dirty, comment = t->comment, drain = hub_is_draining(t->hub);

    /* What another kernel did may have been said to us in vain, and what could not be read is tried
     * again. */
    all = all || (comment && (t->failed || !readers_are_local(t->hub->api->readers)));
    t->dirty = t->ready = t->comment = t->failed = false;
    for (struct waiter *w = t->first; w != NULL; w = w->next) {
        bool stop = w->stop || drain;

        if (w->blocked && !stop) {
            w->more = w->more || all;
            continue;
        }
        if (!all && !w->ready && !stop && !(comment && w->kind != WAITER_POLL))
            continue;
        if (turns->n == turns->cap) {
            turns->cap = turns->cap == 0 ? 16 : 2 * turns->cap;
            turns->at = xrealloc(turns->at, turns->cap * sizeof(*turns->at));
        }
        turns->at[turns->n++] = (struct turn){
            w,
            {.events = all || w->ready, .comment = comment, .stop = stop, .expired = w->expired}};
        w->ready = false;
    }
}

static void leave(struct topic *t, struct waiter *w, struct follow_pass *pass)
{
    struct shard *s = shard_of(t->hub, &t->id);

    pthread_mutex_lock(&s->lock);
    unlink_waiter(s, w);
    pthread_mutex_unlock(&s->lock);
    follow_finish(pass, w);
}

/* Ends the run. False: there is something to do again already. */
static bool rest(struct topic *t, bool failed)
{
    struct shard *s = shard_of(t->hub, &t->id);
    bool again, empty;

    pthread_mutex_lock(&s->lock);
    t->failed = failed;
    again = t->first != NULL && (t->dirty || t->ready || t->comment);
    empty = t->first == NULL;
    if (empty) {
        map_remove(&s->topics, topic_key(&t->id));
        atomic_fetch_sub(&s->count, 1);
    }
    t->queued = again;
    pthread_mutex_unlock(&s->lock);
    if (empty)
        free(t);
    return !again;
}

static void run_topic(struct read_job *job, struct store_reader *r, const struct err *why)
{
    struct topic *t = (struct topic *)((char *)job - offsetof(struct topic, job));
    struct shard *s = shard_of(t->hub, &t->id);
    struct follow_pass pass = {.api = t->hub->api, .reader = r, .why = why, .execution_id = t->id};
    struct turns turns = {0};

    pthread_mutex_lock(&s->lock);
    gather(t, &turns);
    pass.ended = t->ended;
    pthread_mutex_unlock(&s->lock);
    for (size_t i = 0; i < turns.n; i++)
        if (follow_serve(&pass, turns.at[i].w, &turns.at[i].news))
            leave(t, turns.at[i].w, &pass);
    free(turns.at);
    follow_pass_free(&pass);
    if (!rest(t, pass.failed))
        push(t); /* behind the others */
}

/* ---- signals ---- */

void hub_events(struct hub *hub, const struct uuid *execution_id, bool ended)
{
    struct shard *s = shard_of(hub, execution_id);
    struct topic *t;
    bool claimed = false;

    if (atomic_load(&s->count) == 0)
        return;
    pthread_mutex_lock(&s->lock);
    t = map_get(&s->topics, topic_key(execution_id));
    if (t != NULL) {
        t->dirty = true;
        t->ended = t->ended || ended;
        claimed = claim(t);
    }
    pthread_mutex_unlock(&s->lock);
    if (claimed)
        push(t);
}

void hub_publish(struct hub *hub, const struct uuid *execution_id, struct str bytes)
{
    struct shard *s = shard_of(hub, execution_id);
    struct topic *t;

    if (atomic_load(&s->count) == 0)
        return;
    pthread_mutex_lock(&s->lock);
    t = map_get(&s->topics, topic_key(execution_id));
    for (struct waiter *w = t == NULL ? NULL : t->first; w != NULL; w = w->next) {
        if (w->kind != WAITER_DELTAS || w->stop)
            continue;
        if (http_stream_pending(w->stream) == 0)
            w->behind = 0;
        if (w->behind == DELTAS_BEHIND_MAX)
            continue;
        w->behind++;
        (void)http_stream_write(w->stream, bytes); /* a reader that is gone will say so itself */
    }
    pthread_mutex_unlock(&s->lock);
}

static struct topic *topic_of(struct hub *hub, struct shard *s, const struct uuid *id)
{
    struct topic *t = map_get(&s->topics, topic_key(id));

    if (t != NULL)
        return t;
    t = xzalloc(sizeof(*t));
    t->hub = hub;
    t->id = *id;
    t->job.run = run_topic;
    (void)map_put(&s->topics, topic_key(id), t);
    atomic_fetch_add(&s->count,
                     1); /* before the log is read: a commit from now on finds the topic */
    return t;
}

static void wake_clock(struct hub *hub, int64_t at)
{
    pthread_mutex_lock(&hub->clock_lock);
    if (at < hub->clock_at) {
        hub->clock_at = at;
        pthread_cond_signal(&hub->clock_cond);
    }
    pthread_mutex_unlock(&hub->clock_lock);
}

void hub_add(struct hub *hub, struct waiter *w, int64_t deadline_us)
{
    struct shard *s = shard_of(hub, &w->execution_id);
    struct topic *t;
    bool claimed;

    pthread_mutex_lock(&s->lock);
    t = topic_of(hub, s, &w->execution_id);
    append(t, w);
    w->ready = t->ready = true;
    w->timer = (struct timer){.at_us = TIMER_OFF};
    if (deadline_us != 0)
        timer_set(&s->timers, &w->timer, deadline_us);
    claimed = claim(t);
    pthread_mutex_unlock(&s->lock);
    if (deadline_us != 0)
        wake_clock(hub, deadline_us);
    if (claimed)
        push(t);
}

void hub_stop_waiter(struct hub *hub, struct waiter *w)
{
    struct shard *s = shard_of(hub, &w->execution_id);
    struct topic *t;
    bool claimed = false;

    pthread_mutex_lock(&s->lock);
    w->stop = true;
    t = w->topic;
    if (t != NULL) {
        t->ready = true;
        claimed = claim(t);
    }
    pthread_mutex_unlock(&s->lock);
    if (claimed)
        push(t);
}

void hub_block(struct hub *hub, struct waiter *w, bool more)
{
    struct shard *s = shard_of(hub, &w->execution_id);

    pthread_mutex_lock(&s->lock);
    w->blocked = true;
    w->more = more;
    pthread_mutex_unlock(&s->lock);
}

void hub_unblock(struct hub *hub, struct waiter *w)
{
    struct shard *s = shard_of(hub, &w->execution_id);
    struct topic *t = NULL;
    bool claimed = false;

    pthread_mutex_lock(&s->lock);
    w->blocked = false;
    if (w->more && w->topic != NULL) {
        t = w->topic;
        w->more = false;
        w->ready = t->ready = true;
        claimed = claim(t);
    }
    pthread_mutex_unlock(&s->lock);
    if (claimed)
        push(t);
}

/* ---- time ---- */

/* Marks by `mark`, and hands on what it says so of, after the lock. */
static void for_topics(struct hub *hub, void (*mark)(struct topic *t))
{
    for (size_t i = 0; i < SHARDS; i++) {
        struct shard *s = &hub->shards[i];
        struct read_job *jobs = NULL;
        struct topic *t;

        pthread_mutex_lock(&s->lock);
        for (size_t at = 0; (t = map_next(&s->topics, &at)) != NULL;) {
            mark(t);
            if (claim(t)) {
                t->job.next = jobs;
                jobs = &t->job;
            }
        }
        pthread_mutex_unlock(&s->lock);
        while (jobs != NULL) {
            struct read_job *job = jobs;
            jobs = job->next;
            readers_push(hub->api->readers, job);
        }
    }
}

static void mark_comment(struct topic *t)
{
    t->comment = true;
}

static void mark_ready(struct topic *t)
{
    t->ready = true;
}

/* Polls whose time is up. Returns when the next one's will be. */
static int64_t expire(struct hub *hub, int64_t now)
{
    int64_t next = TIMER_OFF;

    for (size_t i = 0; i < SHARDS; i++) {
        struct shard *s = &hub->shards[i];
        struct read_job *jobs = NULL;
        struct timer *due;

        pthread_mutex_lock(&s->lock);
        while ((due = timers_take(&s->timers, now)) != NULL) {
            struct waiter *w = (struct waiter *)((char *)due - offsetof(struct waiter, timer));
            w->expired = w->ready = w->topic->ready = true;
            if (claim(w->topic)) {
                w->topic->job.next = jobs;
                jobs = &w->topic->job;
            }
        }
        int64_t at = timers_next(&s->timers);
        pthread_mutex_unlock(&s->lock);
        if (at < next)
            next = at;
        while (jobs != NULL) {
            struct read_job *job = jobs;
            jobs = job->next;
            readers_push(hub->api->readers, job);
        }
    }
    return next;
}

/* Sleeps until hub->clock_at. True: the hub stops. */
static bool clock_sleep(struct hub *hub)
{
    bool stop;

    pthread_mutex_lock(&hub->clock_lock);
    while (!hub->stopping && clock_mono_us() < hub->clock_at) {
        struct timespec ts = {hub->clock_at / US_PER_S, (hub->clock_at % US_PER_S) * 1000};
        pthread_cond_timedwait(&hub->clock_cond, &hub->clock_lock, &ts);
    }
    stop = hub->stopping;
    hub->clock_at = INT64_MAX; /* until it is set again, whoever adds a waiter sets it */
    pthread_mutex_unlock(&hub->clock_lock);
    return stop;
}

static void *clock_main(void *arg)
{
    struct hub *hub = arg;
    int64_t comment_at = clock_mono_us() + KEEP_ALIVE_US;

    while (!clock_sleep(hub)) {
        int64_t now = clock_mono_us();
        int64_t next = expire(hub, now);

        if (now >= comment_at) {
            for_topics(hub, mark_comment);
            comment_at = now + KEEP_ALIVE_US;
        }
        wake_clock(hub, next < comment_at ? next : comment_at);
    }
    return NULL;
}

/* ---- life ---- */

struct hub *hub_new(struct api *api)
{
    struct hub *hub = xzalloc(sizeof(*hub));
    pthread_condattr_t attr;

    hub->api = api;
    for (size_t i = 0; i < SHARDS; i++)
        pthread_mutex_init(&hub->shards[i].lock, NULL);
    pthread_mutex_init(&hub->clock_lock, NULL);
    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    pthread_cond_init(&hub->clock_cond, &attr);
    pthread_condattr_destroy(&attr);
    return hub;
}

bool hub_start(struct hub *hub, struct err *e)
{
    if (pthread_create(&hub->clock, NULL, clock_main, hub) != 0)
        return err_set(e, ERR_INTERNAL, "cannot start a thread");
    hub->started = true;
    return true;
}

bool hub_is_draining(const struct hub *hub)
{
    return atomic_load(&hub->draining);
}

void hub_drain(struct hub *hub)
{
    atomic_store(&hub->draining, true);
    for_topics(hub, mark_ready);
}

void hub_stop(struct hub *hub)
{
    if (!hub->started)
        return;
    pthread_mutex_lock(&hub->clock_lock);
    hub->stopping = true;
    pthread_cond_signal(&hub->clock_cond);
    pthread_mutex_unlock(&hub->clock_lock);
    pthread_join(hub->clock, NULL);
    hub->started = false;
}

void hub_free(struct hub *hub)
{
    if (hub == NULL)
        return;
    for (size_t i = 0; i < SHARDS; i++) {
        ASSERT(hub->shards[i].topics.count == 0);
        map_free(&hub->shards[i].topics);
        timers_free(&hub->shards[i].timers);
        pthread_mutex_destroy(&hub->shards[i].lock);
    }
    pthread_cond_destroy(&hub->clock_cond);
    pthread_mutex_destroy(&hub->clock_lock);
    free(hub);
}
