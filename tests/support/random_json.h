/* SPDX-License-Identifier: Apache-2.0
 * Random JSON texts, for properties that must hold of all of them: odd spacing, escapes, twins
 * among keys, deep nesting. */
#ifndef SUPPORT_RANDOM_JSON_H
#define SUPPORT_RANDOM_JSON_H

#include "base/buf.h"
#include "base/rand.h"

static inline struct str random_pick(struct prng *r, const struct str *from, size_t n)
{
    return from[prng_below(r, n)];
}

static void random_space(struct prng *r, struct buf *out)
{
    static const struct str spaces[] = {STR_INIT(""),     STR_INIT(""),   STR_INIT(""),
                                        STR_INIT(" "),    STR_INIT("\n"), STR_INIT("\t"),
                                        STR_INIT(" \r\n")};

    buf_add(out, random_pick(r, spaces, COUNT(spaces)));
}

static void random_string(struct prng *r, struct buf *out, size_t max_pieces)
{
    static const struct str pieces[] = {
        STR_INIT("a"),
        STR_INIT("b"),
        STR_INIT("plain text"),
        STR_INIT("\u00e9"),
        STR_INIT("\u65e5"),
        STR_INIT("\\n"),
        STR_INIT("\\u0041"),
        STR_INIT("\U0001f600"),
        STR_INIT("<>&"),
        STR_INIT("\u2028"),
        STR_INIT("\\u2029"),
        STR_INIT("\\ud83d"),
        STR_INIT("\\ud83d\\ude00"),
        STR_INIT("\\\\"),
        STR_INIT("\\\""),
        STR_INIT("\\/"),
        STR_INIT("\\u0000"),
        STR_INIT("\\udc00"),
        STR_INIT("\x7f"),
        STR_INIT("\u2030"),
        STR_INIT("\ufb00"),
        STR_INIT("\\u00E9"),
        STR_INIT("\\u001F"),
        STR_INIT("{[:,]}"),
        STR_INIT("e\u0301"),
        STR_INIT("\\b\\f"),
        STR_INIT("\\r\\t"),
        STR_INIT("\\u003c"),
        STR_INIT("\ue000"),
        STR_INIT("0"),
    };

    buf_add_byte(out, '"');
    for (size_t n = prng_below(r, max_pieces + 1); n > 0; n--)
        buf_add(out, random_pick(r, pieces, COUNT(pieces)));
    buf_add_byte(out, '"');
}

static void random_value(struct prng *r, struct buf *out, unsigned depth, bool twins)
{
    static const struct str scalars[] = {
        STR_INIT("null"),
        STR_INIT("true"),
        STR_INIT("false"),
        STR_INIT("0"),
        STR_INIT("-0"),
        STR_INIT("1.0"),
        STR_INIT("1e2"),
        STR_INIT("-1.5E-10"),
        STR_INIT("1E+2"),
        STR_INIT("42"),
        STR_INIT("1234567890123456789012345678901234567890"),
        STR_INIT("1e9999"),
    };
    uint64_t kind = prng_below(r, depth == 0 ? 4 : 10);

    random_space(r, out);
    if (kind < 2)
        buf_add(out, random_pick(r, scalars, COUNT(scalars)));
    else if (kind < 4)
        random_string(r, out, 6);
    else {
        bool object = kind < 8;
        uint64_t n = prng_below(r, prng_below(r, 8) == 0 ? 40 : 6);
        buf_add_byte(out, object ? '{' : '[');
        for (uint64_t i = 0; i < n; i++) {
            if (i > 0)
                buf_add_byte(out, ',');
            random_space(r, out);
            if (object) {
                random_string(r, out, 3);
                if (!twins) { /* a number before the closing quote makes the key one of its own */
                    out->n--;
                    buf_printf(out, "%u\"", (unsigned)i);
                }
                random_space(r, out);
                buf_add_byte(out, ':');
            }
            random_value(r, out, depth - 1, twins);
        }
        random_space(r, out);
        buf_add_byte(out, object ? '}' : ']');
    }
    random_space(r, out);
}

/* Changes, drops or doubles a few bytes, which usually makes the text invalid. */
static inline void random_damage(struct prng *r, struct buf *text)
{
    static const char likely[] = "{}[]\",:\\u0e-.tfn \x01\x80\xe2\xff";

    for (uint64_t n = 1 + prng_below(r, 3); n > 0 && text->n > 0; n--) {
        size_t at = prng_below(r, text->n);
        if (prng_below(r, 3) == 0) {
            memmove(text->p + at, text->p + at + 1, text->n - at - 1);
            text->n--;
        } else
            text->p[at] = likely[prng_below(r, sizeof likely - 1)];
    }
}

#endif
