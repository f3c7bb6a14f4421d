/* SPDX-License-Identifier: Apache-2.0
 * Agents at work: each connection takes steps on executions of its own, submit and complete in
 * turn, as fast as answers come or at a fixed rate. */
#ifndef BENCH_DRIVE_H
#define BENCH_DRIVE_H

#include "lib/fleet.h"
#include "lib/samples.h"

/* Counters at a moment, and between two. */
struct usage {
    int64_t at_ns, records, server_cpu_ns, own_cpu_ns;
    struct sync_counts syncs;
};

struct agent;

struct drive {
    struct fleet *fleet;
    /* How: */
    bool replay;              /* submissions only, each of them recorded before */
    int64_t steps;            /* an execution's; 0: until the time is up */
    double seconds, warmup_s; /* without `steps` */
    double rate; /* records/s over all connections, due evenly; 0: as fast as answers come */
    void (*stepped)(struct drive *d); /* may be NULL: after each step */
    /* What the n-th step of a run carries; NULL: small objects. */
    void (*add_args)(struct buf *out, const struct run *run, int64_t step);
    void (*add_result)(struct buf *out, const struct run *run, int64_t step);
    void *owner;
    /* What came of it, of the time that is measured: */
    struct samples submits, completes; /* latencies; of a paced run from the moment they were due */
    struct samples began, took;        /* of each record, with opt.each */
    struct usage from, to;
    int64_t steps_done; /* warm-up and all */
    int64_t errors;     /* answers that were not what a recorded step gets */
    /* Its own: */
    struct agent *agents;
    size_t working;
    bool measuring, stopping;
    int64_t records, first_due_ns, next_turn;
};

/* Returns when every agent has had its last answer. */
void drive_run(struct drive *d);
void drive_free(struct drive *d);
struct usage drive_usage(const struct drive *d);
/* Members: rate, latencies, CPU and syncs a record. */
void drive_write(const struct drive *d, struct json_writer *w);

#endif
