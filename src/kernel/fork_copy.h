/* SPDX-License-Identifier: Apache-2.0
 * What of an execution's record a fork at one event copies, and what its resources are restored
 * from. Pure: it is fed the source's rows and says what becomes of them. In this order:
 *
 *     fork_copy_survey     every transition of the source, oldest first
 *     fork_copy_step       every step of the source, in order of creation
 *     fork_copy_events     every transition again
 *     fork_copy_checkpoint every checkpoint of the source, oldest first
 *     fork_copy_resources  once
 *
 * Events behind the fork point are ignored wherever they are fed. Copied: the events up to there of
 * the steps that had settled by then, under ids of the fork's own, and resource.registered and
 * resource.initialized. */
#ifndef KERNEL_FORK_COPY_H
#define KERNEL_FORK_COPY_H

#include "kernel/working_set.h"

struct fork_copy;

/* One owner, one thread. Memory in proportion to the settled steps and copied events. */
struct fork_copy *fork_copy_new(const struct uuid *fork_id, int64_t at_seq);
void fork_copy_free(struct fork_copy *c); /* NULL is fine */

/* `body` is kernel/event.h's text. */
void fork_copy_survey(struct fork_copy *c, int64_t first_seq, struct str body);
/* False: it had not settled by then, and is not copied. `out` borrows from `step`; its payload_key
 * is step->key, which the store replaces by that of the row which has them. `error` is its error.
 */
MUST_USE bool fork_copy_step(struct fork_copy *c, const struct step *step, struct step_copy *out);
/* Appends what is copied of a transition to `body`; the answer is how many events that is, and
 * *first_seq where they stand in the fork (rising without gaps from 3 over the calls). */
int64_t fork_copy_events(struct fork_copy *c, int64_t source_first_seq, struct str source_body,
                         int64_t *first_seq, struct buf *body);
void fork_copy_checkpoint(struct fork_copy *c, const struct checkpoint *checkpoint);
/* For a resource that a turn inherited and that has no checkpoint by then: the newest one of the
 * executions that it inherited from, if any (checkpoint_ref absent: none). */
struct inherited_checkpoint {
    struct str resource, checkpoint_ref;
    int64_t covered_seq;
    struct uuid execution_id;
};
/* `rows`: the source's resources as they are now. */
void fork_copy_resources(struct fork_copy *c, const struct resource *rows, size_t n,
                         const struct inherited_checkpoint *inherited, size_t n_inherited);

/* What came of it, when all has been fed; borrowed from the copy. */
struct fork_copied {
    int64_t next_seq; /* behind the last copied event */
    int64_t tokens;   /* recorded on the copied steps */
    struct str indeterminate;
    const struct resource *resources;
    size_t n_resources;
    const struct checkpoint *checkpoints; /* as struct fork_finish wants them */
    size_t n_checkpoints;
    struct str restoration; /* a JSON object; absent: no resources */
};
struct fork_copied fork_copy_result(const struct fork_copy *c);
/* Keys of the resources registered by the fork point that a turn inherited and that no checkpoint
 * of the source restores: what fork_copy_resources wants `inherited` for. After the checkpoints. */
bool fork_copy_wants_inherited(const struct fork_copy *c, const struct resource *row);

#endif
