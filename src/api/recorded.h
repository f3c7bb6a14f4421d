/* SPDX-License-Identifier: Apache-2.0
 * The steps of past executions of one agent with what was decided of each when it was new, for a
 * bundle to decide them again. Read from the logs, a little at a time. Private to api/. */
#ifndef API_RECORDED_H
#define API_RECORDED_H

#include "policy/policy.h"
#include "store/store.h"

struct recorded_step {
    struct uuid execution_id;
    struct hash step_id;
    enum step_kind kind;
    struct str target, args;     /* canonical */
    enum policy_action decision; /* allow, deny or require_approval */
    struct str rule_id;
    struct str reason;      /* of a denial; absent: none */
    struct str policy_hash; /* hex; absent: there was no bundle */
};

struct recorded;

/* Which executions: this one, or the `limit` newest of the agent that were created at or after
 * since_us, in that session if one is given. */
struct recorded_query {
    struct str agent_id;             /* copied */
    const struct uuid *execution_id; /* NULL: the newest */
    struct str session;              /* copied; absent: any */
    int64_t since_us, limit;
};
struct recorded *recorded_new(const struct recorded_query *q);
void recorded_free(struct recorded *rec); /* NULL is fine */
/* The next few, or none for now: then call again while *more is true. At most about 128 KiB of
 * arguments are read, but one step's at least. */
MUST_USE bool recorded_next(struct recorded *rec, struct store_reader *r, struct arena *a,
                            struct recorded_step **out, size_t *n, bool *more, struct err *e);

#endif
