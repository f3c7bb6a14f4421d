/* SPDX-License-Identifier: Apache-2.0
 * The grammar of HTTP/1.1 requests (RFC 9112), strict and incremental: heads and chunked bodies. No
 * allocation, no I/O; the verdict depends on the bytes alone, never on how they were split.
 * Positions are offsets from the head's first byte, so the bytes may move between two calls. */
#ifndef HTTP_PARSE_H
#define HTTP_PARSE_H

#include "base/str.h"

enum { HEAD_FIELDS_MAX = 100, HEAD_BYTES_MAX = UINT16_MAX };

enum parse { PARSE_MORE, PARSE_DONE, PARSE_REFUSED };

struct span {
    uint16_t at, n;
};

struct head_field {
    struct span name, value; /* the value without surrounding white space */
};

/* Zeroed (with `fields` set) before the first byte of each request. */
struct head {
    struct head_field *fields; /* borrowed: room for HEAD_FIELDS_MAX */
    uint64_t content_length;   /* saturated; 0 when absent or chunked */
    const char *message;       /* why it was refused; static */
    struct span method, target;
    uint16_t at; /* bytes looked at; after PARSE_DONE the head's length */
    uint16_t mark;
    uint16_t field_count;
    uint16_t query_at; /* offset of '?' in the bytes; 0: none */
    uint16_t status;   /* of the refusal */
    uint8_t step, sub;
    uint8_t minor; /* HTTP/1.minor, 0 or 1 */
    bool has_length, chunked, expect_continue;
    bool has_host, says_close, says_keep_alive;
};

/* `bytes` begins at the head's first byte and holds all that has come so far; at most max_bytes of
 * it are looked at. */
MUST_USE enum parse head_parse(struct head *h, struct str bytes, size_t max_bytes);
/* A byte of the request itself has come, not just the empty line that may precede it. */
bool head_begun(const struct head *h);

enum { CHUNK_EXTENSIONS_MAX = 4096 }; /* bytes of chunk extensions in a whole body */

enum chunk { CHUNK_MORE, CHUNK_DATA, CHUNK_DONE, CHUNK_REFUSED };

/* Zeroed, with `room` set, before the first byte of a chunked body. */
struct chunked {
    uint64_t room; /* bytes the body may still grow by beyond the current chunk, else 413 */
    uint64_t left; /* bytes of the current chunk that have not been handed out */
    const char *message;
    uint16_t status; /* of the refusal */
    uint16_t extension_bytes;
    uint8_t step, digits;
};

/* Looks at `in` and sets how many bytes of it were used. CHUNK_DATA: `data` is a slice of `in`;
 * call again with the rest. CHUNK_MORE: all was used. */
MUST_USE enum chunk chunked_next(struct chunked *c, struct str in, size_t *used, struct str *data);

#endif
