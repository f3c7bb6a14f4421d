/* SPDX-License-Identifier: Apache-2.0
 * The table of routes. Private to api/. */
#ifndef API_ROUTER_H
#define API_ROUTER_H

#include "api/request.h"

enum auth {
    AUTH_NONE,
    AUTH_BEARER, /* a token with the route's scope */
    AUTH_EITHER, /* a token with the route's scope, or an agent's signature */
    AUTH_AGENT,  /* an agent's signature */
};

enum lease_use {
    LEASE_IGNORED,
    LEASE_OPTIONAL,
    LEASE_REQUIRED, /* 400 without dispatch headers */
};

struct route {
    struct str method;
    struct str label;   /* method and pattern: in metrics */
    struct str pattern; /* segments in braces are parameters: {execution_id}, {step_id}, {agent_id},
                           {approval_id}, {key} */
    enum auth auth;
    const char *scope; /* of a bearer's key, all of them if there are several, with spaces between;
                          the bootstrap token has all */
    enum lease_use lease;
    void (*handle)(
        struct request *rq); /* the request is whole, its credentials good, its path decoded */
};

const struct route *routes_table(size_t *n);
/* The route, or NULL; then *allow is what a 405 says, or empty: a 404. `segments` gets the
 * parameters, still escaped, in the order of the pattern. */
enum { ROUTE_PARAMS_MAX = 2 };
const struct route *route_find(struct str method, struct str path,
                               struct str params[ROUTE_PARAMS_MAX], struct buf *allow);
/* Decodes the path's parameters and reads the dispatch headers: false with e set (400). */
MUST_USE bool route_read_params(struct request *rq, struct err *e);

/* handlers, by file */
void executions_create(struct request *rq);
void executions_list(struct request *rq);
void executions_get(struct request *rq);
void executions_previous(struct request *rq);
void executions_cancel(struct request *rq);
void executions_complete(struct request *rq);
void executions_fail(struct request *rq);
void forks_create(struct request *rq);
void forks_points(struct request *rq);
void events_get(struct request *rq);
void stream_follow(struct request *rq);
void stream_publish(struct request *rq);
void steps_list(struct request *rq);
void steps_submit(struct request *rq);
void steps_get(struct request *rq);
void steps_complete(struct request *rq);
void steps_fail(struct request *rq);
void resources_register(struct request *rq);
void resources_bind(struct request *rq);
void resources_capture(struct request *rq);
void lease_post_heartbeat(struct request *rq);
void lease_post_release(struct request *rq);
void lease_post_suspend(struct request *rq);
void agents_register(struct request *rq);
void agents_list(struct request *rq);
void agents_get(struct request *rq);
void agents_remove(struct request *rq);
void agents_describe(struct request *rq);
void approvals_list(struct request *rq);
void approvals_get(struct request *rq);
void approvals_grant(struct request *rq);
void approvals_deny(struct request *rq);
void policies_set(struct request *rq);
void policies_test(struct request *rq);
void operations_health(struct request *rq);
void operations_ready(struct request *rq);
void operations_metrics(struct request *rq);

#endif
