/* SPDX-License-Identifier: Apache-2.0
 * The deterministic simulation's parts: what it knows (struct sim), how it reads logs (sim_log.c),
 * what it checks after every group (sim_checks.c), what its agents do (sim_agents.c,
 * sim_resources.c, sim_subagents.c), and what it forks (sim_forks.c, sim_fork_model.c).
 * tests/unit/simulation_test.c is the world around them. */
#ifndef SUPPORT_SIM_H
#define SUPPORT_SIM_H

#include "support/check.h"

#include "engine/decide.h"
#include "kernel/fork_copy.h"
#include "store/list.h"
#include "support/memory_store.h"

#include <stdio.h>
#include <stdlib.h>

enum {
    ROOTS = 5, /* that clients create */
    EXECUTIONS = 14,
    CALLS = 6,
    BLOCKS_MAX = 4,
    BLOCK_MAX = 3,
    HANDLERS = 16,
    FLIGHTS = 16,
    TICKS = 200,
    KEYS = 3,
    DEPTH_MAX = 3, /* of subagents below a root */
    FOLLOW_UPS = 32,
    FORK_JOBS = 2,
    SIM_POLICIES = 4,
    CAPTURES_MAX = 6
};

#define GUARANTEE(sim, cond, ...)                                                                  \
    do {                                                                                           \
        if (!(cond)) {                                                                             \
            fprintf(stderr, "seed %llu (%s), tick %d: ", (unsigned long long)(sim)->seed,          \
                    (sim)->m.leases_in_set ? "leases in the set" : "leases stored", (sim)->tick);  \
            fprintf(stderr, __VA_ARGS__);                                                          \
            fprintf(stderr, "\n  (%s)\n  rerun: SIM_SEED=%llu\n", #cond,                           \
                    (unsigned long long)(sim)->seed);                                              \
            sim_show(sim);                                                                         \
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

/* What it may register. Sets of them are bits. */
struct sim_resource {
    const char *key, *driver, *configuration; /* NULL: none */
    bool reuse;
};
extern const struct sim_resource RESOURCES[KEYS];

/* A program: blocks of calls. The calls of a block run beside each other, so their order may differ
 * each time. */
struct program {
    int blocks, size[BLOCKS_MAX];
    int call[BLOCKS_MAX][BLOCK_MAX];
    unsigned keys;            /* resources that it uses */
    unsigned declares[CALLS]; /* of which a call says that it changes them */
    unsigned spawns;          /* calls that start a subagent, as bits */
    int every[KEYS];
};

/* ---- what a log says (sim_log.c): nothing of it comes from a row ---- */

struct log_event {
    enum event_type type;
    char *payload; /* a JSON object */
    int64_t occurred_at;
    bool has_step;
    struct hash step;
    int key;                   /* -1: none of RESOURCES */
    unsigned affected;         /* step.executing */
    int64_t generations[KEYS]; /* likewise; 0: not touched */
    int64_t generation, covered_seq, tokens;
};

struct log_step {
    struct hash id;
    int status;        /* -1: nothing yet */
    unsigned affected; /* when it was last told to proceed */
    int64_t generations[KEYS];
    int64_t settled_seq; /* 0: not yet */
    /* What the simulation itself knows: under which attempt it was last told to proceed, and the
     * execution that it started (-1: none). */
    bool was_told;
    struct lease_ref told;
    int child;
};

struct log_checkpoint {
    int64_t generation, covered_seq, invalidated_seq; /* 0: open */
    const char *ref;
};

struct log_resource {
    bool registered, inherited, on_completion;
    int64_t registered_seq, generation, count, every;
    const char *binding, *ref; /* NULL: none */
    LIST(struct log_checkpoint) checkpoints;
    /* What a fork was restored from when that is of an earlier turn: nobody's row has it. */
    const char *restored_ref;
    int restored_from; /* its execution; -1: none */
};

struct log {
    size_t rows;     /* read so far */
    int64_t end_row; /* the one that ended it; -1 */
    bool started, suspended;
    int64_t tokens, approvals; /* pending ones */
    const char *end_reason;
    LIST(struct log_event) events;
    LIST(struct log_step) steps;
    struct log_resource resources[KEYS];
};

struct shadow { /* what the simulation knows of one execution */
    struct uuid id;
    struct program program;
    bool owned, acked, ended;
    bool over; /* its delivery has ended, and the attempt still owns it */
    struct uuid dispatch;
    int64_t attempt;
    enum execution_status status;
    const char *policy; /* NULL: none */
    int depth;
    int spawner; /* -1: a client created it */
    struct hash spawned_step;
    bool branch;     /* it continues a given execution */
    int forked_from; /* -1: it is no fork */
    bool announced;  /* its end has been seen, with its follow-ups */
    struct log log;
};

struct handler { /* one run of a program under one attempt */
    bool alive;
    bool stopping; /* was told to stop: what runs reports, then it exits */
    int x;         /* index of its execution */
    struct lease_ref lease;
    int block;
    bool submitted[BLOCK_MAX], settled[BLOCK_MAX];
    struct hash step[BLOCK_MAX];
    bool waits[BLOCK_MAX]; /* for a subagent */
    unsigned declared[BLOCK_MAX];
    int64_t generations[BLOCK_MAX][KEYS]; /* as it was told */
    int64_t counts[CALLS];
    int retry; /* slot whose answer was lost and that is asked again with its key; -1: none */
    int64_t stalled_until;
};

struct flight { /* a webhook on its way */
    bool used, heard;
    int x;
    struct dispatch_ref ref;
};

/* What a group's end brings about, on its way. */
struct sim_follow_up {
    enum { FOLLOW_ADMIT, FOLLOW_SETTLE, FOLLOW_ORPHANS } kind;
    char session[16];
    struct subagent_end end;
    struct uuid ended;
};

struct fork_job {
    bool used;
    int phase, source;
    int64_t at_seq;
    struct uuid id;
    char session[16]; /* "": none */
    int policy;       /* of its own; -1: the source's */
    struct fork_copy *copy;
    size_t next_step, next_row;
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
    struct arena arena, keep; /* until the next check; to the end */
    struct shadow x[EXECUTIONS];
    int n, roots, names;    /* names: sessions, keys and references made up so far */
    struct command *beside; /* goes into the next command's group, too */
    int reclaimed;          /* beside the last command, in its group; -1: none */
    struct handler h[HANDLERS];
    struct flight f[FLIGHTS];
    struct sim_follow_up follow_ups[FOLLOW_UPS];
    int n_follow_ups;
    struct fork_job forks[FORK_JOBS];
    struct map effects;  /* step id → struct effect */
    struct map terminal; /* step id → its recorded outcome */
};

/* What was recorded of a terminal step when it was first seen. */
struct terminal_note {
    enum step_status status;
    const char *result, *error; /* NULL: none */
};

void sim_show(struct sim *s); /* all logs, of a schedule that is rerun alone */
uint64_t roll(struct sim *s, uint64_t bound);
bool chance(struct sim *s, uint64_t percent); /* never once it is calm */
/* As the executor runs a group. False: the commit was lost, nothing happened. */
bool run_group(struct sim *s, struct command **cmds, size_t n, bool lose_commit);
bool run_alone(struct sim *s, struct command *cmd, bool lose_commit);
int sim_index(const struct sim *s, const struct uuid *id); /* -1: unknown */
/* A new shadow, of the execution that was just created. */
struct shadow *sim_add(struct sim *s, const struct uuid *id);
extern const char *const SIM_POLICY[SIM_POLICIES];
const struct hash *sim_policy_hash(int which);
void sim_policies_put(struct policy_cache *cache);
void sim_policies_free(void);

/* ---- logs ---- */
void log_read(struct sim *s, int x);                                 /* what is new in it */
struct log_step *log_step(struct shadow *sh, const struct hash *id); /* NULL: none */
void log_free(struct log *log);
int resource_index(struct str key); /* -1: none of RESOURCES */
/* The newest open one; NULL: it is not covered. (Each touch ends them all. One that a fork of a
 * fork copied may be of an older generation than the fork begins with.) */
const struct log_checkpoint *log_open_checkpoint(const struct log_resource *r);
/* How many of its executing steps have a subagent. */
int64_t log_awaited(const struct log *log);
void check_rows_agree(struct sim *s, int x); /* the rows say what the log says */

/* ---- guarantees ---- */
void check_all(struct sim *s);
/* A call under `lease` was answered: was it right to take or to refuse it? */
void check_owner(struct sim *s, const struct shadow *sh, const struct lease_ref *lease,
                 const struct command *cmd);
/* Nobody may run again, in whatever disguise, what an equal call may have done already. */
void check_not_indeterminate(struct sim *s, const struct memory_step *step);
void check_held(struct sim *s, const struct shadow *sh, const struct memory_step *step);
/* What was approved is what runs, and nothing else that a person must decide. */
void check_granted(struct sim *s, const struct memory_step *step);
void check_terminal_steps(struct sim *s);
/* A replay hands out what was recorded, and nothing else. */
void check_replay(struct sim *s, const struct step_answer *a);
const struct terminal_note *sim_outcome(const struct sim *s, const struct hash *step_id);
void note_terminal(struct sim *s, const struct memory_step *step);

/* ---- agents ---- */
/* Runs one command in a group, sometimes beside a command of a client. False: the commit was lost,
 * nothing happened. */
bool run_one(struct sim *s, struct command *cmd);
void called(struct sim *s, struct handler *h, const struct command *cmd);
void handler_turn(struct sim *s, struct handler *h);
void handler_settle(struct sim *s, struct handler *h, int slot);

/* ---- resources ---- */
void handler_resources(struct sim *s, struct handler *h); /* registers, binds or captures one */
/* What a call declares this time. */
unsigned pick_declared(struct sim *s, const struct handler *h, int call);
/* It was told to proceed: what it was told of resources, and whether that is what the log says. */
void check_told(struct sim *s, struct handler *h, int slot, const struct step_answer *a,
                bool repeat);
/* Captures and failures, and what is to become of each. */
struct report {
    struct capture captures[CAPTURES_MAX];
    struct capture_failure failures[CAPTURES_MAX];
    size_t n_captures, n_failures;
    const char *want[CAPTURES_MAX]; /* of each capture: NULL: accepted, else why it is not */
};
/* `step`: the one that settles with it; NULL: none. */
void fill_report(struct sim *s, const struct handler *h, int slot, const struct hash *step,
                 struct report *out);
/* These stand in the log from event number `first` on, and the accepted ones cover `covers`. */
void check_report(struct sim *s, int x, const struct report *r, int64_t first, int64_t covers);

/* ---- subagents ---- */
bool spawns(const struct sim *s, const struct handler *h, int slot);
void handler_spawn(struct sim *s, struct handler *h, int slot);
void handler_wait(struct sim *s, struct handler *h, int slot);
void handler_suspend(struct sim *s, struct handler *h);
void make_program(struct sim *s, struct program *p, int depth);
/* A group was applied: what it announces, and whether it announced all it had to. */
void take_follow_ups(struct sim *s);
void follow_ups_turn(struct sim *s);
void sweep_follow_ups(struct sim *s); /* what was lost */
void check_nothing_owed(struct sim *s);

/* ---- forks ---- */
void forks_turn(struct sim *s);
void forks_restart(struct sim *s); /* the kernel that was at them is gone */
bool forks_idle(const struct sim *s);
void forks_free(struct sim *s);
/* The fork has appeared: is it what the specification makes of its source? */
void check_fork(struct sim *s, int fork, int64_t at_seq, bool own_policy);

#endif
