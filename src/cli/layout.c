/* SPDX-License-Identifier: Apache-2.0
 * JSON laid out for people. */
#include "cli/layout.h"

#include "base/json.h"
#include "cli/text.h"

#define BAR "\xe2\x94\x82"
#define GUTTER_ON "\xe2\x94\x8a " /* the line above goes on */

enum {
    NEST = 2,         /* blanks a level */
    DEPTH_MAX = 8,    /* what is deeper stands on one line, as JSON: nobody reads it by its shape */
    COLUMNS_MIN = 24, /* of text, however narrow the terminal */
    LIST_COLUMNS_MAX = 72, /* a longer list has a line an item */
};

struct layout {
    struct buf *out;
    struct arena a;
    size_t width; /* 0: any */
};

/* Columns that are left in a line of which `at` are used. */
static size_t room(const struct layout *l, size_t at)
{
    if (l->width == 0)
        return SIZE_MAX;
    return l->width > at + COLUMNS_MIN ? l->width - at : COLUMNS_MIN;
}

static void add_blanks(struct buf *out, size_t n)
{
    buf_printf(out, "%*s", (int)n, "");
}

/* ---- text behind the gutter ---- */

void layout_text(struct buf *out, struct str text, size_t indent, size_t width)
{
    const struct layout l = {.width = width};
    struct buf clean = {0}, prefix = {0};
    struct str line;
    size_t columns = width == 0 ? 0 : room(&l, indent + NEST), at = 0;

    add_blanks(&prefix, indent);
    buf_add(&prefix, STR(GUTTER_ON));
    while (text_next_line(text, &at, &line)) {
        buf_clear(&clean);
        text_clean_line(&clean, line);
        add_blanks(out, indent);
        buf_add(out, clean.n == 0 ? STR(BAR) : STR(BAR " "));
        text_wrap(out, buf_str(&clean), columns, buf_str(&prefix));
        buf_add_byte(out, '\n');
    }
    buf_free(&clean);
    buf_free(&prefix);
}

/* ---- on the rest of a line ---- */

/* Between quotes without a single escape, so that nothing in it can look like the closing one. */
static bool add_quoted(struct buf *out, struct str text, size_t columns)
{
    struct buf clean = {0};
    bool ok = false;

    if (text.n / 4 > columns || (text.n > 0 && memchr(text.p, '"', text.n) != NULL))
        return false;
    text_clean(&clean, text, TEXT_ONE_LINE);
    if (text_columns(buf_str(&clean)) + 2 <= columns &&
        memchr(buf_str(&clean).p, '\\', clean.n) == NULL) {
        buf_add_byte(out, '"');
        buf_add(out, buf_str(&clean));
        buf_add_byte(out, '"');
        ok = true;
    }
    buf_free(&clean);
    return ok;
}

static bool add_scalar(struct layout *l, struct buf *out, struct str value, size_t columns)
{
    switch (json_type_of(value)) {
    case JSON_NULL:
    case JSON_BOOL:
    case JSON_NUMBER:
        buf_add(out, json_trim(value));
        return value.n <= columns;
    case JSON_STRING:
        return add_quoted(out, json_string(value, &l->a), columns);
    case JSON_INVALID:
    case JSON_ARRAY:
    case JSON_OBJECT:
        return false;
    }
    return false;
}

static bool add_list(struct layout *l, struct buf *out, struct str array, size_t columns)
{
    struct json_walk walk = {0};
    struct str item;
    size_t most = columns < LIST_COLUMNS_MAX ? columns : LIST_COLUMNS_MAX, n = 0;

    buf_add_byte(out, '[');
    while (json_next_item(array, &walk, &item)) {
        if (n++ > 0)
            buf_add(out, STR(", "));
        if (out->n > 4 * most || !add_scalar(l, out, item, most))
            return false;
    }
    buf_add_byte(out, ']');
    return text_columns(buf_str(out)) <= most;
}

static bool is_empty_object(struct layout *l, struct str value)
{
    struct json_walk walk = {0};
    struct json_member m;

    return json_type_of(value) == JSON_OBJECT && !json_next_member(value, &walk, &l->a, &m);
}

/* The value in at most `columns`; false: it needs lines of its own. */
static bool add_short(struct layout *l, struct buf *out, struct str value, size_t columns)
{
    if (json_type_of(value) == JSON_ARRAY)
        return add_list(l, out, value, columns);
    if (!is_empty_object(l, value))
        return add_scalar(l, out, value, columns);
    buf_add(out, STR("{}"));
    return true;
}

/* ---- lines ---- */

static void lay_members(struct layout *l, struct str object, size_t indent, size_t depth,
                        bool begun);
static void lay_items(struct layout *l, struct str array, size_t indent, size_t depth);

/* What no line can show in short and no level can unfold. */
static void lay_block(struct layout *l, struct str value, size_t indent)
{
    struct str text = json_type_of(value) == JSON_STRING ? json_string(value, &l->a) : STR_NONE;
    struct buf line = {0};

    if (!str_present(text)) { /* no string, or no memory for a second copy of it */
        text_json_line(&line, value);
        text = buf_str(&line);
    }
    layout_text(l->out, text, indent, l->width);
    buf_free(&line);
}

/* Behind "key:" or "-", where `at` columns are used. */
static void lay_value(struct layout *l, struct str value, size_t indent, size_t depth, size_t at)
{
    enum json_type type = json_type_of(value);
    struct buf text = {0};

    if (add_short(l, &text, value, room(l, at + 1))) {
        buf_add_byte(l->out, ' ');
        buf_add(l->out, buf_str(&text));
        buf_add_byte(l->out, '\n');
    } else {
        buf_add_byte(l->out, '\n');
        if (type == JSON_OBJECT && depth < DEPTH_MAX)
            lay_members(l, value, indent + NEST, depth + 1, false);
        else if (type == JSON_ARRAY && depth < DEPTH_MAX)
            lay_items(l, value, indent + NEST, depth + 1);
        else
            lay_block(l, value, indent + NEST);
    }
    buf_free(&text);
}

static bool is_plain_key(struct str key)
{
    for (size_t i = 0; i < key.n; i++) {
        char c = key.p[i];

        if (!((c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
              c == '_' || c == '-' || c == '.'))
            return false;
    }
    return key.n > 0;
}

/* Returns the columns that are used behind it. */
static size_t add_key(struct layout *l, struct str key, size_t indent)
{
    struct buf quoted = {0}, clean = {0}, prefix = {0};
    size_t columns = room(l, indent + NEST + 1);

    if (!is_plain_key(key)) {
        json_add_string(&quoted, key);
        key = buf_str(&quoted);
    }
    text_clean(&clean, key, TEXT_ONE_LINE);
    add_blanks(&prefix, indent);
    buf_add(&prefix, STR(GUTTER_ON));
    text_wrap(l->out, buf_str(&clean), l->width == 0 ? 0 : columns, buf_str(&prefix));
    buf_add_byte(l->out, ':');
    size_t used = text_columns(buf_str(&clean));
    buf_free(&quoted);
    buf_free(&clean);
    buf_free(&prefix);
    return indent + (used < columns ? used : columns) + 1;
}

/* `begun`: the first member stands on a line that has been begun. */
static void lay_members(struct layout *l, struct str object, size_t indent, size_t depth,
                        bool begun)
{
    struct json_walk walk = {0};
    struct json_member m;

    while (json_next_member(object, &walk, &l->a, &m)) {
        if (!begun)
            add_blanks(l->out, indent);
        begun = false;
        lay_value(l, m.value, indent, depth, add_key(l, m.key, indent));
    }
}

static void lay_items(struct layout *l, struct str array, size_t indent, size_t depth)
{
    struct json_walk walk = {0};
    struct str item;

    while (json_next_item(array, &walk, &item)) {
        add_blanks(l->out, indent);
        buf_add_byte(l->out, '-');
        if (json_type_of(item) != JSON_OBJECT || is_empty_object(l, item) || depth >= DEPTH_MAX) {
            lay_value(l, item, indent, depth, indent + 1);
            continue;
        }
        add_blanks(l->out, NEST - 1);
        lay_members(l, item, indent + NEST, depth + 1, true);
    }
}

void layout_json(struct buf *out, struct str json, size_t indent, size_t width)
{
    struct layout l = {.out = out, .width = width};
    struct buf text = {0};

    if (add_short(&l, &text, json, room(&l, indent))) {
        add_blanks(out, indent);
        buf_add(out, buf_str(&text));
        buf_add_byte(out, '\n');
    } else if (json_type_of(json) == JSON_OBJECT) {
        lay_members(&l, json, indent, 0, false);
    } else if (json_type_of(json) == JSON_ARRAY) {
        lay_items(&l, json, indent, 0);
    } else {
        lay_block(&l, json, indent);
    }
    buf_free(&text);
    arena_free(&l.a);
}
