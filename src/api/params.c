/* SPDX-License-Identifier: Apache-2.0 */
#include "api/params.h"

#include "base/utf8.h"

bool query_text(const struct request *rq, const char *name, struct str *out, struct err *e)
{
    bool bad = false;

    *out = http_query_get(http_query(rq->x), name, rq->arena, &bad);
    if (bad || (str_present(*out) && (!str_is_utf8(*out) || str_has_control(*out))))
        return err_set(e, ERR_VALIDATION, "parameter \"%s\" is malformed or repeated", name);
    return true;
}

/* The number, or the largest one for more digits than it holds: every limit has a maximum. */
static bool parse_saturated(struct str text, int64_t *n)
{
    size_t digits = 0;

    while (digits < text.n && text.p[digits] >= '0' && text.p[digits] <= '9')
        digits++;
    if (str_to_int64(text, n))
        return true;
    *n = INT64_MAX;
    return text.n > 0 && digits == text.n;
}

bool query_int(const struct request *rq, const char *name, int64_t min, int64_t max, int64_t *value,
               struct err *e)
{
    struct str text;
    int64_t n;

    if (!query_text(rq, name, &text, e))
        return false;
    if (!str_present(text))
        return true;
    if (!parse_saturated(text, &n) || n < min)
        return err_set(e, ERR_VALIDATION, "parameter \"%s\" must be an integer of at least %lld",
                       name, (long long)min);
    *value = n > max ? max : n;
    return true;
}

bool field_text(const char *name, struct str raw, size_t min, size_t max, struct arena *a,
                struct str *out, struct err *e)
{
    *out = STR_NONE;
    if (!str_present(raw))
        return true;
    *out = json_string(raw, a);
    if (!str_present(*out))
        return err_set(e, ERR_INTERNAL, "out of memory");
    if (out->n < min)
        return err_set(e, ERR_VALIDATION, "field \"%s\" must not be empty", name);
    if (out->n > max)
        return err_set(e, ERR_VALIDATION, "field \"%s\" must be at most %zu bytes of UTF-8", name,
                       max);
    if (str_has_control(*out))
        return err_set(e, ERR_VALIDATION, "field \"%s\" must not hold control characters", name);
    return true;
}

bool field_int(const char *name, struct str raw, int64_t min, int64_t max, int64_t *value,
               struct err *e)
{
    int64_t n;

    if (!str_present(raw))
        return true;
    if (!parse_saturated(raw, &n) || n < min)
        return err_set(e, ERR_VALIDATION, "field \"%s\" must be an integer of at least %lld", name,
                       (long long)min);
    *value = n > max ? max : n;
    return true;
}

bool body_empty(struct request *rq, struct err *e)
{
    return json_fields(http_body(rq->x), true, NULL, 0, rq->arena, e);
}

/* Unicode's White_Space beyond ASCII. */
static bool is_wide_space(uint32_t ch)
{
    return ch == 0x85 || ch == 0xa0 || ch == 0x1680 || (ch >= 0x2000 && ch <= 0x200a) ||
           ch == 0x2028 || ch == 0x2029 || ch == 0x202f || ch == 0x205f || ch == 0x3000;
}

static uint32_t decode_at(const char *p, size_t n)
{
    static const unsigned char FIRST[] = {0, 0x7f, 0x1f, 0x0f, 0x07};
    uint32_t ch = (unsigned char)p[0] & FIRST[n];

    for (size_t i = 1; i < n; i++)
        ch = ch << 6 | ((unsigned char)p[i] & 0x3f);
    return ch;
}

bool is_agent_id(struct str id)
{
    bool only_dots = true;

    if (id.n == 0 || id.n > SHORT_TEXT_MAX || !str_is_utf8(id) || str_has_control(id))
        return false;
    for (size_t i = 0, n; i < id.n; i += n) {
        n = utf8_len(id.p + i, id.p + id.n);
        uint32_t ch = decode_at(id.p + i, n);
        if (ch <= ' ' || (ch < 0x80 && strchr("/?#%", (int)ch) != NULL) || is_wide_space(ch))
            return false;
        only_dots = only_dots && ch == '.';
    }
    return !only_dots;
}

bool uuid_prefix_range(struct str prefix, struct uuid *low, struct uuid *high)
{
    static const char FORM[] = "xxxxxxxx-xxxx-xxxx-xxxx-xxxxxxxxxxxx";
    char text[2][UUID_TEXT_LEN];

    if (prefix.n > UUID_TEXT_LEN)
        return false;
    for (size_t i = 0; i < UUID_TEXT_LEN; i++) {
        bool given = i < prefix.n;
        text[0][i] = given ? prefix.p[i] : FORM[i] == '-' ? '-' : '0';
        text[1][i] = given ? prefix.p[i] : FORM[i] == '-' ? '-' : 'f';
    }
    return uuid_parse(str_make(text[0], UUID_TEXT_LEN), low) &&
           uuid_parse(str_make(text[1], UUID_TEXT_LEN), high);
}

bool accepts_event_stream(struct str accept)
{
    static const struct str wanted = STR_INIT("text/event-stream");

    while (!str_empty(accept)) {
        const char *comma = memchr(accept.p, ',', accept.n);
        size_t end = comma == NULL ? accept.n : (size_t)(comma - accept.p);
        struct str entry = json_trim(str_slice(accept, 0, end));
        const char *semicolon = str_empty(entry) ? NULL : memchr(entry.p, ';', entry.n);
        struct str type = semicolon == NULL
                              ? entry
                              : json_trim(str_slice(entry, 0, (size_t)(semicolon - entry.p)));

        if (str_eq_nocase(type, wanted))
            return true;
        accept = str_slice(accept, comma == NULL ? end : end + 1, accept.n);
    }
    return false;
}
