/* SPDX-License-Identifier: Apache-2.0
 * One thread, poll over a few pairs of sockets. */
#include "support/cutting_proxy.h"

#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "base/clock.h"

enum { PAIRS_MAX = 16, CHUNK = 65536 };
static const int64_t LATE_US = 500 * US_PER_MS;

struct pair {
    int client, server; /* -1: free */
    bool swallow;       /* the next answer ends it */
    bool until_commit;  /* the answer of COMMIT is the last that passes */
};

/* Bytes on their way to a server whose client is gone. */
struct late {
    int server; /* -1: none */
    int64_t due_us;
    char bytes[CHUNK];
    size_t n;
};

struct cutting_proxy {
    char folder[64], server_socket[108];
    int listener;
    pthread_t thread;
    atomic_int cut, refuse, stop;
    struct pair pairs[PAIRS_MAX];
    struct late late;
};

static int connect_server(const struct cutting_proxy *p)
{
    struct sockaddr_un to = {.sun_family = AF_UNIX};
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);

    memcpy(to.sun_path, p->server_socket, sizeof(to.sun_path));
    if (connect(fd, (const struct sockaddr *)&to, sizeof(to)) == 0)
        return fd;
    close(fd);
    return -1;
}

static void end_pair(struct pair *pair)
{
    close(pair->client);
    close(pair->server);
    *pair = (struct pair){-1, -1, false, false};
}

static void accept_one(struct cutting_proxy *p)
{
    int client = accept(p->listener, NULL, NULL);

    for (size_t i = 0; client >= 0 && i < PAIRS_MAX; i++) {
        struct pair *pair = &p->pairs[i];

        if (pair->client >= 0)
            continue;
        if (atomic_load(&p->refuse))
            break;
        *pair = (struct pair){client, connect_server(p), false, false};
        if (pair->server < 0)
            end_pair(pair);
        return;
    }
    close(client);
}

static void send_all(int fd, const char *bytes, size_t n)
{
    while (n > 0) {
        ssize_t sent = send(fd, bytes, n, MSG_NOSIGNAL);

        if (sent <= 0)
            return;
        bytes += sent;
        n -= (size_t)sent;
    }
}

/* A Bind message names its portal (none) and the prepared statement: both end with NUL. */
static bool holds_commit(const char *bytes, size_t n)
{
    return memmem(bytes, n, "\0commit", sizeof("\0commit")) != NULL;
}

static void end_late(struct late *late)
{
    if (late->server >= 0)
        close(late->server);
    late->server = -1;
}

static void begin_late(struct late *late, struct pair *pair, const char *bytes, size_t n)
{
    end_late(late);
    late->server = pair->server;
    late->due_us = clock_mono_us() + LATE_US;
    late->n = n;
    memcpy(late->bytes, bytes, n);
    close(pair->client);
    *pair = (struct pair){-1, -1, false, false};
}

static void pass_late(struct late *late)
{
    if (late->n == 0 || clock_mono_us() < late->due_us)
        return;
    send_all(late->server, late->bytes, late->n);
    late->n = 0;
}

static void from_client(struct cutting_proxy *p, struct pair *pair)
{
    static char bytes[CHUNK];
    ssize_t n = recv(pair->client, bytes, sizeof(bytes), 0);
    enum cut cut = (enum cut)atomic_load(&p->cut);

    if (n <= 0) {
        end_pair(pair);
        return;
    }
    if (cut == CUT_NEVER || !holds_commit(bytes, (size_t)n)) {
        send_all(pair->server, bytes, (size_t)n);
        return;
    }
    atomic_store(&p->cut, CUT_NEVER);
    if (cut == CUT_LATE) {
        begin_late(&p->late, pair, bytes, (size_t)n);
        return;
    }
    if (cut != CUT_BEFORE)
        send_all(pair->server, bytes, (size_t)n);
    pair->swallow = cut == CUT_AFTER;
    pair->until_commit = cut == CUT_SYNC;
    if (cut == CUT_BEFORE || cut == CUT_AT_ONCE)
        end_pair(pair);
}

static bool pass_until_commit(struct pair *pair, const char *bytes, size_t n)
{
    static const char DONE[] = "C\0\0\0\013COMMIT"; /* and its NUL */
    static const char END[] = "E\0\0\0\056"
                              "SFATAL\0VFATAL\0C57P01\0Mterminated by test";
    const char *done = memmem(bytes, n, DONE, sizeof(DONE));

    if (done == NULL)
        return false;
    send_all(pair->client, bytes, (size_t)(done - bytes) + sizeof(DONE));
    send_all(pair->client, END, sizeof(END));
    send_all(pair->client, "", 1);
    return true;
}

static void from_server(struct pair *pair)
{
    static char bytes[CHUNK];
    ssize_t n = recv(pair->server, bytes, sizeof(bytes), 0);

    if (n <= 0 || pair->swallow ||
        (pair->until_commit && pass_until_commit(pair, bytes, (size_t)n)))
        end_pair(pair);
    else
        send_all(pair->client, bytes, (size_t)n);
}

static void *proxy_main(void *arg)
{
    struct cutting_proxy *p = arg;

    while (!atomic_load(&p->stop)) {
        struct pollfd fds[1 + 2 * PAIRS_MAX];

        fds[0] = (struct pollfd){.fd = p->listener, .events = POLLIN};
        for (size_t i = 0; i < PAIRS_MAX; i++) {
            fds[1 + 2 * i] = (struct pollfd){.fd = p->pairs[i].client, .events = POLLIN};
            fds[2 + 2 * i] = (struct pollfd){.fd = p->pairs[i].server, .events = POLLIN};
        }
        pass_late(&p->late);
        if (poll(fds, 1 + 2 * PAIRS_MAX, 20) <= 0)
            continue;
        if (fds[0].revents != 0)
            accept_one(p);
        for (size_t i = 0; i < PAIRS_MAX; i++) {
            if (fds[1 + 2 * i].fd >= 0 && fds[1 + 2 * i].revents != 0)
                from_client(p, &p->pairs[i]);
            else if (fds[2 + 2 * i].fd >= 0 && fds[2 + 2 * i].revents != 0)
                from_server(&p->pairs[i]);
        }
    }
    return NULL;
}

struct cutting_proxy *cutting_proxy_start(const char *server_socket)
{
    struct cutting_proxy *p = calloc(1, sizeof(*p));
    struct sockaddr_un at = {.sun_family = AF_UNIX};

    snprintf(p->folder, sizeof(p->folder), "/tmp/store-test-proxy-XXXXXX");
    if (mkdtemp(p->folder) == NULL)
        abort();
    snprintf(p->server_socket, sizeof(p->server_socket), "%s", server_socket);
    snprintf(at.sun_path, sizeof(at.sun_path), "%s/.s.PGSQL.5432", p->folder);
    p->listener = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (bind(p->listener, (const struct sockaddr *)&at, sizeof(at)) != 0 ||
        listen(p->listener, 8) != 0)
        abort();
    for (size_t i = 0; i < PAIRS_MAX; i++)
        p->pairs[i] = (struct pair){-1, -1, false, false};
    p->late.server = -1;
    if (pthread_create(&p->thread, NULL, proxy_main, p) != 0)
        abort();
    return p;
}

void cutting_proxy_stop(struct cutting_proxy *p)
{
    char path[108];

    atomic_store(&p->stop, 1);
    pthread_join(p->thread, NULL);
    for (size_t i = 0; i < PAIRS_MAX; i++)
        if (p->pairs[i].client >= 0)
            end_pair(&p->pairs[i]);
    end_late(&p->late);
    close(p->listener);
    snprintf(path, sizeof(path), "%s/.s.PGSQL.5432", p->folder);
    unlink(path);
    rmdir(p->folder);
    free(p);
}

const char *cutting_proxy_folder(const struct cutting_proxy *p)
{
    return p->folder;
}

void cutting_proxy_arm(struct cutting_proxy *p, enum cut cut, int refuse)
{
    atomic_store(&p->refuse, refuse);
    atomic_store(&p->cut, cut);
}
