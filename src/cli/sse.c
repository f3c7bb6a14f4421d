/* SPDX-License-Identifier: Apache-2.0
 * Server-sent events, by the HTML standard's rules for lines and fields. */
#include "cli/sse.h"

static bool end_event(struct sse *s)
{
    bool go_on = true;

    if (s->has_data)
        go_on = s->on_event(s->ctx, buf_str(&s->id), buf_str(&s->data));
    buf_clear(&s->data);
    s->has_data = false;
    return go_on;
}

static void take_field(struct sse *s, struct str name, struct str value)
{
    if (str_eq(name, STR("data"))) {
        if (s->has_data)
            buf_add_byte(&s->data, '\n');
        buf_add(&s->data, value);
        s->has_data = true;
    } else if (str_eq(name, STR("id")) && memchr(value.p, '\0', value.n) == NULL) {
        buf_clear(&s->id);
        buf_add(&s->id, value);
    }
}

static bool end_line(struct sse *s)
{
    struct str line = buf_str(&s->line), value = STR("");

    if (line.n == 0)
        return end_event(s);
    const char *colon = memchr(line.p, ':', line.n);
    size_t name_n = colon == NULL ? line.n : (size_t)(colon - line.p);
    if (colon != NULL) {
        value = str_slice(line, name_n + 1, line.n);
        if (value.n > 0 && value.p[0] == ' ')
            value = str_slice(value, 1, value.n);
    }
    take_field(s, str_make(line.p, name_n), value); /* a comment has the empty name */
    buf_clear(&s->line);
    return true;
}

bool sse_feed(struct sse *s, struct str bytes)
{
    for (size_t i = 0; i < bytes.n;) {
        char c = bytes.p[i];

        if (c == '\n' && s->skip_feed) {
            s->skip_feed = false;
            i++;
            continue;
        }
        s->skip_feed = c == '\r';
        if (c == '\n' || c == '\r') {
            i++;
            if (!end_line(s))
                return false;
            continue;
        }
        size_t from = i;
        while (i < bytes.n && bytes.p[i] != '\n' && bytes.p[i] != '\r')
            i++;
        buf_add(&s->line, str_make(bytes.p + from, i - from));
    }
    return true;
}

void sse_restart(struct sse *s)
{
    buf_clear(&s->line);
    buf_clear(&s->data);
    s->has_data = s->skip_feed = false;
}

void sse_free(struct sse *s)
{
    buf_free(&s->line);
    buf_free(&s->data);
    buf_free(&s->id);
}
