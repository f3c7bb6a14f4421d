/* SPDX-License-Identifier: Apache-2.0
 * Memory of one request body. Large ones have pages of their own, so that what the budget counts as
 * given back has gone back to the system: blocks of such sizes that are freed to the heap stay with
 * the process as holes between smaller ones. Private to http/. */
#ifndef HTTP_BODY_H
#define HTTP_BODY_H

#include "base/str.h"

enum { BODY_SMALL_BYTES = 64 * 1024 }; /* up to this: the heap, and nothing from the budget */

/* Zeroed: an empty body that holds no memory. */
struct body {
    char *p;
    size_t n, cap;
};

/* Room for exactly `cap` bytes, at least n. False: no memory, and nothing has changed. */
MUST_USE bool body_resize(struct body *b, size_t cap);
void body_free(struct body *b);

#endif
