/* SPDX-License-Identifier: Apache-2.0
 * The table of routes: what matches, what a wrong method is told. */
#include "support/check.h"

#include "api/router.h"

static const char EXEC[] = "/v0/executions/01920000-0000-7000-8000-000000000000";

static const struct route *find(const char *method, const char *path, struct buf *allow)
{
    struct str params[ROUTE_PARAMS_MAX];

    return route_find(str_of(method), str_of(path), params, allow);
}

static void finds_routes(void **state)
{
    static const struct {
        const char *method, *path, *label; /* NULL: no route, and no method would find one */
    } cases[] = {
        {"GET", "/v0/executions", "GET /v0/executions"},
        {"POST", "/v0/executions", "POST /v0/executions"},
        {"HEAD", "/v0/executions", "GET /v0/executions"},
        {"GET", "/v0/executions/x", "GET /v0/executions/{execution_id}"},
        {"GET", "/v0/executions/%20", "GET /v0/executions/{execution_id}"},
        {"POST", "/v0/executions/x/steps/y/stream",
         "POST /v0/executions/{execution_id}/steps/{step_id}/stream"},
        {"POST", "/v0/executions/x/fork", "POST /v0/executions/{execution_id}/fork"},
        {"POST", "/v0/executions/x/resources", "POST /v0/executions/{execution_id}/resources"},
        {"POST", "/v0/executions/x/resources/checkpoints",
         "POST /v0/executions/{execution_id}/resources/checkpoints"},
        {"POST", "/v0/executions/x/resources/checkpoints/binding",
         "POST /v0/executions/{execution_id}/resources/{key}/binding"},
        {"GET", "/v0/executions/x/stream", "GET /v0/executions/{execution_id}/stream"},
        {"PUT", "/v0/agents/a/metadata", "PUT /v0/agents/{agent_id}/metadata"},
        {"POST", "/v0/policies/a", "POST /v0/policies/{agent_id}"},
        {"POST", "/v0/policies/a/test", "POST /v0/policies/{agent_id}/test"},
        {"GET", "/v0/approvals", "GET /v0/approvals"},
        {"GET", "/v0/approvals/a", "GET /v0/approvals/{approval_id}"},
        {"POST", "/v0/approvals/a/grant", "POST /v0/approvals/{approval_id}/grant"},
        {"POST", "/v0/approvals/a/deny", "POST /v0/approvals/{approval_id}/deny"},
        {"GET", "/metrics", "GET /metrics"},
        {"GET", "/", NULL},
        {"GET", "", NULL},
        {"GET", "x", NULL},
        {"GET", "*", NULL},
        {"GET", "/v0", NULL},
        {"GET", "/v0/", NULL},
        {"GET", "/v0/executions/", NULL},
        {"GET", "/v0//executions", NULL},
        {"GET", "//v0/executions", NULL},
        {"GET", "/v0/executions//steps", NULL},
        {"GET", "/v0/executions/x/", NULL},
        {"GET", "/v0/executions/x/steps/", NULL},
        {"GET", "/v0/Executions", NULL},
        {"GET", "/v0/%65xecutions", NULL},
        {"GET", "/v0/executions/x/steps/y/z", NULL},
        {"GET", "/metrics/", NULL},
    };

    (void)state;
    for (size_t i = 0; i < COUNT(cases); i++) {
        struct buf allow = {0};
        const struct route *route = find(cases[i].method, cases[i].path, &allow);
        CHECKF((route == NULL) == (cases[i].label == NULL), "case %zu: %s", i, cases[i].path);
        CHECKF(allow.n == 0 || route != NULL, "case %zu", i);
        if (route != NULL)
            CHECK_STR(route->label, str_of(cases[i].label));
        buf_free(&allow);
    }
}

static void hands_out_parameters(void **state)
{
    struct str params[ROUTE_PARAMS_MAX];
    struct buf allow = {0};

    (void)state;
    assert_non_null(route_find(STR("GET"), STR("/v0/executions/a%2Fb/steps/c"), params, &allow));
    CHECK_STR(params[0], STR("a%2Fb"));
    CHECK_STR(params[1], STR("c"));
    buf_free(&allow);
}

static void names_the_methods_of_a_path(void **state)
{
    static const struct {
        const char *method, *path, *allow;
    } cases[] = {
        {"DELETE", "/v0/executions", "POST, GET, HEAD"},
        {"get", "/v0/executions", "POST, GET, HEAD"},
        {"PUT", "/v0/agents/x", "GET, HEAD, DELETE"},
        {"GET", "/v0/agents/x/metadata", "PUT"},
        {"HEAD", "/v0/executions/x/cancel", "POST"},
        {"GET", "/v0/policies/x", "POST"},
        {"DELETE", "/v0/approvals/x", "GET, HEAD"},
        {"GET", "/v0/executions/x/fork", "POST"},
        {"POST", "/v0/executions/x/fork-points", "GET, HEAD"},
        {"GET", "/v0/executions/x/resources/checkpoints", "POST"},
        {"POST", "/v0/executions/x/resources/k", ""},
        {"OPTIONS", "/v0/health", "GET, HEAD"},
        {"PATCH", "/v0/nothing", ""},
    };

    (void)state;
    for (size_t i = 0; i < COUNT(cases); i++) {
        struct buf allow = {0};
        assert_null(find(cases[i].method, cases[i].path, &allow));
        CHECK_STR(buf_str(&allow), str_of(cases[i].allow));
        buf_free(&allow);
    }
}

/* A handler may rely on it: who may call is decided by the table. */
static void asks_for_credentials_everywhere(void **state)
{
    size_t n;
    const struct route *table = routes_table(&n);

    (void)state;
    for (size_t i = 0; i < n; i++) {
        const struct route *r = &table[i];
        bool open = r->auth == AUTH_NONE, agent = r->auth == AUTH_AGENT;
        CHECKF((r->scope == NULL) == (open || agent), "%.*s", STR_ARG(r->label));
        CHECKF(agent || r->lease == LEASE_IGNORED, "%.*s", STR_ARG(r->label));
        CHECKF(!open || !str_starts(r->pattern, str_of("/v0/executions")), "%.*s",
               STR_ARG(r->label));
        CHECKF(r->handle != NULL, "%.*s", STR_ARG(r->label));
    }
}

/* Each route is found under its own pattern: none hides behind an earlier one. */
static void hides_no_route(void **state)
{
    size_t n;
    const struct route *table = routes_table(&n);

    (void)state;
    for (size_t i = 0; i < n; i++) {
        struct str params[ROUTE_PARAMS_MAX];
        struct buf allow = {0};
        CHECKF(route_find(table[i].method, table[i].pattern, params, &allow) == &table[i], "%.*s",
               STR_ARG(table[i].label));
        buf_free(&allow);
    }
}

static void takes_any_bytes(void **state)
{
    struct prng random;
    char path[64];

    (void)state;
    prng_seed(&random, 1);
    for (int i = 0; i < 20000; i++) {
        size_t n = (size_t)prng_below(&random, sizeof(path));
        struct str params[ROUTE_PARAMS_MAX];
        struct buf allow = {0};
        for (size_t j = 0; j < n; j++)
            path[j] = "/v0executions{}%\0\xff"[prng_below(&random, 18)];
        if (n > sizeof("/v0/") && prng_below(&random, 2) == 0)
            memcpy(path, EXEC, n < sizeof(EXEC) ? n : sizeof(EXEC) - 1);
        (void)route_find(STR("GET"), str_make(path, n), params, &allow);
        buf_free(&allow);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(finds_routes),
        cmocka_unit_test(hands_out_parameters),
        cmocka_unit_test(names_the_methods_of_a_path),
        cmocka_unit_test(asks_for_credentials_everywhere),
        cmocka_unit_test(hides_no_route),
        cmocka_unit_test(takes_any_bytes),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
