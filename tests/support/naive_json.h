/* SPDX-License-Identifier: Apache-2.0
 * Canonical JSON a second time, as plainly as the protocol's text allows: recursive, quadratic,
 * every string decoded to code points first. It shares no code with the library, so that tests and
 * fuzzers can compare the two. */
#ifndef SUPPORT_NAIVE_JSON_H
#define SUPPORT_NAIVE_JSON_H

#include <stdlib.h>

#include "base/buf.h"

enum { NAIVE_MAX_DEPTH = 1000 };

struct naive {
    const unsigned char *p, *end;
    unsigned depth;
    bool invalid, duplicate;
};

static void naive_value(struct naive *n, struct buf *out);

static int naive_peek(const struct naive *n)
{
    return n->p < n->end ? *n->p : -1;
}

static void naive_space(struct naive *n)
{
    while (n->p < n->end && (*n->p == ' ' || *n->p == '\t' || *n->p == '\n' || *n->p == '\r'))
        n->p++;
}

static bool naive_eat(struct naive *n, int c)
{
    if (naive_peek(n) != c)
        return false;
    n->p++;
    return true;
}

/* One code point of the source's UTF-8. */
static uint32_t naive_utf8(struct naive *n)
{
    uint32_t first = *n->p++, v;
    int tails;

    if (first < 0x80)
        return first;
    if (first >= 0xf8 || first < 0xc0) {
        n->invalid = true;
        return 0;
    }
    tails = first >= 0xf0 ? 3 : first >= 0xe0 ? 2 : 1;
    v = first & (0x3fu >> tails);
    for (int i = 0; i < tails; i++) {
        if (n->p == n->end || *n->p / 64 != 2) {
            n->invalid = true;
            return 0;
        }
        v = v * 64 + *n->p++ % 64;
    }
    if (v < (tails == 1   ? 0x80u
             : tails == 2 ? 0x800u
                          : 0x10000u) ||
        v > 0x10ffff || v / 0x800 == 0xd800 / 0x800)
        n->invalid = true;
    return v;
}

static uint32_t naive_hex4(struct naive *n)
{
    static const char digits[] = "0123456789abcdefABCDEF";
    uint32_t v = 0;

    for (int i = 0; i < 4; i++) {
        const char *d = naive_peek(n) <= 0 ? NULL : strchr(digits, naive_peek(n));
        if (d == NULL) {
            n->invalid = true;
            return 0;
        }
        uint32_t digit = (uint32_t)(d - digits);
        v = v * 16 + (digit > 15 ? digit - 6 : digit);
        n->p++;
    }
    return v;
}

static uint32_t naive_escape(struct naive *n)
{
    static const char names[] = "\"\\/bfnrt", values[] = "\"\\/\b\f\n\r\t";
    int c = naive_peek(n);
    const char *at = c <= 0 ? NULL : strchr(names, c);

    if (c == -1 || (c != 'u' && at == NULL)) {
        n->invalid = true;
        return 0;
    }
    n->p++;
    if (c != 'u')
        return (unsigned char)values[at - names];
    uint32_t v = naive_hex4(n);
    if (n->invalid || v < 0xd800 || v > 0xdfff)
        return v;
    if (v < 0xdc00 && n->end - n->p >= 6 && n->p[0] == '\\' && n->p[1] == 'u') {
        struct naive ahead = *n;
        ahead.p += 2;
        uint32_t low = naive_hex4(&ahead);
        if (!ahead.invalid && low >= 0xdc00 && low <= 0xdfff) {
            *n = ahead;
            return 0x10000 + (v - 0xd800) * 0x400 + (low - 0xdc00);
        }
    }
    return 0xfffd;
}

static void naive_put(struct buf *out, uint32_t c)
{
    if (c >= 0x10000) {
        buf_add_byte(out, (char)(0xf0 + c / 0x40000));
        buf_add_byte(out, (char)(0x80 + c / 0x1000 % 64));
    } else if (c >= 0x800)
        buf_add_byte(out, (char)(0xe0 + c / 0x1000));
    if (c >= 0x800)
        buf_add_byte(out, (char)(0x80 + c / 64 % 64));
    else if (c >= 0x80)
        buf_add_byte(out, (char)(0xc0 + c / 64));
    buf_add_byte(out, (char)(c >= 0x80 ? 0x80 + c % 64 : c));
}

static void naive_put_escaped(struct buf *out, uint32_t c)
{
    static const char plain[] = "\"\\\n\r\t\b\f", names[] = "\"\\nrtbf";
    const char *at = c == 0 || c > 127 ? NULL : strchr(plain, (int)c);

    if (at != NULL)
        buf_printf(out, "\\%c", names[at - plain]);
    else if (c < 0x20 || c == '<' || c == '>' || c == '&' || c == 0x2028 || c == 0x2029)
        buf_printf(out, "\\u%04x", (unsigned)c);
    else
        naive_put(out, c);
}

/* At the quote. Either buffer may be NULL. */
static void naive_string(struct naive *n, struct buf *decoded, struct buf *canonical)
{
    n->p++;
    if (canonical != NULL)
        buf_add_byte(canonical, '"');
    while (!n->invalid && naive_peek(n) != '"') {
        if (naive_peek(n) < 0x20) { /* or the end */
            n->invalid = true;
            return;
        }
        uint32_t c = naive_eat(n, '\\') ? naive_escape(n) : naive_utf8(n);
        if (decoded != NULL)
            naive_put(decoded, c);
        if (canonical != NULL)
            naive_put_escaped(canonical, c);
    }
    if (n->invalid)
        return;
    n->p++;
    if (canonical != NULL)
        buf_add_byte(canonical, '"');
}

static void naive_digits(struct naive *n)
{
    const unsigned char *from = n->p;

    while (n->p < n->end && *n->p >= '0' && *n->p <= '9')
        n->p++;
    if (n->p == from)
        n->invalid = true;
}

static void naive_number(struct naive *n, struct buf *out)
{
    const unsigned char *from = n->p;

    naive_eat(n, '-');
    if (!naive_eat(n, '0'))
        naive_digits(n);
    if (naive_eat(n, '.'))
        naive_digits(n);
    if (naive_eat(n, 'e') || naive_eat(n, 'E')) {
        if (!naive_eat(n, '+'))
            naive_eat(n, '-');
        naive_digits(n);
    }
    buf_add(out, str_make(from, (size_t)(n->p - from)));
}

static void naive_array(struct naive *n, struct buf *out)
{
    bool first = true;

    buf_add_byte(out, '[');
    for (;; first = false) {
        naive_space(n);
        if (first && naive_eat(n, ']'))
            break;
        naive_value(n, out);
        naive_space(n);
        if (n->invalid || naive_eat(n, ']'))
            break;
        if (!naive_eat(n, ','))
            n->invalid = true;
        buf_add_byte(out, ',');
    }
    buf_add_byte(out, ']');
}

struct naive_member {
    struct buf key, text; /* decoded; "key":value in canonical form */
};

static int naive_order(const struct buf *a, const struct buf *b)
{
    for (size_t i = 0; i < a->n && i < b->n; i++)
        if (a->p[i] != b->p[i])
            return (unsigned char)a->p[i] < (unsigned char)b->p[i] ? -1 : 1;
    return a->n < b->n ? -1 : a->n > b->n;
}

static void naive_member(struct naive *n, struct naive_member *m)
{
    if (naive_peek(n) != '"') {
        n->invalid = true;
        return;
    }
    naive_string(n, &m->key, &m->text);
    naive_space(n);
    if (!naive_eat(n, ':'))
        n->invalid = true;
    buf_add_byte(&m->text, ':');
    if (!n->invalid)
        naive_value(n, &m->text);
    naive_space(n);
}

static void naive_object(struct naive *n, struct buf *out)
{
    struct naive_member *members = NULL;
    size_t count = 0;

    for (;;) {
        naive_space(n);
        if (count == 0 && naive_eat(n, '}'))
            break;
        members = realloc(members, (count + 1) * sizeof *members);
        memset(&members[count], 0, sizeof *members);
        naive_member(n, &members[count]);
        size_t at = count++;
        for (size_t i = 0; i < at; i++)
            n->duplicate = n->duplicate || naive_order(&members[i].key, &members[at].key) == 0;
        struct naive_member last = members[at];
        for (; at > 0 && naive_order(&members[at - 1].key, &last.key) > 0; at--)
            members[at] = members[at - 1];
        members[at] = last;
        if (n->invalid || naive_eat(n, '}'))
            break;
        if (!naive_eat(n, ','))
            n->invalid = true;
    }
    buf_add_byte(out, '{');
    for (size_t i = 0; i < count; i++) {
        if (i > 0)
            buf_add_byte(out, ',');
        buf_add(out, buf_str(&members[i].text));
        buf_free(&members[i].text);
        buf_free(&members[i].key);
    }
    buf_add_byte(out, '}');
    free(members);
}

static void naive_value(struct naive *n, struct buf *out)
{
    static const struct str literals[] = {STR_INIT("null"), STR_INIT("true"), STR_INIT("false")};

    if (n->invalid)
        return;
    naive_space(n);
    int c = naive_peek(n);
    if (c == '{' || c == '[') {
        n->p++;
        if (++n->depth > NAIVE_MAX_DEPTH)
            n->invalid = true;
        else if (c == '{')
            naive_object(n, out);
        else
            naive_array(n, out);
        n->depth--;
        return;
    }
    if (c == '"') {
        naive_string(n, NULL, out);
        return;
    }
    for (size_t i = 0; i < COUNT(literals); i++) {
        if ((size_t)(n->end - n->p) >= literals[i].n &&
            memcmp(n->p, literals[i].p, literals[i].n) == 0) {
            n->p += literals[i].n;
            buf_add(out, literals[i]);
            return;
        }
    }
    naive_number(n, out);
}

enum naive_verdict { NAIVE_OK, NAIVE_INVALID, NAIVE_DUPLICATE };

static inline enum naive_verdict naive_canonical(struct str text, struct buf *out)
{
    struct naive n = {.p = (const unsigned char *)text.p};

    n.end = text.n == 0 ? n.p : n.p + text.n;
    naive_value(&n, out);
    naive_space(&n);
    if (n.invalid || n.p != n.end)
        return NAIVE_INVALID;
    return n.duplicate ? NAIVE_DUPLICATE : NAIVE_OK;
}

#endif
