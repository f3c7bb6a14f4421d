/* SPDX-License-Identifier: Apache-2.0
 * The judge's thread. A call goes: asked (any thread) → waiting for a slot → in flight → settled.
 * All but the entrance belongs to this thread. */
#include "dispatch/judge.h"

#include "base/clock.h"
#include "base/log.h"
#include "base/queue.h"
#include "policy/judgement.h"

#include <curl/curl.h>
#include <pthread.h>
#include <stdlib.h>

enum { IN_FLIGHT_MAX = 64, ANSWER_MAX = 64 * 1024 };
static const int64_t PATIENCE_US = 5 * US_PER_S;

struct judge_call {
    struct queue_node node; /* the queue's; must be first */
    struct command *cmd;    /* the engine's, ours for the time being */
    struct judge_caller *caller;
    struct policy *policy; /* referenced; its rule is the question */
    int64_t deadline_us;   /* monotonic */
    CURL *easy;            /* in flight */
    struct buf question, answer;
    struct judge_call *next, *prev; /* of its list */
};

struct call_list { /* oldest first */
    struct judge_call *first, *last;
    size_t n;
};

struct judge_caller {
    struct judge_options opt;
    CURLM *multi;
    struct curl_slist *headers;
    struct queue *asked;
    struct call_list waiting, in_flight;
    pthread_t thread;
    bool started;
    atomic_bool stopping;
    pthread_mutex_t lock; /* the entrance */
    bool closed;          /* nobody takes from `asked` any more */
};

/* ---- lists ---- */

static void list_add(struct call_list *list, struct judge_call *call)
{
    call->next = NULL;
    call->prev = list->last;
    *(list->last == NULL ? &list->first : &list->last->next) = call;
    list->last = call;
    list->n++;
}

static void list_remove(struct call_list *list, struct judge_call *call)
{
    *(call->prev == NULL ? &list->first : &call->prev->next) = call->next;
    *(call->next == NULL ? &list->last : &call->next->prev) = call->prev;
    list->n--;
}

/* NULL: there is none. */
static struct judge_call *list_pop(struct call_list *list)
{
    struct judge_call *call = list->first;

    if (call == NULL)
        return NULL;
    list->first = call->next;
    *(call->next == NULL ? &list->last : &call->next->prev) = NULL;
    list->n--;
    return call;
}

/* ---- the end of a call ---- */

static const struct judge *rule_judge(const struct judge_call *call)
{
    return &policy_rule(call->policy, (size_t)call->cmd->out.step.wanted.rule)->judge;
}

static void call_free(struct judge_call *call)
{
    if (call->easy != NULL) {
        curl_multi_remove_handle(call->caller->multi, call->easy);
        curl_easy_cleanup(call->easy);
    }
    buf_free(&call->question);
    buf_free(&call->answer);
    policy_unref(call->policy);
    free(call);
}

static void settle(struct judge_call *call, enum policy_action judgement)
{
    struct command *cmd = call->cmd;
    struct policy_found *found = &cmd->in.submit.found;

    found->matched = found->judged = true;
    found->hash = cmd->out.step.wanted.hash;
    found->rule = cmd->out.step.wanted.rule;
    found->judgement = judgement;
    engine_submit(call->caller->opt.engine, cmd);
    call_free(call);
}

static void log_failure(const struct judge_call *call, long status, const char *what)
{
    static struct log_limit limit;
    const struct step_submission *in = &call->cmd->in.submit;
    char execution[UUID_TEXT_LEN];

    if (!log_allowed(&limit, 12))
        return;
    uuid_format(&in->execution_id, execution);
    log_event(LOG_WARN, "judge.failed", {"agent_id", in->agent_id},
              {"execution_id", str_make(execution, UUID_TEXT_LEN)},
              {"rule_id", policy_rule(call->policy, (size_t)call->cmd->out.step.wanted.rule)->id},
              {"status", log_int(status)}, {"error", str_of(what)});
}

static void fall_back(struct judge_call *call, long status, const char *why)
{
    log_failure(call, status, why);
    settle(call, rule_judge(call)->fallback);
}

/* ---- one transfer ---- */

static size_t on_body(char *p, size_t size, size_t n, void *ctx)
{
    struct judge_call *call = ctx;

    if (call->answer.n + size * n > ANSWER_MAX)
        return 0;
    buf_add(&call->answer, str_make(p, size * n));
    return size * n;
}

static void set_options(struct judge_call *call, int64_t left_us)
{
    const struct judge_caller *j = call->caller;
    CURL *easy = call->easy;

    curl_easy_setopt(easy, CURLOPT_URL, j->opt.url);
    curl_easy_setopt(easy, CURLOPT_PROTOCOLS_STR, "http,https");
    curl_easy_setopt(easy, CURLOPT_FOLLOWLOCATION, 0L);
    curl_easy_setopt(easy, CURLOPT_PROXY, "");
    curl_easy_setopt(easy, CURLOPT_NOSIGNAL, 1L);
    curl_easy_setopt(easy, CURLOPT_HTTP_VERSION, (long)CURL_HTTP_VERSION_1_1);
    curl_easy_setopt(easy, CURLOPT_TIMEOUT_MS, (long)((left_us + US_PER_MS - 1) / US_PER_MS));
    curl_easy_setopt(easy, CURLOPT_POSTFIELDSIZE_LARGE, (curl_off_t)call->question.n);
    curl_easy_setopt(easy, CURLOPT_POSTFIELDS, call->question.p);
    curl_easy_setopt(easy, CURLOPT_HTTPHEADER, j->headers);
    curl_easy_setopt(easy, CURLOPT_WRITEFUNCTION, on_body);
    curl_easy_setopt(easy, CURLOPT_WRITEDATA, call);
    curl_easy_setopt(easy, CURLOPT_PRIVATE, call);
}

static bool begin(struct judge_call *call, int64_t left_us)
{
    const struct step_submission *in = &call->cmd->in.submit;
    const struct policy_input input = {in->agent_id, in->kind, in->target, in->args};

    judgement_question(&call->question, &input, rule_judge(call));
    call->easy = call->question.failed ? NULL : curl_easy_init();
    if (call->easy == NULL)
        return false;
    set_options(call, left_us);
    return curl_multi_add_handle(call->caller->multi, call->easy) == CURLM_OK;
}

static const char *failure_text(const struct judge_call *call, CURLcode code, long status)
{
    if (code == CURLE_WRITE_ERROR && call->answer.n <= ANSWER_MAX)
        return "the answer is longer than 64 KiB";
    if (code != CURLE_OK)
        return curl_easy_strerror(code);
    if (status >= 300 && status < 400)
        return "redirects are not followed";
    return "the judge refused";
}

static void answered(struct judge_call *call, CURLcode code)
{
    long status = 0;

    list_remove(&call->caller->in_flight, call);
    curl_easy_getinfo(call->easy, CURLINFO_RESPONSE_CODE, &status);
    if (code != CURLE_OK || status < 200 || status >= 300 || call->answer.failed)
        fall_back(call, status, failure_text(call, code, status));
    else
        settle(call, judgement_read(buf_str(&call->answer), rule_judge(call)));
}

static void perform(struct judge_caller *j)
{
    int running, left;
    CURLMsg *msg;

    curl_multi_perform(j->multi, &running);
    while ((msg = curl_multi_info_read(j->multi, &left)) != NULL) {
        struct judge_call *call = NULL;

        if (msg->msg != CURLMSG_DONE)
            continue;
        curl_easy_getinfo(msg->easy_handle, CURLINFO_PRIVATE, (char **)&call);
        answered(call, msg->data.result);
    }
}

/* ---- the thread ---- */

static void take_asked(struct judge_caller *j)
{
    struct queue_node *node = queue_take_all(j->asked, 0);

    while (node != NULL) {
        struct judge_call *call = (struct judge_call *)node;

        node = node->next;
        list_add(&j->waiting, call);
    }
}

static void begin_waiting(struct judge_caller *j)
{
    struct judge_call *call;

    while ((call = j->waiting.first) != NULL) {
        int64_t left_us = call->deadline_us - clock_mono_us();

        if (left_us > 0 && j->in_flight.n >= IN_FLIGHT_MAX)
            return; /* the first is the next to run out, too */
        (void)list_pop(&j->waiting);
        if (left_us <= 0)
            fall_back(call, 0, "too many questions before it");
        else if (begin(call, left_us))
            list_add(&j->in_flight, call);
        else
            fall_back(call, 0, "out of memory");
    }
}

static int wait_ms(const struct judge_caller *j)
{
    int64_t left_us;

    if (j->waiting.first == NULL)
        return 60 * 1000; /* curl's own timers and a wake-up end it */
    left_us = j->waiting.first->deadline_us - clock_mono_us();
    return left_us <= 0 ? 0 : (int)((left_us + US_PER_MS - 1) / US_PER_MS);
}

static void give_up(struct call_list *list)
{
    struct judge_call *call;

    while ((call = list_pop(list)) != NULL)
        fall_back(call, 0, "the kernel stops");
}

static void *judge_main(void *arg)
{
    struct judge_caller *j = arg;

    while (!atomic_load(&j->stopping)) {
        take_asked(j);
        perform(j);
        begin_waiting(j);
        curl_multi_poll(j->multi, NULL, 0, wait_ms(j), NULL);
    }
    pthread_mutex_lock(&j->lock);
    j->closed = true;
    pthread_mutex_unlock(&j->lock);
    take_asked(j);
    give_up(&j->waiting);
    give_up(&j->in_flight);
    return NULL;
}

/* ---- the entrance ---- */

void judge_ask(struct judge_caller *j, struct command *cmd)
{
    struct policy_cache *policies = engine_policies(j->opt.engine);
    struct judge_call *call;
    struct policy *policy;
    bool known, taken;

    policy = policy_cache_get(policies, &cmd->out.step.wanted.hash, &known);
    if (policy == NULL) { /* it has left the cache: the rule asks for it again, and then for this */
        engine_submit(j->opt.engine, cmd);
        return;
    }
    call = xzalloc(sizeof(*call));
    call->cmd = cmd;
    call->caller = j;
    call->policy = policy;
    call->deadline_us = clock_mono_us() + PATIENCE_US;
    pthread_mutex_lock(&j->lock);
    taken = !j->closed;
    if (taken)
        queue_push(j->asked, &call->node);
    pthread_mutex_unlock(&j->lock);
    if (taken)
        curl_multi_wakeup(j->multi);
    else
        fall_back(call, 0, "the kernel stops");
}

/* ---- life ---- */

static bool add_header(struct judge_caller *j, const char *line)
{
    struct curl_slist *longer = curl_slist_append(j->headers, line);

    if (longer == NULL)
        return false;
    j->headers = longer;
    return true;
}

static bool add_headers(struct judge_caller *j)
{
    struct buf line = {0};
    bool ok;

    buf_add(&line, STR("Authorization: Bearer "));
    if (j->opt.api_key != NULL)
        buf_add_z(&line, j->opt.api_key);
    buf_add_byte(&line, '\0');
    ok = !line.failed && add_header(j, "Content-Type: application/json") &&
         add_header(j, "Accept: application/json") && add_header(j, "User-Agent: rebuno") &&
         add_header(j, "Expect:") && (j->opt.api_key == NULL || add_header(j, line.p));
    buf_free(&line);
    return ok;
}

struct judge_caller *judge_new(const struct judge_options *opt, struct err *e)
{
    struct judge_caller *j = xzalloc(sizeof(*j));

    j->opt = *opt;
    j->asked = queue_new();
    j->closed = true; /* until its thread runs */
    pthread_mutex_init(&j->lock, NULL);
    if (curl_global_init(CURL_GLOBAL_DEFAULT) != CURLE_OK ||
        (j->multi = curl_multi_init()) == NULL || !add_headers(j)) {
        err_set(e, ERR_INTERNAL, "the HTTP client cannot be initialized");
        judge_free(j);
        return NULL;
    }
    return j;
}

bool judge_start(struct judge_caller *j, struct err *e)
{
    if (pthread_create(&j->thread, NULL, judge_main, j) != 0)
        return err_set(e, ERR_INTERNAL, "cannot start a thread");
    j->started = true;
    pthread_mutex_lock(&j->lock);
    j->closed = false;
    pthread_mutex_unlock(&j->lock);
    return true;
}

void judge_stop(struct judge_caller *j)
{
    if (j == NULL || !j->started)
        return;
    atomic_store(&j->stopping, true);
    curl_multi_wakeup(j->multi);
    pthread_join(j->thread, NULL);
    j->started = false;
}

void judge_free(struct judge_caller *j)
{
    if (j == NULL)
        return;
    if (j->multi != NULL)
        curl_multi_cleanup(j->multi);
    curl_slist_free_all(j->headers);
    queue_free(j->asked);
    pthread_mutex_destroy(&j->lock);
    free(j);
}
