/* SPDX-License-Identifier: Apache-2.0
 * What every cmocka test needs: the library's includes in their order, and a check that says which
 * case failed. */
#ifndef SUPPORT_CHECK_H
#define SUPPORT_CHECK_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include <cmocka.h>

#include "base/buf.h"

#define CHECKF(cond, ...)                                                                          \
    do {                                                                                           \
        if (!(cond)) {                                                                             \
            print_error("%s:%d: %s: ", __FILE__, __LINE__, #cond);                                 \
            print_error(__VA_ARGS__);                                                              \
            print_error("\n");                                                                     \
            fail();                                                                                \
        }                                                                                          \
    } while (0)

#define CHECK_STR(got, want)                                                                       \
    do {                                                                                           \
        struct str got_ = (got), want_ = (want);                                                   \
        CHECKF(str_eq(got_, want_), "got <%.*s>, want <%.*s>", STR_ARG(got_), STR_ARG(want_));     \
    } while (0)

/* The whole file, from the repository's root. */
static inline void read_file(const char *path, struct buf *out)
{
    char chunk[4096];
    size_t n;
    FILE *f = fopen(path, "rb");

    CHECKF(f != NULL, "cannot open %s (run from the repository's root)", path);
    while ((n = fread(chunk, 1, sizeof chunk, f)) > 0)
        buf_add(out, (struct str){chunk, n});
    fclose(f);
    assert_false(out->failed);
}

#endif
