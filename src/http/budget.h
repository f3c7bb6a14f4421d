/* SPDX-License-Identifier: Apache-2.0
 * The memory that large request bodies may take together. Who finds no room waits in line, so a
 * thousand uploads cost no more than a few. Thread-safe.
 *
 * A body of known length claims it whole, once, and never waits while it holds anything. A body of
 * unknown length claims more as it grows, so it may wait while it holds; what keeps such bodies
 * from waiting for each other for ever is the banker's rule: growth is granted only if afterwards
 * the largest growing body could still grow to its full size even if no other growing body gave
 * anything back. Growth goes before newcomers. */
#ifndef HTTP_BUDGET_H
#define HTTP_BUDGET_H

#include "base/str.h"

struct budget;

enum claim_state {
    CLAIM_IDLE, /* holds `held`, wants nothing */
    CLAIM_WAITING,
    CLAIM_GRANTED, /* what it waited for was given; `granted` was called, claim_taken not yet */
};

struct claim {
    struct claim *prev, *next; /* the line it waits in; under the budget's lock */
    /* All growing claims that hold something; under the lock. */
    struct claim *growing_prev, *growing_next;
    size_t held, want;      /* under the lock while waiting, else the owner's */
    enum claim_state state; /* under the lock */
    bool growing;
};

/* `granted` tells a claim's owner that its wait is over; called under the lock by whoever made
 * room. */
struct budget *budget_new(size_t limit, size_t largest_body, void (*granted)(struct claim *c));
void budget_free(struct budget *b);

/* All room that c needs: to hold `total` bytes. `growing`: it may come for more. True: granted at
 * once. False: it waits and will be told. More than the whole budget is cut to it, so that it can
 * be granted at all. */
MUST_USE bool budget_take(struct budget *b, struct claim *c, size_t total, bool growing);
void budget_taken(struct budget *b, struct claim *c); /* the owner has seen `granted` */
/* The body is complete with `total` bytes (not more than it holds): it grows no more. */
void budget_settle(struct budget *b, struct claim *c, size_t total);
/* Leaves the line. False: it was granted already, and `granted` has been called: wait for that,
 * then give back. */
MUST_USE bool budget_cancel(struct budget *b, struct claim *c);
void budget_give(struct budget *b, struct claim *c); /* all that it holds; not while it waits */
size_t budget_used(struct budget *b);

#endif
