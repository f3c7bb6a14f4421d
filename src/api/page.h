/* SPDX-License-Identifier: Apache-2.0
 * A part of an execution's log, read and put into the form in which it leaves. Private to api/. */
#ifndef API_PAGE_H
#define API_PAGE_H

#include "store/store.h"

enum page_form {
    PAGE_ITEMS,  /* JSON objects with commas between them */
    PAGE_STREAM, /* server-sent events */
};

struct event_page {
    struct buf text;
    int64_t last;  /* number of the last event in it; what was asked for when it is empty */
    int64_t count; /* events in it */
    bool at_end;   /* the log had nothing after `last` */
    bool terminal; /* and the execution had ended */
};

/* Events after after_seq: at most `limit`, and not many more than max_bytes. ERR_NOT_FOUND: no such
 * execution. */
MUST_USE bool page_read(struct store_reader *r, const struct uuid *execution_id, int64_t after_seq,
                        int64_t limit, size_t max_bytes, enum page_form form,
                        struct event_page *out, struct err *e);
void page_free(struct event_page *p);

#endif
