/* SPDX-License-Identifier: Apache-2.0
 * The deterministic simulation's parts: what it knows (struct sim), what it checks after every
 * group (sim_checks.c), and what its agents do (sim_agents.c). tests/unit/simulation_test.c is the
 * world around them. */
#ifndef SUPPORT_SIM_H
#define SUPPORT_SIM_H

#include "support/check.h"

#include "engine/decide.h"
#include "support/memory_store.h"

#include <stdio.h>
#include <stdlib.h>

enum {
    EXECUTIONS = 4,
    CALLS = 6,
    BLOCKS_MAX = 4,
    BLOCK_MAX = 3,
    HANDLERS = 8,
    FLIGHTS = 8,
    TICKS = 160
};

#define GUARANTEE(sim, cond, ...)                                                                  \
    do {                                                                                           \
        if (!(cond)) {                                                                             \
            fprintf(stderr, "seed %llu (%s), tick %d: ", (unsigned long long)(sim)->seed,          \
                    (sim)->m.leases_in_set ? "leases in the set" : "leases stored", (sim)->tick);  \
            fprintf(stderr, __VA_ARGS__);                                                          \
            fprintf(stderr, "\n  (%s)\n  rerun: SIM_SEED=%llu\n", #cond,                           \
                    (unsigned long long)(sim)->seed);                                              \
            fail();                                                                                \
        }                                                                                          \
    } while (0)

/* What an agent's program may call. Some are equal in all but their spelling or differ only in
 * their arguments. */
struct sim_call {
    enum step_kind kind;
    const char *target, *args;
    enum idempotency idempotency;
};
extern const struct sim_call PALETTE[CALLS];

/* A program: blocks of calls. The calls of a block run beside each other, so their order may differ
 * each time. */
struct program {
    int blocks, size[BLOCKS_MAX];
    int call[BLOCKS_MAX][BLOCK_MAX];
};

struct shadow { /* what the simulation knows of one execution */
    struct uuid id;
    struct program program;
    bool owned, acked, ended;
    bool over; /* its delivery has ended, and the attempt still owns it */
    struct uuid dispatch;
    int64_t attempt;
    int64_t checked_seq; /* events read so far */
    enum execution_status status;
};

struct handler { /* one run of a program under one attempt */
    bool alive;
    bool stopping; /* was told to stop: what runs reports, then it exits */
    int x;         /* index of its execution */
    struct lease_ref lease;
    int block;
    bool submitted[BLOCK_MAX], settled[BLOCK_MAX];
    struct hash step[BLOCK_MAX];
    bool wants_effect[BLOCK_MAX]; /* told to proceed */
    int64_t counts[CALLS];
    int retry; /* slot whose answer was lost and that is asked again with its key; -1: none */
    int64_t key_no;
    int64_t stalled_until;
};

struct flight { /* a webhook on its way */
    bool used, heard;
    int x;
    struct dispatch_ref ref;
};

struct effect {
    int64_t count;
    bool at_most_once;
};

struct sim {
    uint64_t seed;
    int tick;
    bool calm; /* no more faults: everything must end */
    const char *policy;
    struct memory_store m;
    struct working_set ws;
    struct kernel_settings settings;
    struct uuid_gen ids;
    struct prng chaos, rules;
    struct arena arena;
    struct shadow x[EXECUTIONS];
    int n;
    struct handler h[HANDLERS];
    struct flight f[FLIGHTS];
    struct map effects;  /* step id → struct effect */
    struct map terminal; /* step id → its recorded outcome, as text */
};

uint64_t roll(struct sim *s, uint64_t bound);
bool chance(struct sim *s, uint64_t percent); /* never once it is calm */
/* As the executor runs a group. False: the commit was lost, nothing happened. */
bool run_group(struct sim *s, struct command **cmds, size_t n, bool lose_commit);

/* ---- guarantees ---- */
void check_all(struct sim *s);
/* A call under `lease` was answered: was it right to take or to refuse it? */
void check_owner(struct sim *s, const struct shadow *sh, const struct lease_ref *lease,
                 const struct command *cmd);
/* Nobody may run again, in whatever disguise, what an equal call may have done already. */
void check_not_indeterminate(struct sim *s, const struct memory_step *step);
/* What was approved is what runs, and nothing else that a person must decide. */
void check_granted(struct sim *s, const struct memory_step *step);

/* ---- agents ---- */
/* Runs one command in a group, sometimes beside a command of a client. False: the commit was lost,
 * nothing happened. */
bool run_one(struct sim *s, struct command *cmd);
void handler_turn(struct sim *s, struct handler *h);

#endif
