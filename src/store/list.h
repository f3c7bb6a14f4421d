/* SPDX-License-Identifier: Apache-2.0 */
#ifndef STORE_LIST_H
#define STORE_LIST_H

#include <stdlib.h>

#include "base/arena.h"

/* Appends to a LIST() of kernel/working_set.h; the array is malloc'ed. */
#define list_add(list, value)                                                                      \
    do {                                                                                           \
        if ((list).n == (list).cap) {                                                              \
            (list).cap = (list).cap == 0 ? 16 : (list).cap * 2;                                    \
            (list).at = xrealloc((list).at, (list).cap * sizeof((list).at[0]));                    \
        }                                                                                          \
        (list).at[(list).n++] = (value);                                                           \
    } while (0)

#define list_free(list) (free((list).at), (list).at = NULL, (list).n = (list).cap = 0)

/* Copies the rows of a list into an arena and frees the list. */
#define list_to_arena(list, a, out, count)                                                         \
    do {                                                                                           \
        *(count) = (list).n;                                                                       \
        *(out) = arena_alloc((a), (list).n * sizeof((list).at[0]) + 1);                            \
        if ((list).n > 0 && *(out) != NULL)                                                        \
            memcpy(*(out), (list).at, (list).n * sizeof((list).at[0]));                            \
        list_free(list);                                                                           \
    } while (0)

/* The same for a list of pointers: the rows that they point at. */
#define list_rows_to_arena(list, a, out, count)                                                    \
    do {                                                                                           \
        *(count) = (list).n;                                                                       \
        *(out) = arena_alloc((a), (list).n * sizeof(**(out)) + 1);                                 \
        for (size_t i_ = 0; i_ < (list).n && *(out) != NULL; i_++)                                 \
            (*(out))[i_] = *(list).at[i_];                                                         \
        list_free(list);                                                                           \
    } while (0)

#endif
