/* SPDX-License-Identifier: Apache-2.0
 * The other side for the HTTP tests: a client on blocking sockets whose every wait has a deadline,
 * and a small application (http_app.h) to serve. Each test program includes both; nothing here is
 * shared between processes. */
#ifndef UNIT_HTTP_PEER_H
#define UNIT_HTTP_PEER_H

#include "base/buf.h"
#include "base/clock.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sched.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

#define DEADLINE_US (60 * US_PER_S) /* of a test that hangs */

/* Waits until cond holds. */
#define WAIT_FOR(cond)                                                                             \
    do {                                                                                           \
        int64_t wait_until = clock_mono_us() + DEADLINE_US;                                        \
        while (!(cond)) {                                                                          \
            if (clock_mono_us() > wait_until)                                                      \
                fail_msg("waited too long for: %s", #cond);                                        \
            peer_pause();                                                                          \
        }                                                                                          \
    } while (0)

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define SANITIZED true /* sizes of memory mean nothing then */
#else
#define SANITIZED false
#endif

#define SEND(p, text) peer_send((p), STR(text))

struct peer {
    int fd;
    struct buf in; /* received and not yet taken */
};

struct answer {
    int status;
    struct str head; /* in `text`, from the status line to the empty line */
    struct str body; /* decoded */
    struct buf text, decoded;
};

static inline void peer_pause(void)
{
    struct timespec t = {.tv_nsec = 200 * 1000};

    nanosleep(&t, NULL);
}

static inline struct peer peer_connect(uint16_t port)
{
    struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons(port)};
    struct peer p = {.fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)};
    int one = 1;

    to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    assert_true(p.fd >= 0);
    assert_int_equal(connect(p.fd, (struct sockaddr *)&to, sizeof(to)), 0);
    setsockopt(p.fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
    return p;
}

static inline void peer_close(struct peer *p)
{
    close(p->fd);
    buf_free(&p->in);
    p->fd = -1;
}

/* Closes with a reset instead of a FIN. */
static inline void peer_reset(struct peer *p)
{
    struct linger now = {.l_onoff = 1};

    setsockopt(p->fd, SOL_SOCKET, SO_LINGER, &now, sizeof(now));
    peer_close(p);
}

static inline bool peer_poll(struct peer *p, short events, int64_t timeout_us)
{
    struct pollfd pfd = {.fd = p->fd, .events = events};

    return poll(&pfd, 1, (int)(timeout_us / US_PER_MS)) > 0;
}

/* How much the kernel took before the other side stopped listening or the socket stayed full for
 * full_us. */
static inline size_t peer_send_some(struct peer *p, struct str bytes, int64_t full_us)
{
    size_t at = 0;

    while (at < bytes.n) {
        if (!peer_poll(p, POLLOUT, full_us))
            break;
        ssize_t n = send(p->fd, bytes.p + at, bytes.n - at, MSG_NOSIGNAL | MSG_DONTWAIT);
        if (n < 0 && errno != EAGAIN && errno != EINTR)
            break;
        at += n > 0 ? (size_t)n : 0;
    }
    return at;
}

static inline void peer_send(struct peer *p, struct str bytes)
{
    assert_int_equal(peer_send_some(p, bytes, DEADLINE_US), bytes.n);
}

/* False: the end of the connection, in order or by a reset. */
static inline bool peer_more(struct peer *p)
{
    if (!peer_poll(p, POLLIN, DEADLINE_US))
        fail_msg("no answer; have %zu bytes: %.*s", p->in.n, (int)(p->in.n < 500 ? p->in.n : 500),
                 p->in.p);
    buf_reserve(&p->in, 64 * 1024);
    ssize_t n = recv(p->fd, p->in.p + p->in.n, 64 * 1024, 0);
    if (n <= 0)
        return false;
    p->in.n += (size_t)n;
    return true;
}

static inline void peer_expect_end(struct peer *p)
{
    while (peer_more(p))
        ;
    if (p->in.n != 0)
        fail_msg("bytes after the last answer: %.*s", (int)p->in.n, p->in.p);
}

static inline struct str answer_header(const struct answer *a, const char *name)
{
    struct str wanted = str_of(name);

    for (size_t at = 0; at < a->head.n;) {
        const char *line = a->head.p + at;
        const char *end = memchr(line, '\r', a->head.n - at);
        if (end == NULL)
            break;
        size_t n = (size_t)(end - line);
        if (n > wanted.n + 1 && str_eq_nocase(str_make(line, wanted.n), wanted) &&
            line[wanted.n] == ':')
            return str_make(line + wanted.n + 2, n - wanted.n - 2);
        at += n + 2;
    }
    return STR_NONE;
}

/* Bytes of the head at the front of p->in, empty line included; 0: not all there. */
static inline size_t peer_head_bytes(const struct peer *p)
{
    const char *end = p->in.n == 0 ? NULL : memmem(p->in.p, p->in.n, "\r\n\r\n", 4);

    return end == NULL ? 0 : (size_t)(end - p->in.p) + 4;
}

static inline void peer_need(struct peer *p, size_t n)
{
    while (p->in.n < n)
        if (!peer_more(p))
            fail_msg("the connection ended after %zu of %zu bytes", p->in.n, n);
}

/* One chunk's bytes are appended to `out`; false at the last one. */
static inline bool peer_chunk(struct peer *p, struct buf *out)
{
    char *end;

    while (p->in.n == 0 || memmem(p->in.p, p->in.n, "\r\n", 2) == NULL)
        peer_need(p, p->in.n + 1);
    size_t line = (size_t)((char *)memmem(p->in.p, p->in.n, "\r\n", 2) - p->in.p) + 2;
    size_t n = strtoul(p->in.p, &end, 16);
    assert_true(*end == '\r');
    peer_need(p, line + n + 2);
    buf_add(out, str_make(p->in.p + line, n));
    assert_memory_equal(p->in.p + line + n, "\r\n", 2);
    buf_consume(&p->in, line + n + 2);
    return n > 0;
}

static inline void answer_free(struct answer *a)
{
    buf_free(&a->text);
    buf_free(&a->decoded);
    *a = (struct answer){0};
}

/* The head alone: what follows stays in p->in. */
static inline void peer_answer_head(struct peer *p, struct answer *a)
{
    size_t n;

    answer_free(a);
    while ((n = peer_head_bytes(p)) == 0)
        if (!peer_more(p))
            fail_msg("the connection ended without an answer");
    buf_add(&a->text, str_make(p->in.p, n));
    buf_consume(&p->in, n);
    a->head = buf_str(&a->text);
    assert_memory_equal(a->head.p, "HTTP/1.1 ", 9);
    a->status = atoi(a->head.p + 9);
}

/* A whole answer. bodiless: to a HEAD. */
static inline void peer_answer(struct peer *p, struct answer *a, bool bodiless)
{
    peer_answer_head(p, a);
    struct str length = answer_header(a, "Content-Length"),
               coding = answer_header(a, "Transfer-Encoding");
    int64_t n = 0;
    assert_false(str_present(length) && str_present(coding));
    if (bodiless || a->status == 204 || a->status == 304 || a->status < 200) {
        n = 0;
    } else if (str_present(coding)) {
        while (peer_chunk(p, &a->decoded))
            ;
    } else if (str_present(length)) {
        assert_true(str_to_int64(length, &n));
        peer_need(p, (size_t)n);
        buf_add(&a->decoded, str_make(p->in.p, (size_t)n));
        buf_consume(&p->in, (size_t)n);
    } else {
        while (peer_more(p))
            ;
        buf_add(&a->decoded, buf_str(&p->in));
        buf_clear(&p->in);
    }
    a->body = buf_str(&a->decoded);
}

static inline void peer_expect(struct peer *p, int status, const char *body)
{
    struct answer a = {0};

    peer_answer(p, &a, false);
    if (a.status != status || (body != NULL && !str_eq(a.body, str_of(body))))
        fail_msg("expected %d %s, got %.*s%.*s", status, body == NULL ? "" : body, STR_ARG(a.head),
                 STR_ARG(a.body));
    answer_free(&a);
}

/* A fresh connection for one exchange. */
static inline void peer_once(uint16_t port, struct str request, int status, const char *body)
{
    struct peer p = peer_connect(port);

    peer_send(&p, request);
    peer_expect(&p, status, body);
    peer_close(&p);
}

#endif
