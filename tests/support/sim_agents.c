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

const struct sim_resource RESOURCES[KEYS] = {
    {"ws", "d", NULL, false},
    {"db", "e", "{\"a\":1}", true},
    {"a.b", "f", "[1]", false},
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
    struct command *group[4] = {cmd};
    size_t n = 1;
    bool cancels = chance(s, 1), sweeps = chance(s, 10);
    int victim = (int)roll(s, (uint64_t)s->n);
    bool ok;

    cancel.in.cancel.execution_id = s->x[victim].id;
    beat.in.reclaim = s->x[victim].id;
    if (s->beside != NULL)
        group[n++] = s->beside;
    s->beside = NULL;
    if (cancels)
        group[n++] =
            &cancel; /* after the command: it must not disturb what the shadow expects of it */
    if (sweeps)
        group[n++] = &beat;
    ok = run_group(s, group, n, chance(s, 4));
    if (ok && cancels && cancel.verdict == VERDICT_DONE)
        s->x[victim].ended = true;
    s->reclaimed = -1;
    if (ok && sweeps && beat.verdict == VERDICT_DONE && beat.out.reclaimed) {
        s->x[victim].owned = false;
        s->reclaimed = victim;
    }
    return ok;
}

void called(struct sim *s, struct handler *h, const struct command *cmd)
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
        h->waits[slot] = spawns(s, h, slot);
        return;
    }
    h->settled[slot] = true;
    if (a->decision == DECISION_BLOCKED) {
        const struct log_step *step = log_step(&s->x[h->x], &a->step_id);

        GUARANTEE(s, a->has_approval || (step != NULL && step->child >= 0),
                  "blocked, and neither by an approval nor by a subagent");
        h->stopping = true;
        return;
    }
    GUARANTEE(s, a->decision == DECISION_REPLAY || a->decision == DECISION_DENIED,
              "an unexpected decision");
    if (a->decision == DECISION_REPLAY)
        check_replay(s, a);
}

/* A key that is not registered, in what a new or unfinished step declares. */
static bool refused_rightly(struct sim *s, const struct handler *h, int slot,
                            const struct command *cmd, bool replay)
{
    const struct step_answer *a = &cmd->out.step;

    if (cmd->verdict == VERDICT_REFUSED && cmd->err.code == ERR_VALIDATION) {
        GUARANTEE(s, !replay, "a replay was refused for what it declares");
        return true;
    }
    if (cmd->verdict == VERDICT_REFUSED)
        return false;
    GUARANTEE(s,
              h->retry == slot || (a->decision != DECISION_PROCEED &&
                                   (a->decision != DECISION_BLOCKED || !a->has_approval)),
              "a step that declares what is not registered");
    return false;
}

/* It was told to proceed under this lease before: then this is the first answer again. */
static bool told_before(struct sim *s, const struct handler *h, int slot)
{
    const struct log_step *step = log_step(&s->x[h->x], &h->step[slot]);

    return h->retry == slot && step != NULL && step->was_told &&
           uuid_eq(&step->told.dispatch_id, &h->lease.dispatch_id) &&
           step->told.attempt == h->lease.attempt;
}

static size_t declare(struct sim *s, struct handler *h, int slot, bool unknown, struct str *keys)
{
    int call = s->x[h->x].program.call[h->block][slot];
    size_t n = 0;

    if (h->retry != slot) /* the same request again, otherwise */
        h->declared[slot] = pick_declared(s, h, call);
    for (int k = 0; k < KEYS; k++)
        if (h->declared[slot] >> k & 1)
            keys[n++] = str_of(RESOURCES[k].key);
    if (unknown)
        keys[n++] = STR("nope");
    return n;
}

static void handler_submit(struct sim *s, struct handler *h, int slot)
{
    int call = s->x[h->x].program.call[h->block][slot];
    struct command cmd = agent_command(s, h, COMMAND_SUBMIT);
    bool unknown = chance(s, 2), repeat, is_new, replay;
    const struct log_step *step;
    struct str keys[KEYS + 1];

    fill_submission(s, h, slot, call, &cmd);
    log_read(s, h->x);
    repeat = told_before(s, h, slot);
    step = log_step(&s->x[h->x], &h->step[slot]);
    is_new = step == NULL;
    replay = !is_new && step_status_is_terminal((enum step_status)step->status);
    cmd.in.submit.resources = keys;
    cmd.in.submit.n_resources = declare(s, h, slot, unknown, keys);
    if (!run_one(s, &cmd)) {
        h->retry = slot; /* an SDK repeats it with the same key */
        if (chance(s, 30))
            h->alive = false;
        return;
    }
    log_read(s, h->x);
    check_owner(s, &s->x[h->x], &h->lease, &cmd);
    if (unknown && refused_rightly(s, h, slot, &cmd, replay))
        return;
    called(s, h, &cmd);
    if (cmd.verdict == VERDICT_REFUSED)
        return;
    if (cmd.out.step.decision == DECISION_PROCEED)
        check_told(s, h, slot, &cmd.out.step, repeat);
    if (is_new && PALETTE[call].idempotency == AT_MOST_ONCE &&
        (cmd.out.step.decision == DECISION_PROCEED || cmd.out.step.has_approval))
        check_not_indeterminate(s, memory_step(&s->m, &cmd.out.step.step_id));
    if (is_new && cmd.out.step.has_approval)
        check_held(s, &s->x[h->x], memory_step(&s->m, &cmd.out.step.step_id));
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

/* Another call of the block, whose request arrives together with an outcome, and whose answer is
 * lost: it is asked again. */
struct together {
    int slot; /* -1: none */
    struct command cmd;
    struct str keys[KEYS + 1];
};

static void put_together(struct sim *s, struct handler *h, struct together *t)
{
    const struct program *p = &s->x[h->x].program;

    t->slot = -1;
    for (int i = 0; i < p->size[h->block] && h->retry < 0 && !h->stopping; i++)
        if (!h->submitted[i] && !h->settled[i])
            t->slot = i;
    if (t->slot < 0 || !chance(s, 25)) {
        t->slot = -1;
        return;
    }
    t->cmd = agent_command(s, h, COMMAND_SUBMIT);
    fill_submission(s, h, t->slot, p->call[h->block][t->slot], &t->cmd);
    t->cmd.in.submit.resources = t->keys;
    t->cmd.in.submit.n_resources = declare(s, h, t->slot, false, t->keys);
    s->beside = &t->cmd;
}

/* `ok`: they were committed. */
static void take_together(struct sim *s, struct handler *h, struct together *t, bool ok)
{
    struct shadow *sh = &s->x[h->x];
    const struct step_answer *a = &t->cmd.out.step;
    struct log_step *step;

    if (t->slot < 0)
        return;
    h->retry = t->slot;
    if (!ok)
        return;
    log_read(s, h->x);
    check_owner(s, sh, &h->lease, &t->cmd);
    called(s, h, &t->cmd);
    if (t->cmd.verdict != VERDICT_DONE)
        return;
    sh->over |= a->decision == DECISION_BLOCKED;
    step = a->decision == DECISION_PROCEED ? log_step(sh, &a->step_id) : NULL;
    if (step == NULL)
        return;
    step->was_told = true;
    step->told = h->lease;
}

/* It is the first event behind `before`, perhaps behind an ack. */
static bool is_outcome(const struct log *log, int64_t before, const struct hash *step)
{
    int64_t at = before;

    if (at < (int64_t)log->events.n && log->events.at[at].type == EVENT_DISPATCH_ACKED)
        at++;
    return at < (int64_t)log->events.n && log->events.at[at].has_step &&
           hash_eq(&log->events.at[at].step, step) &&
           (log->events.at[at].type == EVENT_STEP_SUCCEEDED ||
            log->events.at[at].type == EVENT_STEP_FAILED);
}

/* Behind its own outcome, what it captured; nothing else. */
static void check_recorded(struct sim *s, int x, const struct hash *step, const struct report *r,
                           int64_t before)
{
    const struct log *log = &s->x[x].log;
    int64_t at = before + (log->events.at[before].type == EVENT_DISPATCH_ACKED);

    GUARANTEE(s, is_outcome(log, before, step), "an outcome that is not in the log");
    check_report(s, x, r, at + 1, at + 1);
}

void handler_settle(struct sim *s, struct handler *h, int slot)
{
    struct command cmd = agent_command(s, h, COMMAND_SETTLE);
    struct together other;
    struct report report;
    int64_t before;
    bool ok;

    log_read(s, h->x);
    before = (int64_t)s->x[h->x].log.events.n;
    fill_report(s, h, slot, &h->step[slot], &report);
    cmd.in.settle.step_id = h->step[slot];
    cmd.in.settle.failed = roll(s, 10) == 0;
    cmd.in.settle.value =
        cmd.in.settle.failed ? STR("{\n\"message\":\t\"no\"}") : STR("{\"ok\": 1}");
    cmd.in.settle.usage = (struct usage){(int64_t)roll(s, 9), (int64_t)roll(s, 3) - 1};
    cmd.in.settle.report = (struct capture_report){report.captures, report.n_captures,
                                                   report.failures, report.n_failures};
    put_together(s, h, &other);
    ok = run_one(s, &cmd);
    take_together(s, h, &other, ok);
    if (!ok)
        return;
    log_read(s, h->x);
    check_owner(s, &s->x[h->x], &h->lease, &cmd);
    called(s, h, &cmd);
    if (cmd.verdict == VERDICT_DONE && cmd.out.step.decision == DECISION_RECORDED &&
        (other.slot < 0 || is_outcome(&s->x[h->x].log, before, &h->step[slot])))
        check_recorded(s, h->x, &h->step[slot], &report, before);
    if (cmd.verdict == VERDICT_DONE && cmd.out.step.decision == DECISION_REPLAY)
        check_replay(s, &cmd.out.step);
    if (cmd.verdict == VERDICT_DONE &&
        !chance(s, 10)) /* else lost: it will report again, and find it recorded */
        h->settled[slot] = true;
    if (cmd.verdict == VERDICT_DONE && cmd.out.step.decision == DECISION_EXECUTION_TERMINAL)
        h->alive = false;
}

static void handler_finish(struct sim *s, struct handler *h)
{
    struct command cmd = agent_command(s, h, COMMAND_FINISH), admit = {.type = COMMAND_ADMIT};
    struct shadow *sh = &s->x[h->x];
    const char *session = memory_execution(&s->m, &sh->id)->session;

    cmd.in.finish.failed = roll(s, 12) == 0;
    cmd.in.finish.error = STR("agent_error: \"quoted\"\n");
    cmd.in.finish.output = roll(s, 4) == 0 ? STR_NONE : STR("{\"answer\":\n42}");
    admit.in.admit = str_of(session);
    if (session != NULL && chance(s, 25)) /* the next turn may start in the same group */
        s->beside = &admit;
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

/* Calls of its block that are not done; of one that stops, those that run. */
static int open_slots(struct sim *s, const struct handler *h, int *open, int *waiting)
{
    int size = s->x[h->x].program.size[h->block], n = 0;

    *waiting = 0;
    for (int i = 0; i < size; i++) {
        if (h->settled[i] || (h->stopping && !h->submitted[i] && roll(s, 3) != 0))
            continue;
        open[n++] = i;
        *waiting += h->submitted[i] && h->waits[i];
    }
    return n;
}

static void next_block(struct handler *h)
{
    h->block++;
    memset(h->submitted, 0, sizeof(h->submitted));
    memset(h->settled, 0, sizeof(h->settled));
    memset(h->waits, 0, sizeof(h->waits));
}

/* True: it did something else than its program. */
static bool distracted(struct sim *s, struct handler *h)
{
    if (s->m.mono_us < h->stalled_until && !s->calm)
        return true;
    if (chance(s, 4)) {
        h->alive = false; /* killed */
        return true;
    }
    if (chance(s, 6)) {
        h->stalled_until = s->m.mono_us + (int64_t)roll(s, 400) * US_PER_S;
        return true;
    }
    if (chance(s, 5)) {
        handler_lease_call(s, h, chance(s, 30) ? COMMAND_RELEASE : COMMAND_HEARTBEAT);
        return true;
    }
    if (chance(s, 1)) {
        handler_suspend(s, h);
        return true;
    }
    if (s->x[h->x].program.keys != 0 && roll(s, 4) == 0) {
        handler_resources(s, h);
        return true;
    }
    return false;
}

void handler_turn(struct sim *s, struct handler *h)
{
    const struct program *p = &s->x[h->x].program;
    int open[BLOCK_MAX], n, waiting;

    if (distracted(s, h))
        return;
    if (h->block == p->blocks || (h->stopping && chance(s, 3))) { /* or it swallows its stop */
        handler_finish(s, h);
        return;
    }
    if (h->retry >= 0) {
        handler_submit(s, h, h->retry);
        return;
    }
    n = open_slots(s, h, open, &waiting);
    if (n == 0 && h->stopping) {
        h->alive = false;
        return;
    }
    if (n == 0) {
        next_block(h);
        return;
    }
    if (n == waiting && roll(s, 3) == 0) {
        handler_suspend(s, h);
        return;
    }
    n = open[roll(s, (uint64_t)n)];
    if (!h->submitted[n])
        handler_submit(s, h, n);
    else if (h->waits[n])
        handler_wait(s, h, n);
    else
        handler_settle(s, h, n);
}
