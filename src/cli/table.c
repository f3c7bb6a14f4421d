/* SPDX-License-Identifier: Apache-2.0
 * Aligned columns. */
#include "cli/table.h"

#include <stdlib.h>

#include "base/arena.h"
#include "cli/text.h"

enum {
    GAP = 2,
    LAST_COLUMN_MIN = 8,
    LAST_COLUMN_FAIR = 20, /* others are narrowed for it: it says most */
    LIMITED_MIN = 8,
};

struct table_cell {
    char *text; /* owned, clean */
    size_t n, columns;
    enum paint paint;
};

void table_free(struct table *t)
{
    for (size_t i = 0; i < t->n; i++)
        free(t->cells[i].text);
    free(t->cells);
    t->cells = NULL;
    t->n = t->cap = 0;
}

void table_add(struct table *t, enum paint paint, struct str text)
{
    struct buf clean = {0};

    if (t->n == t->cap) {
        t->cap = t->cap == 0 ? 64 : t->cap * 2;
        t->cells = xrealloc(t->cells, t->cap * sizeof *t->cells);
    }
    text_clean(&clean, text, TEXT_ONE_LINE);
    struct str s = buf_str(&clean);
    t->cells[t->n++] = (struct table_cell){xstrdup(s), s.n, text_columns(s), paint};
    buf_free(&clean);
}

size_t table_rows(const struct table *t)
{
    return t->n / t->n_columns;
}

static size_t column_width(const struct table *t, size_t column, const struct cli *c)
{
    size_t width = strlen(t->columns[column].title), limit = t->columns[column].limit;

    for (size_t i = column; i < t->n; i += t->n_columns) {
        if (t->cells[i].columns > width)
            width = t->cells[i].columns;
    }
    return c->width > 0 && limit > 0 && width > limit ? limit : width;
}

/* Takes columns from those that may be cut, the widest first, until the last has its share. */
static void narrow(const struct table *t, size_t *widths, size_t used, size_t columns)
{
    size_t last = widths[t->n_columns - 1],
           fair = last < LAST_COLUMN_FAIR ? last : LAST_COLUMN_FAIR;

    while (used + fair > columns) {
        size_t widest = t->n_columns;

        for (size_t i = 0; i + 1 < t->n_columns; i++) {
            if (t->columns[i].limit > 0 && widths[i] > LIMITED_MIN &&
                (widest == t->n_columns || widths[i] > widths[widest]))
                widest = i;
        }
        if (widest == t->n_columns)
            return;
        widths[widest]--;
        used--;
    }
}

static size_t columns_used(const struct table *t, const size_t *widths)
{
    size_t used = 0;

    for (size_t i = 0; i + 1 < t->n_columns; i++)
        used += widths[i] + GAP;
    return used;
}

/* The last column gets what is left of the line; 0: nothing limits it. */
static void fit_to_terminal(const struct table *t, size_t *widths, size_t columns)
{
    size_t last = t->n_columns - 1;

    if (columns > 0)
        narrow(t, widths, columns_used(t, widths), columns);
    if (t->columns[last].right)
        return;
    size_t used = columns_used(t, widths), left = columns > used ? columns - used : 0;
    widths[last] = columns == 0 ? 0 : left > LAST_COLUMN_MIN ? left : LAST_COLUMN_MIN;
}

static void pad(struct cli *c, size_t columns)
{
    fprintf(c->out, "%*s", (int)columns, "");
}

static void print_cell(const struct table_cell *cell, const struct table_column *column,
                       size_t width, bool last, struct cli *c)
{
    struct buf cut = {0};
    struct str text = str_make(cell->text, cell->n);
    size_t columns = cell->columns;

    if (width > 0 && columns > width) {
        text_fit(&cut, text, width);
        text = buf_str(&cut);
        columns = text_columns(text);
    }
    size_t fill = width > columns ? width - columns : 0;
    if (column->right)
        pad(c, fill);
    fputs(paint_begin(c->out_colour, cell->paint), c->out);
    fwrite(text.p, 1, text.n, c->out);
    fputs(paint_end(c->out_colour, cell->paint), c->out);
    if (!last)
        pad(c, (column->right ? 0 : fill) + GAP);
    buf_free(&cut);
}

/* `widths` of the last column is 0 when nothing limits it. */
static void print_row(const struct table *t, const struct table_cell *row, const size_t *widths,
                      struct cli *c)
{
    size_t n = t->n_columns;

    while (n > 1 && row[n - 1].n == 0) /* no blanks at the end of a line */
        n--;
    for (size_t i = 0; i < n; i++)
        print_cell(&row[i], &t->columns[i], widths[i], i + 1 == n, c);
    fputc('\n', c->out);
}

static void print_all(const struct table *t, struct cli *c)
{
    size_t *widths = xzalloc(t->n_columns * sizeof *widths);
    struct table_cell *titles = xzalloc(t->n_columns * sizeof *titles);
    size_t last = t->n_columns - 1;

    for (size_t i = 0; i <= last; i++) {
        struct str title = str_of(t->columns[i].title);

        widths[i] = column_width(t, i, c);
        titles[i] = (struct table_cell){xstrdup(title), title.n, title.n, PAINT_DIM};
    }
    fit_to_terminal(t, widths, c->width);
    print_row(t, titles, widths, c);
    for (size_t i = 0; i + t->n_columns <= t->n; i += t->n_columns)
        print_row(t, &t->cells[i], widths, c);
    for (size_t i = 0; i <= last; i++)
        free(titles[i].text);
    free(titles);
    free(widths);
}

static bool is_shown(const struct table *t, size_t column)
{
    if ((t->optional >> column & 1u) == 0)
        return true;
    for (size_t i = column; i < t->n; i += t->n_columns) {
        if (t->cells[i].n > 0)
            return true;
    }
    return false;
}

/* The table without the columns that are left out; its cells are the other's. */
static void print_shown(const struct table *t, const bool *shown, size_t n_shown, struct cli *c)
{
    struct table_column *columns = xzalloc(n_shown * sizeof *columns);
    struct table slim = {.columns = columns};

    slim.cells = xzalloc(table_rows(t) * n_shown * sizeof *slim.cells);
    for (size_t i = 0; i < t->n_columns; i++) {
        if (shown[i])
            columns[slim.n_columns++] = t->columns[i];
    }
    for (size_t i = 0; i < t->n; i++) {
        if (shown[i % t->n_columns])
            slim.cells[slim.n++] = t->cells[i];
    }
    print_all(&slim, c);
    free(slim.cells);
    free(columns);
}

void table_print(const struct table *t, struct cli *c)
{
    size_t n_shown = 0;

    if (t->n == 0)
        return;
    bool *shown = xzalloc(t->n_columns * sizeof *shown);
    for (size_t i = 0; i < t->n_columns; i++) {
        shown[i] = is_shown(t, i);
        n_shown += shown[i];
    }
    if (n_shown == t->n_columns)
        print_all(t, c);
    else
        print_shown(t, shown, n_shown, c);
    free(shown);
}
