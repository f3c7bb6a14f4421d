/* SPDX-License-Identifier: Apache-2.0
 * Rows and errors as the wire shows them: absent, never null; nothing of our own faults. */
#include "support/check.h"

#include "api/encode.h"
#include "api/error.h"

static const int64_t MOMENT = INT64_C(1767323045678901); /* 2026-01-02T03:04:05.678901Z */
static const int64_t LATER = INT64_C(1767323046678901);

static struct uuid uuid_of(const char *text)
{
    struct uuid id;

    assert_true(uuid_parse(str_of(text), &id));
    return id;
}

static void check_waiting(const struct execution_view *v, const struct waits *waits, int64_t now_us,
                          const char *want)
{
    struct buf out = {0};
    struct json_writer w = {.out = &out};

    encode_execution(&w, v, waits, now_us);
    CHECK_STR(buf_str(&out), str_of(want));
    buf_free(&out);
}

static void check_execution(const struct execution_view *v, int64_t now_us, const char *want)
{
    const struct waits none = {0};

    check_waiting(v, &none, now_us, want);
}

static struct execution_view execution(void)
{
    return (struct execution_view){
        .id = uuid_of("01a228f4-d8bc-740f-8a2d-88656dd07add"),
        .agent_id = STR("a\"b"),
        .status = STR("running"),
        .created_by = STR("bootstrap"),
        .created_at = MOMENT,
        .updated_at = LATER,
    };
}

#define TIMES                                                                                      \
    ",\"created_by\":\"bootstrap\",\"created_at\":\"2026-01-02T03:04:05.678901Z\","                \
    "\"updated_at\":\"2026-01-02T03:04:06.678901Z\""
#define RUNNING                                                                                    \
    "{\"id\":\"01a228f4-d8bc-740f-8a2d-88656dd07add\",\"agent_id\":\"a\\\"b\",\"status\":"         \
    "\"running\",\"input\":"
#define BLOCKED                                                                                    \
    "{\"id\":\"01a228f4-d8bc-740f-8a2d-88656dd07add\",\"agent_id\":\"a\\\"b\",\"status\":"         \
    "\"blocked\",\"input\":"

static void a_live_execution_says_what_it_waits_for(void **state)
{
    struct execution_view v = execution();

    (void)state;
    check_execution(&v, MOMENT, RUNNING "null" TIMES ",\"waiting_on\":[{\"kind\":\"dispatch\"}]}");
    v.dispatch_status = STR("queued");
    v.dispatch_id = uuid_of("01a228f4-d8bc-7410-987e-0042d4426adf");
    v.due_at = MOMENT;
    check_execution(&v, MOMENT,
                    RUNNING "null" TIMES ",\"waiting_on\":[{\"kind\":\"dispatch\",\"id\":"
                            "\"01a228f4-d8bc-7410-987e-0042d4426adf\"}]}");
    v.due_at = LATER;
    check_execution(
        &v, MOMENT,
        RUNNING
        "null" TIMES
        ",\"waiting_on\":[{\"kind\":\"dispatch\",\"id\":\"01a228f4-d8bc-7410-987e-0042d4426adf\","
        "\"until\":\"2026-01-02T03:04:06.678901Z\"}]}");
    v.dispatch_status = STR("acked");
    check_execution(&v, MOMENT,
                    RUNNING "null" TIMES
                            ",\"waiting_on\":[{\"kind\":\"agent\",\"id\":\"a\\\"b\"}]}");
    v.lease_until = LATER;
    check_execution(&v, MOMENT,
                    RUNNING "null" TIMES ",\"waiting_on\":[{\"kind\":\"agent\",\"id\":\"a\\\"b\","
                            "\"until\":\"2026-01-02T03:04:06.678901Z\"}]}");
}

static void a_rate_limit_is_waited_for_until_its_time(void **state)
{
    struct execution_view v = execution();

    (void)state;
    v.dispatch_status = STR("queued");
    v.dispatch_id = uuid_of("01a228f4-d8bc-7410-987e-0042d4426adf");
    v.due_at = LATER;
    v.parked = true;
    check_execution(&v, MOMENT,
                    RUNNING "null" TIMES ",\"waiting_on\":[{\"kind\":\"rate_limit\",\"until\":"
                            "\"2026-01-02T03:04:06.678901Z\"}]}");
    check_execution(&v, LATER,
                    RUNNING "null" TIMES ",\"waiting_on\":[{\"kind\":\"dispatch\",\"id\":"
                            "\"01a228f4-d8bc-7410-987e-0042d4426adf\"}]}");
}

static void a_pending_one_waits_for_its_session(void **state)
{
    struct execution_view v = execution();

    (void)state;
    v.session = STR("build \"7\"");
    v.parent = uuid_of("01a228f4-d8bc-740f-8a2d-88656dd07adc");
    check_execution(&v, MOMENT,
                    RUNNING "null,\"session\":\"build \\\"7\\\"\",\"parent_execution_id\":"
                            "\"01a228f4-d8bc-740f-8a2d-88656dd07adc\"" TIMES
                            ",\"waiting_on\":[{\"kind\":\"dispatch\"}]}");
    v.status = STR("pending");
    v.parent = (struct uuid){{0}};
    check_execution(&v, MOMENT,
                    "{\"id\":\"01a228f4-d8bc-740f-8a2d-88656dd07add\",\"agent_id\":\"a\\\"b\","
                    "\"status\":\"pending\",\"input\":null,\"session\":\"build \\\"7\\\"\"" TIMES
                    ",\"waiting_on\":[{\"kind\":\"session\",\"id\":\"build \\\"7\\\"\"}]}");
}

static struct approval_view approval(void)
{
    return (struct approval_view){
        .id = uuid_of("01a228f4-d8bc-7410-987e-0042d4426ad0"),
        .execution_id = uuid_of("01a228f4-d8bc-740f-8a2d-88656dd07add"),
        .status = STR("pending"),
        .created_at = MOMENT,
        .timeout_at = LATER,
        .agent_id = STR("a"),
        .kind = STR("tool_call"),
        .target = STR("send"),
        .args = STR("{ \"to\" : 1.0 }"),
    };
}

static void each_pending_decision_is_waited_for(void **state)
{
    struct approval_view pending[] = {approval(), approval()};
    const struct waits waits = {.approvals = pending, .n = COUNT(pending)};
    struct execution_view v = execution();

    (void)state;
    v.status = STR("blocked");
    pending[1].id = uuid_of("01a228f4-d8bc-7410-987e-0042d4426ad1");
    check_waiting(&v, &waits, MOMENT,
                  BLOCKED "null" TIMES ",\"waiting_on\":[{\"kind\":\"approval\",\"id\":"
                          "\"01a228f4-d8bc-7410-987e-0042d4426ad0\",\"until\":"
                          "\"2026-01-02T03:04:06.678901Z\"},{\"kind\":\"approval\",\"id\":"
                          "\"01a228f4-d8bc-7410-987e-0042d4426ad1\",\"until\":"
                          "\"2026-01-02T03:04:06.678901Z\"}]}");
}

#define SUBAGENT(digit)                                                                            \
    "{\"kind\":\"subagent\",\"id\":\"01a228f4-d8bc-7410-987e-0042d4426ad" digit "\"}"

static void each_subagent_is_waited_for(void **state)
{
    struct uuid subagents[] = {uuid_of("01a228f4-d8bc-7410-987e-0042d4426ad0"),
                               uuid_of("01a228f4-d8bc-7410-987e-0042d4426ad1")};
    const struct waits waits = {.subagents = subagents, .n_subagents = COUNT(subagents)};
    struct execution_view v = execution();

    (void)state;
    check_waiting(&v, &waits, MOMENT,
                  RUNNING
                  "null" TIMES
                  ",\"waiting_on\":[{\"kind\":\"dispatch\"}," SUBAGENT("0") "," SUBAGENT("1") "]}");
    v.status = STR("blocked");
    check_waiting(&v, &waits, MOMENT,
                  BLOCKED "null" TIMES ",\"waiting_on\":[" SUBAGENT("0") "," SUBAGENT("1") "]}");
}

#define ZEROES "0000000000000000000000000000000000000000000000000000000000000000"
#define APPROVAL(status)                                                                           \
    "{\"id\":\"01a228f4-d8bc-7410-987e-0042d4426ad0\",\"step_id\":\"" ZEROES                       \
    "\",\"execution_id\":\"01a228f4-d8bc-740f-8a2d-88656dd07add\",\"status\":\"" status "\""
#define ASKED                                                                                      \
    ",\"agent_id\":\"a\",\"kind\":\"tool_call\",\"target\":\"send\",\"args\":{ \"to\" : 1.0 }}"

static void check_approval(const struct approval_view *v, const char *want)
{
    struct buf out = {0};
    struct json_writer w = {.out = &out};

    encode_approval(&w, v);
    CHECK_STR(buf_str(&out), str_of(want));
    buf_free(&out);
}

static void an_approval_shows_what_is_decided(void **state)
{
    struct approval_view v = approval();

    (void)state;
    check_approval(&v, APPROVAL("pending") ",\"timeout_at\":\"2026-01-02T03:04:06.678901Z\","
                                           "\"created_at\":\"2026-01-02T03:04:05.678901Z\"" ASKED);
    v.status = STR("denied");
    v.approvers = STR("[\"alice\",\"bob\"]");
    v.message = STR("look \"twice\"");
    v.decided_by = STR("alice");
    v.asserted_by = STR("bootstrap");
    v.decided_at = LATER;
    v.rationale = STR("no\n");
    check_approval(&v, APPROVAL("denied") ",\"approvers\":[\"alice\",\"bob\"],"
                                          "\"message\":\"look \\\"twice\\\"\","
                                          "\"timeout_at\":\"2026-01-02T03:04:06.678901Z\","
                                          "\"decided_by\":\"alice\",\"asserted_by\":\"bootstrap\","
                                          "\"decided_at\":\"2026-01-02T03:04:06.678901Z\","
                                          "\"rationale\":\"no\\n\","
                                          "\"created_at\":\"2026-01-02T03:04:05.678901Z\"" ASKED);
}

static void an_ended_execution_carries_bytes_as_they_came(void **state)
{
    struct execution_view v = execution();

    (void)state;
    v.status = STR("completed");
    v.input = STR("{ \"a\" : 1.0 }");
    v.output = STR("null");
    v.idempotency_key = STR("k");
    v.on_behalf_of = STR("Zo\u00eb");
    v.deadline_at = LATER;
    check_execution(&v, MOMENT,
                    "{\"id\":\"01a228f4-d8bc-740f-8a2d-88656dd07add\",\"agent_id\":\"a\\\"b\","
                    "\"status\":\"completed\","
                    "\"input\":{ \"a\" : 1.0 "
                    "},\"output\":null,\"idempotency_key\":\"k\",\"created_by\":\"bootstrap\","
                    "\"on_behalf_of\":\"Zo\u00eb\",\"created_at\":\"2026-01-02T03:04:05.678901Z\","
                    "\"updated_at\":\"2026-01-02T03:04:06.678901Z\",\"deadline_at\":\"2026-01-"
                    "02T03:04:06.678901Z\"}");
}

static void says_where_an_execution_comes_from(void **state)
{
    struct execution_view v = execution();

    (void)state;
    v.spawned_by = uuid_of("01a228f4-d8bc-7410-987e-0042d4426ad0");
    v.idempotency_key = STR("k");
    check_execution(&v, MOMENT,
                    RUNNING "null,\"idempotency_key\":\"k\",\"spawned_by\":{\"execution_id\":"
                            "\"01a228f4-d8bc-7410-987e-0042d4426ad0\",\"step_id\":\"" ZEROES
                            "\"}" TIMES ",\"waiting_on\":[{\"kind\":\"dispatch\"}]}");
    v = execution();
    v.forked_from = uuid_of("01a228f4-d8bc-7410-987e-0042d4426ad0");
    v.fork_seq = 17;
    check_execution(&v, MOMENT,
                    RUNNING "null,\"forked_from\":\"01a228f4-d8bc-7410-987e-0042d4426ad0\","
                            "\"fork_seq\":17" TIMES ",\"waiting_on\":[{\"kind\":\"dispatch\"}]}");
    v.restoration = STR("{\"disk\":{\"covered\":false}}");
    check_execution(&v, MOMENT,
                    RUNNING "null,\"forked_from\":\"01a228f4-d8bc-7410-987e-0042d4426ad0\","
                            "\"fork_seq\":17,\"restoration\":{\"disk\":{\"covered\":"
                            "false}}" TIMES ",\"waiting_on\":[{\"kind\":\"dispatch\"}]}");
}

static void resources_and_checkpoints(void **state)
{
    struct resource row = {.key = STR("disk"), .driver_id = STR("d\""), .registered_seq = 4};
    struct checkpoint checkpoint = {
        .resource = STR("disk"), .generation = 3, .checkpoint_ref = STR("r\n"), .covered_seq = 9};
    struct buf out = {0};
    struct json_writer w = {.out = &out};

    (void)state;
    encode_resource(&w, &row);
    row.configuration = STR("{ \"a\" : 1.0 }");
    row.binding = STR("[ ]");
    row.checkpoint_ref = STR("r");
    row.coverage_reuse = row.on_completion = row.covered = true;
    row.every_steps = 5;
    row.generation = 2;
    row.count = 1;
    encode_resource(&w, &row);
    encode_checkpoint(&w, &checkpoint);
    checkpoint.invalidated_seq = 12;
    encode_checkpoint(&w, &checkpoint);
    CHECK_STR(buf_str(&out),
              STR("{\"key\":\"disk\",\"driver_id\":\"d\\\"\",\"coverage_reuse\":false,"
                  "\"every_steps\":0,\"on_completion\":false,\"generation\":0,\"count\":0,"
                  "\"registered_seq\":4,\"covered\":false},"
                  "{\"key\":\"disk\",\"driver_id\":\"d\\\"\",\"configuration\":{ \"a\" : 1.0 },"
                  "\"coverage_reuse\":true,\"every_steps\":5,\"on_completion\":true,"
                  "\"generation\":2,\"count\":1,\"registered_seq\":4,\"binding\":[ ],"
                  "\"checkpoint_ref\":\"r\",\"covered\":true},"
                  "{\"key\":\"disk\",\"generation\":3,\"checkpoint_ref\":\"r\\n\","
                  "\"covered_seq\":9},"
                  "{\"key\":\"disk\",\"generation\":3,\"checkpoint_ref\":\"r\\n\","
                  "\"covered_seq\":9,\"invalidated_seq\":12}"));
    buf_free(&out);
}

static void an_agent_shows_no_secret(void **state)
{
    const struct agent_view v = {
        .id = STR("a"),
        .webhook_url = STR("http://h/"),
        .secret = STR("s3cret"),
        .previous_secret = STR("s3cret too"),
        .lease_timeout_us = 60000000,
        .registered_at = MOMENT,
        .input_schema = STR("{\"type\": \"object\"}"),
    };
    struct buf out = {0};
    struct json_writer w = {.out = &out};

    (void)state;
    encode_agent(&w, &v);
    CHECK_STR(buf_str(&out),
              STR("{\"id\":\"a\",\"webhook_url\":\"http://h/"
                  "\",\"registered_at\":\"2026-01-02T03:04:05.678901Z\","
                  "\"lease_timeout_seconds\":60,\"input_schema\":{\"type\": \"object\"}}"));
    buf_free(&out);
}

static void decisions(void **state)
{
    static struct touched_resource touched[] = {
        {.key = STR_INIT("a"), .generation = 1},
        {.key = STR_INIT("b"), .generation = 7, .due = true},
    };
    static const struct {
        struct step_answer answer;
        const char *want;
    } cases[] = {
        {{.decision = DECISION_PROCEED, .resources = touched, .n_resources = COUNT(touched)},
         "{\"decision\":\"proceed\",\"resources\":[{\"key\":\"a\",\"generation\":1},"
         "{\"key\":\"b\",\"generation\":7,\"due\":true}]}"},
        {{.decision = DECISION_RECORDED}, "{\"decision\":\"recorded\"}"},
        {{.decision = DECISION_EXECUTION_TERMINAL}, "{\"decision\":\"execution_terminal\"}"},
        {{.decision = DECISION_REPLAY, .result = STR_INIT("null")},
         "{\"decision\":\"replay\",\"result\":null}"},
        {{.decision = DECISION_REPLAY, .error = STR_INIT("{ }")},
         "{\"decision\":\"replay\",\"error\":{ }}"},
        {{.decision = DECISION_DENIED, .reason = STR_INIT("no"), .rule_id = STR_INIT("r")},
         "{\"decision\":\"denied\",\"reason\":\"no\",\"rule_id\":\"r\"}"},
        {{.decision = DECISION_RATE_LIMITED,
          .reason = STR_INIT("rate_limit_exceeded"),
          .rule_id = STR_INIT("r")},
         "{\"decision\":\"rate_limited\",\"reason\":\"rate_limit_exceeded\",\"rule_id\":\"r\"}"},
        {{.decision = DECISION_BLOCKED}, "{\"decision\":\"blocked\"}"},
        {{.decision = DECISION_BLOCKED, .has_approval = true},
         "{\"decision\":\"blocked\",\"approval_id\":\"00000000-0000-0000-0000-000000000000\"}"},
        {{.decision = DECISION_PROCEED, .has_step_id = true},
         "{\"decision\":\"proceed\",\"step_id\":"
         "\"0000000000000000000000000000000000000000000000000000000000000000\"}"},
    };

    (void)state;
    for (size_t i = 0; i < COUNT(cases); i++) {
        struct buf out = {0};
        struct json_writer w = {.out = &out};
        encode_decision(&w, &cases[i].answer);
        CHECK_STR(buf_str(&out), str_of(cases[i].want));
        buf_free(&out);
    }
}

static void errors_have_their_status(void **state)
{
    static const struct {
        enum err_code code;
        int status;
    } cases[] = {
        {ERR_VALIDATION, 400},       {ERR_UNAUTHORIZED, 401},       {ERR_FORBIDDEN, 403},
        {ERR_NOT_FOUND, 404},        {ERR_METHOD_NOT_ALLOWED, 405}, {ERR_CONFLICT, 409},
        {ERR_LEASE_SUPERSEDED, 409}, {ERR_EXECUTION_TERMINAL, 409}, {ERR_PAYLOAD_TOO_LARGE, 413},
        {ERR_INTERNAL, 500},         {ERR_STORE_RACE, 500},         {ERR_NONE, 500},
        {ERR_UNAVAILABLE, 503},
    };

    (void)state;
    for (size_t i = 0; i < COUNT(cases); i++)
        CHECKF(error_status(cases[i].code) == cases[i].status, "case %zu", i);
    assert_int_equal(error_of_status(413), ERR_PAYLOAD_TOO_LARGE);
    assert_int_equal(error_of_status(431), ERR_VALIDATION);
    assert_int_equal(error_of_status(505), ERR_VALIDATION);
}

/* A refusal of the HTTP server is fit for anybody, whatever its status. */
static void encodes_refusals(void **state)
{
    struct buf out = {0};

    (void)state;
    error_encode_refusal(503, "the server is stopping", &out);
    CHECK_STR(buf_str(&out),
              STR("{\"code\":\"unavailable\",\"message\":\"the server is stopping\"}"));
    buf_free(&out);
}

static void check_error(enum err_code code, const char *details, const char *want)
{
    struct buf out = {0};
    struct err e;

    err_set(&e, code, "disk I/O error in \"/var/lib/x.db\"");
    strcpy(e.details, details);
    error_encode(&e, &out);
    CHECKF(str_starts(buf_str(&out), str_of(want)), "<%.*s>, want <%s…>", STR_ARG(buf_str(&out)),
           want);
    if (error_status(code) >= 500)
        assert_null(memmem(out.p, out.n, "/var", 4));
    buf_free(&out);
}

static void our_own_faults_stay_ours(void **state)
{
    (void)state;
    check_error(ERR_CONFLICT, "",
                "{\"code\":\"conflict\",\"message\":\"disk I/O error in \\\"/var/lib/x.db\\\"\"}");
    check_error(ERR_INTERNAL, "", "{\"code\":\"internal_error\",\"message\":\"internal error");
    check_error(ERR_STORE_RACE, "", "{\"code\":\"internal_error\",\"message\":\"internal error");
    check_error(ERR_UNAVAILABLE, "", "{\"code\":\"unavailable\",\"message\":\"the store");
    check_error(ERR_CONFLICT, "{\"a\":1}",
                "{\"code\":\"conflict\",\"message\":\"disk I/O error in "
                "\\\"/var/lib/x.db\\\"\",\"details\":{\"a\":1}}");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_live_execution_says_what_it_waits_for),
        cmocka_unit_test(a_rate_limit_is_waited_for_until_its_time),
        cmocka_unit_test(a_pending_one_waits_for_its_session),
        cmocka_unit_test(each_pending_decision_is_waited_for),
        cmocka_unit_test(each_subagent_is_waited_for),
        cmocka_unit_test(says_where_an_execution_comes_from),
        cmocka_unit_test(resources_and_checkpoints),
        cmocka_unit_test(an_approval_shows_what_is_decided),
        cmocka_unit_test(an_ended_execution_carries_bytes_as_they_came),
        cmocka_unit_test(an_agent_shows_no_secret),
        cmocka_unit_test(decisions),
        cmocka_unit_test(errors_have_their_status),
        cmocka_unit_test(our_own_faults_stay_ours),
        cmocka_unit_test(encodes_refusals),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
