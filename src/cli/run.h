/* SPDX-License-Identifier: Apache-2.0
 * A whole run, read for comparison: of its payloads only their hashes are held, and
 * their beginnings. */
#ifndef CLI_RUN_H
#define CLI_RUN_H

#include "base/map.h"
#include "cli/visit.h"
#include "domain/identity.h"

enum run_decision {
    RUN_UNDECIDED, /* not decided yet, or its events are not there */
    RUN_ALLOWED,
    RUN_DENIED,
    RUN_HELD, /* for a person */
    RUN_GRANTED,
    RUN_REFUSED, /* held, and denied or expired */
};

/* A payload, by what it means as JSON; absent and null are one. */
struct run_payload {
    bool present;
    struct hash hash;
};

struct run_step {
    size_t place; /* 1, 2, …, in the order of creation */
    struct str id, kind, target, status;
    struct str args, outcome; /* the beginnings of the arguments, and of the result or error */
    struct hash args_hash;
    int64_t occurrence;
    struct run_payload result, error;
    enum run_decision decision;
    struct str rule;       /* that decided; absent: none */
    struct str decided_by; /* the person; absent: none, or not known */
};

struct run {
    struct visit v; /* v.id is the execution */
    struct arena a;
    struct str agent, status, failure, input, output; /* input and output as they came */
    struct str forked_from, fork_seq;                 /* absent: it is no fork */
    struct buf execution;                             /* the API's answer; the texts lie in it */
    struct run_step **steps;                          /* owned list; the steps are in the arena */
    size_t n, cap;
    struct map by_id, by_call; /* their steps */
};

/* Reads the execution, its steps and its log. v has found it; the rest is zero. Free it either way.
 */
MUST_USE bool run_read(struct run *r, struct err *e);
void run_free(struct run *r); /* with its visit */

/* What it is read by: a step, in the order of creation; then an event, in the order of the log. */
void run_take_step(struct run *r, struct str json);
void run_take_event(struct run *r, struct str json);

/* The step with the same call as another run's; NULL: none. */
struct run_step *run_counterpart(const struct run *r, const struct run_step *step);
/* "allowed by rule x", "held by rule y, granted by ada"; in the arena. */
struct str run_decision_text(const struct run_step *step, struct arena *a);
/* Asks for one step, with all payloads; `answer` holds it. */
MUST_USE bool run_fetch_step(struct run *r, const struct run_step *step, struct buf *answer,
                             struct err *e);

#endif
