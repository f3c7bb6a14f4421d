/* SPDX-License-Identifier: Apache-2.0
 * What an attempt says of itself: that it lives, that it gives the run back, that it waits. */
#include "api/router.h"

#include "api/params.h"

static void submit(struct request *rq, enum command_type type, void (*answer)(struct request *rq))
{
    struct lease_call *in = &request_command(rq, type)->in.lease;
    struct err e;

    if (!body_empty(rq, &e)) {
        request_reply_error(rq, &e);
        return;
    }
    in->execution_id = rq->execution_id;
    in->agent_id = rq->agent_id;
    in->lease = rq->lease;
    request_submit(rq, answer);
}

static void suspended(struct request *rq)
{
    struct buf body = {0};
    struct json_writer w = {.out = &body};

    jw_open(&w, '{');
    jw_key(&w, "suspended");
    jw_bool(&w, rq->cmd->out.suspended);
    jw_close(&w, '}');
    request_reply_json(rq, 200, &body);
}

void lease_post_heartbeat(struct request *rq)
{
    submit(rq, COMMAND_HEARTBEAT, request_reply_empty);
}

void lease_post_release(struct request *rq)
{
    submit(rq, COMMAND_RELEASE, request_reply_empty);
}

void lease_post_suspend(struct request *rq)
{
    submit(rq, COMMAND_SUSPEND, suspended);
}
