/* SPDX-License-Identifier: Apache-2.0
 * Aligned columns. Cells are cleaned as they come in; on a terminal a column may be cut to its
 * limit, or to less on a narrow one, and the last to what is left of the line. */
#ifndef CLI_TABLE_H
#define CLI_TABLE_H

#include "cli/cli.h"

struct table_column {
    const char *title;
    bool right;   /* numbers */
    size_t limit; /* columns at most on a terminal; 0: no limit */
};

struct table_cell; /* text and paint */

struct table {
    const struct table_column *columns; /* static */
    size_t n_columns;
    unsigned optional; /* bits of the columns that are left out when they are empty; not the last */
    struct table_cell *cells; /* owned, row by row */
    size_t n, cap;
};

void table_free(struct table *t);
/* The next cell of the current row; rows follow from the number of columns. Absent text is an empty
 * cell. */
void table_add(struct table *t, enum paint paint, struct str text);
size_t table_rows(const struct table *t);
/* With a line of titles, unless there are no rows. */
void table_print(const struct table *t, struct cli *c);

#endif
