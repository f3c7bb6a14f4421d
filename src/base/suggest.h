/* SPDX-License-Identifier: Apache-2.0
 * What a mistyped word was meant to be. */
#ifndef BASE_SUGGEST_H
#define BASE_SUGGEST_H

#include <stddef.h>

enum { SUGGEST_MAX_WORD = 64 }; /* longer words get no suggestion */

/* The candidate closest to `word`, when one is close enough to be what was meant, else NULL. */
const char *suggest(const char *word, const char *const *candidates, size_t n);

#endif
