/* SPDX-License-Identifier: Apache-2.0 */
#include "support/rules_world.h"

#include "base/clock.h"
#include "kernel/event.h"
#include "support/check.h"

void decide_group(struct world *w, struct command *cmds, size_t n)
{
    bool undecided = true;

    for (size_t i = 0; i < n; i++) {
        cmds[i].arena = &w->arena;
        cmds[i].verdict = VERDICT_NEED;
        command_names(&w->ws, &cmds[i]);
    }
    for (int round = 0; undecided; round++) {
        assert_true(round < 8);
        memory_store_load(&w->m, &w->ws);
        undecided = false;
        for (size_t i = 0; i < n; i++) {
            if (cmds[i].verdict == VERDICT_NEED)
                command_decide(&w->ws, &cmds[i]);
            undecided |= cmds[i].verdict == VERDICT_NEED;
        }
    }
    for (size_t i = 0; i < n; i++)
        assert_true(command_keep_answer(&cmds[i]));
}

void apply_group(struct world *w)
{
    memory_store_apply(&w->m, &w->ws);
    ws_end_group(&w->ws);
}

void decide(struct world *w, struct command *cmd)
{
    decide_group(w, cmd, 1);
    apply_group(w);
}

void world_init(struct world *w, bool leases_in_set)
{
    struct command reg = {.type = COMMAND_AGENT_REGISTER}, create = {.type = COMMAND_CREATE};

    *w = (struct world){.settings = {.dispatch_max_attempts = 5,
                                     .dispatch_timeout_us = 30 * US_PER_S,
                                     .lease_timeout_us = 120 * US_PER_S,
                                     .approval_timeout_us = 900 * US_PER_S}};
    prng_seed(&w->random, 7);
    w->ids.random = &w->random;
    memory_store_init(&w->m, leases_in_set);
    ws_init(&w->ws, &w->settings, &w->ids, &w->random);
    w->ws.keep_leased = leases_in_set;
    w->ws.policies = policy_cache_new();
    reg.in.agent_register = (struct agent_registration){
        .id = STR("a"), .webhook_url = STR("http://x/"), .secret = STR("s")};
    decide(w, &reg);
    create.in.create = (struct execution_creation){.agent_id = STR("a"), .created_by = STR("me")};
    decide(w, &create);
    w->id = create.out.created.id;
}

void world_free(struct world *w)
{
    ws_free(&w->ws);
    policy_cache_free(w->ws.policies);
    memory_store_free(&w->m);
    arena_free(&w->arena);
}

struct memory_execution *row(struct world *w)
{
    return memory_execution(&w->m, &w->id);
}

void pass(struct world *w, int64_t us)
{
    w->m.wall_us += us;
    w->m.mono_us += us;
}

/* The claim of the queued dispatch once it is due. */
void claim(struct world *w)
{
    struct command cmd = {.type = COMMAND_CLAIM};

    assert_true(row(w)->has_dispatch);
    if (row(w)->dispatch.due_at > w->m.wall_us)
        pass(w, row(w)->dispatch.due_at - w->m.wall_us);
    cmd.in.delivery.ref.execution_id = w->id;
    cmd.in.delivery.ref.dispatch_id = row(w)->dispatch.id;
    cmd.in.delivery.agent_id = STR("a");
    decide(w, &cmd);
    assert_true(cmd.out.claimed.claimed);
}

void delivered(struct world *w, bool acked)
{
    struct command cmd = {.type = COMMAND_DELIVERED};

    cmd.in.delivery.ref =
        (struct dispatch_ref){w->id, row(w)->dispatch.id, row(w)->dispatch.attempt};
    cmd.in.delivery.acked = acked;
    decide(w, &cmd);
}

struct lease_ref lease(struct world *w)
{
    return (struct lease_ref){row(w)->owner_dispatch, row(w)->owner_attempt};
}

void fill_call(struct world *w, struct command *cmd, const char *target, const char *args)
{
    struct step_submission *in = &cmd->in.submit;
    struct err e;
    struct call c;

    *cmd = (struct command){.type = COMMAND_SUBMIT};
    in->execution_id = in->tally.execution_id = w->id;
    in->agent_id = STR("a");
    in->lease = lease(w);
    in->kind = KIND_TOOL_CALL;
    in->target = arena_str(&w->arena, str_of(target));
    in->args = in->raw_args = arena_str(&w->arena, str_of(args));
    assert_true(args_hash(in->args, &in->args_hash, &e));
    c = (struct call){STR("tool_call"), in->target, in->args_hash};
    call_key(&c, &in->tally.call);
}

struct hash submit(struct world *w, int n, enum decision want)
{
    struct command cmd;

    fill_call(w, &cmd, "t", arena_printf(&w->arena, "%d", n).p);
    decide(w, &cmd);
    assert_int_equal(cmd.verdict, VERDICT_DONE);
    assert_int_equal(cmd.out.step.decision, want);
    return cmd.out.step.step_id;
}

void settle(struct world *w, const struct hash *step)
{
    struct command cmd = {.type = COMMAND_SETTLE};

    cmd.in.settle = (struct step_outcome){.execution_id = w->id,
                                          .agent_id = STR("a"),
                                          .lease = lease(w),
                                          .step_id = *step,
                                          .value = STR("1"),
                                          .usage = USAGE_NONE};
    decide(w, &cmd);
    assert_int_equal(cmd.out.step.decision, DECISION_RECORDED);
}

bool reclaim(struct world *w)
{
    struct command cmd = {.type = COMMAND_RECLAIM};

    cmd.in.reclaim = w->id;
    decide(w, &cmd);
    return cmd.out.reclaimed;
}

size_t log_length(struct world *w)
{
    return (size_t)row(w)->last_seq;
}

struct str log_types_after(struct world *w, size_t skip)
{
    struct buf types = {0}, scratch = {0};
    struct str out;
    size_t n = 0;

    for (size_t i = 0; i < row(w)->events.n; i++) {
        struct event_reader r = {.body =
                                     str_make(row(w)->events.at[i].body, row(w)->events.at[i].n)};
        struct event_line line;

        while (event_next(&r, &scratch, &line)) {
            if (++n <= skip)
                continue;
            if (types.n > 0)
                buf_add_byte(&types, ' ');
            buf_add(&types, line.type);
        }
    }
    out = arena_str(&w->arena, buf_str(&types));
    buf_free(&types);
    buf_free(&scratch);
    return out;
}

struct str log_types(struct world *w)
{
    return log_types_after(w, 0);
}

struct step_answer call(struct world *w, const char *target, const char *args, enum decision want)
{
    struct command cmd;

    fill_call(w, &cmd, target, args);
    decide(w, &cmd);
    assert_int_equal(cmd.verdict, VERDICT_DONE);
    CHECK_STR(decision_name(cmd.out.step.decision), decision_name(want));
    return cmd.out.step;
}

void set_policy(struct world *w, const char *yaml)
{
    struct command cmd = {.type = COMMAND_POLICY_SET};
    struct err e;
    struct policy *p = policy_compile(str_of(yaml), "", &e);

    if (p == NULL)
        fail_msg("%s", e.message);
    cmd.in.policy_set = (struct policy_setting){
        .agent_id = STR("a"), .bundle = str_of(yaml), .hash = *policy_hash(p)};
    policy_cache_put(w->ws.policies, policy_hash(p), p);
    policy_unref(p);
    decide(w, &cmd);
    assert_int_equal(cmd.verdict, VERDICT_DONE);
}
