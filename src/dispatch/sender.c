/* SPDX-License-Identifier: Apache-2.0
 * The sender's thread. A delivery goes: due (read) → claimed (a command) → posted → answered (a command) → freed.
 * All state belongs to this thread, but the queue by which commands come back. */
#include "dispatch/sender.h"

#include "base/clock.h"
#include "base/json.h"
#include "base/log.h"
#include "dispatch/address.h"
#include "domain/signature.h"

#include <curl/curl.h>
#include <pthread.h>
#include <stdlib.h>
#include <unistd.h>

enum { ANSWER_BYTES_MAX = 64 << 10 };
static const int64_t SAFETY_POLL_US = 2 * US_PER_S; /* behind the signals, should one be lost */
static const int64_t RETRY_PAUSE_US = 100 * US_PER_MS; /* after the store refused a claim or an outcome */
static const int64_t RACE_PAUSE_US = 5 * US_PER_MS;    /* after a claim found nothing to claim */
static const int64_t STOP_PATIENCE_US = 500 * US_PER_MS;
/* Published agents close a connection after 5 s of idleness; one about to close must not be used. */
enum { IDLE_CONNECTION_S = 4 };

struct peer { /* what is known of an agent as a receiver */
    char *id;      /* owned */
    int64_t in_flight;
    bool silent; /* left its last delivery unanswered */
};

enum stage { CLAIMING, POSTING, ANSWERING };

struct job {
    struct command cmd; /* first: commands come back as queue nodes */
    struct sender *sender;
    struct peer *peer;
    enum stage stage;
    struct arena arena;
    CURL *easy;
    struct curl_slist *headers;
    size_t answer_bytes;
    int64_t started_us;
    bool acked;
    struct job *next_retry;
};

struct sender {
    struct sender_options opt;
    struct sender_stats stats;
    CURLM *multi;
    struct store_reader *reader;
    struct queue *returned; /* of struct job: commands that came back */
    struct map peers;       /* id → struct peer; a peer without deliveries that is not silent is forgotten */
    struct job *retries;    /* outcomes that the store could not take yet */
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
    if (peer->in_flight > 0 || peer->silent)
        return;
    map_remove(&s->peers, str_of(peer->id));
    free(peer->id);
    free(peer);
}

static int64_t fair_share(const struct sender *s)
{
    return s->opt.concurrency < 4 ? 1 : s->opt.concurrency / 4;
}

/* ---- jobs ---- */

static void job_free(struct job *job)
{
    struct sender *s = job->sender;

    job->peer->in_flight--;
    peer_forget(s, job->peer);
    s->in_flight--;
    atomic_store(&s->stats.in_flight, s->in_flight);
    if (job->easy != NULL)
        curl_easy_cleanup(job->easy);
    curl_slist_free_all(job->headers);
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

/* Looks for what is due and claims as much as there is room for. Not while claims are out: what they are about would be
 * found again. */
static void look(struct sender *s)
{
    struct arena arena = {0};
    struct agent_cap *caps;
    struct due_dispatch *due;
    struct peer *peer;
    size_t n_caps = 0, n;
    int64_t room = s->opt.concurrency - s->in_flight, now_us, next_due;
    struct err e;

    if (room <= 0 || s->claims_out > 0 || clock_mono_us() < s->next_look_us)
        return;
    atomic_store(&s->wanted, false); /* before the read: what commits after it sets it again */
    caps = arena_array(&arena, struct agent_cap, s->peers.count + 1);
    for (size_t i = 0; (peer = map_next(&s->peers, &i)) != NULL;) {
        int64_t share = peer->silent ? 1 : fair_share(s);

        caps[n_caps++] = (struct agent_cap){str_of(peer->id),
                                            share > peer->in_flight ? share - peer->in_flight : 0};
    }
    s->next_due_us = INT64_MAX;
    if (store_due_dispatches(s->reader, caps, n_caps, fair_share(s), (size_t)room, &arena, &due, &n,
                             &now_us, &next_due, &e)) {
        for (size_t i = 0; i < n; i++)
            claim(s, &due[i]);
        if (next_due > 0)
            s->next_due_us = clock_mono_us() + (next_due > now_us ? next_due - now_us : 0);
    } else {
        static struct log_limit limit;

        if (log_allowed(&limit, 6))
            log_event(LOG_WARN, "dispatch.look_failed", {"error", str_of(e.message)});
        s->next_look_us = clock_mono_us() + RETRY_PAUSE_US;
        atomic_store(&s->wanted, true);
    }
    arena_free(&arena);
}

/* ---- posting ---- */

static size_t on_answer(char *p, size_t size, size_t n, void *ctx)
{
    struct job *job = ctx;

    (void)p;
    job->answer_bytes += size * n;
    return job->answer_bytes > ANSWER_BYTES_MAX ? 0 : size * n; /* the status has been heard already */
}

static curl_socket_t on_socket(void *ctx, curlsocktype purpose, struct curl_sockaddr *address)
{
    const struct sender *s = ctx;

    (void)purpose;
    if (!address_allowed(&address->addr, s->opt.private_ranges))
        return CURL_SOCKET_BAD;
    return socket(address->family, address->socktype | SOCK_CLOEXEC, address->protocol);
}

static struct str webhook_body(struct job *job)
{
    const struct dispatch_ref *ref = &job->cmd.in.delivery.ref;
    char execution[UUID_TEXT_LEN], dispatch[UUID_TEXT_LEN];
    int64_t lease_us = job->cmd.out.claimed.lease_us;

    uuid_format(&ref->execution_id, execution);
    uuid_format(&ref->dispatch_id, dispatch);
    /* A positive number, not always a whole one: leases of tests may be shorter than a second. */
    return arena_printf(&job->arena,
                        "{\"execution_id\":\"%.36s\",\"dispatch_id\":\"%.36s\",\"dispatch_attempt\":%lld,"
                        "\"lease_timeout_seconds\":%.*g}",
                        execution, dispatch, (long long)job->cmd.out.claimed.attempt, 9,
                        (double)lease_us / 1e6);
}

static bool post(struct job *job)
{
    struct sender *s = job->sender;
    const struct dispatch_claimed *claimed = &job->cmd.out.claimed;
    struct str body = webhook_body(job);
    char signature[SIGNATURE_HEX_LEN];
    struct str header;
    CURL *easy = curl_easy_init();

    job->easy = easy;
    if (easy == NULL)
        return false;
    signature_webhook(claimed->secret, body, signature);
    header = arena_printf(&job->arena, "Rebuno-Signature: sha256=%.64s", signature);
    job->headers = curl_slist_append(NULL, "Content-Type: application/json");
    job->headers = curl_slist_append(job->headers, header.p);
    job->headers = curl_slist_append(job->headers, "User-Agent: rebuno");
    job->headers = curl_slist_append(job->headers, "Expect:");
    curl_easy_setopt(easy, CURLOPT_URL, claimed->webhook_url.p);
    curl_easy_setopt(easy, CURLOPT_PROTOCOLS_STR, "http,https");
    curl_easy_setopt(easy, CURLOPT_FOLLOWLOCATION, 0L);
    curl_easy_setopt(easy, CURLOPT_PROXY, "");
    curl_easy_setopt(easy, CURLOPT_NOSIGNAL, 1L);
    curl_easy_setopt(easy, CURLOPT_HTTP_VERSION, (long)CURL_HTTP_VERSION_1_1);
    curl_easy_setopt(easy, CURLOPT_MAXAGE_CONN, (long)IDLE_CONNECTION_S);
    curl_easy_setopt(easy, CURLOPT_TIMEOUT_MS, (long)(s->opt.timeout_us / US_PER_MS));
    curl_easy_setopt(easy, CURLOPT_POSTFIELDSIZE, (long)body.n);
    curl_easy_setopt(easy, CURLOPT_POSTFIELDS, body.p);
    curl_easy_setopt(easy, CURLOPT_HTTPHEADER, job->headers);
    curl_easy_setopt(easy, CURLOPT_WRITEFUNCTION, on_answer);
    curl_easy_setopt(easy, CURLOPT_WRITEDATA, job);
    curl_easy_setopt(easy, CURLOPT_OPENSOCKETFUNCTION, on_socket);
    curl_easy_setopt(easy, CURLOPT_OPENSOCKETDATA, s);
    curl_easy_setopt(easy, CURLOPT_PRIVATE, job);
    return curl_multi_add_handle(s->multi, easy) == CURLM_OK;
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

static void log_failure(const struct job *job, long status, CURLcode code)
{
    const struct dispatch_ref *ref = &job->cmd.in.delivery.ref;
    char execution[UUID_TEXT_LEN], dispatch[UUID_TEXT_LEN];

    uuid_format(&ref->execution_id, execution);
    uuid_format(&ref->dispatch_id, dispatch);
    log_event(LOG_WARN, "dispatch.failed", {"agent_id", job->cmd.out.claimed.agent_id},
              {"execution_id", str_make(execution, UUID_TEXT_LEN)},
              {"dispatch_id", str_make(dispatch, UUID_TEXT_LEN)},
              {"attempt", log_int(job->cmd.out.claimed.attempt)}, {"status", log_int(status)},
              {"error", str_of(status == 0 ? curl_easy_strerror(code) : "")});
}

static void answered(struct job *job, CURLcode code)
{
    struct sender *s = job->sender;
    long status = 0;

    curl_easy_getinfo(job->easy, CURLINFO_RESPONSE_CODE, &status);
    job->acked = status >= 200 && status < 300;
    job->peer->silent = status == 0;
    if (!job->acked)
        log_failure(job, status, code);
    curl_multi_remove_handle(s->multi, job->easy);
    transfers_remove(s, job);
    atomic_fetch_add(job->acked ? &s->stats.delivered : &s->stats.failed, 1);
    atomic_fetch_add(&s->stats.latency_count, 1);
    atomic_fetch_add(&s->stats.latency_sum_us, (uint64_t)(clock_mono_us() - job->started_us));
    job->cmd.in.delivery.ref.attempt = job->cmd.out.claimed.attempt;
    job->cmd.in.delivery.acked = job->acked;
    submit(job, COMMAND_DELIVERED, ANSWERING);
}

static void begin_post(struct job *job)
{
    transfers_add(job->sender, job);
    job->stage = POSTING;
    if (post(job))
        return;
    /* No memory for a handle: as if the agent had not answered. */
    transfers_remove(job->sender, job);
    job->cmd.in.delivery.ref.attempt = job->cmd.out.claimed.attempt;
    job->cmd.in.delivery.acked = false;
    submit(job, COMMAND_DELIVERED, ANSWERING);
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
        job->cmd.in.delivery.ref.attempt = job->cmd.out.claimed.attempt;
        submit(job, COMMAND_RETURN, ANSWERING);
        return;
    }
    s->next_look_us =
        clock_mono_us() + (job->cmd.verdict == VERDICT_DONE ? RACE_PAUSE_US : RETRY_PAUSE_US);
    atomic_store(&s->wanted, true);
    job_free(job);
}

static void outcome_returned(struct sender *s, struct job *job)
{
    if (job->cmd.verdict == VERDICT_REFUSED && job->cmd.err.code == ERR_UNAVAILABLE) {
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

        curl_multi_remove_handle(s->multi, job->easy);
        transfers_remove(s, job);
        job->cmd.in.delivery.ref.attempt = job->cmd.out.claimed.attempt;
        submit(job, COMMAND_RETURN, ANSWERING);
    }
}

/* Nothing new is claimed. What is answered within the patience counts; the rest is given back, not charged. */
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
