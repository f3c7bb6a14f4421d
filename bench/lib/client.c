/* SPDX-License-Identifier: Apache-2.0
 * One keep-alive HTTP connection. */
#include "lib/client.h"

#include <errno.h>
#include <netinet/tcp.h>
#include <stdlib.h>
#include <strings.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/arena.h"

enum { RECEIVE_BYTES = 65536 };

/* 1 and the answer's length; 0: more must come; -1: not an answer that this client understands. */
static int answer_parse(struct str in, struct answer *a, size_t *used)
{
    static const struct str LENGTH = STR_INIT("content-length:");
    const char *end = memmem(in.p, in.n, "\r\n\r\n", 4);
    size_t length = 0;

    if (end == NULL)
        return 0;
    if (in.n < 12 || memcmp(in.p, "HTTP/1.1 ", 9) != 0)
        return -1;
    a->status = (in.p[9] - '0') * 100 + (in.p[10] - '0') * 10 + (in.p[11] - '0');
    const char *line = memchr(in.p, '\n', in.n);
    for (line++; line < end; line = (const char *)memchr(line, '\n', in.n) + 1) {
        if ((line[0] | 0x20) == 'c' && (size_t)(end - line) > LENGTH.n &&
            str_eq_nocase(str_make(line, LENGTH.n), LENGTH))
            length = strtoul(line + LENGTH.n, NULL, 10);
        else if ((line[0] | 0x20) == 't' && strncasecmp(line, "transfer-encoding", 17) == 0)
            return -1;
    }
    size_t head = (size_t)(end - in.p) + 4;
    if (in.n < head + length)
        return 0;
    a->body = str_make(in.p + head, length);
    *used = head + length;
    return 1;
}

static void deliver(struct client *c, struct str in)
{
    struct answer a = {.started_ns = c->started_ns};
    size_t used = 0;
    int got = c->waiting ? answer_parse(in, &a, &used) : -1;

    if (got < 0 || (got > 0 && used != in.n))
        die("not an answer: %.*s", (int)(in.n > 200 ? 200 : in.n), in.p);
    if (got == 0) {
        if (c->in.n == 0)
            buf_add(&c->in, in);
        return;
    }
    a.ended_ns = now_ns();
    c->waiting = false;
    c->answered(c, &a);
    if (c->in.p != NULL && in.p == c->in.p)
        buf_clear(&c->in);
}

static void receive(struct client *c)
{
    static char bytes[RECEIVE_BYTES];
    ssize_t n = recv(c->source.fd, bytes, sizeof bytes, 0);

    if (n < 0 && (errno == EAGAIN || errno == EINTR))
        return;
    if (n <= 0)
        die("the server closed a connection%s", c->waiting ? " in place of an answer" : "");
    if (c->streaming) {
        c->streamed += (size_t)n;
        return;
    }
    if (c->in.n == 0) {
        deliver(c, str_make(bytes, (size_t)n));
        return;
    }
    buf_add(&c->in, str_make(bytes, (size_t)n));
    deliver(c, buf_str(&c->in));
}

static void flush(struct client *c)
{
    ssize_t n = send(c->source.fd, c->out.p + c->sent, c->out.n - c->sent, MSG_NOSIGNAL);

    if (n < 0 && errno != EAGAIN && errno != EINTR)
        die("send: %s", strerror(errno));
    bool was_behind = c->sent > 0;
    c->sent += n > 0 ? (size_t)n : 0;
    if (c->sent < c->out.n)
        loop_change(c->loop, &c->source, EPOLLIN | EPOLLOUT);
    else if (was_behind)
        loop_change(c->loop, &c->source, EPOLLIN);
}

static void client_ready(struct source *s, uint32_t events)
{
    struct client *c = (struct client *)s; /* its first member */

    if (events & EPOLLOUT)
        flush(c);
    if (events & (EPOLLIN | EPOLLHUP | EPOLLERR))
        receive(c);
}

void client_send(struct client *c, int64_t started_ns)
{
    if (c->out.failed)
        die("out of memory");
    c->sent = 0;
    c->started_ns = started_ns;
    c->waiting = true;
    flush(c);
}

struct client *client_open(struct loop *l, uint16_t port)
{
    struct client *c = xzalloc(sizeof *c);
    struct sockaddr_in addr = {.sin_family = AF_INET, .sin_port = htons(port)};
    int one = 1;

    addr.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd < 0 || connect(fd, (struct sockaddr *)&addr, sizeof addr) != 0)
        die("connect to 127.0.0.1:%u: %s", port, strerror(errno));
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    if (ioctl(fd, FIONBIO, &one) != 0)
        die("connection: %s", strerror(errno));
    c->source = (struct source){.fd = fd, .ready = client_ready};
    c->loop = l;
    loop_add(l, &c->source, EPOLLIN);
    return c;
}

void client_close(struct client *c)
{
    close(c->source.fd);
    buf_free(&c->out);
    buf_free(&c->in);
    free(c);
}
