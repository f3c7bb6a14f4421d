/* SPDX-License-Identifier: Apache-2.0
 * The cache of agents' secrets: what it keeps, and that it forgets in time. */
#include "support/check.h"

#include "api/secrets.h"
#include "base/clock.h"
#include "kernel/agent.h"
#include "support/store_fixture.h"

static const struct signed_request REQUEST = {
    .method = STR_INIT("GET"),
    .target = STR_INIT("/v0/x"),
    .timestamp = STR_INIT("17"),
    .body = STR_INIT("{}"),
};

/* "v1=…", signed with a secret. */
static struct str signature(const char *secret)
{
    static char header[3 + SIGNATURE_HEX_LEN] = "v1=";

    signature_request(str_of(secret), &REQUEST, header + 3);
    return str_make(header, sizeof(header));
}

static enum secrets_verdict check(struct secrets *s, const char *agent, const char *secret)
{
    return secrets_check(s, str_of(agent), &REQUEST, signature(secret));
}

static void put(struct fixture *f, const char *id, const char *secret)
{
    const struct agent_registration in = {
        .id = str_of(id), .webhook_url = STR("http://h/"), .secret = str_of(secret)};
    struct err e;

    ws_need_agent(&f->ws, in.id, true);
    fixture_load(f);
    assert_int_equal(agent_register(&f->ws, &in, &e), VERDICT_DONE);
    fixture_commit(f);
}

static bool load(struct secrets *s, struct fixture *f, const char *id)
{
    bool found;
    struct err e;

    assert_true(secrets_load(s, str_of(id), f->r, &found, &e));
    return found;
}

static void knows_what_it_loaded(void **state)
{
    struct fixture f;
    struct secrets *s = secrets_new(0);

    (void)state;
    fixture_open(&f, FIXTURE_MEMORY);
    put(&f, "a", "one");
    assert_int_equal(check(s, "a", "one"), SECRETS_UNKNOWN);
    assert_false(secrets_knows(s, STR("a")));
    assert_true(load(s, &f, "a"));
    assert_true(secrets_knows(s, STR("a")));
    assert_int_equal(check(s, "a", "one"), SECRETS_GOOD);
    assert_int_equal(check(s, "a", "two"), SECRETS_BAD);
    assert_int_equal(check(s, "a", ""), SECRETS_BAD);
    assert_int_equal(check(s, "b", "one"), SECRETS_UNKNOWN);
    assert_false(load(s, &f, "b"));
    assert_false(secrets_knows(s, STR("b")));
    secrets_free(s);
    fixture_close(&f);
}

static void takes_the_previous_one_until_its_end(void **state)
{
    struct fixture f;
    struct secrets *s = secrets_new(0);

    (void)state;
    fixture_open(&f, FIXTURE_MEMORY);
    put(&f, "a", "one");
    put(&f, "a", "two");
    assert_true(load(s, &f, "a"));
    assert_int_equal(check(s, "a", "one"), SECRETS_GOOD);
    assert_int_equal(check(s, "a", "two"), SECRETS_GOOD);
    put(&f, "a", "three");
    assert_int_equal(check(s, "a", "three"),
                     SECRETS_BAD); /* not known yet: the caller looks anew */
    assert_true(load(s, &f, "a"));
    assert_int_equal(check(s, "a", "one"), SECRETS_BAD);
    assert_int_equal(check(s, "a", "two"), SECRETS_GOOD);
    assert_int_equal(check(s, "a", "three"), SECRETS_GOOD);

    ws_need_agent(&f.ws, STR("a"), false);
    fixture_load(&f);
    struct agent *agent = ws_agent(&f.ws, STR("a"));
    agent->previous_secret_until = clock_wall_us() - 1;
    ws_touch_agent(&f.ws, agent, AGENT_REGISTRATION);
    fixture_commit(&f);
    assert_true(load(s, &f, "a"));
    assert_int_equal(check(s, "a", "two"), SECRETS_BAD);
    assert_int_equal(check(s, "a", "three"), SECRETS_GOOD);
    secrets_free(s);
    fixture_close(&f);
}

static void forgets(void **state)
{
    struct fixture f;
    struct secrets *s = secrets_new(0);
    struct err e;

    (void)state;
    fixture_open(&f, FIXTURE_MEMORY);
    put(&f, "a", "one");
    assert_true(load(s, &f, "a"));
    secrets_forget(s, STR("a"));
    secrets_forget(s, STR("a"));
    secrets_forget(s, STR("nobody"));
    assert_int_equal(check(s, "a", "one"), SECRETS_UNKNOWN);

    assert_true(load(s, &f, "a"));
    ws_need_agent(&f.ws, STR("a"), true);
    fixture_load(&f);
    assert_int_equal(agent_remove(&f.ws, STR("a"), &e), VERDICT_DONE);
    fixture_commit(&f);
    assert_int_equal(check(s, "a", "one"), SECRETS_GOOD); /* nobody has told it */
    assert_false(load(s, &f, "a"));
    assert_int_equal(check(s, "a", "one"), SECRETS_UNKNOWN);
    secrets_free(s);
    fixture_close(&f);
}

/* A change that comes between the read and the check makes the signature no worse: the caller was
 * right when its row was read. */
static void checks_against_what_it_has_just_read(void **state)
{
    static const struct {
        const char *agent, *secret;
        enum secrets_verdict want;
    } cases[] = {
        {"a", "one", SECRETS_GOOD}, {"a", "two", SECRETS_BAD}, {"b", "one", SECRETS_UNKNOWN}};
    struct fixture f;
    struct secrets *s = secrets_new(0);

    (void)state;
    fixture_open(&f, FIXTURE_MEMORY);
    put(&f, "a", "one");
    for (size_t i = 0; i < COUNT(cases); i++) {
        const struct signed_call call = {.agent_id = str_of(cases[i].agent),
                                         .signature = signature(cases[i].secret),
                                         .request = REQUEST};
        enum secrets_verdict verdict;
        struct err e;

        assert_true(secrets_check_anew(s, f.r, &call, &verdict, &e));
        CHECKF(verdict == cases[i].want, "case %zu", i);
    }
    assert_int_equal(check(s, "a", "one"), SECRETS_GOOD); /* it was kept */
    secrets_free(s);
    fixture_close(&f);
}

/* Where nobody may have told it of a change. */
static void looks_again_after_a_while(void **state)
{
    const struct signed_call call = {
        .agent_id = STR("a"), .signature = signature("one"), .request = REQUEST};
    struct fixture f;
    struct secrets *s = secrets_new(1);
    enum secrets_verdict verdict;
    struct err e;

    (void)state;
    fixture_open(&f, FIXTURE_SQLITE);
    put(&f, "a", "one");
    assert_true(load(s, &f, "a"));
    for (int64_t read = clock_mono_us(); clock_mono_us() <= read;)
        ;
    assert_int_equal(check(s, "a", "one"), SECRETS_UNKNOWN);
    assert_true(secrets_check_anew(s, f.r, &call, &verdict, &e));
    assert_int_equal(verdict, SECRETS_GOOD);

    fixture_sql(&f, "ALTER TABLE agents RENAME TO away");
    assert_true(secrets_check_anew(s, f.r, &call, &verdict, &e));
    assert_int_equal(verdict, SECRETS_GOOD);
    secrets_forget(s, STR("a"));
    assert_false(secrets_check_anew(s, f.r, &call, &verdict, &e));
    secrets_free(s);
    fixture_close(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(knows_what_it_loaded),
        cmocka_unit_test(takes_the_previous_one_until_its_end),
        cmocka_unit_test(forgets),
        cmocka_unit_test(checks_against_what_it_has_just_read),
        cmocka_unit_test(looks_again_after_a_while),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
