/* SPDX-License-Identifier: Apache-2.0 */
#include "api/auth.h"

#include "api/secrets.h"
#include "base/clock.h"

static const int64_t TIMESTAMP_WINDOW_S = 300;

/* ---- bearers ---- */

static struct str without_scheme(struct str origin)
{
    static const struct str schemes[] = {STR_INIT("http://"), STR_INIT("https://")};

    for (size_t i = 0; i < COUNT(schemes); i++)
        if (str_starts(origin, schemes[i]))
            return str_slice(origin, schemes[i].n, origin.n);
    return STR_NONE;
}

/* No web page may drive a local kernel, which lets requests in without a token: its origin must be
 * the kernel itself. */
static bool check_origin(const struct request *rq, struct err *e)
{
    struct str origin = http_header(rq->x, "Origin"), host = http_header(rq->x, "Host");

    if (!rq->api->dev || !str_present(origin))
        return true;
    origin = without_scheme(origin);
    return (str_present(origin) && str_present(host) && str_eq_nocase(origin, host)) ||
           err_set(e, ERR_FORBIDDEN,
                   "web pages of another origin may not call a kernel in dev mode");
}

static struct str token_of(struct str authorization)
{
    static const struct str scheme = STR_INIT("bearer ");

    if (authorization.n <= scheme.n ||
        !str_eq_nocase(str_slice(authorization, 0, scheme.n), scheme))
        return STR_NONE;
    return str_slice(authorization, scheme.n, authorization.n);
}

static bool check_bearer(struct request *rq, struct err *e)
{
    struct str authorization = http_header(rq->x, "Authorization"), token;

    if (!check_origin(rq, e))
        return false;
    if (!str_present(authorization) && rq->api->dev) {
        rq->caller = STR("anonymous");
        return true;
    }
    if (!str_present(authorization))
        return err_set(e, ERR_UNAUTHORIZED, "missing header Authorization: Bearer <token>");
    token = token_of(authorization);
    if (!str_present(token) || !str_present(rq->api->bearer_token) ||
        !str_eq_secret(token, rq->api->bearer_token))
        return err_set(e, ERR_UNAUTHORIZED, "the bearer token is not valid");
    rq->caller = STR("bootstrap");
    return true;
}

/* ---- agents ---- */

static bool check_timestamp(struct str timestamp, struct err *e)
{
    int64_t now = clock_wall_us() / US_PER_S, t;

    if (!str_to_int64(timestamp, &t))
        return err_set(e, ERR_UNAUTHORIZED,
                       "header Rebuno-Timestamp must be Unix seconds in decimal");
    if (t < now - TIMESTAMP_WINDOW_S || t > now + TIMESTAMP_WINDOW_S)
        return err_set(e, ERR_UNAUTHORIZED,
                       "header Rebuno-Timestamp is more than 300 seconds off the kernel's clock");
    return true;
}

/* An unknown agent and a wrong signature sound the same. */
static bool refuse_signature(struct err *e)
{
    return err_set(e, ERR_UNAUTHORIZED,
                   "unknown agent, or the signature does not match the request");
}

/* Before a large body is taken from a stranger, where looking is cheap. */
static bool check_agent_is_known(struct request *rq, struct err *e)
{
    struct store_reader *r = readers_here(rq->api->readers);
    bool found = true;

    if (r == NULL || secrets_knows(rq->api->secrets, rq->agent_id))
        return true;
    return secrets_load(rq->api->secrets, rq->agent_id, r, &found, e) &&
           (found || refuse_signature(e));
}

static bool check_agent_head(struct request *rq, struct err *e)
{
    static const char *const names[] = {"Rebuno-Agent-Id", "Rebuno-Timestamp", "Rebuno-Signature"};

    for (size_t i = 0; i < COUNT(names); i++)
        if (str_empty(http_header(rq->x, names[i])))
            return err_set(e, ERR_UNAUTHORIZED, "missing header %s", names[i]);
    rq->agent_id = http_header(rq->x, "Rebuno-Agent-Id");
    if (!check_timestamp(http_header(rq->x, "Rebuno-Timestamp"), e))
        return false;
    if (!str_is_utf8(rq->agent_id) || str_has_control(rq->agent_id))
        return refuse_signature(e);
    return check_agent_is_known(rq, e);
}

static bool is_signed(const struct request *rq)
{
    return str_present(http_header(rq->x, "Rebuno-Signature")) ||
           str_present(http_header(rq->x, "Rebuno-Agent-Id"));
}

/* Which of two counts is a guess, and a proxy may guess otherwise. */
static bool check_no_repeats(const struct request *rq, struct err *e)
{
    static const char *const names[] = {"Authorization",      "Rebuno-Agent-Id",
                                        "Rebuno-Timestamp",   "Rebuno-Signature",
                                        "Rebuno-Dispatch-Id", "Rebuno-Dispatch-Attempt"};

    for (size_t i = 0; i < COUNT(names); i++)
        if (http_header_repeated(rq->x, names[i]))
            return err_set(e, ERR_VALIDATION, "header %s was sent more than once", names[i]);
    return true;
}

bool auth_check_head(struct request *rq, struct err *e)
{
    if (rq->visit->route->auth != AUTH_NONE && !check_no_repeats(rq, e))
        return false;
    switch (rq->visit->route->auth) {
    case AUTH_NONE:
        return true;
    case AUTH_BEARER:
        return check_bearer(rq, e);
    case AUTH_EITHER:
        if (is_signed(rq) && !str_present(http_header(rq->x, "Authorization")))
            return check_agent_head(rq, e);
        return check_bearer(rq, e);
    case AUTH_AGENT:
        return check_agent_head(rq, e);
    }
    return false;
}

static struct signed_call call_of(const struct request *rq)
{
    return (struct signed_call){
        .agent_id = rq->agent_id,
        .signature = http_header(rq->x, "Rebuno-Signature"),
        .request =
            {
                .method = http_method(rq->x),
                .target = http_target(rq->x),
                .timestamp = http_header(rq->x, "Rebuno-Timestamp"),
                .dispatch_id = http_header(rq->x, "Rebuno-Dispatch-Id"),
                .attempt = http_header(rq->x, "Rebuno-Dispatch-Attempt"),
                .body = http_body(rq->x),
            },
    };
}

static bool is_good(const struct request *rq)
{
    const struct signed_call call = call_of(rq);

    return secrets_check(rq->api->secrets, call.agent_id, &call.request, call.signature) ==
           SECRETS_GOOD;
}

/* What is known did not fit, or nothing is: the secret may have been changed elsewhere. Look once.
 */
static void check_anew(struct request *rq, struct store_reader *r)
{
    void (**next)(struct request * rq) = rq->state;
    const struct signed_call call = call_of(rq);
    enum secrets_verdict verdict;
    struct err e;

    if (secrets_check_anew(rq->api->secrets, r, &call, &verdict, &e)) {
        if (verdict == SECRETS_GOOD) {
            (*next)(rq);
            return;
        }
        (void)refuse_signature(&e);
    }
    request_reply_error(rq, &e);
}

void auth_check_request(struct request *rq, void (*next)(struct request *rq))
{
    void (**kept)(struct request * rq);

    if (!str_present(rq->agent_id) || is_good(rq)) {
        next(rq);
        return;
    }
    kept = arena_alloc(rq->arena, sizeof(*kept));
    *kept = next;
    rq->state = kept;
    request_read_small(rq, check_anew);
}
