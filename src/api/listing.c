/* SPDX-License-Identifier: Apache-2.0 */
#include "api/listing.h"

#include "base/clock.h"
#include "base/log.h"

#include <stdlib.h>

/* What is sent in one piece, and about as much as each slow reader of a longer answer holds. */
enum { PIECE_BYTES = 256 * 1024 };

/* QUEUED: with the readers, or being run. SIGNALLED: look again before resting. */
enum { QUEUED = 1, SIGNALLED = 2 };

static void signal_listing(struct listing *l)
{
    if ((atomic_fetch_or(&l->signals, QUEUED | SIGNALLED) & QUEUED) == 0)
        readers_push(l->readers, &l->job);
}

static void on_gone(struct http_stream *st, void *ctx) /* loop thread */
{
    struct listing *l = ctx;

    (void)st;
    atomic_store(&l->is_gone, true);
    signal_listing(l);
}

static void on_writable(struct http_stream *st, void *ctx) /* loop thread */
{
    struct listing *l = ctx;

    (void)st;
    atomic_store(&l->writable, true);
    signal_listing(l);
}

/* Reads on until there is enough to send, the time is up, or the end. */
static bool fill_piece(struct listing *l, struct store_reader *r, struct buf *out, bool *more,
                       struct err *e)
{
    int64_t until = l->slice_us == 0 ? INT64_MAX : clock_mono_us() + l->slice_us;

    if (!l->begun)
        buf_add(out, l->open);
    *more = true;
    while (*more && out->n < PIECE_BYTES && clock_mono_us() < until) {
        if (!l->fill(l, r, out, more, e))
            return false;
        if (out->failed)
            return err_set(e, ERR_INTERNAL, "out of memory for a listing");
    }
    if (!*more)
        l->close(l, out);
    else if (out->n == 0)
        buf_add_byte(out, '\n'); /* the stream says when it may be written again once it was */
    return true;
}

static void release(struct listing *l)
{
    if (l->release != NULL)
        l->release(l);
}

/* The answer has begun: what cannot be read can only be missing, which leaves the JSON unfinished
 * for the reader to see. */
static void log_broken(const struct err *e)
{
    static struct log_limit limit;

    if (log_allowed(&limit, 60))
        log_event(LOG_ERROR, "http.listing_broken", {"code", str_of(err_code_name(e->code))},
                  {"error", str_of(e->message)});
}

static bool start(struct listing *l, struct buf *piece)
{
    struct http_stream_events events = {.ctx = l, .on_gone = on_gone, .on_writable = on_writable};
    struct request *rq = l->request;

    l->begun = true;
    l->request = NULL;
    l->stream = request_new_stream(rq, STR("application/json; charset=utf-8"), l, &events);
    http_stream_start(l->stream);
    if (http_stream_write(l->stream, buf_str(piece)))
        return false;
    release(l);
    http_stream_end(l->stream);
    return true;
}

/* True: the listing is over, and its memory with it. */
static bool first_piece(struct listing *l, struct store_reader *r)
{
    struct buf piece = {0};
    struct request *rq = l->request;
    bool more;
    struct err e;

    if (!fill_piece(l, r, &piece, &more, &e)) {
        buf_free(&piece);
        release(l);
        free(l);
        request_reply_error(rq, &e);
        return true;
    }
    if (!more) {
        release(l);
        free(l);
        request_reply_json(rq, 200, &piece);
        return true;
    }
    bool over = start(l, &piece);
    buf_free(&piece);
    return over;
}

static bool next_piece(struct listing *l, struct store_reader *r, const struct err *why)
{
    struct buf piece = {0};
    bool more = false, ok = r != NULL;
    struct err e;

    if (atomic_load(&l->is_gone)) {
        release(l);
        http_stream_end(l->stream);
        return true;
    }
    if (!atomic_exchange(&l->writable, false))
        return false;
    if (!ok)
        e = *why;
    else
        ok = fill_piece(l, r, &piece, &more, &e);
    if (!ok)
        log_broken(&e);
    else
        ok = http_stream_write(l->stream, buf_str(&piece));
    buf_free(&piece);
    if (ok && more)
        return false;
    release(l);
    http_stream_end(l->stream); /* l goes with its exchange */
    return true;
}

/* Once it rests another thread may run and end it: nothing of it is touched after that. */
static void rest(struct listing *l)
{
    unsigned quiet = QUEUED;

    if (atomic_compare_exchange_strong(&l->signals, &quiet, 0))
        return;
    readers_push(l->readers, &l->job);
}

static void run_listing(struct read_job *job, struct store_reader *r, const struct err *why)
{
    struct listing *l = (struct listing *)((char *)job - offsetof(struct listing, job));

    atomic_fetch_and(&l->signals, ~(unsigned)SIGNALLED);
    if (!next_piece(l, r, why))
        rest(l);
}

void listing_run(struct request *rq, struct listing *l, struct store_reader *r)
{
    l->api = rq->api;
    l->request = rq;
    if (l->readers == NULL)
        l->readers = rq->api->readers;
    l->job.run = run_listing;
    atomic_init(&l->signals, QUEUED);
    atomic_init(&l->is_gone, false);
    atomic_init(&l->writable, false);
    if (!first_piece(l, r))
        rest(l);
}
