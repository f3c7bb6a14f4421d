/* SPDX-License-Identifier: Apache-2.0
 * Listening sockets. */
#include "http/server.h"

#include <errno.h>
#include <limits.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

enum { BACKLOG = 4096, HOST_MAX = 256 };
/* Files that are not for connections from outside, but for the database and webhooks; half of them
 * when there are few. */
enum { FILES_KEPT = 64 };
/* A host that vanished without a word is noticed within about two minutes, whether it waits for us
 * (probes) or we for it (bytes it never acknowledged). */
enum { PROBE_AFTER_S = 60, PROBE_EVERY_S = 15, PROBES = 4, UNACKNOWLEDGED_MS = 90 * 1000 };

/* "host:port", ":port", "[v6]:port". */
static bool split_addr(const char *addr, char host[HOST_MAX], const char **port)
{
    const char *colon = strrchr(addr, ':');
    int64_t number; /* getaddrinfo cuts a port to 16 bits */

    if (colon == NULL)
        return false;
    struct str digits = str_make(colon + 1, strlen(colon + 1));
    if (!str_to_int64(digits, &number) || number > UINT16_MAX)
        return false;
    size_t n = (size_t)(colon - addr);
    if (n >= 2 && addr[0] == '[' && addr[n - 1] == ']') {
        addr++;
        n -= 2;
    } else if (memchr(addr, ':', n) != NULL) { /* a bare IPv6 address: its last group is no port */
        return false;
    }
    if (n >= HOST_MAX)
        return false;
    memcpy(host, addr, n);
    host[n] = '\0';
    *port = digits.p;
    return true;
}

static void set_port(struct sockaddr *sa, uint16_t port)
{
    if (sa->sa_family == AF_INET6)
        ((struct sockaddr_in6 *)(void *)sa)->sin6_port = htons(port);
    else
        ((struct sockaddr_in *)(void *)sa)->sin_port = htons(port);
}

static uint16_t get_port(int fd)
{
    union {
        struct sockaddr any;
        struct sockaddr_in v4;
        struct sockaddr_in6 v6;
    } sa = {0};
    socklen_t n = sizeof(sa);

    if (getsockname(fd, &sa.any, &n) != 0)
        return 0;
    return ntohs(sa.any.sa_family == AF_INET6 ? sa.v6.sin6_port : sa.v4.sin_port);
}

static bool set_flag(int fd, int level, int name, int value)
{
    return setsockopt(fd, level, name, &value, sizeof(value)) == 0;
}

static void watch_for_vanished_hosts(int fd)
{
    set_flag(fd, SOL_SOCKET, SO_KEEPALIVE, 1);
    set_flag(fd, IPPROTO_TCP, TCP_KEEPIDLE, PROBE_AFTER_S);
    set_flag(fd, IPPROTO_TCP, TCP_KEEPINTVL, PROBE_EVERY_S);
    set_flag(fd, IPPROTO_TCP, TCP_KEEPCNT, PROBES);
    set_flag(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, UNACKNOWLEDGED_MS);
}

/* Accepted sockets inherit what is set here. The first socket of a server binds alone, without
 * SO_REUSEPORT, so that a second kernel on the same port is an error and not a silent sharer of the
 * requests; only then it lets its siblings in. */
static int open_one(const struct addrinfo *ai, uint16_t port, bool shared)
{
    bool sibling = port != 0;
    int fd = socket(ai->ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);

    if (fd < 0)
        return -1;
    if (sibling)
        set_port(ai->ai_addr, port);
    if (ai->ai_family == AF_INET6) /* "::" takes IPv4 too */
        set_flag(fd, IPPROTO_IPV6, IPV6_V6ONLY, 0);
    watch_for_vanished_hosts(fd);
    bool ok = set_flag(fd, SOL_SOCKET, SO_REUSEADDR, 1) &&
              (!sibling || set_flag(fd, SOL_SOCKET, SO_REUSEPORT, 1)) &&
              set_flag(fd, IPPROTO_TCP, TCP_NODELAY, 1) &&
              bind(fd, ai->ai_addr, ai->ai_addrlen) == 0 &&
              (sibling || !shared || set_flag(fd, SOL_SOCKET, SO_REUSEPORT, 1)) &&
              listen(fd, BACKLOG) == 0;
    if (ok)
        return fd;
    int error = errno;
    close(fd);
    errno = error;
    return -1;
}

int listen_open(const char *addr, uint16_t *port, bool shared, struct err *e)
{
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_PASSIVE | AI_NUMERICSERV},
                    *found = NULL;
    char host[HOST_MAX];
    const char *service = "";
    int fd = -1;

    if (addr == NULL || !split_addr(addr, host, &service)) {
        err_set(e, ERR_UNAVAILABLE, "cannot listen on %s: not an address of the form host:port",
                addr == NULL ? "" : addr);
        return -1;
    }
    const char *node = host[0] == '\0' ? "::" : host; /* no host: all interfaces, of both kinds */
    int rc = getaddrinfo(node, service, &hints, &found);
    if (rc != 0) {
        err_set(e, ERR_UNAVAILABLE, "cannot listen on %s: %s", addr, gai_strerror(rc));
        return -1;
    }
    for (struct addrinfo *ai = found; ai != NULL && fd < 0; ai = ai->ai_next)
        fd = open_one(ai, *port, shared);
    int error = errno;
    freeaddrinfo(found);
    if (fd < 0 && host[0] == '\0' &&
        (error == EAFNOSUPPORT || error == EADDRNOTAVAIL)) { /* no IPv6 here */
        char v4[HOST_MAX] = "0.0.0.0:";
        strncat(v4, service, sizeof(v4) - sizeof("0.0.0.0:"));
        return listen_open(v4, port, shared, e);
    }
    if (fd < 0) {
        err_set(e, ERR_UNAVAILABLE, "cannot listen on %s: %s", addr,
                error == EADDRINUSE
                    ? "another program listens there; end it, or choose another address"
                    : strerror(error));
        return -1;
    }
    *port = get_port(fd);
    return fd;
}

unsigned listen_raise_file_limit(void)
{
    struct rlimit limit;

    if (getrlimit(RLIMIT_NOFILE, &limit) != 0)
        return UINT_MAX;
    if (limit.rlim_cur != limit.rlim_max) {
        rlim_t before = limit.rlim_cur;

        limit.rlim_cur = limit.rlim_max;
        if (setrlimit(RLIMIT_NOFILE, &limit) != 0)
            limit.rlim_cur = before;
    }
    if (limit.rlim_cur >= UINT_MAX)
        return UINT_MAX;
    rlim_t half = limit.rlim_cur / 2;
    rlim_t most = half > FILES_KEPT ? limit.rlim_cur - FILES_KEPT : half;
    return most == 0 ? 1 : (unsigned)most;
}
