/* SPDX-License-Identifier: Apache-2.0
 * HTTP for commands, over one libcurl handle. */
#include "cli/client.h"

#include <curl/curl.h>
#include <stdlib.h>

#include "base/clock.h"
#include "base/json.h"

static const char DEFAULT_URL[] = "http://localhost:8080";
enum {
    CONNECT_TIMEOUT_S = 10,
    SILENCE_TIMEOUT_S = 60, /* three keep-alive comments of a stream missed */
    ERROR_BODY_MAX = 64 * 1024
};

struct client {
    CURL *curl;
    char *base; /* owned, without a slash at the end */
    struct curl_slist *auth;
    char error[CURL_ERROR_SIZE];
    enum client_failure failure;
    int status;
    bool has_key;
    /* of the transfer under way */
    struct buf *body;
    const struct client_stream *stream; /* NULL: a plain call */
    bool stopped;                       /* `take` wants no more */
    int64_t heard_us;                   /* monotonic: when bytes of the stream came last */
};

/* Whether libcurl can go by it. */
static bool check_url(const char *url, const char *name, struct err *e)
{
    CURLU *parsed = curl_url();
    CURLUcode code =
        parsed == NULL ? CURLUE_OUT_OF_MEMORY : curl_url_set(parsed, CURLUPART_URL, url, 0);

    curl_url_cleanup(parsed);
    if (code == CURLUE_OK)
        return true;
    if (code == CURLUE_BAD_PORT_NUMBER)
        return err_set(e, ERR_VALIDATION,
                       "%s: the port must be a number from 1 to 65535: \"%.200s\"", name, url);
    return err_set(e, ERR_VALIDATION, "%s: %s: \"%.200s\"", name, curl_url_strerror(code), url);
}

static char *base_url(const char *url, struct err *e)
{
    const char *text = url != NULL ? url : getenv("REBUNO_URL");
    const char *name = url != NULL ? "--url" : "REBUNO_URL";
    struct str s = str_of(text == NULL || text[0] == '\0' ? DEFAULT_URL : text);

    if (!str_starts(s, STR("http://")) && !str_starts(s, STR("https://"))) {
        err_set(e, ERR_VALIDATION, "%s: expected http://host:port or https://host, not \"%.200s\"",
                name, s.p);
        return NULL;
    }
    if (str_has_control(s) || memchr(s.p, ' ', s.n) != NULL || memchr(s.p, '?', s.n) != NULL) {
        err_set(e, ERR_VALIDATION, "%s is not a URL that paths can be added to", name);
        return NULL;
    }
    if (!check_url(s.p, name, e))
        return NULL;
    while (s.n > 0 && s.p[s.n - 1] == '/')
        s.n--;
    if (s.n > 3 && str_eq(str_slice(s, s.n - 3, s.n), STR("/v0"))) {
        err_set(e, ERR_VALIDATION, "%s: expected the kernel's address alone, without /v0", name);
        return NULL;
    }
    return xstrdup(s);
}

/* A kernel on this machine is reached directly, whatever proxy is set for the world. */
static void set_no_proxy(CURL *curl)
{
    const char *own = getenv("no_proxy") != NULL ? getenv("no_proxy") : getenv("NO_PROXY");
    struct buf all = {0};

    if (own != NULL && strcmp(own, "*") == 0)
        return;
    buf_printf(&all, "localhost,127.0.0.1,::1%s%s", own == NULL ? "" : ",", own == NULL ? "" : own);
    buf_add_byte(&all, '\0');
    curl_easy_setopt(curl, CURLOPT_NOPROXY, all.p);
    buf_free(&all);
}

static bool set_key(struct client *c, struct err *e)
{
    const char *key = getenv("REBUNO_API_KEY");
    struct buf header = {0};

    if (key == NULL || key[0] == '\0')
        return true;
    if (str_has_control(str_of(key)))
        return err_set(e, ERR_VALIDATION, "REBUNO_API_KEY holds control characters (a line feed?)");
    buf_printf(&header, "Authorization: Bearer %s", key);
    buf_add_byte(&header, '\0');
    c->auth = curl_slist_append(NULL, header.p);
    c->has_key = true;
    buf_free(&header);
    return true;
}

struct client *client_new(const char *url, struct err *e)
{
    struct client *c = xzalloc(sizeof *c);

    curl_global_init(CURL_GLOBAL_DEFAULT);
    c->base = base_url(url, e);
    c->curl = curl_easy_init();
    if (c->base != NULL && c->curl == NULL)
        err_set(e, ERR_INTERNAL, "libcurl cannot be started");
    if (c->base == NULL || c->curl == NULL || !set_key(c, e)) {
        client_free(c);
        return NULL;
    }
    return c;
}

void client_free(struct client *c)
{
    if (c == NULL)
        return;
    if (c->curl != NULL)
        curl_easy_cleanup(c->curl);
    curl_slist_free_all(c->auth);
    free(c->base);
    free(c);
}

const char *client_url(const struct client *c)
{
    return c->base;
}

enum client_failure client_failure(const struct client *c)
{
    return c->failure;
}

int client_status(const struct client *c)
{
    return c->status;
}

/* ---- one transfer ---- */

static int answer_status(struct client *c)
{
    long status = 0;

    curl_easy_getinfo(c->curl, CURLINFO_RESPONSE_CODE, &status);
    return (int)status;
}

static bool is_event_stream(struct client *c)
{
    char *type = NULL;

    curl_easy_getinfo(c->curl, CURLINFO_CONTENT_TYPE, &type);
    return str_starts(type == NULL ? STR("") : str_of(type), STR("text/event-stream"));
}

static size_t take_bytes(char *p, size_t size, size_t n, void *ctx)
{
    struct client *c = ctx;
    struct str bytes = str_make(p, size * n);

    c->heard_us = clock_mono_us();
    if (c->stream != NULL && answer_status(c) == 200 && !is_event_stream(c))
        return 0;
    if (c->stream != NULL && answer_status(c) == 200) {
        if (c->stream->take(c->stream->ctx, bytes))
            return bytes.n;
        c->stopped = true;
        return 0;
    }
    if (c->stream != NULL && c->body->n + bytes.n > ERROR_BODY_MAX)
        return 0;
    buf_add(c->body, bytes);
    return c->body->failed ? 0 : bytes.n;
}

/* libcurl's own speed limit would take a stream's few bytes of keep-alive for silence. */
static int on_progress(void *ctx, curl_off_t a, curl_off_t b, curl_off_t d, curl_off_t f)
{
    const struct client *c = ctx;

    (void)a, (void)b, (void)d, (void)f;
    if (clock_mono_us() - c->heard_us > SILENCE_TIMEOUT_S * US_PER_S)
        return 1;
    if (c->stream->idle != NULL)
        c->stream->idle(c->stream->ctx);
    return 0;
}

static struct curl_slist *add_header(struct curl_slist *list, const char *line)
{
    struct curl_slist *longer = curl_slist_append(list, line);

    ASSERT(longer != NULL);
    return longer;
}

static struct curl_slist *headers_of(const struct client *c, bool has_body)
{
    struct curl_slist *list = NULL;

    /* "Name:" without a value keeps libcurl from adding its own. */
    list = add_header(list, has_body ? "Content-Type: application/json" : "Content-Type:");
    list = add_header(list, "Expect:");
    if (c->auth != NULL)
        list = add_header(list, c->auth->data);
    list = add_header(list,
                      c->stream != NULL ? "Accept: text/event-stream" : "Accept: application/json");
    if (c->stream != NULL && c->stream->last_event_id != NULL) {
        struct buf line = {0};

        buf_printf(&line, "Last-Event-ID: %s", c->stream->last_event_id);
        buf_add_byte(&line, '\0');
        list = add_header(list, line.p);
        buf_free(&line);
    }
    return list;
}

static void set_options(struct client *c, const char *method, struct str body)
{
    curl_easy_reset(c->curl); /* keeps the connection */
    curl_easy_setopt(c->curl, CURLOPT_PROTOCOLS_STR, "http,https");
    curl_easy_setopt(c->curl, CURLOPT_ERRORBUFFER, c->error);
    curl_easy_setopt(c->curl, CURLOPT_USERAGENT, "rebuno/" REBUNO_VERSION);
    curl_easy_setopt(c->curl, CURLOPT_CONNECTTIMEOUT, (long)CONNECT_TIMEOUT_S);
    if (c->stream == NULL) {
        curl_easy_setopt(c->curl, CURLOPT_LOW_SPEED_LIMIT, 1L);
        curl_easy_setopt(c->curl, CURLOPT_LOW_SPEED_TIME, (long)SILENCE_TIMEOUT_S);
    } else {
        c->heard_us = clock_mono_us();
        curl_easy_setopt(c->curl, CURLOPT_XFERINFOFUNCTION, on_progress);
        curl_easy_setopt(c->curl, CURLOPT_XFERINFODATA, c);
        curl_easy_setopt(c->curl, CURLOPT_NOPROGRESS, 0L);
    }
    curl_easy_setopt(c->curl, CURLOPT_WRITEFUNCTION, take_bytes);
    curl_easy_setopt(c->curl, CURLOPT_WRITEDATA, c);
    set_no_proxy(c->curl);
    if (strcmp(method, "GET") == 0)
        return;
    curl_easy_setopt(c->curl, CURLOPT_CUSTOMREQUEST, method);
    if (strcmp(method, "POST") == 0) {
        curl_easy_setopt(c->curl, CURLOPT_POSTFIELDSIZE_LARGE, (curl_off_t)body.n);
        curl_easy_setopt(c->curl, CURLOPT_POSTFIELDS, body.p == NULL ? "" : body.p);
    }
}

static CURLcode transfer(struct client *c, const char *method, const char *path, struct str body)
{
    struct buf url = {0};

    c->status = 0;
    c->failure = CLIENT_OK;
    c->stopped = false;
    c->error[0] = '\0';
    set_options(c, method, body);
    struct curl_slist *headers = headers_of(c, str_present(body));
    curl_easy_setopt(c->curl, CURLOPT_HTTPHEADER, headers);
    buf_printf(&url, "%s%s", c->base, path);
    buf_add_byte(&url, '\0');
    curl_easy_setopt(c->curl, CURLOPT_URL, url.p);
    CURLcode code = curl_easy_perform(c->curl);
    c->status = answer_status(c);
    curl_slist_free_all(headers);
    buf_free(&url);
    return code;
}

/* ---- what became of it ---- */

static bool fail_transfer(struct client *c, CURLcode code, bool writes, struct err *e)
{
    const char *why = c->error[0] != '\0' ? c->error : curl_easy_strerror(code);
    long os_errno = 0;

    curl_easy_getinfo(c->curl, CURLINFO_OS_ERRNO, &os_errno);
    if (code == CURLE_COULDNT_CONNECT &&
        os_errno != 0) /* shorter than libcurl's, which repeats the address */
        why = strerror((int)os_errno);
    switch ((int)code) {
    case CURLE_COULDNT_CONNECT:
    case CURLE_COULDNT_RESOLVE_HOST:
    case CURLE_COULDNT_RESOLVE_PROXY:
        c->failure = CLIENT_UNREACHABLE;
        return err_set(e, ERR_UNAVAILABLE,
                       "cannot reach the kernel at %.200s: %.150s; start one with 'rebuno dev', "
                       "or say with --url or REBUNO_URL where it is",
                       c->base, why);
    case CURLE_SSL_CONNECT_ERROR: /* no request was sent */
        c->failure = CLIENT_UNREACHABLE;
        return err_set(e, ERR_UNAVAILABLE,
                       "the connection to the kernel at %.200s failed: %.150s; does it speak plain "
                       "http?",
                       c->base, why);
    case CURLE_OUT_OF_MEMORY:
    case CURLE_WRITE_ERROR:
        c->failure = CLIENT_REFUSED;
        return err_set(e, ERR_INTERNAL, "the answer of %.200s is too large", c->base);
    default:
        c->failure = CLIENT_BROKEN;
        return err_set(e, ERR_UNAVAILABLE,
                       "the connection to the kernel at %.200s failed: %.150s%s", c->base, why,
                       writes ? " (the request may have taken effect all the same)" : "");
    }
}

static enum err_code code_of_status(int status)
{
    switch (status) {
    case 401:
        return ERR_UNAUTHORIZED;
    case 403:
        return ERR_FORBIDDEN;
    case 404:
        return ERR_NOT_FOUND;
    case 409:
        return ERR_CONFLICT;
    default:
        return status >= 500 ? ERR_UNAVAILABLE : ERR_VALIDATION;
    }
}

/* The server's envelope, or that there was none. */
static bool fail_status(struct client *c, struct str body, struct err *e)
{
    enum err_code kind = code_of_status(c->status);
    struct arena a = {0};
    struct err ignored;

    c->failure = c->status >= 500 || c->status == 429 ? CLIENT_BUSY : CLIENT_REFUSED;
    if (!json_check(body, &ignored) || json_type_of(body) != JSON_OBJECT) {
        err_set(e, kind, "%.200s answered with HTTP status %d, which is no answer of a kernel's",
                c->base, c->status);
        return false;
    }
    struct str message = json_get(body, STR("message"), &a), code = json_get(body, STR("code"), &a);
    if (json_type_of(message) == JSON_STRING && json_type_of(code) == JSON_STRING) {
        message = json_string(message, &a);
        code = json_string(code, &a);
        const char *key_advice = c->status != 401 ? ""
                                 : c->has_key     ? "; it came from REBUNO_API_KEY"
                                                  : "; give the token or a key in REBUNO_API_KEY";
        err_set(e, kind, "%.*s (%.*s)%s",
                STR_ARG(str_slice(message, 0, message.n < 400 ? message.n : 400)), STR_ARG(code),
                key_advice);
    } else {
        err_set(e, kind, "%.200s answered with HTTP status %d and no reason; is it a kernel?",
                c->base, c->status);
    }
    arena_free(&a);
    return false;
}

bool client_call(struct client *c, const char *method, const char *path, struct str body,
                 struct buf *answer, struct err *e)
{
    struct err bad;

    c->body = answer;
    c->stream = NULL;
    buf_clear(answer);
    CURLcode code = transfer(c, method, path, body);
    if (code != CURLE_OK)
        return fail_transfer(c, code, strcmp(method, "GET") != 0, e);
    if (c->status < 200 || c->status > 299)
        return fail_status(c, buf_str(answer), e);
    if (answer->n > 0 && !json_check(buf_str(answer), &bad)) {
        c->failure = CLIENT_REFUSED;
        return err_set(e, ERR_VALIDATION, "what answers at %.200s is not a kernel: %.200s", c->base,
                       bad.message);
    }
    return true;
}

bool client_get(struct client *c, const char *path, struct buf *answer, struct err *e)
{
    if (!client_call(c, "GET", path, STR_NONE, answer, e))
        return false;
    if (answer->n > 0)
        return true;
    c->failure = CLIENT_REFUSED;
    return err_set(e, ERR_VALIDATION, "what answers at %.200s is not a kernel: an empty answer",
                   c->base);
}

static bool fail_no_stream(struct client *c, struct err *e)
{
    c->failure = CLIENT_REFUSED;
    return err_set(e, ERR_VALIDATION, "what answers at %.200s is not a kernel: no event stream",
                   c->base);
}

bool client_follow(struct client *c, const struct client_stream *stream, struct err *e)
{
    struct buf error_body = {0};
    bool ok = false;

    c->body = &error_body;
    c->stream = stream;
    CURLcode code = transfer(c, "GET", stream->path, STR_NONE);
    if (c->status == 200 && !is_event_stream(c))
        fail_no_stream(c, e);
    else if (c->stopped)
        ok = true;
    else if (c->status != 0 && c->status != 200 && (code == CURLE_OK || code == CURLE_WRITE_ERROR))
        fail_status(c, buf_str(&error_body), e);
    else if (code != CURLE_OK)
        fail_transfer(c, code, false, e);
    else
        ok = true;
    c->stream = NULL;
    buf_free(&error_body);
    return ok;
}

void client_escape(struct buf *out, struct str s)
{
    static const char plain[] = "-._~";

    for (size_t i = 0; i < s.n; i++) {
        char b = s.p[i];

        if ((b >= 'a' && b <= 'z') || (b >= 'A' && b <= 'Z') || (b >= '0' && b <= '9') ||
            (b != '\0' && strchr(plain, b) != NULL)) {
            buf_add_byte(out, b);
        } else {
            buf_add_byte(out, '%');
            buf_printf(out, "%02X", (unsigned)(unsigned char)b);
        }
    }
}
