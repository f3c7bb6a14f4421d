/* SPDX-License-Identifier: Apache-2.0
 * Text that came from elsewhere, made fit for a terminal. What an agent chose (targets, errors,
 * results) must neither move the cursor nor reorder what a reader sees. */
#ifndef BASE_TEXT_H
#define BASE_TEXT_H

#include "base/buf.h"

enum text_lines {
    TEXT_ONE_LINE, /* line feeds and tabs are shown as \n and \t */
    TEXT_LINES,    /* they are kept */
};

/* Appends `s` with every control character, bidirectional control, line separator and other
 * character that leaves no mark written as an escape, and bytes that are not UTF-8 as U+FFFD. */
void text_clean(struct buf *out, struct str s, enum text_lines lines);
/* Terminal columns that clean text takes: wide characters count two, combining ones none. */
size_t text_columns(struct str clean);
/* Appends as much of clean text as fits, with an ellipsis when some was left out. `columns` > 0. */
void text_fit(struct buf *out, struct str clean, size_t columns);
/* Appends one line of clean text, broken so that no line is wider than `columns` (0: unbroken);
 * each line after the first begins with `prefix`, which is not counted. Nothing is left out: blanks
 * at which a line breaks stay at its end. */
void text_wrap(struct buf *out, struct str clean, size_t columns, struct str prefix);

#endif
