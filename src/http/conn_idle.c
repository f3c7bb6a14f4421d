/* SPDX-License-Identifier: Apache-2.0
 * Connections between requests, in the order in which they became idle, so that at the bound of
 * connections the right one makes room at once. */
#include "http/conn.h"

#include <sys/socket.h>

void conn_idle_leave(struct conn *c)
{
    struct loop *l = c->loop;

    if (c->idle_since_us == 0)
        return;
    *(c->idle_prev == NULL ? &l->idle_first : &c->idle_prev->idle_next) = c->idle_next;
    *(c->idle_next == NULL ? &l->idle_last : &c->idle_next->idle_prev) = c->idle_prev;
    c->idle_since_us = 0;
}

void conn_idle_enter(struct conn *c)
{
    struct loop *l = c->loop;

    conn_idle_leave(c);
    c->state = CONN_IDLE;
    c->idle_since_us = l->now_us;
    c->idle_next = NULL;
    c->idle_prev = l->idle_last;
    *(l->idle_last == NULL ? &l->idle_first : &l->idle_last->idle_next) = c;
    l->idle_last = c;
}

/* A request may have come that this turn has not looked at, or an answer is still on its way out.
 */
static bool is_busy(const struct conn *c)
{
    char byte;

    return c->out != NULL || c->queued || recv(c->fd, &byte, 1, MSG_PEEK | MSG_DONTWAIT) > 0;
}

bool conn_idle_make_room(struct loop *l)
{
    struct conn *c;

    while ((c = l->idle_first) != NULL &&
           c->idle_since_us + l->server->opt.spare_idle_us <= l->now_us) {
        if (!is_busy(c)) {
            conn_close(c);
            return true;
        }
        conn_idle_enter(c); /* behind the others */
    }
    return false;
}
