/* SPDX-License-Identifier: Apache-2.0
 * For probes and monitoring: no credentials. */
#include "api/router.h"

#include "observe/metrics.h"

static void reply_status(struct request *rq, int status, struct str word)
{
    struct buf body = {0};

    buf_printf(&body, "{\"status\":\"%.*s\"}", STR_ARG(word));
    request_reply_json(rq, status, &body);
}

void operations_health(struct request *rq)
{
    reply_status(rq, 200, STR("ok"));
}

/* ---- ready ---- */

/* Runs without a reader, too: that there is none is an answer here. */
static void ping(struct read_job *job, struct store_reader *r, const struct err *why)
{
    struct request *rq = request_of_job(job);
    struct err e;

    (void)why;
    if (r != NULL && !http_is_gone(rq->x) && store_ping(r, &e))
        reply_status(rq, 200, STR("ready"));
    else
        reply_status(rq, 503, STR("unavailable"));
}

void operations_ready(struct request *rq)
{
    if (!engine_writable(rq->api->engine)) {
        reply_status(rq, 503, STR("unavailable"));
        return;
    }
    rq->job.run = ping;
    readers_push(rq->api->readers, &rq->job);
}

/* ---- metrics ---- */

static int64_t get(const atomic_uint_fast64_t *counter)
{
    return (int64_t)atomic_load_explicit(counter, memory_order_relaxed);
}

static void add_executions(struct buf *out, const struct engine_stats *s)
{
    metric_begin(out, "rebuno_executions_created_total", METRIC_COUNTER, "Executions created.");
    metric_value(out, "rebuno_executions_created_total", NULL, NULL, get(&s->created));
    metric_begin(out, "rebuno_executions_completed_total", METRIC_COUNTER,
                 "Executions that have ended, by status.");
    metric_value(out, "rebuno_executions_completed_total", "status", "completed",
                 get(&s->completed));
    metric_value(out, "rebuno_executions_completed_total", "status", "failed", get(&s->failed));
    metric_value(out, "rebuno_executions_completed_total", "status", "cancelled",
                 get(&s->cancelled));
}

static void add_steps(struct buf *out, const struct engine_stats *s)
{
    metric_begin(out, "rebuno_steps_submitted_total", METRIC_COUNTER,
                 "Submissions of steps, by kind.");
    for (size_t i = 0; i < COUNT(s->submitted); i++)
        metric_value(out, "rebuno_steps_submitted_total", "kind",
                     step_kind_name((enum step_kind)i).p, get(&s->submitted[i]));
    metric_begin(out, "rebuno_replay_total", METRIC_COUNTER,
                 "Submissions answered from the record (hit), or not.");
    metric_value(out, "rebuno_replay_total", "hit", "true", get(&s->replay_hit));
    metric_value(out, "rebuno_replay_total", "hit", "false", get(&s->replay_miss));
    metric_begin(out, "rebuno_policy_decisions_total", METRIC_COUNTER,
                 "New steps, by what was decided of them.");
    metric_value(out, "rebuno_policy_decisions_total", "decision", "allow", get(&s->allowed));
    metric_value(out, "rebuno_policy_decisions_total", "decision", "deny", get(&s->denied));
    metric_value(out, "rebuno_policy_decisions_total", "decision", "require_approval",
                 get(&s->held));
    metric_begin(out, "rebuno_policy_latency_seconds", METRIC_SUMMARY,
                 "Time that the rules took to decide a new step.");
    metric_seconds(out, "rebuno_policy_latency_seconds_sum", get(&s->decided_ns) / 1000);
    metric_value(out, "rebuno_policy_latency_seconds_count", NULL, NULL, get(&s->decided_count));
}

static void add_gates(struct buf *out, const struct engine_stats *s)
{
    metric_begin(out, "rebuno_approval_outcomes_total", METRIC_COUNTER,
                 "Approvals, by how they ended.");
    metric_value(out, "rebuno_approval_outcomes_total", "outcome", "granted", get(&s->granted));
    metric_value(out, "rebuno_approval_outcomes_total", "outcome", "denied", get(&s->rejected));
    metric_value(out, "rebuno_approval_outcomes_total", "outcome", "expired", get(&s->expired));
    metric_begin(out, "rebuno_rate_limit_decisions_total", METRIC_COUNTER,
                 "New steps under a rule with a rate limit, by what it made of them.");
    metric_value(out, "rebuno_rate_limit_decisions_total", "outcome", "allowed",
                 get(&s->limit_passed));
    metric_value(out, "rebuno_rate_limit_decisions_total", "outcome", "limited",
                 get(&s->limit_refused));
    metric_value(out, "rebuno_rate_limit_decisions_total", "outcome", "parked",
                 get(&s->limit_parked));
}

static void add_dispatches(struct buf *out, const struct engine_stats *s,
                           const struct sender_stats *sender)
{
    metric_begin(out, "rebuno_dispatch_outcomes_total", METRIC_COUNTER,
                 "Deliveries, by what became of them.");
    metric_value(out, "rebuno_dispatch_outcomes_total", "outcome", "acked", get(&s->acked));
    metric_value(out, "rebuno_dispatch_outcomes_total", "outcome", "failed",
                 get(&s->delivery_failed));
    metric_value(out, "rebuno_dispatch_outcomes_total", "outcome", "discarded", get(&s->discarded));
    metric_begin(out, "rebuno_dispatches_reclaimed_total", METRIC_COUNTER,
                 "Deliveries whose lease ran out.");
    metric_value(out, "rebuno_dispatches_reclaimed_total", NULL, NULL, get(&s->reclaimed));
    metric_begin(out, "rebuno_llm_usage_missing_total", METRIC_COUNTER,
                 "Model answers that carried no token counts.");
    metric_value(out, "rebuno_llm_usage_missing_total", NULL, NULL, get(&s->usage_missing));
    metric_begin(out, "rebuno_worker_errors_total", METRIC_COUNTER, "Failures of background work.");
    metric_value(out, "rebuno_worker_errors_total", "worker", "engine", get(&s->worker_errors));
    if (sender == NULL)
        return;
    metric_begin(out, "rebuno_dispatch_latency_seconds", METRIC_SUMMARY,
                 "From a delivery's claim to the webhook's answer.");
    metric_seconds(out, "rebuno_dispatch_latency_seconds_sum", get(&sender->latency_sum_us));
    metric_value(out, "rebuno_dispatch_latency_seconds_count", NULL, NULL,
                 get(&sender->latency_count));
}

static void reply_metrics(struct request *rq, const int64_t *queue_depth)
{
    const struct engine_stats *s = engine_stats(rq->api->engine);
    struct buf body = {0};
    struct http_stats http;
    struct http_answer answer = {
        .status = 200,
        .content_type = STR("text/plain; version=0.0.4; charset=utf-8"),
        .headers = visit_headers(rq->visit, STR(""), rq->arena),
        .body = &body,
    };

    add_executions(&body, s);
    add_steps(&body, s);
    add_gates(&body, s);
    add_dispatches(&body, s, rq->api->sender_stats);
    if (queue_depth != NULL) {
        metric_begin(&body, "rebuno_queue_depth", METRIC_GAUGE, "Deliveries in the queue.");
        metric_value(&body, "rebuno_queue_depth", NULL, NULL, *queue_depth);
    }
    http_server_stats(rq->api->server, &http);
    metric_begin(&body, "rebuno_http_connections", METRIC_GAUGE, "Open connections.");
    metric_value(&body, "rebuno_http_connections", NULL, NULL, (int64_t)http.connections);
    metric_begin(&body, "rebuno_http_streams", METRIC_GAUGE, "Open streams.");
    metric_value(&body, "rebuno_http_streams", NULL, NULL, (int64_t)http.streams);
    metrics_add_http(rq->api->metrics, &body);
    metrics_add_process(&body);
    if (body.failed) {
        buf_free(&body);
        request_refuse(rq, ERR_INTERNAL, "out of memory for metrics");
        return;
    }
    http_reply(rq->x, &answer);
}

/* The store may be away: all that does not need it is told all the same. */
static void read_metrics(struct read_job *job, struct store_reader *r, const struct err *why)
{
    struct request *rq = request_of_job(job);
    int64_t depth;
    struct err e;
    bool known;

    (void)why;
    known = r != NULL && !http_is_gone(rq->x) && store_queue_depth(r, &depth, &e);
    reply_metrics(rq, known ? &depth : NULL);
}

void operations_metrics(struct request *rq)
{
    rq->job.run = read_metrics;
    readers_push(rq->api->readers, &rq->job);
}
