/* SPDX-License-Identifier: Apache-2.0
 * Resources as agents speak of them: registered, bound, captured. */
#include "api/router.h"

#include "api/encode.h"
#include "api/params.h"
#include "api/resource_fields.h"

/* ---- registering ---- */

static void registered(struct request *rq)
{
    struct buf body = {0};
    struct json_writer w = {.out = &body};

    encode_resource(&w, &rq->cmd->out.resource.state);
    request_reply_json(rq, 200, &body);
}

struct registration_fields {
    struct str key, driver_id, configuration, coverage_reuse, every_steps, on_completion;
};

static bool is_true(struct str raw)
{
    return str_eq(raw, STR("true"));
}

static bool decode_checkpointing(const struct registration_fields *f,
                                 struct resource_registration *in, struct err *e)
{
    if (!str_present(f->every_steps))
        return true;
    if (!json_int64(f->every_steps, &in->every_steps) || in->every_steps < 0 ||
        in->every_steps > RESOURCE_EVERY_MAX)
        return err_set(e, ERR_VALIDATION, "field \"every_steps\" must be an integer from 0 to %d",
                       RESOURCE_EVERY_MAX);
    if (in->every_steps > 0)
        in->on_completion = !str_present(f->on_completion) || is_true(f->on_completion);
    return true;
}

static bool decode_configuration(struct str raw, struct resource_registration *in, struct err *e)
{
    struct err inner;

    if (!field_resource_json("configuration", raw, e))
        return false;
    in->configuration = raw;
    return args_hash(raw, &in->configuration_hash, &inner) ||
           err_set(e, inner.code, "field \"configuration\": %s", inner.message);
}

static bool decode_registration(struct request *rq, struct resource_registration *in, struct err *e)
{
    struct registration_fields f;
    const struct json_field fields[] = {
        {.name = "key", .required = true, .types = TYPE(STRING), .value = &f.key},
        {.name = "driver_id", .required = true, .types = TYPE(STRING), .value = &f.driver_id},
        {.name = "configuration", .value = &f.configuration},
        {.name = "coverage_reuse", .types = TYPE(BOOL), .value = &f.coverage_reuse},
        {.name = "every_steps", .types = TYPE(NUMBER), .value = &f.every_steps},
        {.name = "on_completion", .types = TYPE(BOOL), .value = &f.on_completion},
    };

    if (!json_fields(http_body(rq->x), false, fields, COUNT(fields), rq->arena, e))
        return false;
    in->key = json_string(f.key, rq->arena);
    if (!is_resource_key(in->key))
        return err_set(e, ERR_VALIDATION,
                       "field \"key\" must be 1 to %d letters, digits, `_`, `.` or `-`, and not "
                       "`.` or `..`",
                       RESOURCE_KEY_MAX);
    in->coverage_reuse = is_true(f.coverage_reuse);
    return field_text("driver_id", f.driver_id, 1, RESOURCE_DRIVER_MAX, rq->arena, &in->driver_id,
                      e) &&
           decode_checkpointing(&f, in, e) && decode_configuration(f.configuration, in, e);
}

void resources_register(struct request *rq)
{
    struct resource_registration *in =
        &request_command(rq, COMMAND_RESOURCE_REGISTER)->in.resource_register;
    struct err e;

    if (!decode_registration(rq, in, &e)) {
        request_reply_error(rq, &e);
        return;
    }
    in->execution_id = rq->execution_id;
    in->agent_id = rq->agent_id;
    in->lease = rq->lease;
    rq->cmd->bytes = in->configuration.n;
    request_submit(rq, registered);
}

/* ---- binding ---- */

/* A binding is only carried, so it may say a key twice. Such a one has no canonical form, and is
 * the same as itself alone. */
static void hash_binding(struct str binding, struct hash *out)
{
    struct err ignored;

    if (!args_hash(binding, out, &ignored))
        hash_sha256(binding, out);
}

void resources_bind(struct request *rq)
{
    struct resource_binding *in = &request_command(rq, COMMAND_RESOURCE_BIND)->in.resource_bind;
    const struct json_field fields[] = {
        {.name = "binding", .required = true, .value = &in->binding},
    };
    struct err e;

    if (!json_fields(http_body(rq->x), false, fields, COUNT(fields), rq->arena, &e) ||
        !field_resource_json("binding", in->binding, &e)) {
        request_reply_error(rq, &e);
        return;
    }
    hash_binding(in->binding, &in->binding_hash);
    in->execution_id = rq->execution_id;
    in->agent_id = rq->agent_id;
    in->lease = rq->lease;
    in->key = rq->key;
    rq->cmd->bytes = in->binding.n;
    request_submit(rq, request_reply_empty);
}

/* ---- capturing outside a step ---- */

void resources_capture(struct request *rq)
{
    struct resource_capture *in =
        &request_command(rq, COMMAND_RESOURCE_CAPTURE)->in.resource_capture;
    struct str captures, failures;
    const struct json_field fields[] = {
        {.name = "captures", .types = TYPE(ARRAY), .value = &captures},
        {.name = "capture_failures", .types = TYPE(ARRAY), .value = &failures},
    };
    struct err e;

    if (!json_fields(http_body(rq->x), false, fields, COUNT(fields), rq->arena, &e) ||
        !field_captures(captures, failures, rq->arena, &in->report, &e)) {
        request_reply_error(rq, &e);
        return;
    }
    in->execution_id = rq->execution_id;
    in->agent_id = rq->agent_id;
    in->lease = rq->lease;
    rq->cmd->bytes = captures.n + failures.n;
    request_submit(rq, request_reply_empty);
}
