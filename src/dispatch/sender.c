/* SPDX-License-Identifier: Apache-2.0
 * The sender's thread. A delivery goes: due (read) → claimed (a command) → posted → answered (a
 * command) → freed. All state belongs to this thread, but the queue by which commands come back. */
#include "dispatch/sender.h"

#include "base/clock.h"
#include "base/fault.h"
#include "base/log.h"
#include "dispatch/webhook.h"

#include <pthread.h>
#include <stdlib.h>

static const int64_t SAFETY_POLL_US = 2 * US_PER_S; /* behind the signals, should one be lost */
static const int64_t RETRY_PAUSE_US =
    100 * US_PER_MS; /* after the store refused a claim or an outcome */
static const int64_t RACE_PAUSE_US = 5 * US_PER_MS; /* after a claim found nothing to claim */
static const int64_t STOP_PATIENCE_US = 500 * US_PER_MS;
static const int64_t NO_SOCKET_PAUSE_US = US_PER_S; /* after this process ran out of descriptors */
enum { PEERS_KEPT = 10000 };

enum standing { UNHEARD, ANSWERS, SILENT }; /* of its last delivery; UNHEARD: there was none yet */

struct peer { /* what is known of an agent as a receiver */
    char *id; /* owned */
    int64_t in_flight;
    enum standing standing;
};

enum stage { CLAIMING, POSTING, ANSWERING };

struct job {
    struct command cmd; /* first: commands come back as queue nodes */
    struct sender *sender;
    struct peer *peer;
    enum stage stage;
    struct arena arena;
    struct webhook hook;
    int64_t started_us;
    struct job *next_retry;
};

struct sender {
    struct sender_options opt;
    struct sender_stats stats;
    CURLM *multi;
    struct store_reader *reader;
    struct queue *returned; /* of struct job: commands that came back */
    struct map
        peers; /* id → struct peer; those that answer are forgotten when there are very many */
    struct job *retries; /* outcomes that the store could not take yet */
    int64_t claims_out, in_flight;
    int64_t next_look_us;  /* monotonic: not before, after a refusal */
    int64_t next_due_us;   /* monotonic: when the next queued dispatch falls due */
    int64_t next_retry_us; /* monotonic */
    LIST(struct job *) transfers;
    atomic_bool wanted; /* something may be due */
    atomic_bool stopping;
    pthread_t thread;
    bool started;
};

/* ---- peers ---- */

static struct peer *peer_of(struct sender *s, struct str id)
{
    struct peer *peer = map_get(&s->peers, id);

    if (peer == NULL) {
        peer = xzalloc(sizeof(*peer));
        peer->id = xstrdup(id);
        map_put(&s->peers, id, peer);
    }
    return peer;
}

static void peer_forget(struct sender *s, struct peer *peer)
{
    if (peer->in_flight > 0 || peer->standing == SILENT || s->peers.count < PEERS_KEPT)
        return;
    map_remove(&s->peers, str_of(peer->id));
    free(peer->id);
    free(peer);
}

static int64_t fair_share(const struct sender *s)
{
    return s->opt.concurrency < 4 ? 1 : s->opt.concurrency / 4;
}

/* How many more deliveries peers of this standing may be given in all: silent ones hold a quarter
 * of the slots at most, and together with those not heard of yet one half. So what is dead leaves
 * room to what is new, and both to what works. */
static int64_t room_for(const struct sender *s, enum standing standing)
{
    int64_t total = s->opt.concurrency, silent = (total + 3) / 4, unproven = (total + 1) / 2;
    struct peer *peer;

    total -= s->in_flight;
    for (size_t i = 0; (peer = map_next(&s->peers, &i)) != NULL;) {
        if (peer->standing == SILENT)
            silent -= peer->in_flight;
        if (peer->standing != ANSWERS)
            unproven -= peer->in_flight;
    }
    if (standing != ANSWERS && unproven < total)
        total = unproven;
    if (standing == SILENT && silent < total)
        total = silent;
    return total;
}

/* ---- jobs ---- */

static void job_free(struct job *job)
{
    struct sender *s = job->sender;

    job->peer->in_flight--;
    peer_forget(s, job->peer);
    s->in_flight--;
    atomic_store(&s->stats.in_flight, s->in_flight);
    webhook_free(&job->hook, s->multi);
    arena_free(&job->arena);
    free(job);
}

/* Executor's thread. */
static void command_done(struct command *cmd)
{
    struct job *job = cmd->ctx;
    struct sender *s = job->sender;

    queue_push(s->returned, &cmd->node);
    curl_multi_wakeup(s->multi);
}

static void submit(struct job *job, enum command_type type, enum stage stage)
{
    job->stage = stage;
    job->cmd.type = type;
    job->cmd.arena = &job->arena;
    job->cmd.done = command_done;
    job->cmd.ctx = job;
    engine_submit(job->sender->opt.engine, &job->cmd);
}

static void claim(struct sender *s, const struct due_dispatch *due)
{
    struct job *job = xzalloc(sizeof(*job));

    job->sender = s;
    job->peer = peer_of(s, due->agent_id);
    job->peer->in_flight++;
    s->in_flight++;
    s->claims_out++;
    job->started_us = clock_mono_us();
    job->cmd.in.delivery.ref.execution_id = due->execution_id;
    job->cmd.in.delivery.ref.dispatch_id = due->dispatch_id;
    job->cmd.in.delivery.agent_id = arena_str(&job->arena, due->agent_id);
    submit(job, COMMAND_CLAIM, CLAIMING);
}

/* Each peer's room in a look for those of one standing. */
static struct agent_cap *caps_for(struct sender *s, enum standing standing, struct arena *a,
                                  size_t *n)
{
    struct agent_cap *caps = arena_array(a, struct agent_cap, s->peers.count + 1);
    struct peer *peer;

    *n = 0;
    for (size_t i = 0; (peer = map_next(&s->peers, &i)) != NULL;) {
        int64_t share = standing == SILENT ? 1 : fair_share(s);

        if (peer->standing != standing || share < peer->in_flight)
            share = peer->in_flight;
        caps[(*n)++] = (struct agent_cap){str_of(peer->id), share - peer->in_flight};
    }
    return caps;
}

static bool claim_due(struct sender *s, enum standing standing, struct err *e)
{
    int64_t room = room_for(s, standing), now_us, next_due, in;
    struct arena arena = {0};
    size_t n_caps, n;
    struct agent_cap *caps;
    struct due_dispatch *due;
    bool ok;

    if (room <= 0)
        return true;
    caps = caps_for(s, standing, &arena, &n_caps);
    ok = store_due_dispatches(s->reader, caps, n_caps, standing == UNHEARD ? fair_share(s) : 0,
                              (size_t)room, &arena, &due, &n, &now_us, &next_due, e);
    for (size_t i = 0; ok && i < n; i++)
        claim(s, &due[i]);
    in = ok && next_due > now_us ? next_due - now_us : 0;
    if (ok && next_due > 0 && clock_mono_us() + in < s->next_due_us)
        s->next_due_us = clock_mono_us() + in;
    arena_free(&arena);
    return ok;
}

/* Looks for what is due and claims as much as there is room for, first for those that answer. Not
 * while claims are out: what they are about would be found again. */
static void look(struct sender *s)
{
    static struct log_limit limit;
    struct err e;

    if (room_for(s, ANSWERS) <= 0 || s->claims_out > 0 || clock_mono_us() < s->next_look_us)
        return;
    atomic_store(&s->wanted, false); /* before the read: what commits after it sets it again */
    if (!engine_may_deliver(s->opt.engine)) /* so does the end of the recovery */
        return;
    s->next_due_us = INT64_MAX;
    if (claim_due(s, ANSWERS, &e) && claim_due(s, UNHEARD, &e) && claim_due(s, SILENT, &e))
        return;
    if (log_allowed(&limit, 6))
        log_event(LOG_WARN, "dispatch.look_failed", {"error", str_of(e.message)});
    s->next_look_us = clock_mono_us() + RETRY_PAUSE_US;
    atomic_store(&s->wanted, true);
}

/* ---- posting ---- */

static struct str webhook_body(struct job *job)
{
    const struct dispatch_ref *ref = &job->cmd.in.delivery.ref;
    char execution[UUID_TEXT_LEN], dispatch[UUID_TEXT_LEN];
    int64_t lease_us = job->cmd.out.claimed.lease_us;

    uuid_format(&ref->execution_id, execution);
    uuid_format(&ref->dispatch_id, dispatch);
    /* A positive number, not always a whole one: leases of tests may be shorter than a second. */
    return arena_printf(
        &job->arena,
        "{\"execution_id\":\"%.36s\",\"dispatch_id\":\"%.36s\",\"dispatch_attempt\":%lld,"
        "\"lease_timeout_seconds\":%.*g}",
        execution, dispatch, (long long)job->cmd.out.claimed.attempt, 9, (double)lease_us / 1e6);
}

static bool post(struct job *job)
{
    struct sender *s = job->sender;
    const struct dispatch_claimed *claimed = &job->cmd.out.claimed;
    const struct webhook_target target = {.url = claimed->webhook_url,
                                          .secret = claimed->secret,
                                          .body = webhook_body(job),
                                          .timeout_us = s->opt.timeout_us,
                                          .private_ranges = s->opt.private_ranges};

    return webhook_begin(&job->hook, s->multi, &target, job);
}

static void transfers_remove(struct sender *s, struct job *job)
{
    for (size_t i = 0; i < s->transfers.n; i++) {
        if (s->transfers.at[i] == job) {
            s->transfers.at[i] = s->transfers.at[--s->transfers.n];
            return;
        }
    }
}

static void transfers_add(struct sender *s, struct job *job)
{
    if (s->transfers.n == s->transfers.cap) {
        s->transfers.cap = s->transfers.cap == 0 ? 16 : s->transfers.cap * 2;
        s->transfers.at = xrealloc(s->transfers.at, s->transfers.cap * sizeof(struct job *));
    }
    s->transfers.at[s->transfers.n++] = job;
}

static const char *failure_text(const struct webhook *hook, CURLcode code)
{
    if (hook->no_socket)
        return "out of file descriptors";
    if (code == CURLE_COULDNT_CONNECT && hook->status == 0)
        return "cannot connect: is the agent running there?";
    if (hook->status == 0)
        return curl_easy_strerror(code);
    if (hook->status == 401)
        return "the agent refused the signature: do both sides have the same secret?";
    if (hook->status >= 300 && hook->status < 400)
        return "redirects are not followed";
    return "";
}

static void log_failure(const struct job *job, CURLcode code)
{
    const struct dispatch_ref *ref = &job->cmd.in.delivery.ref;
    char execution[UUID_TEXT_LEN], dispatch[UUID_TEXT_LEN];

    uuid_format(&ref->execution_id, execution);
    uuid_format(&ref->dispatch_id, dispatch);
    log_event(LOG_WARN, "dispatch.failed", {"agent_id", job->cmd.out.claimed.agent_id},
              {"url", job->cmd.out.claimed.webhook_url},
              {"execution_id", str_make(execution, UUID_TEXT_LEN)},
              {"dispatch_id", str_make(dispatch, UUID_TEXT_LEN)},
              {"attempt", log_int(job->cmd.out.claimed.attempt)},
              {"status", log_int(job->hook.status)},
              {"error", str_of(failure_text(&job->hook, code))});
}

static void report(struct job *job, enum command_type type, bool acked)
{
    job->cmd.in.delivery.ref.attempt = job->cmd.out.claimed.attempt;
    job->cmd.in.delivery.acked = acked;
    submit(job, type, ANSWERING);
}

static void answered(struct job *job, CURLcode code)
{
    struct sender *s = job->sender;
    bool acked = job->hook.status >= 200 && job->hook.status < 300;

    FAULT("dispatch.answered");
    webhook_free(&job->hook, s->multi);
    transfers_remove(s, job);
    if (!acked)
        log_failure(job, code);
    if (job->hook.no_socket) { /* nothing was sent: not a delivery that failed */
        s->next_look_us = clock_mono_us() + NO_SOCKET_PAUSE_US;
        report(job, COMMAND_RETURN, false);
        return;
    }
    job->peer->standing = job->hook.status == 0 ? SILENT : ANSWERS;
    atomic_fetch_add(acked ? &s->stats.delivered : &s->stats.failed, 1);
    atomic_fetch_add(&s->stats.latency_count, 1);
    atomic_fetch_add(&s->stats.latency_sum_us, (uint64_t)(clock_mono_us() - job->started_us));
    report(job, COMMAND_DELIVERED, acked);
}

static void begin_post(struct job *job)
{
    FAULT("dispatch.post.before");
    transfers_add(job->sender, job);
    job->stage = POSTING;
    if (post(job))
        return;
    /* No memory for a handle: as if the agent had not answered. */
    transfers_remove(job->sender, job);
    report(job, COMMAND_DELIVERED, false);
}

static void perform(struct sender *s)
{
    int running, left;
    CURLMsg *msg;

    curl_multi_perform(s->multi, &running);
    while ((msg = curl_multi_info_read(s->multi, &left)) != NULL) {
        struct job *job = NULL;

        if (msg->msg != CURLMSG_DONE)
            continue;
        curl_easy_getinfo(msg->easy_handle, CURLINFO_PRIVATE, (char **)&job);
        answered(job, msg->data.result);
    }
}

/* ---- commands that came back ---- */

static void claim_returned(struct sender *s, struct job *job)
{
    s->claims_out--;
    if (job->cmd.verdict == VERDICT_DONE && job->cmd.out.claimed.claimed) {
        begin_post(job);
        return;
    }
    if (job->cmd.unknown && job->cmd.out.claimed.claimed) {
        /* Claimed perhaps, and then nobody would deliver it until its lease has run out. */
        report(job, COMMAND_RETURN, false);
        return;
    }
    s->next_look_us =
        clock_mono_us() + (job->cmd.verdict == VERDICT_DONE ? RACE_PAUSE_US : RETRY_PAUSE_US);
    atomic_store(&s->wanted, true);
    job_free(job);
}

static void outcome_returned(struct sender *s, struct job *job)
{
    if (job->cmd.verdict == VERDICT_REFUSED) { /* no rule refuses it: the store could not take it */
        job->next_retry = s->retries;
        s->retries = job;
        s->next_retry_us = clock_mono_us() + RETRY_PAUSE_US;
        return;
    }
    job_free(job);
    atomic_store(&s->wanted, true); /* a slot is free */
}

static void take_returned(struct sender *s)
{
    struct queue_node *node = queue_take_all(s->returned, 0);

    while (node != NULL) {
        struct job *job = (struct job *)node;

        node = node->next;
        if (job->stage == CLAIMING)
            claim_returned(s, job);
        else
            outcome_returned(s, job);
    }
}

static void retry_outcomes(struct sender *s)
{
    struct job *job = s->retries;

    if (job == NULL || clock_mono_us() < s->next_retry_us)
        return;
    s->retries = NULL;
    while (job != NULL) {
        struct job *next = job->next_retry;

        submit(job, job->cmd.type, job->stage);
        job = next;
    }
}

/* ---- the thread ---- */

static int64_t min64(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

static int wait_ms(const struct sender *s)
{
    int64_t now = clock_mono_us(), until = now + SAFETY_POLL_US;

    until = min64(until, s->next_due_us);
    if (s->retries != NULL)
        until = min64(until, s->next_retry_us);
    if (atomic_load(&s->wanted) && s->claims_out == 0 && s->in_flight < s->opt.concurrency)
        until = min64(until, s->next_look_us);
    return until <= now ? 0 : (int)((until - now + US_PER_MS - 1) / US_PER_MS);
}

static void turn(struct sender *s)
{
    int64_t now;

    take_returned(s);
    retry_outcomes(s);
    perform(s);
    now = clock_mono_us();
    if (now >= s->next_due_us)
        atomic_store(&s->wanted, true);
    if (atomic_load(&s->wanted) && !atomic_load(&s->stopping))
        look(s);
}

static void give_back(struct sender *s)
{
    while (s->transfers.n > 0) {
        struct job *job = s->transfers.at[0];

        webhook_free(&job->hook, s->multi);
        transfers_remove(s, job);
        report(job, COMMAND_RETURN, false);
    }
}

/* Nothing new is claimed. What is answered within the patience counts; the rest is given back, not
 * charged. */
static void wind_down(struct sender *s)
{
    int64_t deadline = clock_mono_us() + STOP_PATIENCE_US;

    while (s->in_flight > 0 && clock_mono_us() < deadline) {
        curl_multi_poll(s->multi, NULL, 0, 20, NULL);
        turn(s);
    }
    give_back(s);
    deadline = clock_mono_us() + 2 * US_PER_S;
    while (s->in_flight > 0 && (s->retries == NULL || clock_mono_us() < deadline)) {
        curl_multi_poll(s->multi, NULL, 0, 20, NULL);
        take_returned(s);
        retry_outcomes(s);
        /* A claim that comes back now is given back at once. */
        give_back(s);
    }
}

static void *sender_main(void *arg)
{
    struct sender *s = arg;

    while (!atomic_load(&s->stopping)) {
        turn(s);
        curl_multi_poll(s->multi, NULL, 0, wait_ms(s), NULL);
    }
    wind_down(s);
    return NULL;
}

struct sender *sender_new(const struct sender_options *opt, struct err *e)
{
    struct sender *s = xzalloc(sizeof(*s));

    s->opt = *opt;
    s->next_due_us = INT64_MAX;
    atomic_init(&s->wanted, true);
    s->returned = queue_new();
    s->reader = store_reader_open(engine_store(opt->engine), e);
    if (s->reader == NULL || curl_global_init(CURL_GLOBAL_DEFAULT) != CURLE_OK ||
        (s->multi = curl_multi_init()) == NULL) {
        if (s->reader != NULL)
            err_set(e, ERR_INTERNAL, "the HTTP client cannot be initialized");
        sender_free(s);
        return NULL;
    }
    return s;
}

bool sender_start(struct sender *s, struct err *e)
{
    if (pthread_create(&s->thread, NULL, sender_main, s) != 0)
        return err_set(e, ERR_INTERNAL, "cannot start a thread");
    s->started = true;
    return true;
}

void sender_wake(struct sender *s)
{
    if (!atomic_exchange(&s->wanted, true))
        curl_multi_wakeup(s->multi);
}

void sender_stop(struct sender *s)
{
    if (s == NULL || !s->started)
        return;
    atomic_store(&s->stopping, true);
    curl_multi_wakeup(s->multi);
    pthread_join(s->thread, NULL);
    s->started = false;
}

void sender_free(struct sender *s)
{
    struct peer *peer;

    if (s == NULL)
        return;
    for (size_t i = 0; (peer = map_next(&s->peers, &i)) != NULL;) {
        free(peer->id);
        free(peer);
    }
    map_free(&s->peers);
    free(s->transfers.at);
    if (s->multi != NULL)
        curl_multi_cleanup(s->multi);
    store_reader_close(s->reader);
    queue_free(s->returned);
    free(s);
}

const struct sender_stats *sender_stats(const struct sender *s)
{
    return &s->stats;
}
