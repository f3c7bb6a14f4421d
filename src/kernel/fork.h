/* SPDX-License-Identifier: Apache-2.0
 * Forks: an execution that begins with what another one had recorded by some event (docs/forks.md).
 *
 * What a fork copies is settled for good: events and settled steps never change. So the copy is
 * worked out from plain reads, off the executor's thread (kernel/fork_copy.h), and written in
 * slices under a key that no execution has yet. The last command makes it appear, whole. Until then
 * a pin keeps the source. */
#ifndef KERNEL_FORK_H
#define KERNEL_FORK_H

#include "kernel/verdict.h"

/* A fork whose last slice is this long ago was given up, with the kernel that was at it. */
enum { FORK_PATIENCE_S = 60 };

struct fork_begin {
    struct uuid source;
    int64_t at_seq;
    struct str session; /* absent: none */
};
struct fork_begun {
    struct uuid id;      /* of the fork */
    int64_t last_seq;    /* of the source */
    struct str agent_id; /* group arena */
};
void fork_begin_names(struct working_set *ws, const struct fork_begin *cmd);
/* Pins the source. ERR_NOT_FOUND: no such execution, or its agent is gone. ERR_VALIDATION: no such
 * event. ERR_CONFLICT: the session is in use. */
MUST_USE
enum verdict fork_begin(struct working_set *ws, const struct fork_begin *cmd,
                        struct fork_begun *answer, struct err *e);

struct fork_part {
    struct uuid fork_id;
    struct fork_slice slice; /* its key is filled by the rule */
    /* Of the first of its checkpoints' events, which the rule writes; such a part has no others. */
    int64_t checkpoint_seq;
};
void fork_part_names(struct working_set *ws, const struct fork_part *cmd);
/* ERR_UNAVAILABLE: the fork was given up meanwhile. */
MUST_USE
enum verdict fork_add_part(struct working_set *ws, struct fork_part *cmd, struct err *e);

struct fork_finish {
    struct fork_part last; /* the last slice */
    struct uuid source;
    int64_t at_seq;
    struct str agent_id, session; /* absent: none */
    struct str created_by;
    /* the source's */
    struct str input, on_behalf_of;
    /* The bundle of its own that it runs under, given or the source's; absent: none. */
    struct str policy_bundle;
    struct hash policy_hash;
    int64_t next_seq; /* behind the last copied event; 3: none was */
    int64_t tokens;
    struct str indeterminate;         /* struct call_key of each copied step that failed so */
    const struct resource *resources; /* as they begin in the fork, in order of registration */
    size_t n_resources;
    const struct checkpoint *checkpoints; /* copied; by resource in that order, then by age;
                                             invalidated_seq -1: where the fork starts */
    size_t n_checkpoints;
    size_t n_checkpoints_before; /* written with earlier parts; these come behind them */
    struct str restoration;      /* a JSON object; absent: it has no resources */
};
void fork_finish_names(struct working_set *ws, const struct fork_finish *cmd);
/* The fork is there, and runs. */
MUST_USE
enum verdict fork_finish(struct working_set *ws, struct fork_finish *cmd, struct err *e);

/* Gives up a fork whose last slice is longer ago than the patience; `failed`: at once, by the one
 * that was at it. Nothing of it is ever seen. */
struct fork_abandon {
    struct uuid fork_id;
    bool failed;
};
void fork_abandon_names(struct working_set *ws, const struct fork_abandon *cmd);
MUST_USE
enum verdict fork_abandon(struct working_set *ws, const struct fork_abandon *cmd, struct err *e);

#endif
