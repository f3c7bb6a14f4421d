/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/aside.h"

#include "base/clock.h"
#include "base/digest.h"
#include "base/log.h"
#include "engine/executor.h"

#include <stdlib.h>
#include <sys/resource.h>
#include <unistd.h>

enum { WORKERS_MAX = 4, AGENT_WORKERS_MAX = 2, NICENESS = 19 };
/* After a failed read, doubled each time: the tries that a decision has must not pass in one
 * moment. */
static const int64_t RETRY_PAUSE_US = 10 * US_PER_MS;

struct aside {
    struct engine *engine; /* borrowed */
    /* Compiled anew for what is evaluated here: a regex locks its states while it makes new ones,
     * and no executor may wait for that. */
    struct policy_cache *own;
    pthread_t workers[WORKERS_MAX];
    pthread_mutex_t read_lock;   /* of the reader */
    struct store_reader *reader; /* NULL while it is not needed */
    pthread_mutex_t lock;        /* everything below */
    pthread_cond_t cond;
    struct queue_node *head, **tail;
    unsigned n_workers, n_idle, n_queued;
    unsigned n_numbered; /* workers that have taken their place in `running` */
    /* Workers that one agent's work may take: not all, since what others need of a bundle would
     * wait for it; and not every core. */
    unsigned share;
    /* By worker: the hash of the agent whose work is under way, not 0; 0: idle. Not its id: the
     * command that holds it may be gone before the worker is back. */
    uint64_t running[WORKERS_MAX];
    bool stopping;
};

struct worker { /* the thread's own */
    struct aside *aside;
    unsigned number; /* its place in the aside's arrays */
    struct engine *engine;
};

/* ---- the work ---- */

static void pause_us(int64_t us)
{
    struct timespec ts = {us / US_PER_S, us % US_PER_S * 1000};

    nanosleep(&ts, NULL);
}

/* Not while another reads: that one closes it when it becomes idle, or fails. */
static void close_reader(struct aside *a)
{
    if (pthread_mutex_trylock(&a->read_lock) != 0)
        return;
    store_reader_close(a->reader);
    a->reader = NULL;
    pthread_mutex_unlock(&a->read_lock);
}

static void read_failed(struct worker *w, unsigned rounds, const struct err *e)
{
    static struct log_limit limit;

    atomic_fetch_add(&w->engine->stats.worker_errors, 1);
    if (log_allowed(&limit, 6))
        log_event(LOG_WARN, "worker.failed", {"worker", STR("policy")},
                  {"error", str_of(e->message)});
    close_reader(w->aside);
    pause_us(RETRY_PAUSE_US << (rounds < 7 ? rounds : 7));
}

static bool read_with(struct store_reader *r, const struct command *cmd, struct arena *a,
                      struct str *bundle, struct err *e)
{
    const struct step_submission *in = &cmd->in.submit;
    struct agent_view agent;
    bool found;

    if (cmd->out.step.wanted.own)
        return store_read_own_policy(r, &in->execution_id, a, bundle, e);
    if (!store_read_agent(r, in->agent_id, a, &agent, &found, e))
        return false;
    *bundle = found ? agent.policy_bundle : STR_NONE;
    return true;
}

/* The execution's own bundle, or its agent's; absent: it has none any more. */
static bool read_bundle(struct worker *w, const struct command *cmd, struct arena *arena,
                        struct str *bundle, struct err *e)
{
    struct aside *a = w->aside;
    bool ok;

    pthread_mutex_lock(&a->read_lock);
    if (a->reader == NULL)
        a->reader = store_reader_open(a->engine->store, e);
    ok = a->reader != NULL && read_with(a->reader, cmd, arena, bundle, e);
    pthread_mutex_unlock(&a->read_lock);
    return ok;
}

/* Whether the bundle has changed since it was asked for is found out by the rule. */
static void put_bundle(struct policy_cache *into, struct str agent_id, struct str bundle)
{
    struct err e;
    struct policy *p = policy_compile(bundle, "", &e);
    struct hash hash;

    digest_sha256(&bundle, 1, hash.b);
    if (p == NULL)
        log_event(LOG_ERROR, "policy.unusable", {"agent_id", agent_id},
                  {"error", str_of(e.message)});
    policy_cache_put(into, &hash, p);
    policy_unref(p);
}

/* The bundle that the decision asked for, referenced; compiled if it is not in the cache yet. NULL:
 * it does not compile, or it could not be had. */
static struct policy *bundle_of(struct worker *w, const struct command *cmd,
                                struct policy_cache *cache)
{
    const struct hash *hash = &cmd->out.step.wanted.hash;
    struct str id = cmd->in.submit.agent_id;
    struct arena arena = {0};
    struct str bundle;
    struct err e;
    bool known;
    struct policy *p = policy_cache_get(cache, hash, &known);

    if (known)
        return p;
    if (!read_bundle(w, cmd, &arena, &bundle, &e))
        read_failed(w, cmd->in.submit.found.rounds, &e);
    else if (str_present(bundle))
        put_bundle(cache, id, bundle);
    arena_free(&arena);
    return policy_cache_get(cache, hash, &known);
}

static void match(struct worker *w, struct command *cmd)
{
    const struct step_submission *in = &cmd->in.submit;
    const struct policy_input input = {in->agent_id, in->kind, in->target, in->args};
    struct policy_found *found = &cmd->in.submit.found;
    struct policy_match match;
    struct policy *p = bundle_of(w, cmd, w->aside->own);

    if (p == NULL) /* the rule asks again */
        return;
    policy_evaluate(p, &input, &match);
    found->matched = true;
    found->judged = false;
    found->hash = cmd->out.step.wanted.hash;
    found->rule = match.rule;
    policy_unref(p);
}

static void work(struct worker *w, struct command *cmd)
{
    switch (cmd->out.step.wanted.work) {
    case POLICY_WORK_COMPILE:
        policy_unref(bundle_of(w, cmd, w->engine->policies));
        break;
    case POLICY_WORK_MATCH:
        match(w, cmd);
        break;
    case POLICY_WORK_NONE:
    case POLICY_WORK_JUDGE:
        ASSERT(cmd->out.step.wanted.work == POLICY_WORK_MATCH);
    }
    engine_submit(w->engine, cmd);
}

/* ---- the threads ---- */

static uint64_t agent_of(const struct command *cmd)
{
    return hash_bytes(cmd->in.submit.agent_id) | 1;
}

/* Under the lock. */
static bool has_its_share(const struct aside *a, uint64_t agent)
{
    unsigned n = 0;

    for (unsigned i = 0; i < WORKERS_MAX; i++)
        n += a->running[i] == agent;
    return n >= a->share;
}

/* Under the lock. The oldest whose agent has not its share of the workers. */
static struct command *pop(struct aside *a)
{
    for (struct queue_node **at = &a->head; *at != NULL; at = &(*at)->next) {
        struct command *cmd = (struct command *)*at;

        if (has_its_share(a, agent_of(cmd)))
            continue;
        *at = cmd->node.next;
        if (*at == NULL)
            a->tail = at;
        a->n_queued--;
        return cmd;
    }
    return NULL;
}

/* NULL: it is time to end. Who becomes idle gives up the connection to the database; one who works
 * still may open it again. */
static struct command *take(struct aside *a, struct worker *w)
{
    struct command *cmd;
    bool closed = false;

    pthread_mutex_lock(&a->lock);
    if (a->running[w->number] != 0) { /* its agent may have more that waited for this */
        a->running[w->number] = 0;
        pthread_cond_signal(&a->cond);
    }
    while ((cmd = pop(a)) == NULL && !(a->stopping && a->head == NULL)) {
        if (!closed) {
            pthread_mutex_unlock(&a->lock);
            close_reader(a);
            closed = true;
            pthread_mutex_lock(&a->lock);
            continue;
        }
        a->n_idle++;
        pthread_cond_wait(&a->cond, &a->lock);
        a->n_idle--;
    }
    if (cmd != NULL)
        a->running[w->number] = agent_of(cmd);
    pthread_mutex_unlock(&a->lock);
    return cmd;
}

/* Niceness is a thread's own on Linux. Where it cannot be had only the order of things suffers. */
static void step_back(void)
{
    id_t self = (id_t)gettid();

    (void)pthread_setname_np(pthread_self(), "rebuno-aside");
    (void)setpriority(PRIO_PROCESS, self, getpriority(PRIO_PROCESS, self) + NICENESS);
}

static void *worker_main(void *arg)
{
    struct aside *a = arg;
    struct worker w = {.aside = a, .engine = a->engine};
    struct command *cmd;

    pthread_mutex_lock(&a->lock);
    w.number = a->n_numbered++;
    pthread_mutex_unlock(&a->lock);
    step_back();
    while ((cmd = take(a, &w)) != NULL)
        work(&w, cmd);
    return NULL;
}

/* Under the lock. False: there is nobody to do the work. */
static bool staffed(struct aside *a)
{
    if (a->n_queued > a->n_idle && a->n_workers < WORKERS_MAX &&
        pthread_create(&a->workers[a->n_workers], NULL, worker_main, a) == 0)
        a->n_workers++;
    return a->n_workers > 0;
}

void aside_push(struct aside *a, struct command *cmd)
{
    pthread_mutex_lock(&a->lock);
    cmd->node.next = NULL;
    *a->tail = &cmd->node;
    a->tail = &cmd->node.next;
    a->n_queued++;
    if (staffed(a)) {
        pthread_cond_signal(&a->cond);
        cmd = NULL;
    } else {
        cmd = pop(a); /* no worker ever was, so it is the only one */
    }
    pthread_mutex_unlock(&a->lock);
    if (cmd != NULL) /* after a few rounds of this the step is denied */
        engine_submit(a->engine, cmd);
}

/* ---- life ---- */

struct aside *aside_new(struct engine *en)
{
    struct aside *a = xzalloc(sizeof(*a));

    a->engine = en;
    a->own = policy_cache_new();
    a->tail = &a->head;
    a->share = sysconf(_SC_NPROCESSORS_ONLN) > AGENT_WORKERS_MAX ? AGENT_WORKERS_MAX : 1;
    pthread_mutex_init(&a->read_lock, NULL);
    pthread_mutex_init(&a->lock, NULL);
    pthread_cond_init(&a->cond, NULL);
    return a;
}

void aside_stop(struct aside *a)
{
    unsigned n;

    pthread_mutex_lock(&a->lock);
    ASSERT(a->head == NULL);
    a->stopping = true;
    n = a->n_workers;
    a->n_workers = 0;
    pthread_cond_broadcast(&a->cond);
    pthread_mutex_unlock(&a->lock);
    for (unsigned i = 0; i < n; i++)
        pthread_join(a->workers[i], NULL);
}

void aside_free(struct aside *a)
{
    if (a == NULL)
        return;
    store_reader_close(a->reader);
    policy_cache_free(a->own);
    pthread_cond_destroy(&a->cond);
    pthread_mutex_destroy(&a->lock);
    pthread_mutex_destroy(&a->read_lock);
    free(a);
}
