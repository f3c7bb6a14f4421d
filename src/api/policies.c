/* SPDX-License-Identifier: Apache-2.0
 * Bundles: set for an agent, and tested against cases and past executions. Compiling one may take
 * long, so it happens aside. */
#include "api/router.h"

#include "api/bundle.h"
#include "api/params.h"
#include "api/policy_run.h"
#include "base/clock.h"

/* ---- setting ---- */

void policies_set(struct request *rq)
{
    struct policy_setting *in = &request_command(rq, COMMAND_POLICY_SET)->in.policy_set;
    struct str bundle;
    const struct json_field fields[] = {
        {.name = "bundle", .required = true, .types = TYPE(STRING), .value = &bundle},
    };
    struct err e;

    if (!json_fields(http_body(rq->x), false, fields, COUNT(fields), rq->arena, &e)) {
        request_reply_error(rq, &e);
        return;
    }
    in->agent_id = rq->path_id;
    bundle_submit(rq, bundle, &in->bundle, &in->hash, request_reply_empty);
}

/* ---- testing ---- */

enum { EXECUTIONS_LIMIT = 100, EXECUTIONS_LIMIT_MAX = 1000 };

struct test_query {
    struct bundle_text bundle;
    struct str cases; /* raw; absent: none */
    bool one;         /* of execution_id */
    struct uuid execution_id;
    bool newest;        /* executions */
    struct str session; /* of the newest; absent: any */
    int64_t since_us, limit;
};

static bool decode_executions(struct str object, struct test_query *q, struct arena *a,
                              struct err *e)
{
    struct str session = STR_NONE, since = STR_NONE, limit = STR_NONE;
    const struct json_field fields[] = {
        {.name = "session", .types = TYPE(STRING), .value = &session},
        {.name = "since", .types = TYPE(STRING), .value = &since},
        {.name = "limit", .types = TYPE(NUMBER), .value = &limit},
    };

    if (!str_present(object))
        return true;
    q->newest = true;
    if (!json_fields(object, false, fields, COUNT(fields), a, e) ||
        !field_text("session", session, 1, SHORT_TEXT_MAX, a, &q->session, e) ||
        !field_int("limit", limit, 1, EXECUTIONS_LIMIT_MAX, &q->limit, e))
        return false;
    if (str_present(since) && !clock_parse_rfc3339(json_string(since, a), &q->since_us))
        return err_set(e, ERR_VALIDATION, "field \"since\" must be a time like %s",
                       "2026-01-02T03:04:05Z");
    return true;
}

static bool decode_test(struct request *rq, struct test_query *q, struct err *e)
{
    struct str execution_id = STR_NONE, executions = STR_NONE;
    const struct json_field fields[] = {
        {.name = "bundle", .types = TYPE(STRING), .value = &q->bundle.raw},
        {.name = "cases", .types = TYPE(ARRAY), .value = &q->cases},
        {.name = "execution_id", .types = TYPE(STRING), .value = &execution_id},
        {.name = "executions", .types = TYPE(OBJECT), .value = &executions},
    };

    q->limit = EXECUTIONS_LIMIT;
    q->since_us = INT64_MIN;
    if (!json_fields(http_body(rq->x), false, fields, COUNT(fields), rq->arena, e))
        return false;
    q->one = str_present(execution_id);
    if (q->one && str_present(executions))
        return err_set(e, ERR_VALIDATION,
                       "fields \"execution_id\" and \"executions\" exclude each other");
    if (q->one && !uuid_parse(json_string(execution_id, rq->arena), &q->execution_id))
        return err_set(e, ERR_VALIDATION, "field \"execution_id\" must be a UUID");
    return decode_executions(executions, q, rq->arena, e);
}

/* The cases outlive the request: its answer may leave bit by bit. */
static bool take_cases(const struct request *rq, const struct test_query *q, struct policy_run *run,
                       struct err *e)
{
    struct str text, agent_id;

    if (!str_present(q->cases))
        return true;
    text = arena_str(&run->arena, q->cases);
    agent_id = arena_str(&run->arena, rq->path_id);
    if (!str_present(text))
        return err_set(e, ERR_INTERNAL, "out of memory for cases");
    return policy_cases_read(text, agent_id, &run->arena, &run->cases, &run->n_cases, e);
}

/* The bundle that was sent, else the agent's own. The latter also says what was meant by the ids of
 * rules in what it decided. */
static bool take_bundles(struct request *rq, struct test_query *q, const struct agent_view *agent,
                         struct policy_run *run, struct err *e)
{
    bool given = str_present(q->bundle.yaml), replays = q->one || q->newest;
    struct err ignored;

    if (!given && !str_present(agent->policy_bundle))
        return err_set(e, ERR_VALIDATION,
                       "agent %.*s has no policy, so there is nothing to test without a \"bundle\"",
                       STR_ARG(rq->path_id));
    if (str_present(agent->policy_bundle) && (!given || replays))
        run->own = policy_compile(agent->policy_bundle, "", given ? &ignored : e);
    if (!given)
        run->tested = run->own == NULL ? NULL : policy_ref(run->own);
    return run->tested != NULL;
}

/* One that is another agent's is none of this agent's. */
static bool check_execution(struct request *rq, struct store_reader *r, const struct test_query *q,
                            struct err *e)
{
    struct execution_view v;
    bool found;

    if (!q->one)
        return true;
    if (!store_read_execution(r, &q->execution_id, rq->arena, &v, &found, e))
        return false;
    return (found && str_eq(v.agent_id, rq->path_id)) ||
           err_set(e, ERR_NOT_FOUND, "no such execution of this agent");
}

static void take_recorded(const struct request *rq, const struct test_query *q,
                          struct policy_run *run)
{
    const struct recorded_query recorded = {
        .agent_id = rq->path_id,
        .execution_id = q->one ? &q->execution_id : NULL,
        .session = q->session,
        .since_us = q->since_us,
        .limit = q->limit,
    };

    if (q->one || q->newest)
        run->recorded = recorded_new(&recorded);
}

/* Everything that can be refused is, before the answer begins. */
static bool prepare(struct request *rq, struct store_reader *r, struct policy_run *run,
                    struct err *e)
{
    struct test_query *q = rq->state;
    struct agent_view agent;
    bool found;

    if (!bundle_decode(&q->bundle, rq->arena, e) || !take_cases(rq, q, run, e))
        return false;
    if (str_present(q->bundle.yaml)) {
        run->tested = policy_compile(q->bundle.yaml, "", e);
        if (run->tested == NULL)
            return false;
    }
    if (!store_read_agent(r, rq->path_id, rq->arena, &agent, &found, e))
        return false;
    if (!found)
        return err_set(e, ERR_NOT_FOUND, "no such agent");
    if (!check_execution(rq, r, q, e) || !take_bundles(rq, q, &agent, run, e))
        return false;
    take_recorded(rq, q, run);
    return true;
}

static void run_test(struct request *rq, struct store_reader *r)
{
    struct policy_run run = {.agent_id = rq->path_id};
    struct err e;

    if (prepare(rq, r, &run, &e)) {
        policy_run_start(rq, &run, r);
        return;
    }
    policy_unref(run.tested);
    policy_unref(run.own);
    arena_free(&run.arena);
    request_reply_error(rq, &e);
}

void policies_test(struct request *rq)
{
    struct test_query *q = arena_new(rq->arena, struct test_query);
    struct err e;

    rq->state = q;
    if (decode_test(rq, q, &e))
        request_read_aside(rq, run_test);
    else
        request_reply_error(rq, &e);
}
