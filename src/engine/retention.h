/* SPDX-License-Identifier: Apache-2.0
 * The sweeps over what is to go: executions that ended long ago, and forks that were given up. Page
 * by page, so that the clock's other work comes between. Private to engine/. */
#ifndef ENGINE_RETENTION_H
#define ENGINE_RETENTION_H

#include "engine/command.h"
#include "store/store.h"

struct engine;

enum { RETENTION_PAGE = 100 }; /* executions that one group looks at */

struct retention_sweep {
    struct engine *engine;
    struct store_reader *reader;
    struct command *batch; /* room for a page */
    int64_t at;            /* monotonic: when the next page is due */
    /* the sweep that is under way */
    bool begun;
    int64_t cutoff;     /* wall */
    struct uuid before; /* nil: a pass begins */
    int64_t in_pass, removed;
};

/* One page; sets when the next one is due. Passes go from the newest to the oldest, and are
 * repeated until one finds nothing to remove: what goes may have kept others. */
MUST_USE bool retention_page(struct retention_sweep *s, struct arena *a, struct err *e);
/* Gives up forks that nobody is at any more. */
MUST_USE bool retention_stale_forks(struct retention_sweep *s, struct arena *a, struct err *e);

#endif
