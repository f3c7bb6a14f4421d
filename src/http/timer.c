/* SPDX-License-Identifier: Apache-2.0
 * A binary heap of (moment to look, timer). Invariant: an entry's moment is never later than its
 * timer's. */
#include "http/timer.h"

#include "base/arena.h"

#include <stdlib.h>

struct timer_slot {
    int64_t look_us;
    struct timer *timer;
};

static void place(struct timers *ts, size_t at, struct timer_slot s)
{
    ts->heap[at] = s;
    s.timer->slot = at + 1;
}

static void sift_up(struct timers *ts, size_t at, struct timer_slot s)
{
    while (at > 0) {
        size_t parent = (at - 1) / 2;
        if (ts->heap[parent].look_us <= s.look_us)
            break;
        place(ts, at, ts->heap[parent]);
        at = parent;
    }
    place(ts, at, s);
}

static void sift_down(struct timers *ts, size_t at, struct timer_slot s)
{
    for (;;) {
        size_t child = 2 * at + 1;
        if (child >= ts->n)
            break;
        if (child + 1 < ts->n && ts->heap[child + 1].look_us < ts->heap[child].look_us)
            child++;
        if (ts->heap[child].look_us >= s.look_us)
            break;
        place(ts, at, ts->heap[child]);
        at = child;
    }
    place(ts, at, s);
}

void timers_free(struct timers *ts)
{
    free(ts->heap);
    *ts = (struct timers){0};
}

void timer_set(struct timers *ts, struct timer *t, int64_t at_us)
{
    t->at_us = at_us;
    if (t->slot != 0) {
        if (at_us < ts->heap[t->slot - 1].look_us)
            sift_up(ts, t->slot - 1, (struct timer_slot){at_us, t});
        return;
    }
    if (at_us == TIMER_OFF)
        return;
    if (ts->n == ts->cap) {
        ts->cap = ts->cap == 0 ? 64 : ts->cap * 2;
        ts->heap = xrealloc(ts->heap, ts->cap * sizeof(*ts->heap));
    }
    sift_up(ts, ts->n++, (struct timer_slot){at_us, t});
}

void timer_remove(struct timers *ts, struct timer *t)
{
    t->at_us = TIMER_OFF;
    if (t->slot == 0)
        return;
    size_t at = t->slot - 1;
    struct timer_slot last = ts->heap[--ts->n];
    t->slot = 0;
    if (at == ts->n)
        return;
    if (at > 0 && ts->heap[(at - 1) / 2].look_us > last.look_us)
        sift_up(ts, at, last);
    else
        sift_down(ts, at, last);
}

int64_t timers_next(const struct timers *ts)
{
    return ts->n == 0 ? TIMER_OFF : ts->heap[0].look_us;
}

struct timer *timers_take(struct timers *ts, int64_t now_us)
{
    while (ts->n > 0 && ts->heap[0].look_us <= now_us) {
        struct timer *t = ts->heap[0].timer;
        int64_t at_us = t->at_us;
        if (at_us > now_us && at_us != TIMER_OFF) { /* it was moved since */
            sift_down(ts, 0, (struct timer_slot){at_us, t});
            continue;
        }
        timer_remove(ts, t);
        if (at_us != TIMER_OFF)
            return t;
    }
    return NULL;
}
