/* SPDX-License-Identifier: Apache-2.0
 * The configuration: for every setting, flag over environment over default, and what is refused. */
#include "support/check.h"

#include <stdlib.h>
#include <unistd.h>

#include "base/arena.h"
#include "cli/config.h"
#include "cli/settings.h"

enum { MAX_ARGS = 8 };

#define S(n) (INT64_C(1000000) * (n))

static int clear_environment(void **state)
{
    size_t n = 0;
    const struct setting *table = settings_table(&n);

    (void)state;
    for (size_t i = 0; i < n; i++) {
        if (table[i].env != NULL)
            unsetenv(table[i].env);
    }
    return 0;
}

/* The configuration's strings live to the process's end, which is longer than each test needs them.
 */
const char *__lsan_default_suppressions(void);
const char *__lsan_default_suppressions(void)
{
    return "leak:xstrdup\n";
}

/* A process's arguments: writable, and there to the end. */
static char *argument(const char *text)
{
    static struct arena forever;

    return (char *)(uintptr_t)arena_str(&forever, str_of(text)).p;
}

static bool load(bool dev, struct config *out, struct err *e, const char *const *args)
{
    char *argv[MAX_ARGS];
    int argc = 0;

    for (; args[argc] != NULL; argc++)
        argv[argc] = argument(args[argc]);
    *e = (struct err){0};
    return config_load(dev, argc, argv, out, e);
}
#define LOAD(dev, out, e, ...) load((dev), (out), (e), (const char *const[]){__VA_ARGS__, NULL})
#define SERVER_ARGS "--db-url=sqlite:///x.db", "--bearer-token=t"

/* ---- every setting, by the table ---- */

/* Two valid values of each kind that differ from the defaults, as text and as what a member then
 * holds. */
static const char *sample(const struct setting *s, bool second)
{
    switch (s->kind) {
    case SETTING_TEXT:
    case SETTING_SECRET:
        return second ? "second" : "first";
    case SETTING_ADDRESS:
        return second ? "[::1]:2" : "127.0.0.1:1";
    case SETTING_DB_URL:
        return second ? "postgres://h/d" : "sqlite:///first.db";
    case SETTING_HTTP_URL:
        return second ? "https://h/judge" : "http://127.0.0.1:9/";
    case SETTING_COUNT:
        return second ? "1000" : "999"; /* within all limits but max_body_bytes' */
    case SETTING_DURATION:
    case SETTING_DURATION_OR_NONE:
        return second ? "7s" : "1h1m";
    case SETTING_LOG_LEVEL:
        return second ? "error" : "debug";
    case SETTING_LOG_FORMAT:
        return second ? "text" : "json";
    case SETTING_ON_OFF:
        return second ? "on" : "off";
    case SETTING_SWITCH:
        return NULL;
    }
    return NULL;
}

static void check_holds(const struct config *c, const struct setting *s, bool second)
{
    const char *name = s->flag != NULL ? s->flag : s->env, *text = NULL;
    const void *at = (const char *)c + s->offset;
    int64_t number = 0;
    bool flag = false;

    switch (s->kind) {
    case SETTING_TEXT:
    case SETTING_SECRET:
    case SETTING_ADDRESS:
    case SETTING_DB_URL:
    case SETTING_HTTP_URL:
        memcpy(&text, at, sizeof text);
        CHECKF(text != NULL && strcmp(text, sample(s, second)) == 0, "%s is %s", name, text);
        return;
    case SETTING_COUNT:
        memcpy(&number, at, sizeof number);
        CHECKF(number == (second ? 1000 : 999), "%s is %lld", name, (long long)number);
        return;
    case SETTING_DURATION:
    case SETTING_DURATION_OR_NONE:
        memcpy(&number, at, sizeof number);
        CHECKF(number == (second ? S(7) : S(3660)), "%s is %lld", name, (long long)number);
        return;
    case SETTING_LOG_LEVEL:
        CHECKF(c->log_level == (second ? LOG_ERROR : LOG_DEBUG), "%s", name);
        return;
    case SETTING_LOG_FORMAT:
        CHECKF(c->log_format == (second ? LOG_TEXT : LOG_JSON), "%s", name);
        return;
    case SETTING_ON_OFF:
    case SETTING_SWITCH:
        memcpy(&flag, at, sizeof flag);
        CHECKF(flag == second, "%s", name);
        return;
    }
}

/* Loads with the setting's flag or variable, and what a server needs beside it. */
static bool load_with(const struct setting *s, bool dev, const char *flag_value, struct config *c,
                      struct err *e)
{
    const char *args[MAX_ARGS] = {NULL};
    char flag[128];
    size_t n = 0;

    if (!dev && s->kind != SETTING_DB_URL)
        args[n++] = "--db-url=sqlite:///x.db";
    if (!dev && (s->kind != SETTING_SECRET || s->flag == NULL)) /* it is no token of the server's */
        args[n++] = "--bearer-token=t";
    if (flag_value != NULL) {
        snprintf(flag, sizeof flag, "--%s=%s", s->flag, flag_value);
        args[n++] = flag;
    }
    return load(dev, c, e, args);
}

static bool is_sampled(const struct setting *s)
{
    return s->kind != SETTING_SWITCH && !(s->kind == SETTING_SECRET && s->env == NULL);
}

static void flag_wins_over_environment(void **state)
{
    size_t n = 0;
    const struct setting *table = settings_table(&n);
    struct config c;
    struct err e;

    for (size_t i = 0; i < n; i++) {
        const struct setting *s = &table[i];
        bool dev = (s->modes & SETTING_IN_SERVER) == 0;

        clear_environment(state);
        if (!is_sampled(s) || (s->kind == SETTING_COUNT && s->min > 999))
            continue;
        if (s->env != NULL) {
            setenv(s->env, sample(s, false), 1);
            CHECKF(load_with(s, dev, NULL, &c, &e), "%s: %s", s->env, e.message);
            check_holds(&c, s, false);
        }
        if (s->flag != NULL) {
            CHECKF(load_with(s, dev, sample(s, true), &c, &e), "%s: %s", s->flag, e.message);
            check_holds(&c, s, true);
        }
    }
}

/* A value that parses as nothing at all is refused, and the message names where it came from. */
static void bad_values_name_their_source(void **state)
{
    size_t n = 0;
    const struct setting *table = settings_table(&n);
    struct config c;
    struct err e;

    for (size_t i = 0; i < n; i++) {
        const struct setting *s = &table[i];
        bool dev = (s->modes & SETTING_IN_SERVER) == 0;

        clear_environment(state);
        if (!is_sampled(s) || s->kind == SETTING_TEXT)
            continue;
        if (s->flag != NULL) {
            CHECKF(!load_with(s, dev, "no good", &c, &e), "--%s", s->flag);
            CHECKF(strstr(e.message, s->flag) != NULL, "--%s: %s", s->flag, e.message);
            CHECKF(e.code == ERR_VALIDATION, "--%s", s->flag);
        }
        if (s->env == NULL)
            continue;
        setenv(s->env, "no good", 1);
        CHECKF(!load_with(s, dev, NULL, &c, &e), "%s", s->env);
        CHECKF(strstr(e.message, s->env) != NULL, "%s: %s", s->env, e.message);
        CHECKF(strstr(e.message, "expected") != NULL, "%s: %s", s->env, e.message);
    }
}

/* ---- defaults, written out once more: a changed default must be meant ---- */

static void server_defaults(void **state)
{
    struct config c;
    struct err e;

    (void)state;
    assert_true(LOAD(false, &c, &e, SERVER_ARGS));
    assert_false(c.dev);
    assert_string_equal(c.listen_addr, ":8080");
    assert_string_equal(c.db_url, "sqlite:///x.db");
    assert_string_equal(c.bearer_token, "t");
    assert_string_equal(c.leader_lock_key, "rebuno_scheduler_leader");
    assert_null(c.manifest_path);
    assert_int_equal(c.db_max_conns, 0);
    assert_int_equal(c.log_level, LOG_INFO);
    assert_int_equal(c.log_format, LOG_TEXT);
    assert_int_equal(c.dispatch_concurrency, 64);
    assert_int_equal(c.deadline_check_interval_us, S(30));
    assert_int_equal(c.cleanup_interval_us, S(600));
    assert_int_equal(c.retention_us, S(720 * 3600));
    assert_int_equal(c.max_body_bytes, 10485760);
    assert_true(c.webhook_private);
    assert_int_equal(c.kernel.dispatch_max_attempts, 5);
    assert_false(c.kernel.dispatch_max_attempts_by_hand);
    assert_int_equal(c.kernel.dispatch_timeout_us, S(30));
    assert_int_equal(c.kernel.lease_timeout_us, S(120));
    assert_int_equal(c.kernel.deadline_timeout_us, 0);
    assert_int_equal(c.kernel.approval_timeout_us, S(15 * 60));
    assert_false(c.kernel.judge_configured);
    assert_null(c.judge_url);
    assert_null(c.judge_api_key);
}

static void dev_defaults(void **state)
{
    struct config c;
    struct err e;

    (void)state;
    assert_true(load(true, &c, &e, (const char *const[]){NULL}));
    assert_true(c.dev);
    assert_string_equal(c.listen_addr, "127.0.0.1:8080");
    assert_string_equal(c.db_path, "./.rebuno/dev.db");
    assert_false(c.memory);
    assert_null(c.db_url);
    assert_null(c.bearer_token);
    assert_int_equal(c.retention_us, 0);
    assert_int_equal(c.kernel.lease_timeout_us, S(120));
}

static void dev_has_its_own_flags(void **state)
{
    struct config c;
    struct err e;

    (void)state;
    assert_true(LOAD(true, &c, &e, "--memory", "--bearer-token", "x"));
    assert_true(c.memory);
    assert_string_equal(c.bearer_token, "x");
    assert_true(LOAD(true, &c, &e, "--db", "/tmp/a.db"));
    assert_string_equal(c.db_path, "/tmp/a.db");
    assert_false(LOAD(true, &c, &e, "--db", "/tmp/a.db", "--memory"));
    CHECK_STR(str_of(e.message), STR("--db and --memory exclude each other"));
    assert_false(LOAD(true, &c, &e, "--db-url", "sqlite:///x"));
    CHECK_STR(str_of(e.message), STR("unknown flag --db-url; did you mean --db?"));
    assert_false(LOAD(false, &c, &e, SERVER_ARGS, "--memory"));
    setenv("REBUNO_DB_URL", "not even a URL", 1); /* the server's, so dev does not look at it */
    assert_true(LOAD(true, &c, &e, "--memory"));
}

static void server_says_what_it_needs(void **state)
{
    struct config c;
    struct err e;

    (void)state;
    assert_false(load(false, &c, &e, (const char *const[]){NULL}));
    CHECKF(strstr(e.message, "--db-url") && strstr(e.message, "REBUNO_DB_URL") &&
               strstr(e.message, "--bearer-token") && strstr(e.message, "REBUNO_BEARER_TOKEN"),
           "%s", e.message);
    assert_false(LOAD(false, &c, &e, "--bearer-token=t"));
    CHECKF(strstr(e.message, "a database") && !strstr(e.message, "a token"), "%s", e.message);
    assert_false(LOAD(false, &c, &e, "--db-url=sqlite:///x"));
    CHECKF(strstr(e.message, "a token") && !strstr(e.message, "a database"), "%s", e.message);
}

static void connections_that_do_not_suffice(void **state)
{
    static const char URL[] = "--db-url=postgresql://u@h/d";
    struct config c;
    struct err e;

    (void)state;
    assert_true(LOAD(false, &c, &e, "--bearer-token=t", URL, "--db-max-conns=11"));
    assert_int_equal(config_max_connections(&c), 11);
    assert_false(LOAD(false, &c, &e, "--bearer-token=t", URL, "--db-max-conns=10"));
    CHECK_STR(str_of(e.message),
              STR("--db-max-conns: a kernel on PostgreSQL needs at least 11 connections, not 10"));
    setenv("REBUNO_DB_MAX_CONNS", "1", 1);
    assert_false(LOAD(false, &c, &e, "--bearer-token=t", "--db-url=postgres://u@h/d"));
    CHECK_STR(str_of(e.message),
              STR("REBUNO_DB_MAX_CONNS: a kernel on PostgreSQL needs at least 11 "
                  "connections, not 1"));
    assert_true(LOAD(false, &c, &e, SERVER_ARGS)); /* SQLite */
    assert_int_equal(config_max_connections(&c), 0);
}

static void refused(void **state)
{
    static const struct {
        const char *arg, *message;
    } cases[] = {
        {"--log-level=loud", "--log-level: expected debug, info, warn or error, not \"loud\""},
        {"--db-max-conns=0", "--db-max-conns: expected a whole number from 1 to 1000, not \"0\""},
        {"--db-max-conns=1e3",
         "--db-max-conns: expected a whole number from 1 to 1000, not \"1e3\""},
        {"--listen-addr=8080",
         "--listen-addr: expected an address such as :8080, 127.0.0.1:8080 or "
         "[::1]:8080, not \"8080\""},
        {"--listen-addr=::1:80",
         "--listen-addr: expected an address such as :8080, 127.0.0.1:8080 or "
         "[::1]:8080, not \"::1:80\""},
        {"--listen-addr=:65536",
         "--listen-addr: expected an address such as :8080, 127.0.0.1:8080 or "
         "[::1]:8080, not \":65536\""},
        {"--config=", "--config is empty"},
        {"--config", "--config needs a value: --config MANIFEST"},
        {"--otel-endpoint=x", "unknown flag --otel-endpoint"},
        {"rebuno.yaml", "unexpected argument \"rebuno.yaml\""},
    };
    struct config c;
    struct err e;

    (void)state;
    for (size_t i = 0; i < COUNT(cases); i++) {
        CHECKF(!LOAD(false, &c, &e, SERVER_ARGS, cases[i].arg), "%s", cases[i].arg);
        CHECK_STR(str_of(e.message), str_of(cases[i].message));
    }
    assert_false(LOAD(false, &c, &e, "--bearer-token=t", "--db-url=mysql://user:hunter2@h/d"));
    assert_null(strstr(e.message, "hunter2"));
    assert_false(LOAD(true, &c, &e, "--bearer-token", "hunter2 hunter2"));
    assert_null(strstr(e.message, "hunter2"));
}

static void special_values(void **state)
{
    struct config c;
    struct err e;

    (void)state;
    setenv("REBUNO_RETENTION", "none", 1);
    setenv("REBUNO_DEADLINE_TIMEOUT", "0", 1);
    setenv("REBUNO_DISPATCH_MAX_ATTEMPTS", "5", 1);
    setenv("REBUNO_LOG_LEVEL", "", 1); /* empty is not set */
    assert_true(LOAD(false, &c, &e, SERVER_ARGS));
    assert_int_equal(c.retention_us, 0);
    assert_int_equal(c.kernel.deadline_timeout_us, 0);
    assert_true(c.kernel.dispatch_max_attempts_by_hand);
    assert_int_equal(c.log_level, LOG_INFO);
    setenv("REBUNO_DISPATCH_TIMEOUT", "0", 1);
    assert_false(LOAD(false, &c, &e, SERVER_ARGS));
    CHECKF(strstr(e.message, "REBUNO_DISPATCH_TIMEOUT") != NULL, "%s", e.message);
}

static void judge_urls(void **state)
{
    static const struct {
        const char *url;
        bool ok;
    } cases[] = {
        {"http://localhost:9000/judge", true},
        {"https://user:hunter2@judge.example/v1?x=y", true},
        {"http://[::1]:9000", true},
        {"localhost:9000", false},
        {"ftp://judge.example/", false},
        {"http://", false},
        {"http:///hunter2", false},
        {"http://:80/hunter2", false},
        {"http://?hunter2", false},
        {"http://judge.example/hunter2 x", false},
        {"http://judge.example/hunter2\n", false},
    };
    struct config c;
    struct err e;

    (void)state;
    for (size_t i = 0; i < COUNT(cases); i++) {
        setenv("REBUNO_JUDGE_URL", cases[i].url, 1);
        CHECKF(LOAD(false, &c, &e, SERVER_ARGS) == cases[i].ok, "%s", cases[i].url);
        if (cases[i].ok) {
            assert_true(c.kernel.judge_configured);
            continue;
        }
        CHECK_STR(str_of(e.message), STR("REBUNO_JUDGE_URL: expected an http:// or https:// URL"));
    }
}

/* ---- secrets ---- */

static void secrets_leave_the_arguments(void **state)
{
    char *argv[] = {argument("--bearer-token=hunter2"), argument("--db-url"),
                    argument("postgres://u:hunter3@h/d")};
    struct config c;
    struct err e;

    (void)state;
    assert_true(config_load(false, 3, argv, &c, &e));
    assert_string_equal(argv[0], "--bearer-token=*******");
    assert_string_equal(argv[2], "************************");
    assert_string_equal(c.bearer_token, "hunter2");
    assert_string_equal(c.db_url, "postgres://u:hunter3@h/d");
}

static void token_from_a_file(void **state)
{
    char path[] = "/tmp/rebuno-token-XXXXXX", flag[64];
    int fd = mkstemp(path);
    struct config c;
    struct err e;

    (void)state;
    assert_true(fd >= 0);
    snprintf(flag, sizeof flag, "--bearer-token-file=%s", path);
    assert_int_equal(write(fd, "from-file\r\n", 11), 11);
    setenv("REBUNO_BEARER_TOKEN", "from-env", 1);
    CHECKF(LOAD(false, &c, &e, "--db-url=sqlite:///x", flag), "%s", e.message);
    assert_string_equal(c.bearer_token, "from-file");
    assert_false(LOAD(false, &c, &e, "--db-url=sqlite:///x", flag, "--bearer-token=t"));
    CHECK_STR(str_of(e.message), STR("--bearer-token and --bearer-token-file exclude each other"));
    assert_int_equal(write(fd, "two lines\n", 10), 10);
    assert_false(LOAD(true, &c, &e, flag));
    CHECKF(strstr(e.message, path) != NULL, "%s", e.message);
    assert_int_equal(ftruncate(fd, 0), 0);
    assert_false(LOAD(true, &c, &e, flag));
    close(fd);
    unlink(path);
    assert_false(LOAD(true, &c, &e, flag));
    CHECKF(strstr(e.message, "No such file") != NULL, "%s", e.message);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(flag_wins_over_environment, clear_environment),
        cmocka_unit_test_setup(bad_values_name_their_source, clear_environment),
        cmocka_unit_test_setup(server_defaults, clear_environment),
        cmocka_unit_test_setup(dev_defaults, clear_environment),
        cmocka_unit_test_setup(dev_has_its_own_flags, clear_environment),
        cmocka_unit_test_setup(server_says_what_it_needs, clear_environment),
        cmocka_unit_test_setup(connections_that_do_not_suffice, clear_environment),
        cmocka_unit_test_setup(refused, clear_environment),
        cmocka_unit_test_setup(special_values, clear_environment),
        cmocka_unit_test_setup(judge_urls, clear_environment),
        cmocka_unit_test_setup(secrets_leave_the_arguments, clear_environment),
        cmocka_unit_test_setup(token_from_a_file, clear_environment),
    };

    return cmocka_run_group_tests_name("config", tests, NULL, NULL);
}
