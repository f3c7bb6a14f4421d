/* SPDX-License-Identifier: Apache-2.0
 * What steps emit while they run: published by agents, passed on to whoever listens at that moment,
 * recorded nowhere. */
#include "api/router.h"

#include "api/hub.h"
#include "api/page.h"
#include "api/params.h"

enum { DELTA_BYTES_MAX = 7000 };

struct delta {
    int64_t seq;
    struct str data;
};

/* ---- listening ---- */

static void read_follow(struct request *rq, struct store_reader *r)
{
    struct event_page page;
    struct err e;

    if (!page_read(r, &rq->execution_id, INT64_MAX, 1, 1, PAGE_ITEMS, &page, &e)) {
        request_reply_error(rq, &e);
        return;
    }
    page_free(&page);
    events_follow(rq, WAITER_DELTAS, 0);
}

void stream_follow(struct request *rq)
{
    request_read_large(rq, read_follow);
}

/* ---- publishing ---- */

static void publish(struct request *rq)
{
    const struct delta *d = rq->state;
    struct buf text = {0};
    struct json_writer w = {.out = &text};
    char id[HASH_HEX_LEN];

    hash_hex(&rq->step_id, id);
    buf_add(&text, STR("data: "));
    jw_open(&w, '{');
    jw_member_str(&w, "step_id", str_make(id, sizeof(id)));
    jw_member_int(&w, "seq", d->seq);
    jw_member_str(&w, "data", d->data);
    jw_close(&w, '}');
    buf_add(&text, STR("\n\n"));
    if (!text.failed)
        hub_publish(rq->api->hub, &rq->execution_id, buf_str(&text));
    buf_free(&text);
    request_reply_empty(rq);
}

static bool decode_delta(struct request *rq, struct delta *d, struct err *e)
{
    struct str seq, data;
    const struct json_field fields[] = {
        {.name = "seq", .required = true, .types = TYPE(NUMBER), .value = &seq},
        {.name = "data", .required = true, .types = TYPE(STRING), .value = &data},
    };

    if (!json_fields(http_body(rq->x), false, fields, COUNT(fields), rq->arena, e))
        return false;
    if (!json_int64(seq, &d->seq))
        return err_set(e, ERR_VALIDATION, "field \"seq\" must be a 64-bit integer");
    d->data = json_string(data, rq->arena);
    if (!str_present(d->data))
        return err_set(e, ERR_INTERNAL, "out of memory");
    return d->data.n <= DELTA_BYTES_MAX ||
           err_set(e, ERR_VALIDATION, "field \"data\" must be at most %d bytes of UTF-8",
                   DELTA_BYTES_MAX);
}

void stream_publish(struct request *rq)
{
    struct step_delta *in = &request_command(rq, COMMAND_DELTA)->in.delta;
    struct delta *d = arena_new(rq->arena, struct delta);
    struct err e;

    if (!decode_delta(rq, d, &e)) {
        request_reply_error(rq, &e);
        return;
    }
    rq->state = d;
    in->execution_id = rq->execution_id;
    in->agent_id = rq->agent_id;
    in->lease = rq->lease;
    in->has_lease = rq->has_lease;
    in->step_id = rq->step_id;
    request_submit(rq, publish);
}
