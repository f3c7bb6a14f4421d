/* SPDX-License-Identifier: Apache-2.0 */
#include "base/log.h"

#include "base/arena.h"
#include "base/json.h"
#include "support/check.h"

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

static int saved_stderr, sink;

static void capture_start(void)
{
    fflush(stderr);
    saved_stderr = dup(STDERR_FILENO);
    sink = memfd_create("log", 0);
    dup2(sink, STDERR_FILENO);
}

static void capture_end(struct buf *out)
{
    char chunk[4096];
    ssize_t n;

    dup2(saved_stderr, STDERR_FILENO);
    close(saved_stderr);
    lseek(sink, 0, SEEK_SET);
    while ((n = read(sink, chunk, sizeof chunk)) > 0)
        buf_add(out, (struct str){chunk, (size_t)n});
    close(sink);
}

/* The line without its time stamp, which must look like one. */
static struct str after_ts(struct str line, size_t before)
{
    static const char SHAPE[] = "dddd-dd-ddTdd:dd:dd.ddddddZ";

    assert_true(line.n > before + sizeof SHAPE);
    for (size_t i = 0; i + 1 < sizeof SHAPE; i++) {
        char c = line.p[before + i];
        assert_true(SHAPE[i] == 'd' ? c >= '0' && c <= '9' : c == SHAPE[i]);
    }
    return str_slice(line, before + sizeof SHAPE - 1, line.n);
}

#define NASTY                                                                                      \
    "a=\"b\\c\"\n\r\t\x1b[31m\x7f\xc2\x85\xe2\x80\xa8\xe2\x80\xae\xff"                             \
    "caf\xc3\xa9"

static const struct {
    struct str value, text, json; /* as it stands in either format */
} VALUES[] = {
    {STR_INIT("plain/value-1.5:x"), STR_INIT("plain/value-1.5:x"),
     STR_INIT("\"plain/value-1.5:x\"")},
    {STR_INIT(""), STR_INIT("\"\""), STR_INIT("\"\"")},
    {STR_INIT("two words"), STR_INIT("\"two words\""), STR_INIT("\"two words\"")},
    {STR_INIT("k=v"), STR_INIT("\"k=v\""), STR_INIT("\"k=v\"")},
    {STR_INIT("\0"), STR_INIT("\"\\u0000\""), STR_INIT("\"\\u0000\"")},
    {STR_INIT("\xed\xa0\x80"), STR_INIT("\"\\ufffd\\ufffd\\ufffd\""),
     STR_INIT("\"\\ufffd\\ufffd\\ufffd\"")},
    {STR_INIT("\u65e5\U0001f600"), STR_INIT("\"\u65e5\U0001f600\""),
     STR_INIT("\"\u65e5\U0001f600\"")},
    {STR_INIT(NASTY),
     STR_INIT("\"a=\\\"b\\\\c\\\"\\n\\u000d\\u0009\\u001b["
              "31m\\u007f\\u0085\\u2028\\u202e\\ufffdcaf\u00e9\""),
     STR_INIT("\"a=\\\"b\\\\c\\\"\\n\\u000d\\u0009\\u001b["
              "31m\\u007f\\u0085\\u2028\\u202e\\ufffdcaf\u00e9\"")},
};

static void writes_one_line_a_fact(void **state)
{
    (void)state;
    for (int json = 0; json <= 1; json++) {
        for (size_t i = 0; i < COUNT(VALUES); i++) {
            struct buf got = {0}, want = {0};
            log_setup(LOG_INFO, json ? LOG_JSON : LOG_TEXT);
            capture_start();
            log_event(LOG_WARN, "dispatch.failed", {"value", VALUES[i].value}, {"absent", STR_NONE},
                      {"n", log_int(-7)});
            capture_end(&got);
            if (json)
                buf_printf(&want,
                           "\",\"level\":\"warn\",\"event\":\"dispatch.failed\",\"value\":%.*s,"
                           "\"n\":\"-7\"}\n",
                           STR_ARG(VALUES[i].json));
            else
                buf_printf(&want, " warn dispatch.failed value=%.*s n=-7\n",
                           STR_ARG(VALUES[i].text));
            CHECK_STR(after_ts(buf_str(&got), json ? strlen("{\"ts\":\"") : 0), buf_str(&want));
            if (json) {
                struct err e;
                CHECKF(json_check(buf_str(&got), &e), "%s", e.message);
            }
            buf_free(&got);
            buf_free(&want);
        }
    }
}

static void never_splits_lines(void **state)
{
    (void)state;
    for (int json = 0; json <= 1; json++) {
        struct buf got = {0};
        log_setup(LOG_DEBUG, json ? LOG_JSON : LOG_TEXT);
        capture_start();
        for (unsigned c = 0; c < 256; c++) { /* each byte by itself and before a tail */
            char v[2] = {(char)c, (char)0x85};
            log_event(LOG_DEBUG, "test.byte", {"a", {v, 1}}, {"b", {v, 2}});
        }
        capture_end(&got);
        size_t lines = 0;
        for (size_t i = 0; i < got.n; i++) {
            lines += got.p[i] == '\n';
            assert_true(got.p[i] == '\n' || ((unsigned char)got.p[i] >= 0x20 && got.p[i] != 0x7f));
        }
        assert_int_equal(lines, 256);
        assert_true(str_is_utf8(buf_str(&got)));
        buf_free(&got);
    }
}

static void cuts_endless_values(void **state)
{
    struct buf value = {0}, got = {0};

    (void)state;
    while (value.n < 100000)
        buf_add(&value, STR("\u20ac"));
    log_setup(LOG_INFO, LOG_TEXT);
    capture_start();
    log_event(LOG_INFO, "test.long", {"v", buf_str(&value)});
    capture_end(&got);
    assert_true(got.n > 4000 && got.n < 4200);
    assert_true(str_is_utf8(buf_str(&got)));
    assert_memory_equal(got.p + got.n - 8, "\u20ac\u2026\"\n", 8);
    buf_free(&got);
    buf_free(&value);
}

static void keeps_to_the_level(void **state)
{
    struct buf got = {0};

    (void)state;
    log_setup(LOG_WARN, LOG_TEXT);
    assert_false(log_enabled(LOG_DEBUG));
    assert_false(log_enabled(LOG_INFO));
    assert_true(log_enabled(LOG_WARN));
    assert_true(log_enabled(LOG_ERROR));
    capture_start();
    log_event(LOG_INFO, "test.quiet", {"a", STR("b")});
    errno = EDOM;
    log_fields(LOG_ERROR, "test.loud", NULL, 0);
    assert_int_equal(errno, EDOM);
    capture_end(&got);
    CHECK_STR(after_ts(buf_str(&got), 0), STR(" error test.loud\n"));
    buf_free(&got);
}

static void limits_and_says_what_it_held_back(void **state)
{
    struct log_limit limit = {0}, other = {0};
    struct buf got = {0};

    (void)state;
    log_setup(LOG_INFO, LOG_TEXT);
    for (int i = 0; i < 3; i++)
        assert_true(log_allowed(&limit, 3));
    for (int i = 0; i < 5; i++)
        assert_false(log_allowed(&limit, 3));
    assert_true(log_allowed(&other, 1)); /* each place counts for itself */
    capture_start();
    log_event(LOG_INFO, "test.other", {"a", STR("b")});
    limit.window_start_us -= INT64_C(60000000); /* a minute later */
    assert_true(log_allowed(&limit, 3));
    log_event(LOG_INFO, "test.again", {"a", STR("b")});
    log_event(LOG_INFO, "test.after", {"a", STR("b")});
    capture_end(&got);
    struct str first = after_ts(buf_str(&got), 0);
    CHECK_STR(str_slice(first, 0, 16), STR(" info test.other"));
    CHECKF(memmem(got.p, got.n, "test.again a=b held_back=5\n", 27) != NULL, "%.*s",
           STR_ARG(buf_str(&got)));
    CHECKF(memmem(got.p, got.n, "test.after a=b\n", 15) != NULL, "%.*s", STR_ARG(buf_str(&got)));
    buf_free(&got);
}

struct ask {
    struct log_limit *limit;
    unsigned allowed;
};

static void *ask_often(void *arg)
{
    struct ask *a = arg;

    for (int i = 0; i < 10000; i++)
        a->allowed += log_allowed(a->limit, 100);
    return NULL;
}

static void limit_holds_across_threads(void **state)
{
    struct log_limit limit = {0};
    struct ask asks[4];
    pthread_t threads[4];
    unsigned allowed = 0;

    (void)state;
    for (size_t i = 0; i < COUNT(asks); i++) {
        asks[i] = (struct ask){&limit, 0};
        assert_int_equal(pthread_create(&threads[i], NULL, ask_often, &asks[i]), 0);
    }
    for (size_t i = 0; i < COUNT(asks); i++) {
        pthread_join(threads[i], NULL);
        allowed += asks[i].allowed;
    }
    assert_int_equal(allowed, 100);
    assert_int_equal(limit.suppressed, 4 * 10000 - 100);
}

static void ints_live_for_eight_calls(void **state)
{
    struct str s[8];

    (void)state;
    for (int i = 0; i < 8; i++)
        s[i] = log_int(i % 2 == 0 ? INT64_MIN + i : i);
    CHECK_STR(s[0], STR("-9223372036854775808"));
    CHECK_STR(s[7], STR("7"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(writes_one_line_a_fact),
        cmocka_unit_test(never_splits_lines),
        cmocka_unit_test(cuts_endless_values),
        cmocka_unit_test(keeps_to_the_level),
        cmocka_unit_test(limits_and_says_what_it_held_back),
        cmocka_unit_test(limit_holds_across_threads),
        cmocka_unit_test(ints_live_for_eight_calls),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
