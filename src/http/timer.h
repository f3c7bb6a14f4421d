/* SPDX-License-Identifier: Apache-2.0
 * Time-outs of one loop: a heap in which each timer stands at most once. Moving a timer to a later
 * moment, or off, costs nothing (the entry is looked at again when its old moment comes), and that
 * is what nearly all moves are. */
#ifndef HTTP_TIMER_H
#define HTTP_TIMER_H

#include "base/str.h"

#define TIMER_OFF INT64_MAX

struct timer {
    int64_t at_us; /* when it is due; TIMER_OFF: never */
    size_t slot;   /* 1 + its place in the heap; 0: not in it */
};

struct timer_slot;

struct timers {
    struct timer_slot *heap;
    size_t n, cap;
};

void timers_free(struct timers *ts);
void timer_set(struct timers *ts, struct timer *t, int64_t at_us);
void timer_remove(struct timers *ts, struct timer *t); /* before its memory goes */
int64_t
timers_next(const struct timers *ts); /* not later than the earliest timer; TIMER_OFF: none */
/* One that is due (it is off then), or NULL. */
struct timer *timers_take(struct timers *ts, int64_t now_us);

#endif
