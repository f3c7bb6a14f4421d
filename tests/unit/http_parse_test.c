/* SPDX-License-Identifier: Apache-2.0
 * The parser: what it accepts, every refusal, and that no split of the bytes changes a verdict. */
#include "http/parse.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

enum { MAX = 16 * 1024 };

struct outcome {
    enum parse verdict;
    struct head head;
    struct head_field fields[HEAD_FIELDS_MAX];
};

/* Feeds the head in pieces: up to each offset of `cuts` in turn, then all. */
static void run(struct str bytes, const size_t *cuts, size_t n, struct outcome *out)
{
    memset(out, 0, sizeof(*out));
    out->head.fields = out->fields;
    for (size_t i = 0; i <= n; i++) {
        size_t upto = i < n ? cuts[i] : bytes.n;
        /* A fresh copy of exact size: reading beyond it is seen by the sanitizer, and no pointer
         * can be kept. */
        char *copy = malloc(upto + 1);
        memcpy(copy, bytes.p, upto);
        out->verdict = head_parse(&out->head, str_make(copy, upto), MAX);
        free(copy);
        if (out->verdict != PARSE_MORE)
            return;
        assert_int_equal(out->head.at, upto);
    }
}

static void check_same(const struct outcome *a, const struct outcome *b)
{
    assert_int_equal(a->verdict, b->verdict);
    assert_int_equal(a->head.at, b->head.at);
    assert_int_equal(a->head.status, b->head.status);
    assert_ptr_equal(a->head.message, b->head.message);
    assert_int_equal(a->head.field_count, b->head.field_count);
    assert_memory_equal(&a->head.method, &b->head.method, sizeof(struct span));
    assert_memory_equal(&a->head.target, &b->head.target, sizeof(struct span));
    assert_int_equal(a->head.query_at, b->head.query_at);
    assert_int_equal(a->head.content_length, b->head.content_length);
    assert_int_equal(a->head.chunked, b->head.chunked);
    assert_int_equal(a->head.says_close, b->head.says_close);
    assert_memory_equal(a->fields, b->fields, sizeof(a->fields));
}

/* The verdict on the whole must be that on every split in two and on single bytes. */
static void check_splits(struct str bytes, struct outcome *whole)
{
    struct outcome *split = malloc(sizeof(*split));
    size_t *all = malloc((bytes.n + 1) * sizeof(*all));

    run(bytes, NULL, 0, whole);
    for (size_t i = 0; i < bytes.n; i++) {
        run(bytes, &i, 1, split);
        check_same(whole, split);
        all[i] = i;
    }
    run(bytes, all, bytes.n, split);
    check_same(whole, split);
    free(all);
    free(split);
}

#define H "Host: a\r\n"
#define GET "GET / HTTP/1.1\r\n"

static void refusals(void **state)
{
    (void)state;
    static const struct {
        const char *bytes;
        int status;
    } cases[] = {
        /* the request line */
        {"\n", 400},
        {"\r\r\n", 400},
        {"\r\n\r\n" GET H "\r\n", 400}, /* one empty line is forgiven, two are not */
        {" GET / HTTP/1.1\r\n", 400},
        {"GET\t/ HTTP/1.1\r\n", 400},
        {"GET\r\n", 400},
        {"G(T / HTTP/1.1\r\n", 400},
        {"\x16\x03\x01\x02\x01", 400}, /* TLS */
        {"get / HTTP/1.1\r\n", 501},   /* methods are case-sensitive */
        {"BREW /pot HTTP/1.1\r\n", 501},
        {"CONNECT example.org:443 HTTP/1.1\r\n", 501},
        {"PRI * HTTP/2.0\r\n", 501},
        {"GET  / HTTP/1.1\r\n", 400},
        {"GET * HTTP/1.1\r\n", 400},
        {"OPTIONS * HTTP/1.1\r\n", 400},
        {"GET http://a/ HTTP/1.1\r\n", 400},
        {"GET a/b HTTP/1.1\r\n", 400},
        {"GET /a#b HTTP/1.1\r\n", 400},
        {"GET /a\x01 HTTP/1.1\r\n", 400},
        {"GET /a\x7f HTTP/1.1\r\n", 400},
        {"GET /\xc3\xa4 HTTP/1.1\r\n", 400},
        {"GET /a\tHTTP/1.1\r\n", 400},
        {"GET /\r\n", 400},
        {"GET / \r\n", 400},
        {"GET / http/1.1\r\n", 400},
        {"GET / HTTP/1\r\n", 400},
        {"GET / HTTP/1.x\r\n", 400},
        {"GET / HTTP/1.10\r\n", 400},
        {"GET / HTTP/1.1 \r\n", 400},
        {"GET / b HTTP/1.1\r\n", 400},
        {"GET / HTTP/0.9\r\n", 505},
        {"GET / HTTP/2.0\r\n", 505},
        {"GET / HTTP/3.1\r\n", 505},
        {"GET / HTTP/1.1\n", 400},
        {"GET / HTTP/1.1\rX", 400},
        /* header lines */
        {GET " Host: a\r\n", 400},
        {GET H " folded\r\n\r\n", 400},
        {GET "A: b\r\n\tfolded\r\n\r\n", 400},
        {GET "Host : a\r\n", 400},
        {GET "Ho st: a\r\n", 400},
        {GET "Ho\x01st: a\r\n", 400},
        {GET "H\xc3\xb6st: a\r\n", 400},
        {GET ": a\r\n", 400},
        {GET "Host\r\n", 400},
        {GET "Host: a\n", 400},
        {GET "Host: a\r\r\n", 400},
        {GET "Host: a\rb\r\n", 400},
        {GET "A: b\x01\r\n", 400},
        {GET "A: b\x7f\r\n", 400},
        {GET "A: b\x1b[0m\r\n", 400},
        {GET H "\n", 400},
        {GET H "\rX", 400},
        /* Host */
        {GET "\r\n", 400},
        {GET "Accept: */*\r\n\r\n", 400},
        {GET H H "\r\n", 400},
        {"GET / HTTP/1.0\r\n" H H "\r\n", 400},
        {GET "Host: a, b\r\n\r\n", 400},
        {GET "Host: a/b\r\n\r\n", 400},
        {GET "Host: u@a\r\n\r\n", 400},
        {GET "Host: a?b\r\n\r\n", 400},
        /* where the body ends */
        {GET H "Content-Length: 1\r\nContent-Length: 1\r\n\r\n", 400},
        {GET H "Content-Length: 1\r\ncontent-length: 2\r\n\r\n", 400},
        {GET H "Content-Length: 1, 1\r\n\r\n", 400},
        {GET H "Content-Length: +1\r\n\r\n", 400},
        {GET H "Content-Length: -1\r\n\r\n", 400},
        {GET H "Content-Length: 0x1\r\n\r\n", 400},
        {GET H "Content-Length: 1 2\r\n\r\n", 400},
        {GET H "Content-Length: 1.0\r\n\r\n", 400},
        {GET H "Content-Length: \r\n\r\n", 400},
        {GET H "Content-Length:\r\n\r\n", 400},
        {GET H "Content-Length: \xb2\r\n\r\n", 400},
        {GET H "Content-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n", 400},
        {GET H "Transfer-Encoding: chunked\r\nContent-Length: 1\r\n\r\n", 400},
        {GET H "Transfer-Encoding: chunked\r\nContent-Length: 0\r\n\r\n", 400},
        {GET H "Transfer-Encoding: gzip\r\n\r\n", 400},
        {GET H "Transfer-Encoding: gzip, chunked\r\n\r\n", 400},
        {GET H "Transfer-Encoding: chunked, chunked\r\n\r\n", 400},
        {GET H "Transfer-Encoding: chunked;q=1\r\n\r\n", 400},
        {GET H "Transfer-Encoding: xchunked\r\n\r\n", 400},
        {GET H "Transfer-Encoding: chunked,\r\n\r\n", 400},
        {GET H "Transfer-Encoding: identity\r\n\r\n", 400},
        {GET H "Transfer-Encoding:\r\n\r\n", 400},
        {GET H "Transfer-Encoding: \"chunked\"\r\n\r\n", 400},
        {GET H "Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n", 400},
        {GET H "Transfer-Encoding: chunked\r\nTransfer-Encoding: identity\r\n\r\n", 400},
        {"POST / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n", 400},
        /* Expect */
        {GET H "Expect: 200-ok\r\n\r\n", 417},
        {GET H "Expect: 100-continue, x\r\n\r\n", 417},
        {GET H "Expect:\r\n\r\n", 417},
    };
    struct outcome out;

    for (size_t i = 0; i < COUNT(cases); i++) {
        check_splits(str_of(cases[i].bytes), &out);
        if (out.verdict != PARSE_REFUSED || out.head.status != cases[i].status ||
            out.head.message == NULL)
            fail_msg("case %zu (%s): verdict %d, status %d, expected %d", i, cases[i].bytes,
                     (int)out.verdict, out.head.status, cases[i].status);
    }
}

static void a_nul_is_a_control_character(void **state)
{
    (void)state;
    static const struct str cases[] = {
        STR_INIT("GET /\0 HTTP/1.1\r\n"),
        STR_INIT("G\0T / HTTP/1.1\r\n"),
        STR_INIT(GET "A\0: b\r\n"),
        STR_INIT(GET "A: \0\r\n"),
        STR_INIT(GET H "Content-Length: 1\0\r\n\r\n"),
    };
    struct outcome out;

    for (size_t i = 0; i < COUNT(cases); i++) {
        check_splits(cases[i], &out);
        assert_int_equal(out.verdict, PARSE_REFUSED);
        assert_int_equal(out.head.status, 400);
    }
}

/* Every byte in a name, a value, a target: refused exactly when the grammar says so. */
static void every_byte(void **state)
{
    (void)state;
    static const char tokens[] = "!#$%&'*+-.^_`|~";
    struct outcome out;
    char text[64];

    for (int b = 0; b < 256; b++) {
        char c = (char)b;
        bool alnum = (b >= '0' && b <= '9') || (b >= 'a' && b <= 'z') || (b >= 'A' && b <= 'Z');
        bool token = alnum || (b != 0 && strchr(tokens, b) != NULL);
        bool value = b == '\t' || (b >= ' ' && b != 0x7f);
        bool target = b > ' ' && b < 0x7f && b != '#';

        int n = snprintf(text, sizeof(text), GET H "XxX: y\r\n\r\n");
        *strstr(text, "xX: y") = c;
        run(str_make(text, (size_t)n), NULL, 0, &out);
        assert_int_equal(out.verdict == PARSE_DONE, token || c == ':');

        n = snprintf(text, sizeof(text), GET H "X: yyy\r\n\r\n");
        strstr(text, "yyy")[1] = c;
        run(str_make(text, (size_t)n), NULL, 0, &out);
        assert_int_equal(out.verdict == PARSE_DONE, value);

        n = snprintf(text, sizeof(text), "GET /aaa HTTP/1.1\r\n" H "\r\n");
        strstr(text, "aaa")[1] = c;
        run(str_make(text, (size_t)n), NULL, 0, &out);
        assert_int_equal(out.verdict == PARSE_DONE, target);
    }
}

static struct str text_of(struct str bytes, struct span s)
{
    return str_slice(bytes, s.at, (size_t)s.at + s.n);
}

static void check_text(struct str bytes, struct span s, const char *expected)
{
    if (!str_eq(text_of(bytes, s), str_of(expected)))
        fail_msg("got '%.*s', expected '%s'", STR_ARG(text_of(bytes, s)), expected);
}

static void accepted(void **state)
{
    (void)state;
    static const struct {
        const char *bytes, *method, *target, *last_value;
        uint64_t length;
        bool chunked, keep, close, expect;
        int minor;
    } cases[] = {
        {GET H "\r\n", "GET", "/", "a", .minor = 1},
        {"\r\n" GET H "\r\n", "GET", "/", "a", .minor = 1},
        {"HEAD /a?b=c&d=%20 HTTP/1.1\r\n" H "\r\n", "HEAD", "/a?b=c&d=%20", "a", .minor = 1},
        {"OPTIONS /?? HTTP/1.1\r\n" H "\r\n", "OPTIONS", "/??", "a", .minor = 1},
        {"GET //etc/../[]|{}\"<>^`\\ HTTP/1.1\r\n" H "\r\n", "GET", "//etc/../[]|{}\"<>^`\\", "a",
         .minor = 1},
        {"GET / HTTP/1.7\r\n" H "\r\n", "GET", "/", "a", .minor = 1},
        {"GET / HTTP/1.0\r\n\r\n", "GET", "/", NULL, .minor = 0},
        {"GET / HTTP/1.0\r\nConnection: Keep-Alive\r\n\r\n", "GET", "/", "Keep-Alive",
         .keep = true},
        {GET "Host:\r\n\r\n", "GET", "/", "", .minor = 1},
        {GET "host:a\r\n\r\n", "GET", "/", "a", .minor = 1},
        {GET "HOST: \t [::1]:80 \t\r\n\r\n", "GET", "/", "[::1]:80", .minor = 1},
        {GET H "A: b \t c\r\n\r\n", "GET", "/", "b \t c", .minor = 1},
        {GET H "A: \xff\xc3\xa4\r\n\r\n", "GET", "/", "\xff\xc3\xa4", .minor = 1},
        {GET H "A:\r\nA: : \r\n\r\n", "GET", "/", ":", .minor = 1},
        {GET H "Connection: close\r\n\r\n", "GET", "/", "close", .close = true, .minor = 1},
        {GET H "Connection: te ,\tCLOSE, x\r\n\r\n", "GET", "/", "te ,\tCLOSE, x", .close = true,
         .minor = 1},
        {GET H "Connection: closed\r\n\r\n", "GET", "/", "closed", .minor = 1},
        {GET H "Connection: , ,\r\n\r\n", "GET", "/", ", ,", .minor = 1},
        {"POST / HTTP/1.1\r\n" H "Content-Length: 0\r\n\r\n", "POST", "/", "0", .minor = 1},
        {"POST / HTTP/1.1\r\n" H "content-length: 00012 \r\n\r\n", "POST", "/", "00012",
         .length = 12, .minor = 1},
        {"PUT / HTTP/1.1\r\n" H "Content-Length: 18446744073709551615\r\n\r\n", "PUT", "/",
         "18446744073709551615", .length = UINT64_MAX, .minor = 1},
        {"PATCH / HTTP/1.1\r\n" H "Transfer-Encoding: Chunked\r\n\r\n", "PATCH", "/", "Chunked",
         .chunked = true, .minor = 1},
        {"DELETE / HTTP/1.1\r\n" H "Expect: 100-Continue\r\n\r\n", "DELETE", "/", "100-Continue",
         .expect = true, .minor = 1},
        {"POST / HTTP/1.0\r\nExpect: 100-continue\r\n\r\n", "POST", "/", "100-continue",
         .minor = 0},
        {"TRACE / HTTP/1.1\r\n" H "Content-Lengths: x\r\n\r\n", "TRACE", "/", "x", .minor = 1},
    };
    struct outcome out;

    for (size_t i = 0; i < COUNT(cases); i++) {
        struct str bytes = str_of(cases[i].bytes);
        check_splits(bytes, &out);
        if (out.verdict != PARSE_DONE)
            fail_msg("case %zu: %s", i, out.head.message);
        assert_int_equal(out.head.at, bytes.n);
        check_text(bytes, out.head.method, cases[i].method);
        check_text(bytes, out.head.target, cases[i].target);
        if (cases[i].last_value != NULL)
            check_text(bytes, out.fields[out.head.field_count - 1].value, cases[i].last_value);
        assert_int_equal(out.head.content_length, cases[i].length);
        assert_int_equal(out.head.chunked, cases[i].chunked);
        assert_int_equal(out.head.says_keep_alive, cases[i].keep);
        assert_int_equal(out.head.says_close, cases[i].close);
        assert_int_equal(out.head.expect_continue, cases[i].expect);
        assert_int_equal(out.head.minor, cases[i].minor);
    }
}

static void a_length_beyond_64_bits_stays_too_large(void **state)
{
    (void)state;
    char text[512];
    struct outcome out;

    for (int digits = 20; digits < 300; digits++)
        for (int d = 1; d <= 9; d++) {
            int n = snprintf(text, sizeof(text), GET H "Content-Length: ");
            memset(text + n, '0' + d, (size_t)digits);
            n += digits;
            n += snprintf(text + n, sizeof(text) - (size_t)n, "\r\n\r\n");
            run(str_make(text, (size_t)n), NULL, 0, &out);
            assert_int_equal(out.verdict, PARSE_DONE);
            if (digits > 20 || d > 1)
                assert_true(out.head.content_length >= UINT64_MAX / 10);
        }
}

static void sizes(void **state)
{
    (void)state;
    static const char start[] = GET H "A: ";
    char *text = malloc(MAX + 100);
    struct outcome out;

    for (size_t total = MAX - 3; total < MAX + 100; total++) { /* the whole head's bytes */
        memset(text, 'x', MAX + 100);
        memcpy(text, start, sizeof(start) - 1);
        memcpy(text + total - 4, "\r\n\r\n", 4);
        run(str_make(text, total), NULL, 0, &out);
        assert_int_equal(out.verdict, total <= MAX ? PARSE_DONE : PARSE_REFUSED);
        if (total > MAX)
            assert_int_equal(out.head.status, 431);
        size_t cut = MAX;
        run(str_make(text, total), &cut, total > MAX, &out);
        assert_int_equal(out.verdict, total <= MAX ? PARSE_DONE : PARSE_REFUSED);
    }
    memset(text, 'a', MAX); /* a method without end */
    run(str_make(text, MAX), NULL, 0, &out);
    assert_int_equal(out.head.status, 431);
    text[MAX - 1] = '\x01'; /* what is malformed within the bound is called so */
    run(str_make(text, MAX), NULL, 0, &out);
    assert_int_equal(out.head.status, 400);
    free(text);
}

static void field_count(void **state)
{
    (void)state;
    char text[4096];
    struct outcome out;

    for (int fields = 99; fields <= 102; fields++) {
        int n = snprintf(text, sizeof(text), GET H);
        for (int i = 1; i < fields; i++)
            n += snprintf(text + n, sizeof(text) - (size_t)n, "A%d:\r\n", i);
        n += snprintf(text + n, sizeof(text) - (size_t)n, "\r\n");
        check_splits(str_make(text, (size_t)n), &out);
        assert_int_equal(out.verdict, fields <= HEAD_FIELDS_MAX ? PARSE_DONE : PARSE_REFUSED);
        if (fields > HEAD_FIELDS_MAX)
            assert_int_equal(out.head.status, 431);
        else
            assert_int_equal(out.head.field_count, fields);
    }
}

static void what_follows_the_head_is_not_looked_at(void **state)
{
    (void)state;
    struct str bytes = STR(GET H "\r\n\x01\x02garbage");
    struct outcome out;

    check_splits(bytes, &out);
    assert_int_equal(out.verdict, PARSE_DONE);
    assert_int_equal(out.head.at, bytes.n - sizeof("\x01\x02garbage") + 1);
}

/* ---- chunked ---- */

struct body {
    enum chunk verdict;
    int status;
    size_t used, n;
    char bytes[256];
};

/* Feeds in pieces that end at each cut; all verdicts must be equal. */
static void run_chunks(struct str in, const size_t *cuts, size_t n_cuts, uint64_t room,
                       struct body *out)
{
    struct chunked c = {.room = room};

    memset(out, 0, sizeof(*out));
    for (size_t i = 0, from = 0; i <= n_cuts; i++) {
        size_t to = i < n_cuts ? cuts[i] : in.n;
        char *copy = malloc(to - from + 1);
        memcpy(copy, in.p + from, to - from);
        struct str piece = str_make(copy, to - from);
        do {
            size_t used = SIZE_MAX;
            struct str data = STR_NONE;
            out->verdict = chunked_next(&c, piece, &used, &data);
            assert_true(used <= piece.n);
            if (out->verdict == CHUNK_DATA) {
                assert_true(data.n > 0 && data.p >= copy && data.p + data.n == piece.p + used);
                memcpy(out->bytes + out->n, data.p, data.n);
                out->n += data.n;
            }
            out->used += used;
            piece = str_slice(piece, used, piece.n);
        } while (out->verdict == CHUNK_DATA);
        assert_true(out->verdict != CHUNK_MORE || piece.n == 0);
        free(copy);
        from = to;
        if (out->verdict != CHUNK_MORE)
            break;
    }
    out->status = out->verdict == CHUNK_REFUSED ? c.status : 0;
}

static void check_chunks(const char *text, enum chunk verdict, int status, const char *data,
                         size_t rest)
{
    struct str in = str_of(text);
    size_t all[512];
    struct body whole, split;

    run_chunks(in, NULL, 0, 40, &whole);
    if (whole.verdict != verdict || whole.status != status)
        fail_msg("%s: verdict %d status %d", text, (int)whole.verdict, whole.status);
    if (data != NULL)
        assert_true(str_eq(str_make(whole.bytes, whole.n), str_of(data)));
    if (verdict == CHUNK_DONE)
        assert_int_equal(whole.used, in.n - rest);
    for (size_t i = 0; i <= in.n; i++) {
        run_chunks(in, &i, 1, 40, &split);
        assert_memory_equal(&whole, &split, sizeof(whole));
        all[i] = i;
    }
    run_chunks(in, all, in.n, 40, &split);
    assert_memory_equal(&whole, &split, sizeof(whole));
}

static void chunks(void **state)
{
    (void)state;
    check_chunks("0\r\n\r\n", CHUNK_DONE, 0, "", 0);
    check_chunks("5\r\nhello\r\n0\r\n\r\n", CHUNK_DONE, 0, "hello", 0);
    check_chunks("5\r\nhello\r\n0\r\n\r\nGET /", CHUNK_DONE, 0, "hello", 5);
    check_chunks("1\r\na\r\nB\r\nbbbbbbbbbbb\r\n000\r\n\r\n", CHUNK_DONE, 0, "abbbbbbbbbbb", 0);
    check_chunks("00000000000000a\r\n0123456789\r\n0\r\n\r\n", CHUNK_DONE, 0, "0123456789", 0);
    check_chunks("2;a=b;c=\"d\"\r\nxx\r\n0;last\r\n\r\n", CHUNK_DONE, 0, "xx", 0);
    check_chunks("2;\t \xff\r\n\r\n\r\n0\r\n\r\n", CHUNK_DONE, 0, "\r\n", 0);
    check_chunks("28\r\n0123456789012345678901234567890123456789\r\n0\r\n\r\n", CHUNK_DONE, 0, NULL,
                 0);
    check_chunks("5\r\nhel", CHUNK_MORE, 0, "hel", 0);
    static const struct {
        const char *text;
        int status;
    } bad[] = {
        {"\r\n", 400},
        {";a\r\n", 400},
        {"x\r\n", 400},
        {"-1\r\n", 400},
        {"+1\r\n", 400},
        {"0x1\r\n", 400},
        {" 1\r\n", 400},
        {"1 \r\n", 400},
        {"1\n", 400},
        {"1\rX", 400},
        {"1;a\n", 400},
        {"1;a\x01\r\n", 400},
        {"1;a\x7f\r\n", 400},
        {"00000000000000001\r\n", 400}, /* 17 digits */
        {"1\r\naX", 400},
        {"1\r\na\n", 400},
        {"1\r\na\rX", 400},
        {"1\r\naa\r\n", 400},
        {"0\r\nX: y\r\n\r\n", 400}, /* trailers */
        {"0\r\n\n", 400},
        {"0\r\n\rX", 400},
        {"29\r\n", 413},
        {"ffffffffffffffff\r\n", 413},
        {"14\r\n01234567890123456789\r\n15\r\n", 413},
    };
    for (size_t i = 0; i < COUNT(bad); i++)
        check_chunks(bad[i].text, CHUNK_REFUSED, bad[i].status, NULL, 0);
}

static void chunk_extensions_are_bounded(void **state)
{
    (void)state;
    for (size_t each = 1; each < 3; each++)
        for (size_t total = CHUNK_EXTENSIONS_MAX - 4; total <= CHUNK_EXTENSIONS_MAX + 4;
             total += 4) {
            struct chunked c = {.room = 1 << 20};
            enum chunk verdict = CHUNK_MORE;
            size_t used;
            struct str data;
            for (size_t sent = 0; sent < total && verdict != CHUNK_REFUSED; sent += each) {
                struct str piece = each == 1 ? STR("1;a\r\nx\r\n") : STR("1;ab\r\nx\r\n");
                while (piece.n > 0 && verdict != CHUNK_REFUSED) {
                    verdict = chunked_next(&c, piece, &used, &data);
                    piece = str_slice(piece, used, piece.n);
                }
            }
            assert_int_equal(verdict == CHUNK_REFUSED, total > CHUNK_EXTENSIONS_MAX);
        }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(refusals),
        cmocka_unit_test(a_nul_is_a_control_character),
        cmocka_unit_test(every_byte),
        cmocka_unit_test(accepted),
        cmocka_unit_test(a_length_beyond_64_bits_stays_too_large),
        cmocka_unit_test(sizes),
        cmocka_unit_test(field_count),
        cmocka_unit_test(what_follows_the_head_is_not_looked_at),
        cmocka_unit_test(chunks),
        cmocka_unit_test(chunk_extensions_are_bounded),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
