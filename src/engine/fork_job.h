/* SPDX-License-Identifier: Apache-2.0
 * Makes forks: reads what is copied, off the executor's thread, and writes it slice by slice by
 * commands among the others (kernel/fork.h). Small forks do not wait for large ones. */
#ifndef ENGINE_FORK_JOB_H
#define ENGINE_FORK_JOB_H

#include "engine/engine.h"

/* A part: so many rows at most, and no further row once their texts come to so many bytes. On
 * SQLite others wait for it. */
enum { FORK_PART_ROWS = 400, FORK_PART_BYTES = 256 * 1024 };

struct fork_job {
    struct queue_node node; /* the engine's; must be first */
    /* in; borrowed until done */
    struct uuid source;
    int64_t at_seq;
    struct str session;       /* absent: none */
    struct str created_by;    /* the caller's own name */
    struct str policy_bundle; /* absent: the source's own, if it has one */
    struct hash policy_hash;
    /* out */
    bool ok; /* else `err`, and nothing of it will ever be seen */
    struct uuid id;
    struct err err;
    bool unknown; /* not ok, but the fork may have appeared: the connection broke during the commit
                   */
    /* On one of the engine's threads: hand on and return. May free the job. */
    void (*done)(struct fork_job *job);
    void *ctx;
};

/* Any thread. `done` will be called exactly once, also when the engine stops (then with
 * ERR_UNAVAILABLE). */
void engine_fork(struct engine *en, struct fork_job *job);

#endif
