/* SPDX-License-Identifier: Apache-2.0
 * Reading the API's objects for people: the fields a command shows, and the words and colours of
 * states. */
#ifndef CLI_VIEW_H
#define CLI_VIEW_H

#include "base/json.h"
#include "cli/cli.h"

enum { SHORT_ID_LEN = 18 };

struct view_field {
    const char *name;
    bool text; /* decode a string; anything else counts as absent. Otherwise the raw JSON. */
    struct str *value;
};
/* One walk over a valid object; fields it lacks, and null ones, become STR_NONE. Text lives in the
 * arena or the source. */
void view_read(struct str object, const struct view_field *fields, size_t n, struct arena *a);

struct str view_short_id(struct str id);
/* "a, b, c" of a list of strings; absent when it is none, or empty. In the arena. */
struct str view_names(struct str array, struct arena *a);
enum paint view_status_paint(struct str status);
bool view_is_final(struct str execution_status);
/* The second of equal steps is "search #2". In the arena, or the target itself. */
struct str view_target(struct str target, int64_t occurrence, struct arena *a);
/* "message", else "reason", else the object as it is; absent stays absent. */
struct str view_error_text(struct str error, struct arena *a);
/* "name          value" for detail pages; nothing when the value is absent. A value of several
 * lines stays in its column, so that none of them can look like another pair. */
void view_pair(struct cli *c, const char *name, struct str value);
void view_pair_painted(struct cli *c, const char *name, enum paint paint, struct str value);
void view_pair_json(struct cli *c, const char *name, struct str json); /* on one line */
/* JSON on one line, clean, cut also where no terminal reads: arguments can be megabytes. Absent
 * stays absent. In the arena. */
struct str view_json_short(struct str json, size_t columns, struct arena *a);
/* Lines of text, each begun with `indent` blanks and, on a terminal, broken before its edge. */
void view_text(struct cli *c, size_t indent, enum paint paint, struct str text);
/* "2026-01-02 15:04:05 (3m05s ago)"; a time to come says "in 3m05s". Text that is no time stays as
 * it is. In the arena. */
struct str view_when(struct str rfc3339, int64_t now_us, struct arena *a);
struct str view_age(struct str rfc3339, int64_t now_us, struct arena *a);

#endif
