/* SPDX-License-Identifier: Apache-2.0
 * Chunked bodies: sizes, bounded extensions that are skipped, data handed out as slices. Trailers
 * are refused: nobody here reads them, and they are a place to hide header fields in. */
#include "http/parse.h"

enum step {
    CHUNK_SIZE,
    CHUNK_EXTENSION,
    CHUNK_SIZE_LF,
    CHUNK_BYTES,
    CHUNK_CR,
    CHUNK_LF,
    CHUNK_END,
    CHUNK_END_LF
};
enum { SIZE_DIGITS_MAX = 16 }; /* what fits into 64 bits */

static enum chunk refuse(struct chunked *c, const char *message)
{
    c->status = 400;
    c->message = message;
    return CHUNK_REFUSED;
}

static int hex_digit(uint8_t b)
{
    if (b >= '0' && b <= '9')
        return b - '0';
    b |= 0x20;
    return b >= 'a' && b <= 'f' ? b - 'a' + 10 : -1;
}

static enum chunk size_byte(struct chunked *c, uint8_t b)
{
    int digit = hex_digit(b);

    if (digit >= 0) {
        if (c->digits++ == SIZE_DIGITS_MAX)
            return refuse(c, "malformed chunk size");
        c->left = c->left << 4 | (unsigned)digit;
        return CHUNK_MORE;
    }
    if (c->digits == 0 || (b != ';' && b != '\r'))
        return refuse(c, "malformed chunk size");
    c->step = b == ';' ? CHUNK_EXTENSION : CHUNK_SIZE_LF;
    return CHUNK_MORE;
}

static enum chunk extension_byte(struct chunked *c, uint8_t b)
{
    if (b == '\r') {
        c->step = CHUNK_SIZE_LF;
        return CHUNK_MORE;
    }
    if ((b < ' ' && b != '\t') || b == 0x7f)
        return refuse(c, "control character in a chunk extension");
    if (c->extension_bytes++ == CHUNK_EXTENSIONS_MAX)
        return refuse(c, "too many chunk extensions");
    return CHUNK_MORE;
}

static enum chunk literal_byte(struct chunked *c, bool right, uint8_t next)
{
    c->step = next;
    return right ? CHUNK_MORE : refuse(c, "malformed end of a chunk");
}

/* The size is known: a chunk that does not fit is refused before a byte of it. */
static enum chunk size_done(struct chunked *c, uint8_t b)
{
    if (b != '\n')
        return refuse(c, "malformed chunk size");
    if (c->left > c->room) {
        c->status = 413;
        c->message = "the body is too large";
        return CHUNK_REFUSED;
    }
    c->room -= c->left;
    c->digits = 0;
    c->step = c->left == 0 ? CHUNK_END : CHUNK_BYTES;
    return CHUNK_MORE;
}

/* One byte of framing. CHUNK_MORE: go on. */
static enum chunk framing_byte(struct chunked *c, uint8_t b)
{
    switch ((enum step)c->step) {
    case CHUNK_SIZE:
        return size_byte(c, b);
    case CHUNK_EXTENSION:
        return extension_byte(c, b);
    case CHUNK_SIZE_LF:
        return size_done(c, b);
    case CHUNK_CR:
        return literal_byte(c, b == '\r', CHUNK_LF);
    case CHUNK_LF:
        return literal_byte(c, b == '\n', CHUNK_SIZE);
    case CHUNK_END:
        return b == '\r' ? literal_byte(c, true, CHUNK_END_LF)
                         : refuse(c, "trailers are not accepted");
    case CHUNK_END_LF:
        return b == '\n' ? CHUNK_DONE : refuse(c, "malformed end of a chunk");
    case CHUNK_BYTES:
        break;
    }
    return CHUNK_DATA;
}

enum chunk chunked_next(struct chunked *c, struct str in, size_t *used, struct str *data)
{
    for (size_t at = 0; at < in.n;) {
        if (c->step == CHUNK_BYTES) {
            size_t n = in.n - at < c->left ? in.n - at : (size_t)c->left;
            *data = str_make(in.p + at, n);
            *used = at + n;
            c->left -= n;
            if (c->left == 0)
                c->step = CHUNK_CR;
            return CHUNK_DATA;
        }
        enum chunk verdict = framing_byte(c, (uint8_t)in.p[at++]);
        if (verdict != CHUNK_MORE) {
            *used = at;
            return verdict;
        }
    }
    *used = in.n;
    return CHUNK_MORE;
}
