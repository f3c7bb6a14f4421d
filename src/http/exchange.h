/* SPDX-License-Identifier: Apache-2.0
 * One request and its answer. Owned by its connection while that is open and the answer is owed;
 * pooled by the loop afterwards. Private to http/.
 *
 * Between on_request and its answer an exchange belongs to whoever answers it, on any thread; the
 * loop then only reads `conn`, `gone` and its own flags. What the other thread writes reaches the
 * loop through the mailbox. */
#ifndef HTTP_EXCHANGE_H
#define HTTP_EXCHANGE_H

#include "http/body.h"
#include "http/budget.h"
#include "http/loop.h"
#include "http/parse.h"

struct resume {
    struct mail mail;
    struct http_exchange *x;
    void (*fn)(struct http_exchange *x, void *ctx);
    void *ctx;
    bool owned; /* allocated, because the exchange's own was in use */
};

struct http_exchange {
    struct loop *loop;
    struct conn *conn; /* loop thread; NULL once a stream has taken the exchange over */
    struct http_exchange *pool_next;
    void *user;

    /* the request */
    struct head head;
    const char *bytes;       /* arena: the head as it came */
    struct str body;         /* arena, or body_memory */
    struct body body_memory; /* owned */
    struct chunked chunks;
    struct claim claim;
    struct arena arena;
    int64_t started_us;
    int64_t body_started_us,
        body_waits_us;  /* when reading the body began; when it began to wait for the budget */
    size_t body_wanted; /* a chunked body waits for room to hold this much */

    /* the answer, arena; written by whoever answers */
    int status;
    bool close;
    struct str content_type, headers;
    struct buf answer; /* owned: the body */

    struct mail mail;        /* MAIL_ANSWER */
    struct mail budget_mail; /* MAIL_BUDGET */
    struct resume resume;
    atomic_bool resume_busy;
    atomic_uint resumes; /* posted and not run */
    atomic_bool gone;    /* the client has closed */
    atomic_bool owed;    /* handed to the user and not answered */

    /* loop thread */
    bool answered;    /* the answer is here, to be sent */
    bool gone_told;   /* on_gone was called */
    bool half_closed; /* the client's FIN came before the request was handed over: it only shut down
                         its sending side */
    bool wants_continue;
    bool head_only;
};

struct http_exchange *exchange_new(struct loop *l, struct conn *c);
/* Its answer was handed over: tells on_done, gives everything back. */
void exchange_finish(struct http_exchange *x);
/* The request never became whole: gives everything back. */
void exchange_drop(struct http_exchange *x);
/* What belongs to the request goes; what on_done may ask for stays. */
void exchange_release_request(struct http_exchange *x);
void exchange_resume(struct resume *r); /* the mail was opened */
void exchange_pool_free(struct loop *l);

/* ---- answer.c: the head of an answer ---- */
/* Appends status line and fields to `out`. body_bytes: NULL for a stream. */
void answer_write_head(struct loop *l, const struct http_exchange *x, const size_t *body_bytes,
                       bool keep_alive, struct buf *out);
bool answer_has_body(int status); /* by its status: 1xx, 204 and 304 have none */
/* Fills the answer for what the parser or a limit refused. */
void answer_refusal(struct http_exchange *x, int status, const char *message);

#endif
