/* SPDX-License-Identifier: Apache-2.0
 * What was seen lately, as a hint: a set of keys in a fixed space, in which a new one may take the
 * place of another. Any thread, without a lock. */
#ifndef BASE_SEEN_H
#define BASE_SEEN_H

#include "base/str.h"

struct seen;

struct seen *seen_new(void);
void seen_free(struct seen *s); /* NULL is fine */
void seen_add(struct seen *s, struct str key);
/* False for what was never added, but for one in 2^64; mostly true for what was. */
bool seen_has(const struct seen *s, struct str key);

#endif
