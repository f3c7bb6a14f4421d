/* SPDX-License-Identifier: Apache-2.0
 * A listener for webhooks. */
#include "lib/webhook.h"

#include <errno.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/json.h"

struct hook { /* one connection of the kernel's */
    struct source source;
    struct webhooks *hooks;
    struct buf in;
    int64_t first_byte_ns;
};

static void hook_close(struct hook *h)
{
    close(h->source.fd); /* leaves the epoll with it */
    buf_free(&h->in);
    free(h);
}

static struct str field(struct str body, const char *name, struct arena *a)
{
    struct str value = json_get(body, str_of(name), a);

    if (!str_present(value))
        die("a webhook without %s: %.*s", name, STR_ARG(body));
    return json_type_of(value) == JSON_STRING ? json_string(value, a) : value;
}

static void hand_on(struct hook *h, struct str body)
{
    struct arena a = {0};
    struct err e;
    struct delivery d = {.first_byte_ns = h->first_byte_ns};

    if (!json_check(body, &e))
        die("webhook: %s", e.message);
    d.execution_id = field(body, "execution_id", &a);
    d.dispatch_id = field(body, "dispatch_id", &a);
    if (!json_int64(field(body, "dispatch_attempt", &a), &d.attempt))
        die("a webhook whose attempt is no integer: %.*s", STR_ARG(body));
    h->hooks->delivered(h->hooks, &d);
    arena_free(&a);
}

/* The length of a whole request at the front of what has come, or 0; *body is its body. */
static size_t request_whole(struct str in, struct str *body)
{
    static const char NAME[] = "\r\ncontent-length:";
    const char *end = memmem(in.p, in.n, "\r\n\r\n", 4);

    if (end == NULL)
        return 0;
    size_t head = (size_t)(end - in.p) + 4, length = 0;
    for (const char *p = in.p; p < end; p++)
        if (*p == '\r' && strncasecmp(p, NAME, sizeof NAME - 1) == 0)
            length = strtoul(p + sizeof NAME - 1, NULL, 10);
    *body = str_make(in.p + head, length);
    return in.n < head + length ? 0 : head + length;
}

static void hook_ready(struct source *s, uint32_t events)
{
    static const struct str ACK = STR_INIT("HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n");
    struct hook *h = (struct hook *)s; /* its first member */
    char bytes[4096];
    struct str body;
    size_t whole;
    int64_t now = now_ns();
    ssize_t n = recv(s->fd, bytes, sizeof bytes, 0);

    (void)events;
    if (n < 0 && (errno == EAGAIN || errno == EINTR))
        return;
    if (n <= 0) {
        hook_close(h);
        return;
    }
    if (h->in.n == 0)
        h->first_byte_ns = now;
    buf_add(&h->in, str_make(bytes, (size_t)n));
    while (h->in.n > 0 && (whole = request_whole(buf_str(&h->in), &body)) > 0) {
        /* The answer goes first: what follows may take the agent a while. */
        if (send(s->fd, ACK.p, ACK.n, MSG_NOSIGNAL) != (ssize_t)ACK.n)
            die("webhook: %s", strerror(errno));
        hand_on(h, body);
        buf_consume(&h->in, whole);
    }
}

static void listener_ready(struct source *s, uint32_t events)
{
    struct webhooks *w = (struct webhooks *)s; /* its first member */

    (void)events;
    for (;;) {
        int fd = accept4(s->fd, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);
        if (fd < 0)
            return;
        struct hook *h = xzalloc(sizeof *h);
        h->source = (struct source){.fd = fd, .ready = hook_ready};
        h->hooks = w;
        loop_add(w->loop, &h->source, EPOLLIN);
    }
}

void webhooks_listen(struct webhooks *w, struct loop *l)
{
    w->loop = l;
    w->port = 0;
    w->source = (struct source){.fd = listen_loopback(&w->port), .ready = listener_ready};
    loop_add(l, &w->source, EPOLLIN);
}
