/* SPDX-License-Identifier: Apache-2.0
 * RE2 as C: searching takes time linear in the text, whatever the pattern. The one header of src/
 * that C and C++ share, so it knows no other. */
#ifndef POLICY_REGEX_H
#define POLICY_REGEX_H

#include <stdbool.h>
#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

struct regex;

/* Longer patterns are not for regex_new: what RE2 allocates while it parses one is many times its
 * length, and nothing bounds it. */
#define REGEX_PATTERN_MAX 4096

/* At most REGEX_PATTERN_MAX bytes. NULL: RE2 refuses the pattern, and `why` says so in its words
 * (NUL-terminated, cut at why_n). */
struct regex *regex_new(const char *pattern, size_t n, char *why, size_t why_n);
void regex_free(struct regex *re); /* NULL is fine */
/* Finds the pattern anywhere in the text, which is UTF-8. Any thread. *failed is set when
 * there was no memory to look. */
bool regex_found(const struct regex *re, const char *text, size_t n, bool *failed);
/* Instructions of the compiled pattern: at worst, each is looked at for each byte of the text. */
size_t regex_size(const struct regex *re);

#ifdef __cplusplus
}
#endif

#endif
