/* SPDX-License-Identifier: Apache-2.0
 * The bench's event loop. */
#include "lib/loop.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <time.h>

enum { EVENTS_A_TURN = 256, BACKLOG = 4096 };

int64_t now_ns(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * NS_PER_S + t.tv_nsec;
}

void die(const char *fmt, ...)
{
    va_list args;

    va_start(args, fmt);
    vfprintf(stderr, fmt, args);
    va_end(args);
    fputc('\n', stderr);
    exit(1);
}

void raise_file_limit(void)
{
    struct rlimit limit;

    if (getrlimit(RLIMIT_NOFILE, &limit) == 0) {
        limit.rlim_cur = limit.rlim_max;
        (void)setrlimit(RLIMIT_NOFILE, &limit);
    }
}

void loop_init(struct loop *l)
{
    prctl(PR_SET_TIMERSLACK, 1UL, 0UL, 0UL,
          0UL); /* a paced run wakes when it is due, not 50 us later */
    l->epoll_fd = epoll_create1(EPOLL_CLOEXEC);
    if (l->epoll_fd < 0)
        die("epoll_create1: %s", strerror(errno));
}

static void control(struct loop *l, int op, struct source *s, uint32_t events)
{
    struct epoll_event event = {.events = events, .data.ptr = s};

    if (epoll_ctl(l->epoll_fd, op, s->fd, &event) != 0)
        die("epoll_ctl: %s", strerror(errno));
}

void loop_add(struct loop *l, struct source *s, uint32_t events)
{
    control(l, EPOLL_CTL_ADD, s, events);
}

void loop_change(struct loop *l, struct source *s, uint32_t events)
{
    control(l, EPOLL_CTL_MOD, s, events);
}

void loop_turn(struct loop *l, int64_t until_ns)
{
    struct epoll_event events[EVENTS_A_TURN];
    int64_t left = until_ns - now_ns();
    struct timespec wait = {.tv_sec = left / NS_PER_S, .tv_nsec = left % NS_PER_S};

    if (left < 0)
        wait = (struct timespec){0};
    int n = epoll_pwait2(l->epoll_fd, events, EVENTS_A_TURN, &wait, NULL);
    if (n < 0 && errno != EINTR)
        die("epoll_pwait2: %s", strerror(errno));
    for (int i = 0; i < n; i++) {
        struct source *s = events[i].data.ptr;
        s->ready(s, events[i].events);
    }
}

int listen_loopback(uint16_t *port)
{
    struct sockaddr_in addr = {.sin_family = AF_INET, .sin_port = htons(*port)};
    socklen_t n = sizeof addr;
    int one = 1, fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);

    addr.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    if (fd < 0 || setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one) != 0 ||
        bind(fd, (struct sockaddr *)&addr, sizeof addr) != 0 || listen(fd, BACKLOG) != 0 ||
        getsockname(fd, (struct sockaddr *)&addr, &n) != 0)
        die("listen on 127.0.0.1:%u: %s", *port, strerror(errno));
    *port = ntohs(addr.sin_port);
    return fd;
}
