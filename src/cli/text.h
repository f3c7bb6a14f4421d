/* SPDX-License-Identifier: Apache-2.0
 * Text for terminals: what base/text.h has, lines, and JSON. */
#ifndef CLI_TEXT_H
#define CLI_TEXT_H

#include "base/text.h"

/* Walks the lines of a text, which line feeds end; the empty text has one. Zero *at, then call
 * until it returns false. */
bool text_next_line(struct str text, size_t *at, struct str *line);
/* Appends one of them, clean, with blanks for its tabs: a tab would leave the columns that it is
 * shown in. */
void text_clean_line(struct buf *out, struct str line);
/* Appends valid JSON without the white space between its tokens: one line, whatever the author's
 * layout. */
void text_json_line(struct buf *out, struct str json);
/* The same with a blank behind each comma between tokens, for text that is wrapped. */
void text_json_spaced(struct buf *out, struct str json);

#endif
