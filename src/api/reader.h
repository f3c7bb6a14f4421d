/* SPDX-License-Identifier: Apache-2.0
 * Who reads the store for the API: a few threads with a queue, and, where a read cannot wait for a
 * network, any thread with a reader of its own. Private to api/. */
#ifndef API_READER_H
#define API_READER_H

#include "store/store.h"

struct readers;

/* Lies in what it is about. Queued at most once at a time. */
struct read_job {
    struct read_job *next;
    int64_t not_before_us; /* readers_retry's */
    /* `r` NULL: there is no reader, and `why` says why. The job's memory may go in here. */
    void (*run)(struct read_job *job, struct store_reader *r, const struct err *why);
};

struct readers *readers_new(struct store *store, unsigned threads); /* on Postgres */
/* One thread, of low priority: what it does may take seconds. */
struct readers *readers_new_aside(struct store *store);
MUST_USE bool readers_start(struct readers *rs, struct err *e);
void readers_push(
    struct readers *rs,
    struct read_job *job); /* any thread; after readers_stop it runs at once, without */
/* The same after a moment: what was away may be back. False: the readers stop, it will not run. */
MUST_USE bool readers_retry(struct readers *rs, struct read_job *job);
/* This thread's own reader where reads are local (SQLite); else, or if it cannot be opened, NULL.
 */
struct store_reader *readers_here(struct readers *rs);
bool readers_are_local(const struct readers *rs);
void readers_stop(struct readers *rs); /* runs what is queued, joins */
/* The same with a bound (monotonic). False: a thread is not through with its work; what it uses
 * must stay. */
MUST_USE bool readers_stop_by(struct readers *rs, int64_t deadline_us);
void readers_free(struct readers *rs); /* no thread uses readers_here any more */

#endif
