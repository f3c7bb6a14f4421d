/* SPDX-License-Identifier: Apache-2.0
 * Compression (zstd) of small pieces, each by itself. Any thread; contexts are kept per thread. */
#ifndef BASE_PACK_H
#define BASE_PACK_H

#include "base/arena.h"

/* In the arena. Absent: it would not become smaller, or there is no memory. */
struct str pack(struct str plain, struct arena *a);
/* False: these are not the packed form of exactly n bytes. */
MUST_USE bool unpack(struct str packed, char *to, size_t n);

#endif
