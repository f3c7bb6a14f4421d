/* SPDX-License-Identifier: Apache-2.0
 * Cleaning, measuring and cutting text for terminals. */
#include "base/text.h"

#include "base/utf8.h"

#define REPLACEMENT "\xef\xbf\xbd"
#define ELLIPSIS "\xe2\x80\xa6"

struct range {
    uint32_t first, last;
};

/* Reorder, hide or break lines without a visible mark. The joiners (U+200C, U+200D) and the common
 * variation selectors stay: scripts and emoji need them. */
static const struct range UNSAFE[] = {
    {0x0000, 0x001f}, {0x007f, 0x009f},   {0x00ad, 0x00ad}, {0x034f, 0x034f}, {0x061c, 0x061c},
    {0x115f, 0x1160}, {0x17b4, 0x17b5},   {0x180b, 0x180f}, {0x200b, 0x200b}, {0x200e, 0x200f},
    {0x2028, 0x202e}, {0x2060, 0x206f},   {0x3164, 0x3164}, {0xfeff, 0xfeff}, {0xffa0, 0xffa0},
    {0xfff9, 0xfffb}, {0xe0000, 0xe0fff},
};

static const struct range ZERO_WIDTH[] = {
    {0x0300, 0x036f}, {0x0483, 0x0489}, {0x0591, 0x05bd}, {0x0610, 0x061a}, {0x064b, 0x065f},
    {0x0900, 0x0902}, {0x0e34, 0x0e3a}, {0x0e47, 0x0e4e}, {0x1ab0, 0x1aff}, {0x1dc0, 0x1dff},
    {0x200c, 0x200d}, {0x20d0, 0x20ff}, {0xfe00, 0xfe0f}, {0xfe20, 0xfe2f},
};

/* East Asian Width W and F, as Unicode 14 has it; blocks of which most are, as a whole. */
static const struct range WIDE[] = {
    {0x1100, 0x115f},   {0x231a, 0x231b},   {0x23e9, 0x23ec},   {0x23f0, 0x23f0},
    {0x23f3, 0x23f3},   {0x25fd, 0x25fe},   {0x2614, 0x2615},   {0x2648, 0x2653},
    {0x267f, 0x267f},   {0x2693, 0x2693},   {0x26a1, 0x26a1},   {0x26aa, 0x26ab},
    {0x26bd, 0x26be},   {0x26c4, 0x26c5},   {0x26ce, 0x26ce},   {0x26d4, 0x26d4},
    {0x26ea, 0x26ea},   {0x26f2, 0x26f3},   {0x26f5, 0x26f5},   {0x26fa, 0x26fa},
    {0x26fd, 0x26fd},   {0x2705, 0x2705},   {0x270a, 0x270b},   {0x2728, 0x2728},
    {0x274c, 0x274c},   {0x274e, 0x274e},   {0x2753, 0x2755},   {0x2757, 0x2757},
    {0x2795, 0x2797},   {0x27b0, 0x27b0},   {0x27bf, 0x27bf},   {0x2b1b, 0x2b1c},
    {0x2b50, 0x2b50},   {0x2b55, 0x2b55},   {0x2e80, 0x303e},   {0x3041, 0xa4cf},
    {0xa960, 0xa97c},   {0xac00, 0xd7a3},   {0xf900, 0xfaff},   {0xfe30, 0xfe6f},
    {0xff00, 0xff60},   {0xffe0, 0xffe6},   {0x1f004, 0x1f004}, {0x1f0cf, 0x1f0cf},
    {0x1f18e, 0x1f18e}, {0x1f191, 0x1f19a}, {0x1f200, 0x1f265}, {0x1f300, 0x1f64f},
    {0x1f680, 0x1f6ff}, {0x1f7e0, 0x1f7eb}, {0x1f900, 0x1f9ff}, {0x1fa70, 0x1faff},
    {0x20000, 0x3fffd},
};

static bool in_ranges(const struct range *r, size_t n, uint32_t c)
{
    for (size_t i = 0; i < n; i++) {
        if (c >= r[i].first && c <= r[i].last)
            return true;
    }
    return false;
}

/* Bytes of the character that starts at p, and its number. 0: the byte starts none. */
static size_t decode(const char *p, size_t n, uint32_t *c)
{
    static const unsigned char first_bits[] = {0, 0x7f, 0x1f, 0x0f, 0x07};
    size_t len = utf8_len(p, p + n);

    *c = (unsigned char)p[0] & first_bits[len];
    for (size_t i = 1; i < len; i++)
        *c = *c << 6 | ((unsigned char)p[i] & 0x3f);
    return len;
}

static void add_escape(struct buf *out, uint32_t c)
{
    switch (c) {
    case '\n':
        buf_add(out, STR("\\n"));
        return;
    case '\r':
        buf_add(out, STR("\\r"));
        return;
    case '\t':
        buf_add(out, STR("\\t"));
        return;
    default:
        if (c < 0x100)
            buf_printf(out, "\\x%02x", c);
        else
            buf_printf(out, "\\u%04x", c);
    }
}

void text_clean(struct buf *out, struct str s, enum text_lines lines)
{
    for (size_t i = 0; i < s.n;) {
        uint32_t c = 0;
        size_t n = decode(s.p + i, s.n - i, &c);

        if (n == 0) {
            buf_add(out, STR(REPLACEMENT));
            i++;
            continue;
        }
        if (lines == TEXT_LINES && (c == '\n' || c == '\t'))
            buf_add_byte(out, s.p[i]);
        else if (in_ranges(UNSAFE, COUNT(UNSAFE), c))
            add_escape(out, c);
        else
            buf_add(out, str_make(s.p + i, n));
        i += n;
    }
}

static size_t char_columns(uint32_t c)
{
    if (c < 0x300)
        return 1;
    if (in_ranges(ZERO_WIDTH, COUNT(ZERO_WIDTH), c))
        return 0;
    return in_ranges(WIDE, COUNT(WIDE), c) ? 2 : 1;
}

/* Bytes of the longest beginning that takes at most `columns`; *used is what it takes. */
static size_t fitting(struct str s, size_t columns, size_t *used)
{
    size_t at = 0;

    *used = 0;
    while (at < s.n) {
        uint32_t c = 0;
        size_t n = decode(s.p + at, s.n - at, &c);
        size_t width = n == 0 ? 1 : char_columns(c);

        if (width > columns - *used)
            break;
        *used += width;
        at += n == 0 ? 1 : n;
    }
    return at;
}

size_t text_columns(struct str clean)
{
    size_t used = 0;

    fitting(clean, SIZE_MAX, &used);
    return used;
}

void text_fit(struct buf *out, struct str clean, size_t columns)
{
    size_t used = 0;
    size_t n = fitting(clean, columns, &used);

    if (n == clean.n) {
        buf_add(out, clean);
        return;
    }
    n = fitting(clean, columns - 1, &used);
    buf_add(out, str_make(clean.p, n));
    buf_add(out, STR(ELLIPSIS));
}

/* Bytes of the next line: what fits, cut behind a blank of its second half when there is one. */
static size_t line_end(struct str s, size_t columns)
{
    size_t used = 0, n = fitting(s, columns, &used);

    if (n == s.n)
        return n;
    for (size_t i = n; i > n / 2; i--) {
        if (s.p[i - 1] == ' ')
            return i;
    }
    if (n > 0)
        return n;
    size_t one = utf8_len(s.p, s.p + s.n); /* wider than the line; it must go somewhere */
    return one > 0 ? one : 1;
}

void text_wrap(struct buf *out, struct str clean, size_t columns, struct str prefix)
{
    struct str left = clean;

    while (columns > 0 && left.n > 0) {
        size_t n = line_end(left, columns);

        if (n == left.n)
            break;
        buf_add(out, str_make(left.p, n));
        buf_add_byte(out, '\n');
        buf_add(out, prefix);
        left = str_make(left.p + n, left.n - n);
    }
    buf_add(out, left);
}
