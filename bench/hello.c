/* SPDX-License-Identifier: Apache-2.0
 * The bare server: reads the same requests as the kernel and answers 200 with a body of the same
 * size, and does nothing else. What it reaches is what the machine, its network stack and the load
 * generator can do.
 *
 *   hello PORT */
#include <errno.h>
#include <stdlib.h>
#include <strings.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <netinet/tcp.h>
#include <unistd.h>

#include "base/arena.h"
#include "base/buf.h"
#include "lib/loop.h"

#define HEAD                                                                                       \
    "HTTP/1.1 200 OK\r\nContent-Type: application/json; charset=utf-8\r\n"                         \
    "X-Request-Id: 01920000-0000-7000-8000-000000000001\r\n"
#define STEP_ID "0000000000000000000000000000000000000000000000000000000000000000"

static const struct str PROCEED = STR_INIT(
    HEAD "Content-Length: 99\r\n\r\n{\"decision\":\"proceed\",\"step_id\":\"" STEP_ID "\"}");
static const struct str RECORDED =
    STR_INIT(HEAD "Content-Length: 23\r\n\r\n{\"decision\":\"recorded\"}");

struct peer {
    struct source source;
    struct buf in; /* a request that did not come whole */
};

struct server {
    struct source source;
    struct loop loop;
};
static struct server server; /* sources know no owner, and there is but one */

static void peer_close(struct peer *p)
{
    close(p->source.fd);
    buf_free(&p->in);
    free(p);
}

/* Length of the whole request at the front, or 0. */
static size_t request_whole(struct str in)
{
    static const struct str LENGTH = STR_INIT("content-length:");
    const char *end = memmem(in.p, in.n, "\r\n\r\n", 4);
    size_t length = 0;

    if (end == NULL)
        return 0;
    for (const char *line = in.p; line < end; line = (const char *)memchr(line, '\n', in.n) + 1)
        if ((line[0] | 0x20) == 'c' && str_eq_nocase(str_make(line, LENGTH.n), LENGTH))
            length = strtoul(line + LENGTH.n, NULL, 10);
    size_t whole = (size_t)(end - in.p) + 4 + length;
    return in.n < whole ? 0 : whole;
}

static void answer(struct peer *p, struct str in)
{
    size_t whole = request_whole(in);

    if (whole == 0) {
        if (p->in.n == 0)
            buf_add(&p->in, in);
        return;
    }
    const char *space = memmem(in.p, in.n, " HTTP/1.1", 9);
    bool submit = space != NULL && space - in.p > 6 && memcmp(space - 6, "/steps", 6) == 0;
    struct str out = submit ? PROCEED : RECORDED;
    if (send(p->source.fd, out.p, out.n, MSG_NOSIGNAL) != (ssize_t)out.n)
        die("send: %s", strerror(errno));
    buf_clear(&p->in);
}

static void peer_ready(struct source *s, uint32_t events)
{
    struct peer *p = (struct peer *)s; /* its first member */
    static char bytes[65536];
    ssize_t n = recv(s->fd, bytes, sizeof bytes, 0);

    (void)events;
    if (n < 0 && (errno == EAGAIN || errno == EINTR))
        return;
    if (n <= 0) {
        peer_close(p);
        return;
    }
    if (p->in.n == 0) {
        answer(p, str_make(bytes, (size_t)n));
        return;
    }
    buf_add(&p->in, str_make(bytes, (size_t)n));
    answer(p, buf_str(&p->in));
}

static void listener_ready(struct source *s, uint32_t events)
{
    int one = 1;

    (void)events;
    for (;;) {
        int fd = accept4(s->fd, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);
        if (fd < 0)
            return;
        setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
        struct peer *p = xzalloc(sizeof *p);
        p->source = (struct source){.fd = fd, .ready = peer_ready};
        loop_add(&server.loop, &p->source, EPOLLIN);
    }
}

int main(int argc, char **argv)
{
    if (argc != 2)
        die("hello PORT");
    uint16_t port = (uint16_t)strtoul(argv[1], NULL, 10);

    raise_file_limit();
    loop_init(&server.loop);
    server.source = (struct source){.fd = listen_loopback(&port), .ready = listener_ready};
    loop_add(&server.loop, &server.source, EPOLLIN);
    for (;;)
        loop_turn(&server.loop, now_ns() + NS_PER_S);
}
