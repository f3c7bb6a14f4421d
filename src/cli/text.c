/* SPDX-License-Identifier: Apache-2.0
 * Lines and JSON made fit for a terminal. */
#include "cli/text.h"

enum { TAB_COLUMNS = 4 };

bool text_next_line(struct str text, size_t *at, struct str *line)
{
    if (*at > text.n)
        return false;
    const char *feed = *at < text.n ? memchr(text.p + *at, '\n', text.n - *at) : NULL;
    size_t to = feed == NULL ? text.n : (size_t)(feed - text.p);
    *line = str_slice(text, *at, to);
    *at = to + 1;
    return true;
}

void text_clean_line(struct buf *out, struct str line)
{
    size_t columns = 0;

    for (size_t from = 0; from <= line.n;) {
        const char *tab = from < line.n ? memchr(line.p + from, '\t', line.n - from) : NULL;
        size_t to = tab == NULL ? line.n : (size_t)(tab - line.p), before = out->n;

        text_clean(out, str_slice(line, from, to), TEXT_ONE_LINE);
        columns += text_columns(str_slice(buf_str(out), before, out->n));
        if (tab != NULL) {
            size_t blanks = TAB_COLUMNS - columns % TAB_COLUMNS;

            buf_printf(out, "%*s", (int)blanks, "");
            columns += blanks;
        }
        from = to + 1;
    }
}

static void add_json(struct buf *out, struct str json, bool spaced)
{
    bool in_string = false;
    size_t kept_from = 0;

    for (size_t i = 0; i < json.n; i++) {
        char c = json.p[i];

        if (in_string && c == '\\') {
            i++; /* the escaped character ends no string */
        } else if (c == '"') {
            in_string = !in_string;
        } else if (!in_string && (c == ' ' || c == '\n' || c == '\r' || c == '\t')) {
            buf_add(out, str_make(json.p + kept_from, i - kept_from));
            kept_from = i + 1;
        } else if (!in_string && spaced && c == ',') {
            buf_add(out, str_make(json.p + kept_from, i + 1 - kept_from));
            buf_add_byte(out, ' ');
            kept_from = i + 1;
        }
    }
    if (kept_from < json.n)
        buf_add(out, str_make(json.p + kept_from, json.n - kept_from));
}

void text_json_line(struct buf *out, struct str json)
{
    add_json(out, json, false);
}

void text_json_spaced(struct buf *out, struct str json)
{
    add_json(out, json, true);
}
