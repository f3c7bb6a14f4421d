/* SPDX-License-Identifier: Apache-2.0
 * Writing JSON: strings, and a writer that puts the commas. */
#include "base/json.h"

#include "base/json_scan.h"

static void add_escape(struct buf *out, char c)
{
    static const char SHORT[0x20] = {
        ['\b'] = 'b', ['\t'] = 't', ['\n'] = 'n', ['\f'] = 'f', ['\r'] = 'r'};
    unsigned char u = (unsigned char)c;
    char text[] = "\\u0000";

    if (u >= 0x20) {
        buf_add(out, (struct str){(const char[]){'\\', c}, 2});
        return;
    }
    if (SHORT[u] != 0) {
        buf_add(out, (struct str){(const char[]){'\\', SHORT[u]}, 2});
        return;
    }
    hex_encode(&u, 1, text + 4);
    buf_add(out, (struct str){text, sizeof text - 1});
}

void json_add_string(struct buf *out, struct str s)
{
    const char *p = s.p, *end = s.n == 0 ? p : p + s.n;

    buf_reserve(out, s.n <= SIZE_MAX - 2 ? s.n + 2 : s.n);
    buf_add_byte(out, '"');
    while (p != end) {
        const char *run = p;
        size_t n = 1;
        while (p != end && n != 0) { /* everything that stands for itself */
            p = json_skip_plain(p, end);
            n = p == end || (unsigned char)*p < 0x80 ? 0 : utf8_len(p, end);
            p += n;
        }
        buf_add(out, (struct str){run, (size_t)(p - run)});
        if (p == end)
            break;
        if (*p == 0x7f)
            buf_add_byte(out, *p);
        else if ((unsigned char)*p < 0x80)
            add_escape(out, *p);
        else
            buf_add(out, STR("\ufffd"));
        p++;
    }
    buf_add_byte(out, '"');
}

static void before_value(struct json_writer *w)
{
    if (w->comma)
        buf_add_byte(w->out, ',');
    w->comma = true;
}

void jw_open(struct json_writer *w, char bracket)
{
    before_value(w);
    buf_add_byte(w->out, bracket);
    w->comma = false;
}

void jw_close(struct json_writer *w, char bracket)
{
    buf_add_byte(w->out, bracket);
    w->comma = true;
}

void jw_key(struct json_writer *w, const char *key)
{
    before_value(w);
    buf_add_byte(w->out, '"');
    buf_add_z(w->out, key);
    buf_add(w->out, STR("\":"));
    w->comma = false;
}

void jw_str(struct json_writer *w, struct str s)
{
    before_value(w);
    json_add_string(w->out, s);
}

void jw_raw(struct json_writer *w, struct str json)
{
    before_value(w);
    buf_add(w->out, json);
}

void jw_int(struct json_writer *w, int64_t v)
{
    before_value(w);
    buf_add_int(w->out, v);
}

void jw_bool(struct json_writer *w, bool v)
{
    jw_raw(w, v ? STR("true") : STR("false"));
}

void jw_null(struct json_writer *w)
{
    jw_raw(w, STR("null"));
}

void jw_member_str(struct json_writer *w, const char *key, struct str s)
{
    jw_key(w, key);
    jw_str(w, s);
}

void jw_member_str_opt(struct json_writer *w, const char *key, struct str s)
{
    if (str_present(s))
        jw_member_str(w, key, s);
}

void jw_member_raw_opt(struct json_writer *w, const char *key, struct str json)
{
    if (!str_present(json))
        return;
    jw_key(w, key);
    jw_raw(w, json);
}

void jw_member_int(struct json_writer *w, const char *key, int64_t v)
{
    jw_key(w, key);
    jw_int(w, v);
}
