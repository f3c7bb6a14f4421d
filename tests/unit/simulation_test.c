/* SPDX-License-Identifier: Apache-2.0
 * A deterministic simulation of the kernel: the real rules, a fake clock, a store in memory, and
 * random schedules of agents that crash, stall, repeat themselves and race, of kernels that are
 * killed and of commits that fail. After every group the guarantees 2 to 6 of ARCHITECTURE.md are
 * checked against what the simulation itself knows.
 *
 *   SIM_SEED=n build/tests/unit/simulation_test     reruns one schedule
 *   SIM_RUNS=n …                                    runs that many (default 3000) */
#include "support/check.h"

#include "base/clock.h"
#include "base/json.h"
#include "engine/decide.h"
#include "kernel/event.h"
#include "support/memory_store.h"

#include <stdio.h>
#include <stdlib.h>

enum {
    EXECUTIONS = 3,
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
static const struct {
    enum step_kind kind;
    const char *target, *args;
    enum idempotency idempotency;
} PALETTE[CALLS] = {
    {KIND_TOOL_CALL, "send", "{\"to\":1}", AT_MOST_ONCE},
    {KIND_TOOL_CALL, "read", "{\"p\":1}", SAFE_TO_RETRY},
    {KIND_TOOL_CALL, "read", "{\"p\":2}", SAFE_TO_RETRY},
    {KIND_LOCAL, "read", "{\"p\":1}", SAFE_TO_RETRY},
    {KIND_LLM_CALL, "model", "null", SAFE_TO_RETRY},
    {KIND_TOOL_CALL, "pay", "{}", AT_MOST_ONCE},
};

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
    struct uuid dispatch;
    int64_t attempt;
    int64_t checked_seq; /* events read so far */
    enum execution_status status;
};

struct handler { /* one run of a program under one attempt */
    bool alive;
    int x; /* index of its execution */
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

static uint64_t roll(struct sim *s, uint64_t bound)
{
    return prng_below(&s->chaos, bound);
}

static bool chance(struct sim *s, uint64_t percent)
{
    return !s->calm && roll(s, 100) < percent;
}

/* ---- running a group as the executor does ---- */

static bool run_group(struct sim *s, struct command **cmds, size_t n, bool lose_commit)
{
    struct working_set *ws = &s->ws;
    bool undecided = true;

    for (size_t i = 0; i < n; i++) {
        cmds[i]->verdict = VERDICT_NEED;
        cmds[i]->arena = &s->arena;
        command_names(ws, cmds[i]);
    }
    for (int round = 0; undecided; round++) {
        assert_true(round < 8);
        memory_store_load(&s->m, ws);
        undecided = false;
        for (size_t i = 0; i < n; i++) {
            if (cmds[i]->verdict == VERDICT_NEED) {
                command_decide(ws, cmds[i]);
                undecided |= cmds[i]->verdict == VERDICT_NEED;
            }
        }
        assert_true(!undecided || ws_has_needs(ws));
    }
    for (size_t i = 0; i < n; i++)
        assert_true(command_keep_answer(cmds[i]));
    if (lose_commit) {
        ws_clear(ws);
        return false;
    }
    memory_store_apply(&s->m, ws);
    ws_end_group(ws);
    return true;
}

/* ---- guarantees ---- */

static void note_terminal(struct sim *s, const struct memory_step *step)
{
    struct str key = str_make(step->id.b, sizeof(step->id.b));
    char *was = map_get(&s->terminal, key), *now;

    if (asprintf(&now, "%d|%s|%s", step->status, step->result == NULL ? "-" : step->result,
                 step->error == NULL ? "-" : step->error) < 0)
        abort();
    GUARANTEE(s, was == NULL || strcmp(was, now) == 0, "a terminal step changed: %s to %s", was,
              now);
    if (was == NULL)
        map_put(&s->terminal, key, now);
    else
        free(now);
}

/* The status a step's events lead to, by the model's table alone. */
static int step_after(struct sim *s, int from, struct str type)
{
    static const struct {
        const char *type;
        int from, to;
    } MOVES[] = {
        {"step.proposed", -1, STEP_PROPOSED},
        {"step.allowed", STEP_PROPOSED, STEP_ALLOWED},
        {"step.denied", STEP_PROPOSED, STEP_DENIED},
        {"step.executing", STEP_ALLOWED, STEP_EXECUTING},
        {"step.executing", STEP_EXECUTING, STEP_EXECUTING},
        {"step.succeeded", STEP_EXECUTING, STEP_SUCCEEDED},
        {"step.failed", STEP_EXECUTING, STEP_FAILED},
        {"step.cancelled", STEP_EXECUTING, STEP_CANCELLED},
    };

    for (size_t i = 0; i < COUNT(MOVES); i++)
        if (str_eq(type, str_of(MOVES[i].type)) && MOVES[i].from == from)
            return MOVES[i].to;
    GUARANTEE(s, false, "event %.*s of a step in state %d", STR_ARG(type), from);
    return 0;
}

static bool is_end(struct str type)
{
    return str_eq(type, STR("execution.completed")) || str_eq(type, STR("execution.failed")) ||
           str_eq(type, STR("execution.cancelled"));
}

/* Reads the whole log anew: no gaps, legal moves, nothing but the ending transition's own events
 * after an end, and rows that agree with it. */
static void check_log(struct sim *s, const struct memory_execution *x)
{
    struct map steps = {0};
    struct buf scratch = {0};
    int64_t seq = 0, end_row = -1;
    void *v;
    struct str key;

    for (size_t i = 0; i < x->events.n; i++) {
        struct event_reader r = {.body = str_make(x->events.at[i].body, x->events.at[i].n)};
        struct event_line line;
        int64_t first = seq + 1;

        GUARANTEE(s, x->events.at[i].first_seq == first, "a gap in the log");
        while (event_next(&r, &scratch, &line)) {
            struct err e;
            struct str id;

            seq++;
            GUARANTEE(s, json_check(line.payload, &e), "payload is not JSON: %.*s",
                      STR_ARG(line.payload));
            GUARANTEE(s,
                      end_row < 0 || end_row == (int64_t)i ||
                          str_eq(line.type, STR("dispatch.discarded")),
                      "%.*s after the end", STR_ARG(line.type));
            if (is_end(line.type))
                end_row = (int64_t)i;
            id = json_get(line.payload, STR("step_id"), &s->arena);
            if (str_present(id)) {
                intptr_t was = (intptr_t)map_get(&steps, id); /* status + 1; 0: none */

                map_put(&steps, id, (void *)(intptr_t)(step_after(s, (int)was - 1, line.type) + 1));
            }
        }
        GUARANTEE(s, seq == first + x->events.at[i].count - 1, "a transition miscounts its events");
    }
    GUARANTEE(s, seq == x->last_seq, "last_seq");
    GUARANTEE(s, (end_row >= 0) == execution_status_is_terminal(x->status),
              "the log and the row disagree on the end");
    for (size_t i = 0; (v = map_next_key(&steps, &i, &key)) != NULL;) {
        struct hash id;
        const struct memory_step *step;

        assert_true(hash_parse(str_slice(key, 1, key.n - 1), &id));
        step = memory_step(&s->m, &id);
        GUARANTEE(s, step != NULL && (intptr_t)v == (intptr_t)step->status + 1,
                  "a step and its events disagree");
    }
    map_free(&steps);
    buf_free(&scratch);
}

static void check_all(struct sim *s)
{
    for (int i = 0; i < s->n; i++) {
        struct shadow *sh = &s->x[i];
        const struct memory_execution *x = memory_execution(&s->m, &sh->id);

        if (x->last_seq != sh->checked_seq)
            check_log(s, x);
        sh->checked_seq = x->last_seq;
        GUARANTEE(s, !execution_status_is_terminal(sh->status) || sh->status == x->status,
                  "a terminal execution changed");
        sh->status = x->status;
        GUARANTEE(s, execution_status_is_terminal(x->status) != x->has_dispatch,
                  "a live execution without a dispatch, or an ended one with one");
    }
    for (size_t i = 0; i < s->m.all_steps.n; i++)
        if (step_status_is_terminal(s->m.all_steps.at[i]->status))
            note_terminal(s, s->m.all_steps.at[i]);
    arena_reset(&s->arena);
}

/* A call under `lease` was answered: was it right to take or to refuse it? */
static void check_owner(struct sim *s, const struct shadow *sh, const struct lease_ref *lease,
                        const struct command *cmd)
{
    bool owns =
        sh->owned && uuid_eq(&sh->dispatch, &lease->dispatch_id) && sh->attempt == lease->attempt;
    bool superseded = cmd->verdict == VERDICT_REFUSED && cmd->err.code == ERR_LEASE_SUPERSEDED;

    if (execution_status_is_terminal(memory_execution(&s->m, &sh->id)->status) && !owns)
        return;
    GUARANTEE(s, owns || superseded || execution_status_is_terminal(sh->status),
              "a write of a superseded attempt was taken");
    GUARANTEE(s, !owns || !superseded || sh->ended, "the owner was refused");
}

/* ---- agents ---- */

static struct command agent_command(struct sim *s, const struct handler *h, enum command_type type)
{
    struct command cmd = {.type = type};
    const struct uuid *id = &s->x[h->x].id;

    switch ((int)type) {
    case COMMAND_SUBMIT:
        cmd.in.submit.execution_id = *id;
        cmd.in.submit.agent_id = STR("a");
        cmd.in.submit.lease = h->lease;
        break;
    case COMMAND_SETTLE:
        cmd.in.settle.execution_id = *id;
        cmd.in.settle.agent_id = STR("a");
        cmd.in.settle.lease = h->lease;
        break;
    case COMMAND_FINISH:
        cmd.in.finish.execution_id = *id;
        cmd.in.finish.agent_id = STR("a");
        cmd.in.finish.lease = h->lease;
        break;
    default:
        cmd.in.lease.execution_id = *id;
        cmd.in.lease.agent_id = STR("a");
        cmd.in.lease.lease = h->lease;
        break;
    }
    return cmd;
}

/* Runs one command in a group, sometimes beside a command of a client. False: the commit was lost,
 * nothing happened. */
static bool run_one(struct sim *s, struct command *cmd)
{
    struct command cancel = {.type = COMMAND_CANCEL}, beat = {.type = COMMAND_RECLAIM};
    struct command *group[3] = {cmd};
    size_t n = 1;
    bool cancels = chance(s, 1), sweeps = chance(s, 10);
    int victim = (int)roll(s, (uint64_t)s->n);
    bool ok;

    cancel.in.cancel.execution_id = s->x[victim].id;
    beat.in.reclaim = s->x[victim].id;
    if (cancels)
        group[n++] =
            &cancel; /* after the command: it must not disturb what the shadow expects of it */
    if (sweeps)
        group[n++] = &beat;
    ok = run_group(s, group, n, chance(s, 4));
    if (ok && cancels && cancel.verdict == VERDICT_DONE)
        s->x[victim].ended = true;
    if (ok && sweeps && beat.verdict == VERDICT_DONE && beat.out.reclaimed)
        s->x[victim].owned = false;
    return ok;
}

static void called(struct sim *s, struct handler *h, const struct command *cmd)
{
    struct shadow *sh = &s->x[h->x];

    if (cmd->verdict == VERDICT_REFUSED) {
        h->alive = false;
    } else if (sh->owned && uuid_eq(&sh->dispatch, &h->lease.dispatch_id) &&
               sh->attempt == h->lease.attempt) {
        sh->acked = true;
    }
}

/* Nobody may run again, in whatever disguise, what an equal call may have done already. */
static void check_not_indeterminate(struct sim *s, const struct memory_step *step)
{
    for (size_t i = 0; i < s->m.all_steps.n; i++) {
        const struct memory_step *other = s->m.all_steps.at[i];

        if (!uuid_eq(&other->execution_id, &step->execution_id) || other->kind != step->kind ||
            strcmp(other->target, step->target) != 0 ||
            !hash_eq(&other->args_hash, &step->args_hash))
            continue;
        GUARANTEE(s, other->error == NULL || strstr(other->error, "\"indeterminate\"") == NULL,
                  "an equal call ran after one whose outcome is unknown");
    }
}

static void handler_effect(struct sim *s, const struct handler *h, const struct hash *id, int call)
{
    struct str key = str_make(id->b, sizeof(id->b));
    struct effect *fx = map_get(&s->effects, key);
    const struct memory_step *step = memory_step(&s->m, id);

    /* a cancel in the same group may have followed it */
    GUARANTEE(s, step != NULL && (step->status == STEP_EXECUTING || s->x[h->x].ended),
              "proceed before step.executing was durable");
    if (fx == NULL) {
        fx = xzalloc(sizeof(*fx));
        map_put(&s->effects, key, fx);
    }
    fx->at_most_once |= PALETTE[call].idempotency == AT_MOST_ONCE;
    fx->count++;
    GUARANTEE(s, !fx->at_most_once || fx->count == 1, "an at_most_once effect ran twice");
    if (PALETTE[call].idempotency == AT_MOST_ONCE)
        check_not_indeterminate(s, step);
}

static void fill_submission(struct sim *s, struct handler *h, int slot, int call,
                            struct command *cmd)
{
    struct step_submission *in = &cmd->in.submit;
    struct buf canonical = {0};
    struct err e;
    struct call c;

    in->kind = PALETTE[call].kind;
    in->target = str_of(PALETTE[call].target);
    in->idempotency = PALETTE[call].idempotency;
    assert_true(canonical_json(str_of(PALETTE[call].args), &canonical, &e));
    in->args = in->raw_args = arena_str(&s->arena, buf_str(&canonical));
    buf_free(&canonical);
    assert_true(args_hash(in->args, &in->args_hash, &e));
    c = (struct call){step_kind_name(in->kind), in->target, in->args_hash};
    in->tally.execution_id = in->execution_id;
    call_key(&c, &in->tally.call);
    in->tally.has_key = true;
    memset(in->tally.key, 0, sizeof(in->tally.key));
    memcpy(in->tally.key, &h->lease.attempt, sizeof(h->lease.attempt));
    in->tally.key[8] = (uint8_t)(h->block * BLOCK_MAX + slot);
    /* The id that the protocol demands, by this handler's own count. */
    step_id(&in->execution_id, &c, h->counts[call], &h->step[slot]);
}

static void submitted(struct sim *s, struct handler *h, int slot, int call,
                      const struct command *cmd)
{
    const struct step_answer *a = &cmd->out.step;

    if (a->decision == DECISION_EXECUTION_TERMINAL) {
        h->alive = false;
        return;
    }
    GUARANTEE(s, a->has_step_id && hash_eq(&a->step_id, &h->step[slot]),
              "another step id than the occurrence demands");
    h->submitted[slot] = true;
    h->counts[call]++;
    if (a->decision == DECISION_PROCEED) {
        handler_effect(s, h, &a->step_id, call);
        h->wants_effect[slot] = true;
        return;
    }
    h->settled[slot] = true;
    GUARANTEE(s, a->decision == DECISION_REPLAY || a->decision == DECISION_DENIED,
              "an unexpected decision");
    if (a->decision == DECISION_REPLAY && str_present(a->result))
        GUARANTEE(s, str_eq(a->result, STR("{\"ok\": 1}")), "a replay with another result");
}

static void handler_submit(struct sim *s, struct handler *h, int slot)
{
    int call = s->x[h->x].program.call[h->block][slot];
    struct command cmd = agent_command(s, h, COMMAND_SUBMIT);

    fill_submission(s, h, slot, call, &cmd);
    if (!run_one(s, &cmd)) {
        h->retry = slot; /* an SDK repeats it with the same key */
        if (chance(s, 30))
            h->alive = false;
        return;
    }
    check_owner(s, &s->x[h->x], &h->lease, &cmd);
    called(s, h, &cmd);
    if (cmd.verdict == VERDICT_REFUSED)
        return;
    if (chance(s, 6)) { /* the answer was lost on its way */
        h->retry = slot;
        if (chance(s, 40))
            h->alive = false;
        return;
    }
    h->retry = -1;
    submitted(s, h, slot, call, &cmd);
}

static void handler_settle(struct sim *s, struct handler *h, int slot)
{
    struct command cmd = agent_command(s, h, COMMAND_SETTLE);

    cmd.in.settle.step_id = h->step[slot];
    cmd.in.settle.failed = roll(s, 10) == 0;
    cmd.in.settle.value =
        cmd.in.settle.failed ? STR("{\n\"message\":\t\"no\"}") : STR("{\"ok\": 1}");
    if (!run_one(s, &cmd))
        return;
    check_owner(s, &s->x[h->x], &h->lease, &cmd);
    called(s, h, &cmd);
    if (cmd.verdict == VERDICT_DONE &&
        !chance(s, 10)) /* else lost: it will report again, and find it recorded */
        h->settled[slot] = true;
    if (cmd.verdict == VERDICT_DONE && cmd.out.step.decision == DECISION_EXECUTION_TERMINAL)
        h->alive = false;
}

static void handler_finish(struct sim *s, struct handler *h)
{
    struct command cmd = agent_command(s, h, COMMAND_FINISH);
    struct shadow *sh = &s->x[h->x];

    cmd.in.finish.failed = roll(s, 12) == 0;
    cmd.in.finish.error = STR("agent_error: \"quoted\"\n");
    cmd.in.finish.output = STR("{\"answer\":\n42}");
    if (!run_one(s, &cmd))
        return;
    check_owner(s, sh, &h->lease, &cmd);
    if (cmd.verdict == VERDICT_DONE)
        sh->ended = true;
    h->alive = false;
}

static void handler_lease_call(struct sim *s, struct handler *h, enum command_type type)
{
    struct command cmd = agent_command(s, h, type);
    struct shadow *sh = &s->x[h->x];

    if (!run_one(s, &cmd))
        return;
    check_owner(s, sh, &h->lease, &cmd);
    called(s, h, &cmd);
    if (type == COMMAND_RELEASE) {
        if (cmd.verdict == VERDICT_DONE)
            sh->owned = false;
        if (chance(s, 50))
            h->alive = false; /* else it swallows its own stop and goes on */
    }
}

static void handler_turn(struct sim *s, struct handler *h)
{
    const struct program *p = &s->x[h->x].program;
    int open[BLOCK_MAX], n = 0, size;

    if (s->m.mono_us < h->stalled_until && !s->calm)
        return;
    if (chance(s, 4)) {
        h->alive = false; /* killed */
        return;
    }
    if (chance(s, 6)) {
        h->stalled_until = s->m.mono_us + (int64_t)roll(s, 400) * US_PER_S;
        return;
    }
    if (chance(s, 5)) {
        handler_lease_call(s, h, chance(s, 30) ? COMMAND_RELEASE : COMMAND_HEARTBEAT);
        return;
    }
    if (h->block == p->blocks) {
        handler_finish(s, h);
        return;
    }
    if (h->retry >= 0) {
        handler_submit(s, h, h->retry);
        return;
    }
    size = p->size[h->block];
    for (int i = 0; i < size; i++)
        if (!h->settled[i])
            open[n++] = i;
    if (n == 0) {
        h->block++;
        memset(h->submitted, 0, sizeof(h->submitted));
        memset(h->settled, 0, sizeof(h->settled));
        return;
    }
    n = open[roll(s, (uint64_t)n)];
    if (h->submitted[n])
        handler_settle(s, h, n);
    else
        handler_submit(s, h, n);
}

/* ---- deliveries ---- */

static void start_handler(struct sim *s, int x, const struct dispatch_ref *ref)
{
    for (int i = 0; i < HANDLERS; i++)
        if (s->h[i].alive && s->h[i].x == x && roll(s, 3) != 0)
            s->h[i].alive =
                false; /* the same process: it is cancelled; else it is another one, and goes on */
    for (int i = 0; i < HANDLERS; i++) {
        if (s->h[i].alive)
            continue;
        s->h[i] = (struct handler){
            .alive = true, .x = x, .retry = -1, .lease = {ref->dispatch_id, ref->attempt}};
        return;
    }
}

static void claim_due(struct sim *s, int x)
{
    struct memory_execution *row = memory_execution(&s->m, &s->x[x].id);
    struct command cmd = {.type = COMMAND_CLAIM};
    struct flight *f = NULL;

    for (int i = 0; i < FLIGHTS && f == NULL; i++)
        if (!s->f[i].used)
            f = &s->f[i];
    if (f == NULL || !row->has_dispatch || row->dispatch.status != DISPATCH_QUEUED)
        return;
    cmd.in.delivery.ref.execution_id = row->id;
    cmd.in.delivery.ref.dispatch_id = row->dispatch.id;
    cmd.in.delivery.agent_id = STR("a");
    if (!run_one(s, &cmd) || cmd.verdict != VERDICT_DONE || !cmd.out.claimed.claimed)
        return;
    GUARANTEE(s, !s->x[x].owned, "claimed while an attempt owned it");
    s->x[x].owned = true;
    s->x[x].acked = false;
    s->x[x].dispatch = cmd.in.delivery.ref.dispatch_id;
    GUARANTEE(s, cmd.out.claimed.attempt > s->x[x].attempt || s->x[x].attempt == 0,
              "an attempt's number came twice");
    s->x[x].attempt = cmd.out.claimed.attempt;
    *f = (struct flight){.used = true, .x = x, .ref = cmd.in.delivery.ref};
    f->ref.attempt = cmd.out.claimed.attempt;
}

static void flight_turn(struct sim *s, struct flight *f)
{
    struct shadow *sh = &s->x[f->x];
    struct command cmd = {.type = COMMAND_DELIVERED};
    bool current =
        sh->owned && uuid_eq(&sh->dispatch, &f->ref.dispatch_id) && sh->attempt == f->ref.attempt;

    if (!f->heard && !chance(s, 15)) {
        start_handler(s, f->x, &f->ref);
        f->heard = true;
        if (chance(s, 50))
            return; /* the answer takes its time */
    }
    cmd.in.delivery.ref = f->ref;
    cmd.in.delivery.acked = f->heard && !chance(s, 10);
    if (chance(s, 5))
        cmd.type = COMMAND_RETURN;
    if (!run_one(s, &cmd))
        return;
    f->used = false;
    if (!current || sh->ended || !sh->owned)
        return;
    if (cmd.type == COMMAND_DELIVERED && cmd.in.delivery.acked)
        sh->acked = true;
    else if (!sh->acked)
        sh->owned = false;
}

/* kill -9 and a new start: what was only in memory is gone. */
static void restart(struct sim *s)
{
    ws_clear(&s->ws);
    for (int i = 0; i < FLIGHTS; i++) {
        if (s->f[i].used && !s->f[i].heard && roll(s, 2) == 0)
            start_handler(s, s->f[i].x, &s->f[i].ref); /* it had arrived */
        s->f[i].used = false;
    }
    for (int i = 0; i < s->n; i++) {
        struct command cmd = {.type = COMMAND_RECOVER};
        struct command *group[1] = {&cmd};

        cmd.in.recover.execution_id = s->x[i].id;
        cmd.in.recover.at_start = true;
        run_group(s, group, 1, false);
        if (!s->x[i].acked)
            s->x[i].owned = false;
    }
}

/* ---- the world ---- */

static void sweep(struct sim *s)
{
    for (int i = 0; i < s->n; i++) {
        struct command cmd = {.type = COMMAND_RECLAIM};
        struct command *group[1] = {&cmd};

        cmd.in.reclaim = s->x[i].id;
        run_group(s, group, 1, false);
        if (cmd.out.reclaimed)
            s->x[i].owned = false;
    }
}

static void let_time_pass(struct sim *s)
{
    int64_t us = s->calm || roll(s, 10) > 0 ? (int64_t)roll(s, 2000) * US_PER_MS
                                            : (int64_t)roll(s, 200) * US_PER_S;

    s->m.wall_us += us;
    s->m.mono_us += us;
}

static void world_turn(struct sim *s)
{
    int i;

    let_time_pass(s);
    if (chance(s, 2))
        restart(s);
    if (chance(s, 25) || s->calm)
        sweep(s);
    for (i = 0; i < s->n; i++)
        if (roll(s, 2) == 0)
            claim_due(s, i);
    i = (int)roll(s, FLIGHTS);
    if (s->f[i].used)
        flight_turn(s, &s->f[i]);
    for (i = 0; i < HANDLERS; i++)
        if (s->h[i].alive && roll(s, 2) == 0)
            handler_turn(s, &s->h[i]);
    check_all(s);
}

static void make_program(struct sim *s, struct program *p)
{
    p->blocks = 1 + (int)roll(s, BLOCKS_MAX);
    for (int b = 0; b < p->blocks; b++) {
        p->size[b] = 1 + (int)roll(s, BLOCK_MAX);
        for (int c = 0; c < p->size[b]; c++)
            p->call[b][c] = (int)roll(s, CALLS);
    }
}

static void create_execution(struct sim *s)
{
    struct command cmd = {.type = COMMAND_CREATE};
    struct command *group[1] = {&cmd};

    cmd.in.create = (struct execution_creation){.agent_id = STR("a"), .created_by = STR("sim")};
    run_group(s, group, 1, false);
    assert_int_equal(cmd.verdict, VERDICT_DONE);
    s->x[s->n] = (struct shadow){.id = cmd.out.created.id};
    make_program(s, &s->x[s->n].program);
    s->n++;
}

static bool all_ended(const struct sim *s)
{
    for (int i = 0; i < s->n; i++)
        if (!execution_status_is_terminal(s->x[i].status))
            return false;
    return true;
}

static void sim_free(struct sim *s)
{
    void *v;

    ws_free(&s->ws);
    memory_store_free(&s->m);
    arena_free(&s->arena);
    for (size_t i = 0; (v = map_next(&s->effects, &i)) != NULL;)
        free(v);
    for (size_t i = 0; (v = map_next(&s->terminal, &i)) != NULL;)
        free(v);
    map_free(&s->effects);
    map_free(&s->terminal);
}

static void simulate(uint64_t seed)
{
    struct sim s = {.seed = seed};
    struct command reg = {.type = COMMAND_AGENT_REGISTER};
    struct command *group[1] = {&reg};

    prng_seed(&s.chaos, seed);
    prng_seed(&s.rules, seed ^ 0x5eed);
    s.ids.random = &s.rules;
    s.settings = (struct kernel_settings){.dispatch_max_attempts = 5,
                                          .dispatch_max_attempts_by_hand = seed % 3 == 0,
                                          .dispatch_timeout_us = 30 * US_PER_S,
                                          .lease_timeout_us = 120 * US_PER_S};
    memory_store_init(&s.m, seed % 2 == 0);
    ws_init(&s.ws, &s.settings, &s.ids, &s.rules);
    s.ws.keep_leased = s.m.leases_in_set;
    reg.in.agent_register =
        (struct agent_registration){STR("a"), STR("http://x/"), STR("secret"), 0};
    run_group(&s, group, 1, false);
    for (int i = 0; i < EXECUTIONS; i++)
        create_execution(&s);
    for (s.tick = 0; s.tick < TICKS && !all_ended(&s); s.tick++)
        world_turn(&s);
    /* Faults end: everything that lives must come to its end, without anyone's help. */
    s.calm = true;
    for (; s.tick < TICKS + 4000 && !all_ended(&s); s.tick++)
        world_turn(&s);
    GUARANTEE(&s, all_ended(&s), "an execution that nothing wakes");
    sim_free(&s);
}

static void test_schedules(void **state)
{
    const char *one = getenv("SIM_SEED"), *runs = getenv("SIM_RUNS");
    uint64_t n = runs == NULL ? 3000 : strtoull(runs, NULL, 10);

    (void)state;
    if (one != NULL) {
        simulate(strtoull(one, NULL, 10));
        return;
    }
    for (uint64_t seed = 1; seed <= n; seed++)
        simulate(seed);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_schedules)};

    return cmocka_run_group_tests(tests, NULL, NULL);
}
