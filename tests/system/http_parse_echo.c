/* SPDX-License-Identifier: Apache-2.0
 * Says what the parser makes of requests, for test_http_peer.py to compare. In: a 32-bit length and
 * as many bytes, again and again. Out, a line each: "refused STATUS MESSAGE", "more", or "done USED
 * METHOD TARGET MINOR NAME=VALUE,… BODY" with names, values and body in hexadecimal. */
#include "http/parse.h"

#include <stdio.h>
#include <stdlib.h>

enum { HEAD_MAX = 16 * 1024, INPUT_MAX = 1024 * 1024, BODY_MAX = INPUT_MAX };

static void put_hex(const char *p, size_t n)
{
    for (size_t i = 0; i < n; i++)
        printf("%02x", (unsigned char)p[i]);
}

static void put_done(const struct head *h, const char *p, size_t used, struct str body)
{
    printf("done %zu %.*s %.*s %d ", used, h->method.n, p + h->method.at, h->target.n,
           p + h->target.at, h->minor);
    for (size_t i = 0; i < h->field_count; i++) {
        put_hex(p + h->fields[i].name.at, h->fields[i].name.n);
        putchar('=');
        put_hex(p + h->fields[i].value.at, h->fields[i].value.n);
        putchar(',');
    }
    putchar(' ');
    put_hex(body.p, body.n);
    putchar('\n');
}

static void chunked_body(const struct head *h, const char *p, struct str rest)
{
    static char body[BODY_MAX];
    struct chunked c = {.room = BODY_MAX};
    size_t n = 0, all = rest.n;

    for (;;) {
        size_t used;
        struct str data = {body, 0};
        enum chunk verdict = chunked_next(&c, rest, &used, &data);
        rest = str_slice(rest, used, rest.n);
        if (verdict == CHUNK_DATA) {
            memcpy(body + n, data.p, data.n);
            n += data.n;
            continue;
        }
        if (verdict == CHUNK_DONE)
            put_done(h, p, h->at + all - rest.n, str_make(body, n));
        else if (verdict == CHUNK_REFUSED)
            printf("refused %d %s\n", c.status, c.message);
        else
            puts("more");
        return;
    }
}

static void one(const char *p, size_t n)
{
    struct head_field fields[HEAD_FIELDS_MAX];
    struct head h = {.fields = fields};
    enum parse verdict = head_parse(&h, str_make(p, n), HEAD_MAX);

    if (verdict == PARSE_REFUSED)
        printf("refused %d %s\n", h.status, h.message);
    else if (verdict == PARSE_MORE)
        puts("more");
    else if (h.chunked)
        chunked_body(&h, p, str_make(p + h.at, n - h.at));
    else if (h.content_length > n - h.at)
        puts("more");
    else
        put_done(&h, p, h.at + (size_t)h.content_length,
                 str_make(p + h.at, (size_t)h.content_length));
}

int main(void)
{
    static char bytes[INPUT_MAX];
    uint32_t n;

    while (fread(&n, sizeof(n), 1, stdin) == 1) {
        if (n > sizeof(bytes) || fread(bytes, 1, n, stdin) != n)
            return EXIT_FAILURE;
        one(bytes, n);
        fflush(stdout);
    }
    return EXIT_SUCCESS;
}
