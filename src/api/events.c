/* SPDX-License-Identifier: Apache-2.0
 * An execution's log: pages, long polls, server-sent events. */
#include "api/router.h"

#include "api/hub.h"
#include "api/listing.h"
#include "api/page.h"
#include "api/params.h"
#include "base/clock.h"

#include <stdlib.h>

enum { EVENTS_LIMIT = 100, EVENTS_LIMIT_MAX = 1000, WAIT_MAX_S = 60, FILL_BYTES = 128 * 1024 };

struct events_query {
    int64_t after, limit, wait_s;
    bool stream;
};

/* ---- a page, whole or piece by piece ---- */

struct events_listing {
    struct listing listing; /* first */
    struct uuid execution_id;
    int64_t after, left;
    bool any;
};

static void close_events(struct listing *listing, struct buf *out)
{
    (void)listing;
    buf_add_byte(out, ']');
}

static bool fill_events(struct listing *listing, struct store_reader *r, struct buf *out,
                        bool *more, struct err *e)
{
    struct events_listing *l = (struct events_listing *)listing;
    struct event_page page;

    if (!page_read(r, &l->execution_id, l->after, l->left, FILL_BYTES, PAGE_ITEMS, &page, e))
        return false;
    if (l->any && page.count > 0)
        buf_add_byte(out, ',');
    buf_add(out, buf_str(&page.text));
    l->any = l->any || page.count > 0;
    l->left -= page.count;
    l->after = page.last;
    *more = l->left > 0 && !page.at_end && page.count > 0;
    page_free(&page);
    return true;
}

static void list_events(struct request *rq, struct store_reader *r)
{
    const struct events_query *q = rq->state;
    struct events_listing *l = xzalloc(sizeof(*l));

    l->listing.fill = fill_events;
    l->listing.open = STR("[");
    l->listing.close = close_events;
    l->execution_id = rq->execution_id;
    l->after = q->after;
    l->left = q->limit;
    listing_run(rq, &l->listing, r);
}

/* ---- waiting for the next one ---- */

static void start_poll(struct request *rq)
{
    const struct events_query *q = rq->state;
    struct waiter *w = arena_new(rq->arena, struct waiter);

    w->kind = WAITER_POLL;
    w->api = rq->api;
    w->execution_id = rq->execution_id;
    w->after = q->after;
    w->limit = q->limit;
    w->request = rq;
    atomic_store(&rq->visit->poll, w); /* from now on the loop tells it when the client goes */
    if (http_is_gone(rq->x))
        w->stop = true;
    hub_add(rq->api->hub, w, clock_mono_us() + q->wait_s * US_PER_S);
}

static void read_or_wait(struct request *rq, struct store_reader *r)
{
    const struct events_query *q = rq->state;
    struct event_page page;
    struct err e;
    bool wait;

    if (!page_read(r, &rq->execution_id, q->after, 1, 1, PAGE_ITEMS, &page, &e)) {
        request_reply_error(rq, &e);
        return;
    }
    wait = page.count == 0 && !(page.terminal && page.at_end);
    page_free(&page);
    if (wait)
        start_poll(rq);
    else
        list_events(rq, r);
}

/* ---- following ---- */

static void on_gone(struct http_stream *st,
                    void *ctx) /* also when the server drains. Loop thread. */
{
    struct waiter *w = ctx;

    (void)st;
    hub_stop_waiter(w->api->hub, w);
}

static void on_writable(struct http_stream *st, void *ctx)
{
    struct waiter *w = ctx;

    (void)st;
    hub_unblock(w->api->hub, w);
}

static void follow(struct request *rq, enum waiter_kind kind, int64_t after)
{
    static const struct str type = STR_INIT("text/event-stream");
    struct waiter *w = xzalloc(sizeof(*w));
    struct http_stream_events events = {
        .ctx = w,
        .on_gone = on_gone,
        .on_drain = on_gone,
        .on_writable = kind == WAITER_EVENTS ? on_writable : NULL,
    };

    w->kind = kind;
    w->api = rq->api;
    w->execution_id = rq->execution_id;
    w->after = after;
    struct http_stream *st = w->stream = request_new_stream(rq, type, w, &events);
    /* Whoever has read the head misses no delta that is published from then on. */
    hub_add(w->api->hub, w, 0);
    http_stream_start(st); /* w may be ended; it goes with its exchange, not before this */
}

void events_follow(struct request *rq, struct store_reader *r, enum waiter_kind kind, int64_t after)
{
    struct event_page page;
    struct err e;

    /* Is there such an execution? Everything else is read by the one who serves the follower. */
    if (!page_read(r, &rq->execution_id, INT64_MAX, 1, 1, PAGE_ITEMS, &page, &e)) {
        request_reply_error(rq, &e);
        return;
    }
    page_free(&page);
    follow(rq, kind, after);
}

static void read_stream(struct request *rq, struct store_reader *r)
{
    const struct events_query *q = rq->state;

    events_follow(rq, r, WAITER_EVENTS, q->after);
}

/* ---- the request ---- */

static bool decode_events(struct request *rq, struct events_query *q, struct err *e)
{
    struct str last = http_header(rq->x, "Last-Event-ID");

    q->limit = EVENTS_LIMIT;
    q->stream = accepts_event_stream(http_header(rq->x, "Accept"));
    if (!query_int(rq, "after_seq", 0, INT64_MAX, &q->after, e) ||
        !query_int(rq, "limit", 1, EVENTS_LIMIT_MAX, &q->limit, e) ||
        !query_int(rq, "wait", 0, WAIT_MAX_S, &q->wait_s, e))
        return false;
    if (q->stream && str_present(last) && !str_to_int64(last, &q->after))
        return err_set(e, ERR_VALIDATION, "header Last-Event-ID must be the number of an event");
    return true;
}

void events_get(struct request *rq)
{
    struct events_query *q = arena_new(rq->arena, struct events_query);
    struct err e;

    rq->state = q;
    if (!decode_events(rq, q, &e))
        request_reply_error(rq, &e);
    else if (q->stream)
        request_read_large(rq, read_stream);
    else if (q->wait_s > 0)
        request_read_large(rq, read_or_wait);
    else
        request_read_large(rq, list_events);
}
