/* SPDX-License-Identifier: Apache-2.0
 * The clock's thread sleeps until the next thing is due. It acts through commands, whose rules look
 * again under the lock: to act too often, or on two kernels at once, does no harm. */
#include "engine/clock.h"

#include "base/clock.h"
#include "base/fault.h"
#include "base/log.h"
#include "engine/executor.h"
#include "engine/retention.h"

#include <errno.h>
#include <stdlib.h>

enum { BATCH = 256 };
static const int64_t TIDY_INTERVAL_US = 10 * US_PER_S;
static const int64_t SESSIONS_INTERVAL_US = 2 * US_PER_S;
static const int64_t RETRY_US = US_PER_S;
/* A kernel that is restarted often also gets to it. */
static const int64_t FIRST_SWEEP_US = 60 * US_PER_S;
/* Approvals are looked at when the next one runs out, and not later than this: behind the timer
 * stand a wall clock that is set, and on Postgres approvals of other kernels. */
static const int64_t LOOK_LOCAL_US = 2 * US_PER_S;
static const int64_t LOOK_SHARED_US = 500 * US_PER_MS;

struct clock_work {
    struct engine *en;
    struct store_reader *reader;
    struct arena arena;
    struct command *batch;
    int64_t sweep_at, tidy_at, deadline_at, approvals_at, sessions_at; /* monotonic */
    bool recovering, at_start;
    struct uuid recovered; /* the last one */
    struct retention_sweep retention;
};

static void worker_failed(struct clock_work *cw, const char *worker, const struct err *e)
{
    static struct log_limit limit;

    atomic_fetch_add(&cw->en->stats.worker_errors, 1);
    if (log_allowed(&limit, 6))
        log_event(LOG_WARN, "worker.failed", {"worker", str_of(worker)},
                  {"error", str_of(e->message)});
}

/* ---- waiting ---- */

/* True when the engine is to stop. With `for_approvals` it also ends when somebody wants them to be
 * looked at. */
static bool clock_wait(struct engine *en, int64_t until_us, bool for_approvals)
{
    struct timespec ts = {until_us / US_PER_S, (until_us % US_PER_S) * 1000};
    bool stop;

    pthread_mutex_lock(&en->clock_lock);
    while (!en->stopping && !(for_approvals && en->approvals_wanted))
        if (pthread_cond_timedwait(&en->clock_cond, &en->clock_lock, &ts) == ETIMEDOUT)
            break;
    stop = en->stopping;
    pthread_mutex_unlock(&en->clock_lock);
    return stop;
}

bool engine_is_stopping(struct engine *en)
{
    bool stop;

    pthread_mutex_lock(&en->clock_lock);
    stop = en->stopping;
    pthread_mutex_unlock(&en->clock_lock);
    return stop;
}

void clock_look_at_approvals(struct engine *en)
{
    pthread_mutex_lock(&en->clock_lock);
    en->approvals_wanted = true;
    pthread_cond_broadcast(&en->clock_cond);
    pthread_mutex_unlock(&en->clock_lock);
}

/* What others want is taken before the look, so that what they want afterwards is not lost. */
static bool take_wanted(struct engine *en)
{
    bool wanted;

    pthread_mutex_lock(&en->clock_lock);
    wanted = en->approvals_wanted;
    en->approvals_wanted = false;
    pthread_mutex_unlock(&en->clock_lock);
    return wanted;
}

/* ---- approvals ---- */

static int64_t look_interval(const struct engine *en)
{
    return store_is_sqlite(en->store) ? LOOK_LOCAL_US : LOOK_SHARED_US;
}

void clock_approval_opened(struct engine *en, int64_t timeout_at, int64_t now_us)
{
    struct store_note note = {.kind = 'p'};

    if (timeout_at < atomic_load(&en->next_look_at))
        clock_look_at_approvals(en);
    if (!store_leads(en->store) && timeout_at - now_us < LOOK_SHARED_US)
        store_notify(en->store, &note, 1); /* later ones are seen in time anyway */
}

/* False: the store does not take it now. */
static bool expire(struct clock_work *cw, const struct due_approval *due, size_t n)
{
    memset(cw->batch, 0, n * sizeof(struct command));
    for (size_t i = 0; i < n; i++) {
        cw->batch[i].type = COMMAND_APPROVAL_EXPIRE;
        cw->batch[i].in.approval.execution_id = due[i].execution_id;
        cw->batch[i].in.approval.approval_id = due[i].approval_id;
    }
    engine_run_all(cw->en, cw->batch, n);
    for (size_t i = 0; i < n; i++)
        if (cw->batch[i].verdict == VERDICT_REFUSED)
            return false;
    return true;
}

/* Expires what has run out; sets when to look next. */
static void look_at_approvals(struct clock_work *cw)
{
    struct engine *en = cw->en;
    int64_t interval = look_interval(en);
    bool more = store_leads(en->store);

    cw->approvals_at = clock_mono_us() + interval;
    while (more) {
        struct due_approval *due;
        int64_t began_us = clock_mono_us(), now_us, next, wait = interval;
        size_t n;
        struct err e;

        /* Before the read: whoever commits an approval after it must find that nobody has seen it.
         */
        atomic_store(&en->next_look_at, INT64_MAX);
        arena_reset(&cw->arena);
        if (!store_due_approvals(cw->reader, BATCH, &cw->arena, &due, &n, &now_us, &next, &e)) {
            worker_failed(cw, "approvals", &e);
            break;
        }
        if (next > 0 && next - now_us < interval)
            wait = next > now_us ? next - now_us : 0;
        cw->approvals_at = began_us + wait;
        atomic_store(&en->next_look_at, now_us + wait);
        more = n == BATCH;
        if (n > 0 && !expire(cw, due, n)) {
            cw->approvals_at = clock_mono_us() + interval;
            return;
        }
    }
}

/* ---- deadlines ---- */

/* One batch, so that a crowd past its deadline keeps nothing else waiting. True: there may be more.
 */
static bool cancel_past_deadlines(struct clock_work *cw)
{
    struct uuid *ids;
    size_t n;
    struct err e;

    arena_reset(&cw->arena);
    if (!store_past_deadlines(cw->reader, BATCH, &cw->arena, &ids, &n, &e)) {
        worker_failed(cw, "deadlines", &e);
        return false;
    }
    if (n == 0)
        return false;
    memset(cw->batch, 0, n * sizeof(struct command));
    for (size_t i = 0; i < n; i++) {
        cw->batch[i].type = COMMAND_CANCEL;
        cw->batch[i].in.cancel.execution_id = ids[i];
        cw->batch[i].in.cancel.cause = CANCEL_BY_DEADLINE;
    }
    engine_run_all(cw->en, cw->batch, n);
    for (size_t i = 0; i < n; i++)
        if (cw->batch[i].err.code == ERR_UNAVAILABLE)
            return false;
    return n == BATCH;
}

/* ---- sessions ---- */

/* What a crash cut off between an end and its follow-up. */
static void admit_waiting(struct clock_work *cw)
{
    struct str *names;
    size_t n;
    struct err e;

    arena_reset(&cw->arena);
    if (!store_waiting_sessions(cw->reader, BATCH, &cw->arena, &names, &n, &e)) {
        worker_failed(cw, "sessions", &e);
        return;
    }
    if (n == 0)
        return;
    memset(cw->batch, 0, n * sizeof(struct command));
    for (size_t i = 0; i < n; i++) {
        cw->batch[i].type = COMMAND_ADMIT;
        cw->batch[i].in.admit = names[i];
    }
    engine_run_all(cw->en, cw->batch, n);
}

/* ---- subagents ---- */

/* What a crash cut off between an end and its follow-ups. More than a batch come next time. */
static void settle_owed(struct clock_work *cw)
{
    static const struct uuid first;
    struct owed *owed;
    size_t n;
    struct err e;

    arena_reset(&cw->arena);
    if (!store_owed(cw->reader, &first, BATCH, &cw->arena, &owed, &n, &e)) {
        worker_failed(cw, "subagents", &e);
        return;
    }
    memset(cw->batch, 0, n * sizeof(struct command));
    for (size_t i = 0; i < n; i++) {
        cw->batch[i].type = COMMAND_SUBAGENT_SETTLE;
        cw->batch[i].in.subagent_settle =
            (struct subagent_end){owed[i].child, owed[i].parent, owed[i].step_id};
    }
    if (n > 0)
        engine_run_all(cw->en, cw->batch, n);
}

static void cancel_orphans(struct clock_work *cw)
{
    static const struct uuid first;
    struct uuid *ids;
    size_t n;
    struct err e;

    arena_reset(&cw->arena);
    if (!store_orphans(cw->reader, &first, BATCH, &cw->arena, &ids, &n, &e)) {
        worker_failed(cw, "subagents", &e);
        return;
    }
    memset(cw->batch, 0, n * sizeof(struct command));
    for (size_t i = 0; i < n; i++) {
        cw->batch[i].type = COMMAND_CANCEL;
        cw->batch[i].follow_up = true;
        cw->batch[i].in.cancel.execution_id = ids[i];
        cw->batch[i].in.cancel.cause = CANCEL_BY_PARENT;
    }
    if (n > 0)
        engine_run_all(cw->en, cw->batch, n);
}

/* ---- what is to go ---- */

static void give_up_stale_forks(struct clock_work *cw)
{
    struct err e;

    arena_reset(&cw->arena);
    if (!retention_stale_forks(&cw->retention, &cw->arena, &e))
        worker_failed(cw, "forks", &e);
}

static void apply_retention(struct clock_work *cw)
{
    struct err e;

    if (!store_leads(cw->en->store)) {
        cw->retention.at = clock_mono_us() + cw->en->cleanup_interval_us;
        return;
    }
    arena_reset(&cw->arena);
    if (!retention_page(&cw->retention, &cw->arena, &e))
        worker_failed(cw, "retention", &e);
}

/* ---- recovery ---- */

static void recovery_ends(const struct clock_work *cw)
{
    const struct engine_signals *s = &cw->en->signals;

    if (cw->recovering || atomic_exchange(&cw->en->recovered, true))
        return;
    if (s->dispatches_queued != NULL)
        s->dispatches_queued(s->ctx);
}

/* What the kernel before this one had in hand: deliveries nobody will answer go back to the queue;
 * agents that lived through it keep their attempt. */
static bool recover_leased(struct clock_work *cw)
{
    struct uuid *ids;
    size_t n;
    struct err e;

    arena_reset(&cw->arena);
    if (!store_leased(cw->reader, &cw->recovered, BATCH, &cw->arena, &ids, &n, &e)) {
        worker_failed(cw, "recovery", &e);
        return false;
    }
    cw->recovering = n == BATCH;
    if (n == 0) {
        recovery_ends(cw);
        return true;
    }
    memset(cw->batch, 0, n * sizeof(struct command));
    for (size_t i = 0; i < n; i++) {
        cw->batch[i].type = COMMAND_RECOVER;
        cw->batch[i].in.recover.execution_id = ids[i];
        cw->batch[i].in.recover.at_start = cw->at_start;
    }
    cw->recovered = ids[n - 1];
    engine_run_all(cw->en, cw->batch, n);
    FAULT("engine.recovery.after");
    recovery_ends(cw);
    return true;
}

static void recover_again(struct clock_work *cw)
{
    if (cw->recovering || !atomic_exchange(&cw->en->reload_leased, false))
        return;
    cw->recovering = true;
    cw->at_start = false;
    cw->recovered = (struct uuid){{0}};
}

/* ---- the thread ---- */

static void nudge(struct executor *x, atomic_bool *due)
{
    atomic_store(due, true);
    queue_wake(x->queue);
}

static void do_what_is_due(struct clock_work *cw)
{
    struct engine *en = cw->en;
    int64_t now = clock_mono_us();

    if (take_wanted(en) || now >= cw->approvals_at)
        look_at_approvals(cw);
    if (now >= cw->sweep_at) {
        if (store_leads(en->store))
            nudge(&en->executors[0], &en->executors[0].sweep_due);
        cw->sweep_at = now + en->sweep_interval_us;
    }
    if (now >= cw->sessions_at) {
        if (store_leads(en->store)) {
            admit_waiting(cw);
            settle_owed(cw);
            cancel_orphans(cw);
        }
        cw->sessions_at = now + SESSIONS_INTERVAL_US;
    }
    if (now >= cw->tidy_at) {
        for (unsigned i = 0; i < en->n_executors; i++)
            nudge(&en->executors[i], &en->executors[i].tidy_due);
        if (store_leads(en->store))
            give_up_stale_forks(cw);
        cw->tidy_at = now + TIDY_INTERVAL_US;
    }
    if (now >= cw->deadline_at) {
        bool more = store_leads(en->store) && cancel_past_deadlines(cw);

        cw->deadline_at = more ? now : now + en->deadline_check_interval_us;
    }
    if (now >= cw->retention.at)
        apply_retention(cw);
}

static int64_t min64(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

static int64_t next_due(const struct clock_work *cw)
{
    int64_t due = min64(min64(cw->sweep_at, cw->sessions_at), min64(cw->tidy_at, cw->deadline_at));

    return min64(due, min64(cw->approvals_at, cw->retention.at));
}

static void clock_loop(struct clock_work *cw)
{
    struct engine *en = cw->en;

    cw->tidy_at = clock_mono_us() + TIDY_INTERVAL_US;
    cw->deadline_at = en->settings->deadline_timeout_us > 0 ? 0 : INT64_MAX;
    cw->retention = (struct retention_sweep){
        .engine = en,
        .reader = cw->reader,
        .batch = cw->batch,
        .at = en->retention_us > 0
                  ? clock_mono_us() + min64(en->cleanup_interval_us, FIRST_SWEEP_US)
                  : INT64_MAX,
    };
    cw->recovering = store_was_alone(en->store);
    cw->at_start = true;
    while (!engine_is_stopping(en)) {
        recover_again(cw);
        if (cw->recovering && !recover_leased(cw) &&
            clock_wait(en, clock_mono_us() + RETRY_US, false))
            return;
        do_what_is_due(cw);
        if (!cw->recovering && clock_wait(en, next_due(cw), true))
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
        if (clock_wait(cw.en, clock_mono_us() + RETRY_US, false))
            break;
    }
    if (cw.reader != NULL)
        clock_loop(&cw);
    store_reader_close(cw.reader);
    arena_free(&cw.arena);
    free(cw.batch);
    return NULL;
}

/* ---- life ---- */

void cond_init_mono(pthread_cond_t *cond)
{
    pthread_condattr_t attr;

    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    pthread_cond_init(cond, &attr);
    pthread_condattr_destroy(&attr);
}

void clock_init(struct engine *en)
{
    pthread_mutex_init(&en->clock_lock, NULL);
    cond_init_mono(&en->clock_cond);
}

bool clock_start(struct engine *en, struct err *e)
{
    if (pthread_create(&en->clock_thread, NULL, clock_main, en) != 0)
        return err_set(e, ERR_INTERNAL, "cannot start a thread");
    en->clock_started = true;
    return true;
}

void clock_stop(struct engine *en)
{
    pthread_mutex_lock(&en->clock_lock);
    en->stopping = true;
    pthread_cond_broadcast(&en->clock_cond);
    pthread_mutex_unlock(&en->clock_lock);
    if (en->clock_started)
        pthread_join(en->clock_thread, NULL);
    en->clock_started = false;
}

void clock_free(struct engine *en)
{
    pthread_cond_destroy(&en->clock_cond);
    pthread_mutex_destroy(&en->clock_lock);
}
