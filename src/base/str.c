/* SPDX-License-Identifier: Apache-2.0
 * Byte slices: comparison, strict numbers, UTF-8. */
#include "base/str.h"

#include <openssl/crypto.h>

#include "base/utf8.h"

bool str_starts(struct str s, struct str prefix)
{
    return s.n >= prefix.n && (prefix.n == 0 || memcmp(s.p, prefix.p, prefix.n) == 0);
}

static unsigned char lower(char c)
{
    return (unsigned char)(c >= 'A' && c <= 'Z' ? c | 0x20 : c);
}

bool str_eq_nocase(struct str a, struct str b)
{
    if (a.n != b.n)
        return false;
    for (size_t i = 0; i < a.n; i++)
        if (lower(a.p[i]) != lower(b.p[i]))
            return false;
    return true;
}

int str_cmp(struct str a, struct str b)
{
    size_t n = a.n < b.n ? a.n : b.n;
    int c = n == 0 ? 0 : memcmp(a.p, b.p, n);

    return c != 0 ? c : (a.n > b.n) - (a.n < b.n);
}

struct str str_slice(struct str s, size_t from, size_t to)
{
    if (to > s.n)
        to = s.n;
    if (from > to)
        from = to;
    return s.p == NULL ? STR_NONE : (struct str){s.p + from, to - from};
}

bool str_to_int64(struct str s, int64_t *out)
{
    int64_t v = 0;

    if (s.n == 0)
        return false;
    for (size_t i = 0; i < s.n; i++) {
        if (s.p[i] < '0' || s.p[i] > '9')
            return false;
        if (__builtin_mul_overflow(v, 10, &v) || __builtin_add_overflow(v, s.p[i] - '0', &v))
            return false;
    }
    *out = v;
    return true;
}

bool str_is_utf8(struct str s)
{
    const char *p = s.p, *end = s.n == 0 ? p : p + s.n;

    while (p != end) {
        uint64_t word;
        while (end - p >= (ptrdiff_t)sizeof word) { /* runs of ASCII eight at a time */
            memcpy(&word, p, sizeof word);
            if ((word & UINT64_C(0x8080808080808080)) != 0)
                break;
            p += sizeof word;
        }
        if (p == end)
            break;
        size_t n = utf8_len(p, end);
        if (n == 0)
            return false;
        p += n;
    }
    return true;
}

bool str_has_control(struct str s)
{
    for (size_t i = 0; i < s.n; i++) {
        unsigned char c = (unsigned char)s.p[i];
        if (c < 0x20 || c == 0x7f)
            return true;
        if (c == 0xc2 && i + 1 < s.n && (unsigned char)s.p[i + 1] >= 0x80 &&
            (unsigned char)s.p[i + 1] <= 0x9f)
            return true;
    }
    return false;
}

bool str_eq_secret(struct str a, struct str b)
{
    return a.n == b.n && (a.n == 0 || CRYPTO_memcmp(a.p, b.p, a.n) == 0);
}
