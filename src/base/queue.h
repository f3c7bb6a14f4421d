/* SPDX-License-Identifier: Apache-2.0
 * The one queue by which threads meet: many producers, one consumer, intrusive nodes, never full
 * because each producer has room for one node of its own. The consumer sleeps in queue_wait. */
#ifndef BASE_QUEUE_H
#define BASE_QUEUE_H

#include "base/str.h"

struct queue_node {
    struct queue_node *next;
};

struct queue; /* opaque: a mutex, a condition variable, a list */

struct queue *queue_new(void);
void queue_free(struct queue *q);
/* Any thread. Wakes the consumer only when the queue was empty (one wake-up a burst). */
void queue_push(struct queue *q, struct queue_node *n);
/* Consumer only: takes everything, oldest first, or NULL. Waits until deadline_mono_us for the
 * first one (0: do not wait; INT64_MAX: for ever), or until queue_wake. */
struct queue_node *queue_take_all(struct queue *q, int64_t deadline_mono_us);
void queue_wake(
    struct queue *q); /* any thread: the consumer returns from its wait, perhaps with nothing */

#endif
