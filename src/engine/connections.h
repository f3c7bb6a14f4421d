/* SPDX-License-Identifier: Apache-2.0
 * How the connections that a kernel may open to Postgres are divided among its threads, each of
 * which holds one at most: so their numbers bound the connections. On SQLite only the forks count.
 */
#ifndef ENGINE_CONNECTIONS_H
#define ENGINE_CONNECTIONS_H

struct connections {
    unsigned executors; /* the last of several writes the parts of forks, and nothing else */
    unsigned readers;   /* for requests */
    unsigned small_forks, large_forks; /* at once; FORKS_MAX at most */
};

enum {
    FORKS_MAX = 2,
    /* One each: the listener, the notifier, the clock, the sender, the reader aside, the workers
     * aside together, orphans. */
    CONNECTIONS_SINGLE = 7,
    CONNECTIONS_LEAST = CONNECTIONS_SINGLE + 4, /* and one of each kind */
};

/* `max` at least CONNECTIONS_LEAST; 0: as many as this number of cores can use. */
struct connections connections_divide(unsigned max, unsigned cores);
struct connections connections_for(unsigned max); /* the same with those of this machine */
unsigned connections_total(const struct connections *c);

#endif
