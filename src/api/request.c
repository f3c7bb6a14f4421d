/* SPDX-License-Identifier: Apache-2.0
 * How a request runs and how it is answered. */
#include "api/router.h"

#include "api/chunking.h"
#include "api/error.h"
#include "base/clock.h"
#include "base/hex.h"
#include "base/log.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

/* How long a write waits for a store that is away. */
static const int64_t STORE_PATIENCE_US = 5 * US_PER_S;
static const struct str JSON_TYPE = STR_INIT("application/json; charset=utf-8");

/* ---- ids of requests ---- */

static bool is_usable_id(struct str s)
{
    if (!str_present(s) || s.n == 0 || s.n > REQUEST_ID_MAX)
        return false;
    for (size_t i = 0; i < s.n; i++)
        if (s.p[i] < ' ' || s.p[i] > '~')
            return false;
    return true;
}

static uint64_t mix(uint64_t x) /* splitmix64's finalizer: neighbours look unrelated */
{
    x = (x ^ x >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
    x = (x ^ x >> 27) * UINT64_C(0x94d049bb133111eb);
    return x ^ x >> 31;
}

/* A version 4 UUID out of a counter and a random start: unique, and cheaper than asking the system
 * for each request. */
void request_make_id(struct api *api, char out[UUID_TEXT_LEN])
{
    uint64_t n =
        api->request_base + atomic_fetch_add_explicit(&api->requests, 1, memory_order_relaxed);
    uint64_t words[] = {mix(n), mix(n ^ UINT64_C(0xd1b54a32d192ed03))};
    struct uuid id;

    memcpy(id.b, words, sizeof(id.b));
    id.b[6] = (uint8_t)((id.b[6] & 0x0f) | 0x40);
    id.b[8] = (uint8_t)((id.b[8] & 0x3f) | 0x80);
    uuid_format(&id, out);
}

struct visit *visit_new(struct api *api, struct str sent, struct arena *a)
{
    char made[UUID_TEXT_LEN];
    struct visit *v;

    if (!is_usable_id(sent)) {
        request_make_id(api, made);
        sent = str_make(made, sizeof(made));
    }
    v = arena_zalloc(a, sizeof(*v) + sent.n);
    v->id_bytes = sent.n;
    memcpy(v->id, sent.p, sent.n);
    return v;
}

struct visit *visit_to_heap(const struct visit *v)
{
    struct visit *copy = xzalloc(sizeof(*v) + v->id_bytes);

    copy->route = v->route;
    copy->request = v->request;
    copy->on_heap = true;
    copy->id_bytes = v->id_bytes;
    memcpy(copy->id, v->id, v->id_bytes);
    return copy;
}

void visit_free(struct visit *v)
{
    if (v == NULL || !v->on_heap)
        return;
    free(v->held);
    free(v);
}

static struct str visit_id(const struct visit *v)
{
    return str_make(v->id, v->id_bytes);
}

struct str visit_headers(const struct visit *v, struct str more, struct arena *a)
{
    return arena_printf(a, "X-Request-Id: %.*s\r\n%.*s", STR_ARG(visit_id(v)), STR_ARG(more));
}

/* ---- commands ---- */

struct command *request_command(struct request *rq, enum command_type type)
{
    rq->cmd = arena_new(rq->arena, struct command);
    rq->cmd->type = type;
    return rq->cmd;
}

static void resumed(struct http_exchange *x, void *ctx)
{
    struct request *rq = ctx;

    (void)x;
    chunking_stored(rq);
    if (rq->cmd->verdict == VERDICT_DONE)
        rq->answer(rq);
    else
        request_reply_error(rq, &rq->cmd->err);
}

static void command_done(struct command *cmd) /* executor's thread */
{
    struct request *rq = cmd->ctx;

    http_resume(rq->x, resumed, rq);
}

void request_submit(struct request *rq, void (*answer)(struct request *rq))
{
    rq->answer = answer;
    rq->cmd->arena = rq->arena;
    rq->cmd->done = command_done;
    rq->cmd->ctx = rq;
    engine_submit(rq->api->engine, rq->cmd);
}

/* ---- answers, by whomever ---- */

static void reply(struct request *rq, int status, struct buf *body, struct str more)
{
    struct http_answer answer = {
        .status = status,
        .content_type = body == NULL ? STR_NONE : JSON_TYPE,
        .headers = visit_headers(rq->visit, more, rq->arena),
        .body = body,
    };

    http_reply(rq->x, &answer);
}

/* ---- reads ---- */

struct request *request_of_job(struct read_job *job)
{
    return (struct request *)((char *)job - offsetof(struct request, job));
}

/* Nobody reads it, but a client that only shut its sending side. */
static void reply_gone(struct request *rq)
{
    struct buf body = {0};
    struct err e;

    err_set(&e, ERR_UNAVAILABLE, "the client has gone");
    error_encode(&e, &body);
    reply(rq, error_status(e.code), &body, STR(""));
}

static void run_read(struct read_job *job, struct store_reader *r, const struct err *why)
{
    struct request *rq = request_of_job(job);

    if (http_is_gone(rq->x)) /* thousands may have come, asked and left: they cost no read */
        reply_gone(rq);
    else if (r == NULL)
        request_reply_error(rq, why);
    else
        rq->read(rq, r);
}

void request_read_large(struct request *rq, void (*fn)(struct request *rq, struct store_reader *r))
{
    rq->read = fn;
    rq->job.run = run_read;
    readers_push(rq->api->readers, &rq->job);
}

void request_read_aside(struct request *rq, void (*fn)(struct request *rq, struct store_reader *r))
{
    rq->read = fn;
    rq->job.run = run_read;
    readers_push(rq->api->aside, &rq->job);
}

void request_read_small(struct request *rq, void (*fn)(struct request *rq, struct store_reader *r))
{
    struct store_reader *r = readers_here(rq->api->readers);

    if (r == NULL)
        request_read_large(rq, fn);
    else
        fn(rq, r);
}

static void run_patiently(struct read_job *job, struct store_reader *r, const struct err *why)
{
    struct request *rq = request_of_job(job);
    struct err e;

    if (r == NULL)
        e = *why;
    else if (rq->read_patiently(rq, r, &e))
        return;
    if (e.code == ERR_UNAVAILABLE && clock_mono_us() < rq->patience_us && !http_is_gone(rq->x) &&
        readers_retry(rq->api->readers, job))
        return;
    if (rq->committed)
        err_outcome_unknown(&e); /* it is recorded: an error that says otherwise would be a lie */
    request_reply_error(rq, &e);
}

static void read_patiently(struct request *rq,
                           bool (*fn)(struct request *rq, struct store_reader *r, struct err *e))
{
    struct store_reader *r = readers_here(rq->api->readers);

    rq->read_patiently = fn;
    rq->patience_us = clock_mono_us() + STORE_PATIENCE_US;
    rq->job.run = run_patiently;
    if (r == NULL)
        readers_push(rq->api->readers, &rq->job);
    else
        run_patiently(&rq->job, r, NULL);
}

void request_read_ahead(struct request *rq,
                        bool (*fn)(struct request *rq, struct store_reader *r, struct err *e))
{
    read_patiently(rq, fn);
}

void request_read_back(struct request *rq,
                       bool (*fn)(struct request *rq, struct store_reader *r, struct err *e))
{
    rq->committed = true;
    read_patiently(rq, fn);
}

/* ---- answers ---- */

void request_reply_json(struct request *rq, int status, struct buf *body)
{
    if (body->failed) {
        buf_free(body);
        request_refuse(rq, ERR_INTERNAL, "out of memory for an answer");
        return;
    }
    reply(rq, status, body, STR(""));
}

void request_reply_empty(struct request *rq)
{
    reply(rq, 204, NULL, STR(""));
}

static void log_fault(const struct request *rq, const struct err *e)
{
    static struct log_limit limit;

    if (!log_allowed(&limit, 120))
        return;
    log_event(LOG_ERROR, "http.error", {"code", str_of(err_code_name(e->code))},
              {"route", rq->visit->route == NULL ? STR("") : rq->visit->route->pattern},
              {"error", str_of(e->message)}, {"request_id", visit_id(rq->visit)});
}

static struct str more_headers(struct request *rq, const struct err *e)
{
    struct str params[ROUTE_PARAMS_MAX];
    struct buf allow = {0};
    struct str line;

    if (e->code == ERR_UNAUTHORIZED)
        return STR("WWW-Authenticate: Bearer\r\n");
    if (e->code != ERR_METHOD_NOT_ALLOWED)
        return STR("");
    (void)route_find(http_method(rq->x), http_path(rq->x), params, &allow);
    line = arena_printf(rq->arena, "Allow: %.*s\r\n", STR_ARG(buf_str(&allow)));
    buf_free(&allow);
    return line;
}

void request_reply_error(struct request *rq, const struct err *e)
{
    struct buf body = {0};
    int status = error_status(e->code);

    if (status >= 500)
        log_fault(rq, e);
    error_encode(e, &body);
    reply(rq, status, &body, more_headers(rq, e));
}

void request_refuse(struct request *rq, enum err_code code, const char *fmt, ...)
{
    struct err e;
    va_list args;

    err_set(&e, code, " ");
    va_start(args, fmt);
    vsnprintf(e.message, sizeof(e.message), fmt, args);
    va_end(args);
    request_reply_error(rq, &e);
}

/* ---- streams ---- */

static struct http_answer stream_head(struct request *rq, struct str content_type)
{
    struct str more = str_starts(content_type, STR("text/event-stream"))
                          ? STR("Cache-Control: no-cache\r\nX-Accel-Buffering: no\r\n")
                          : STR("");

    return (struct http_answer){
        .status = 200,
        .content_type = content_type,
        .headers = visit_headers(rq->visit, more, rq->arena),
    };
}

struct http_stream *request_new_stream(struct request *rq, struct str content_type, void *held,
                                       const struct http_stream_events *events)
{
    struct http_answer head = stream_head(rq, content_type);

    rq->visit->held = held;
    return http_stream_new(rq->x, &head, events);
}
