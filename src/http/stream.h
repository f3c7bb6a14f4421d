/* SPDX-License-Identifier: Apache-2.0
 * A stream's bytes are appended by any thread under its lock and taken by the loop. Private to
 * http/.
 *
 * It is posted to the loop at most once at a time (`posted`). The loop frees it when it is ended,
 * sent or unsendable, and not posted: nobody can name it then. */
#ifndef HTTP_STREAM_H
#define HTTP_STREAM_H

#include "http/exchange.h"

struct http_stream {
    struct mail mail;
    struct loop *loop;
    struct http_exchange *x; /* a shell once bound: what on_done may ask for */
    struct conn *conn;       /* loop thread: NULL before it is bound and after the reader is gone */
    struct http_stream_events events;
    size_t max_pending;
    _Atomic size_t pending_bytes; /* appended and not taken by the socket; framing included */

    pthread_mutex_t lock;
    struct buf pending;
    bool posted, ended, gone;
    bool written; /* something was, beside the head */
    bool chunked; /* else the connection's end is the stream's (HTTP/1.0) */

    /* loop thread */
    bool bound, gone_told, drain_told;
};

/* conn sends its bytes from now on; `unsent` were queued on it before. */
void stream_bound(struct http_stream *st, struct conn *c, size_t unsent);
void stream_mail(struct http_stream *st); /* it was posted: bind it, send, finish */
/* Takes what is pending. False: nothing. `last`: nothing will follow. */
bool stream_take(struct http_stream *st, struct buf *out, bool *last);
void stream_sent(struct http_stream *st,
                 size_t n); /* the socket took n bytes; may call on_writable */
void stream_tell_drain(struct http_stream *st);
/* The reader is gone (or was dropped): tells, detaches from its connection, frees if ended. */
void stream_lose(struct http_stream *st);
void stream_finish(struct http_stream *st);  /* all was sent */
bool stream_is_gone(struct http_stream *st); /* dropped by a writer */
bool stream_is_ended(struct http_stream *st);

#endif
