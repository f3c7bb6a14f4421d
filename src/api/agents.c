/* SPDX-License-Identifier: Apache-2.0
 * Agents: registered and removed by operators, described by themselves. */
#include "api/router.h"

#include "api/bundle.h"
#include "api/encode.h"
#include "api/params.h"
#include "base/clock.h"
#include "base/log.h"

#include <curl/curl.h>

enum { URL_MAX = 8192, SECRET_MAX = 64 * 1024 };
static const int64_t LEASE_MAX_S = 10 * 365 * INT64_C(86400);

/* ---- reading ---- */

/* False: the store's error. */
static bool reply_agent(struct request *rq, struct store_reader *r, int status, struct err *e)
{
    struct buf body = {0};
    struct json_writer w = {.out = &body};
    struct agent_view v;
    bool found;

    if (!store_read_agent(r, rq->path_id, rq->arena, &v, &found, e))
        return false;
    if (!found) {
        request_refuse(rq, ERR_NOT_FOUND, "no such agent");
        return true;
    }
    encode_agent(&w, &v);
    request_reply_json(rq, status, &body);
    return true;
}

static void read_agent(struct request *rq, struct store_reader *r)
{
    struct err e;

    if (!reply_agent(rq, r, 200, &e))
        request_reply_error(rq, &e);
}

void agents_get(struct request *rq)
{
    request_read_small(rq, read_agent);
}

static void read_agents(struct request *rq, struct store_reader *r)
{
    struct buf body = {0};
    struct json_writer w = {.out = &body};
    struct agent_view *rows;
    size_t n;
    struct err e;

    if (!store_list_agents(r, rq->arena, &rows, &n, &e)) {
        request_reply_error(rq, &e);
        return;
    }
    jw_open(&w, '[');
    for (size_t i = 0; i < n; i++)
        encode_agent(&w, &rows[i]);
    jw_close(&w, ']');
    request_reply_json(rq, 200, &body);
}

void agents_list(struct request *rq)
{
    request_read_large(rq, read_agents);
}

/* ---- registering ---- */

static bool read_registered(struct request *rq, struct store_reader *r, struct err *e)
{
    return reply_agent(rq, r, 201, e);
}

static void warn_of_short_lease(const struct agent_registration *in)
{
    if (in->lease_timeout_us > 0 && in->lease_timeout_us < AGENT_LEASE_MIN_S * US_PER_S)
        log_event(LOG_WARN, "agent.lease_ignored", {"agent_id", in->id},
                  {"reason", STR("lease_timeout_seconds is under 10; runs of the agent have the "
                                 "kernel's lease time-out")});
}

static void registered(struct request *rq)
{
    warn_of_short_lease(&rq->cmd->in.agent_register);
    rq->path_id = rq->cmd->in.agent_register.id;
    api_agent_changed(
        rq->api,
        rq->path_id); /* before the answer: the next call may be signed with the new secret */
    request_read_back(rq, read_registered);
}

/* As the one who will call it understands URLs. */
static bool is_webhook_url(struct str url, struct arena *a)
{
    CURLU *u = curl_url();
    char *scheme = NULL, *host = NULL;
    bool ok = u != NULL && curl_url_set(u, CURLUPART_URL, arena_str(a, url).p, 0) == CURLUE_OK &&
              curl_url_get(u, CURLUPART_SCHEME, &scheme, 0) == CURLUE_OK &&
              curl_url_get(u, CURLUPART_HOST, &host, 0) == CURLUE_OK && host[0] != '\0' &&
              (str_eq(str_of(scheme), STR("http")) || str_eq(str_of(scheme), STR("https")));

    curl_free(scheme);
    curl_free(host);
    curl_url_cleanup(u);
    return ok;
}

static bool is_url_text(struct str url)
{
    static const struct str schemes[] = {STR_INIT("http://"), STR_INIT("https://")};
    bool known = false;

    if (url.n > URL_MAX)
        return false;
    for (size_t i = 0; i < url.n; i++)
        if ((unsigned char)url.p[i] <= ' ' || url.p[i] == 0x7f)
            return false;
    for (size_t i = 0; i < COUNT(schemes); i++)
        known = known || (url.n > schemes[i].n &&
                          str_eq_nocase(str_slice(url, 0, schemes[i].n), schemes[i]));
    return known;
}

/* *bundle: the policy's raw text, absent without one. */
static bool decode_registration(struct request *rq, struct agent_registration *in,
                                struct str *bundle, struct err *e)
{
    struct str id, url, secret, lease;
    const struct json_field fields[] = {
        {.name = "id", .required = true, .types = TYPE(STRING), .value = &id},
        {.name = "webhook_url", .required = true, .types = TYPE(STRING), .value = &url},
        {.name = "secret", .required = true, .types = TYPE(STRING), .value = &secret},
        {.name = "lease_timeout_seconds", .types = TYPE(NUMBER), .value = &lease},
        {.name = "policy_bundle", .types = TYPE(STRING), .value = bundle},
    };
    int64_t seconds = 0;

    if (!json_fields(http_body(rq->x), false, fields, COUNT(fields), rq->arena, e))
        return false;
    in->id = json_string(id, rq->arena);
    if (!is_agent_id(in->id))
        return err_set(e, ERR_VALIDATION,
                       "field \"id\" must be 1 to 256 bytes without / ? # %%, white space and "
                       "control characters, "
                       "and not just dots");
    in->webhook_url = json_string(url, rq->arena);
    if (!is_url_text(in->webhook_url) || !is_webhook_url(in->webhook_url, rq->arena))
        return err_set(e, ERR_VALIDATION, "field \"webhook_url\" must be an http or https URL");
    in->secret = json_string(secret, rq->arena);
    if (str_empty(in->secret) || in->secret.n > SECRET_MAX)
        return err_set(e, ERR_VALIDATION, "field \"secret\" must be 1 to %d bytes", SECRET_MAX);
    if (str_present(lease) &&
        (!json_int64(lease, &seconds) || seconds < 1 || seconds > LEASE_MAX_S))
        return err_set(e, ERR_VALIDATION,
                       "field \"lease_timeout_seconds\" must be an integer from 1 to %lld",
                       (long long)LEASE_MAX_S);
    in->lease_timeout_us = seconds * US_PER_S;
    return true;
}

/* The policy goes with the registration in one command: no step of a new agent comes before it. */
void agents_register(struct request *rq)
{
    struct agent_registration *in = &request_command(rq, COMMAND_AGENT_REGISTER)->in.agent_register;
    struct str bundle;
    struct err e;

    if (!decode_registration(rq, in, &bundle, &e))
        request_reply_error(rq, &e);
    else if (str_present(bundle))
        bundle_submit(rq, bundle, &in->policy_bundle, &in->policy_hash, registered);
    else
        request_submit(rq, registered);
}

/* ---- removing ---- */

static void removed(struct request *rq)
{
    api_agent_changed(
        rq->api, rq->path_id); /* before the answer: from now on its signature is a stranger's */
    request_reply_empty(rq);
}

void agents_remove(struct request *rq)
{
    struct command *cmd = request_command(rq, COMMAND_AGENT_REMOVE);
    struct err e;

    if (!body_empty(rq, &e)) {
        request_reply_error(rq, &e);
        return;
    }
    cmd->in.agent_remove = rq->path_id;
    request_submit(rq, removed);
}

/* ---- what an agent says of itself ---- */

void agents_describe(struct request *rq)
{
    struct agent_description *in = &request_command(rq, COMMAND_AGENT_DESCRIBE)->in.agent_describe;
    struct str description;
    const struct json_field fields[] = {
        {.name = "description", .types = TYPE(STRING), .value = &description},
        {.name = "input_schema", .types = TYPE(OBJECT), .value = &in->input_schema},
        {.name = "output_schema", .types = TYPE(OBJECT), .value = &in->output_schema},
    };
    struct err e;

    if (!json_fields(http_body(rq->x), false, fields, COUNT(fields), rq->arena, &e)) {
        request_reply_error(rq, &e);
        return;
    }
    if (!str_eq(rq->path_id, rq->agent_id)) {
        request_refuse(rq, ERR_FORBIDDEN, "an agent may describe only itself");
        return;
    }
    in->id = rq->agent_id;
    if (str_present(description))
        in->description = json_string(description, rq->arena);
    rq->cmd->bytes = in->description.n + in->input_schema.n + in->output_schema.n;
    request_submit(rq, request_reply_empty);
}
