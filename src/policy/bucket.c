/* SPDX-License-Identifier: Apache-2.0
 * The arithmetic of token buckets. What is missing to full is kept as the time that refills it, so
 * k missing tokens are k * window / max_calls microseconds, rounded down for the whole of them
 * rather than for each: a full bucket gives exactly max_calls at once. */
#include "policy/bucket.h"

__extension__ typedef __int128 wide;

static int64_t time_of(const struct rate_limit *limit, wide tokens)
{
    return (int64_t)(tokens * limit->window_us / limit->max_calls);
}

/* The most that may be missing while one more token is there. */
static int64_t room(const struct rate_limit *limit)
{
    return time_of(limit, limit->max_calls - 1);
}

/* Time until the bucket is full. More than the limit allows for is no debt that it made: the clock
 * was set back, or the rule had another limit. */
static int64_t missing(const struct rate_limit *limit, int64_t now_us, int64_t full_at)
{
    int64_t most;

    if (full_at <= now_us)
        return 0;
    if (__builtin_add_overflow(limit->window_us, limit->max_wait_us, &most))
        most = INT64_MAX;
    return full_at - now_us < most ? full_at - now_us : most;
}

bool bucket_has_token(const struct rate_limit *limit, int64_t now_us, int64_t full_at)
{
    return missing(limit, now_us, full_at) <= room(limit);
}

enum bucket_answer bucket_take(const struct rate_limit *limit, int64_t now_us, int64_t *full_at,
                               int64_t *until_us)
{
    int64_t debt = missing(limit, now_us, *full_at), wait = debt - room(limit);

    if (wait > limit->max_wait_us)
        return BUCKET_REFUSED;
    wide tokens = ((wide)debt * limit->max_calls + limit->window_us - 1) / limit->window_us;
    *full_at = now_us + debt + time_of(limit, tokens + 1) - time_of(limit, tokens);
    if (wait <= 0)
        return BUCKET_TAKEN;
    *until_us = now_us + wait;
    return BUCKET_WAIT;
}
