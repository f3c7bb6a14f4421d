/* SPDX-License-Identifier: Apache-2.0
 * An answer made of many rows: small ones are sent whole, large ones page by page as they are read
 * and taken, so that none is ever held whole and no reader, however slow, holds a transaction open.
 * Private to api/. */
#ifndef API_LISTING_H
#define API_LISTING_H

#include "api/request.h"

struct listing {
    struct read_job job;
    struct api *api;
    struct request *request;    /* until the answer has begun */
    struct http_stream *stream; /* afterwards */
    /* Appends the next rows, a page's worth at most, without brackets; *more: there are further
     * ones. */
    bool (*fill)(struct listing *l, struct store_reader *r, struct buf *out, bool *more,
                 struct err *e);
    struct str open; /* before the first row; lives until release */
    void (*close)(struct listing *l, struct buf *out); /* after the last */
    /* What follows may be left zero. */
    struct readers *readers; /* where it runs; NULL: where reads do */
    int64_t slice_us;        /* a thread is left to others after so long; 0: after each piece */
    void (*release)(struct listing *l); /* once, when it is over: frees what it holds */
    bool begun;
    atomic_uint signals; /* one thread at a time is at it: see listing.c */
    atomic_bool is_gone, writable;
};

/* A listing is made on the heap by a reader's job, with fill, open and close set, at the
 * beginning of what free() takes, and given away here. */
void listing_run(struct request *rq, struct listing *l, struct store_reader *r);

#endif
