/* SPDX-License-Identifier: Apache-2.0
 * What is done for the waiters of one execution in one run of its topic. Reader threads. Private to
 * api/. */
#ifndef API_FOLLOW_H
#define API_FOLLOW_H

#include "api/hub.h"
#include "api/page.h"

struct follow_news {
    bool events;  /* there may be new ones */
    bool comment; /* a keep-alive is due */
    bool stop;    /* let it go */
    bool expired; /* a poll's time is up */
};

struct follow_pass {
    struct api *api;
    struct store_reader *reader; /* NULL: see why */
    const struct err *why;
    struct uuid execution_id;
    bool ended;  /* the execution is known to have ended */
    bool failed; /* something could not be read; try again later */

    /* What was read last, in each form: most waiters stand at the same place. */
    struct event_page stream_page, poll_page;
    int64_t stream_after, poll_after, poll_limit;
    bool has_stream_page, has_poll_page;
    struct err poll_error;
};

/* True: it is done, and leaves the hub before follow_finish. */
bool follow_serve(struct follow_pass *pass, struct waiter *w, const struct follow_news *news);
void follow_finish(struct follow_pass *pass, struct waiter *w); /* w is dead after this */
void follow_pass_free(struct follow_pass *pass);

#endif
