/* SPDX-License-Identifier: Apache-2.0
 * The order of things: store, engine, agents of the manifest, API, sender; and backwards to the
 * end. */
#include "cli/serve.h"

#include "api/api.h"
#include "base/clock.h"
#include "cli/manifest.h"
#include "dispatch/judge.h"
#include "policy/cache.h"

#include <errno.h>
#include <pthread.h>
#include <semaphore.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

static const int64_t DRAIN_US = 8 * US_PER_S;
static const int64_t STOP_US = 500 * US_PER_MS;
static const int64_t END_US = 9 * US_PER_S; /* what waits with a bound has ended by then */

struct kernel {
    const struct config *config;
    struct store *store;
    struct policy_cache *policies;
    struct engine *engine;
    struct api *api;
    struct sender *sender;
    struct judge_caller *judge; /* NULL: none is configured */
    struct arena arena;
    struct manifest manifest;
};

static void on_dispatches(void *ctx)
{
    struct kernel *k = ctx;

    sender_wake(k->sender);
}

static void on_events(void *ctx, const struct uuid *execution_id, bool ended)
{
    struct kernel *k = ctx;

    api_events(k->api, execution_id, ended);
}

static void on_agent(void *ctx, struct str agent_id)
{
    struct kernel *k = ctx;

    api_agent_changed(k->api, agent_id);
}

static void on_delta(void *ctx, const struct uuid *execution_id, struct str note)
{
    struct kernel *k = ctx;

    api_delta(k->api, execution_id, note);
}

static void on_judge(void *ctx, struct command *cmd)
{
    struct kernel *k = ctx;

    judge_ask(k->judge, cmd);
}

/* The folder of the development database is made; nobody else's is. */
static bool make_parent(const char *path, struct err *e)
{
    char *copy = xstrdup(str_of(path));
    char *slash = strrchr(copy, '/');
    bool ok = true;

    if (slash != NULL && slash != copy) {
        *slash = '\0';
        if (mkdir(copy, 0755) != 0 && errno != EEXIST)
            ok = err_set(e, ERR_UNAVAILABLE, "cannot create the folder %s: %s", copy,
                         strerror(errno));
    }
    free(copy);
    return ok;
}

static const char *store_url(struct kernel *k, struct err *e)
{
    const struct config *c = k->config;

    if (!c->dev)
        return c->db_url;
    if (c->memory)
        return "memory:";
    if (!make_parent(c->db_path, e))
        return NULL;
    /* An absolute path begins with the third slash: sqlite:///path; a relative one follows two. */
    return arena_printf(&k->arena, "sqlite://%s", c->db_path).p;
}

/* It has compiled when the manifest was read. */
static void cache_policy(struct kernel *k, const struct manifest_agent *agent)
{
    struct err e;
    struct policy *p = policy_compile(agent->policy_bundle, "", &e);

    if (p != NULL)
        policy_cache_put(k->policies, &agent->policy_hash, p);
    policy_unref(p);
}

static bool register_agents(struct kernel *k, struct err *e)
{
    for (size_t i = 0; i < k->manifest.n; i++) {
        const struct manifest_agent *agent = &k->manifest.agents[i];
        struct command cmd = {.type = COMMAND_AGENT_REGISTER, .arena = &k->arena};

        cmd.in.agent_register = (struct agent_registration){
            .id = agent->id,
            .webhook_url = agent->webhook_url,
            .secret = agent->secret,
            .lease_timeout_us = agent->lease_timeout_seconds * US_PER_S,
            .policy_bundle = agent->policy_bundle,
            .policy_hash = agent->policy_hash,
        };
        if (str_present(agent->policy_bundle))
            cache_policy(k, agent);
        engine_run(k->engine, &cmd);
        if (cmd.verdict != VERDICT_DONE)
            return err_set(e, cmd.err.code, "agent %.*s: %s", STR_ARG(agent->id), cmd.err.message);
    }
    return true;
}

static void log_connections(const struct connections *c)
{
    log_event(LOG_INFO, "store.connections", {"max", log_int(connections_total(c))},
              {"executors", log_int(c->executors)}, {"readers", log_int(c->readers)},
              {"forks", log_int(c->small_forks + c->large_forks)},
              {"others", log_int(CONNECTIONS_SINGLE)});
}

static bool boot_store(struct kernel *k, const struct connections *connections, struct err *e)
{
    struct store_options options = {.url = store_url(k, e),
                                    .leader_key = k->config->leader_lock_key,
                                    .max_connections = connections_total(connections)};

    if (options.url == NULL)
        return false;
    k->store = store_open(&options, e);
    if (k->store != NULL && !store_is_sqlite(k->store))
        log_connections(connections);
    return k->store != NULL;
}

static bool new_judge(struct kernel *k, struct err *e)
{
    const struct judge_options options = {
        .engine = k->engine,
        .url = k->config->judge_url,
        .api_key = k->config->judge_api_key,
    };

    if (options.url != NULL)
        k->judge = judge_new(&options, e);
    return options.url == NULL || k->judge != NULL;
}

/* Agents are there before anyone can ask for them, and the judge before a step can need it. */
static bool start(struct kernel *k, struct err *e)
{
    return engine_start(k->engine, e) && register_agents(k, e) &&
           (k->judge == NULL || judge_start(k->judge, e)) && api_start(k->api, e) &&
           sender_start(k->sender, e);
}

static bool boot(struct kernel *k, struct err *e)
{
    const struct config *c = k->config;
    struct connections connections = connections_for(config_max_connections(c));
    struct engine_options engine = {
        .settings = &c->kernel,
        .connections = &connections,
        .deadline_check_interval_us = c->deadline_check_interval_us,
        .cleanup_interval_us = c->cleanup_interval_us,
        .retention_us = c->retention_us,
        .signals = {k, on_dispatches, on_events, on_agent, on_delta, on_judge},
    };
    struct sender_options sender = {
        .concurrency = c->dispatch_concurrency,
        .timeout_us = c->kernel.dispatch_timeout_us,
        .private_ranges = c->webhook_private,
    };
    struct api_options api = {
        .bearer_token = c->bearer_token,
        .dev = c->dev,
        .listen_addr = c->listen_addr,
        .max_body_bytes = c->max_body_bytes,
    };

    if (c->manifest_path != NULL && !manifest_load(c->manifest_path, &k->arena, &k->manifest, e))
        return false;
    if (!boot_store(k, &connections, e))
        return false;
    k->policies = policy_cache_new();
    engine.store = k->store;
    engine.policies = k->policies;
    k->engine = engine_new(&engine, e);
    if (k->engine == NULL)
        return false;
    sender.engine = api.engine = k->engine;
    k->sender = sender_new(&sender, e);
    if (k->sender == NULL || !new_judge(k, e))
        return false;
    api.sender_stats = sender_stats(k->sender);
    k->api = api_new(&api, e); /* binds: a port that is taken fails before anything runs */
    return k->api != NULL && start(k, e);
}

/* False: a thread is not through with its work, and what it uses is still there. Nothing is lost by
 * that: what was not answered was not decided. */
static bool shut_down(struct kernel *k)
{
    int64_t until_us = clock_mono_us() + DRAIN_US;
    bool drained;

    sender_stop(k->sender);
    drained = k->api == NULL || api_drain(k->api, until_us);
    judge_stop(k->judge); /* what it has not answered by now must not hold the engine up */
    if ((k->engine != NULL && !engine_stop(k->engine, STOP_US)) || !drained)
        return false;
    api_free(k->api);
    sender_free(k->sender);
    engine_free(k->engine);
    policy_cache_free(k->policies);
    judge_free(k->judge);
    if (k->store != NULL)
        store_close(k->store);
    arena_free(&k->arena);
    return true;
}

/* A database that does not answer may keep any thread for ever: no end waits for that. */
struct end {
    sem_t over;
    int code;
};

static void *end_in_time(void *arg)
{
    struct end *end = arg;
    int64_t until_us = clock_mono_us() + END_US;
    const struct timespec until = {until_us / US_PER_S, until_us % US_PER_S * 1000};

    while (sem_clockwait(&end->over, CLOCK_MONOTONIC, &until) != 0) {
        if (errno == EINTR)
            continue;
        log_event(LOG_WARN, "kernel.stopped",
                  {"error", STR("not all was done in time: does the database answer?")});
        _exit(end->code);
    }
    return NULL;
}

static bool shut_down_in_time(struct kernel *k, int code)
{
    struct end end = {.code = code};
    pthread_t watch;
    bool watched, clean;

    sem_init(&end.over, 0, 0);
    watched = pthread_create(&watch, NULL, end_in_time, &end) == 0;
    clean = shut_down(k);
    sem_post(&end.over);
    if (watched)
        pthread_join(watch, NULL);
    sem_destroy(&end.over);
    return clean;
}

/* What a browser or curl can be given: a wildcard address is reached through the loopback one. */
static struct str base_url(struct kernel *k)
{
    const char *addr = k->config->listen_addr, *colon = strrchr(addr, ':');
    struct str host = str_make(addr, colon == NULL ? strlen(addr) : (size_t)(colon - addr));

    if (str_empty(host) || str_eq(host, STR("0.0.0.0")) || str_eq(host, STR("[::]")))
        host = STR("127.0.0.1");
    return arena_printf(&k->arena, "http://%.*s:%u", STR_ARG(host), api_port(k->api));
}

/* What a command says to reach this kernel; "" when it looks there by itself. */
static struct str url_words(struct kernel *k, struct str url)
{
    bool looked_for =
        str_eq(url, STR("http://127.0.0.1:8080")) || str_eq(url, STR("http://localhost:8080"));

    return looked_for ? STR("") : arena_printf(&k->arena, " --url %.*s", STR_ARG(url));
}

/* How many the database has; -1: nobody can say. */
static int64_t count_agents(struct kernel *k)
{
    struct err ignored;
    struct store_reader *reader = store_reader_open(k->store, &ignored);
    struct agent_view *agents = NULL;
    size_t n = 0;
    bool read = reader != NULL && store_list_agents(reader, &k->arena, &agents, &n, &ignored);

    store_reader_close(reader);
    return read ? (int64_t)n : -1;
}

static void greet_manifest(struct kernel *k, struct str reach)
{
    struct str first = k->manifest.agents[0].id;

    for (size_t i = 0; i < k->manifest.n; i++)
        printf("  agent     %.*s at %.*s\n", STR_ARG(k->manifest.agents[i].id),
               STR_ARG(k->manifest.agents[i].webhook_url));
    printf("  try       rebuno exec create %.*s INPUT --watch%.*s   (its input: rebuno agent get "
           "%.*s%.*s)\n",
           STR_ARG(first), STR_ARG(reach), STR_ARG(first), STR_ARG(reach));
}

static void greet_agents(struct kernel *k, struct str url)
{
    struct str reach = url_words(k, url);

    if (k->manifest.n > 0) {
        greet_manifest(k, reach);
        return;
    }
    int64_t n = count_agents(k);
    if (n == 0)
        printf("  no agents yet: add some with 'rebuno agent add MANIFEST%.*s', or start with "
               "--config\n",
               STR_ARG(reach));
    else if (n > 0)
        printf("  agents    %lld, from before: rebuno agent ls%.*s\n", (long long)n,
               STR_ARG(reach));
}

static void greet(struct kernel *k)
{
    struct str url = base_url(k);
    const struct config *c = k->config;

    printf("rebuno %s, listening on %.*s\n", REBUNO_VERSION, STR_ARG(url));
    if (c->dev) {
        printf("  database  %s\n", c->memory ? "none: everything is gone at exit" : c->db_path);
        greet_agents(k, url);
    }
    fflush(stdout);
    log_event(LOG_INFO, "kernel.started", {"url", url}, {"version", STR(REBUNO_VERSION)});
}

/* The first signal asks for an orderly end, a second one for the end. */
static void wait_for_signal(const sigset_t *set)
{
    int sig;

    while (sigwait(set, &sig) != 0)
        ;
    log_event(LOG_INFO, "kernel.stopping", {"signal", str_of(sigabbrev_np(sig))});
    signal(SIGTERM, SIG_DFL);
    signal(SIGINT, SIG_DFL);
    pthread_sigmask(SIG_UNBLOCK, set, NULL);
}

int serve_run(const struct config *config)
{
    struct kernel k = {.config = config};
    struct err e = {0};
    sigset_t set;
    int code = 1;
    bool clean;

    log_setup(config->log_level, config->log_format);
    signal(SIGPIPE, SIG_IGN);
    signal(SIGXFSZ, SIG_IGN); /* a file that may not grow is a full disk */
    sigemptyset(&set);
    sigaddset(&set, SIGTERM);
    sigaddset(&set, SIGINT);
    pthread_sigmask(SIG_BLOCK, &set, NULL); /* before the first thread: they inherit it */
    if (boot(&k, &e)) {
        greet(&k);
        wait_for_signal(&set);
        code = 0;
    } else {
        fprintf(stderr, "rebuno: %s\n", e.message);
    }
    clean = shut_down_in_time(&k, code);
    if (code == 0)
        log_fields(LOG_INFO, "kernel.stopped", NULL, 0);
    fflush(stdout);
    if (!clean)
        _exit(code);
    return code;
}
