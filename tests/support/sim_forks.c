/* SPDX-License-Identifier: Apache-2.0
 * Forks in the simulation: copied as the engine copies them, in parts, while their source goes on
 * and kernels die. */
#include "support/sim.h"

#include "base/clock.h"

enum { PHASE_SURVEY, PHASE_STEPS, PHASE_EVENTS, PHASE_FINISH };
enum { ROWS_A_PART = 3 };

bool forks_idle(const struct sim *s)
{
    for (int i = 0; i < FORK_JOBS; i++)
        if (s->forks[i].used)
            return false;
    return true;
}

static void drop(struct fork_job *job)
{
    fork_copy_free(job->copy);
    *job = (struct fork_job){0};
}

void forks_free(struct sim *s)
{
    for (int i = 0; i < FORK_JOBS; i++)
        drop(&s->forks[i]);
}

/* The pins stay, until a sweep finds that nobody touches them any more. */
void forks_restart(struct sim *s)
{
    for (int i = 0; i < FORK_JOBS; i++)
        if (chance(s, 50))
            drop(&s->forks[i]); /* else it is another kernel that copies it */
}

/* ---- giving up ---- */

static void check_unseen(struct sim *s, const struct uuid *id, int64_t key)
{
    GUARANTEE(s, memory_execution(&s->m, id) == NULL && memory_slice(&s->m, key) == NULL,
              "something is left of a fork that was given up");
}

static void abandon(struct sim *s, const struct uuid *id, bool failed)
{
    struct command cmd = {.type = COMMAND_FORK_ABANDON};
    const struct fork_pin *pin = memory_pin(&s->m, id);
    bool goes =
        pin != NULL && (failed || s->m.wall_us - pin->touched_at >= FORK_PATIENCE_S * US_PER_S);
    int64_t key = pin == NULL ? 0 : pin->key;

    cmd.in.fork_abandon = (struct fork_abandon){*id, failed};
    if (!run_alone(s, &cmd, chance(s, 10)))
        return;
    GUARANTEE(s, cmd.verdict == VERDICT_DONE, "not given up");
    GUARANTEE(s, (memory_pin(&s->m, id) == NULL) == (pin == NULL || goes),
              "given up too early, or not at all");
    if (goes)
        check_unseen(s, id, key);
}

static void give_up(struct sim *s, struct fork_job *job)
{
    abandon(s, &job->id, true);
    drop(job);
}

static void sweep_stale(struct sim *s)
{
    for (size_t i = s->m.pins.n; i-- > 0;) {
        struct uuid id = s->m.pins.at[i].id;

        abandon(s, &id, false);
    }
}

/* ---- parts ---- */

/* False: it was given up. */
static bool run_part(struct sim *s, struct fork_job *job, struct command *cmd)
{
    bool pinned = memory_pin(&s->m, &job->id) != NULL;

    if (!run_alone(s, cmd, chance(s, 3))) {
        give_up(s, job);
        return false;
    }
    if (!pinned) {
        GUARANTEE(s, cmd->verdict == VERDICT_REFUSED && cmd->err.code == ERR_UNAVAILABLE,
                  "a part of a fork that was given up");
        drop(job);
        return false;
    }
    if (cmd->type == COMMAND_FORK_PART)
        GUARANTEE(s,
                  cmd->verdict == VERDICT_DONE &&
                      memory_pin(&s->m, &job->id)->touched_at == s->m.wall_us,
                  "a part was refused, or leaves its fork to be given up");
    return true;
}

/* Every step of the source, in order of creation; a few that are copied make a part. */
static void copy_steps(struct sim *s, struct fork_job *job)
{
    struct command cmd = {.type = COMMAND_FORK_PART};
    struct step_copy copies[ROWS_A_PART];
    size_t n = 0;

    for (; job->next_step < s->m.all_steps.n && n < ROWS_A_PART; job->next_step++) {
        const struct memory_step *row = s->m.all_steps.at[job->next_step];
        struct step step = {.key = row->payload_key == 0 ? row->key : row->payload_key,
                            .id = row->id,
                            .kind = row->kind,
                            .target = str_of(row->target),
                            .args_hash = row->args_hash,
                            .occurrence = row->occurrence,
                            .status = row->status,
                            .idempotency = row->idempotency,
                            .error = str_of(row->error),
                            .rule_id = str_of(row->rule_id),
                            .affects = str_of(row->affects),
                            .usage = row->usage,
                            .created_at = row->created_at,
                            .started_at = row->started_at,
                            .completed_at = row->completed_at};

        if (uuid_eq(&row->execution_id, &s->x[job->source].id) &&
            fork_copy_step(job->copy, &step, &copies[n]))
            n++;
    }
    if (n == 0) {
        job->phase = PHASE_EVENTS;
        return;
    }
    cmd.in.fork_part =
        (struct fork_part){.fork_id = job->id, .slice = {.steps = copies, .n_steps = n}};
    (void)run_part(s, job, &cmd);
}

/* How many transitions up to the fork point are to be read. */
static size_t rows_left(struct sim *s, const struct fork_job *job)
{
    const struct memory_execution *x = memory_execution(&s->m, &s->x[job->source].id);
    size_t end = job->next_row;

    while (end < x->events.n && x->events.at[end].first_seq <= job->at_seq)
        end++;
    return end - job->next_row;
}

/* The next ones' events. */
static size_t copy_rows(struct sim *s, struct fork_job *job, struct event_copy *copies,
                        struct buf *bodies)
{
    const struct memory_execution *x = memory_execution(&s->m, &s->x[job->source].id);
    size_t n = 0, left = rows_left(s, job);

    for (; left > 0 && n < ROWS_A_PART; left--, job->next_row++) {
        const struct memory_event_row *row = &x->events.at[job->next_row];

        copies[n] = (struct event_copy){.occurred_at = row->occurred_at};
        buf_clear(&bodies[n]);
        copies[n].count = fork_copy_events(job->copy, row->first_seq, str_make(row->body, row->n),
                                           &copies[n].first_seq, &bodies[n]);
        copies[n].body = buf_str(&bodies[n]);
        n += copies[n].count > 0;
    }
    return n;
}

static void free_bodies(struct buf *bodies)
{
    for (int i = 0; i < ROWS_A_PART; i++)
        buf_free(&bodies[i]);
}

static void copy_events(struct sim *s, struct fork_job *job)
{
    struct command cmd = {.type = COMMAND_FORK_PART};
    struct event_copy copies[ROWS_A_PART];
    struct buf bodies[ROWS_A_PART] = {{0}};

    if (rows_left(s, job) <= ROWS_A_PART) { /* the last ones come with the fork's appearing */
        job->phase = PHASE_FINISH;
        return;
    }
    cmd.in.fork_part.fork_id = job->id;
    cmd.in.fork_part.slice.n_events = copy_rows(s, job, copies, bodies);
    cmd.in.fork_part.slice.events = copies;
    (void)run_part(s, job, &cmd);
    free_bodies(bodies);
}

/* ---- the end ---- */

/* Of the turns before, the last one that has a checkpoint of this resource. */
static struct inherited_checkpoint look_back(struct sim *s, const struct memory_execution *x,
                                             struct str key)
{
    struct inherited_checkpoint out = {.resource = key};

    while (!uuid_is_nil(&x->parent)) {
        x = memory_execution(&s->m, &x->parent);
        for (size_t i = x->checkpoints.n; i-- > 0;)
            if (str_eq(str_of(x->checkpoints.at[i].resource), key)) {
                out.checkpoint_ref = str_of(x->checkpoints.at[i].checkpoint_ref);
                out.covered_seq = x->checkpoints.at[i].covered_seq;
                out.execution_id = x->id;
                return out;
            }
    }
    return out;
}

static void feed_resources(struct sim *s, struct fork_job *job)
{
    const struct memory_execution *x = memory_execution(&s->m, &s->x[job->source].id);
    struct inherited_checkpoint inherited[KEYS];
    size_t n = 0;

    for (size_t i = 0; i < x->checkpoints.n; i++) {
        const struct memory_checkpoint *row = &x->checkpoints.at[i];
        const struct checkpoint c = {.resource = str_of(row->resource),
                                     .checkpoint_ref = str_of(row->checkpoint_ref),
                                     .generation = row->generation,
                                     .covered_seq = row->covered_seq,
                                     .invalidated_seq = row->invalidated_seq};

        fork_copy_checkpoint(job->copy, &c);
    }
    for (size_t i = 0; i < x->resources.n; i++)
        if (fork_copy_wants_inherited(job->copy, &x->resources.at[i]))
            inherited[n++] = look_back(s, x, x->resources.at[i].key);
    fork_copy_resources(job->copy, x->resources.at, x->resources.n, inherited, n);
}

static struct command finishing(struct sim *s, struct fork_job *job)
{
    struct command cmd = {.type = COMMAND_FORK_FINISH};
    const struct shadow *source = &s->x[job->source];
    const struct memory_execution *x = memory_execution(&s->m, &source->id);
    struct fork_copied copied = fork_copy_result(job->copy);
    const char *policy = NULL;

    cmd.in.fork_finish = (struct fork_finish){
        .source = source->id,
        .at_seq = job->at_seq,
        .agent_id = STR("a"),
        .session = job->session[0] == '\0' ? STR_NONE : str_of(job->session),
        .created_by = STR("sim"),
        .next_seq = copied.next_seq,
        .tokens = copied.tokens,
        .indeterminate = copied.indeterminate,
        .resources = copied.resources,
        .n_resources = copied.n_resources,
        .checkpoints = copied.checkpoints,
        .n_checkpoints = copied.n_checkpoints,
        .restoration = copied.restoration,
    };
    if (job->policy > 0) {
        policy = SIM_POLICY[job->policy];
        cmd.in.fork_finish.policy_hash = *sim_policy_hash(job->policy);
    } else if (x->has_policy) {
        policy = source->policy;
        cmd.in.fork_finish.policy_hash = x->policy_hash;
    }
    cmd.in.fork_finish.policy_bundle = str_of(policy);
    return cmd;
}

static void appeared(struct sim *s, const struct fork_job *job)
{
    const struct shadow *source = &s->x[job->source];
    struct shadow *sh = sim_add(s, &job->id);

    sh->program = source->program;
    sh->depth = source->depth;
    sh->forked_from = job->source;
    if (job->policy > 0)
        sh->policy = SIM_POLICY[job->policy];
    else if (memory_execution(&s->m, &source->id)->has_policy)
        sh->policy = source->policy;
    check_fork(s, s->n - 1, job->at_seq, job->policy > 0);
}

static void finish(struct sim *s, struct fork_job *job)
{
    struct event_copy copies[ROWS_A_PART];
    struct buf bodies[ROWS_A_PART] = {{0}};
    size_t n = copy_rows(s, job, copies, bodies);
    struct command cmd;

    feed_resources(s, job);
    cmd = finishing(s, job);
    cmd.in.fork_finish.last =
        (struct fork_part){.fork_id = job->id, .slice = {.events = copies, .n_events = n}};
    if (s->n == EXECUTIONS) {
        give_up(s, job);
    } else if (run_part(s, job, &cmd)) {
        if (cmd.verdict == VERDICT_DONE) {
            appeared(s, job);
            drop(job);
        } else { /* somebody was quicker with its session */
            GUARANTEE(s, cmd.err.code == ERR_CONFLICT && job->session[0] != '\0',
                      "it did not appear: %s", cmd.err.message);
            give_up(s, job);
        }
    }
    free_bodies(bodies);
}

/* ---- from the beginning ---- */

static bool session_used(const struct sim *s, const char *session)
{
    for (size_t i = 0; i < s->m.all.n; i++)
        if (s->m.all.at[i]->session != NULL && strcmp(s->m.all.at[i]->session, session) == 0)
            return true;
    return false;
}

/* What there is to copy. */
static int64_t worth(const struct sim *s, int i)
{
    const struct log *log = &s->x[i].log;
    int64_t n = (int64_t)log->events.n;

    for (int k = 0; k < KEYS; k++)
        n += log->resources[k].registered * 20 + log->resources[k].inherited * 20 +
             (log->resources[k].restored_from >= 0) * 200;
    return n;
}

/* Rather one that has done something. */
static int pick_source(struct sim *s)
{
    int best = (int)roll(s, (uint64_t)s->n);

    for (int i = 0; i < 2; i++) {
        int other = (int)roll(s, (uint64_t)s->n);

        if (worth(s, other) > worth(s, best))
            best = other;
    }
    return best;
}

static int64_t pick_point(struct sim *s, int64_t last)
{
    int64_t one = (int64_t)roll(s, (uint64_t)last), other = (int64_t)roll(s, (uint64_t)last);

    if (chance(s, 3))
        return (int64_t)roll(s, 2) * (last + 1); /* there is no such event */
    return 1 + (one > other ? one : other);
}

static void begin(struct sim *s, struct fork_job *job)
{
    struct command cmd = {.type = COMMAND_FORK_BEGIN};
    int source = pick_source(s);
    int64_t last = memory_execution(&s->m, &s->x[source].id)->last_seq;
    int64_t at = pick_point(s, last);
    bool used;

    *job = (struct fork_job){.source = source, .at_seq = at};
    if (roll(s, 4) == 0)
        snprintf(job->session, sizeof(job->session), "fork %d",
                 roll(s, 4) == 0 ? s->names : ++s->names); /* perhaps one that is there */
    used = job->session[0] != '\0' && session_used(s, job->session);
    job->policy = roll(s, 4) == 0 ? 1 + (int)roll(s, SIM_POLICIES - 1) : -1;
    cmd.in.fork_begin = (struct fork_begin){
        s->x[source].id, at, job->session[0] == '\0' ? STR_NONE : str_of(job->session)};
    if (!run_alone(s, &cmd, chance(s, 5)))
        return;
    if (at < 1 || at > last || used) {
        GUARANTEE(s,
                  cmd.verdict == VERDICT_REFUSED &&
                      cmd.err.code == (at < 1 || at > last ? ERR_VALIDATION : ERR_CONFLICT),
                  "a fork at %lld of %lld", (long long)at, (long long)last);
        return;
    }
    GUARANTEE(s, cmd.verdict == VERDICT_DONE && memory_pin(&s->m, &cmd.out.begun.id) != NULL,
              "a source that is not pinned: %s", cmd.err.message);
    job->used = true;
    job->id = cmd.out.begun.id;
    job->copy = fork_copy_new(&job->id, at);
}

static void survey(struct sim *s, struct fork_job *job)
{
    const struct memory_execution *x = memory_execution(&s->m, &s->x[job->source].id);

    for (size_t i = 0; i < x->events.n; i++)
        fork_copy_survey(job->copy, x->events.at[i].first_seq,
                         str_make(x->events.at[i].body, x->events.at[i].n));
    job->phase = PHASE_STEPS;
}

static void job_turn(struct sim *s, struct fork_job *job)
{
    if (chance(s, 2)) {
        give_up(s, job);
        return;
    }
    if (chance(s, 5))
        memory_store_forget(&s->m, &s->ws);
    switch (job->phase) {
    case PHASE_SURVEY:
        survey(s, job);
        return;
    case PHASE_STEPS:
        copy_steps(s, job);
        return;
    case PHASE_EVENTS:
        copy_events(s, job);
        return;
    default:
        finish(s, job);
    }
}

void forks_turn(struct sim *s)
{
    if (chance(s, 20))
        sweep_stale(s);
    for (int i = 0; i < FORK_JOBS; i++) {
        struct fork_job *job = &s->forks[i];

        if (job->used && roll(s, 3) != 0)
            job_turn(s, job);
        else if (!job->used && s->tick > TICKS / 5 && s->n < EXECUTIONS && chance(s, 3))
            begin(s, job);
        GUARANTEE(s, !job->used || memory_execution(&s->m, &job->id) == NULL,
                  "a fork was seen before it was complete");
    }
}
