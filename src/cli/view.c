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
        {STR_INIT("cancelled"), PAINT_DIM},
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

struct str view_error_text(struct str error, struct arena *a)
{
    struct str message, reason;
    const struct view_field fields[] = {{"message", true, &message}, {"reason", true, &reason}};

    if (json_type_of(error) == JSON_STRING)
        return json_string(error, a);
    view_read(error, fields, COUNT(fields), a);
    if (message.n > 0)
        return message;
    return reason.n > 0 ? reason : error;
}

void view_pair_painted(struct cli *c, const char *name, enum paint paint, struct str value)
{
    if (!str_present(value))
        return;
    fprintf(c->out, "%s%-*s%s", paint_begin(c->out_colour, PAINT_DIM), NAME_COLUMNS, name,
            paint_end(c->out_colour, PAINT_DIM));
    cli_put(c, paint, value);
    fputc('\n', c->out);
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
    text_json_line(&line, json);
    view_pair(c, name, buf_str(&line));
    buf_free(&line);
}

struct str view_when(struct str rfc3339, int64_t now_us, struct arena *a)
{
    struct buf text = {0};
    int64_t at = 0;

    if (!str_present(rfc3339) || !when_parse(rfc3339, &at))
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

    if (!str_present(rfc3339) || !when_parse(rfc3339, &at))
        return rfc3339;
    when_age(&text, now_us - at);
    struct str out = arena_str(a, buf_str(&text));
    buf_free(&text);
    return out;
}
