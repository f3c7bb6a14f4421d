/* SPDX-License-Identifier: Apache-2.0
 * A deterministic simulation of the kernel: the real rules, a fake clock, a store in memory, and
 * random schedules of agents that crash, stall, repeat themselves and race, of kernels that are
 * killed and of commits that fail. Agents use resources and start subagents, clients fork what they
 * like. After every turn the guarantees 2 to 6 of ARCHITECTURE.md, and what the rules of resources,
 * subagents and forks promise, are checked against an independent reading of the logs.
 *
 *   SIM_SEED=n build/tests/unit/simulation_test     reruns one schedule, and shows its logs if it
 *                                                   fails
 *   SIM_RUNS=n …                                    runs that many (default 3000) */
#include "support/sim.h"

#include "base/clock.h"

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
    GUARANTEE(s, !s->x[x].owned || s->x[x].over, "claimed while an attempt owned it");
    s->x[x].owned = true;
    s->x[x].over = false;
    s->x[x].acked = false;
    GUARANTEE(s,
              cmd.out.claimed.attempt > s->x[x].attempt ||
                  !uuid_eq(&s->x[x].dispatch, &cmd.in.delivery.ref.dispatch_id),
              "an attempt's number came twice");
    s->x[x].dispatch = cmd.in.delivery.ref.dispatch_id;
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
    memory_store_forget(&s->m, &s->ws);
    s->n_follow_ups = 0;
    forks_restart(s);
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

/* Waiting counts, in a session too; a fork's runs from its own creation. */
static void pass_deadlines(struct sim *s)
{
    for (int i = 0; i < s->n; i++) {
        const struct memory_execution *x = memory_execution(&s->m, &s->x[i].id);
        struct command cmd = {.type = COMMAND_CANCEL};
        int64_t term = s->settings.deadline_timeout_us;
        bool passed = term > 0 && s->m.wall_us >= x->created_at + term;

        if (execution_status_is_terminal(x->status))
            continue;
        cmd.in.cancel.execution_id = x->id;
        cmd.in.cancel.cause = CANCEL_BY_DEADLINE;
        (void)run_alone(s, &cmd, false);
        GUARANTEE(s, passed == (cmd.verdict == VERDICT_DONE), "cancelled at another time");
        s->x[i].ended |= passed;
    }
}

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

/* People, and the clock that gives up on them: several at once, of which one wins. */
static void people_decide(struct sim *s)
{
    for (size_t i = 0; i < s->m.approvals.n; i++) {
        const struct memory_approval *a = s->m.approvals.at[i];
        struct command cmds[3], *group[3];
        size_t n = s->calm ? 1 : 1 + roll(s, 3), won = 0;
        bool was_pending = a->status == APPROVAL_PENDING;

        if (!(s->calm && was_pending) && roll(s, 20) != 0)
            continue;
        for (size_t k = 0; k < n; k++) {
            cmds[k] = (struct command){.type = roll(s, 3) == 0 ? COMMAND_APPROVAL_EXPIRE
                                                               : COMMAND_APPROVAL_DECIDE};
            cmds[k].in.approval = (struct approval_decision){.execution_id = a->execution_id,
                                                             .approval_id = a->id,
                                                             .granted = roll(s, 4) != 0,
                                                             .decided_by = STR("person")};
            group[k] = &cmds[k];
        }
        if (!run_group(s, group, n, chance(s, 10)))
            continue;
        for (size_t k = 0; k < n; k++)
            won += cmds[k].type == COMMAND_APPROVAL_DECIDE && !cmds[k].out.approval.late;
        GUARANTEE(s, won <= (was_pending ? 1 : 0), "two decisions");
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
    if (chance(s, 10) || s->calm)
        sweep_follow_ups(s);
    if (roll(s, 10) == 0)
        pass_deadlines(s);
    people_decide(s);
    follow_ups_turn(s);
    forks_turn(s);
    for (i = 0; i < s->n; i++)
        if (roll(s, 2) == 0)
            claim_due(s, i);
    for (i = 0; i < FLIGHTS; i++)
        if (s->f[i].used && roll(s, 6) == 0)
            flight_turn(s, &s->f[i]);
    for (i = 0; i < HANDLERS; i++)
        if (s->h[i].alive && roll(s, 2) == 0)
            handler_turn(s, &s->h[i]);
    check_all(s);
}

/* Sometimes it continues a given execution, alone or in a session of its own; or it joins the
 * session of one that is there, which may be a fork. */
static void pick_branch(struct sim *s, struct execution_creation *in)
{
    const struct memory_execution *x = memory_execution(&s->m, &s->x[roll(s, (uint64_t)s->n)].id);

    if (roll(s, 3) == 0 && x->session != NULL && strncmp(x->session, "below", 5) != 0) {
        in->session = arena_printf(&s->arena, "%s", x->session);
    } else if (roll(s, 3) == 0 && x->status == EXECUTION_COMPLETED) {
        in->parent = x->id;
        in->session = roll(s, 2) == 0 ? STR_NONE : arena_printf(&s->arena, "branch %d", ++s->names);
    }
}

static void create_execution(struct sim *s)
{
    struct command cmd = {.type = COMMAND_CREATE};
    struct shadow *sh;

    cmd.in.create = (struct execution_creation){.agent_id = STR("a"), .created_by = STR("sim")};
    if (s->roots == 0)
        cmd.in.create.idempotency_key = STR("client");
    if (s->roots > 0 && s->seed % 5 < 3) /* the others one after the other */
        cmd.in.create.session = STR("chat");
    if (s->n > 0)
        pick_branch(s, &cmd.in.create);
    (void)run_alone(s, &cmd, false);
    CHECKF(cmd.verdict == VERDICT_DONE, "%s", cmd.err.message);
    sh = sim_add(s, &cmd.out.created.id);
    sh->branch = !uuid_is_nil(&cmd.in.create.parent);
    make_program(s, &sh->program, 0);
    s->roots++;
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
    policy_cache_free(s->ws.policies);
    memory_store_free(&s->m);
    forks_free(s);
    for (int i = 0; i < s->n; i++)
        log_free(&s->x[i].log);
    arena_free(&s->arena);
    arena_free(&s->keep);
    for (size_t i = 0; (v = map_next(&s->effects, &i)) != NULL;)
        free(v);
    map_free(&s->effects);
    map_free(&s->terminal);
}

static void register_agent(struct sim *s)
{
    struct command reg = {.type = COMMAND_AGENT_REGISTER};
    struct agent_registration *in = &reg.in.agent_register;

    *in = (struct agent_registration){
        .id = STR("a"), .webhook_url = STR("http://x/"), .secret = STR("secret")};
    s->ws.policies = policy_cache_new();
    sim_policies_put(s->ws.policies);
    if (s->policy != NULL) {
        in->policy_bundle = str_of(s->policy);
        in->policy_hash = *sim_policy_hash((int)(s->seed / 2 % SIM_POLICIES));
    }
    (void)run_alone(s, &reg, false);
}

static void simulate(uint64_t seed)
{
    struct sim s = {.seed = seed, .policy = SIM_POLICY[seed / 2 % SIM_POLICIES]};

    prng_seed(&s.chaos, seed);
    prng_seed(&s.rules, seed ^ 0x5eed);
    s.ids.random = &s.rules;
    s.settings =
        (struct kernel_settings){.dispatch_max_attempts = 5,
                                 .dispatch_max_attempts_by_hand = seed % 3 == 0,
                                 .dispatch_timeout_us = 30 * US_PER_S,
                                 .lease_timeout_us = 120 * US_PER_S,
                                 .approval_timeout_us = 900 * US_PER_S,
                                 .deadline_timeout_us = seed % 7 == 0 ? 1500 * US_PER_S : 0};
    memory_store_init(&s.m, seed % 2 == 0);
    ws_init(&s.ws, &s.settings, &s.ids, &s.rules);
    s.ws.keep_leased = s.m.leases_in_set;
    register_agent(&s);
    while (s.roots < ROOTS - 2)
        create_execution(&s);
    for (s.tick = 0; s.tick < TICKS && !(s.roots == ROOTS && all_ended(&s)); s.tick++) {
        if (s.roots < ROOTS && s.n < EXECUTIONS && roll(&s, TICKS / 4) == 0)
            create_execution(&s); /* while others run, wait, or have just ended */
        world_turn(&s);
    }
    /* Faults end: everything that lives must come to its end, without anyone's help. */
    s.calm = true;
    for (; s.tick < TICKS + 4000 && !(all_ended(&s) && forks_idle(&s)); s.tick++)
        world_turn(&s);
    GUARANTEE(&s, all_ended(&s), "an execution that nothing wakes");
    sweep_follow_ups(&s);
    check_nothing_owed(&s);
    check_terminal_steps(&s);
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
    sim_policies_free();
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_schedules)};

    return cmocka_run_group_tests(tests, NULL, NULL);
}
