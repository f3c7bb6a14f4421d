/* SPDX-License-Identifier: Apache-2.0
 * A small, strict HTTP/1.1 server: epoll loops that move bytes. It knows requests, answers and
 * streams; it knows nothing of executions. docs/decisions/ says why it is ours.
 *
 * Threads: each connection belongs to one loop thread. on_head and on_request run there and must
 * not block. An exchange is one request and its answer. After on_request the server owes the client
 * exactly one answer: http_reply, or a stream (http_stream_new … http_stream_end), now or later.
 * These two and http_resume may be called from any thread; all else about an exchange only on its
 * loop thread, or by whoever holds it between on_request and its answer. */
#ifndef HTTP_HTTP_H
#define HTTP_HTTP_H

#include "base/arena.h"
#include "base/buf.h"
#include "base/err.h"

struct http_server;
struct http_exchange;
struct http_stream;

struct http_answer {
    int status;
    struct str content_type; /* absent: no Content-Type (204) */
    struct str headers;      /* further header lines, each "Name: value\r\n"; copied */
    struct buf *body; /* its memory is taken over (the buf is left empty); NULL: empty body */
    bool close;       /* close the connection after this answer */
};

struct http_options {
    const char *listen_addr; /* "127.0.0.1:8080", ":8080", "[::1]:0"; port 0 picks one */
    unsigned threads;        /* loops; 0: one for each two cores */
    size_t max_head_bytes;   /* 0: 16 KiB; at most 64 KiB - 1. Over it 431 */
    /* 0: 10 MiB. Over it 413, by the announced length before a byte of the body is read. */
    size_t max_body_bytes;
    /* Bytes of bodies over 64 KiB that all requests share; without room a connection waits. 0:
     * eight times max_body_bytes. */
    size_t body_budget;
    int64_t head_timeout_us, body_idle_timeout_us, idle_timeout_us; /* 0: 10 s, 10 s, 75 s */
    int64_t body_total_timeout_us;                                  /* for each 10 MiB; 0: 60 s */
    /* Bytes a stream's reader may lag behind before it is dropped; 0: 1 MiB. One write may be
     * larger when nothing is pending. */
    size_t stream_max_pending;
    /* Connections at most. 0: what the limit of open files leaves when some are kept for everything
     * else in the process. At the bound a newcomer takes the place of the connection that has been
     * idle longest, if that is over spare_idle_us (0: 5 s), or waits for one. */
    unsigned max_connections;
    int64_t spare_idle_us;

    void *ctx;
    /* The head is complete and well-formed; the body is not read yet. Return true to go on. Or call
     * http_reply and return false: the body is then left unread and the connection closed gently
     * (kept when the whole body, or none, is there already). When the client leaves before its body
     * is whole, the exchange ends without on_request and without on_done: so on_head owns nothing
     * that its arena does not. */
    bool (*on_head)(struct http_exchange *x, void *ctx);
    void (*on_request)(struct http_exchange *x, void *ctx);
    /* The client went away before its answer. Only a hint: the exchange stays valid and is still
     * owed its http_reply, which is sent if the client only shut its sending side (TCP shows no
     * difference; one that did so together with its request is told of only when the server
     * drains). Not called after
     * http_reply has returned on this thread; another thread's reply may cross it, so what
     * http_user points at must live until on_done, as the arena does. May be NULL. Loop thread. */
    void (*on_gone)(struct http_exchange *x, void *ctx);
    /* What the parser or a limit refused (400, 408, 413, 417, 431, 501, 505 …; 503: the server
     * stops): fill the answer's body and content type for this status and message, which is fit for
     * anybody. May be NULL: plain text. */
    void (*on_error)(int status, const char *message, struct http_answer *answer, struct buf *body,
                     void *ctx);
    /* An answer was handed over: once for each exchange that got one. For streams when they have
     * ended: the request is gone by then, http_user is not. For what the parser refused, method and
     * target are absent if they were not understood, and http_user is NULL. Loop thread, or that of
     * http_server_free for answers that came after the loops had left. May be NULL. */
    void (*on_done)(struct http_exchange *x, int status, int64_t duration_us, void *ctx);
};

/* Binds and listens, but serves nothing yet. NULL with ERR_UNAVAILABLE (message: address and
 * reason). */
struct http_server *http_server_new(const struct http_options *opt, struct err *e);
uint16_t http_server_port(const struct http_server *s);
/* False: the server is stopped; free it. */
MUST_USE bool http_server_start(struct http_server *s, struct err *e);
/* Stop accepting; answer what is in flight with Connection: close; call `on_drain` of open streams;
 * close idle connections after a short grace. Any thread. */
void http_server_drain(struct http_server *s);
/* Drains, waits until all connections are closed or the deadline has passed, then joins the loops.
 * Requests that are not whole then are answered 503 and get half a second to read it; what is still
 * in flight is told that its client has gone. */
void http_server_stop(struct http_server *s, int64_t deadline_mono_us);
/* After stop; every exchange must have been answered and every stream ended. */
void http_server_free(struct http_server *s);

struct http_stats {
    uint64_t connections, accepted, requests, streams;
    size_t body_budget_used;
};
void http_server_stats(struct http_server *s, struct http_stats *out); /* any thread, approximate */

/* ---- the request; slices live until the answer ---- */
struct str http_method(const struct http_exchange *x);
struct str http_target(const struct http_exchange *x); /* exactly as received */
struct str http_path(const struct http_exchange *x);   /* still escaped, without the query */
struct str http_query(const struct http_exchange *x);  /* without '?'; absent when there is none */
/* Any case; absent when not sent; the first one. */
struct str http_header(const struct http_exchange *x, const char *name);
/* Sent more than once: which one counts is then anybody's guess. */
bool http_header_repeated(const struct http_exchange *x, const char *name);
struct str http_body(const struct http_exchange *x);
/* The announced length is over the limit: 413 follows when on_head returns true. For an on_head
 * whose checks have an order in which size stands before others. */
bool http_body_too_large(const struct http_exchange *x);
/* What 413 says: the limit, and the body's length when one was announced. Arena. */
const char *http_too_large_message(struct http_exchange *x);
struct arena *http_arena(struct http_exchange *x); /* freed with the answer */
void http_set_user(struct http_exchange *x, void *user);
void *http_user(const struct http_exchange *x);
/* Any thread: the client has closed; work may be saved. */
bool http_is_gone(const struct http_exchange *x);

/* ---- the answer ---- */
void http_reply(struct http_exchange *x, const struct http_answer *answer);
/* Runs fn(x, ctx) on the exchange's loop thread, before an answer that is given later. One wake-up
 * for a burst of calls. */
void http_resume(struct http_exchange *x, void (*fn)(struct http_exchange *x, void *ctx),
                 void *ctx);

/* ---- streams: answers without a known length (chunked), written bit by bit from any thread ----
 */
/* No callback begins after http_stream_end has returned, but one may then be running on the loop's
 * thread: ctx must outlive it, as what is released in on_done does. */
struct http_stream_events {
    void *ctx;
    /* The reader went away or was dropped (or asked with HEAD): write no more, call http_stream_end
     * soon. Loop thread, at most once. */
    void (*on_gone)(struct http_stream *st, void *ctx);
    /* The server drains: finish and call http_stream_end soon. Loop thread, at most once. */
    void (*on_drain)(struct http_stream *st, void *ctx);
    /* What was written has been sent (what is pending fell to zero): more may be written. Loop
     * thread. May be NULL. */
    void (*on_writable)(struct http_stream *st, void *ctx);
};
/* The answer is a stream from now on. It may be written to and ended at once; nothing is sent and
 * no callback is made before http_stream_start. Whoever reads the head may act on it: what the
 * stream promises is to be in place before. The stream is small and lives until http_stream_start
 * has been called and http_stream_end, both of which the caller owes it. */
struct http_stream *http_stream_new(struct http_exchange *x, const struct http_answer *head,
                                    const struct http_stream_events *events);
/* Sends the head and what was written. The exchange (request, arena) is gone after this call, but
 * for on_done. */
void http_stream_start(struct http_stream *st);
/* False: the reader is gone, or lagged too far and was dropped; nothing was queued. */
bool http_stream_write(struct http_stream *st, struct str bytes);
size_t http_stream_pending(const struct http_stream *st); /* bytes not yet taken by the socket */
void http_stream_end(struct http_stream *st); /* flushes, then ends; st is dead after this, or after
                                                 http_stream_start */

/* ---- helpers ---- */
/* Percent-decodes a path segment or query value into the arena ('+' stays '+' unless form). False:
 * a bad escape. */
MUST_USE bool http_unescape(struct str s, bool form, struct arena *a, struct str *out);
/* Finds `name` in a query string, decoded. Absent when missing; *bad set on a malformed escape or a
 * repeated name. */
struct str http_query_get(struct str query, const char *name, struct arena *a, bool *bad);

#endif
