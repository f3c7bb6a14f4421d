/* SPDX-License-Identifier: Apache-2.0 */
#include "base/yaml_json.h"

#include "base/json.h"

/* ---- scalars ---- */

static bool is_word(struct str s, const char *const *words, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        if (str_eq(s, str_of(words[i])))
            return true;
    }
    return false;
}

static size_t count_digits(struct str s, size_t from)
{
    size_t n = 0;

    while (from + n < s.n && s.p[from + n] >= '0' && s.p[from + n] <= '9')
        n++;
    return n;
}

/* The parts of a decimal number as YAML takes it. */
struct decimal {
    bool negative, point;
    struct str whole, fraction, exponent; /* exponent: with its sign; absent: none */
};

static bool read_decimal(struct str s, struct decimal *out)
{
    size_t at = s.n > 0 && (s.p[0] == '-' || s.p[0] == '+'), n;

    *out = (struct decimal){.negative = s.n > 0 && s.p[0] == '-'};
    n = count_digits(s, at);
    out->whole = str_slice(s, at, at + n);
    at += n;
    out->point = at < s.n && s.p[at] == '.';
    if (out->point) {
        n = count_digits(s, ++at);
        out->fraction = str_slice(s, at, at + n);
        at += n;
    }
    if (out->whole.n + out->fraction.n == 0)
        return false;
    if (at < s.n && (s.p[at] == 'e' || s.p[at] == 'E')) {
        size_t from = ++at;
        at += at < s.n && (s.p[at] == '-' || s.p[at] == '+');
        n = count_digits(s, at);
        out->exponent = str_slice(s, from, at + n);
        at += n;
        if (n == 0)
            return false;
    }
    return at == s.n;
}

/* JSON wants a digit on both sides of the point, and no zero or plus in front. */
static void add_decimal(struct buf *out, const struct decimal *d)
{
    struct str whole = d->whole;

    while (whole.n > 1 && whole.p[0] == '0')
        whole = str_slice(whole, 1, whole.n);
    if (d->negative)
        buf_add_byte(out, '-');
    buf_add(out, whole.n == 0 ? STR("0") : whole);
    if (d->point) {
        buf_add_byte(out, '.');
        buf_add(out, d->fraction.n == 0 ? STR("0") : d->fraction);
    }
    if (str_present(d->exponent)) {
        buf_add_byte(out, 'e');
        buf_add(out, d->exponent);
    }
}

/* 0x1f and 0o17. False: it is neither, or over 64 bits. */
static bool read_other_base(struct str s, uint64_t *out)
{
    unsigned base = str_starts(s, STR("0x")) ? 16 : str_starts(s, STR("0o")) ? 8 : 0;

    if (base == 0 || s.n == 2)
        return false;
    *out = 0;
    for (size_t i = 2; i < s.n; i++) {
        char c = s.p[i];
        unsigned digit = c >= '0' && c <= '9'   ? (unsigned)(c - '0')
                         : c >= 'a' && c <= 'f' ? (unsigned)(c - 'a') + 10
                         : c >= 'A' && c <= 'F' ? (unsigned)(c - 'A') + 10
                                                : 16;
        if (digit >= base || __builtin_mul_overflow(*out, base, out) ||
            __builtin_add_overflow(*out, digit, out))
            return false;
    }
    return true;
}

static bool is_not_finite(struct str s)
{
    static const char *const words[] = {".inf", ".Inf", ".INF", ".nan", ".NaN", ".NAN"};
    bool sign = s.n > 0 && (s.p[0] == '-' || s.p[0] == '+');

    return is_word(sign ? str_slice(s, 1, s.n) : s, words, COUNT(words));
}

static bool add_plain(struct yaml *y, struct str who, struct str text, struct buf *out)
{
    static const char *const yes[] = {"true", "True", "TRUE"};
    static const char *const no[] = {"false", "False", "FALSE"};
    struct decimal decimal;
    uint64_t number;

    if (is_not_finite(text))
        return yaml_fail(y, yaml_place(y), "%.*s: %.*s is no number that JSON has", STR_ARG(who),
                         STR_ARG(text));
    if (is_word(text, yes, COUNT(yes)))
        buf_add(out, STR("true"));
    else if (is_word(text, no, COUNT(no)))
        buf_add(out, STR("false"));
    else if (read_decimal(text, &decimal))
        add_decimal(out, &decimal);
    else if (read_other_base(text, &number))
        buf_printf(out, "%llu", (unsigned long long)number);
    else
        json_add_string(out, text);
    return true;
}

static bool add_scalar(struct yaml *y, struct str who, struct buf *out)
{
    struct str text = yaml_text(y);

    if (!str_present(text)) {
        buf_add(out, STR("null"));
        return true;
    }
    if (!str_is_utf8(text))
        return yaml_fail(y, yaml_place(y), "%.*s: this text is not valid UTF-8", STR_ARG(who));
    if (yaml_is_plain(y))
        return add_plain(y, who, text, out);
    json_add_string(out, text);
    return true;
}

/* ---- mappings and lists ---- */

enum turn { TURN_ITEM, TURN_KEY, TURN_VALUE };

struct nesting {
    size_t depth;
    bool comma;
    enum turn turn[JSON_MAX_DEPTH]; /* what comes next in each open container */
};

static bool add_key(struct yaml *y, struct str who, struct buf *out)
{
    struct str text = yaml_event(y) == YAML_SCALAR ? yaml_source_text(y) : STR_NONE;

    if (!str_present(text) || !str_is_utf8(text))
        return yaml_fail(y, yaml_place(y), "%.*s: a key must be text", STR_ARG(who));
    json_add_string(out, text);
    buf_add_byte(out, ':');
    return true;
}

static bool open_container(struct yaml *y, struct str who, struct nesting *in, struct buf *out)
{
    bool mapping = yaml_event(y) == YAML_MAPPING;

    if (in->depth == JSON_MAX_DEPTH)
        return yaml_fail(y, yaml_place(y), "%.*s: this is nested too deep", STR_ARG(who));
    in->turn[in->depth++] = mapping ? TURN_KEY : TURN_ITEM;
    buf_add_byte(out, mapping ? '{' : '[');
    in->comma = false;
    return true;
}

/* One event. */
static bool add_event(struct yaml *y, struct str who, struct nesting *in, struct buf *out)
{
    enum yaml_event event = yaml_event(y);
    enum turn *turn = in->depth == 0 ? NULL : &in->turn[in->depth - 1];

    if (event == YAML_MAPPING_END || event == YAML_LIST_END) {
        buf_add_byte(out, event == YAML_MAPPING_END ? '}' : ']');
        in->depth--;
        in->comma = true;
        return true;
    }
    if (in->comma && turn != NULL && *turn != TURN_VALUE)
        buf_add_byte(out, ',');
    if (turn != NULL && *turn == TURN_KEY) {
        *turn = TURN_VALUE;
        return add_key(y, who, out);
    }
    if (turn != NULL && *turn == TURN_VALUE)
        *turn = TURN_KEY;
    if (event != YAML_SCALAR)
        return open_container(y, who, in, out);
    in->comma = true;
    return add_scalar(y, who, out);
}

bool yaml_to_json(struct yaml *y, struct str who, struct buf *out)
{
    struct nesting in = {0};

    for (;;) {
        if (!add_event(y, who, &in, out))
            return false;
        if (in.depth == 0)
            return true;
        if (!yaml_next(y))
            return false;
    }
}
