/* SPDX-License-Identifier: Apache-2.0
 * Reading JSON: the check of a whole text, walkers over accepted ones, and the decoding of a
 * request's own fields. */
#include "base/json.h"

#include "base/json_scan.h"

bool json_scan_error(const struct json_scan *s, struct str text, struct err *e)
{
    size_t line = 1, column = 1;

    for (const char *p = text.p; p != s->error_at; p++) {
        if (*p == '\n') {
            line++;
            column = 1;
        } else if (!utf8_is_tail(*p))
            column++;
    }
    return err_set(e, ERR_VALIDATION, "invalid JSON at byte %zu (line %zu, column %zu): %s",
                   (size_t)(s->error_at - text.p), line, column, s->error);
}

bool json_check(struct str text, struct err *e)
{
    struct json_scan s;
    enum json_token t;

    json_scan_start(&s, text);
    do
        t = json_scan_next(&s);
    while (t > JSON_TOKEN_END);
    return t == JSON_TOKEN_END || json_scan_error(&s, text, e);
}

struct str json_trim(struct str value)
{
    size_t from = 0, to = value.n;

    while (from < to && json_is_space(value.p[from]))
        from++;
    while (to > from && json_is_space(value.p[to - 1]))
        to--;
    return str_slice(value, from, to);
}

enum json_type json_type_of(struct str value)
{
    size_t i = 0;

    while (i < value.n && json_is_space(value.p[i]))
        i++;
    if (i == value.n)
        return JSON_INVALID;
    switch (value.p[i]) {
    case 'n':
        return JSON_NULL;
    case 't':
    case 'f':
        return JSON_BOOL;
    case '"':
        return JSON_STRING;
    case '[':
        return JSON_ARRAY;
    case '{':
        return JSON_OBJECT;
    default:
        return value.p[i] == '-' || json_is_digit(value.p[i]) ? JSON_NUMBER : JSON_INVALID;
    }
}

/* ---- walking: the text is valid, so these look for ends only, and yet never read past the slice
 * ---- */

/* p behind the opening quote; returns the closing one (or end). */
static const char *string_end(const char *p, const char *end)
{
    for (;;) {
        const char *quote = memchr(p, '"', (size_t)(end - p));
        if (quote == NULL)
            return end;
        const char *slash = quote;
        while (slash != p && slash[-1] == '\\')
            slash--;
        if ((quote - slash) % 2 == 0)
            return quote;
        p = quote + 1; /* an odd number of backslashes: the last one escapes this quote */
    }
}

static const char *container_end(const char *p, const char *end)
{
    size_t depth = 0;

    for (; p != end; p++) {
        switch (*p) {
        case '"':
            p = string_end(p + 1, end);
            if (p == end)
                return end;
            break;
        case '{':
        case '[':
            depth++;
            break;
        case '}':
        case ']':
            if (--depth == 0)
                return p + 1;
            break;
        default:
            break;
        }
    }
    return end;
}

static const char *value_end(const char *p, const char *end)
{
    if (p == end)
        return end;
    if (*p == '"') {
        p = string_end(p + 1, end);
        return p == end ? end : p + 1;
    }
    if (*p == '{' || *p == '[')
        return container_end(p, end);
    while (p != end && *p != ',' && *p != '}' && *p != ']' && !json_is_space(*p))
        p++;
    return p;
}

/* Moves to the next element of a container that begins with `open`. False at its end. */
static bool walk_on(struct str container, struct json_walk *w, char open, const char **at)
{
    const char *end = container.n == 0 ? container.p : container.p + container.n;
    const char *p = container.n == 0 ? container.p : container.p + w->at;

    p = json_skip_space(p, end);
    if (!w->started) {
        if (p == end || *p != open)
            return false;
        w->started = true;
        p = json_skip_space(p + 1, end);
    } else if (p != end && *p == ',')
        p = json_skip_space(p + 1, end);
    *at = p;
    w->at = container.p == NULL ? 0 : (size_t)(p - container.p);
    return p != end && *p != '}' && *p != ']';
}

/* [from, to): between the quotes. */
static struct str decoded(const char *from, const char *to, struct arena *a)
{
    struct str raw = {from, (size_t)(to - from)};

    if (raw.n == 0 || memchr(raw.p, '\\', raw.n) == NULL)
        return raw;
    char *text = arena_alloc(a, raw.n);
    if (text == NULL)
        return STR_NONE;
    return (struct str){text, json_decode(raw.p, raw.n, text)};
}

bool json_next_item(struct str array, struct json_walk *w, struct str *item)
{
    const char *p;

    if (!walk_on(array, w, '[', &p))
        return false;
    const char *to = value_end(p, array.p + array.n);
    *item = (struct str){p, (size_t)(to - p)};
    w->at = (size_t)(to - array.p);
    return true;
}

/* The key as it stands between its quotes; false at the object's end. */
static bool next_raw_member(struct str object, struct json_walk *w, struct str *key,
                            struct str *value)
{
    const char *p, *end = object.n == 0 ? object.p : object.p + object.n;

    if (!walk_on(object, w, '{', &p) || *p != '"')
        return false;
    const char *key_end = string_end(p + 1, end);
    *key = (struct str){p + 1, (size_t)(key_end - (p + 1))};
    p = json_skip_space(key_end == end ? end : key_end + 1, end);
    if (p == end || *p != ':')
        return false;
    p = json_skip_space(p + 1, end);
    const char *to = value_end(p, end);
    *value = (struct str){p, (size_t)(to - p)};
    w->at = (size_t)(to - object.p);
    return true;
}

bool json_next_member(struct str object, struct json_walk *w, struct arena *a,
                      struct json_member *out)
{
    struct str key, value;

    if (!next_raw_member(object, w, &key, &value))
        return false;
    out->key = decoded(key.p, key.p + key.n, a);
    out->value = value;
    return true;
}

struct str json_get(struct str object, struct str key, struct arena *a)
{
    struct json_walk w = {0};
    struct json_member m;

    while (json_next_member(object, &w, a, &m))
        if (str_eq(m.key, key))
            return m.value;
    return STR_NONE;
}

struct str json_string(struct str value, struct arena *a)
{
    struct str v = json_trim(value);

    if (v.n < 2 || v.p[0] != '"' || v.p[v.n - 1] != '"')
        return STR_NONE;
    return decoded(v.p + 1, v.p + v.n - 1, a);
}

bool json_int64(struct str value, int64_t *out)
{
    struct str v = json_trim(value);
    bool negative = v.n > 0 && v.p[0] == '-';
    int64_t n = 0;

    for (size_t i = negative; i < v.n;
         i++) { /* downwards, because INT64_MIN has no positive twin */
        if (!json_is_digit(v.p[i]) || __builtin_mul_overflow(n, 10, &n) ||
            __builtin_sub_overflow(n, v.p[i] - '0', &n))
            return false;
    }
    if (v.n == (size_t)negative || (!negative && n == INT64_MIN))
        return false;
    *out = negative ? n : -n;
    return true;
}
