/* SPDX-License-Identifier: Apache-2.0
 * The grammar of RFC 8259 as a tokenizer that is pulled: base/json*.c and domain/canonical.c walk a
 * text with it. It refuses everything that is not one valid value, allocates nothing and does not
 * recurse: of each open container it remembers one bit. Inline, because it runs over the body of
 * every request. */
#ifndef BASE_JSON_SCAN_H
#define BASE_JSON_SCAN_H

#include "base/hex.h"
#include "base/json.h"
#include "base/utf8.h"

enum json_token {
    JSON_TOKEN_ERROR, /* scan->error and error_at are set */
    JSON_TOKEN_END,
    JSON_TOKEN_OPEN_OBJECT,
    JSON_TOKEN_CLOSE_OBJECT,
    JSON_TOKEN_OPEN_ARRAY,
    JSON_TOKEN_CLOSE_ARRAY,
    JSON_TOKEN_KEY, /* with its colon */
    JSON_TOKEN_STRING,
    JSON_TOKEN_SCALAR, /* number, true, false, null */
};

enum json_expect {
    JSON_EXPECT_VALUE,
    JSON_EXPECT_VALUE_OR_CLOSE,
    JSON_EXPECT_KEY_OR_CLOSE,
    JSON_EXPECT_COMMA_OR_CLOSE,
    JSON_EXPECT_END,
};

struct json_scan {
    const char *p, *end;
    const char *token, *token_end; /* KEY and STRING: between the quotes; SCALAR: the text */
    bool escaped;                  /* the last KEY or STRING holds a backslash */
    enum json_expect expect;
    unsigned depth;
    const char *error, *error_at;
    uint64_t is_object[(JSON_MAX_DEPTH + 63) /
                       64]; /* bit i: the container at depth i; set as far as they are used */
};

static inline void json_scan_start(struct json_scan *s, struct str text)
{
    s->p = text.p;
    s->end = text.n == 0 ? text.p : text.p + text.n;
    s->expect = JSON_EXPECT_VALUE;
    s->depth = 0;
    s->escaped = false;
    s->error = NULL;
}

static inline bool json_is_space(char c)
{
    return c == ' ' || c == '\n' || c == '\r' || c == '\t';
}

static inline const char *json_skip_space(const char *p, const char *end)
{
    while (p != end && json_is_space(*p))
        p++;
    return p;
}

/* ---- eight bytes at a time ---- */

#define JSON_ONES UINT64_C(0x0101010101010101)
#define JSON_HIGHS UINT64_C(0x8080808080808080)

/* High bits mark the bytes of w that are zero. Bytes above a marked one may be marked wrongly (the
 * subtraction borrows), the lowest mark never is. */
static inline uint64_t json_zero_bytes(uint64_t w)
{
    return (w - JSON_ONES) & ~w & JSON_HIGHS;
}

static inline uint64_t json_control_bytes(uint64_t w) /* below 0x20, marked in the same way */
{
    return (w - JSON_ONES * 0x20) & ~w & JSON_HIGHS;
}

static inline uint64_t json_equal_bytes(uint64_t w, unsigned char c)
{
    return json_zero_bytes(w ^ (JSON_ONES * c));
}

/* Index of the lowest mark in memory order; 8 where that cannot be told and the caller must look
 * byte by byte. */
static inline size_t json_first_mark(uint64_t marks)
{
#if __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
    return (size_t)__builtin_ctzll(marks) / 8;
#else
    (void)marks;
    return 8;
#endif
}

static inline bool json_is_plain(char c) /* printable ASCII without quote and backslash */
{
    return (unsigned char)(c - 0x20) < 0x60 && c != '"' && c != '\\';
}

static inline const char *json_skip_plain(const char *p, const char *end)
{
    uint64_t w;

    while (end - p >= (ptrdiff_t)sizeof w) {
        memcpy(&w, p, sizeof w);
        uint64_t marks = (w & JSON_HIGHS) | json_control_bytes(w) | json_equal_bytes(w, '"') |
                         json_equal_bytes(w, '\\');
        if (marks != 0) {
            size_t i = json_first_mark(marks);
            if (i < sizeof w)
                return p + i;
            break;
        }
        p += sizeof w;
    }
    while (p != end && json_is_plain(*p))
        p++;
    return p;
}

/* ---- tokens ---- */

static inline enum json_token json_scan_fail(struct json_scan *s, const char *at, const char *why)
{
    s->error = why;
    s->error_at = at;
    return JSON_TOKEN_ERROR;
}

/* p at a backslash. Returns what follows the escape, or NULL. */
static inline const char *json_scan_escape(struct json_scan *s, const char *p)
{
    if (s->end - p >= 2 && p[1] == 'u') {
        uint8_t unit[2];
        if (s->end - p >= 6 && hex_decode(p + 2, 2, unit))
            return p + 6;
    } else if (s->end - p >= 2 && p[1] != '\0' && strchr("\"\\/bfnrt", p[1]) != NULL)
        return p + 2;
    json_scan_fail(s, p, "invalid escape in a string");
    return NULL;
}

/* p behind the opening quote. Sets token, token_end and escaped, and returns what follows the
 * closing quote, or NULL. */
static inline const char *json_scan_string(struct json_scan *s, const char *p)
{
    s->token = p;
    s->escaped = false;
    for (;;) {
        p = json_skip_plain(p, s->end);
        if (p == s->end) {
            json_scan_fail(s, p, "unexpected end of text in a string");
            return NULL;
        }
        if (*p == '"') {
            s->token_end = p;
            return p + 1;
        }
        if (*p == '\\') {
            s->escaped = true;
            p = json_scan_escape(s, p);
            if (p == NULL)
                return NULL;
            continue;
        }
        size_t n = utf8_len(p, s->end);
        if (n == 0 || (unsigned char)*p < 0x20) {
            json_scan_fail(s, p,
                           n == 0 ? "invalid UTF-8 in a string" : "control character in a string");
            return NULL;
        }
        p += n;
    }
}

static inline bool json_is_digit(char c)
{
    return (unsigned char)(c - '0') < 10;
}

static inline const char *json_skip_digits(const char *p, const char *end)
{
    while (p != end && json_is_digit(*p))
        p++;
    return p;
}

/* p at a minus or a digit. Returns what follows the number, or NULL. */
static inline const char *json_scan_number(struct json_scan *s, const char *p)
{
    const char *end = s->end, *digits = p + (*p == '-');

    p = digits != end && *digits == '0' ? digits + 1 : json_skip_digits(digits, end);
    bool ok = p != digits;
    if (ok && p != end && *p == '.') {
        digits = p + 1;
        p = json_skip_digits(digits, end);
        ok = p != digits;
    }
    if (ok && p != end && (*p | 0x20) == 'e') {
        digits = p + 1;
        if (digits != end && (*digits == '+' || *digits == '-'))
            digits++;
        p = json_skip_digits(digits, end);
        ok = p != digits;
    }
    if (ok)
        return p;
    json_scan_fail(s, p, p == end ? "unexpected end of text in a number" : "invalid number");
    return NULL;
}

static inline bool json_in_object(const struct json_scan *s) /* depth > 0 */
{
    return (s->is_object[(s->depth - 1) / 64] >> ((s->depth - 1) % 64) & 1) != 0;
}

static inline enum json_token json_scan_done(struct json_scan *s, const char *p,
                                             enum json_token token)
{
    s->p = p;
    s->expect = s->depth == 0 ? JSON_EXPECT_END : JSON_EXPECT_COMMA_OR_CLOSE;
    return token;
}

static inline enum json_token json_scan_open(struct json_scan *s, const char *p)
{
    bool object = *p == '{';

    if (s->depth == JSON_MAX_DEPTH)
        return json_scan_fail(s, p, "arrays and objects are nested too deep");
    uint64_t bit = UINT64_C(1) << (s->depth % 64), *word = &s->is_object[s->depth / 64];
    if (s->depth % 64 == 0)
        *word = 0;
    *word = object ? *word | bit : *word & ~bit;
    s->depth++;
    s->p = p + 1;
    s->expect = object ? JSON_EXPECT_KEY_OR_CLOSE : JSON_EXPECT_VALUE_OR_CLOSE;
    return object ? JSON_TOKEN_OPEN_OBJECT : JSON_TOKEN_OPEN_ARRAY;
}

static inline enum json_token json_scan_close(struct json_scan *s, const char *p)
{
    s->depth--;
    return json_scan_done(s, p + 1, *p == '}' ? JSON_TOKEN_CLOSE_OBJECT : JSON_TOKEN_CLOSE_ARRAY);
}

static inline enum json_token json_scan_literal(struct json_scan *s, const char *p,
                                                struct str literal)
{
    if ((size_t)(s->end - p) < literal.n || memcmp(p, literal.p, literal.n) != 0)
        return json_scan_fail(s, p, "expected a value");
    s->token = p;
    s->token_end = p + literal.n;
    return json_scan_done(s, p + literal.n, JSON_TOKEN_SCALAR);
}

static inline enum json_token json_scan_value(struct json_scan *s, const char *p) /* p != end */
{
    switch (*p) {
    case '"':
        p = json_scan_string(s, p + 1);
        return p == NULL ? JSON_TOKEN_ERROR : json_scan_done(s, p, JSON_TOKEN_STRING);
    case '{':
    case '[':
        return json_scan_open(s, p);
    case 't':
        return json_scan_literal(s, p, STR("true"));
    case 'f':
        return json_scan_literal(s, p, STR("false"));
    case 'n':
        return json_scan_literal(s, p, STR("null"));
    default:
        break;
    }
    if (*p != '-' && !json_is_digit(*p))
        return json_scan_fail(s, p, "expected a value");
    s->token = p;
    s->token_end = p = json_scan_number(s, p);
    return p == NULL ? JSON_TOKEN_ERROR : json_scan_done(s, p, JSON_TOKEN_SCALAR);
}

static inline enum json_token json_scan_key(struct json_scan *s, const char *p) /* p != end */
{
    if (*p != '"')
        return json_scan_fail(s, p, "expected a string as key");
    p = json_scan_string(s, p + 1);
    if (p == NULL)
        return JSON_TOKEN_ERROR;
    if (p != s->end && *p != ':')
        p = json_skip_space(p, s->end);
    if (p == s->end || *p != ':')
        return json_scan_fail(s, p,
                              p == s->end ? "unexpected end of text" : "expected ':' after a key");
    s->p = p + 1;
    s->expect = JSON_EXPECT_VALUE;
    return JSON_TOKEN_KEY;
}

static inline enum json_token json_scan_comma(struct json_scan *s, const char *p) /* p != end */
{
    bool object = json_in_object(s);

    if (*p == (object ? '}' : ']'))
        return json_scan_close(s, p);
    if (*p != ',')
        return json_scan_fail(s, p, object ? "expected ',' or '}'" : "expected ',' or ']'");
    p = json_skip_space(p + 1, s->end);
    if (p == s->end)
        return json_scan_fail(s, p, "unexpected end of text");
    return object ? json_scan_key(s, p) : json_scan_value(s, p);
}

static inline enum json_token json_scan_next(struct json_scan *s)
{
    const char *p = json_skip_space(s->p, s->end);

    if (p == s->end) {
        s->p = p;
        return s->expect == JSON_EXPECT_END ? JSON_TOKEN_END
                                            : json_scan_fail(s, p, "unexpected end of text");
    }
    switch (s->expect) {
    case JSON_EXPECT_COMMA_OR_CLOSE:
        return json_scan_comma(s, p);
    case JSON_EXPECT_VALUE:
        return json_scan_value(s, p);
    case JSON_EXPECT_KEY_OR_CLOSE:
        return *p == '}' ? json_scan_close(s, p) : json_scan_key(s, p);
    case JSON_EXPECT_VALUE_OR_CLOSE:
        return *p == ']' ? json_scan_close(s, p) : json_scan_value(s, p);
    case JSON_EXPECT_END:
        break;
    }
    return json_scan_fail(s, p, "text after the value");
}

/* ERR_VALIDATION with the place of scan's error in `text`. Returns false. */
bool json_scan_error(const struct json_scan *s, struct str text, struct err *e);

/* ---- texts that the scanner has accepted. Given others, these still end and stay inside ---- */

static inline uint32_t json_unit(const char *p) /* the four digits of a \u escape */
{
    return (uint32_t)hex_digit(p[0]) << 12 | (uint32_t)hex_digit(p[1]) << 8 |
           (uint32_t)hex_digit(p[2]) << 4 | (uint32_t)hex_digit(p[3]);
}

/* *p at the backslash of a valid escape: moves *p behind it and returns the character. A surrogate
 * pair is one escape; a surrogate without its other half gives U+FFFD. */
static inline uint32_t json_unescape(const char **p, const char *end)
{
    const char *at = *p;

    if (end - at < 2 || (at[1] == 'u' && end - at < 6)) { /* not a valid escape */
        *p = end;
        return '?';
    }
    *p = at + 2;
    switch (at[1]) {
    case 'b':
        return '\b';
    case 'f':
        return '\f';
    case 'n':
        return '\n';
    case 'r':
        return '\r';
    case 't':
        return '\t';
    case 'u':
        break;
    default: /* quote, backslash, slash */
        return (unsigned char)at[1];
    }
    *p = at + 6;
    uint32_t c = json_unit(at + 2);
    if (c < 0xd800 || (c > 0xdfff && c <= 0xffff))
        return c;
    if (c < 0xdc00 && end - *p >= 6 && at[6] == '\\' && at[7] == 'u') {
        uint32_t low = json_unit(at + 8);
        if (low >= 0xdc00 && low <= 0xdfff) {
            *p = at + 12;
            return 0x10000 + ((c - 0xd800) << 10 | (low - 0xdc00));
        }
    }
    return 0xfffd;
}

/* The text between the quotes of a valid string, decoded. Never longer than its source. `out` has n
 * bytes. */
static inline size_t json_decode(const char *p, size_t n, char *out)
{
    const char *end = p + n;
    char *to = out;

    while (p != end) {
        if (*p != '\\') {
            *to++ = *p++;
            continue;
        }
        char utf8[4];
        size_t len = utf8_encode(json_unescape(&p, end), utf8);
        memcpy(to, utf8, len);
        to += len;
    }
    return (size_t)(to - out);
}

#endif
