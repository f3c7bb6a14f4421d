/* SPDX-License-Identifier: Apache-2.0
 * Escapes in paths and query strings. */
#include "http/http.h"

static int hex_digit(char c)
{
    if (c >= '0' && c <= '9')
        return c - '0';
    c = (char)(c | 0x20);
    return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

bool http_unescape(struct str s, bool form, struct arena *a, struct str *out)
{
    if (s.n == 0 || (memchr(s.p, '%', s.n) == NULL && (!form || memchr(s.p, '+', s.n) == NULL))) {
        *out = str_present(s) ? s : STR("");
        return true;
    }
    char *p = arena_alloc(a, s.n);
    size_t n = 0;
    if (p == NULL)
        return false;
    for (size_t i = 0; i < s.n; i++) {
        char c = s.p[i];
        if (c == '%') {
            int high = i + 2 < s.n ? hex_digit(s.p[i + 1]) : -1;
            int low = i + 2 < s.n ? hex_digit(s.p[i + 2]) : -1;
            if (high < 0 || low < 0)
                return false;
            c = (char)(high << 4 | low);
            i += 2;
        } else if (c == '+' && form) {
            c = ' ';
        }
        p[n++] = c;
    }
    *out = str_make(p, n);
    return true;
}

struct str http_query_get(struct str query, const char *name, struct arena *a, bool *bad)
{
    struct str wanted = str_of(name), found = STR_NONE;
    bool wrong = false;

    for (size_t at = 0; at < query.n;) {
        const char *amp = memchr(query.p + at, '&', query.n - at);
        size_t end = amp == NULL ? query.n : (size_t)(amp - query.p);
        struct str pair = str_slice(query, at, end);
        const char *eq = pair.n == 0 ? NULL : memchr(pair.p, '=', pair.n);
        size_t split = eq == NULL ? pair.n : (size_t)(eq - pair.p);
        struct str key, value;

        at = end + 1;
        if (!http_unescape(str_slice(pair, 0, split), true, a, &key)) {
            wrong = true;
            continue;
        }
        if (!str_eq(key, wanted))
            continue;
        if (str_present(found) ||
            !http_unescape(str_slice(pair, eq == NULL ? split : split + 1, pair.n), true, a,
                           &value))
            wrong = true;
        else
            found = value;
    }
    *bad |= wrong;
    return wrong ? STR_NONE : found;
}
