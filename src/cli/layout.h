/* SPDX-License-Identifier: Apache-2.0
 * JSON from elsewhere, laid out for a person who decides on it: a member or an item a line, strings
 * as the text they mean. What its author chose can neither hide behind escapes nor look like a line
 * that is not its own: a string that is more than a plain word or sentence stands behind a gutter,
 *
 *   path: "/etc/passwd"
 *   options:
 *     mode: "append"
 *   text:
 *     │ a line of the text
 *     │ a line that is too long for the terminal
 *     ┊ goes on here
 */
#ifndef CLI_LAYOUT_H
#define CLI_LAYOUT_H

#include "base/buf.h"

/* Appends clean lines, each begun with `indent` blanks and none wider than `width` (0: any), as far
 * as the depth of the value allows. The JSON is valid. */
void layout_json(struct buf *out, struct str json, size_t indent, size_t width);
/* The same for text, behind the gutter. */
void layout_text(struct buf *out, struct str text, size_t indent, size_t width);

#endif
