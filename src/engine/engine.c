/* SPDX-License-Identifier: Apache-2.0
 * Life of the engine, and the clock's thread: what must happen because time has passed. */
#include "engine/executor.h"

#include "base/clock.h"
#include "base/log.h"
#include "engine/decide.h"

#include <stdlib.h>
#include <unistd.h>

enum { BATCH = 256 };
static const int64_t SWEEP_MAX_US = 2 * US_PER_S;
static const int64_t TIDY_INTERVAL_US = 10 * US_PER_S;
static const int64_t LISTEN_TURN_US = 500 * US_PER_MS;

static unsigned executors_by_cores(void)
{
    long cores = sysconf(_SC_NPROCESSORS_ONLN);

    return cores < 4 ? 2 : cores > 16 ? 8 : (unsigned)cores / 2;
}

/* At least every 2 s, or four times a lease when that is shorter. */
static int64_t sweep_interval(const struct kernel_settings *settings)
{
    int64_t quarter = settings->lease_timeout_us / 4;

    if (quarter > SWEEP_MAX_US)
        return SWEEP_MAX_US;
    return quarter < 10 * US_PER_MS ? 10 * US_PER_MS : quarter;
}

struct engine *engine_new(const struct engine_options *opt, struct err *e)
{
    struct engine *en = xzalloc(sizeof(*en));
    pthread_condattr_t attr;

    en->store = opt->store;
    en->settings = opt->settings;
    en->signals = opt->signals;
    en->deadline_check_interval_us =
        opt->deadline_check_interval_us > 0 ? opt->deadline_check_interval_us : 30 * US_PER_S;
    en->sweep_interval_us = sweep_interval(opt->settings);
    en->n_executors = store_is_sqlite(opt->store) ? 1
                      : opt->executors > 0        ? opt->executors
                                                  : executors_by_cores();
    lease_board_init(&en->leases);
    delta_wants_init(&en->deltas);
    atomic_init(&en->writable, true);
    pthread_mutex_init(&en->clock_lock, NULL);
    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    pthread_cond_init(&en->clock_cond, &attr);
    pthread_condattr_destroy(&attr);
    en->executors = xzalloc(en->n_executors * sizeof(struct executor));
    for (unsigned i = 0; i < en->n_executors; i++) {
        if (!executor_open(&en->executors[i], en, e)) {
            engine_free(en);
            return NULL;
        }
    }
    return en;
}

void engine_free(struct engine *en)
{
    if (en == NULL)
        return;
    for (unsigned i = 0; i < en->n_executors; i++)
        executor_close(&en->executors[i]);
    free(en->executors);
    lease_board_free(&en->leases);
    delta_wants_free(&en->deltas);
    pthread_cond_destroy(&en->clock_cond);
    pthread_mutex_destroy(&en->clock_lock);
    free(en);
}

void engine_submit(struct engine *en, struct command *cmd)
{
    unsigned at = en->n_executors == 1 ? 0 : (unsigned)(command_route(cmd) % en->n_executors);

    cmd->queued_us = clock_mono_us();
    atomic_fetch_add_explicit(&en->stats.waiting, 1, memory_order_relaxed);
    queue_push(en->executors[at].queue, &cmd->node);
}

struct waiter {
    pthread_mutex_t lock;
    pthread_cond_t cond;
    size_t left;
};

static void waiter_done(struct command *cmd)
{
    struct waiter *w = cmd->ctx;

    pthread_mutex_lock(&w->lock);
    if (--w->left == 0)
        pthread_cond_signal(&w->cond);
    pthread_mutex_unlock(&w->lock);
}

static void run_all(struct engine *en, struct command *cmds, size_t n)
{
    struct waiter w = {PTHREAD_MUTEX_INITIALIZER, PTHREAD_COND_INITIALIZER, n};

    for (size_t i = 0; i < n; i++) {
        cmds[i].done = waiter_done;
        cmds[i].ctx = &w;
        engine_submit(en, &cmds[i]);
    }
    pthread_mutex_lock(&w.lock);
    while (w.left > 0)
        pthread_cond_wait(&w.cond, &w.lock);
    pthread_mutex_unlock(&w.lock);
}

void engine_run(struct engine *en, struct command *cmd)
{
    run_all(en, cmd, 1);
}

bool engine_writable(const struct engine *en)
{
    return atomic_load(&en->writable);
}

int64_t engine_lease_end(struct engine *en, const struct uuid *execution_id)
{
    return lease_board_end(&en->leases, execution_id);
}

void engine_want_deltas(struct engine *en, const struct uuid *execution_id)
{
    struct store_note note = {.kind = 's', .id = *execution_id};

    if (!store_is_sqlite(en->store))
        store_notify(en->store, &note, 1);
}

void engine_send_delta(struct engine *en, const struct uuid *execution_id, struct str text)
{
    struct store_note note = {.kind = 'x', .id = *execution_id, .text = text};

    if (!store_is_sqlite(en->store) && delta_wants_has(&en->deltas, execution_id))
        store_notify(en->store, &note, 1);
}

struct store *engine_store(const struct engine *en)
{
    return en->store;
}

const struct engine_stats *engine_stats(const struct engine *en)
{
    return &en->stats;
}

/* ---- the clock's thread ---- */

struct clock_work {
    struct engine *en;
    struct store_reader *reader;
    struct arena arena;
    struct command *batch;
};

static void worker_failed(struct clock_work *cw, const char *worker, const struct err *e)
{
    static struct log_limit limit;

    atomic_fetch_add(&cw->en->stats.worker_errors, 1);
    if (log_allowed(&limit, 6))
        log_event(LOG_WARN, "worker.failed", {"worker", str_of(worker)},
                  {"error", str_of(e->message)});
}

/* What the kernel before this one had in hand: deliveries nobody will answer go back to the queue;
 * agents that lived through it keep their attempt. */
static bool recover_leased(struct clock_work *cw, bool at_start, struct uuid *after, bool *more)
{
    struct uuid *ids;
    size_t n;
    struct err e;

    arena_reset(&cw->arena);
    if (!store_leased(cw->reader, after, BATCH, &cw->arena, &ids, &n, &e)) {
        worker_failed(cw, "recovery", &e);
        return false;
    }
    *more = n == BATCH;
    if (n == 0)
        return true;
    memset(cw->batch, 0, n * sizeof(struct command));
    for (size_t i = 0; i < n; i++) {
        cw->batch[i].type = COMMAND_RECOVER;
        cw->batch[i].in.recover.execution_id = ids[i];
        cw->batch[i].in.recover.at_start = at_start;
    }
    *after = ids[n - 1];
    run_all(cw->en, cw->batch, n);
    return true;
}

static void cancel_past_deadlines(struct clock_work *cw)
{
    for (size_t n = BATCH; n == BATCH;) {
        struct uuid *ids;
        struct err e;

        arena_reset(&cw->arena);
        if (!store_past_deadlines(cw->reader, BATCH, &cw->arena, &ids, &n, &e)) {
            worker_failed(cw, "deadlines", &e);
            return;
        }
        memset(cw->batch, 0, n * sizeof(struct command));
        for (size_t i = 0; i < n; i++) {
            cw->batch[i].type = COMMAND_CANCEL;
            cw->batch[i].in.cancel.execution_id = ids[i];
            cw->batch[i].in.cancel.deadline = true;
        }
        if (n > 0)
            run_all(cw->en, cw->batch, n);
        for (size_t i = 0; i < n; i++)
            if (cw->batch[i].err.code == ERR_UNAVAILABLE)
                return;
    }
}

/* True when the engine is to stop. */
static bool clock_wait(struct engine *en, int64_t until_us)
{
    struct timespec ts = {until_us / US_PER_S, (until_us % US_PER_S) * 1000};
    bool stop;

    pthread_mutex_lock(&en->clock_lock);
    if (!en->stopping)
        pthread_cond_timedwait(&en->clock_cond, &en->clock_lock, &ts);
    stop = en->stopping;
    pthread_mutex_unlock(&en->clock_lock);
    return stop;
}

static bool clock_stopping(struct engine *en)
{
    bool stop;

    pthread_mutex_lock(&en->clock_lock);
    stop = en->stopping;
    pthread_mutex_unlock(&en->clock_lock);
    return stop;
}

static void nudge(struct executor *x, atomic_bool *due)
{
    atomic_store(due, true);
    queue_wake(x->queue);
}

static void clock_loop(struct clock_work *cw)
{
    struct engine *en = cw->en;
    int64_t sweep_at = 0, tidy_at = clock_mono_us() + TIDY_INTERVAL_US, deadline_at = 0;
    struct uuid after = {0};
    bool recovering = store_was_alone(en->store), at_start = true;

    while (!clock_stopping(en)) {
        int64_t now = clock_mono_us(), next;

        if (!recovering && atomic_exchange(&en->reload_leased, false)) {
            recovering = true;
            at_start = false;
            after = (struct uuid){{0}};
        }
        if (recovering && !recover_leased(cw, at_start, &after, &recovering) &&
            clock_wait(en, clock_mono_us() + US_PER_S))
            return;
        if (now >= sweep_at) {
            /* The rule looks again under the lock, so two that both think they lead do no harm. */
            if (store_leads(en->store))
                nudge(&en->executors[0], &en->executors[0].sweep_due);
            sweep_at = now + en->sweep_interval_us;
        }
        if (now >= tidy_at) {
            for (unsigned i = 0; i < en->n_executors; i++)
                nudge(&en->executors[i], &en->executors[i].tidy_due);
            tidy_at = now + TIDY_INTERVAL_US;
        }
        if (en->settings->deadline_timeout_us > 0 && now >= deadline_at) {
            if (store_leads(en->store))
                cancel_past_deadlines(cw);
            deadline_at = now + en->deadline_check_interval_us;
        }
        if (recovering)
            continue;
        next = sweep_at < tidy_at ? sweep_at : tidy_at;
        if (en->settings->deadline_timeout_us > 0 && deadline_at < next)
            next = deadline_at;
        if (clock_wait(en, next))
            return;
    }
}

static void *clock_main(void *arg)
{
    struct clock_work cw = {.en = arg};
    struct err e;

    cw.batch = xmalloc(BATCH * sizeof(struct command));
    while ((cw.reader = store_reader_open(cw.en->store, &e)) == NULL) {
        worker_failed(&cw, "clock", &e);
        if (clock_wait(cw.en, clock_mono_us() + US_PER_S))
            break;
    }
    if (cw.reader != NULL)
        clock_loop(&cw);
    store_reader_close(cw.reader);
    arena_free(&cw.arena);
    free(cw.batch);
    return NULL;
}

/* ---- news from other kernels ---- */

static void *listen_main(void *arg)
{
    struct engine *en = arg;
    const struct engine_signals *s = &en->signals;
    struct arena arena = {0};

    while (!clock_stopping(en)) {
        struct store_note note;

        arena_reset(&arena);
        if (!store_listen(en->store, LISTEN_TURN_US, &arena, &note))
            continue;
        if (note.kind == 'd' && s->dispatches_queued != NULL)
            s->dispatches_queued(s->ctx);
        else if (note.kind == 'e' && s->events != NULL)
            s->events(s->ctx, &note.id, false);
        else if (note.kind == 'a' && s->agent_changed != NULL)
            s->agent_changed(s->ctx, note.text);
        else if (note.kind == 's')
            delta_wants_heard(&en->deltas, &note.id);
        else if (note.kind == 'x' && s->delta != NULL)
            s->delta(s->ctx, &note.id, note.text);
    }
    arena_free(&arena);
    return NULL;
}

bool engine_start(struct engine *en, struct err *e)
{
    for (unsigned i = 0; i < en->n_executors; i++)
        if (!executor_start(&en->executors[i], e))
            return false;
    if (pthread_create(&en->clock_thread, NULL, clock_main, en) != 0)
        return err_set(e, ERR_INTERNAL, "cannot start a thread");
    en->clock_started = true;
    if (!store_is_sqlite(en->store)) {
        if (pthread_create(&en->listen_thread, NULL, listen_main, en) != 0)
            return err_set(e, ERR_INTERNAL, "cannot start a thread");
        en->listen_started = true;
    }
    return true;
}

void engine_stop(struct engine *en)
{
    pthread_mutex_lock(&en->clock_lock);
    en->stopping = true;
    pthread_cond_broadcast(&en->clock_cond);
    pthread_mutex_unlock(&en->clock_lock);
    if (en->clock_started)
        pthread_join(en->clock_thread, NULL);
    if (en->listen_started)
        pthread_join(en->listen_thread, NULL);
    en->clock_started = en->listen_started = false;
    for (unsigned i = 0; i < en->n_executors; i++)
        executor_stop(&en->executors[i]);
}
