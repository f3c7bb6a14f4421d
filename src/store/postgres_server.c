/* SPDX-License-Identifier: Apache-2.0 */
#include "store/postgres_server.h"

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "base/arena.h"
#include "base/clock.h"
#include "base/log.h"
#include "kernel/working_set.h"
#include "store/list.h"

/* A server that does not end a connection for that long is not there, or it is at a statement of
 * it and will find the end later. */
static const int64_t PATIENCE_US = 2 * US_PER_S;
static const int64_t PAUSE_US = US_PER_MS;

/* Closed on this side; the server's process may live for a moment yet. */
struct leaving {
    int fd;
    int64_t until_us; /* monotonic */
};

struct postgres_server {
    char *url; /* owned */
    unsigned max;
    pthread_mutex_t lock; /* everything below */
    unsigned open;
    LIST(struct leaving) leaving;
};

struct postgres_server *postgres_server_new(const char *url, unsigned max)
{
    struct postgres_server *s = xzalloc(sizeof(*s));

    s->url = xstrdup(str_of(url));
    s->max = max;
    pthread_mutex_init(&s->lock, NULL);
    return s;
}

void postgres_server_free(struct postgres_server *s)
{
    if (s == NULL)
        return;
    for (size_t i = 0; i < s->leaving.n; i++)
        close(s->leaving.at[i].fd);
    list_free(s->leaving);
    pthread_mutex_destroy(&s->lock);
    free(s->url);
    free(s);
}

const char *postgres_server_url(const struct postgres_server *s)
{
    return s->url;
}

/* The kernel closes a process's sockets after it has left the server's tables. */
static bool has_ended(int fd)
{
    char rest[512];

    for (;;) {
        ssize_t n = recv(fd, rest, sizeof(rest), MSG_DONTWAIT);

        if (n > 0 || (n < 0 && errno == EINTR))
            continue;
        return n == 0 || errno != EAGAIN;
    }
}

/* Under the lock. */
static void see_off(struct postgres_server *s)
{
    int64_t now = clock_mono_us();

    for (size_t i = s->leaving.n; i-- > 0;) {
        struct leaving one = s->leaving.at[i];

        if (now < one.until_us && !has_ended(one.fd))
            continue;
        close(one.fd);
        s->leaving.at[i] = s->leaving.at[--s->leaving.n];
    }
}

/* *wait: one may be free in a moment. */
static bool try_take(struct postgres_server *s, bool *wait)
{
    bool taken;

    pthread_mutex_lock(&s->lock);
    see_off(s);
    taken = s->max == 0 || s->open + s->leaving.n < s->max;
    *wait = s->open < s->max;
    s->open += taken;
    pthread_mutex_unlock(&s->lock);
    return taken;
}

bool postgres_seat_take(struct postgres_server *s, struct err *e)
{
    const struct timespec pause = {.tv_nsec = PAUSE_US * 1000};
    bool wait;

    while (!try_take(s, &wait)) {
        if (wait) {
            nanosleep(&pause, NULL);
            continue;
        }
        log_event(LOG_ERROR, "store.connections_exhausted", {"max", log_int(s->max)});
        return err_set(e, ERR_UNAVAILABLE, "all %u connections to the database are in use", s->max);
    }
    return true;
}

void postgres_seat_leave(struct postgres_server *s, int fd)
{
    pthread_mutex_lock(&s->lock);
    s->open--;
    if (fd >= 0)
        list_add(s->leaving, ((struct leaving){fd, clock_mono_us() + PATIENCE_US}));
    see_off(s);
    pthread_mutex_unlock(&s->lock);
}
