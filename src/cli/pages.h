/* SPDX-License-Identifier: Apache-2.0
 * A list of the API's, page by page, so that no log is held whole. */
#ifndef CLI_PAGES_H
#define CLI_PAGES_H

#include "cli/visit.h"

struct pages {
    const char *route, *after; /* "/events", the parameter that goes on from the last item … */
    const char *last_field;    /* … and the item's field that it takes */
    size_t limit;              /* of a page, in items … */
    size_t bytes; /* … and about so many bytes, judged by the page before; 0: any number */
    void (*take)(void *ctx, struct str item); /* the item is borrowed */
    void *ctx;
};

/* All items of the visited execution's list, in order. */
MUST_USE bool pages_read(struct visit *v, const struct pages *p, struct err *e);

#endif
