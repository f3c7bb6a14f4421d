/* SPDX-License-Identifier: Apache-2.0
 * The API's objects, read for people. */
#include "cli/view.h"

#include "cli/text.h"
#include "cli/when.h"

enum { NAME_COLUMNS = 16 };

void view_read(struct str object, const struct view_field *fields, size_t n, struct arena *a)
{
    struct json_walk walk = {0};
    struct json_member m;

    for (size_t i = 0; i < n; i++)
        *fields[i].value = STR_NONE;
    if (json_type_of(object) != JSON_OBJECT)
        return;
    while (json_next_member(object, &walk, a, &m)) {
        enum json_type type = json_type_of(m.value);

        for (size_t i = 0; i < n; i++) {
            if (!str_eq(m.key, str_of(fields[i].name)) || type == JSON_NULL)
                continue;
            if (!fields[i].text)
                *fields[i].value = m.value;
            else if (type == JSON_STRING)
                *fields[i].value = json_string(m.value, a);
        }
    }
}

struct str view_short_id(struct str id)
{
    return str_make(id.p, id.n < SHORT_ID_LEN ? id.n : SHORT_ID_LEN);
}

enum paint view_status_paint(struct str status)
{
    static const struct {
        struct str status;
        enum paint paint;
    } paints[] = {
        {STR_INIT("completed"), PAINT_GOOD},
        {STR_INIT("succeeded"), PAINT_GOOD},
        {STR_INIT("failed"), PAINT_BAD},
        {STR_INIT("denied"), PAINT_BAD},
        {STR_INIT("granted"), PAINT_GOOD},
        {STR_INIT("cancelled"), PAINT_DIM},
        {STR_INIT("expired"), PAINT_DIM},
        {STR_INIT("running"), PAINT_BUSY},
        {STR_INIT("executing"), PAINT_BUSY},
        {STR_INIT("blocked"), PAINT_BOLD},
        {STR_INIT("awaiting_approval"), PAINT_BOLD},
    };

    for (size_t i = 0; i < COUNT(paints); i++) {
        if (str_eq(status, paints[i].status))
            return paints[i].paint;
    }
    return PAINT_NONE;
}

bool view_is_final(struct str execution_status)
{
    return str_eq(execution_status, STR("completed")) || str_eq(execution_status, STR("failed")) ||
           str_eq(execution_status, STR("cancelled"));
}

struct str view_target(struct str target, int64_t occurrence, struct arena *a)
{
    if (occurrence < 1 || occurrence == INT64_MAX)
        return target;
    return arena_printf(a, "%.*s #%lld", STR_ARG(target), (long long)occurrence + 1);
}

struct str view_error_text(struct str error, struct arena *a)
{
    struct str message = STR_NONE, reason = STR_NONE;
    const struct view_field fields[] = {{"message", true, &message}, {"reason", true, &reason}};

    if (json_type_of(error) == JSON_STRING)
        return json_string(error, a);
    view_read(error, fields, COUNT(fields), a);
    if (message.n > 0)
        return message;
    return reason.n > 0 ? reason : error;
}

struct str view_names(struct str array, struct arena *a)
{
    struct buf names = {0};
    struct json_walk walk = {0};
    struct str item, out = STR_NONE;

    while (json_type_of(array) == JSON_ARRAY && json_next_item(array, &walk, &item)) {
        if (names.n > 0)
            buf_add(&names, STR(", "));
        buf_add(&names, json_type_of(item) == JSON_STRING ? json_string(item, a) : item);
    }
    if (names.n > 0)
        out = arena_str(a, buf_str(&names));
    buf_free(&names);
    return out;
}

/* Clean lines in a column of their own: each below the first begins with `indent` blanks, and none
 * goes past the terminal's edge. */
static void add_column(struct buf *out, struct str text, size_t indent, size_t width)
{
    struct buf clean = {0}, margin = {0};
    struct str line;
    size_t at = 0;

    buf_printf(&margin, "%*s", (int)indent, "");
    while (text_next_line(text, &at, &line)) {
        if (line.p != text.p) {
            buf_add_byte(out, '\n');
            buf_add(out, buf_str(&margin));
        }
        buf_clear(&clean);
        text_clean_line(&clean, line);
        text_wrap(out, buf_str(&clean), width > 2 * indent ? width - indent : 0, buf_str(&margin));
    }
    buf_free(&clean);
    buf_free(&margin);
}

void view_text(struct cli *c, size_t indent, enum paint paint, struct str text)
{
    struct buf column = {0};

    add_column(&column, text, indent, c->width);
    fprintf(c->out, "%*s", (int)indent, "");
    cli_put(c, paint, buf_str(&column));
    fputc('\n', c->out);
    buf_free(&column);
}

static void put_name(struct cli *c, const char *name)
{
    fprintf(c->out, "%s%-*s%s", paint_begin(c->out_colour, PAINT_DIM), NAME_COLUMNS, name,
            paint_end(c->out_colour, PAINT_DIM));
}

void view_pair_painted(struct cli *c, const char *name, enum paint paint, struct str value)
{
    struct buf text = {0};

    if (!str_present(value))
        return;
    add_column(&text, value, NAME_COLUMNS, c->width);
    put_name(c, name);
    cli_put(c, paint, buf_str(&text));
    fputc('\n', c->out);
    buf_free(&text);
}

void view_pair(struct cli *c, const char *name, struct str value)
{
    view_pair_painted(c, name, PAINT_NONE, value);
}

void view_pair_json(struct cli *c, const char *name, struct str json)
{
    struct buf line = {0};

    if (!str_present(json))
        return;
    text_json_line(&line, json); /* unbroken, so that it can be copied */
    put_name(c, name);
    cli_put(c, PAINT_NONE, buf_str(&line));
    fputc('\n', c->out);
    buf_free(&line);
}

struct str view_json_short(struct str json, size_t columns, struct arena *a)
{
    struct buf line = {0}, clean = {0}, cut = {0};

    if (!str_present(json))
        return STR_NONE;
    text_json_line(&line, json);
    text_clean(&clean, buf_str(&line), TEXT_ONE_LINE);
    text_fit(&cut, buf_str(&clean), columns);
    struct str out = arena_str(a, buf_str(&cut));
    buf_free(&line);
    buf_free(&clean);
    buf_free(&cut);
    return out;
}

struct str view_when(struct str rfc3339, int64_t now_us, struct arena *a)
{
    struct buf text = {0};
    int64_t at = 0;

    if (!str_present(rfc3339) || !clock_parse_rfc3339(rfc3339, &at))
        return rfc3339;
    when_full(&text, at);
    buf_add_z(&text, at > now_us ? " (in " : " (");
    when_age(&text, at > now_us ? at - now_us : now_us - at);
    buf_add_z(&text, at > now_us ? ")" : " ago)");
    struct str out = arena_str(a, buf_str(&text));
    buf_free(&text);
    return out;
}

struct str view_age(struct str rfc3339, int64_t now_us, struct arena *a)
{
    struct buf text = {0};
    int64_t at = 0;

    if (!str_present(rfc3339) || !clock_parse_rfc3339(rfc3339, &at))
        return rfc3339;
    when_age(&text, now_us - at);
    struct str out = arena_str(a, buf_str(&text));
    buf_free(&text);
    return out;
}
