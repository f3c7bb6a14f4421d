/* SPDX-License-Identifier: Apache-2.0
 * An engine on a database of its own, with runs that are under way and a judge that answers when
 * the test says so. All commands of a bench go through one executor. */
#ifndef SUPPORT_ENGINE_BENCH_H
#define SUPPORT_ENGINE_BENCH_H

#include <pthread.h>
#include <time.h>

#include "base/clock.h"
#include "engine/engine.h"
#include "support/check.h"
#include "support/store_fixture.h"

enum { RUNS_MAX = 64 };
#define PATIENCE_US (20 * US_PER_S)

struct run { /* an execution and the attempt that works on it */
    struct uuid id;
    struct lease_ref lease;
};

struct job { /* a command and what became of it */
    struct command cmd;
    struct bench *bench;
    struct arena arena;
    int asked, done; /* how often it was handed to the judge, and answered */
    bool with_judge; /* now */
    bool hold;       /* its answer holds the executor until the test lets go */
};

struct bench {
    struct fixture f;
    struct policy_cache *policies;
    struct engine *en;
    struct run runs[RUNS_MAX];
    size_t n_runs;
    pthread_mutex_t lock;
    pthread_cond_t cond; /* anything of below has changed */
    struct job *asked[RUNS_MAX];
    size_t n_asked, n_done;
    bool held, let_go; /* an executor waits in a `done` */
};

/* With the lock. */
#define WAIT_FOR(b, cond_)                                                                         \
    do {                                                                                           \
        struct timespec until_;                                                                    \
        clock_gettime(CLOCK_REALTIME, &until_);                                                    \
        until_.tv_sec += PATIENCE_US / US_PER_S;                                                   \
        pthread_mutex_lock(&(b)->lock);                                                            \
        while (!(cond_) && pthread_cond_timedwait(&(b)->cond, &(b)->lock, &until_) == 0)           \
            ;                                                                                      \
        CHECKF(cond_, "it never came to this");                                                    \
        pthread_mutex_unlock(&(b)->lock);                                                          \
    } while (0)

/* What the agent `a` of a bench has: asks the judge for the target `ask`; two buckets for all and
 * one for each run (`shared`, `common`, `each`); an approval of 100 ms (`soon`); a regex over
 * `slow`. */
extern const char BENCH_BUNDLE[];

/* `state` of ON_BOTH; with so many runs of the agent `a`, each delivered and acked. */
void bench_open(struct bench *b, void **state, size_t n_runs);
void bench_close(struct bench *b);
/* The same on the fixture's store, which the caller has opened and closes. */
void bench_begin(struct bench *b, size_t n_runs);
void bench_end(struct bench *b);
/* Another kernel on the database of `other`, with its runs; SQLite: nothing. */
void bench_beside(struct bench *b, const struct bench *other);
void bench_leave(struct bench *b);
void bench_engine_up(struct bench *b);
void bench_engine_down(struct bench *b);
void bench_agent(struct bench *b, const char *id, struct str bundle); /* registers it */
/* The judge's word to all who wait for it. */
void bench_judge(struct bench *b, enum policy_action judgement);
/* The executor stands still, so that what is submitted next forms one group. */
void bench_hold(struct bench *b, struct job *job);
void bench_let_go(struct bench *b);

/* A step that this run submits; job_submit sends it on its way. */
void job_step(struct job *job, const struct run *run, const char *target, struct str args);
void job_submit(struct bench *b, struct job *job);
void bench_step(struct bench *b, struct job *job, const struct run *run, const char *target);
void job_free(struct job *job);

#endif
