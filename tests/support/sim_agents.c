/* SPDX-License-Identifier: Apache-2.0 */
#include "support/sim.h"

#include "base/clock.h"
#include "base/json.h"

const struct sim_call PALETTE[CALLS] = {
    {KIND_TOOL_CALL, "send", "{\"to\":1}", AT_MOST_ONCE},
    {KIND_TOOL_CALL, "read", "{\"p\":1}", SAFE_TO_RETRY},
    {KIND_TOOL_CALL, "read", "{\"p\":2}", SAFE_TO_RETRY},
    {KIND_LOCAL, "read", "{\"p\":1}", SAFE_TO_RETRY},
    {KIND_LLM_CALL, "model", "null", SAFE_TO_RETRY},
    {KIND_TOOL_CALL, "pay", "{}", AT_MOST_ONCE},
};

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
bool run_one(struct sim *s, struct command *cmd)
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
    check_granted(s, step);
    fx->at_most_once |= PALETTE[call].idempotency == AT_MOST_ONCE;
    fx->count++;
    GUARANTEE(s, !fx->at_most_once || fx->count == 1, "an at_most_once effect ran twice");
    /* A step that a person granted was there before: it is no retry. */
    if (PALETTE[call].idempotency == AT_MOST_ONCE && step->rule_id == NULL)
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
    h->submitted[slot] = true;
    if (a->decision == DECISION_RATE_LIMITED || a->decision == DECISION_EXECUTION_BLOCKED ||
        a->parked) { /* nothing was recorded: it does not count */
        h->settled[slot] = true;
        h->stopping |= a->decision != DECISION_RATE_LIMITED;
        return;
    }
    GUARANTEE(s, a->has_step_id && hash_eq(&a->step_id, &h->step[slot]),
              "another step id than the occurrence demands");
    h->counts[call]++;
    if (a->decision == DECISION_PROCEED) {
        handler_effect(s, h, &a->step_id, call);
        h->wants_effect[slot] = true;
        return;
    }
    h->settled[slot] = true;
    if (a->decision == DECISION_BLOCKED) {
        GUARANTEE(s, a->has_approval, "blocked without an approval");
        h->stopping = true;
        return;
    }
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
    GUARANTEE(s, !s->x[h->x].over || cmd.out.step.decision != DECISION_PROCEED || h->retry == slot,
              "something started under a delivery that had ended");
    s->x[h->x].over |= cmd.out.step.decision == DECISION_BLOCKED;
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
    GUARANTEE(s, !sh->over || cmd.in.finish.failed || cmd.verdict != VERDICT_DONE || sh->ended,
              "completed under a delivery that had ended");
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

void handler_turn(struct sim *s, struct handler *h)
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
    if (h->block == p->blocks || (h->stopping && chance(s, 3))) { /* or it swallows its stop */
        handler_finish(s, h);
        return;
    }
    if (h->retry >= 0) {
        handler_submit(s, h, h->retry);
        return;
    }
    size = p->size[h->block];
    for (int i = 0; i < size; i++)
        if (!h->settled[i] && (!h->stopping || h->submitted[i] || roll(s, 3) == 0))
            open[n++] = i;
    if (n == 0 && h->stopping) {
        h->alive = false;
        return;
    }
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
