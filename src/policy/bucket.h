/* SPDX-License-Identifier: Apache-2.0
 * A token bucket of max_calls per window, kept as one number: the moment at which it is full again.
 * A bucket of which nothing is known is full. Time refills it, so nothing is written for that. A
 * caller that waits takes its token at once and the bucket goes into debt: who comes later waits
 * longer. */
#ifndef POLICY_BUCKET_H
#define POLICY_BUCKET_H

#include "policy/policy.h"

enum bucket_answer {
    BUCKET_TAKEN,   /* a token was there */
    BUCKET_WAIT,    /* it was taken in advance: it is there from *until on */
    BUCKET_REFUSED, /* the wait would exceed max_wait, or there is none; nothing was taken */
};

/* `full_at` changes unless it is refused. Times are wall microseconds. */
enum bucket_answer bucket_take(const struct rate_limit *limit, int64_t now_us, int64_t *full_at,
                               int64_t *until_us);
/* A token could be taken now without a wait. */
bool bucket_has_token(const struct rate_limit *limit, int64_t now_us, int64_t full_at);

#endif
