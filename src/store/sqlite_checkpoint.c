/* SPDX-License-Identifier: Apache-2.0 */
#include "store/sqlite_checkpoint.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <time.h>

#include "base/arena.h"
#include "base/fault.h"
#include "base/log.h"
#include "store/sqlite_home.h"

enum {
    PAGE_BYTES = 4096,
    WAKE_FRAMES = 1 * 1024 * 1024 / PAGE_BYTES,
    ANEW_FRAMES = 4 * 1024 * 1024 / PAGE_BYTES, /* from here on after a copy, when little is left */
    FORCE_FRAMES = 40 * 1024 * 1024 / PAGE_BYTES,
    FORCE_WAIT_MS = 2000,                              /* a reader holds a snapshot for one call */
    FORCE_AGAIN_FRAMES = 2 * 1024 * 1024 / PAGE_BYTES, /* after a wait in vain */
};

struct sqlite_checkpointer {
    struct sqlite_home *home; /* borrowed */
    sqlite3 *h;               /* the thread's; NULL while it could not be opened */
    pthread_t thread;
    pthread_mutex_t copying; /* held during a checkpoint: SQLite refuses a second one at once,
                                without waiting */
    pthread_mutex_t lock;    /* guards wake and stop */
    pthread_cond_t cond;
    bool wake, stop;
    atomic_bool copied; /* the thread has just caught up: what is left for the writer is little */
    /* the writer's: frames at the last wake, and from where on it starts the log anew */
    int noted, force_at;
};

/* A sync that failed is never tried again on the same handle. */
static void copy_log(struct sqlite_checkpointer *c)
{
    struct err e;
    int rc;

    if (c->h == NULL)
        c->h = sqlite_connect(c->home, SQLITE_CHECKPOINTER, &e);
    if (c->h == NULL)
        return;
    rc = sqlite3_wal_checkpoint_v2(c->h, NULL, SQLITE_CHECKPOINT_PASSIVE, NULL, NULL);
    if (rc == SQLITE_OK || (rc & 0xff) == SQLITE_BUSY)
        return;
    (void)sqlite_error(c->h, rc, "checkpoint", &e);
    sqlite3_close(c->h);
    c->h = NULL;
}

static struct timespec in_a_second(void)
{
    struct timespec t;

    (void)clock_gettime(CLOCK_MONOTONIC, &t);
    t.tv_sec++;
    return t;
}

static void *checkpoint_thread(void *arg)
{
    struct sqlite_checkpointer *c = arg;
    struct timespec look_at = in_a_second();
    struct err e;

    pthread_mutex_lock(&c->lock);
    while (!c->stop) {
        bool wake = c->wake;

        if (!wake && pthread_cond_timedwait(&c->cond, &c->lock, &look_at) == 0)
            continue;
        c->wake = false;
        pthread_mutex_unlock(&c->lock);
        (void)!sqlite_home_look(c->home, &e); /* it remembers */
        look_at = in_a_second();
        if (wake) {
            pthread_mutex_lock(&c->copying);
            copy_log(c);
            FAULT("sqlite.checkpoint.half");
            copy_log(c); /* what came meanwhile, so that less is left */
            FAULT("sqlite.checkpoint.copied");
            pthread_mutex_unlock(&c->copying);
            atomic_store(&c->copied, true);
        }
        pthread_mutex_lock(&c->lock);
    }
    pthread_mutex_unlock(&c->lock);
    return NULL;
}

struct sqlite_checkpointer *sqlite_checkpointer_start(struct sqlite_home *home, struct err *e)
{
    struct sqlite_checkpointer *c = xzalloc(sizeof(*c));
    pthread_condattr_t clock;
    pthread_attr_t attr;
    int rc;

    c->home = home;
    c->force_at = FORCE_FRAMES;
    c->h = sqlite_connect(home, SQLITE_CHECKPOINTER, e);
    if (c->h == NULL) {
        free(c);
        return NULL;
    }
    pthread_mutex_init(&c->copying, NULL);
    pthread_mutex_init(&c->lock, NULL);
    pthread_condattr_init(&clock);
    pthread_condattr_setclock(&clock, CLOCK_MONOTONIC);
    pthread_cond_init(&c->cond, &clock);
    pthread_condattr_destroy(&clock);
    pthread_attr_init(&attr);
    pthread_attr_setstacksize(&attr, (size_t)256 * 1024);
    rc = pthread_create(&c->thread, &attr, checkpoint_thread, c);
    pthread_attr_destroy(&attr);
    if (rc != 0) {
        err_set(e, ERR_UNAVAILABLE, "cannot start a thread: %s", strerror(rc));
        sqlite3_close(c->h);
        free(c);
        return NULL;
    }
    return c;
}

void sqlite_checkpointer_stop(struct sqlite_checkpointer *c)
{
    if (c == NULL)
        return;
    pthread_mutex_lock(&c->lock);
    c->stop = true;
    pthread_cond_signal(&c->cond);
    pthread_mutex_unlock(&c->lock);
    pthread_join(c->thread, NULL);
    if (c->h != NULL) {
        (void)sqlite3_wal_checkpoint_v2(c->h, NULL, SQLITE_CHECKPOINT_TRUNCATE, NULL, NULL);
        sqlite3_close(c->h);
    }
    pthread_cond_destroy(&c->cond);
    pthread_mutex_destroy(&c->lock);
    pthread_mutex_destroy(&c->copying);
    free(c);
}

/* `copying` is held. */
static void start_log_anew(struct sqlite_checkpointer *c, sqlite3 *writer, int frames)
{
    static struct log_limit limit;
    int rc;

    sqlite3_busy_timeout(writer, FORCE_WAIT_MS);
    FAULT("sqlite.checkpoint.restart");
    rc = sqlite3_wal_checkpoint_v2(writer, NULL, SQLITE_CHECKPOINT_RESTART, NULL, NULL);
    sqlite3_busy_timeout(writer, SQLITE_BUSY_MS);
    FAULT("sqlite.checkpoint.restarted");
    pthread_mutex_unlock(&c->copying);
    c->force_at = rc == SQLITE_OK ? FORCE_FRAMES : frames + FORCE_AGAIN_FRAMES;
    if (rc != SQLITE_OK && log_allowed(&limit, 2))
        log_event(LOG_WARN, "store.wal_restart_failed", {"code", log_int(rc)},
                  {"pages", log_int(frames)});
}

void sqlite_checkpointer_note(struct sqlite_checkpointer *c, sqlite3 *writer, int frames)
{
    if (frames < c->noted) { /* the log was started anew */
        c->noted = 0;
        c->force_at = FORCE_FRAMES;
    }
    if (frames >= c->force_at) {
        pthread_mutex_lock(&c->copying);
        start_log_anew(c, writer, frames);
        return;
    }
    /* The best moment: the thread is idle and has left next to nothing. */
    if (frames >= ANEW_FRAMES && atomic_exchange(&c->copied, false) &&
        pthread_mutex_trylock(&c->copying) == 0) {
        start_log_anew(c, writer, frames);
        return;
    }
    if (frames - c->noted < WAKE_FRAMES)
        return;
    c->noted = frames;
    pthread_mutex_lock(&c->lock);
    c->wake = true;
    pthread_cond_signal(&c->cond);
    pthread_mutex_unlock(&c->lock);
}
