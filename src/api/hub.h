/* SPDX-License-Identifier: Apache-2.0
 * Who waits for news of an execution: long polls, followers of its log, subscribers of its live
 * deltas. Private to api/.
 *
 * Waiters of one execution hang on one topic. A signal marks the topic and gives it to the reader
 * threads, once, whatever the number of its waiters; the one reader that runs it serves them all,
 * so that a log is read once for a crowd. Nothing else ends a waiter. A waiter that has nothing to
 * do costs its memory, and a stream a comment every 15 s. */
#ifndef API_HUB_H
#define API_HUB_H

#include "api/request.h"
#include "http/timer.h"

enum waiter_kind { WAITER_POLL, WAITER_EVENTS, WAITER_DELTAS };

struct topic;

struct waiter {
    enum waiter_kind kind;
    struct api *api;
    struct uuid execution_id;

    /* under the lock of its shard */
    struct topic *topic; /* NULL: not (any more) in the hub */
    struct waiter *prev, *next;
    struct timer timer; /* polls: the end of their patience */
    unsigned behind;    /* deltas written since the reader was last known to be up to date */
    bool ready;         /* to be served though no event came */
    bool stop;          /* its reader is gone, or is to go */
    bool expired;
    bool blocked; /* bytes were written and have not all been sent: nothing more until then */
    bool more;    /* there is more to write once it is not blocked */

    /* of whoever serves it */
    int64_t after;              /* events up to this number were sent */
    int64_t limit;              /* polls */
    bool checked;               /* deltas: the execution was live when it was looked at */
    struct request *request;    /* polls; the waiter lies in its arena */
    struct http_stream *stream; /* the others; the waiter is on the heap */
};

/* If the execution exists, makes the request's answer a stream of server-sent events and gives it
 * to the hub (events.c). Gives the request away. */
void events_follow(struct request *rq, struct store_reader *r, enum waiter_kind kind,
                   int64_t after);

struct hub;

struct hub *hub_new(struct api *api);
MUST_USE bool hub_start(struct hub *hub, struct err *e);
void hub_events(struct hub *hub, const struct uuid *execution_id,
                bool ended); /* any thread; short */
/* One delta, as it goes over the wire. Any thread. */
void hub_publish(struct hub *hub, const struct uuid *execution_id, struct str bytes);
/* Takes the waiter over and serves it at once. deadline_us (monotonic) 0: none. */
void hub_add(struct hub *hub, struct waiter *w, int64_t deadline_us);
/* The reader of w is gone, or is to go: serve it a last time. Loop thread; w may have left the hub.
 */
void hub_stop_waiter(struct hub *hub, struct waiter *w);
/* All that was written to w has been sent. */
void hub_unblock(struct hub *hub, struct waiter *w);
/* Before bytes are written to w; `more`: there will be more at once. */
void hub_block(struct hub *hub, struct waiter *w, bool more);
bool hub_is_draining(const struct hub *hub);
/* Lets everybody go, also who comes from now on. */
void hub_drain(struct hub *hub);
void hub_stop(struct hub *hub); /* joins the clock */
void hub_free(struct hub *hub); /* nobody is left */

#endif
