/* SPDX-License-Identifier: Apache-2.0
 * One connection: its states and who moves between them. Loop thread only. Private to http/.
 *
 * It holds memory of its own only while a request is incomplete (exchange, stash) or an answer is
 * unsent (out). */
#ifndef HTTP_CONN_H
#define HTTP_CONN_H

#include "http/exchange.h"

enum conn_state {
    CONN_IDLE,    /* between requests */
    CONN_HEAD,    /* a part of a head has come */
    CONN_ADMIT,   /* the body waits for room in the budget */
    CONN_BODY,    /* the body is being read */
    CONN_HANDED,  /* the exchange is with the user until it is answered */
    CONN_STREAM,  /* a stream is open */
    CONN_CLOSING, /* the last answer is being sent */
    CONN_LINGER,  /* all is sent and our side is shut; what still comes is thrown away, so that no
                     reset eats the answer */
    CONN_CLOSED,  /* no socket any more; freed when nothing is in flight */
};

/* Bytes the socket did not take. */
struct out {
    struct out *next;
    char *p; /* owned */
    size_t n, at;
};

struct conn {
    struct timer timer;
    struct loop *loop;
    struct conn *prev, *next; /* the loop's list; `next` also the graveyard's */
    struct conn *again_next;
    struct conn *idle_prev, *idle_next; /* the loop's list of idle ones */
    int64_t idle_since_us;              /* 0: not in it */
    struct http_exchange
        *x; /* CONN_HEAD … CONN_HANDED; in CONN_CLOSED while its answer or grant is owed */
    struct http_stream *stream; /* CONN_STREAM */
    char *stash;                /* owned: input not yet looked at, kept between runs */
    struct out *out, *out_last;
    int64_t linger_end_us;
    uint32_t stash_bytes;
    uint32_t window_at, window_bytes; /* while running: input in the loop's scratch */
    int fd;
    uint8_t state;
    bool readable;   /* the socket may hold more: no event will say so again */
    bool fin;        /* the client sends no more after what is in the socket */
    bool writing;    /* EPOLLOUT is registered */
    bool queued;     /* in the loop's again list */
    bool keep_alive; /* after the answer being given */
};

struct conn *conn_new(struct loop *l, int fd);
void conn_event(struct conn *c, uint32_t events);
void conn_run(struct conn *c); /* does all it can without waiting, within its share of the turn */
void conn_timeout(struct conn *c); /* its timer was due */
void conn_drain(struct conn *c);   /* the server drains */
/* The server is at its end: closes it. True: not yet, a request that is not whole gets its answer.
 */
bool conn_leave(struct conn *c);
void conn_close(struct conn *c); /* at once: whatever is in flight is told */
void conn_mail(struct conn *c, enum mail_kind kind);
void conn_refuse(struct conn *c, int status, const char *message); /* answers and closes gently */
struct http_stream;
/* The stream takes over the exchange and, unless the client has left, the connection. Outside of
 * conn_run. */
void conn_bind_stream(struct conn *c, struct http_stream *st);

/* ---- conn_idle.c ---- */
void conn_idle_enter(struct conn *c); /* into CONN_IDLE */
void conn_idle_leave(struct conn *c); /* out of it, if it is in it; the caller sets the state */
/* Closes the one that has been idle longest, if that is long. */
MUST_USE bool conn_idle_make_room(struct loop *l);

/* ---- conn_body.c ---- */
/* The head was accepted. Moves on to CONN_ADMIT, CONN_BODY or CONN_HANDED. */
void conn_body_begin(struct conn *c);
void conn_body_granted(struct conn *c); /* room in the budget was given */
bool conn_body_step(struct conn *c);    /* CONN_BODY; true: call again */
void conn_request_ready(struct conn *c);

/* ---- conn_io.c ---- */
struct str conn_window(const struct conn *c);
void conn_window_take(struct conn *c, size_t n); /* the first n bytes are used */
void conn_window_load(struct conn *c);           /* from the stash, when a run begins */
void conn_window_save(struct conn *c);           /* into the stash, when it ends */
/* Reads what the socket has into p. 0: nothing now (also while output waits), or the connection was
 * closed. */
size_t conn_read(struct conn *c, char *p, size_t room);
bool conn_fill(struct conn *c); /* more into the window. False as with conn_read's 0. */
/* Sends l->out and, if not NULL, `body` (its memory is taken) after what waits already. */
void conn_flush(struct conn *c, struct buf *body);
/* The socket has room again: what waited goes. */
void conn_flush_waiting(struct conn *c);
void conn_free_out(struct conn *c);

#endif
