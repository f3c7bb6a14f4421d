/* SPDX-License-Identifier: Apache-2.0
 * Subagents in the simulation, and what the end of an execution brings about: follow-ups that come
 * late, twice, or not at all until a sweep finds what they left. */
#include "support/sim.h"

#include "base/clock.h"
#include "base/json.h"

void make_program(struct sim *s, struct program *p, int depth)
{
    *p = (struct program){.blocks = 1 + (int)roll(s, depth > 0 ? 2 : BLOCKS_MAX)};
    for (int b = 0; b < p->blocks; b++) {
        p->size[b] = 1 + (int)roll(s, BLOCK_MAX);
        for (int c = 0; c < p->size[b]; c++)
            p->call[b][c] = (int)roll(s, CALLS);
    }
    if (depth == 0) /* a session's turns are turns of one program */
        p->keys = (unsigned)(s->seed / 8 % 4 == 0 ? 0 : s->seed / 32 % (1u << KEYS));
    else if (roll(s, 2) == 0)
        p->keys = 1 + (unsigned)roll(s, (1u << KEYS) - 1);
    for (int k = 0; k < KEYS; k++)
        p->every[k] = (int)roll(s, 4);
    for (int c = 0; c < CALLS; c++)
        p->declares[c] = (unsigned)roll(s, 1u << KEYS) & p->keys;
    if (depth < DEPTH_MAX && roll(s, 2) == 0)
        p->spawns = (unsigned)roll(s, 1u << CALLS);
}

/* ---- starting ---- */

bool spawns(const struct sim *s, const struct handler *h, int slot)
{
    const struct program *p = &s->x[h->x].program;

    return p->spawns >> p->call[h->block][slot] & 1;
}

/* A session, sometimes; sometimes the one of an execution above it, for which it would wait. */
static struct str pick_session(struct sim *s, int spawner, bool *above)
{
    int at = spawner, up = (int)roll(s, 3);
    const char *name;

    *above = false;
    if (roll(s, 3) == 0)
        return arena_printf(&s->arena, "below %d", s->x[spawner].depth + 1);
    if (roll(s, 8) != 0)
        return STR_NONE;
    while (up-- > 0 && s->x[at].spawner >= 0)
        at = s->x[at].spawner;
    name = memory_execution(&s->m, &s->x[at].id)->session;
    *above = name != NULL;
    return name == NULL ? STR_NONE : arena_printf(&s->arena, "%s", name);
}

/* What a create for this step must come to: ERR_NONE, or why not. */
static enum err_code spawn_error(struct sim *s, int spawner, const struct log_step *step,
                                 bool above)
{
    if (step == NULL)
        return ERR_VALIDATION;
    if (step->child >= 0)
        return ERR_NONE;
    if (execution_status_is_terminal(memory_execution(&s->m, &s->x[spawner].id)->status) ||
        step->status != STEP_EXECUTING)
        return ERR_CONFLICT;
    return above ? ERR_VALIDATION : ERR_NONE;
}

static void started(struct sim *s, int spawner, struct log_step *step, const struct command *cmd)
{
    struct shadow *child = sim_add(s, &cmd->out.created.id);
    const struct memory_execution *x = memory_execution(&s->m, &child->id);

    child->spawner = spawner;
    child->spawned_step = step->id;
    child->depth = s->x[spawner].depth + 1;
    make_program(s, &child->program, child->depth);
    step->child = s->n - 1;
    GUARANTEE(s,
              uuid_eq(&x->spawned_by, &s->x[spawner].id) && hash_eq(&x->spawned_step, &step->id) &&
                  x->owes,
              "a subagent that does not know its step");
}

/* Creates the subagent of a step: any step, in any state. */
static void spawn(struct sim *s, int spawner, const struct hash *step_id)
{
    struct command cmd = {.type = COMMAND_CREATE};
    struct log_step *step;
    enum err_code want;
    bool above, shares = chance(s, 2);

    log_read(s, spawner);
    step = log_step(&s->x[spawner], step_id);
    cmd.in.create = (struct execution_creation){.agent_id = STR("a"),
                                                .created_by = STR("sim"),
                                                .spawner = s->x[spawner].id,
                                                .spawned_step = *step_id,
                                                .session = pick_session(s, spawner, &above)};
    want = spawn_error(s, spawner, step, above);
    if (shares) /* with the key of an execution that a client created */
        cmd.in.create.idempotency_key = STR("client");
    if (shares && want == ERR_NONE && step->child < 0)
        want = ERR_CONFLICT;
    if (s->n == EXECUTIONS && want == ERR_NONE && step->child < 0)
        return;
    if (!run_one(s, &cmd))
        return;
    GUARANTEE(s, (cmd.verdict == VERDICT_REFUSED ? cmd.err.code : ERR_NONE) == want,
              "a subagent: error %d, not %d: %s", cmd.err.code, want, cmd.err.message);
    if (want != ERR_NONE)
        return;
    GUARANTEE(s, cmd.out.created.existing == (step->child >= 0), "a step has one subagent");
    if (step->child < 0)
        started(s, spawner, step, &cmd);
    GUARANTEE(s, uuid_eq(&cmd.out.created.id, &s->x[step->child].id),
              "a repeat was given another subagent");
}

void handler_spawn(struct sim *s, struct handler *h, int slot)
{
    const struct shadow *sh = &s->x[h->x];
    bool any = chance(s, 10) && sh->log.steps.n > 0;
    struct hash id = any ? sh->log.steps.at[roll(s, sh->log.steps.n)].id : h->step[slot];

    if (chance(s, 3))
        id.b[0] ^= 1;
    spawn(s, h->x, &id);
}

/* ---- waiting ---- */

void handler_wait(struct sim *s, struct handler *h, int slot)
{
    const struct log_step *step;

    log_read(s, h->x);
    step = log_step(&s->x[h->x], &h->step[slot]);
    if (step->child < 0 || chance(s, 15))
        handler_spawn(s, h, slot);
    else if (step_status_is_terminal((enum step_status)step->status) || chance(s, 3))
        handler_settle(s, h, slot); /* it reads the outcome and reports it, or gives up waiting */
    if (s->n == EXECUTIONS && step->child < 0)
        h->waits[slot] = false; /* nobody is there to do it */
}

void handler_suspend(struct sim *s, struct handler *h)
{
    struct command cmd = {.type = COMMAND_SUSPEND};
    struct shadow *sh = &s->x[h->x];
    bool over = sh->over;

    cmd.in.lease =
        (struct lease_call){.execution_id = sh->id, .agent_id = STR("a"), .lease = h->lease};
    if (!run_one(s, &cmd))
        return;
    log_read(s, h->x);
    check_owner(s, sh, &h->lease, &cmd);
    called(s, h, &cmd);
    if (cmd.verdict != VERDICT_DONE)
        return;
    GUARANTEE(s, cmd.out.suspended || (log_awaited(&sh->log) == 0 && sh->log.approvals == 0),
              "not suspended, and something waits");
    GUARANTEE(s, !cmd.out.suspended || over || log_awaited(&sh->log) > 0 || sh->ended,
              "suspended, and nothing waits");
    if (!cmd.out.suspended)
        return;
    sh->over = true;
    h->stopping = true;
    /* Blocked by an approval before, it waits for its subagents too from now on. */
    if (memory_execution(&s->m, &sh->id)->status == EXECUTION_BLOCKED && log_awaited(&sh->log) > 0)
        sh->log.suspended = true;
    if (roll(s, 4) != 0)
        h->alive = false;
}

/* ---- follow-ups ---- */

static void put_follow_up(struct sim *s, const struct sim_follow_up *f)
{
    if (s->n_follow_ups < FOLLOW_UPS && !chance(s, 15)) /* else lost with its kernel */
        s->follow_ups[s->n_follow_ups++] = *f;
}

static bool announces(const struct sim *s, const struct shadow *sh)
{
    const struct changes *c = &s->ws.changes;
    const struct memory_execution *x =
        map_get(&s->m.executions, str_make(sh->id.b, sizeof(sh->id.b)));
    bool freed = x->session == NULL, owed = sh->spawner < 0, orphaned = true;

    for (int i = 0; i < s->n; i++)
        orphaned &= s->x[i].spawner < 0 || &s->x[s->x[i].spawner] != sh;
    for (size_t i = 0; i < c->freed.n && !freed; i++)
        freed = str_eq(c->freed.at[i], str_of(x->session));
    for (size_t i = 0; i < c->owed.n && !owed; i++)
        owed = uuid_eq(&c->owed.at[i].child, &sh->id) &&
               uuid_eq(&c->owed.at[i].parent, &s->x[sh->spawner].id) &&
               hash_eq(&c->owed.at[i].step_id, &sh->spawned_step);
    for (size_t i = 0; i < c->orphaned.n && !orphaned; i++)
        orphaned = uuid_eq(&c->orphaned.at[i], &sh->id);
    return freed && owed && orphaned;
}

void take_follow_ups(struct sim *s)
{
    const struct changes *c = &s->ws.changes;

    for (int i = 0; i < s->n; i++) {
        struct shadow *sh = &s->x[i];

        if (sh->announced ||
            !execution_status_is_terminal(memory_execution(&s->m, &sh->id)->status))
            continue;
        GUARANTEE(s, announces(s, sh), "an end that somebody would have to hear of");
        sh->announced = true;
    }
    for (size_t i = 0; i < c->freed.n; i++) {
        struct sim_follow_up f = {.kind = FOLLOW_ADMIT};

        assert_true(c->freed.at[i].n < sizeof(f.session));
        memcpy(f.session, c->freed.at[i].p, c->freed.at[i].n);
        put_follow_up(s, &f);
    }
    for (size_t i = 0; i < c->owed.n; i++)
        put_follow_up(s, &(struct sim_follow_up){.kind = FOLLOW_SETTLE,
                                                 .end = {c->owed.at[i].child, c->owed.at[i].parent,
                                                         c->owed.at[i].step_id}});
    for (size_t i = 0; i < c->orphaned.n; i++)
        put_follow_up(s,
                      &(struct sim_follow_up){.kind = FOLLOW_ORPHANS, .ended = c->orphaned.at[i]});
}

static void admit(struct sim *s, const char *session)
{
    struct command cmd = {.type = COMMAND_ADMIT};

    cmd.in.admit = str_of(session);
    (void)run_alone(s, &cmd, chance(s, 10));
}

/* Of the step that waited, what the end of its subagent says. */
static void check_settled(struct sim *s, const struct memory_step *step, struct shadow *child)
{
    const struct memory_execution *x = memory_execution(&s->m, &child->id);
    bool completed = x->status == EXECUTION_COMPLETED;
    struct str error = str_of(step->error), reason, said, id;
    char text[UUID_TEXT_LEN];

    log_read(s, sim_index(s, &child->id));
    GUARANTEE(s, step->status == (completed ? STEP_SUCCEEDED : STEP_FAILED),
              "its subagent ended, and it is %d", step->status);
    if (completed) {
        GUARANTEE(s, strcmp(step->result, x->output == NULL ? "null" : x->output) == 0,
                  "another result than the subagent's: %s", step->result);
        return;
    }
    uuid_format(&child->id, text);
    reason = json_string(json_get(error, STR("reason"), &s->arena), &s->arena);
    said = json_string(json_get(error, STR("failure_reason"), &s->arena), &s->arena);
    id = json_string(json_get(error, STR("execution_id"), &s->arena), &s->arena);
    GUARANTEE(s,
              str_eq(reason, x->status == EXECUTION_FAILED ? STR("subagent_failed")
                                                           : STR("subagent_cancelled")) &&
                  str_eq(said, str_of(child->log.end_reason)) &&
                  str_eq(id, str_make(text, sizeof(text))) &&
                  str_present(json_get(error, STR("message"), &s->arena)),
              "another error than the subagent's end: %s", step->error);
}

/* Follow-ups that arrive together are one group. */
struct batch {
    struct command cmds[2 * EXECUTIONS];
    struct command *group[2 * EXECUTIONS];
    bool waited[2 * EXECUTIONS]; /* a step was told of an end that it waited for */
    size_t n;
};

static void add_settle(struct sim *s, struct batch *b, const struct subagent_end *end)
{
    int parent = sim_index(s, &end->parent);
    const struct log_step *step;

    log_read(s, parent);
    step = log_step(&s->x[parent], &end->step_id);
    b->cmds[b->n] = (struct command){.type = COMMAND_SUBAGENT_SETTLE};
    b->cmds[b->n].in.subagent_settle = *end;
    b->waited[b->n++] = step->status == STEP_EXECUTING && s->x[parent].log.end_row < 0 &&
                        execution_status_is_terminal(memory_execution(&s->m, &end->child)->status);
}

static void add_cancel(struct sim *s, struct batch *b, int child)
{
    b->cmds[b->n] = (struct command){.type = COMMAND_CANCEL};
    b->cmds[b->n].in.cancel.execution_id = s->x[child].id;
    b->cmds[b->n++].in.cancel.cause = CANCEL_BY_PARENT;
}

static void check_settle(struct sim *s, const struct subagent_end *end, bool waited)
{
    const struct memory_step *step = memory_step(&s->m, &end->step_id);

    GUARANTEE(s, !memory_execution(&s->m, &end->child)->owes, "an end was not told");
    log_read(s, sim_index(s, &end->parent));
    if (waited && step->status != STEP_CANCELLED) /* its own execution's end was in the group too */
        check_settled(s, step, &s->x[sim_index(s, &end->child)]);
}

static void check_cancelled(struct sim *s, int child)
{
    log_read(s, child);
    GUARANTEE(s, strcmp(s->x[child].log.end_reason, "parent_agent_terminal") == 0, "for %s",
              s->x[child].log.end_reason);
    s->x[child].ended = true;
}

static void run_batch(struct sim *s, struct batch *b)
{
    for (size_t i = 0; i < b->n; i++)
        b->group[i] = &b->cmds[i];
    if (b->n == 0 || !run_group(s, b->group, b->n, chance(s, 10)))
        return;
    for (size_t i = 0; i < b->n; i++) {
        const struct command *cmd = &b->cmds[i];

        GUARANTEE(s, cmd->verdict == VERDICT_DONE, "a follow-up was refused: %s", cmd->err.message);
        if (cmd->type == COMMAND_CANCEL)
            check_cancelled(s, sim_index(s, &cmd->in.cancel.execution_id));
        else
            check_settle(s, &cmd->in.subagent_settle, b->waited[i]);
    }
}

/* By the rows alone, as the store finds them. */
static bool is_orphan(struct sim *s, int i)
{
    const struct memory_execution *x = memory_execution(&s->m, &s->x[i].id);

    return !uuid_is_nil(&x->spawned_by) && !execution_status_is_terminal(x->status) &&
           execution_status_is_terminal(memory_execution(&s->m, &x->spawned_by)->status);
}

static void run_follow_up(struct sim *s, const struct sim_follow_up *f)
{
    struct batch b = {.n = 0};

    if (f->kind == FOLLOW_ADMIT)
        admit(s, f->session);
    if (f->kind == FOLLOW_SETTLE)
        add_settle(s, &b, &f->end);
    if (f->kind == FOLLOW_SETTLE && chance(s, 10)) /* twice, in one group */
        add_settle(s, &b, &f->end);
    for (int i = 0; i < s->n && f->kind == FOLLOW_ORPHANS; i++)
        if (is_orphan(s, i) &&
            uuid_eq(&memory_execution(&s->m, &s->x[i].id)->spawned_by, &f->ended))
            add_cancel(s, &b, i);
    run_batch(s, &b);
}

void follow_ups_turn(struct sim *s)
{
    for (int i = 0; i < s->n_follow_ups; i++) {
        struct sim_follow_up f = s->follow_ups[i];

        if (!s->calm && roll(s, 3) == 0)
            continue;       /* later */
        if (!chance(s, 15)) /* else it comes twice */
            s->follow_ups[i--] = s->follow_ups[--s->n_follow_ups];
        run_follow_up(s, &f);
    }
}

void sweep_follow_ups(struct sim *s)
{
    struct batch b = {.n = 0};

    for (int i = 0; i < s->n; i++) {
        const struct memory_execution *x = memory_execution(&s->m, &s->x[i].id);

        if (x->status == EXECUTION_PENDING)
            admit(s, x->session);
        if (x->owes && execution_status_is_terminal(x->status))
            add_settle(s, &b, &(struct subagent_end){x->id, x->spawned_by, x->spawned_step});
        if (is_orphan(s, i))
            add_cancel(s, &b, i);
    }
    run_batch(s, &b);
}

void check_nothing_owed(struct sim *s)
{
    for (int i = 0; i < s->n; i++) {
        GUARANTEE(s, !memory_execution(&s->m, &s->x[i].id)->owes, "an end that nobody was told of");
        GUARANTEE(s, !is_orphan(s, i), "a subagent outlived its parent");
    }
}
