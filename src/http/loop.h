/* SPDX-License-Identifier: Apache-2.0
 * One thread that moves bytes: an epoll, a listening socket, the connections it accepted, their
 * time-outs, and a mailbox by which other threads hand it answers. Everything here belongs to that
 * thread, but for the mailbox. Private to http/.
 *
 * A turn: wait; run what is ready; open the mail; go on with connections that had more to do;
 * time-outs; free what was closed. Freeing comes last, because every earlier phase may still name a
 * connection that closed in this turn. */
#ifndef HTTP_LOOP_H
#define HTTP_LOOP_H

#include "http/server.h"
#include "http/timer.h"

#include "base/log.h"

struct conn;

enum mail_kind { MAIL_ANSWER, MAIL_RESUME, MAIL_STREAM, MAIL_BUDGET };

/* Lies in the exchange or stream it is about, so that posting needs no memory. */
struct mail {
    struct mail *next;
    enum mail_kind kind;
};

enum { DATE_BYTES = 29 }; /* "Sun, 06 Nov 1994 08:49:37 GMT" */

struct loop {
    struct http_server *server; /* borrowed */
    pthread_t thread;           /* set by itself, before it serves anybody */
    pthread_t started_thread;   /* the same, for the one who joins it */
    bool has_thread;
    int epoll_fd, wake_fd, listen_fd; /* listen_fd -1: closed */
    int64_t now_us;                   /* of this turn, monotonic */
    bool draining;                    /* this loop has seen the server's flag */

    /* The mailbox: newest first. Who posts wakes the loop only if it sleeps, so a burst costs one
     * write. */
    _Atomic(struct mail *) mailbox;
    atomic_bool asleep;

    struct timers timers;
    struct conn *conns;     /* all that are not freed */
    struct conn *again;     /* had more to do when their share of a turn was over */
    struct conn *graveyard; /* closed, nothing in flight: freed at the end of the turn */
    struct conn *running;   /* inside conn_run */
    struct conn *idle_first, *idle_last; /* those between requests, the longest idle first */
    unsigned max_connections;            /* this loop's share */
    int64_t leave_at_us;                 /* TIMER_OFF until it leaves: then the end of the grace */

    /* Memory that each connection borrows while it runs. */
    char *scratch; /* input */
    size_t scratch_bytes;
    struct buf out; /* answers that are not written yet */

    struct http_exchange *pool; /* exchanges with their arenas, for reuse */
    unsigned pooled;

    struct timer accept_timer; /* when to try again after there was no file for one more */
    bool accept_more;
    struct log_limit accept_log;

    char date[DATE_BYTES];
    int64_t date_s;

    atomic_uint_fast64_t connections, accepted, requests, streams; /* read by http_server_stats */
    atomic_uint_fast64_t turns, wakes;                             /* for tests */
};

struct loop *loop_new(struct http_server *s, int listen_fd, struct err *e);
void loop_free(struct loop *l);          /* its thread is joined, or was never started */
void *loop_main(void *loop);             /* the thread */
void loop_wake(struct loop *l);          /* any thread */
bool loop_is_here(const struct loop *l); /* the caller is the loop's thread */
/* Any thread. m must stay valid until the loop has opened it. */
void loop_post(struct loop *l, struct mail *m);
void loop_open_mail(struct loop *l); /* also by loop_free, when no thread is left to do it */
/* c is run again in the next turn, after the others. */
void loop_again(struct loop *l, struct conn *c);
void loop_bury(struct loop *l, struct conn *c);
void loop_accept(struct loop *l);     /* takes all that wait */
void loop_file_freed(struct loop *l); /* a file was closed: accepting may succeed now */

#endif
