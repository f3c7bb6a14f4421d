/* SPDX-License-Identifier: Apache-2.0
 * Globs: one pass checks the pattern, the other matches with a single point to go back to. */
#include "policy/glob.h"

#include "base/utf8.h"

/* Bytes of the character at p; a byte that begins none counts as one. */
static size_t char_len(const char *p, const char *end)
{
    size_t n = utf8_len(p, end);

    return n == 0 ? 1 : n;
}

/* Characters of a class compare by their bytes, which is UTF-8's order. */
static struct str char_at(const char *p, const char *end)
{
    return str_make(p, char_len(p, end));
}

/* ---- classes: p behind the `[` and its `^` ---- */

/* One character of a class, or of the pattern, as it is meant: behind its backslash. Absent: the
 * pattern ends. */
static struct str literal_at(const char **p, const char *end)
{
    if (*p != end && **p == '\\')
        (*p)++;
    if (*p == end)
        return STR_NONE;
    struct str c = char_at(*p, end);
    *p += c.n;
    return c;
}

struct range {
    struct str low, high;
};

/* The next range or single character. False: the pattern ends. */
static bool range_at(const char **p, const char *end, struct range *out)
{
    out->low = literal_at(p, end);
    out->high = out->low;
    if (end - *p >= 2 && (*p)[0] == '-' && (*p)[1] != ']') {
        (*p)++;
        out->high = literal_at(p, end);
    }
    return str_present(out->low) && str_present(out->high);
}

static const char *class_check(const char **p, const char *end)
{
    struct range r;

    if (*p != end && **p == '^')
        (*p)++;
    if (*p != end && **p == ']')
        return "a class [] is empty";
    while (*p != end && **p != ']') {
        if (!range_at(p, end, &r))
            break;
        if (str_cmp(r.low, r.high) > 0)
            return "a range in [] is in reverse";
    }
    if (*p == end)
        return "a [ has no ]";
    (*p)++;
    return NULL;
}

/* *p behind the `[` of a class that was checked: moves behind its `]`. */
static bool class_has(const char **p, const char *end, struct str c)
{
    bool negated = **p == '^', found = false;
    struct range r;

    if (negated)
        (*p)++;
    while (**p != ']' && range_at(p, end, &r))
        found = found || (str_cmp(r.low, c) <= 0 && str_cmp(c, r.high) <= 0);
    (*p)++;
    return found != negated;
}

/* ---- the whole ---- */

const char *glob_parse(struct str pattern, struct glob *out)
{
    const char *p = pattern.p, *end = pattern.n == 0 ? p : p + pattern.n, *wrong;
    size_t head = 0;

    *out = (struct glob){.pattern = pattern};
    while (head < pattern.n && memchr("*?[\\", p[head], 4) == NULL)
        head++;
    out->head = head;
    for (p = head == 0 ? p : p + head; p != end;) {
        char c = *p++;
        if (c == '\\' && p == end)
            return "a \\ has nothing behind it";
        if (c == '\\')
            p++;
        if (c == '[' && (wrong = class_check(&p, end)) != NULL)
            return wrong;
        out->goes_back = out->goes_back || (c == '*' && p != end);
    }
    return NULL;
}

/* The unit of the pattern at *p, which is no `*`, takes the character. */
static bool unit_takes(const char **p, const char *end, struct str c)
{
    if (**p == '?') {
        (*p)++;
        return true;
    }
    if (**p == '[') {
        (*p)++;
        return class_has(p, end, c);
    }
    return str_eq(literal_at(p, end), c);
}

/* The last `*` takes as little as it can, and one more character each time that what follows it
 * does not fit: earlier ones need not be tried again. */
static bool rest_matches(struct str pattern, struct str text)
{
    const char *p = pattern.p, *end = p + pattern.n, *t = text.p, *text_end = t + text.n;
    const char *star = NULL, *star_t = NULL;

    while (t != text_end) {
        if (p != end && *p == '*') {
            star = ++p;
            star_t = t;
            if (p == end)
                return true;
            continue;
        }
        struct str c = char_at(t, text_end);
        if (p != end && unit_takes(&p, end, c)) {
            t += c.n;
            continue;
        }
        if (star == NULL)
            return false;
        star_t += char_len(star_t, text_end);
        t = star_t;
        p = star;
    }
    while (p != end && *p == '*')
        p++;
    return p == end;
}

bool glob_matches(const struct glob *g, struct str target)
{
    if (target.n < g->head || (g->head != 0 && memcmp(target.p, g->pattern.p, g->head) != 0))
        return false;
    if (g->head == g->pattern.n)
        return target.n == g->head;
    struct str rest = str_slice(target, g->head, target.n);
    if (!str_present(rest))
        rest = STR("");
    return rest_matches(str_slice(g->pattern, g->head, g->pattern.n), rest) ||
           str_eq(g->pattern, target);
}
