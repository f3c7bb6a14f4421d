/* SPDX-License-Identifier: Apache-2.0
 * One execution of one agent under the real rules, a fake clock and the store in memory: what the
 * tests of rules by tables stand on. Times in microseconds. */
#ifndef SUPPORT_RULES_WORLD_H
#define SUPPORT_RULES_WORLD_H

#include "engine/decide.h"
#include "support/memory_store.h"

struct world {
    struct memory_store m;
    struct working_set ws;
    struct kernel_settings settings;
    struct uuid_gen ids;
    struct prng random;
    struct arena arena;
    struct uuid id; /* of the execution */
};

void world_init(struct world *w, bool leases_in_set);
void world_free(struct world *w);
void decide(struct world *w, struct command *cmd); /* in a group of its own, and applied */
/* All of them in one group, in this order, which apply_group then applies. */
void decide_group(struct world *w, struct command *cmds, size_t n);
void apply_group(struct world *w);
struct memory_execution *row(struct world *w);
void pass(struct world *w, int64_t us); /* time */
void claim(struct world *w);            /* the queued dispatch, once it is due */
void delivered(struct world *w, bool acked);
struct lease_ref lease(struct world *w); /* the owner's */
/* A tool call of target `t` with the number as its arguments. */
struct hash submit(struct world *w, int n, enum decision want);
/* The same with more to choose; all of it is the caller's. */
void fill_call(struct world *w, struct command *cmd, const char *target, const char *args);
/* Decides it, expects the decision, and hands the answer back. */
struct step_answer call(struct world *w, const char *target, const char *args, enum decision want);
/* The agent's policy from now on. */
void set_policy(struct world *w, const char *yaml);
void settle(struct world *w, const struct hash *step);
bool reclaim(struct world *w);
/* The types of the log's events, in order, joined by spaces. */
struct str log_types(struct world *w);
/* The same for the events after the first `skip`. */
struct str log_types_after(struct world *w, size_t skip);
size_t log_length(struct world *w);

#define ON_BOTH(w) for (int both_ = 0; both_ < 2; both_++)

#endif
