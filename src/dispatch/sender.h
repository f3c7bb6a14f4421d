/* SPDX-License-Identifier: Apache-2.0
 * Outgoing webhooks: one thread, one curl multi handle. Woken by commits and by its own timers,
 * never by a fixed poll (a slow one stands behind). It claims no more than it can deliver now, and
 * lets no agent starve the others: no agent holds more than a quarter of the slots; one that left
 * its last delivery unanswered holds one until it answers; all those hold a quarter of the slots at
 * most, and one half together with the ones not heard of yet, so that any number of dead agents
 * leaves the others theirs. */
#ifndef DISPATCH_SENDER_H
#define DISPATCH_SENDER_H

#include "engine/engine.h"

struct sender;

struct sender_options {
    struct engine *engine; /* borrowed */
    int64_t concurrency;   /* deliveries in flight at most */
    int64_t timeout_us;    /* for a webhook's answer */
    bool private_ranges;   /* loopback and private addresses may be called */
};

struct sender_stats {
    atomic_uint_fast64_t delivered, failed;
    atomic_uint_fast64_t latency_count, latency_sum_us; /* from the claim to the webhook's answer */
    atomic_int_fast64_t in_flight;
};

struct sender *sender_new(const struct sender_options *opt, struct err *e);
MUST_USE bool sender_start(struct sender *s, struct err *e);
void sender_wake(struct sender *s); /* any thread: something may be due */
/* Claims no more; returns what was claimed and has not been answered; ends the thread. */
void sender_stop(struct sender *s);
void sender_free(struct sender *s);
const struct sender_stats *sender_stats(const struct sender *s);

#endif
