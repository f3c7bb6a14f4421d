/* SPDX-License-Identifier: Apache-2.0
 * Life of the API, and what the HTTP server asks of it: a request's way from its head to its
 * handler. */
#include "api/auth.h"
#include "api/error.h"
#include "api/hub.h"
#include "api/secrets.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/seen.h"
#include "observe/metrics.h"

#include <stdio.h>
#include <stdlib.h>

/* What a slow reader of live deltas may lag behind: 64 of them, each of 7000 bytes that may all
 * need escaping. Followers of a log and listings wait for their reader and never come near it. */
enum { STREAM_PENDING_MAX = 4 * 1024 * 1024 };
/* What it is in the middle of: nobody waits for the answer any more. */
static const int64_t ASIDE_PATIENCE_US = 500 * US_PER_MS;
/* Of an agent that another kernel has changed or removed we are told at once, but a note is lost
 * while the connection that listens is down. */
static const int64_t SECRETS_HOLD_US = 30 * US_PER_S;

/* ---- the head ---- */

static struct request *request_new(struct api *api, struct http_exchange *x)
{
    struct request *rq = arena_new(http_arena(x), struct request);

    rq->api = api;
    rq->x = x;
    rq->arena = http_arena(x);
    rq->visit = visit_new(
        api, http_header_repeated(x, "X-Request-Id") ? STR_NONE : http_header(x, "X-Request-Id"),
        rq->arena);
    rq->visit->request = rq;
    http_set_user(x, rq->visit);
    return rq;
}

static void reply_options(struct request *rq, struct str allow)
{
    struct http_answer answer = {.status = 204};

    answer.headers = visit_headers(
        rq->visit, arena_printf(rq->arena, "Allow: %.*s, OPTIONS\r\n", STR_ARG(allow)), rq->arena);
    http_reply(rq->x, &answer);
}

/* Finds the route, or answers that there is none. */
static bool find_route(struct request *rq)
{
    struct str params[ROUTE_PARAMS_MAX];
    struct buf allow = {0};

    rq->visit->route = route_find(http_method(rq->x), http_path(rq->x), params, &allow);
    if (rq->visit->route == NULL && allow.n == 0)
        request_refuse(rq, ERR_NOT_FOUND, "no such route");
    else if (rq->visit->route == NULL && str_eq(http_method(rq->x), STR("OPTIONS")))
        reply_options(rq, buf_str(&allow));
    else if (rq->visit->route == NULL)
        request_refuse(rq, ERR_METHOD_NOT_ALLOWED, "this route takes %.*s",
                       STR_ARG(buf_str(&allow)));
    buf_free(&allow);
    return rq->visit->route != NULL;
}

/* Everything that needs no body, so that nobody's is read in vain: route, method, size,
 * credentials. */
static bool on_head(struct http_exchange *x, void *ctx)
{
    struct request *rq = request_new(ctx, x);
    struct err e;

    if (!find_route(rq))
        return false;
    if (http_body_too_large(x)) {
        request_refuse(rq, ERR_PAYLOAD_TOO_LARGE, "%s", http_too_large_message(x));
        return false;
    }
    if (auth_check_head(rq, &e))
        return true;
    request_reply_error(rq, &e);
    return false;
}

/* ---- the whole request ---- */

static void handle(struct request *rq)
{
    struct err e;

    if (route_read_params(rq, &e))
        rq->visit->route->handle(rq);
    else
        request_reply_error(rq, &e);
}

static void on_request(struct http_exchange *x, void *ctx)
{
    struct visit *v = visit_to_heap(http_user(x));

    (void)ctx;
    v->request->visit = v;
    http_set_user(x, v); /* for good: from now on other threads may have the request */
    auth_check_request(v->request, handle);
}

static void on_gone(struct http_exchange *x, void *ctx)
{
    struct api *api = ctx;
    struct visit *v = http_user(x);
    struct waiter *w = v == NULL ? NULL : atomic_load(&v->poll);

    if (w != NULL)
        hub_stop_waiter(api->hub, w);
}

/* ---- the end ---- */

static size_t route_number(const struct route *route)
{
    size_t n;
    const struct route *table = routes_table(&n);

    return route == NULL ? n : (size_t)(route - table);
}

static void log_request(const struct visit *v, int status, int64_t duration_us)
{
    const struct route *route = v == NULL ? NULL : v->route;

    log_event(LOG_DEBUG, "http.request", {"method", route == NULL ? STR_NONE : route->method},
              {"route", route == NULL ? STR("unmatched") : route->pattern},
              {"status", log_int(status)}, {"duration_us", log_int(duration_us)},
              {"request_id", v == NULL ? STR_NONE : str_make(v->id, v->id_bytes)});
}

static void on_done(struct http_exchange *x, int status, int64_t duration_us, void *ctx)
{
    struct api *api = ctx;
    struct visit *v = http_user(x);

    metrics_count_http(api->metrics, route_number(v == NULL ? NULL : v->route), status,
                       duration_us);
    if (log_enabled(LOG_DEBUG))
        log_request(v, status, duration_us);
    visit_free(v);
}

/* What the server refused by itself, perhaps before there was a request. */
static void on_error(int status, const char *message, struct http_answer *answer, struct buf *body,
                     void *ctx)
{
    static _Thread_local char line[64]; /* the server copies it */
    char id[UUID_TEXT_LEN];

    error_encode_refusal(status, message, body);
    request_make_id(ctx, id);
    answer->content_type = STR("application/json; charset=utf-8");
    answer->headers = str_make(
        line, (size_t)snprintf(line, sizeof(line), "X-Request-Id: %.*s\r\n", UUID_TEXT_LEN, id));
}

/* ---- life ---- */

static struct metrics *make_metrics(void)
{
    size_t n;
    const struct route *table = routes_table(&n);
    struct str *names = xzalloc(n * sizeof(*names));
    struct metrics *m;

    for (size_t i = 0; i < n; i++)
        names[i] = table[i].label;
    m = metrics_new(names, n);
    free(names);
    return m;
}

struct api *api_new(const struct api_options *opt, struct err *e)
{
    struct api *api = xzalloc(sizeof(*api));
    const struct http_options http = {
        .listen_addr = opt->listen_addr,
        .max_body_bytes = (size_t)opt->max_body_bytes,
        .stream_max_pending = STREAM_PENDING_MAX,
        .ctx = api,
        .on_head = on_head,
        .on_request = on_request,
        .on_gone = on_gone,
        .on_error = on_error,
        .on_done = on_done,
    };

    api->engine = opt->engine;
    api->store = engine_store(opt->engine);
    api->sender_stats = opt->sender_stats;
    if (opt->bearer_token != NULL)
        api->bearer_token = str_of(xstrdup(str_of(opt->bearer_token)));
    api->dev = opt->dev;
    rand_bytes(&api->request_base, sizeof(api->request_base));
    api->readers = readers_new(api->store, engine_connections(opt->engine)->readers);
    api->aside = readers_new_aside(api->store);
    api->secrets = secrets_new(readers_are_local(api->readers) ? 0 : SECRETS_HOLD_US);
    api->hub = hub_new(api);
    api->metrics = make_metrics();
    api->stored = seen_new();
    api->server = http_server_new(&http, e);
    if (api->server == NULL) {
        api_free(api);
        return NULL;
    }
    return api;
}

uint16_t api_port(const struct api *api)
{
    return http_server_port(api->server);
}

bool api_start(struct api *api, struct err *e)
{
    return readers_start(api->readers, e) && readers_start(api->aside, e) &&
           hub_start(api->hub, e) && http_server_start(api->server, e);
}

void api_events(struct api *api, const struct uuid *execution_id, bool ended)
{
    hub_events(api->hub, execution_id, ended);
}

void api_agent_changed(struct api *api, struct str agent_id)
{
    secrets_forget(api->secrets, agent_id);
}

bool api_drain(struct api *api, int64_t deadline_mono_us)
{
    http_server_drain(api->server); /* before the hub: a poll that comes now is answered at once */
    hub_drain(api->hub);
    http_server_stop(api->server, deadline_mono_us);
    /* What it has may end in a command: none comes after this. */
    return readers_stop_by(api->aside, clock_mono_us() + ASIDE_PATIENCE_US);
}

void api_free(struct api *api)
{
    if (api == NULL)
        return;
    hub_stop(api->hub);
    readers_stop(api->readers);
    readers_stop(api->aside);
    http_server_free(api->server);
    hub_free(api->hub);
    readers_free(api->readers);
    readers_free(api->aside);
    secrets_free(api->secrets);
    metrics_free(api->metrics);
    seen_free(api->stored);
    free((char *)(uintptr_t)api->bearer_token.p);
    free(api);
}
