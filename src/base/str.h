/* SPDX-License-Identifier: Apache-2.0
 * Byte slices. A `struct str` borrows bytes that somebody else owns; it is not NUL-terminated and
 * may hold any byte. The comment beside a field or parameter says who owns what it points at
 * (owned, borrowed, arena, static). */
#ifndef BASE_STR_H
#define BASE_STR_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#define MUST_USE __attribute__((warn_unused_result))
#define PRINTF_LIKE(fmt, args) __attribute__((format(printf, fmt, args)))
#define COUNT(a) (sizeof(a) / sizeof((a)[0]))

struct str {
    const char *p; /* NULL means "absent", which differs from an empty string */
    size_t n;
};

/* A literal as a slice; never count its length by hand. STR_INIT is the form for static tables. */
#define STR(lit) ((struct str){"" lit, sizeof(lit) - 1})
#define STR_INIT(lit)                                                                              \
    {                                                                                              \
        "" lit, sizeof(lit) - 1                                                                    \
    }
#define STR_NONE ((struct str){NULL, 0})
/* For printf's "%.*s". */
#define STR_ARG(s) (int)(s).n, (s).p == NULL ? "" : (s).p

static inline struct str str_of(const char *z) /* NULL gives STR_NONE */
{
    return z == NULL ? STR_NONE : (struct str){z, strlen(z)};
}

static inline struct str str_make(const void *p, size_t n)
{
    return (struct str){p, n};
}

static inline bool str_present(struct str s)
{
    return s.p != NULL;
}

static inline bool str_empty(struct str s)
{
    return s.n == 0;
}

static inline bool str_eq(struct str a, struct str b)
{
    return a.n == b.n && (a.n == 0 || memcmp(a.p, b.p, a.n) == 0);
}

bool str_starts(struct str s, struct str prefix);
bool str_eq_nocase(struct str a, struct str b); /* ASCII only */
int str_cmp(struct str a, struct str b);        /* by bytes, then by length: UTF-8 order */
struct str str_slice(struct str s, size_t from, size_t to);

/* Strict decimal: digits only, no sign, no leading '+', fits into int64_t. */
MUST_USE bool str_to_int64(struct str s, int64_t *out);
/* Valid UTF-8 by RFC 3629 (no surrogates, no overlong forms, at most U+10FFFF). */
bool str_is_utf8(struct str s);
/* Holds a C0 control character, DEL, or (in UTF-8) a C1 control character. */
bool str_has_control(struct str s);
/* Equal, in time that depends on the lengths alone: for secrets. */
bool str_eq_secret(struct str a, struct str b);

#endif
