/* SPDX-License-Identifier: Apache-2.0
 * Resources by tables that can be checked by hand (docs/resources.md): what a step touches, what is
 * due, which captures count, and which events a checkpoint covers. */
#include "support/check.h"

#include "base/json.h"
#include "kernel/event.h"
#include "support/rules_world.h"

static void begin(struct world *w, int both)
{
    world_init(w, both == 0);
    claim(w);
    delivered(w, true);
}

/* ---- calls ---- */

struct registering {
    const char *key, *driver, *configuration; /* canonical; NULL: none */
    bool reuse;
    int every;
    bool on_completion;
};

static struct command registration(struct world *w, const struct registering *r)
{
    struct command cmd = {.type = COMMAND_RESOURCE_REGISTER};

    cmd.in.resource_register = (struct resource_registration){
        .execution_id = w->id,
        .agent_id = STR("a"),
        .lease = lease(w),
        .key = str_of(r->key),
        .driver_id = str_of(r->driver),
        .configuration = r->configuration == NULL ? STR_NONE : str_of(r->configuration),
        .coverage_reuse = r->reuse,
        .every_steps = r->every,
        .on_completion = r->on_completion,
    };
    hash_sha256(r->configuration == NULL ? STR("null") : str_of(r->configuration),
                &cmd.in.resource_register.configuration_hash);
    return cmd;
}

static struct resource registered(struct world *w, const struct registering *r)
{
    struct command cmd = registration(w, r);

    decide(w, &cmd);
    CHECKF(cmd.verdict == VERDICT_DONE, "%s", cmd.err.message);
    return cmd.out.resource.state;
}

/* The state, by the call that changes nothing: with every_steps 0 it only asks. */
static struct resource state(struct world *w, const char *key, bool reuse)
{
    return registered(w, &(struct registering){.key = key, .driver = "d", .reuse = reuse});
}

static struct command binding(struct world *w, const char *key, const char *json)
{
    struct command cmd = {.type = COMMAND_RESOURCE_BIND};

    cmd.in.resource_bind = (struct resource_binding){.execution_id = w->id,
                                                     .agent_id = STR("a"),
                                                     .lease = lease(w),
                                                     .key = str_of(key),
                                                     .binding = str_of(json)};
    hash_sha256(str_of(json), &cmd.in.resource_bind.binding_hash);
    return cmd;
}

static void captured(struct world *w, const struct capture *captures, size_t n)
{
    struct command cmd = {.type = COMMAND_RESOURCE_CAPTURE};

    cmd.in.resource_capture = (struct resource_capture){
        .execution_id = w->id,
        .agent_id = STR("a"),
        .lease = lease(w),
        .report = {.captures = captures, .n_captures = n},
    };
    decide(w, &cmd);
    CHECKF(cmd.verdict == VERDICT_DONE, "%s", cmd.err.message);
}

static void fill(struct world *w, struct command *cmd, const char *args, const char *key,
                 enum step_kind kind)
{
    struct str *keys = arena_new(&w->arena, struct str);
    struct call c;

    fill_call(w, cmd, "t", args);
    cmd->in.submit.kind = kind;
    c = (struct call){step_kind_name(kind), cmd->in.submit.target, cmd->in.submit.args_hash};
    call_key(&c, &cmd->in.submit.tally.call);
    if (key == NULL)
        return;
    *keys = str_of(key);
    cmd->in.submit.resources = keys;
    cmd->in.submit.n_resources = 1;
}

static struct step_answer submitted(struct world *w, const char *args, const char *key,
                                    enum step_kind kind)
{
    struct command cmd;

    fill(w, &cmd, args, key, kind);
    decide(w, &cmd);
    CHECKF(cmd.verdict == VERDICT_DONE, "%s", cmd.err.message);
    return cmd.out.step;
}

static void settled(struct world *w, const struct hash *id, bool failed,
                    const struct capture *captures, size_t n)
{
    struct command cmd = {.type = COMMAND_SETTLE};

    cmd.in.settle = (struct step_outcome){
        .execution_id = w->id,
        .agent_id = STR("a"),
        .lease = lease(w),
        .step_id = *id,
        .failed = failed,
        .value = failed ? STR("{\"message\":\"x\"}") : STR("1"),
        .usage = USAGE_NONE,
        .report = {.captures = captures, .n_captures = n},
    };
    decide(w, &cmd);
    assert_int_equal(cmd.out.step.decision, DECISION_RECORDED);
}

/* `value` of a member of the last event of this type. */
static struct str last_member(struct world *w, const char *type, const char *member)
{
    struct buf scratch = {0};
    struct str out = STR_NONE;

    for (size_t i = 0; i < row(w)->events.n; i++) {
        struct event_reader r = {.body =
                                     str_make(row(w)->events.at[i].body, row(w)->events.at[i].n)};
        struct event_line line;

        while (event_next(&r, &scratch, &line))
            if (str_eq(line.type, str_of(type)))
                out = arena_str(&w->arena, json_get(line.payload, str_of(member), &w->arena));
    }
    buf_free(&scratch);
    return out;
}

/* ---- registering and binding ---- */

static void test_registering(void **state_)
{
    static const struct registering first = {"ws", "d", "{\"a\":1}", false, 0, true};

    (void)state_;
    ON_BOTH(w)
    {
        struct world w;
        struct resource r;
        size_t before;

        begin(&w, both_);
        before = log_length(&w);
        r = registered(&w, &first);
        CHECK_STR(log_types_after(&w, before), STR("resource.registered"));
        assert_int_equal(r.registered_seq, before + 1);
        assert_int_equal(r.generation, 0);
        assert_int_equal(r.count, 0);
        assert_false(r.covered || str_present(r.binding) || str_present(r.checkpoint_ref));
        assert_false(r.on_completion); /* counts only with every_steps */
        CHECK_STR(r.configuration, STR("{\"a\":1}"));

        /* Again: the state, and no event. */
        r = registered(&w, &first);
        assert_int_equal(log_length(&w), before + 1);
        assert_int_equal(r.registered_seq, before + 1);
        /* Checkpoints are turned on later: an event, the same registration. */
        r = registered(&w, &(struct registering){"ws", "d", "{\"a\":1}", false, 3, true});
        CHECK_STR(log_types_after(&w, before + 1), STR("resource.registered"));
        assert_int_equal(r.registered_seq, before + 1);
        assert_int_equal(r.every_steps, 3);
        assert_true(r.on_completion);
        /* An enabled policy is kept. */
        r = registered(&w, &(struct registering){"ws", "d", "{\"a\":1}", false, 5, false});
        assert_int_equal(r.every_steps, 3);
        assert_true(r.on_completion);
        assert_int_equal(log_length(&w), before + 2);
        world_free(&w);
    }
}

static void test_registering_otherwise(void **state_)
{
    static const struct registering others[] = {
        {"ws", "other", "{\"a\":1}", false, 0, false},
        {"ws", "d", "{\"a\":2}", false, 0, false},
        {"ws", "d", NULL, false, 0, false},
        {"ws", "d", "{\"a\":1}", true, 0, false},
    };

    (void)state_;
    ON_BOTH(w)
    {
        struct world w;
        size_t before;

        begin(&w, both_);
        (void)registered(&w, &(struct registering){"ws", "d", "{\"a\":1}", false, 0, false});
        before = log_length(&w);
        for (size_t i = 0; i < COUNT(others); i++) {
            struct command cmd = registration(&w, &others[i]);

            decide(&w, &cmd);
            CHECKF(cmd.verdict == VERDICT_REFUSED && cmd.err.code == ERR_CONFLICT, "%zu", i);
        }
        assert_int_equal(log_length(&w), before);
        world_free(&w);
    }
}

static void test_binding(void **state_)
{
    (void)state_;
    ON_BOTH(w)
    {
        struct world w;
        struct command cmd;
        size_t before;

        begin(&w, both_);
        cmd = binding(&w, "ws", "{\"id\":1}");
        decide(&w, &cmd);
        assert_int_equal(cmd.err.code, ERR_VALIDATION); /* not registered */
        (void)state(&w, "ws", false);
        before = log_length(&w);
        for (int again = 0; again < 2; again++) {
            cmd = binding(&w, "ws", "{\"id\":1}");
            decide(&w, &cmd);
            assert_int_equal(cmd.verdict, VERDICT_DONE);
            CHECK_STR(log_types_after(&w, before), STR("resource.bound"));
        }
        cmd = binding(&w, "ws", "{\"id\":2}");
        decide(&w, &cmd);
        assert_int_equal(cmd.verdict, VERDICT_REFUSED);
        assert_int_equal(cmd.err.code, ERR_CONFLICT);
        CHECK_STR(state(&w, "ws", false).binding, STR("{\"id\":1}"));
        world_free(&w);
    }
}

/* ---- touching ---- */

/* Three resources: one whose coverage ends with any live step, one that only declared steps change,
 * one that has no checkpoints. Each row is a step that is told to proceed and then settles. */
static void test_touching(void **state_)
{
    static const struct {
        const char *declares;
        enum step_kind kind;
        bool fails;
        /* Afterwards, of `any`, `own` and `plain`: generation, count; what was due. */
        int any_gen, any_count, own_gen, own_count, plain_gen, plain_count;
        const char *due;
    } rows[] = {
        /* declares kind     fails   any     own     plain  due */
        {NULL, KIND_TOOL_CALL, false, 1, 0, 0, 0, 1, 0, ""},
        {"any", KIND_TOOL_CALL, false, 2, 1, 0, 0, 2, 0, ""}, /* every second one */
        {"any", KIND_LOCAL, true, 3, 2, 0, 0, 3, 0, "any"},
        {"any", KIND_LLM_CALL, false, 4, 2, 0, 0, 4, 0, ""},     /* a model call affects nothing */
        {"own", KIND_TOOL_CALL, false, 5, 2, 1, 1, 5, 0, "own"}, /* every one */
        {"own", KIND_TOOL_CALL, true, 6, 2, 2, 2, 6, 0, "own"},
        {"any", KIND_TOOL_CALL, false, 7, 3, 2, 2, 7, 0, ""},
        {"plain", KIND_TOOL_CALL, false, 8, 3, 2, 2, 8, 1, ""},
        {"any", KIND_TOOL_CALL, false, 9, 4, 2, 2, 9, 1, "any"},
    };

    (void)state_;
    ON_BOTH(w)
    {
        struct world w;

        begin(&w, both_);
        (void)registered(&w, &(struct registering){"any", "d", NULL, false, 2, false});
        (void)registered(&w, &(struct registering){"own", "d", NULL, true, 1, false});
        (void)state(&w, "plain", false);
        for (size_t i = 0; i < COUNT(rows); i++) {
            struct step_answer a =
                submitted(&w, arena_printf(&w.arena, "%zu", i).p, rows[i].declares, rows[i].kind);
            struct buf due = {0};
            struct resource any, own, plain;

            CHECKF(a.decision == DECISION_PROCEED, "row %zu", i);
            for (size_t j = 0; j < a.n_resources; j++)
                if (a.resources[j].due)
                    buf_add(&due, a.resources[j].key);
            CHECKF(str_eq(buf_str(&due), str_of(rows[i].due)), "row %zu: due", i);
            buf_free(&due);
            settled(&w, &a.step_id, rows[i].fails, NULL, 0);
            any = state(&w, "any", false);
            own = state(&w, "own", true);
            plain = state(&w, "plain", false);
            CHECKF(any.generation == rows[i].any_gen && any.count == rows[i].any_count,
                   "row %zu: any", i);
            CHECKF(own.generation == rows[i].own_gen && own.count == rows[i].own_count,
                   "row %zu: own", i);
            CHECKF(plain.generation == rows[i].plain_gen && plain.count == rows[i].plain_count,
                   "row %zu: plain", i);
        }
        world_free(&w);
    }
}

static void test_what_proceeding_says(void **state_)
{
    (void)state_;
    ON_BOTH(w)
    {
        struct world w;
        struct step_answer a;
        struct command cmd;

        begin(&w, both_);
        (void)state(&w, "any", false);
        (void)state(&w, "own", true);
        a = submitted(&w, "1", "own", KIND_TOOL_CALL);
        assert_int_equal(a.n_resources, 2);
        CHECK_STR(last_member(&w, "step.executing", "resources"), STR("[\"own\"]"));
        CHECK_STR(last_member(&w, "step.executing", "generations"), STR("{\"any\":1,\"own\":1}"));
        settled(&w, &a.step_id, false, NULL, 0);
        /* What is not registered is refused, but for a replay. */
        fill(&w, &cmd, "2", "nothing", KIND_TOOL_CALL);
        decide(&w, &cmd);
        assert_int_equal(cmd.verdict, VERDICT_REFUSED);
        assert_int_equal(cmd.err.code, ERR_VALIDATION);
        pass(&w, 200 * INT64_C(1000000));
        assert_true(reclaim(&w));
        claim(&w);
        delivered(&w, true);
        assert_int_equal(submitted(&w, "1", "nothing", KIND_TOOL_CALL).decision, DECISION_REPLAY);
        world_free(&w);
    }
}

/* ---- capturing ---- */

static void test_refused_captures(void **state_)
{
    (void)state_;
    ON_BOTH(w)
    {
        struct world w;
        struct step_answer first, second;
        size_t before;

        begin(&w, both_);
        (void)registered(&w, &(struct registering){"ws", "d", NULL, true, 1, false});
        (void)registered(&w, &(struct registering){"other", "d", NULL, true, 1, false});
        first = submitted(&w, "1", "ws", KIND_TOOL_CALL);
        second = submitted(&w, "2", "ws", KIND_TOOL_CALL);
        before = log_length(&w);
        {
            const struct capture captures[] = {
                {STR_INIT("nowhere"), 1, STR_INIT("ref")},
                {STR_INIT("ws"), 2, STR_INIT("")},
                {STR_INIT("ws"), 2, STR_INIT("ref")}, /* the second for its key */
                {STR_INIT("other"), 7, STR_INIT("ref")},
            };
            static const char *const want[] = {"unknown_resource", "missing_checkpoint_ref",
                                               "duplicate_capture", "stale_generation"};

            for (size_t i = 0; i < COUNT(captures); i++) {
                size_t from = i == 2 ? 1 : i;

                captured(&w, &captures[from], i - from + 1);
                CHECK_STR(last_member(&w, "resource.checkpoint_failed", "error"),
                          arena_printf(&w.arena, "\"%s\"", want[i]));
            }
        }
        assert_int_equal(log_length(&w), before + 5);
        /* While another step is changing it; the orphan of a dead attempt is not. */
        settled(&w, &first.step_id, false, &(struct capture){STR("ws"), 2, STR("ref")}, 1);
        CHECK_STR(last_member(&w, "resource.checkpoint_failed", "error"),
                  STR("\"writers_active\""));
        assert_false(state(&w, "ws", true).covered);
        pass(&w, 200 * INT64_C(1000000));
        assert_true(reclaim(&w));
        claim(&w);
        delivered(&w, true);
        captured(&w, &(struct capture){STR("ws"), 2, STR("ref")}, 1);
        assert_true(state(&w, "ws", true).covered);
        (void)second;
        world_free(&w);
    }
}

/* A step and its captures: [covered_seq, invalidated_seq) of each checkpoint, by the log. */
static void test_coverage(void **state_)
{
    (void)state_;
    ON_BOTH(w)
    {
        struct world w;
        const struct memory_checkpoint *c;
        struct step_answer a;
        int64_t baseline, outcome, executing;

        begin(&w, both_);
        (void)registered(&w, &(struct registering){"ws", "d", NULL, false, 1, true});
        baseline = (int64_t)log_length(&w);
        captured(&w, &(struct capture){STR("ws"), 0, STR("base")}, 1);
        assert_true(state(&w, "ws", false).covered);
        CHECK_STR(last_member(&w, "resource.checkpointed", "covered_seq"),
                  arena_printf(&w.arena, "%lld", (long long)baseline));

        a = submitted(&w, "1", "ws", KIND_TOOL_CALL);
        executing = (int64_t)log_length(&w); /* step.executing is the last of the three */
        assert_false(state(&w, "ws", false).covered);
        settled(&w, &a.step_id, false, &(struct capture){STR("ws"), 1, STR("one")}, 1);
        outcome = (int64_t)log_length(&w) - 1; /* before resource.checkpointed */
        assert_true(state(&w, "ws", false).covered);
        CHECK_STR(state(&w, "ws", false).checkpoint_ref, STR("one"));

        c = row(&w)->checkpoints.at;
        assert_int_equal(row(&w)->checkpoints.n, 2);
        assert_int_equal(c[0].covered_seq, baseline);
        assert_int_equal(c[0].invalidated_seq, executing);
        assert_int_equal(c[1].covered_seq, outcome);
        assert_int_equal(c[1].invalidated_seq, 0);
        /* A model call is a live step too. */
        a = submitted(&w, "2", NULL, KIND_LLM_CALL);
        c = row(&w)->checkpoints.at;
        assert_int_equal(c[1].invalidated_seq, log_length(&w));
        settled(&w, &a.step_id, false, NULL, 0);
        assert_false(state(&w, "ws", false).covered);
        world_free(&w);
    }
}

/* ---- turns ---- */

static void finish(struct world *w)
{
    struct command cmd = {.type = COMMAND_FINISH};

    cmd.in.finish =
        (struct execution_finish){.execution_id = w->id, .agent_id = STR("a"), .lease = lease(w)};
    decide(w, &cmd);
    CHECKF(cmd.verdict == VERDICT_DONE, "%s", cmd.err.message);
}

static void create_turn(struct world *w)
{
    struct command cmd = {.type = COMMAND_CREATE};

    cmd.in.create = (struct execution_creation){
        .agent_id = STR("a"), .created_by = STR("me"), .session = STR("chat")};
    decide(w, &cmd);
    w->id = cmd.out.created.id;
}

static void test_turns_inherit(void **state_)
{
    (void)state_;
    ON_BOTH(w)
    {
        struct world w;
        struct command cmd;
        struct resource r;

        begin(&w, both_);
        create_turn(&w);
        claim(&w);
        delivered(&w, true);
        (void)registered(&w, &(struct registering){"zeta", "d", NULL, true, 2, true});
        (void)registered(&w, &(struct registering){"alpha", "d", NULL, false, 0, false});
        cmd = binding(&w, "zeta", "{\"id\":7}");
        decide(&w, &cmd);
        captured(&w, &(struct capture){STR("zeta"), 0, STR("base")}, 1);
        finish(&w);

        create_turn(&w);
        CHECK_STR(log_types(&w),
                  STR("execution.created resource.registered resource.registered resource.bound "
                      "execution.started dispatch.queued"));
        claim(&w);
        delivered(&w, true);
        r = registered(&w, &(struct registering){"zeta", "d", NULL, true, 0, false});
        assert_int_equal(r.registered_seq, 3);
        assert_int_equal(r.every_steps, 2);
        assert_true(r.on_completion);
        assert_int_equal(r.generation, 0);
        assert_int_equal(r.count, 0);
        assert_false(r.covered || str_present(r.checkpoint_ref));
        CHECK_STR(r.binding, STR("{\"id\":7}"));
        assert_int_equal(state(&w, "alpha", false).registered_seq, 2);
        world_free(&w);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_registering),
        cmocka_unit_test(test_registering_otherwise),
        cmocka_unit_test(test_binding),
        cmocka_unit_test(test_touching),
        cmocka_unit_test(test_what_proceeding_says),
        cmocka_unit_test(test_refused_captures),
        cmocka_unit_test(test_coverage),
        cmocka_unit_test(test_turns_inherit),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
