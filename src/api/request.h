/* SPDX-License-Identifier: Apache-2.0
 * One request on its way through the API: what the router found, who asks, and how it is answered.
 * Private to api/.
 *
 * A request lives in its exchange's arena and belongs to one thread at a time: the loop's, a
 * reader's, or (while a command is out) nobody's. */
#ifndef API_REQUEST_H
#define API_REQUEST_H

#include "api/api.h"
#include "api/reader.h"

#include <stdatomic.h>

struct waiter;
struct bundle_setting;
struct seen;

struct api {
    struct engine *engine;
    struct store *store;
    const struct sender_stats *sender_stats; /* may be NULL */
    struct str bearer_token;                 /* owned; absent: none is set */
    bool dev;
    struct http_server *server;
    struct readers *readers;
    struct readers *aside; /* work on bundles: it may take long, and nobody is to wait behind it */
    struct secrets *secrets;
    struct hub *hub;
    struct metrics *metrics;
    struct seen *stored;   /* chunks (api/chunking.c) */
    uint64_t request_base; /* random: ids that the kernel gives to requests begin here */
    atomic_uint_fast64_t requests;
};

enum { REQUEST_ID_MAX = 128 };

/* What outlives a request whose answer is streamed, and what the loop may look at while others have
 * the request. It is the exchange's user. Until the request is whole it lies in the arena, since an
 * exchange that is dropped before then tells nobody; afterwards on the heap, owned by the loop. */
struct visit {
    const struct route *route;     /* NULL: none matched */
    struct request *request;       /* for the loop, until it hands the request on */
    void *held;                    /* owned: freed with the visit, when the exchange is over */
    _Atomic(struct waiter *) poll; /* set while the answer waits in the hub */
    bool on_heap;
    size_t id_bytes;
    char id[]; /* of the request */
};

struct request {
    struct visit *visit;
    struct api *api;
    struct http_exchange *x;
    struct arena *arena; /* the exchange's */
    struct str agent_id; /* who signed; absent on a bearer's request */
    struct str caller;   /* the bearer's name, as in created_by */
    struct str path_id;  /* the path's {agent_id}, decoded */
    struct str key;      /* the path's {key}, of a resource */
    struct uuid execution_id, approval_id;
    struct hash step_id;
    struct lease_ref lease;
    bool has_lease; /* dispatch headers were sent */
    struct command *cmd;
    void (*answer)(struct request *rq);                       /* after the command */
    void (*read)(struct request *rq, struct store_reader *r); /* the job's work */
    bool (*read_patiently)(struct request *rq, struct store_reader *r, struct err *e);
    int64_t patience_us; /* until when read_patiently is tried; monotonic */
    bool committed;      /* what is read was written by this request */
    struct read_job job;
    struct bundle_setting *bundle; /* api/bundle.c's own */
    void *state;                   /* of the route's own, arena */
};

struct request *request_of_job(struct read_job *job);

/* ---- running: each of these gives the request away; touch it no more ---- */

/* A zeroed command in the arena. */
struct command *request_command(struct request *rq, enum command_type type);
/* Submits rq->cmd; `answer` runs on the loop's thread when it is done. A refusal is answered here.
 */
void request_submit(struct request *rq, void (*answer)(struct request *rq));
/* `fn` with a reader, once. Small: one row by its key, at once on this thread where reading cannot
 * wait for a network. Large: on a reader thread. Without a reader it is answered 503. */
void request_read_small(struct request *rq, void (*fn)(struct request *rq, struct store_reader *r));
void request_read_large(struct request *rq, void (*fn)(struct request *rq, struct store_reader *r));
/* On the thread for work that may take long. */
void request_read_aside(struct request *rq, void (*fn)(struct request *rq, struct store_reader *r));
/* What a write must know before it can be submitted. A store that is away is waited for, as long as
 * the write itself would wait. `fn` goes on and returns true, or returns false with e set. */
void request_read_ahead(struct request *rq,
                        bool (*fn)(struct request *rq, struct store_reader *r, struct err *e));
/* Shows what the request's own command has committed. An error of the store is no answer to that: a
 * store that is away is waited for, as long as a write waits, and then the answer says that nobody
 * knows. `fn` answers and returns true, or returns false with e set. */
void request_read_back(struct request *rq,
                       bool (*fn)(struct request *rq, struct store_reader *r, struct err *e));

void request_reply_json(struct request *rq, int status,
                        struct buf *body);    /* takes the body's memory */
void request_reply_empty(struct request *rq); /* 204 */
void request_reply_error(struct request *rq, const struct err *e);
/* code and message in one */
void request_refuse(struct request *rq, enum err_code code, const char *fmt, ...) PRINTF_LIKE(3, 4);

/* ---- what every answer carries ---- */
void request_make_id(struct api *api, char out[UUID_TEXT_LEN]); /* no NUL */
/* In the arena; with the request's own id if it can be used, else a new one. */
struct visit *visit_new(struct api *api, struct str sent, struct arena *a);
struct visit *visit_to_heap(const struct visit *v);
void visit_free(struct visit *v); /* nothing for one in an arena */

/* "X-Request-Id: …\r\n" and what else is given, in the arena. */
struct str visit_headers(const struct visit *v, struct str more, struct arena *a);

/* A stream's head: event streams must pass proxies unbuffered. `held` is freed when the exchange is
 * over: that is after the last of `events`. */
struct http_stream *request_new_stream(struct request *rq, struct str content_type, void *held,
                                       const struct http_stream_events *events);

#endif
