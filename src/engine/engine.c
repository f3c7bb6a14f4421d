/* SPDX-License-Identifier: Apache-2.0
 * Life of the engine, its entrance, and the news from other kernels. */
#include "engine/executor.h"

#include "base/clock.h"
#include "engine/aside.h"
#include "engine/clock.h"
#include "engine/decide.h"
#include "engine/fork_lanes.h"
#include "engine/orphans.h"

#include <errno.h>
#include <stdlib.h>

static const int64_t SWEEP_MAX_US = 2 * US_PER_S;
static const int64_t LISTEN_TURN_US = 500 * US_PER_MS;

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

    en->store = opt->store;
    en->settings = opt->settings;
    en->policies = opt->policies;
    en->signals = opt->signals;
    en->deadline_check_interval_us =
        opt->deadline_check_interval_us > 0 ? opt->deadline_check_interval_us : 30 * US_PER_S;
    en->sweep_interval_us = sweep_interval(opt->settings);
    en->cleanup_interval_us =
        opt->cleanup_interval_us > 0 ? opt->cleanup_interval_us : 600 * US_PER_S;
    en->retention_us = opt->retention_us;
    en->connections = opt->connections != NULL ? *opt->connections : connections_for(0);
    en->n_executors = store_is_sqlite(opt->store) ? 1 : en->connections.executors;
    lease_board_init(&en->leases);
    delta_wants_init(&en->deltas);
    atomic_init(&en->writable, true);
    atomic_init(&en->recovered, !store_was_alone(opt->store));
    clock_init(en);
    pthread_mutex_init(&en->quiet_lock, NULL);
    cond_init_mono(&en->quiet_cond);
    en->aside = aside_new(en);
    en->orphans = orphans_new(en);
    en->forks = fork_lanes_new(en);
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
    aside_free(en->aside);
    orphans_free(en->orphans);
    fork_lanes_free(en->forks);
    lease_board_free(&en->leases);
    delta_wants_free(&en->deltas);
    pthread_cond_destroy(&en->quiet_cond);
    pthread_mutex_destroy(&en->quiet_lock);
    clock_free(en);
    free(en);
}

/* A part of a fork takes milliseconds, and its rows lie under a key that no other command knows: on
 * Postgres the last executor has these, so that nothing else waits behind one. */
static struct executor *executor_of(struct engine *en, const struct command *cmd)
{
    unsigned last = en->n_executors - 1;

    if (last == 0 || cmd->type == COMMAND_FORK_PART)
        return &en->executors[last];
    return &en->executors[command_route(cmd) % last];
}

void engine_submit(struct engine *en, struct command *cmd)
{
    cmd->queued_us = clock_mono_us();
    if (!cmd->aside) {
        atomic_fetch_add(&en->stats.waiting, 1);
        cmd->decide_ns = 0;
    }
    cmd->aside = false;
    queue_push(executor_of(en, cmd)->queue, &cmd->node);
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

void engine_run_all(struct engine *en, struct command *cmds, size_t n)
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
    engine_run_all(en, cmd, 1);
}

bool engine_may_deliver(const struct engine *en)
{
    return atomic_load(&en->recovered);
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

struct policy_cache *engine_policies(const struct engine *en)
{
    return en->policies;
}

struct store *engine_store(const struct engine *en)
{
    return en->store;
}

const struct connections *engine_connections(const struct engine *en)
{
    return &en->connections;
}

const struct engine_stats *engine_stats(const struct engine *en)
{
    return &en->stats;
}

/* ---- news from other kernels ---- */

static void *listen_main(void *arg)
{
    struct engine *en = arg;
    const struct engine_signals *s = &en->signals;
    struct arena arena = {0};

    while (!engine_is_stopping(en)) {
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
        else if (note.kind == 'p' && store_leads(en->store))
            clock_look_at_approvals(en);
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
    if (!clock_start(en, e))
        return false;
    if (!store_is_sqlite(en->store)) {
        if (pthread_create(&en->listen_thread, NULL, listen_main, en) != 0)
            return err_set(e, ERR_INTERNAL, "cannot start a thread");
        en->listen_started = true;
    }
    return true;
}

/* Commands go between executors, aside workers and the judge until they are answered, so none of
 * these may end before all are. */
static bool wait_until_quiet(struct engine *en, int64_t until_us)
{
    const struct timespec ts = {until_us / US_PER_S, until_us % US_PER_S * 1000};
    bool quiet;

    pthread_mutex_lock(&en->quiet_lock);
    while (atomic_load(&en->stats.waiting) > 0)
        if (pthread_cond_timedwait(&en->quiet_cond, &en->quiet_lock, &ts) == ETIMEDOUT)
            break;
    quiet = atomic_load(&en->stats.waiting) == 0;
    pthread_mutex_unlock(&en->quiet_lock);
    return quiet;
}

void engine_answered(struct engine *en)
{
    if (atomic_fetch_sub(&en->stats.waiting, 1) > 1 || !atomic_load(&en->draining))
        return;
    pthread_mutex_lock(&en->quiet_lock);
    pthread_cond_broadcast(&en->quiet_cond);
    pthread_mutex_unlock(&en->quiet_lock);
}

bool engine_stop(struct engine *en, int64_t patience_us)
{
    int64_t until_us = clock_mono_us() + patience_us;

    atomic_store(&en->draining, true); /* from now on nobody waits for a store that is away */
    clock_stop(en);
    if (en->listen_started)
        pthread_join(en->listen_thread, NULL);
    en->listen_started = false;
    orphans_stop(en->orphans); /* what it leaves undone is found at the next start */
    if (!fork_lanes_stop(en->forks, until_us) || !wait_until_quiet(en, until_us))
        return false;
    aside_stop(en->aside);
    for (unsigned i = 0; i < en->n_executors; i++)
        executor_stop(&en->executors[i]);
    return true;
}
