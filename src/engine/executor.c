/* SPDX-License-Identifier: Apache-2.0
 * The turn of an executor: gather, load, decide, apply, commit, tell.
 *
 * A command whose decision needs work that others may not wait for takes no part in its group: when
 * the group is over it is handed out (set_aside), whole and once, and decided anew when it is back.
 * A group that failed is decided again with it, so what it was told then does not count.
 *
 * Failures. A race with another kernel: the group is loaded and decided again, the second time
 * command by command, so that none can fail its neighbours. A store that cannot be written: SQLite
 * answers at once (503) and tries again when there may be room; Postgres is waited for, five
 * seconds from when each command came. */
#include "engine/executor.h"

#include "base/clock.h"
#include "base/fault.h"
#include "base/log.h"
#include "engine/aside.h"
#include "engine/decide.h"
#include "engine/follow_up.h"

#include <stdlib.h>
#include <time.h>

enum {
    GROUP_MAX = 512,        /* commands a transaction */
    GROUP_BYTES = 16 << 20, /* of payloads a transaction */
    ROUNDS_MAX = 4,         /* loads after which a command is decided in a group of its own */
    RACES_MAX = 20,         /* times that one command alone may lose to other kernels */
    RECLAIMS_A_SWEEP = 1000,
};
static const int64_t RECOVERY_PAUSE_US = 100 * US_PER_MS;
static const int64_t PATIENCE_US = 5 * US_PER_S;

enum outcome {
    GROUP_OK,
    GROUP_RACE,  /* nothing happened; decide again */
    GROUP_SPLIT, /* nothing happened; decide one by one */
    GROUP_DOWN,  /* nothing happened; the store cannot be used (err) */
    GROUP_LOST,  /* the commit's fate is unknown (err) */
};

/* ---- answering ---- */

static void finish(struct executor *x, struct command *cmd)
{
    engine_answered(x->engine);
    cmd->done(cmd);
}

static void fail_all(struct executor *x, struct command **cmds, size_t n, const struct err *e)
{
    for (size_t i = 0; i < n; i++) {
        cmds[i]->verdict = VERDICT_REFUSED;
        cmds[i]->unknown = e->details[0] != '\0';
        cmds[i]->err = *e;
        if (e->code == ERR_STORE_RACE)
            err_set(&cmds[i]->err, ERR_UNAVAILABLE,
                    "too many kernels at once wanted this row; try again");
        finish(x, cmds[i]);
    }
}

static void add(atomic_uint_fast64_t *counter, uint64_t n)
{
    atomic_fetch_add_explicit(counter, n, memory_order_relaxed);
}

/* Its answer waits for work that no other command may wait for. It comes back by engine_submit. */
static void set_aside(struct executor *x, struct command *cmd)
{
    const struct engine_signals *s = &x->engine->signals;

    cmd->aside = true;
    cmd->in.submit.found.rounds++;
    if (cmd->out.step.wanted.work != POLICY_WORK_JUDGE) {
        aside_push(x->engine->aside, cmd);
        return;
    }
    ASSERT(s->judge != NULL); /* without one the rule does not ask */
    s->judge(s->ctx, cmd);
}

/* The fate of a commit is unknown: each may or may not have happened. What was aside has no part in
 * it. */
static void lose_all(struct executor *x, struct command **cmds, size_t n, struct err *e)
{
    err_outcome_unknown(e);
    for (size_t i = 0; i < n; i++) {
        if (cmds[i]->verdict == VERDICT_ASIDE)
            set_aside(x, cmds[i]);
        else
            fail_all(x, &cmds[i], 1, e);
    }
}

/* ---- one group ---- */

/* Rows lock in one order: agents, executions, buckets. So agents and executions must all be named
 * at once; and buckets are not asked for while anything else is: who wants one names it again. */
static void hold_back_buckets(struct working_set *ws)
{
    size_t buckets = ws->need.buckets.n;

    ws->need.buckets.n = 0;
    if (!ws_has_needs(ws))
        ws->need.buckets.n = buckets;
}

/* Loading this would lock out of order. */
static bool needs_locks(const struct need *need, bool has_buckets)
{
    return need->agents.n + need->sessions.n + need->executions.n > 0 ||
           (has_buckets && need->buckets.n > 0);
}

static enum outcome load_outcome(const struct err *e)
{
    return e->code == ERR_STORE_RACE ? GROUP_RACE : GROUP_DOWN;
}

static int64_t mono_ns(void)
{
    struct timespec ts;

    clock_gettime(CLOCK_MONOTONIC, &ts);
    return ts.tv_sec * INT64_C(1000000000) + ts.tv_nsec;
}

static void decide(struct working_set *ws, struct command *cmd)
{
    const struct changes *c = &ws->changes;
    size_t freed = c->freed.n, owed = c->owed.n, orphaned = c->orphaned.n;
    int64_t began_ns;

    if (cmd->type != COMMAND_SUBMIT) {
        command_decide(ws, cmd);
        cmd->frees = c->freed.n > freed ? c->freed.n : 0;
        cmd->owes = c->owed.n > owed ? c->owed.n : 0;
        cmd->orphans = c->orphaned.n > orphaned ? c->orphaned.n : 0;
        return;
    }
    began_ns = mono_ns();
    command_decide(ws, cmd);
    cmd->decide_ns += mono_ns() - began_ns;
}

/* Decides until nothing is needed. On SQLite the one writer holds everything, so later rounds may
 * name anything. */
static enum outcome decide_group(struct executor *x, struct command **cmds, size_t n, struct err *e)
{
    struct working_set *ws = &x->ws;
    bool has_buckets = false;

    for (size_t i = 0; i < n; i++)
        command_names(ws, cmds[i]);
    if (!store_load(x->writer, ws, e))
        return load_outcome(e);
    for (size_t i = 0; i < n; i++)
        cmds[i]->verdict = VERDICT_NEED;
    for (int round = 0;; round++) {
        size_t undecided = 0;

        for (size_t i = 0; i < n; i++) {
            if (cmds[i]->verdict != VERDICT_NEED)
                continue;
            decide(ws, cmds[i]);
            undecided += cmds[i]->verdict == VERDICT_NEED;
        }
        if (undecided == 0)
            return GROUP_OK;
        ASSERT(ws_has_needs(ws));
        hold_back_buckets(ws);
        if (n > 1 &&
            (round == ROUNDS_MAX || (!ws->keep_leased && needs_locks(&ws->need, has_buckets))))
            return GROUP_SPLIT;
        has_buckets |= ws->need.buckets.n > 0;
        ASSERT(round < 64); /* each round names something that the set does not know yet */
        if (!store_load(x->writer, ws, e))
            return load_outcome(e);
    }
}

static enum outcome commit_group(struct executor *x, struct command **cmds, size_t n, struct err *e)
{
    bool unknown = false;

    news_gather(&x->news, &x->ws);
    for (size_t i = 0; i < n; i++) {
        if (!command_keep_answer(
                cmds[i])) { /* before anything is durable, so that it can still be refused */
            err_set(e, ERR_INTERNAL, "out of memory");
            return n > 1 ? GROUP_SPLIT : GROUP_DOWN;
        }
    }
    if (store_commit(x->writer, &x->ws, &unknown, e))
        return GROUP_OK;
    if (unknown)
        return GROUP_LOST;
    return e->code == ERR_STORE_RACE ? GROUP_RACE : GROUP_DOWN;
}

static enum outcome try_group(struct executor *x, struct command **cmds, size_t n, struct err *e)
{
    enum outcome o = decide_group(x, cmds, n, e);

    if (o == GROUP_OK)
        o = commit_group(x, cmds, n, e);
    if (o != GROUP_OK) {
        store_abandon(x->writer);
        ws_clear(&x->ws);
        if (x->ws.keep_leased) /* the leases went with the set; they must be loaded to run out */
            atomic_store(&x->engine->reload_leased, true);
        return o;
    }
    add(&x->engine->stats.groups, 1);
    add(&x->engine->stats.commands, n);
    if (x->ws.keep_leased)
        lease_board_update(&x->engine->leases, &x->ws);
    FAULT("engine.signals.before");
    news_tell(&x->news, x->engine, cmds, n);
    FAULT("engine.answers.before");
    for (size_t i = 0; i < n; i++) {
        if (cmds[i]->verdict == VERDICT_ASIDE)
            set_aside(x, cmds[i]);
        else if (cmds[i]->frees + cmds[i]->owes + cmds[i]->orphans > 0)
            follow_up(x->engine, cmds[i], &x->ws.changes);
        else
            finish(x, cmds[i]);
        FAULT("engine.answers.between");
    }
    ws_end_group(&x->ws);
    return GROUP_OK;
}

/* ---- when the store is away ---- */

static void set_writable(struct executor *x, bool writable, const struct err *e)
{
    if (atomic_exchange(&x->engine->writable, writable) == writable)
        return;
    if (writable)
        log_fields(LOG_INFO, "store.available", NULL, 0);
    else
        log_event(LOG_ERROR, "store.unavailable", {"error", str_of(e->message)});
}

/* Tries once, not more often than the pause allows. */
static bool recover(struct executor *x, struct err *e)
{
    int64_t now = clock_mono_us();

    if (now < x->next_recovery_us)
        return err_set(e, ERR_UNAVAILABLE, "the store is unavailable; try again in a moment");
    if (store_writer_recover(x->writer, e)) {
        x->broken = false;
        set_writable(x, true, NULL);
        return true;
    }
    x->next_recovery_us = clock_mono_us() + RECOVERY_PAUSE_US;
    set_writable(x, false, e);
    return false;
}

/* Postgres may come back within the patience of whoever waits; a full disk will not. */
static bool wait_for_store(struct executor *x, int64_t since_us, struct err *e)
{
    while (!recover(x, e)) {
        int64_t now = clock_mono_us();
        struct timespec pause = {0, 20 * 1000 * 1000};

        if (x->ws.keep_leased || now - since_us >= PATIENCE_US || atomic_load(&x->engine->draining))
            return false;
        nanosleep(&pause, NULL);
    }
    return true;
}

static void run_alone(struct executor *x, struct command *cmd)
{
    struct err e = {0};

    for (int races = 0; races < RACES_MAX;) {
        enum outcome o;

        if (x->broken && !wait_for_store(x, cmd->queued_us, &e))
            break;
        o = try_group(x, &cmd, 1, &e);
        if (o == GROUP_OK)
            return;
        if (o == GROUP_LOST) {
            x->broken = true;
            lose_all(x, &cmd, 1, &e);
            return;
        }
        if (o == GROUP_DOWN) {
            x->broken = true;
            set_writable(x, e.code != ERR_UNAVAILABLE, &e);
            if (x->ws.keep_leased || e.code != ERR_UNAVAILABLE)
                break;
        } else {
            races++;
        }
    }
    fail_all(x, &cmd, 1, &e);
}

static void run_group(struct executor *x, struct command **cmds, size_t n)
{
    struct err e = {0};
    enum outcome o = GROUP_SPLIT;

    if (!x->broken || wait_for_store(x, cmds[0]->queued_us, &e)) {
        o = try_group(x, cmds, n, &e);
    } else if (x->ws.keep_leased) {
        fail_all(x, cmds, n, &e);
        return;
    }
    if (o == GROUP_OK)
        return;
    if (o == GROUP_LOST) {
        x->broken = true;
        lose_all(x, cmds, n, &e);
        return;
    }
    if (o == GROUP_DOWN) {
        x->broken = true;
        x->next_recovery_us = 0; /* what is too large for the disk must not fail what fits */
    }
    for (size_t i = 0; i < n; i++)
        run_alone(x, cmds[i]);
}

/* ---- work between groups ---- */

static void reclaim_done(struct command *cmd)
{
    char id[UUID_TEXT_LEN];

    uuid_format(&cmd->in.reclaim, id);
    if (cmd->verdict == VERDICT_DONE && cmd->out.reclaimed)
        log_event(LOG_WARN, "lease.expired", {"execution_id", str_make(id, sizeof(id))});
    free(cmd);
}

static void sweep(struct executor *x)
{
    struct uuid *ids;
    size_t n;
    struct err e;

    if (!store_expired_leases(x->writer, &x->ws, RECLAIMS_A_SWEEP, &x->scratch, &ids, &n, &e)) {
        add(&x->engine->stats.worker_errors, 1);
        x->broken = true;
        n = 0;
    }
    for (size_t i = 0; i < n; i++) {
        struct command *cmd = xzalloc(sizeof(*cmd));

        cmd->type = COMMAND_RECLAIM;
        cmd->in.reclaim = ids[i];
        cmd->done = reclaim_done;
        engine_submit(x->engine, cmd);
    }
    arena_reset(&x->scratch);
}

static void tidy(struct executor *x)
{
    bool more = false;
    struct err e;

    if (!store_tidy(x->writer, &x->ws, &more, &e)) {
        add(&x->engine->stats.worker_errors, 1);
        x->broken = true; /* or a kernel that is idle would not look whether it is writable again */
        log_event(LOG_WARN, "store.tidy_failed", {"error", str_of(e.message)});
    }
    if (more) /* the next slice, after the commands that have come meanwhile */
        atomic_store(&x->tidy_due, true);
}

static void between_groups(struct executor *x)
{
    struct err e;

    if (x->broken && !recover(x, &e))
        return;
    if (atomic_exchange(&x->sweep_due, false))
        sweep(x);
    if (atomic_exchange(&x->tidy_due, false))
        tidy(x);
}

/* What keeps an execution is looked for in the database: no command of the same group may bring
 * about more of it. */
static bool is_unlink(const struct command *cmd)
{
    return cmd->type == COMMAND_UNLINK;
}

static struct queue_node *run_gathered(struct executor *x, struct queue_node *node)
{
    size_t n = 0, bytes = 0;

    while (node != NULL && n < GROUP_MAX) {
        struct command *cmd = (struct command *)node;

        if (n > 0 && (bytes + cmd->bytes > GROUP_BYTES || is_unlink(cmd) != is_unlink(x->group[0])))
            break;
        bytes += cmd->bytes;
        node = node->next;
        x->group[n++] = cmd;
    }
    run_group(x, x->group, n);
    return node;
}

/* Work between groups does not wait for commands, but for the next try while the store is away. One
 * that is to stop waits for nothing: what came last may have used up the wake-up. */
static int64_t wait_until(const struct executor *x)
{
    if (atomic_load(&x->stopping))
        return 0;
    if (!atomic_load(&x->tidy_due))
        return INT64_MAX;
    return x->broken ? x->next_recovery_us : 0;
}

static void *executor_main(void *arg)
{
    struct executor *x = arg;

    for (;;) {
        struct queue_node *node = queue_take_all(x->queue, wait_until(x));

        if (node == NULL && atomic_load(&x->stopping))
            return NULL;
        while (node != NULL)
            node = run_gathered(x, node);
        between_groups(x);
    }
}

/* ---- life ---- */

bool executor_open(struct executor *x, struct engine *en, struct err *e)
{
    uint64_t seed;

    *x = (struct executor){.engine = en};
    x->queue = queue_new();
    x->group = xmalloc(GROUP_MAX * sizeof(struct command *));
    rand_bytes(&seed, sizeof(seed));
    prng_seed(&x->random, seed);
    ws_init(&x->ws, en->settings, &x->ids, &x->random);
    x->ws.policies = en->policies;
    x->ws.keep_leased = store_is_sqlite(en->store);
    x->writer = store_writer_open(en->store, e);
    return x->writer != NULL;
}

bool executor_start(struct executor *x, struct err *e)
{
    if (pthread_create(&x->thread, NULL, executor_main, x) != 0)
        return err_set(e, ERR_INTERNAL, "cannot start a thread");
    x->started = true;
    return true;
}

void executor_stop(struct executor *x)
{
    if (!x->started)
        return;
    atomic_store(&x->stopping, true);
    queue_wake(x->queue);
    pthread_join(x->thread, NULL);
    x->started = false;
}

void executor_close(struct executor *x)
{
    if (x->queue == NULL)
        return;
    ws_free(&x->ws);
    arena_free(&x->scratch);
    store_writer_close(x->writer);
    queue_free(x->queue);
    free(x->group);
    news_free(&x->news);
}
