/* SPDX-License-Identifier: Apache-2.0
 * Heads: one table of steps, each of which takes as many bytes as it can. A step is entered anew
 * with more bytes after PARSE_MORE, so none may depend on what lies beyond `at`. */
#include "http/parse.h"

/* TOKEN: RFC 9110's tchar. TARGET: printable ASCII but '#', which only a client may see. VALUE:
 * printable, space, tab and obs-text. HOST: RFC 3986's reg-name, IP literal and port. */
enum { TOKEN = 1, TARGET = 2, VALUE = 4, HOST = 8 };

/* clang-format off */
static const uint8_t CLASS[256] = {
     0,  0,  0,  0,  0,  0,  0,  0,  0,  4,  0,  0,  0,  0,  0,  0, /* 00 */
     0,  0,  0,  0,  0,  0,  0,  0,  0,  0,  0,  0,  0,  0,  0,  0, /* 10 */
     4, 15,  6,  5, 15, 15, 15, 15, 14, 14, 15, 15, 14, 15, 15,  6, /* 20 */
    15, 15, 15, 15, 15, 15, 15, 15, 15, 15, 14, 14,  6, 14,  6,  6, /* 30 */
     6, 15, 15, 15, 15, 15, 15, 15, 15, 15, 15, 15, 15, 15, 15, 15, /* 40 */
    15, 15, 15, 15, 15, 15, 15, 15, 15, 15, 15, 14,  6, 14,  7, 15, /* 50 */
     7, 15, 15, 15, 15, 15, 15, 15, 15, 15, 15, 15, 15, 15, 15, 15, /* 60 */
    15, 15, 15, 15, 15, 15, 15, 15, 15, 15, 15,  6,  7,  6, 15,  0, /* 70 */
     4,  4,  4,  4,  4,  4,  4,  4,  4,  4,  4,  4,  4,  4,  4,  4, /* 80 */
     4,  4,  4,  4,  4,  4,  4,  4,  4,  4,  4,  4,  4,  4,  4,  4, /* 90 */
     4,  4,  4,  4,  4,  4,  4,  4,  4,  4,  4,  4,  4,  4,  4,  4, /* a0 */
     4,  4,  4,  4,  4,  4,  4,  4,  4,  4,  4,  4,  4,  4,  4,  4, /* b0 */
     4,  4,  4,  4,  4,  4,  4,  4,  4,  4,  4,  4,  4,  4,  4,  4, /* c0 */
     4,  4,  4,  4,  4,  4,  4,  4,  4,  4,  4,  4,  4,  4,  4,  4, /* d0 */
     4,  4,  4,  4,  4,  4,  4,  4,  4,  4,  4,  4,  4,  4,  4,  4, /* e0 */
     4,  4,  4,  4,  4,  4,  4,  4,  4,  4,  4,  4,  4,  4,  4,  4, /* f0 */
};
/* clang-format on */

enum step {
    STEP_START,
    STEP_START_LF,
    STEP_METHOD,
    STEP_TARGET,
    STEP_VERSION,
    STEP_LINE_CR,
    STEP_LINE_LF,
    STEP_FIELD,
    STEP_NAME,
    STEP_SPACE,
    STEP_VALUE,
    STEP_VALUE_LF,
    STEP_END_LF,
    STEP_DONE,
};

static bool refuse(struct head *h, uint16_t status, const char *message)
{
    h->status = status;
    h->message = message;
    return false;
}

static size_t run_of(uint8_t class, const uint8_t *p, size_t at, size_t n)
{
    while (at < n && (CLASS[p[at]] & class) != 0)
        at++;
    return at;
}

static struct str text_of(struct span s, const uint8_t *p)
{
    return str_make(p + s.at, s.n);
}

static struct span span_from(const struct head *h)
{
    return (struct span){h->mark, (uint16_t)(h->at - h->mark)};
}

static bool expect_lf(struct head *h, const uint8_t *p, uint8_t next)
{
    if (p[h->at] != '\n')
        return refuse(h, 400, "a carriage return without a line feed");
    h->at++;
    h->step = next;
    return true;
}

static bool step_start(struct head *h, const uint8_t *p, size_t n)
{
    (void)n;
    if (p[h->at] == '\r' &&
        h->at == 0) { /* one empty line before a request: some old clients send it after a body */
        h->at++;
        h->step = STEP_START_LF;
        return true;
    }
    h->mark = h->at;
    h->step = STEP_METHOD;
    return true;
}

static bool step_start_lf(struct head *h, const uint8_t *p, size_t n)
{
    (void)n;
    return expect_lf(h, p, STEP_START);
}

/* What some resource may answer to. CONNECT is for proxies; anything else nobody here has heard of.
 */
static bool method_known(struct str method)
{
    static const struct str known[] = {
        STR_INIT("GET"),    STR_INIT("POST"),    STR_INIT("PUT"),   STR_INIT("HEAD"),
        STR_INIT("DELETE"), STR_INIT("OPTIONS"), STR_INIT("PATCH"), STR_INIT("TRACE"),
    };
    for (size_t i = 0; i < COUNT(known); i++)
        if (str_eq(known[i], method))
            return true;
    return false;
}

static bool step_method(struct head *h, const uint8_t *p, size_t n)
{
    h->at = (uint16_t)run_of(TOKEN, p, h->at, n);
    if (h->at == n)
        return true;
    h->method = span_from(h);
    if (p[h->at] != ' ' || h->method.n == 0)
        return refuse(h, 400, "malformed request line");
    if (!method_known(text_of(h->method, p)))
        return refuse(h, 501, "unknown method");
    h->mark = ++h->at;
    h->step = STEP_TARGET;
    return true;
}

static bool step_target(struct head *h, const uint8_t *p, size_t n)
{
    if (h->at == h->mark && p[h->at] != '/')
        return refuse(h, 400, "the request target must begin with '/'");
    size_t end = run_of(TARGET, p, h->at, n);
    if (h->query_at == 0) {
        const uint8_t *mark = memchr(p + h->at, '?', end - h->at);
        if (mark != NULL)
            h->query_at = (uint16_t)(mark - p);
    }
    h->at = (uint16_t)end;
    if (end == n)
        return true;
    if (p[end] != ' ')
        return refuse(h, 400, "malformed request target");
    h->target = span_from(h);
    h->at++;
    h->sub = 0;
    h->step = STEP_VERSION;
    return true;
}

static bool step_version(struct head *h, const uint8_t *p, size_t n)
{
    static const char form[] = "HTTP/d.d";

    for (; h->sub < sizeof(form) - 1 && h->at < n; h->sub++, h->at++) {
        uint8_t c = p[h->at];
        bool digit = c >= '0' && c <= '9';
        if (form[h->sub] == 'd' ? !digit : c != (uint8_t)form[h->sub])
            return refuse(h, 400, "malformed protocol version");
    }
    if (h->sub < sizeof(form) - 1)
        return true;
    if (p[h->at - 3] != '1')
        return refuse(h, 505, "only HTTP/1.1 and HTTP/1.0 are spoken here");
    h->minor = p[h->at - 1] == '0' ? 0 : 1; /* a later 1.x client must take an answer of 1.1 */
    h->step = STEP_LINE_CR;
    return true;
}

static bool step_line_cr(struct head *h, const uint8_t *p, size_t n)
{
    (void)n;
    if (p[h->at] != '\r')
        return refuse(h, 400, "malformed request line");
    h->at++;
    h->step = STEP_LINE_LF;
    return true;
}

static bool step_line_lf(struct head *h, const uint8_t *p, size_t n)
{
    (void)n;
    return expect_lf(h, p, STEP_FIELD);
}

static bool step_field(struct head *h, const uint8_t *p, size_t n)
{
    (void)n;
    if (p[h->at] == '\r') {
        h->at++;
        h->step = STEP_END_LF;
        return true;
    }
    if (p[h->at] == ' ' || p[h->at] == '\t')
        return refuse(h, 400, "folded header lines are not accepted");
    if (p[h->at] == '\n')
        return refuse(h, 400, "a line feed without a carriage return");
    if (h->field_count == HEAD_FIELDS_MAX)
        return refuse(h, 431, "too many header fields");
    h->mark = h->at;
    h->step = STEP_NAME;
    return true;
}

static bool step_name(struct head *h, const uint8_t *p, size_t n)
{
    h->at = (uint16_t)run_of(TOKEN, p, h->at, n);
    if (h->at == n)
        return true;
    struct span name = span_from(h);
    if (p[h->at] != ':' || name.n == 0)
        return refuse(h, 400, "malformed header name");
    h->fields[h->field_count].name = name;
    h->at++;
    h->step = STEP_SPACE;
    return true;
}

static bool step_space(struct head *h, const uint8_t *p, size_t n)
{
    while (h->at < n && (p[h->at] == ' ' || p[h->at] == '\t'))
        h->at++;
    if (h->at == n)
        return true;
    h->mark = h->at;
    h->step = STEP_VALUE;
    return true;
}

static bool step_value(struct head *h, const uint8_t *p, size_t n)
{
    h->at = (uint16_t)run_of(VALUE, p, h->at, n);
    if (h->at == n)
        return true;
    if (p[h->at] != '\r')
        return refuse(h, 400,
                      p[h->at] == '\n' ? "a line feed without a carriage return"
                                       : "control character in a header");
    struct span value = span_from(h);
    while (value.n > 0 && (p[value.at + value.n - 1] == ' ' || p[value.at + value.n - 1] == '\t'))
        value.n--;
    h->fields[h->field_count].value = value;
    h->at++;
    h->step = STEP_VALUE_LF;
    return true;
}

static bool field_host(struct head *h, struct str value)
{
    if (h->has_host)
        return refuse(h, 400, "more than one Host");
    h->has_host = true;
    if (run_of(HOST, (const uint8_t *)value.p, 0, value.n) != value.n)
        return refuse(h, 400, "malformed Host");
    return true;
}

static bool field_content_length(struct head *h, struct str value)
{
    if (h->has_length)
        return refuse(h, 400, "more than one Content-Length");
    h->has_length = true;
    if (value.n == 0)
        return refuse(h, 400, "malformed Content-Length");
    for (size_t i = 0; i < value.n; i++) {
        unsigned digit = (unsigned char)value.p[i] - (unsigned)'0';
        if (digit > 9)
            return refuse(h, 400, "malformed Content-Length");
        if (h->content_length > (UINT64_MAX - digit) / 10)
            h->content_length =
                UINT64_MAX / 10; /* saturates: over any limit, and stays so with further digits */
        else
            h->content_length = h->content_length * 10 + digit;
    }
    return true;
}

static bool field_transfer_encoding(struct head *h, struct str value)
{
    if (h->chunked)
        return refuse(h, 400, "more than one Transfer-Encoding");
    if (!str_eq_nocase(value, STR("chunked")))
        return refuse(h, 400, "the only transfer coding spoken here is chunked");
    h->chunked = true;
    return true;
}

static void field_connection(struct head *h, struct str value)
{
    for (size_t at = 0; at < value.n;) {
        const char *comma = memchr(value.p + at, ',', value.n - at);
        size_t end = comma == NULL ? value.n : (size_t)(comma - value.p);
        size_t from = at, to = end;
        while (from < to && (value.p[from] == ' ' || value.p[from] == '\t'))
            from++;
        while (to > from && (value.p[to - 1] == ' ' || value.p[to - 1] == '\t'))
            to--;
        struct str option = str_make(value.p + from, to - from);
        h->says_close |= str_eq_nocase(option, STR("close"));
        h->says_keep_alive |= str_eq_nocase(option, STR("keep-alive"));
        at = end + 1;
    }
}

static bool field_expect(struct head *h, struct str value)
{
    if (!str_eq_nocase(value, STR("100-continue")))
        return refuse(h, 417, "the only expectation met here is 100-continue");
    h->expect_continue = true;
    return true;
}

/* The few fields that decide where a request ends; all others are only remembered. */
static bool field_done(struct head *h, const uint8_t *p)
{
    struct str name = text_of(h->fields[h->field_count].name, p);
    struct str value = text_of(h->fields[h->field_count].value, p);

    h->field_count++;
    switch (name.n) {
    case sizeof("host") - 1:
        return !str_eq_nocase(name, STR("host")) || field_host(h, value);
    case sizeof("expect") - 1:
        return !str_eq_nocase(name, STR("expect")) || field_expect(h, value);
    case sizeof("connection") - 1:
        if (str_eq_nocase(name, STR("connection")))
            field_connection(h, value);
        return true;
    case sizeof("content-length") - 1:
        return !str_eq_nocase(name, STR("content-length")) || field_content_length(h, value);
    case sizeof("transfer-encoding") - 1:
        return !str_eq_nocase(name, STR("transfer-encoding")) || field_transfer_encoding(h, value);
    default:
        return true;
    }
}

static bool step_value_lf(struct head *h, const uint8_t *p, size_t n)
{
    (void)n;
    return expect_lf(h, p, STEP_FIELD) && field_done(h, p);
}

/* What only the whole head can tell. */
static bool step_end_lf(struct head *h, const uint8_t *p, size_t n)
{
    (void)n;
    if (!expect_lf(h, p, STEP_DONE))
        return false;
    if (h->minor == 1 && !h->has_host)
        return refuse(h, 400, "Host is missing");
    if (h->chunked && h->has_length)
        return refuse(h, 400, "both Content-Length and Transfer-Encoding");
    if (h->chunked && h->minor == 0)
        return refuse(h, 400, "HTTP/1.0 knows no Transfer-Encoding");
    if (h->minor == 0)
        h->expect_continue = false; /* RFC 9110 10.1.1 */
    return true;
}

bool head_begun(const struct head *h)
{
    return h->step != STEP_START && h->step != STEP_START_LF;
}

enum parse head_parse(struct head *h, struct str bytes, size_t max_bytes)
{
    static bool (*const steps[])(struct head *, const uint8_t *, size_t) = {
        [STEP_START] = step_start,     [STEP_START_LF] = step_start_lf,
        [STEP_METHOD] = step_method,   [STEP_TARGET] = step_target,
        [STEP_VERSION] = step_version, [STEP_LINE_CR] = step_line_cr,
        [STEP_LINE_LF] = step_line_lf, [STEP_FIELD] = step_field,
        [STEP_NAME] = step_name,       [STEP_SPACE] = step_space,
        [STEP_VALUE] = step_value,     [STEP_VALUE_LF] = step_value_lf,
        [STEP_END_LF] = step_end_lf,
    };
    const uint8_t *p = (const uint8_t *)bytes.p;
    size_t n = bytes.n < max_bytes ? bytes.n : max_bytes;

    while (h->at < n && h->step != STEP_DONE)
        if (!steps[h->step](h, p, n))
            return PARSE_REFUSED;
    if (h->step == STEP_DONE)
        return PARSE_DONE;
    if (n == max_bytes) {
        (void)refuse(h, 431, "the request's head is too large");
        return PARSE_REFUSED;
    }
    return PARSE_MORE;
}
