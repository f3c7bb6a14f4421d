/* SPDX-License-Identifier: Apache-2.0
 * Executions that end, are forked and go, on a store of a test: what kernel/ and engine/ do of it,
 * by hand. */
#ifndef SUPPORT_FORK_WORLD_H
#define SUPPORT_FORK_WORLD_H

#include "support/store_fixture.h"

/* Ends it, at this wall time; committed. */
void world_end(struct fixture *f, const struct uuid *id, int64_t at);
/* A new execution of agent "a" with `n` settled steps: of step i the arguments are `args_size`
 * bytes, and the result is twice as large; every fourth has failed with such an error. */
struct uuid world_run(struct fixture *f, struct str session, size_t n, size_t args_size);
struct hash world_step_id(const struct uuid *execution_id, size_t i);
/* The texts of world_run; in the fixture's arena. */
struct str world_args(struct fixture *f, size_t i, size_t args_size);
struct str world_outcome(struct fixture *f, size_t i, size_t args_size);
bool world_failed(size_t i);

/* A pin of a source; committed. */
struct uuid world_pin(struct fixture *f, const struct uuid *source);
/* All settled steps of the source into the fork, in one slice; committed. */
void world_copy(struct fixture *f, const struct uuid *fork, const struct uuid *source);
/* The fork appears; committed. */
void world_appear(struct fixture *f, const struct uuid *fork, const struct uuid *source);
void world_abandon(struct fixture *f, const struct uuid *fork);
/* The three of them. */
struct uuid world_fork(struct fixture *f, const struct uuid *source);

/* Whether it went, as the rule of retention says. Committed. */
bool world_unlink(struct fixture *f, const struct uuid *id, int64_t cutoff);
/* Housekeeping to its end; the answer is how many slices that took. */
size_t world_tidy(struct fixture *f);
/* Rows of a table; of all that hold what belongs to executions. */
int64_t world_count(struct fixture *f, const char *table);
int64_t world_rows(struct fixture *f);

#endif
