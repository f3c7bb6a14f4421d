/* SPDX-License-Identifier: Apache-2.0
 * The bench's event loop: one epoll, one thread, level-triggered. A source lives inside the object
 * that owns it. */
#ifndef BENCH_LOOP_H
#define BENCH_LOOP_H

#include <netinet/in.h>

#include "base/str.h"

#define NS_PER_US INT64_C(1000)
#define NS_PER_MS INT64_C(1000000)
#define NS_PER_S INT64_C(1000000000)

struct source {
    int fd;
    /* The source may free itself here, and nothing else that could be ready in the same turn. */
    void (*ready)(struct source *s, uint32_t events);
};

struct loop {
    int epoll_fd;
};

void loop_init(struct loop *l);
void loop_add(struct loop *l, struct source *s, uint32_t events);
void loop_change(struct loop *l, struct source *s, uint32_t events);
/* Handles what is ready; waits for it until that moment of now_ns() at most. */
void loop_turn(struct loop *l, int64_t until_ns);

int64_t now_ns(void); /* monotonic */
/* Says what was impossible and exits: the suite shows the message in place of the figures. */
_Noreturn void die(const char *fmt, ...) PRINTF_LIKE(1, 2);
/* One descriptor for each connection needs more than the usual 1,024. */
void raise_file_limit(void);
/* A listening socket on the loopback; `port` 0 takes a free one and becomes it. */
int listen_loopback(uint16_t *port);

#endif
