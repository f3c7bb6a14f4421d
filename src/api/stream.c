/* SPDX-License-Identifier: Apache-2.0
 * What steps emit while they run: published by agents, passed on to whoever listens at that moment,
 * recorded nowhere. */
#include "api/router.h"

#include "api/hub.h"
#include "api/params.h"

#include <inttypes.h>
#include <stdlib.h>

enum { DELTA_BYTES_MAX = 7000 };

struct delta {
    int64_t seq;
    struct str data;
};

/* ---- listening ---- */

static void read_follow(struct request *rq, struct store_reader *r)
{
    events_follow(rq, r, WAITER_DELTAS, 0);
}

void stream_follow(struct request *rq)
{
    request_read_large(rq, read_follow);
}

/* ---- publishing ---- */

static void publish(struct api *api, const struct uuid *execution_id, struct str step_hex,
                    const struct delta *d)
{
    struct buf text = {0};
    struct json_writer w = {.out = &text};

    buf_add(&text, STR("data: "));
    jw_open(&w, '{');
    jw_member_str(&w, "step_id", step_hex);
    jw_member_int(&w, "seq", d->seq);
    jw_member_str(&w, "data", d->data);
    jw_close(&w, '}');
    buf_add(&text, STR("\n\n"));
    if (!text.failed)
        hub_publish(api->hub, execution_id, buf_str(&text));
    buf_free(&text);
}

static void published(struct request *rq)
{
    const struct delta *d = rq->state;
    char id[HASH_HEX_LEN];
    struct buf note = {0};

    hash_hex(&rq->step_id, id);
    publish(rq->api, &rq->execution_id, str_make(id, sizeof(id)), d);
    /* For other kernels: the step, the number, and the text as it is, since escaped it might not
     * fit. */
    buf_printf(&note, "%.*s %" PRId64 " ", HASH_HEX_LEN, id, d->seq);
    buf_add(&note, d->data);
    engine_send_delta(rq->api->engine, &rq->execution_id, buf_str(&note));
    buf_free(&note);
    request_reply_empty(rq);
}

void api_delta(struct api *api, const struct uuid *execution_id, struct str note)
{
    const char *space;
    struct delta d;

    if (note.n < HASH_HEX_LEN + 3 || note.p[HASH_HEX_LEN] != ' ')
        return;
    space = memchr(note.p + HASH_HEX_LEN + 1, ' ', note.n - HASH_HEX_LEN - 1);
    if (space == NULL)
        return;
    d.seq = strtoll(note.p + HASH_HEX_LEN + 1, NULL, 10); /* a space ends it */
    d.data = str_slice(note, (size_t)(space - note.p) + 1, note.n);
    publish(api, execution_id, str_slice(note, 0, HASH_HEX_LEN), &d);
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
    request_submit(rq, published);
}
