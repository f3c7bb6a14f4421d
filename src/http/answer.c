/* SPDX-License-Identifier: Apache-2.0
 * Heads of answers, and the answers to what was refused before anybody was asked. */
#include "http/exchange.h"

#include <stdio.h>
#include <time.h>

static struct str reason_of(int status)
{
    static const struct {
        int status;
        struct str reason;
    } reasons[] = {
        {200, STR_INIT("OK")},
        {201, STR_INIT("Created")},
        {202, STR_INIT("Accepted")},
        {204, STR_INIT("No Content")},
        {301, STR_INIT("Moved Permanently")},
        {302, STR_INIT("Found")},
        {303, STR_INIT("See Other")},
        {304, STR_INIT("Not Modified")},
        {307, STR_INIT("Temporary Redirect")},
        {308, STR_INIT("Permanent Redirect")},
        {400, STR_INIT("Bad Request")},
        {401, STR_INIT("Unauthorized")},
        {403, STR_INIT("Forbidden")},
        {404, STR_INIT("Not Found")},
        {405, STR_INIT("Method Not Allowed")},
        {406, STR_INIT("Not Acceptable")},
        {408, STR_INIT("Request Timeout")},
        {409, STR_INIT("Conflict")},
        {410, STR_INIT("Gone")},
        {411, STR_INIT("Length Required")},
        {412, STR_INIT("Precondition Failed")},
        {413, STR_INIT("Content Too Large")},
        {414, STR_INIT("URI Too Long")},
        {415, STR_INIT("Unsupported Media Type")},
        {417, STR_INIT("Expectation Failed")},
        {422, STR_INIT("Unprocessable Content")},
        {429, STR_INIT("Too Many Requests")},
        {431, STR_INIT("Request Header Fields Too Large")},
        {500, STR_INIT("Internal Server Error")},
        {501, STR_INIT("Not Implemented")},
        {502, STR_INIT("Bad Gateway")},
        {503, STR_INIT("Service Unavailable")},
        {504, STR_INIT("Gateway Timeout")},
        {505, STR_INIT("HTTP Version Not Supported")},
    };
    for (size_t i = 0; i < COUNT(reasons); i++)
        if (reasons[i].status == status)
            return reasons[i].reason;
    return STR("");
}

static void put_two(char *p, int v)
{
    p[0] = (char)('0' + v / 10 % 10);
    p[1] = (char)('0' + v % 10);
}

/* The Date line's value changes once a second and is asked for thousands of times. */
static struct str date_now(struct loop *l)
{
    static const char days[] = "SunMonTueWedThuFriSat",
                      months[] = "JanFebMarAprMayJunJulAugSepOctNovDec";
    time_t now = time(NULL);
    struct tm tm;

    if ((int64_t)now != l->date_s && gmtime_r(&now, &tm) != NULL) {
        static const char form[DATE_BYTES + 1] = "ddd, 00 mmm 0000 00:00:00 GMT";
        char *d = l->date;

        memcpy(d, form, DATE_BYTES);
        memcpy(d, days + 3 * tm.tm_wday, 3);
        put_two(d + 5, tm.tm_mday);
        memcpy(d + 8, months + 3 * tm.tm_mon, 3);
        put_two(d + 12, (tm.tm_year + 1900) / 100);
        put_two(d + 14, (tm.tm_year + 1900) % 100);
        put_two(d + 17, tm.tm_hour);
        put_two(d + 20, tm.tm_min);
        put_two(d + 23, tm.tm_sec);
        l->date_s = now;
    }
    return str_make(l->date, DATE_BYTES);
}

bool answer_has_body(int status)
{
    return status >= 200 && status != 204 && status != 304;
}

static void add_status_line(struct buf *out, int status)
{
    char digits[3];

    digits[0] = (char)('0' + status / 100 % 10);
    put_two(digits + 1, status % 100);
    buf_add(out, STR("HTTP/1.1 "));
    buf_add(out, str_make(digits, sizeof(digits)));
    buf_add_byte(out, ' ');
    buf_add(out, reason_of(status));
}

void answer_write_head(struct loop *l, const struct http_exchange *x, const size_t *body_bytes,
                       bool keep_alive, struct buf *out)
{
    add_status_line(out, x->status);
    buf_add(out, STR("\r\nDate: "));
    buf_add(out, date_now(l));
    if (str_present(x->content_type)) {
        buf_add(out, STR("\r\nContent-Type: "));
        buf_add(out, x->content_type);
    }
    if (body_bytes != NULL && answer_has_body(x->status)) {
        buf_add(out, STR("\r\nContent-Length: "));
        buf_add_int(out, (int64_t)*body_bytes);
    }
    if (body_bytes == NULL && x->head.minor == 1)
        buf_add(out, STR("\r\nTransfer-Encoding: chunked"));
    if (!keep_alive)
        buf_add(out, STR("\r\nConnection: close"));
    else if (x->head.minor == 0)
        buf_add(out, STR("\r\nConnection: keep-alive"));
    buf_add(out, STR("\r\n"));
    buf_add(out, x->headers);
    buf_add(out, STR("\r\n"));
}

void answer_refusal(struct http_exchange *x, int status, const char *message)
{
    const struct http_options *opt = &x->loop->server->opt;
    struct buf body = {0};
    struct http_answer answer = {
        .status = status, .content_type = STR("text/plain; charset=utf-8"), .body = &body};

    if (opt->on_error != NULL) {
        opt->on_error(status, message, &answer, &body, opt->ctx);
    } else {
        buf_add_z(&body, message);
        buf_add_byte(&body, '\n');
    }
    x->status = answer.status;
    x->content_type = arena_str(&x->arena, answer.content_type);
    x->headers = arena_str(&x->arena, answer.headers);
    x->answer = body;
    x->close = true;
    x->answered = true;
    atomic_store(&x->owed, false);
}
