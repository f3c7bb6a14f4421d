/* SPDX-License-Identifier: Apache-2.0 */
#include "support/sim.h"

#include "base/json.h"
#include "kernel/event.h"

uint64_t roll(struct sim *s, uint64_t bound)
{
    return prng_below(&s->chaos, bound);
}

bool chance(struct sim *s, uint64_t percent)
{
    return !s->calm && roll(s, 100) < percent;
}

/* ---- running a group as the executor does ---- */

bool run_group(struct sim *s, struct command **cmds, size_t n, bool lose_commit)
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
        memory_store_forget(&s->m, ws);
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
        {"step.cancelled", STEP_ALLOWED, STEP_CANCELLED},
        {"step.awaiting_approval", STEP_PROPOSED, STEP_AWAITING_APPROVAL},
        {"step.allowed", STEP_AWAITING_APPROVAL, STEP_ALLOWED},
        {"step.denied", STEP_AWAITING_APPROVAL, STEP_DENIED},
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
            if (str_starts(line.type, STR("step.")) &&
                !str_eq(line.type, STR("step.rate_limited"))) { /* which leaves no row */
                intptr_t was = (intptr_t)map_get(&steps, id);   /* status + 1; 0: none */

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

/* A step awaits exactly as long as its one approval is pending, and only a blocked execution waits.
 */
static void check_approvals(struct sim *s)
{
    size_t awaiting = 0, pending = 0;

    for (size_t i = 0; i < s->m.all_steps.n; i++)
        awaiting += s->m.all_steps.at[i]->status == STEP_AWAITING_APPROVAL;
    for (size_t i = 0; i < s->m.approvals.n; i++) {
        const struct memory_approval *a = s->m.approvals.at[i];
        const struct memory_step *step = memory_step(&s->m, &a->step_id);

        if (a->status != APPROVAL_PENDING)
            continue;
        pending++;
        GUARANTEE(s, step->status == STEP_AWAITING_APPROVAL, "an approval that gates nothing");
        GUARANTEE(s, memory_execution(&s->m, &a->execution_id)->status == EXECUTION_BLOCKED,
                  "an approval of an execution that is not blocked");
    }
    GUARANTEE(s, awaiting == pending, "a step that awaits nothing");
}

static size_t pending_of(struct sim *s, const struct memory_execution *x)
{
    size_t n = 0;

    for (size_t i = 0; i < s->m.approvals.n; i++)
        n += s->m.approvals.at[i]->status == APPROVAL_PENDING &&
             uuid_eq(&s->m.approvals.at[i]->execution_id, &x->id);
    return n;
}

/* One at a time, in the order of creation; its parent is the newest completed one before it. */
static void check_session(struct sim *s)
{
    const struct memory_execution *before = NULL;
    size_t holders = 0;
    bool waiting = false;

    for (size_t i = 0; i < s->m.all.n; i++) {
        const struct memory_execution *x = s->m.all.at[i];
        bool waits = x->status == EXECUTION_PENDING;

        if (x->session == NULL)
            continue;
        holders += x->status == EXECUTION_RUNNING || x->status == EXECUTION_BLOCKED;
        GUARANTEE(s, !waiting || waits || execution_status_is_terminal(x->status),
                  "a session's order was turned round");
        waiting |= waits;
        if (!waits && x->claim > 0 && before != NULL)
            GUARANTEE(s, uuid_eq(&x->parent, &before->id), "another parent than the newest");
        if (x->status == EXECUTION_COMPLETED)
            before = x;
    }
    GUARANTEE(s, holders <= 1, "two executions of one session at once");
}

void check_all(struct sim *s)
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
        GUARANTEE(s, (x->status == EXECUTION_RUNNING) == x->has_dispatch,
                  "a running execution without a dispatch, or another one with one");
        GUARANTEE(s, x->status != EXECUTION_BLOCKED || pending_of(s, x) > 0,
                  "blocked, and nothing to wait for");
    }
    check_approvals(s);
    check_session(s);
    for (size_t i = 0; i < s->m.all_steps.n; i++)
        if (step_status_is_terminal(s->m.all_steps.at[i]->status))
            note_terminal(s, s->m.all_steps.at[i]);
    arena_reset(&s->arena);
}

/* A call under `lease` was answered: was it right to take or to refuse it? */
void check_owner(struct sim *s, const struct shadow *sh, const struct lease_ref *lease,
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

/* Nobody may run again, in whatever disguise, what an equal call may have done already. */
void check_not_indeterminate(struct sim *s, const struct memory_step *step)
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

/* What was approved is what runs, and nothing else that a person must decide. */
void check_granted(struct sim *s, const struct memory_step *step)
{
    size_t granted = 0, n = 0;

    for (size_t i = 0; i < s->m.approvals.n; i++) {
        if (!hash_eq(&s->m.approvals.at[i]->step_id, &step->id))
            continue;
        n++;
        granted += s->m.approvals.at[i]->status == APPROVAL_GRANTED;
    }
    GUARANTEE(s, n <= 1, "a step was asked for twice");
    if (s->policy != NULL && strstr(s->policy, "gate") != NULL && strcmp(step->target, "pay") == 0)
        GUARANTEE(s, granted == 1, "a step ran that nobody had granted");
}
