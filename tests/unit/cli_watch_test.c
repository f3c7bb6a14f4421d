/* SPDX-License-Identifier: Apache-2.0
 * Server-sent events out of bytes, and lines out of events. */
#include "support/check.h"

#include <stdlib.h>
#include <time.h>

#include "cli/event_put.h"
#include "cli/sse.h"

/* ---- server-sent events ---- */

static bool collect(void *ctx, struct str id, struct str data)
{
    struct buf *out = ctx;

    buf_printf(out, "<%.*s|%.*s>", STR_ARG(id), STR_ARG(data));
    return !str_eq(data, STR("stop"));
}

static void reads_streams_cut_anywhere(void **state)
{
    static const struct {
        struct str stream, events;
    } cases[] = {
        {STR_INIT("id: 1\ndata: a\n\nid:2\ndata:b\n\n"), STR_INIT("<1|a><2|b>")},
        {STR_INIT(": keep-alive\n\ndata: a\n\n:\n\n"), STR_INIT("<|a>")},
        {STR_INIT("data: one\ndata:  two\ndata\n\n"), STR_INIT("<|one\n two\n>")},
        {STR_INIT("id: 7\r\ndata: a\r\n\r\ndata: b\r\n\r\n"), STR_INIT("<7|a><7|b>")},
        {STR_INIT("id: 7\rdata: a\r\rdata: b\r\r"), STR_INIT("<7|a><7|b>")},
        {STR_INIT("event: x\nretry: 5\nid: 3\n\ndata: \n\n"), STR_INIT("<3|>")},
        {STR_INIT("data: whole\n\ndata: begun"), STR_INIT("<|whole>")},
    };

    (void)state;
    for (size_t i = 0; i < COUNT(cases); i++) {
        for (size_t step = 1; step <= cases[i].stream.n; step++) {
            struct buf got = {0};
            struct sse sse = {.on_event = collect, .ctx = &got};

            for (size_t at = 0; at < cases[i].stream.n; at += step) {
                size_t to = at + step < cases[i].stream.n ? at + step : cases[i].stream.n;
                assert_true(sse_feed(&sse, str_slice(cases[i].stream, at, to)));
            }
            CHECK_STR(buf_str(&got), cases[i].events);
            buf_free(&got);
            sse_free(&sse);
        }
    }
}

static void stops_and_restarts(void **state)
{
    struct buf got = {0};
    struct sse sse = {.on_event = collect, .ctx = &got};

    (void)state;
    assert_false(sse_feed(&sse, STR("data: stop\n\ndata: more\n\n")));
    CHECK_STR(buf_str(&got), STR("<|stop>"));
    buf_clear(&got);
    sse_restart(&sse);
    assert_true(sse_feed(&sse, STR("id: 4\ndata: half")));
    sse_restart(&sse); /* the connection broke within an event */
    assert_true(sse_feed(&sse, STR("data: whole\n\n")));
    CHECK_STR(buf_str(&got), STR("<4|whole>"));
    buf_free(&got);
    sse_free(&sse);
}

/* ---- lines ---- */

#define AT(seconds) "\"occurred_at\":\"2026-01-02T03:04:" seconds "Z\""
#define STEP(id) "\"step_id\":\"" id "\",\"step_type\":\"tool_call\",\"target\":\"search\""

static const char *const EVENTS[] = {
    "{\"event_seq\":1,\"type\":\"execution.created\"," AT(
        "05") ",\"payload\":{\"status\":\"pending\","
              "\"created_by\":\"bootstrap\",\"on_behalf_of\":\"zo\\u001b[1m\"}}",
    "{\"event_seq\":2,\"type\":\"dispatch.failed\"," AT("06") ",\"payload\":{\"attempt\":1}}",
    "{\"event_seq\":3,\"type\":\"dispatch.acked\"," AT("07") ",\"payload\":{\"attempt\":2}}",
    "{\"event_seq\":4,\"type\":\"step.executing\"," AT("08") ",\"payload\":{" STEP("a") "}}",
    "{\"event_seq\":5,\"type\":\"step.succeeded\"," AT("09.5") ",\"payload\":{" STEP(
        "a") ",\"usage\":"
             "{\"input_tokens\":12,\"output_tokens\":3}}}",
    "{\"event_seq\":6,\"type\":\"step.executing\"," AT("10") ",\"payload\":{" STEP("b") "}}",
    "{\"event_seq\":7,\"type\":\"dispatch.acked\"," AT("20") ",\"payload\":{\"attempt\":3}}",
    "{\"event_seq\":8,\"type\":\"step.executing\"," AT("21") ",\"payload\":{" STEP("b") "}}",
    "{\"event_seq\":9,\"type\":\"step.failed\"," AT("22") ",\"payload\":{" STEP(
        "b") ",\"error\":"
             "{\"message\":\"no\\nluck\"}}}",
    "{\"event_seq\":10,\"type\":\"step.denied\"," AT("23") ",\"payload\":{" STEP(
        "c") ",\"rule_id\":"
             "\"no-rm\",\"error\":{\"reason\":\"policy\"}}}",
    "{\"event_seq\":11,\"type\":\"comet.seen\"," AT("24") ",\"payload\":{\"tail\": [1, 2]}}",
    "{\"event_seq\":12,\"type\":\"execution.failed\"," AT(
        "35") ",\"payload\":{\"status\":\"failed\","
              "\"reason\":\"agent_error: x\"}}",
};

static const char LINES[] =
    "   1  03:04:05.000  execution.created       by bootstrap on behalf of zo\\x1b[1m\n"
    "   2  03:04:06.000  dispatch.failed         attempt 1  the webhook did not take it; "
    "the kernel's log says why\n"
    "   3  03:04:07.000  dispatch.acked          attempt 2  the agent has it\n"
    "   4  03:04:08.000  step.executing          tool_call search\n"
    "   5  03:04:09.500  step.succeeded          tool_call search  in 1.5s, 12 tokens in, 3 out\n"
    "   6  03:04:10.000  step.executing          tool_call search\n"
    "   7  03:04:20.000  dispatch.acked          attempt 3  the agent starts over; 1 recorded step "
    "will "
    "replay\n"
    "   8  03:04:21.000  step.executing          tool_call search  executed again (run 2)\n"
    "   9  03:04:22.000  step.failed             tool_call search  in 1.0s: no\\nluck\n"
    "  10  03:04:23.000  step.denied             tool_call search  policy, by rule no-rm\n"
    "  11  03:04:24.000  comet.seen              {\"tail\":[1,2]}\n"
    "  12  03:04:35.000  execution.failed        agent_error: x\n";

static void tells_events(void **state)
{
    struct event_log log = {0};
    struct cli c = {0};
    char *text = NULL;
    size_t size = 0;

    (void)state;
    setenv("TZ", "UTC", 1);
    tzset();
    c.out = open_memstream(&text, &size);
    for (size_t i = 0; i < COUNT(EVENTS); i++) {
        struct arena a = {0};
        struct event event;

        CHECKF(event_read(str_of(EVENTS[i]), &a, &event), "%s", EVENTS[i]);
        assert_int_equal(event.seq, i + 1);
        assert_false(log.ended);
        event_print(&log, &event, &c);
        arena_free(&a);
    }
    fclose(c.out);
    CHECK_STR(str_make(text, size), str_of(LINES));
    assert_true(log.ended);
    assert_false(log.completed);
    CHECK_STR(buf_str(&log.status), STR("failed"));
    CHECK_STR(buf_str(&log.outcome), STR("agent_error: x"));
    assert_int_equal(log.took_us, 30 * 1000000);
    free(text);
    event_log_free(&log);
}

/* Lines that a terminal of this width is given, and of each event the payload below if wanted. */
static void check_on_terminal(size_t width, const char *mark, bool with_payload,
                              const char *const *events, const char *expected)
{
    struct event_log log = {0};
    struct cli c = {.width = width};
    char *text = NULL;
    size_t size = 0;

    setenv("TZ", "UTC", 1);
    tzset();
    c.out = open_memstream(&text, &size);
    for (; *events != NULL; events++) {
        struct arena a = {0};
        struct event event;

        CHECKF(event_read(str_of(*events), &a, &event), "%s", *events);
        event.mark = mark;
        event_print(&log, &event, &c);
        if (with_payload)
            event_put_payload(&c, &event);
        arena_free(&a);
    }
    fclose(c.out);
    CHECK_STR(str_make(text, size), str_of(expected));
    free(text);
    event_log_free(&log);
}

static void fits_a_terminal(void **state)
{
    static const char *const events[] = {
        "{\"event_seq\":1,\"type\":\"step.executing\"," AT("59") ",\"payload\":{" STEP("a") "}}",
        "{\"event_seq\":2,\"type\":\"dispatch.failed\"," AT("59") ",\"payload\":{\"attempt\":1}}",
        "{\"event_seq\":3,\"type\":\"execution.failed\",\"occurred_at\":\"2026-01-03T00:00:00Z\","
        "\"payload\":{\"reason\":\"agent_error: 日本\"}}",
        NULL};

    (void)state;
    check_on_terminal(74, NULL, false, events,
                      "      2026-01-02\n"
                      "   1  03:04:59.000  step.executing          tool_call search\n"
                      "   2  03:04:59.000  dispatch.failed         attempt 1\n"
                      "                                            the webhook did not take it; \n"
                      "                                            the kernel's log says why\n"
                      "      2026-01-03\n"
                      "   3  00:00:00.000  execution.failed        agent_error: 日本\n");
    check_on_terminal(60, NULL, false, events,
                      "      2026-01-02\n"
                      "   1  03:04:59.000  step.executing          tool_call search\n"
                      "   2  03:04:59.000  dispatch.failed\n"
                      "      attempt 1\n"
                      "      the webhook did not take it; the kernel's log says why\n"
                      "      2026-01-03\n"
                      "   3  00:00:00.000  execution.failed\n"
                      "      agent_error: 日本\n");
    check_on_terminal(
        78, "* ", true, events,
        "      2026-01-02\n"
        "   1  * 03:04:59.000  step.executing          tool_call search\n"
        "      {\"step_id\":\"a\", \"step_type\":\"tool_call\", \"target\":\"search\"}\n"
        "   2  * 03:04:59.000  dispatch.failed         attempt 1\n"
        "                                              the webhook did not take it; \n"
        "                                              the kernel's log says why\n"
        "      {\"attempt\":1}\n"
        "      2026-01-03\n"
        "   3  * 00:00:00.000  execution.failed        agent_error: 日本\n"
        "      {\"reason\":\"agent_error: 日本\"}\n");
}

static void leaves_an_empty_payload_out(void **state)
{
    static const char *const events[] = {
        "{\"event_seq\":1,\"type\":\"execution.resumed\",\"payload\":{ }}", NULL};

    (void)state;
    check_on_terminal(80, NULL, true, events, "   1                execution.resumed\n");
}

/* ---- approvals, limits and sessions ---- */

#define APPROVAL(n, rest) "\"approval_id\":\"0199c2a4-7d1" n "-7c4e-8abc-0123456789ab\"," rest
#define ONE APPROVAL("0", "\"step_id\":\"a\"")
#define TWO APPROVAL("1", "\"step_id\":\"b\"")
#define EVENT(seq, type, payload)                                                                  \
    "{\"event_seq\":" seq ",\"type\":\"" type "\"," AT("05") ",\"payload\":{" payload "}}"

static const struct {
    const char *event, *line;
    size_t open; /* approvals that nobody has decided after it */
} GATE_EVENTS[] = {
    {EVENT("1", "step.awaiting_approval", STEP("a") ",\"rule_id\":\"gate\""),
     "step.awaiting_approval  tool_call search  by rule gate", 0},
    {EVENT("2", "approval.requested", ONE),
     "approval.requested      tool_call search  approval 0199c2a4-7d10-7c4e", 1},
    {EVENT("3", "execution.blocked", "\"status\":\"blocked\""),
     "execution.blocked       waits for a person", 1},
    {EVENT("4", "approval.requested", TWO), "approval.requested      approval 0199c2a4-7d11-7c4e",
     2},
    {EVENT("5", "approval.granted", ONE ",\"decided_by\":\"ann\""),
     "approval.granted        tool_call search  by ann", 1},
    {EVENT("6", "step.allowed", STEP("a")), "step.allowed            tool_call search", 1},
    {EVENT("7", "approval.denied",
           TWO ",\"decided_by\":\"bob\",\"rationale\":\"no\\u001b[m\\nway\""),
     "approval.denied         by bob: no\\x1b[m\\nway", 0},
    {EVENT("8", "approval.expired", TWO), "approval.expired        nobody decided in time", 0},
    {EVENT("9", "execution.resumed", "\"status\":\"running\""), "execution.resumed", 0},
    {EVENT("10", "execution.blocked", "\"reason\":\"awaiting_steps\""),
     "execution.blocked       waits for its subagents", 0},
    {EVENT("11", "step.rate_limited",
           STEP("c") ",\"rule_id\":\"slow\",\"until\":\"2026-01-02T03:05:00.5Z\""),
     "step.rate_limited       tool_call search  waits until 03:05:00.500, by rule slow", 0},
    {EVENT("12", "step.rate_limited", STEP("c") ",\"rule_id\":\"slow\""),
     "step.rate_limited       tool_call search  refused, by rule slow", 0},
    {EVENT("13", "execution.cancelled", "\"reason\":\"client_cancelled\""),
     "execution.cancelled     client_cancelled", 0},
    {EVENT("14", "approval.expired", ONE), "approval.expired        tool_call search", 0},
    {EVENT("15", "execution.created", "\"created_by\":\"ann\",\"session\":\"ada-7\""),
     "execution.created       by ann  in session ada-7", 0},
    {EVENT("16", "execution.started",
           "\"session\":\"ada-7\","
           "\"parent_execution_id\":\"0199c2a4-7d10-7c4e-8abc-0123456789ab\""),
     "execution.started       continues 0199c2a4-7d10-7c4e", 0},
};

/* ---- forks, resources and subagents ---- */

#define SOURCE "\"0199c2a4-7d10-7c4e-8abc-0123456789ab\""
#define KEY "\"key\":\"workspace\""

static const struct {
    const char *event, *line;
} RESOURCE_EVENTS[] = {
    {EVENT("1", "execution.created",
           "\"created_by\":\"ann\",\"spawned_by\":{\"execution_id\":" SOURCE ",\"step_id\":\"a\"}"),
     "execution.created       by ann  for a step of 0199c2a4-7d10-7c4e"},
    {EVENT("2", "execution.forked",
           "\"source_execution_id\":" SOURCE ",\"fork_seq\":41,\"policy_override\":false"),
     "execution.forked        from 0199c2a4-7d10-7c4e at event 41"},
    {EVENT("3", "execution.forked",
           "\"source_execution_id\":" SOURCE ",\"fork_seq\":41,\"policy_override\":true,"
           "\"restoration\":{\"w\":{\"covered\":false}}"),
     "execution.forked        from 0199c2a4-7d10-7c4e at event 41  under a policy of its own; w "
     "starts from its initial environment, not covered there"},
    {EVENT("4", "resource.registered",
           KEY ",\"driver_id\":\"local.v1\",\"coverage_reuse\":false,\"every_steps\":5,"
               "\"on_completion\":true"),
     "resource.registered     workspace  local.v1, captured after every 5 steps that may change "
     "it, "
     "and at the end"},
    {EVENT("5", "resource.registered",
           KEY ",\"driver_id\":\"local.v1\",\"every_steps\":0,\"on_completion\":false"),
     "resource.registered     workspace  local.v1, no checkpoints"},
    {EVENT("6", "resource.initialized", KEY ",\"generation\":1,\"checkpoint_ref\":\"snap-1\""),
     "resource.initialized    workspace  from checkpoint snap-1"},
    {EVENT("7", "resource.initialized", KEY ",\"generation\":1"),
     "resource.initialized    workspace  from its initial environment"},
    {EVENT("8", "resource.bound", KEY ",\"binding\":{\"dir\": \"/tmp/x\"}"),
     "resource.bound          workspace  {\"dir\":\"/tmp/x\"}"},
    {EVENT("9", "step.executing", STEP("a") ",\"resources\":[\"workspace\",\"db\"]"),
     "step.executing          tool_call search  may change workspace, db"},
    {EVENT("10", "step.executing", STEP("a") ",\"resources\":[\"workspace\"]"),
     "step.executing          tool_call search  executed again (run 2), may change workspace"},
    {EVENT("11", "resource.checkpointed",
           KEY ",\"generation\":2,\"checkpoint_ref\":\"snap-2\",\"covered_seq\":10"),
     "resource.checkpointed   workspace  snap-2, covers from event 10"},
    {EVENT("12", "resource.checkpoint_failed",
           KEY ",\"generation\":1,\"error\":\"stale_generation\""),
     "resource.checkpoint_failed  workspace  stale_generation"},
    {EVENT("13", "resource.painted", KEY), "resource.painted        workspace  "
                                           "{\"key\":\"workspace\"}"},
};

static size_t count_open(const struct event_log *log)
{
    size_t n = 0;

    for (const struct event_approval *at = log->open; at != NULL; at = at->next)
        n++;
    return n;
}

static void tells_gates_and_sessions(void **state)
{
    struct event_log log = {0};

    (void)state;
    setenv("TZ", "UTC", 1);
    tzset();
    for (size_t i = 0; i < COUNT(GATE_EVENTS); i++) {
        struct cli c = {0};
        struct arena a = {0};
        struct event event;
        char *text = NULL, want[256];
        size_t size = 0;

        c.out = open_memstream(&text, &size);
        CHECKF(event_read(str_of(GATE_EVENTS[i].event), &a, &event), "%zu", i);
        event_print(&log, &event, &c);
        fclose(c.out);
        snprintf(want, sizeof want, "%4zu  03:04:05.000  %s\n", i + 1, GATE_EVENTS[i].line);
        CHECK_STR(str_make(text, size), str_of(want));
        CHECKF(count_open(&log) == GATE_EVENTS[i].open, "event %zu", i + 1);
        free(text);
        arena_free(&a);
    }
    event_log_free(&log);
}

static void tells_forks_and_resources(void **state)
{
    struct event_log log = {0};

    (void)state;
    for (size_t i = 0; i < COUNT(RESOURCE_EVENTS); i++) {
        struct cli c = {0};
        struct arena a = {0};
        struct event event;
        char *text = NULL, want[256];
        size_t size = 0;

        c.out = open_memstream(&text, &size);
        CHECKF(event_read(str_of(RESOURCE_EVENTS[i].event), &a, &event), "%zu", i);
        event_print(&log, &event, &c);
        fclose(c.out);
        snprintf(want, sizeof want, "%4zu  03:04:05.000  %s\n", i + 1, RESOURCE_EVENTS[i].line);
        CHECK_STR(str_make(text, size), str_of(want));
        free(text);
        arena_free(&a);
    }
    event_log_free(&log);
}

static void keeps_the_output(void **state)
{
    static const struct {
        const char *event;
        struct str outcome;
    } cases[] = {
        {"{\"event_seq\":1,\"type\":\"execution.completed\",\"payload\":{\"output\": {\"a\": 1} }}",
         STR_INIT("{\"a\": 1}")},
        {"{\"event_seq\":1,\"type\":\"execution.completed\",\"payload\":{\"output\":null}}",
         STR_INIT("null")},
    };

    (void)state;
    for (size_t i = 0; i < COUNT(cases); i++) {
        struct event_log log = {0};
        struct arena a = {0};
        struct event event;

        assert_true(event_read(str_of(cases[i].event), &a, &event));
        event_print(&log, &event, NULL);
        assert_true(log.ended && log.completed);
        CHECK_STR(buf_str(&log.outcome), cases[i].outcome);
        event_log_free(&log);
        arena_free(&a);
    }
}

static void refuses_what_is_no_event(void **state)
{
    static const char *const cases[] = {"",   "nonsense",          "[]",
                                        "{}", "{\"event_seq\":1}", "{\"type\":3}"};
    struct arena a = {0};
    struct event event;

    (void)state;
    for (size_t i = 0; i < COUNT(cases); i++)
        CHECKF(!event_read(str_of(cases[i]), &a, &event), "%s", cases[i]);
    arena_free(&a);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(reads_streams_cut_anywhere),
        cmocka_unit_test(stops_and_restarts),
        cmocka_unit_test(tells_events),
        cmocka_unit_test(fits_a_terminal),
        cmocka_unit_test(leaves_an_empty_payload_out),
        cmocka_unit_test(tells_gates_and_sessions),
        cmocka_unit_test(tells_forks_and_resources),
        cmocka_unit_test(keeps_the_output),
        cmocka_unit_test(refuses_what_is_no_event),
    };

    return cmocka_run_group_tests_name("cli_watch", tests, NULL, NULL);
}
