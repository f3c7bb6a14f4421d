/* SPDX-License-Identifier: Apache-2.0 */
#include "support/engine_bench.h"

const char BENCH_BUNDLE[] = "default_action: allow\n"
                            "rules:\n"
                            "  - id: ask\n"
                            "    when: {target: ask}\n"
                            "    then: {decision: judge, judge: {instructions: is it safe}}\n"
                            "  - id: shared\n"
                            "    when: {target: shared}\n"
                            "    then:\n"
                            "      decision: allow\n"
                            "      rate_limit: {max_calls: 1000, window: 1h, per_what: global}\n"
                            "  - id: common\n"
                            "    when: {target: common}\n"
                            "    then:\n"
                            "      decision: allow\n"
                            "      rate_limit: {max_calls: 1000, window: 1h, per_what: global}\n"
                            "  - id: each\n"
                            "    when: {target: each}\n"
                            "    then:\n"
                            "      decision: allow\n"
                            "      rate_limit: {max_calls: 1000, window: 1h}\n"
                            "  - id: soon\n"
                            "    when: {target: soon}\n"
                            "    then:\n"
                            "      decision: require_approval\n"
                            "      approval_config: {timeout: 100ms}\n"
                            "  - id: slow\n"
                            "    when:\n"
                            "      target: slow\n"
                            "      arguments: {text: {regex: '(x+x+)+y'}}\n"
                            "    then: {decision: deny, reason: too_slow}\n";

static void changed(struct bench *b)
{
    pthread_cond_broadcast(&b->cond);
    pthread_mutex_unlock(&b->lock);
}

static void on_judge(void *ctx, struct command *cmd)
{
    struct bench *b = ctx;
    struct job *job = cmd->ctx;

    pthread_mutex_lock(&b->lock);
    assert_int_equal(job->done, 0);
    assert_false(job->with_judge);
    assert_true(b->n_asked < RUNS_MAX);
    job->with_judge = true;
    job->asked++;
    b->asked[b->n_asked++] = job;
    changed(b);
}

static void job_done(struct command *cmd)
{
    struct job *job = cmd->ctx;
    struct bench *b = job->bench;

    pthread_mutex_lock(&b->lock);
    assert_false(job->with_judge);
    job->done++;
    b->n_done++;
    if (job->hold) {
        b->held = true;
        pthread_cond_broadcast(&b->cond);
        while (!b->let_go)
            pthread_cond_wait(&b->cond, &b->lock);
    }
    changed(b);
}

void bench_judge(struct bench *b, enum policy_action judgement)
{
    struct job *jobs[RUNS_MAX];
    size_t n;

    pthread_mutex_lock(&b->lock);
    n = b->n_asked;
    memcpy(jobs, b->asked, n * sizeof(jobs[0]));
    b->n_asked = 0;
    for (size_t i = 0; i < n; i++)
        jobs[i]->with_judge = false;
    pthread_mutex_unlock(&b->lock);
    for (size_t i = 0; i < n; i++) {
        struct policy_found *found = &jobs[i]->cmd.in.submit.found;
        const struct policy_wanted *wanted = &jobs[i]->cmd.out.step.wanted;

        assert_int_equal(wanted->work, POLICY_WORK_JUDGE);
        found->matched = found->judged = true;
        found->hash = wanted->hash;
        found->rule = wanted->rule;
        found->judgement = judgement;
        engine_submit(b->en, &jobs[i]->cmd);
    }
}

void bench_engine_up(struct bench *b)
{
    struct connections one = connections_for(0);
    struct engine_options opt = {.store = b->f.store,
                                 .settings = &b->f.settings,
                                 .policies = b->policies,
                                 .connections = &one,
                                 .signals = {.ctx = b, .judge = on_judge}};
    struct err e;

    one.executors = 2; /* and that of forks */
    b->en = engine_new(&opt, &e);
    CHECKF(b->en != NULL && engine_start(b->en, &e), "%s", e.message);
}

void bench_engine_down(struct bench *b)
{
    assert_true(engine_stop(b->en, PATIENCE_US));
    assert_int_equal(atomic_load(&engine_stats(b->en)->waiting), 0);
    engine_free(b->en);
    b->en = NULL;
}

static void run_command(struct bench *b, struct command *cmd)
{
    cmd->arena = &b->f.arena;
    engine_run(b->en, cmd);
    CHECKF(cmd->verdict == VERDICT_DONE, "command %d: %s", cmd->type, cmd->err.message);
}

void bench_agent(struct bench *b, const char *id, struct str bundle)
{
    struct command cmd = {.type = COMMAND_AGENT_REGISTER};

    cmd.in.agent_register = (struct agent_registration){
        .id = str_of(id),
        .webhook_url = STR("http://127.0.0.1:9/"),
        .secret = STR("s"),
        .policy_bundle = bundle,
    };
    hash_sha256(bundle, &cmd.in.agent_register.policy_hash);
    run_command(b, &cmd);
}

/* A new execution whose first delivery is claimed and acked. */
static struct run *begin_run(struct bench *b, const char *agent_id)
{
    struct command create = {.type = COMMAND_CREATE}, claim = {.type = COMMAND_CLAIM};
    struct due_dispatch *due;
    int64_t now, next;
    struct err e;
    size_t n;
    struct run *run = &b->runs[b->n_runs++];

    create.in.create.agent_id = str_of(agent_id);
    create.in.create.created_by = STR("test");
    run_command(b, &create);
    run->id = create.out.created.id;
    assert_true(store_due_dispatches(b->f.r, NULL, 0, RUNS_MAX, RUNS_MAX, &b->f.arena, &due, &n,
                                     &now, &next, &e));
    assert_int_equal(n, 1);
    claim.in.delivery.ref.execution_id = run->id;
    claim.in.delivery.ref.dispatch_id = due[0].dispatch_id;
    claim.in.delivery.agent_id = str_of(agent_id);
    run_command(b, &claim);
    assert_true(claim.out.claimed.claimed);
    run->lease = (struct lease_ref){due[0].dispatch_id, claim.out.claimed.attempt};
    claim.type = COMMAND_DELIVERED;
    claim.in.delivery.ref.attempt = run->lease.attempt;
    claim.in.delivery.acked = true;
    run_command(b, &claim);
    return run;
}

void bench_begin(struct bench *b, size_t n_runs)
{
    struct policy *bundle;
    struct err e;

    pthread_mutex_init(&b->lock, NULL);
    pthread_cond_init(&b->cond, NULL);
    b->f.settings.approval_timeout_us = 900 * US_PER_S;
    b->f.settings.judge_configured = true;
    b->policies = policy_cache_new();
    bundle = policy_compile(str_of(BENCH_BUNDLE), "", &e);
    CHECKF(bundle != NULL, "%s", e.message);
    policy_cache_put(b->policies, policy_hash(bundle), bundle);
    policy_unref(bundle);
    bench_engine_up(b);
    bench_agent(b, "a", str_of(BENCH_BUNDLE));
    for (size_t i = 0; i < n_runs; i++)
        (void)begin_run(b, "a");
}

void bench_open(struct bench *b, void **state, size_t n_runs)
{
    *b = (struct bench){0};
    fixture_open(&b->f, *(enum fixture_kind *)*state);
    bench_begin(b, n_runs);
}

void bench_beside(struct bench *b, const struct bench *other)
{
    struct store_options opt = {.url = other->f.url};
    struct err e;

    *b = (struct bench){.f = other->f};
    memcpy(b->runs, other->runs, sizeof(b->runs));
    pthread_mutex_init(&b->lock, NULL);
    pthread_cond_init(&b->cond, NULL);
    b->policies = policy_cache_new();
    if (other->f.kind != FIXTURE_POSTGRES)
        return;
    b->f.store = store_open(&opt, &e);
    CHECKF(b->f.store != NULL, "%s", e.message);
    bench_engine_up(b);
}

void bench_leave(struct bench *b)
{
    bench_end(b);
    if (b->f.kind == FIXTURE_POSTGRES)
        store_close(b->f.store);
}

void bench_end(struct bench *b)
{
    if (b->en != NULL)
        bench_engine_down(b);
    policy_cache_free(b->policies);
    pthread_cond_destroy(&b->cond);
    pthread_mutex_destroy(&b->lock);
}

void bench_close(struct bench *b)
{
    bench_end(b);
    fixture_close(&b->f);
}

/* ---- jobs ---- */

void job_submit(struct bench *b, struct job *job)
{
    job->bench = b;
    job->cmd.arena = &job->arena;
    job->cmd.done = job_done;
    job->cmd.ctx = job;
    engine_submit(b->en, &job->cmd);
}

/* A step that this run submits. */
void job_step(struct job *job, const struct run *run, const char *target, struct str args)
{
    struct step_submission *in = &job->cmd.in.submit;
    struct call call;

    *job = (struct job){.cmd.type = COMMAND_SUBMIT};
    in->execution_id = run->id;
    in->agent_id = STR("a");
    in->lease = run->lease;
    in->target = str_of(target);
    in->args = in->raw_args = args;
    hash_sha256(args, &in->args_hash);
    in->tally.execution_id = run->id;
    call = (struct call){step_kind_name(in->kind), in->target, in->args_hash};
    call_key(&call, &in->tally.call);
}

void bench_step(struct bench *b, struct job *job, const struct run *run, const char *target)
{
    job_step(job, run, target, STR("{}"));
    job_submit(b, job);
}

void job_free(struct job *job)
{
    arena_free(&job->arena);
}

/* The executor stands still, so that what is submitted next forms one group. */
void bench_hold(struct bench *b, struct job *job)
{
    *job = (struct job){.cmd.type = COMMAND_AGENT_DESCRIBE, .hold = true};
    b->held = b->let_go = false;
    job->cmd.in.agent_describe.id = STR("a");
    job_submit(b, job);
    WAIT_FOR(b, b->held);
}

void bench_let_go(struct bench *b)
{
    pthread_mutex_lock(&b->lock);
    b->let_go = true;
    changed(b);
}
