/* SPDX-License-Identifier: Apache-2.0 */
#include "api/router.h"

#include "api/resource_fields.h"

#define EXECUTION "/v0/executions/{execution_id}"
#define STEP EXECUTION "/steps/{step_id}"
#define AGENT "/v0/agents/{agent_id}"
#define POLICY "/v0/policies/{agent_id}"
#define APPROVAL "/v0/approvals/{approval_id}"
#define BEARER(scope) AUTH_BEARER, scope, LEASE_IGNORED
#define EITHER AUTH_EITHER, "executions:read", LEASE_IGNORED
#define SIGNED(lease) AUTH_AGENT, NULL, lease
#define OPEN AUTH_NONE, NULL, LEASE_IGNORED
#define ROUTE(method, pattern) STR_INIT(method), STR_INIT(method " " pattern), STR_INIT(pattern)

static const struct route ROUTES[] = {
    {ROUTE("POST", "/v0/executions"), BEARER("executions:write"), executions_create},
    {ROUTE("GET", "/v0/executions"), BEARER("executions:read"), executions_list},
    {ROUTE("GET", EXECUTION), EITHER, executions_get},
    {ROUTE("GET", EXECUTION "/previous"), EITHER, executions_previous},
    {ROUTE("GET", EXECUTION "/events"), BEARER("executions:read"), events_get},
    {ROUTE("GET", EXECUTION "/stream"), BEARER("executions:read"), stream_follow},
    {ROUTE("POST", EXECUTION "/cancel"), BEARER("executions:write"), executions_cancel},
    /* With a policy_bundle it needs policies:write too. */
    {ROUTE("POST", EXECUTION "/fork"), BEARER("executions:write"), forks_create},
    {ROUTE("GET", EXECUTION "/fork-points"), BEARER("executions:read"), forks_points},
    {ROUTE("GET", EXECUTION "/steps"), EITHER, steps_list},
    {ROUTE("POST", EXECUTION "/steps"), SIGNED(LEASE_REQUIRED), steps_submit},
    {ROUTE("GET", STEP), EITHER, steps_get},
    {ROUTE("POST", STEP "/complete"), SIGNED(LEASE_REQUIRED), steps_complete},
    {ROUTE("POST", STEP "/fail"), SIGNED(LEASE_REQUIRED), steps_fail},
    {ROUTE("POST", STEP "/stream"), SIGNED(LEASE_OPTIONAL), stream_publish},
    {ROUTE("POST", EXECUTION "/resources"), SIGNED(LEASE_REQUIRED), resources_register},
    /* A key may be called "checkpoints": its binding lies below. */
    {ROUTE("POST", EXECUTION "/resources/checkpoints"), SIGNED(LEASE_REQUIRED), resources_capture},
    {ROUTE("POST", EXECUTION "/resources/{key}/binding"), SIGNED(LEASE_REQUIRED), resources_bind},
    {ROUTE("POST", EXECUTION "/heartbeat"), SIGNED(LEASE_REQUIRED), lease_post_heartbeat},
    {ROUTE("POST", EXECUTION "/release"), SIGNED(LEASE_REQUIRED), lease_post_release},
    {ROUTE("POST", EXECUTION "/suspend"), SIGNED(LEASE_REQUIRED), lease_post_suspend},
    {ROUTE("POST", EXECUTION "/complete"), SIGNED(LEASE_REQUIRED), executions_complete},
    {ROUTE("POST", EXECUTION "/fail"), SIGNED(LEASE_REQUIRED), executions_fail},
    /* With a policy_bundle it needs policies:write too. */
    {ROUTE("POST", "/v0/agents"), BEARER("agents:write"), agents_register},
    {ROUTE("GET", "/v0/agents"), BEARER("agents:read"), agents_list},
    {ROUTE("GET", AGENT), BEARER("agents:read"), agents_get},
    {ROUTE("DELETE", AGENT), BEARER("agents:write"), agents_remove},
    {ROUTE("PUT", AGENT "/metadata"), SIGNED(LEASE_IGNORED), agents_describe},
    {ROUTE("POST", POLICY), BEARER("policies:write"), policies_set},
    {ROUTE("POST", POLICY "/test"), BEARER("policies:write executions:read"), policies_test},
    {ROUTE("GET", "/v0/approvals"), BEARER("approvals:read"), approvals_list},
    {ROUTE("GET", APPROVAL), BEARER("approvals:read"), approvals_get},
    {ROUTE("POST", APPROVAL "/grant"), BEARER("approvals:write"), approvals_grant},
    {ROUTE("POST", APPROVAL "/deny"), BEARER("approvals:write"), approvals_deny},
    {ROUTE("GET", "/v0/health"), OPEN, operations_health},
    {ROUTE("GET", "/v0/ready"), OPEN, operations_ready},
    {ROUTE("GET", "/metrics"), OPEN, operations_metrics},
};

const struct route *routes_table(size_t *n)
{
    *n = COUNT(ROUTES);
    return ROUTES;
}

/* The next segment of a path that begins with '/', without it. */
static struct str next_segment(struct str *path)
{
    const char *slash = memchr(path->p + 1, '/', path->n - 1);
    size_t end = slash == NULL ? path->n : (size_t)(slash - path->p);
    struct str segment = str_slice(*path, 1, end);

    *path = str_slice(*path, end, path->n);
    return segment;
}

static bool matches(struct str pattern, struct str path, struct str params[ROUTE_PARAMS_MAX])
{
    size_t n = 0;

    while (!str_empty(pattern) && !str_empty(path)) {
        struct str want = next_segment(&pattern), got = next_segment(&path);

        if (!str_starts(want, STR("{"))) {
            if (!str_eq(want, got))
                return false;
        } else if (str_empty(got)) {
            return false;
        } else {
            ASSERT(n < ROUTE_PARAMS_MAX);
            params[n++] = got;
        }
    }
    return str_empty(pattern) && str_empty(path);
}

static bool takes_method(const struct route *route, struct str method)
{
    return str_eq(route->method, method) ||
           (str_eq(method, STR("HEAD")) && str_eq(route->method, STR("GET")));
}

static void add_allowed(struct buf *allow, struct str method)
{
    if (allow->n > 0)
        buf_add(allow, STR(", "));
    buf_add(allow, method);
    if (str_eq(method, STR("GET")))
        buf_add(allow, STR(", HEAD"));
}

const struct route *route_find(struct str method, struct str path,
                               struct str params[ROUTE_PARAMS_MAX], struct buf *allow)
{
    if (!str_starts(path, STR("/")))
        return NULL;
    for (size_t i = 0; i < COUNT(ROUTES); i++) {
        if (!matches(ROUTES[i].pattern, path, params))
            continue;
        if (takes_method(&ROUTES[i], method))
            return &ROUTES[i];
        add_allowed(allow, ROUTES[i].method);
    }
    return NULL;
}

/* ---- what the handler finds ready ---- */

static bool read_param(struct request *rq, struct str name, struct str value, struct err *e)
{
    if (str_eq(name, STR("{agent_id}"))) {
        rq->path_id = value;
        return (str_is_utf8(value) && !str_has_control(value)) ||
               err_set(e, ERR_VALIDATION, "agent_id in the path is no agent's id");
    }
    if (str_eq(name, STR("{execution_id}")))
        return uuid_parse(value, &rq->execution_id) ||
               err_set(e, ERR_VALIDATION, "execution_id in the path must be a UUID");
    if (str_eq(name, STR("{approval_id}")))
        return uuid_parse(value, &rq->approval_id) ||
               err_set(e, ERR_VALIDATION, "approval_id in the path must be a UUID");
    if (str_eq(name, STR("{key}"))) {
        rq->key = value;
        return is_resource_key(value) ||
               err_set(e, ERR_VALIDATION, "key in the path is no resource's key");
    }
    return hash_parse(value, &rq->step_id) ||
           err_set(e, ERR_VALIDATION, "step_id in the path must be 64 hexadecimal digits");
}

static bool read_path(struct request *rq, struct err *e)
{
    struct str pattern = rq->visit->route->pattern, path = http_path(rq->x);

    while (!str_empty(pattern)) {
        struct str name = next_segment(&pattern), segment = next_segment(&path), value;

        if (!str_starts(name, STR("{")))
            continue;
        if (!http_unescape(segment, false, rq->arena, &value))
            return err_set(e, ERR_VALIDATION, "bad percent escape in the path");
        if (!read_param(rq, name, value, e))
            return false;
    }
    return true;
}

static bool read_lease(struct request *rq, struct err *e)
{
    struct str id = http_header(rq->x, "Rebuno-Dispatch-Id"),
               attempt = http_header(rq->x, "Rebuno-Dispatch-Attempt");
    bool sent = str_present(id) || str_present(attempt);

    if (rq->visit->route->lease == LEASE_IGNORED ||
        (!sent && rq->visit->route->lease == LEASE_OPTIONAL))
        return true;
    if (!str_present(id))
        return err_set(e, ERR_VALIDATION, "missing header Rebuno-Dispatch-Id");
    if (!str_present(attempt))
        return err_set(e, ERR_VALIDATION, "missing header Rebuno-Dispatch-Attempt");
    if (!uuid_parse(id, &rq->lease.dispatch_id))
        return err_set(e, ERR_VALIDATION, "header Rebuno-Dispatch-Id must be a UUID");
    if (!str_to_int64(attempt, &rq->lease.attempt) || rq->lease.attempt < 1)
        return err_set(e, ERR_VALIDATION,
                       "header Rebuno-Dispatch-Attempt must be a positive integer");
    rq->has_lease = true;
    return true;
}

bool route_read_params(struct request *rq, struct err *e)
{
    return read_path(rq, e) && read_lease(rq, e);
}
