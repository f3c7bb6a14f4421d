/* SPDX-License-Identifier: Apache-2.0
 * Two lines, growth and newcomers, served in order; a growing body that cannot be served yet does
 * not block one behind it that can (the fullest always can, once no body of known length holds
 * anything: that is the proof of progress). */
#include "http/budget.h"

#include "base/arena.h"
#include "base/err.h"

#include <pthread.h>
#include <stdlib.h>

struct line {
    struct claim *first, *last;
};

struct budget {
    pthread_mutex_t lock;
    size_t limit, largest, used;
    struct line growth, newcomers;
    struct claim *growing; /* those that hold something and may come for more */
    void (*granted)(struct claim *c);
};

struct budget *budget_new(size_t limit, size_t largest_body, void (*granted)(struct claim *c))
{
    struct budget *b = xzalloc(sizeof(*b));

    pthread_mutex_init(&b->lock, NULL);
    b->limit = limit;
    b->largest = largest_body < limit ? largest_body : limit;
    b->granted = granted;
    return b;
}

void budget_free(struct budget *b)
{
    if (b == NULL)
        return;
    ASSERT(b->used == 0);
    pthread_mutex_destroy(&b->lock);
    free(b);
}

static void line_add(struct line *l, struct claim *c)
{
    c->prev = l->last;
    c->next = NULL;
    if (l->last != NULL)
        l->last->next = c;
    else
        l->first = c;
    l->last = c;
}

static void line_remove(struct line *l, struct claim *c)
{
    if (c->prev != NULL)
        c->prev->next = c->next;
    else
        l->first = c->next;
    if (c->next != NULL)
        c->next->prev = c->prev;
    else
        l->last = c->prev;
    c->prev = c->next = NULL;
}

static void growing_add(struct budget *b, struct claim *c)
{
    c->growing_prev = NULL;
    c->growing_next = b->growing;
    if (b->growing != NULL)
        b->growing->growing_prev = c;
    b->growing = c;
}

static void growing_remove(struct budget *b, struct claim *c)
{
    if (c->growing_prev != NULL)
        c->growing_prev->growing_next = c->growing_next;
    else
        b->growing = c->growing_next;
    if (c->growing_next != NULL)
        c->growing_next->growing_prev = c->growing_prev;
    c->growing_prev = c->growing_next = NULL;
    c->growing = false;
}

/* The banker's rule, for c holding `want`. */
static bool growth_is_safe(const struct budget *b, const struct claim *c)
{
    size_t sum = c->want, fullest = c->want;

    for (const struct claim *o = b->growing; o != NULL; o = o->growing_next) {
        if (o == c)
            continue;
        sum += o->held;
        if (o->held > fullest)
            fullest = o->held;
    }
    size_t rest = b->largest > fullest ? b->largest - fullest : 0;
    return sum + rest <= b->limit;
}

static bool fits(const struct budget *b, const struct claim *c)
{
    return b->used - c->held + c->want <= b->limit && (!c->growing || growth_is_safe(b, c));
}

static void hold(struct budget *b, struct claim *c)
{
    b->used += c->want - c->held;
    if (c->growing && c->held == 0)
        growing_add(b, c);
    c->held = c->want;
}

static void grant(struct budget *b, struct line *l, struct claim *c)
{
    line_remove(l, c);
    hold(b, c);
    c->state = CLAIM_GRANTED;
    b->granted(c);
}

static void serve(struct budget *b)
{
    for (struct claim *c = b->growth.first, *next; c != NULL; c = next) {
        next = c->next;
        if (fits(b, c))
            grant(b, &b->growth, c);
    }
    while (b->growth.first == NULL && b->newcomers.first != NULL && fits(b, b->newcomers.first))
        grant(b, &b->newcomers, b->newcomers.first);
}

bool budget_take(struct budget *b, struct claim *c, size_t total, bool growing)
{
    pthread_mutex_lock(&b->lock);
    ASSERT(c->state == CLAIM_IDLE && (c->held == 0 || c->growing));
    bool newcomer = c->held == 0;
    c->want = total < b->limit ? total : b->limit;
    c->growing = growing;
    bool in_turn = b->growth.first == NULL && (!newcomer || b->newcomers.first == NULL);
    bool now = (in_turn || !newcomer) && fits(b, c);
    if (now) {
        hold(b, c);
    } else {
        c->state = CLAIM_WAITING;
        line_add(newcomer ? &b->newcomers : &b->growth, c);
    }
    pthread_mutex_unlock(&b->lock);
    return now;
}

void budget_taken(struct budget *b, struct claim *c)
{
    pthread_mutex_lock(&b->lock);
    ASSERT(c->state == CLAIM_GRANTED);
    c->state = CLAIM_IDLE;
    pthread_mutex_unlock(&b->lock);
}

void budget_settle(struct budget *b, struct claim *c, size_t total)
{
    if (c->held == 0)
        return;
    pthread_mutex_lock(&b->lock);
    if (c->growing)
        growing_remove(b, c);
    if (total < c->held) {
        b->used -= c->held - total;
        c->held = total;
    }
    serve(b);
    pthread_mutex_unlock(&b->lock);
}

bool budget_cancel(struct budget *b, struct claim *c)
{
    pthread_mutex_lock(&b->lock);
    bool waiting = c->state == CLAIM_WAITING;
    if (waiting) {
        line_remove(c->held == 0 ? &b->newcomers : &b->growth, c);
        c->state = CLAIM_IDLE;
        serve(b); /* whoever stood behind it may fit */
    }
    pthread_mutex_unlock(&b->lock);
    return waiting;
}

void budget_give(struct budget *b, struct claim *c)
{
    if (c->held == 0)
        return;
    pthread_mutex_lock(&b->lock);
    ASSERT(c->state == CLAIM_IDLE);
    if (c->growing)
        growing_remove(b, c);
    b->used -= c->held;
    c->held = 0;
    serve(b);
    pthread_mutex_unlock(&b->lock);
}

size_t budget_used(struct budget *b)
{
    pthread_mutex_lock(&b->lock);
    size_t used = b->used;
    pthread_mutex_unlock(&b->lock);
    return used;
}
