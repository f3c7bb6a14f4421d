/* SPDX-License-Identifier: Apache-2.0 */
#include "api/follow.h"

#include "base/log.h"

/* One write to a follower; the next waits until it was sent. A crowd of slow readers holds no more
 * than this each. */
enum { STREAM_PAGE_EVENTS = 256, STREAM_PAGE_BYTES = 64 * 1024, POLL_PAGE_BYTES = 1024 * 1024 };

static const struct str COMMENT = STR_INIT(":\n\n");

static void note_failure(struct follow_pass *pass, const struct err *e)
{
    static struct log_limit limit;

    if (!pass->failed && log_allowed(&limit, 6))
        log_event(LOG_WARN, "events.read_failed", {"error", str_of(e->message)});
    pass->failed = true;
}

static bool read_page(struct follow_pass *pass, int64_t after, int64_t limit, size_t max_bytes,
                      enum page_form form, struct event_page *page, struct err *e)
{
    if (pass->reader == NULL) {
        *e = *pass->why;
        return false;
    }
    return page_read(pass->reader, &pass->execution_id, after, limit, max_bytes, form, page, e);
}

/* ---- followers of the log ---- */

static const struct event_page *stream_page(struct follow_pass *pass, int64_t after)
{
    struct err e;

    if (pass->has_stream_page && pass->stream_after == after)
        return &pass->stream_page;
    if (pass->has_stream_page)
        page_free(&pass->stream_page);
    pass->stream_after = after;
    pass->has_stream_page = read_page(pass, after, STREAM_PAGE_EVENTS, STREAM_PAGE_BYTES,
                                      PAGE_STREAM, &pass->stream_page, &e);
    if (pass->has_stream_page)
        return &pass->stream_page;
    note_failure(pass, &e);
    return NULL;
}

static bool serve_events(struct follow_pass *pass, struct waiter *w, const struct follow_news *news)
{
    const struct event_page *page = NULL;
    struct hub *hub = pass->api->hub;
    bool over;

    if (news->events && !pass->failed)
        page = stream_page(pass, w->after);
    over = page != NULL && page->terminal && page->at_end;
    if (page != NULL && page->count > 0) {
        w->after = page->last;
        hub_block(hub, w, !page->at_end);
        return !http_stream_write(w->stream, buf_str(&page->text)) || over;
    }
    if (over)
        return true;
    if (!news->comment)
        return false;
    hub_block(hub, w, false);
    return !http_stream_write(w->stream, COMMENT);
}

/* ---- subscribers of deltas ---- */

static bool has_ended(struct follow_pass *pass)
{
    struct event_page page;
    struct err e;

    if (pass->ended)
        return true;
    if (!read_page(pass, INT64_MAX, 1, 1, PAGE_ITEMS, &page, &e)) {
        note_failure(pass, &e);
        return false;
    }
    pass->ended = page.terminal;
    page_free(&page);
    return pass->ended;
}

/* Where this kernel is the only one it hears of each end; before the first look, and where others
 * write too, it asks. */
static bool serve_deltas(struct follow_pass *pass, struct waiter *w, const struct follow_news *news)
{
    bool ask = !w->checked || !readers_are_local(pass->api->readers);

    if (pass->ended || (news->events && ask && !pass->failed && has_ended(pass)))
        return true;
    if (!w->checked || news->comment)
        engine_want_deltas(pass->api->engine, &pass->execution_id);
    w->checked = w->checked || (news->events && !pass->failed);
    return news->comment && !http_stream_write(w->stream, COMMENT);
}

/* ---- polls ---- */

static const struct event_page *poll_page(struct follow_pass *pass, const struct waiter *w)
{
    if (pass->has_poll_page && pass->poll_after == w->after && pass->poll_limit == w->limit)
        return &pass->poll_page;
    if (pass->has_poll_page)
        page_free(&pass->poll_page);
    pass->poll_after = w->after;
    pass->poll_limit = w->limit;
    pass->has_poll_page = read_page(pass, w->after, w->limit, POLL_PAGE_BYTES, PAGE_ITEMS,
                                    &pass->poll_page, &pass->poll_error);
    return pass->has_poll_page ? &pass->poll_page : NULL;
}

static bool serve_poll(struct follow_pass *pass, struct waiter *w, const struct follow_news *news)
{
    const struct event_page *page;

    if (news->stop)
        return true;
    page = poll_page(pass, w);
    return page == NULL || page->count > 0 || (page->terminal && page->at_end) || news->expired;
}

static void finish_poll(struct follow_pass *pass, struct waiter *w)
{
    struct request *rq = w->request; /* w lies in its arena */
    bool asked = pass->poll_after == w->after && pass->poll_limit == w->limit;
    struct buf body = {0};

    if (asked && !pass->has_poll_page) {
        request_reply_error(rq, &pass->poll_error);
        return;
    }
    buf_add_byte(&body, '[');
    if (asked)
        buf_add(&body, buf_str(&pass->poll_page.text));
    buf_add_byte(&body, ']');
    request_reply_json(rq, 200, &body);
}

/* ---- all of them ---- */

bool follow_serve(struct follow_pass *pass, struct waiter *w, const struct follow_news *news)
{
    if (w->kind == WAITER_POLL)
        return serve_poll(pass, w, news);
    if (news->stop)
        return true;
    return w->kind == WAITER_EVENTS ? serve_events(pass, w, news) : serve_deltas(pass, w, news);
}

void follow_finish(struct follow_pass *pass, struct waiter *w)
{
    if (w->kind == WAITER_POLL)
        finish_poll(pass, w);
    else
        http_stream_end(w->stream); /* w goes with its exchange */
}

void follow_pass_free(struct follow_pass *pass)
{
    if (pass->has_stream_page)
        page_free(&pass->stream_page);
    if (pass->has_poll_page)
        page_free(&pass->poll_page);
}
