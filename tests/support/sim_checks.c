/* SPDX-License-Identifier: Apache-2.0 */
#include "support/sim.h"

void sim_show(struct sim *s)
{
    for (int i = 0; i < s->n && getenv("SIM_SEED") != NULL; i++) {
        const struct memory_execution *x = memory_execution(&s->m, &s->x[i].id);

        fprintf(stderr, "execution %d, of step of %d, fork of %d, session %s\n", i, s->x[i].spawner,
                s->x[i].forked_from, x->session == NULL ? "-" : x->session);
        for (size_t j = 0; j < x->events.n; j++)
            fprintf(stderr, "from %lld on\n%.*s", (long long)x->events.at[j].first_seq,
                    (int)x->events.at[j].n, x->events.at[j].body);
    }
}

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
    take_follow_ups(s);
    ws_end_group(ws);
    return true;
}

bool run_alone(struct sim *s, struct command *cmd, bool lose_commit)
{
    return run_group(s, &cmd, 1, lose_commit);
}

int sim_index(const struct sim *s, const struct uuid *id)
{
    for (int i = 0; i < s->n; i++)
        if (uuid_eq(&s->x[i].id, id))
            return i;
    return -1;
}

struct shadow *sim_add(struct sim *s, const struct uuid *id)
{
    struct shadow *sh = &s->x[s->n++];

    assert_true(s->n <= EXECUTIONS);
    *sh = (struct shadow){
        .id = *id, .policy = s->policy, .spawner = -1, .forked_from = -1, .log = {.end_row = -1}};
    for (int k = 0; k < KEYS; k++)
        sh->log.resources[k].restored_from = -1;
    return sh;
}

/* ---- guarantees ---- */

static const char *kept(struct sim *s, const char *text)
{
    return text == NULL ? NULL : arena_printf(&s->keep, "%s", text).p;
}

static bool same(const char *a, const char *b)
{
    return a == b || (a != NULL && b != NULL && strcmp(a, b) == 0);
}

const struct terminal_note *sim_outcome(const struct sim *s, const struct hash *step_id)
{
    return map_get(&s->terminal, str_make(step_id->b, sizeof(step_id->b)));
}

void note_terminal(struct sim *s, const struct memory_step *step)
{
    const struct terminal_note *was = sim_outcome(s, &step->id);
    struct terminal_note *now;

    if (was != NULL) {
        GUARANTEE(s,
                  was->status == step->status && same(was->result, step->result) &&
                      same(was->error, step->error),
                  "a terminal step changed: %s to %s",
                  was->result == NULL ? was->error : was->result,
                  step->result == NULL ? step->error : step->result);
        return;
    }
    now = arena_new(&s->keep, struct terminal_note);
    *now = (struct terminal_note){step->status, kept(s, step->result), kept(s, step->error)};
    map_put(&s->terminal, str_make(step->id.b, sizeof(step->id.b)), now);
}

void check_replay(struct sim *s, const struct step_answer *a)
{
    const struct memory_step *step = memory_step(&s->m, &a->step_id);
    const struct terminal_note *was;

    GUARANTEE(s, step != NULL, "a replay of nothing");
    note_terminal(s, step);
    was = sim_outcome(s, &a->step_id);
    if (was->status == STEP_SUCCEEDED)
        GUARANTEE(s, str_eq(a->result, str_of(was->result)) && !str_present(a->error),
                  "a replay with another result");
    else
        GUARANTEE(s, was->status == STEP_FAILED && str_eq(a->error, str_of(was->error)),
                  "a replay with another error");
}

void check_terminal_steps(struct sim *s)
{
    for (size_t i = 0; i < s->m.all_steps.n; i++)
        if (step_status_is_terminal(s->m.all_steps.at[i]->status))
            note_terminal(s, s->m.all_steps.at[i]);
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
static void check_session(struct sim *s, const char *session)
{
    const struct memory_execution *before = NULL;
    size_t holders = 0;
    bool waiting = false;

    for (size_t i = 0; i < s->m.all.n; i++) {
        const struct memory_execution *x = s->m.all.at[i];
        bool waits = x->status == EXECUTION_PENDING;

        if (x->session == NULL || strcmp(x->session, session) != 0)
            continue;
        holders += x->status == EXECUTION_RUNNING || x->status == EXECUTION_BLOCKED;
        GUARANTEE(s, !waiting || waits || execution_status_is_terminal(x->status),
                  "a session's order was turned round");
        waiting |= waits;
        if (!waits && x->claim > 0 && before != NULL && !x->forked)
            GUARANTEE(s, uuid_eq(&x->parent, &before->id), "another parent than the newest");
        if (x->status == EXECUTION_COMPLETED)
            before = x;
    }
    GUARANTEE(s, holders <= 1, "two executions of one session at once");
}

/* A blocked one always has something that wakes it. */
static void check_wakes(struct sim *s, const struct shadow *sh, const struct memory_execution *x)
{
    size_t waits = pending_of(s, x);

    for (size_t i = 0; i < sh->log.steps.n; i++) {
        const struct log_step *step = &sh->log.steps.at[i];
        const struct memory_execution *child;

        if (step->status != STEP_EXECUTING || step->child < 0)
            continue;
        child = memory_execution(&s->m, &s->x[step->child].id);
        waits += sh->log.suspended;
        GUARANTEE(s, !execution_status_is_terminal(child->status) || child->owes,
                  "a subagent has ended, and nobody will tell its step");
    }
    GUARANTEE(s, waits > 0, "blocked, and nothing to wait for");
    GUARANTEE(s, x->suspended == sh->log.suspended, "suspended or not");
}

static void check_execution(struct sim *s, int i)
{
    struct shadow *sh = &s->x[i];
    const struct memory_execution *x = memory_execution(&s->m, &sh->id);
    bool news = (int64_t)sh->log.events.n != x->last_seq;

    log_read(s, i);
    if (news || s->tick % 16 == 0)
        check_rows_agree(s, i);
    GUARANTEE(s, !execution_status_is_terminal(sh->status) || sh->status == x->status,
              "a terminal execution changed");
    sh->status = x->status;
    GUARANTEE(s, (x->status == EXECUTION_RUNNING) == x->has_dispatch,
              "a running execution without a dispatch, or another one with one");
    if (x->status == EXECUTION_BLOCKED)
        check_wakes(s, sh, x);
    for (int j = 0; j < i && x->session != NULL; j++)
        if (str_eq(str_of(memory_execution(&s->m, &s->x[j].id)->session), str_of(x->session)))
            return;
    if (x->session != NULL)
        check_session(s, x->session);
}

void check_all(struct sim *s)
{
    for (int i = 0; i < s->n; i++)
        check_execution(s, i);
    GUARANTEE(s, s->m.all.n == (size_t)s->n, "an execution that nobody created");
    check_approvals(s);
    if (s->tick % 16 == 0)
        check_terminal_steps(s);
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
    if (s->reclaimed >= 0 && &s->x[s->reclaimed] == sh) /* in one group, and either came first */
        return;
    GUARANTEE(s, owns || superseded || execution_status_is_terminal(sh->status),
              "a write of a superseded attempt was taken: command %d, verdict %d, %s", cmd->type,
              cmd->verdict, cmd->verdict == VERDICT_REFUSED ? cmd->err.message : "");
    GUARANTEE(s, !owns || !superseded || sh->ended, "the owner was refused: command %d", cmd->type);
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
                  "an equal call runs, or may be granted, after one whose outcome is unknown");
    }
}

/* Held by the rule that says so, or since it is a fork's; nothing else is. */
void check_held(struct sim *s, const struct shadow *sh, const struct memory_step *step)
{
    bool gated = sh->policy != NULL && strstr(sh->policy, "gate") != NULL &&
                 strcmp(step->target, "pay") == 0;
    bool effect = sh->forked_from >= 0 && step->idempotency == AT_MOST_ONCE;

    GUARANTEE(s, (gated || effect) && strcmp(step->rule_id, gated ? "gate" : "__fork_effect") == 0,
              "held by %s", step->rule_id);
}

/* What was approved is what runs, and nothing else that a person must decide. */
void check_granted(struct sim *s, const struct memory_step *step)
{
    const struct shadow *sh = &s->x[sim_index(s, &step->execution_id)];
    size_t granted = 0, n = 0;

    for (size_t i = 0; i < s->m.approvals.n; i++) {
        if (!hash_eq(&s->m.approvals.at[i]->step_id, &step->id))
            continue;
        n++;
        granted += s->m.approvals.at[i]->status == APPROVAL_GRANTED;
    }
    GUARANTEE(s, n <= 1, "a step was asked for twice");
    if (sh->policy != NULL && strstr(sh->policy, "gate") != NULL &&
        strcmp(step->target, "pay") == 0)
        GUARANTEE(s, granted == 1, "a step ran that nobody had granted");
    if (sh->forked_from >= 0 && step->idempotency == AT_MOST_ONCE)
        GUARANTEE(s, granted == 1, "a fork had an effect unasked");
}
