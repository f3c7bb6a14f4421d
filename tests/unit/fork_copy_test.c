/* SPDX-License-Identifier: Apache-2.0
 * What a fork copies, and what it is restored from, by logs that can be checked by hand
 * (docs/forks.md). */
#include "support/check.h"

#include "kernel/event.h"
#include "kernel/fork_copy.h"

#include <stdlib.h>

/* One line of the source's log an event, in the order of their sequences. `@1` stands for the id of
 * step 1. */
struct source {
    const char *const *lines; /* NULL at the end */
    const struct resource *resources;
    size_t n_resources;
    const struct checkpoint *checkpoints;
    size_t n_checkpoints;
    int steps; /* numbered from 1: tool calls of target `t`, with the number as arguments */
    const char *affects; /* of them all; NULL: nothing */
    const struct inherited_checkpoint *inherited;
    size_t n_inherited;
};

struct copied {
    struct fork_copy *copy;
    struct fork_copied result;
    struct buf types; /* of the copied events, joined by spaces */
    size_t n_steps;
    struct step_copy steps[8];
};

static const struct uuid SOURCE = {{1}}, FORK = {{2}};

static struct call numbered(int n)
{
    char text[8];
    struct call c = {STR("tool_call"), STR("t"), {{0}}};
    struct err e;

    snprintf(text, sizeof(text), "%d", n);
    assert_true(args_hash(str_of(text), &c.args_hash, &e));
    return c;
}

static struct hash id_of(const struct uuid *execution, int n)
{
    struct call c = numbered(n);
    struct hash id;

    step_id(execution, &c, 0, &id);
    return id;
}

/* The line with its ids, as the kernel writes it. */
static void write_line(struct buf *out, const char *line, const struct uuid *execution)
{
    const char *at = strchr(line, '@');

    if (at == NULL) {
        buf_add_z(out, line);
    } else {
        struct hash id = id_of(execution, at[1] - '0');

        buf_add(out, str_make(line, (size_t)(at - line)));
        buf_add(out, STR("\"step_id\":\""));
        buf_add_hex(out, id.b, sizeof(id.b));
        buf_add(out, STR("\",\"step_type\":\"tool_call\",\"target\":\"t\""));
        buf_add_z(out, at + 2);
    }
    buf_add_byte(out, '\n');
}

static void feed_events(struct copied *c, const struct source *s, bool survey)
{
    for (int64_t i = 0; s->lines[i] != NULL; i++) {
        struct buf body = {0}, copy = {0};
        int64_t first, n;

        write_line(&body, s->lines[i], &SOURCE);
        if (survey) {
            fork_copy_survey(c->copy, i + 1, buf_str(&body));
        } else {
            n = fork_copy_events(c->copy, i + 1, buf_str(&body), &first, &copy);
            if (n > 0) {
                struct buf want = {0};

                write_line(&want, s->lines[i], &FORK);
                CHECK_STR(buf_str(&copy), buf_str(&want));
                buf_free(&want);
                buf_printf(&c->types, "%s%.*s", c->types.n > 0 ? " " : "",
                           (int)strcspn(s->lines[i], "\t"), s->lines[i]);
            }
        }
        buf_free(&body);
        buf_free(&copy);
    }
}

static struct copied fork_at(const struct source *s, int64_t at_seq)
{
    struct copied c = {.copy = fork_copy_new(&FORK, at_seq)};

    feed_events(&c, s, true);
    for (int n = 1; n <= s->steps; n++) {
        struct call call = numbered(n);
        struct step step = {.key = 100 + n,
                            .id = id_of(&SOURCE, n),
                            .kind = KIND_TOOL_CALL,
                            .target = call.target,
                            .args_hash = call.args_hash,
                            .status = STEP_SUCCEEDED,
                            .affects = s->affects == NULL ? STR_NONE : str_of(s->affects),
                            .usage = {10, 1}};

        if (fork_copy_step(c.copy, &step, &c.steps[c.n_steps]))
            c.n_steps++;
    }
    feed_events(&c, s, false);
    for (size_t i = 0; i < s->n_checkpoints; i++)
        fork_copy_checkpoint(c.copy, &s->checkpoints[i]);
    fork_copy_resources(c.copy, s->resources, s->n_resources, s->inherited, s->n_inherited);
    c.result = fork_copy_result(c.copy);
    return c;
}

static void done(struct copied *c)
{
    fork_copy_free(c->copy);
    buf_free(&c->types);
}

/* ---- steps ---- */

static const char *const STEPS_LOG[] = {
    "execution.created\t\"execution_id\":\"x\"", /* 1 */
    "execution.started\t\"execution_id\":\"x\"",
    "step.proposed\t@1", /* 3 */
    "step.allowed\t@1,\"rule_id\":\"permissive\"",
    "step.executing\t@1", /* 5 */
    "step.proposed\t@2",
    "step.awaiting_approval\t@2,\"rule_id\":\"gate\"", /* 7 */
    "approval.requested\t\"approval_id\":\"y\",\"step_id\":\"z\"",
    "step.succeeded\t@1", /* 9 */
    "step.denied\t@2,\"error\":{\"reason\":\"no\"}",
    "step.proposed\t@3", /* 11 */
    "step.executing\t@3",
    "step.executing\t@3", /* 13: told again, by another attempt */
    "step.failed\t@3,\"error\":{\"message\":\"boom\"}",
    NULL,
};

static void test_settled_steps(void **state)
{
    static const struct source source = {.lines = STEPS_LOG, .steps = 3};
    static const struct {
        int64_t at;
        size_t steps;
        const char *types;
    } rows[] = {
        {1, 0, ""},
        {8, 0, ""}, /* nothing has settled: what is under way begins anew */
        {9, 1, "step.proposed step.allowed step.executing step.succeeded"},
        {10, 2,
         "step.proposed step.allowed step.executing step.proposed step.awaiting_approval "
         "step.succeeded step.denied"},
        {13, 2,
         "step.proposed step.allowed step.executing step.proposed step.awaiting_approval "
         "step.succeeded step.denied"},
        {14, 3,
         "step.proposed step.allowed step.executing step.proposed step.awaiting_approval "
         "step.succeeded step.denied step.proposed step.executing step.executing step.failed"},
    };

    (void)state;
    for (size_t i = 0; i < COUNT(rows); i++) {
        struct copied c = fork_at(&source, rows[i].at);

        CHECK_STR(buf_str(&c.types), str_of(rows[i].types));
        CHECKF(c.n_steps == rows[i].steps, "at %lld", (long long)rows[i].at);
        CHECKF(c.result.tokens == 11 * (int64_t)rows[i].steps, "at %lld", (long long)rows[i].at);
        for (size_t j = 0; j < c.n_steps; j++) {
            struct hash want = id_of(&FORK, (int)(c.steps[j].payload_key - 100));

            CHECKF(hash_eq(&c.steps[j].id, &want), "at %lld", (long long)rows[i].at);
        }
        assert_false(str_present(c.result.restoration));
        done(&c);
    }
}

/* ---- resources ---- */

static const char *const RESOURCE_LOG[] = {
    "execution.created\t\"execution_id\":\"x\"", /* 1 */
    "execution.started\t\"execution_id\":\"x\"", /* 2 */
    "resource.registered\t\"key\":\"ws\",\"driver_id\":\"d\",\"coverage_reuse\":false,"
    "\"every_steps\":1,\"on_completion\":true",                             /* 3 → 3 */
    "resource.bound\t\"key\":\"ws\",\"binding\":7",                         /* 4 */
    "resource.checkpointed\t\"key\":\"ws\",\"generation\":0",               /* 5, covers 4 */
    "step.proposed\t@1",                                                    /* 6 */
    "step.executing\t@1,\"resources\":[\"ws\"],\"generations\":{\"ws\":1}", /* 7 */
    "step.succeeded\t@1",                                                   /* 8 */
    "resource.checkpointed\t\"key\":\"ws\",\"generation\":1",               /* 9, covers 8 */
    "step.proposed\t@2",                                                    /* 10 */
    "step.executing\t@2,\"resources\":[\"ws\"],\"generations\":{\"ws\":2}", /* 11 */
    "step.succeeded\t@2", /* 12: its capture failed */
    NULL,
};

static void test_restoring(void **state)
{
    static const struct resource ws = {
        .key = STR_INIT("ws"), .driver_id = STR_INIT("d"), .registered_seq = 3};
    static const struct checkpoint checkpoints[] = {
        {.resource = STR_INIT("ws"),
         .checkpoint_ref = STR_INIT("base"),
         .covered_seq = 4,
         .invalidated_seq = 7},
        {.resource = STR_INIT("ws"),
         .generation = 1,
         .checkpoint_ref = STR_INIT("one"),
         .covered_seq = 8,
         .invalidated_seq = 11},
    };
    static const struct source source = {.lines = RESOURCE_LOG,
                                         .resources = &ws,
                                         .n_resources = 1,
                                         .checkpoints = checkpoints,
                                         .n_checkpoints = 2,
                                         .steps = 2,
                                         .affects = "[\"ws\"]"};
    static const struct {
        int64_t at;
        const char *restoration;
        int64_t generation, count;
        /* The newest copied checkpoint, in the fork's sequences: registered is 3, then the copied
         * events of settled steps. -1: where the fork starts; 0: open. */
        size_t checkpoints;
        int64_t covered, invalidated;
    } rows[] = {
        {2, "", 0, 0, 0, 0, 0},
        /* Registered, nothing captured: the initial environment. */
        {3, "{\"ws\":{\"covered\":false}}", 1, 0, 0, 0, 0},
        /* The baseline covers from the event that it was captured behind. */
        {4, "{\"ws\":{\"checkpoint_ref\":\"base\",\"checkpoint_seq\":4,\"covered\":true}}", 0, 0, 1,
         3, 0},
        {6, "{\"ws\":{\"checkpoint_ref\":\"base\",\"checkpoint_seq\":4,\"covered\":true}}", 0, 0, 1,
         3, 0},
        /* The step changes it; it has not settled, so it is not copied. */
        {7, "{\"ws\":{\"checkpoint_ref\":\"base\",\"checkpoint_seq\":4,\"covered\":false}}", 1, 0,
         1, 3, -1},
        /* Its outcome is what its capture covers. Copied: 3, 6→4, 7→5, 8→6. */
        {8, "{\"ws\":{\"checkpoint_ref\":\"one\",\"checkpoint_seq\":8,\"covered\":true}}", 1, 1, 2,
         6, 0},
        {10, "{\"ws\":{\"checkpoint_ref\":\"one\",\"checkpoint_seq\":8,\"covered\":true}}", 1, 1, 2,
         6, 0},
        {11, "{\"ws\":{\"checkpoint_ref\":\"one\",\"checkpoint_seq\":8,\"covered\":false}}", 2, 1,
         2, 6, -1},
        /* Settled, and copied: 10→7, 11→8, 12→9. The restored state lacks what it did. */
        {12, "{\"ws\":{\"checkpoint_ref\":\"one\",\"checkpoint_seq\":8,\"covered\":false}}", 3, 2,
         2, 6, 8},
    };

    (void)state;
    for (size_t i = 0; i < COUNT(rows); i++) {
        struct copied c = fork_at(&source, rows[i].at);
        const struct fork_copied *r = &c.result;

        CHECK_STR(str_present(r->restoration) ? r->restoration : STR(""),
                  str_of(rows[i].restoration));
        assert_int_equal(r->n_checkpoints, rows[i].checkpoints);
        if (r->n_resources > 0) {
            CHECKF(r->resources[0].generation == rows[i].generation &&
                       r->resources[0].count == rows[i].count &&
                       r->resources[0].registered_seq == 3 && r->resources[0].every_steps == 1 &&
                       r->resources[0].on_completion,
                   "at %lld: generation %lld, count %lld", (long long)rows[i].at,
                   (long long)r->resources[0].generation, (long long)r->resources[0].count);
        }
        if (r->n_checkpoints > 0) {
            const struct checkpoint *newest = &r->checkpoints[r->n_checkpoints - 1];

            CHECKF(newest->covered_seq == rows[i].covered &&
                       newest->invalidated_seq == rows[i].invalidated,
                   "at %lld: [%lld, %lld)", (long long)rows[i].at, (long long)newest->covered_seq,
                   (long long)newest->invalidated_seq);
        }
        done(&c);
    }
}

/* Captured between two events that are not copied: both would cover the same one. What gave the
 * newer one its generation is a step that has not settled, and is not copied either. */
static void test_newest_on_one_event(void **state)
{
    static const struct resource ws = {
        .key = STR_INIT("ws"), .driver_id = STR_INIT("d"), .registered_seq = 3};
    static const struct checkpoint checkpoints[] = {
        {.resource = STR_INIT("ws"), .checkpoint_ref = STR_INIT("old"), .covered_seq = 3},
        {.resource = STR_INIT("ws"),
         .generation = 2,
         .checkpoint_ref = STR_INIT("new"),
         .covered_seq = 5},
    };
    static const struct source source = {.lines = RESOURCE_LOG,
                                         .resources = &ws,
                                         .n_resources = 1,
                                         .checkpoints = checkpoints,
                                         .n_checkpoints = 2,
                                         .steps = 2};
    struct copied c = fork_at(&source, 6);

    (void)state;
    assert_int_equal(c.result.n_checkpoints, 1);
    CHECK_STR(c.result.checkpoints[0].checkpoint_ref, STR("new"));
    assert_int_equal(c.result.checkpoints[0].covered_seq, 3);
    assert_int_equal(c.result.resources[0].generation, 2);
    done(&c);
}

/* ---- what a turn inherited ---- */

static const char *const TURN_LOG[] = {
    "execution.created\t\"execution_id\":\"x\"", /* 1 */
    "resource.registered\t\"key\":\"ws\",\"driver_id\":\"d\",\"coverage_reuse\":false,"
    "\"every_steps\":0,\"on_completion\":false", /* 2 */
    "execution.started\t\"execution_id\":\"x\"", /* 3 */
    NULL,
};

static void test_restored_from_turns(void **state)
{
    static const struct uuid turn = {{7}};
    static const struct inherited_checkpoint newest[] = {{.resource = STR_INIT("other")},
                                                         {.resource = STR_INIT("ws"),
                                                          .checkpoint_ref = STR_INIT("old"),
                                                          .covered_seq = 9,
                                                          .execution_id = {{7}}}};
    static const struct {
        struct resource row;
        size_t n_inherited;
        bool wants;
        const char *restoration, *ref; /* NULL: none */
    } rows[] = {
        {{.inherited = true},
         2,
         true,
         "{\"ws\":{\"checkpoint_ref\":\"old\",\"checkpoint_seq\":9,\"covered\":false,"
         "\"checkpoint_execution_id\":\"07000000-0000-0000-0000-000000000000\"}}",
         "old"},
        /* None of the turns before captured it: its initial environment. */
        {{.inherited = true}, 1, true, "{\"ws\":{\"covered\":false}}", NULL},
        {{.inherited = false}, 0, false, "{\"ws\":{\"covered\":false}}", NULL},
        /* The source is a fork, which was restored from that itself. */
        {{.restored_ref = STR_INIT("old"), .restored_from = {{7}}},
         0,
         false,
         "{\"ws\":{\"checkpoint_ref\":\"old\",\"covered\":false,"
         "\"checkpoint_execution_id\":\"07000000-0000-0000-0000-000000000000\"}}",
         "old"},
    };

    (void)state;
    for (size_t i = 0; i < COUNT(rows); i++) {
        struct resource ws = rows[i].row;
        struct source source = {.lines = TURN_LOG,
                                .resources = &ws,
                                .n_resources = 1,
                                .inherited = newest,
                                .n_inherited = rows[i].n_inherited};
        struct copied c;
        const struct resource *begun;

        ws.key = STR("ws");
        ws.driver_id = STR("d");
        ws.registered_seq = 2;
        ws.generation = 3; /* of now; nothing that is copied says so */
        c = fork_at(&source, 3);
        CHECK_STR(c.result.restoration, str_of(rows[i].restoration));
        assert_int_equal(c.result.n_resources, 1);
        assert_true(fork_copy_wants_inherited(c.copy, &ws) == rows[i].wants);
        begun = &c.result.resources[0];
        assert_int_equal(begun->generation, 1);
        assert_int_equal(begun->registered_seq, 3);
        assert_false(begun->covered || begun->inherited || str_present(begun->binding));
        CHECKF(str_present(begun->restored_ref) == (rows[i].ref != NULL), "case %zu", i);
        if (rows[i].ref != NULL) {
            CHECK_STR(begun->checkpoint_ref, str_of(rows[i].ref));
            CHECK_STR(begun->restored_ref, str_of(rows[i].ref));
            assert_true(uuid_eq(&begun->restored_from, &turn));
        }
        done(&c);
    }
}

/* ---- policies ---- */

static const char *const POLICY_LOG[] = {
    "execution.created\t\"execution_id\":\"x\"", /* 1 */
    "execution.started\t\"execution_id\":\"x\"", /* 2 */
    "dispatch.queued\t\"dispatch_id\":\"x\"",    /* 3 */
    "resource.registered\t\"key\":\"ws\",\"driver_id\":\"d\",\"coverage_reuse\":false,"
    "\"every_steps\":0,\"on_completion\":false",    /* 4 → 3 */
    "resource.bound\t\"key\":\"ws\",\"binding\":7", /* 5 */
    "resource.registered\t\"key\":\"ws\",\"driver_id\":\"d\",\"coverage_reuse\":false,"
    "\"every_steps\":2,\"on_completion\":true", /* 6 → 4: checkpoints from now on */
    NULL,
};

/* It has the policy that was in force at the fork point, and was registered when it first was. */
static void test_policy_by_then(void **state)
{
    static const struct resource ws = {.key = STR_INIT("ws"),
                                       .driver_id = STR_INIT("d"),
                                       .every_steps = 2,
                                       .on_completion = true,
                                       .binding = STR_INIT("7"),
                                       .registered_seq = 4};
    static const struct source source = {.lines = POLICY_LOG, .resources = &ws, .n_resources = 1};

    (void)state;
    for (int64_t at = 4; at <= 6; at++) {
        struct copied c = fork_at(&source, at);
        const struct resource *begun = &c.result.resources[0];

        assert_int_equal(c.result.n_resources, 1);
        assert_int_equal(begun->every_steps, at < 6 ? 0 : 2);
        assert_true(begun->on_completion == (at == 6));
        assert_int_equal(begun->registered_seq, 3);
        assert_int_equal(c.result.next_seq, at < 6 ? 4 : 5);
        assert_false(str_present(begun->binding));
        done(&c);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_settled_steps),       cmocka_unit_test(test_restoring),
        cmocka_unit_test(test_newest_on_one_event), cmocka_unit_test(test_restored_from_turns),
        cmocka_unit_test(test_policy_by_then),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
