/* SPDX-License-Identifier: Apache-2.0
 * What requests may say of resources: keys, lists of them, reports of captures. */
#include "support/check.h"

#include "api/resource_fields.h"
#include "base/json.h"

static void knows_keys(void **state)
{
    static const struct {
        struct str key;
        bool good;
    } cases[] = {
        {STR_INIT("a"), true},     {STR_INIT("Z"), true},       {STR_INIT("0"), true},
        {STR_INIT("_.-"), true},   {STR_INIT("..."), true},     {STR_INIT(".a"), true},
        {STR_INIT("a."), true},    {STR_INIT(""), false},       {STR_INIT("."), false},
        {STR_INIT(".."), false},   {STR_INIT("a/b"), false},    {STR_INIT("a b"), false},
        {STR_INIT("a\0b"), false}, {STR_INIT("\u00e9"), false}, {STR_INIT("a%"), false},
        {STR_INIT("@"), false},    {STR_INIT("["), false},      {STR_INIT("`"), false},
        {STR_INIT("{"), false},    {STR_INIT("/"), false},      {STR_INIT(":"), false},
        {STR_INIT(","), false},    {STR_INIT("a\n"), false},
    };
    char longest[RESOURCE_KEY_MAX + 1];

    (void)state;
    for (size_t i = 0; i < COUNT(cases); i++)
        CHECKF(is_resource_key(cases[i].key) == cases[i].good, "case %zu", i);
    memset(longest, 'a', sizeof(longest));
    assert_true(is_resource_key(str_make(longest, RESOURCE_KEY_MAX)));
    assert_false(is_resource_key(str_make(longest, RESOURCE_KEY_MAX + 1)));
}

/* A list of so many entries of this text, or of this with a number in it. */
static void repeat(struct buf *out, const char *before, bool numbered, const char *after, int n)
{
    buf_clear(out);
    for (int i = 0; i < n; i++) {
        buf_add_byte(out, i == 0 ? '[' : ',');
        buf_add_z(out, before);
        if (numbered)
            buf_add_int(out, i);
        buf_add_z(out, after);
    }
    buf_add_byte(out, ']');
}

static void check_keys(struct str raw, bool good, size_t want)
{
    struct arena a = {0};
    const struct str *keys = NULL;
    size_t n = 99;
    struct err e;

    CHECKF(field_resource_keys("resources", raw, &a, &keys, &n, &e) == good, "%.40s", raw.p);
    if (good)
        assert_int_equal(n, want);
    else
        assert_non_null(strstr(e.message, "\"resources\""));
    for (size_t i = 0; good && i < n; i++)
        assert_true(is_resource_key(keys[i]));
    arena_free(&a);
}

static void reads_lists_of_keys(void **state)
{
    struct buf text = {0};

    (void)state;
    check_keys(STR_NONE, true, 0);
    check_keys(STR("[]"), true, 0);
    check_keys(STR("[ \"a\" , \"\\u0061\",\"b\",\"a\" ]"), true, 2);
    check_keys(STR("[\"a\",1]"), false, 0);
    check_keys(STR("[null]"), false, 0);
    check_keys(STR("[\"a\",\"\"]"), false, 0);
    check_keys(STR("[\"..\"]"), false, 0);
    repeat(&text, "\"k", true, "\"", RESOURCES_MAX);
    check_keys(buf_str(&text), true, RESOURCES_MAX);
    repeat(&text, "\"k", true, "\"", RESOURCES_MAX + 1);
    check_keys(buf_str(&text), false, 0);
    repeat(&text, "\"k", false, "\"", 1000);
    check_keys(buf_str(&text), true, 1);
    repeat(&text, "\"k", false, "\"", 1001);
    check_keys(buf_str(&text), false, 0);
    buf_free(&text);
}

static void reads_reports(void **state)
{
    struct arena a = {0};
    struct capture_report r;
    struct err e;

    (void)state;
    assert_true(field_captures(STR_NONE, STR_NONE, &a, &r, &e));
    assert_int_equal(r.n_captures + r.n_failures, 0);
    assert_true(field_captures(
        STR("[{\"key\":\"a\",\"generation\":-3,\"checkpoint_ref\":\"r\\n\"},"
            "{\"checkpoint_ref\":null,\"generation\":4,\"key\":\"\\u0000/\"},"
            "{\"key\":\"\",\"generation\":0},{\"key\":\"d\",\"generation\":0,"
            "\"checkpoint_ref\":{\"x\":[]}},{\"key\":\"e\",\"generation\":0,\"checkpoint_ref\":"
            "\"\"}]"),
        STR("[{\"key\":\"f\",\"generation\":9223372036854775807,\"error\":\"\"}]"), &a, &r, &e));
    assert_int_equal(r.n_captures, 5);
    CHECK_STR(r.captures[0].checkpoint_ref, STR("r\n"));
    assert_int_equal(r.captures[0].generation, -3);
    CHECK_STR(r.captures[1].key, STR("\0/"));
    for (size_t i = 1; i < r.n_captures; i++)
        assert_int_equal(r.captures[i].checkpoint_ref.n, 0);
    assert_int_equal(r.n_failures, 1);
    assert_true(r.failures[0].generation == INT64_MAX);
    assert_true(str_present(r.failures[0].error) && r.failures[0].error.n == 0);
    arena_free(&a);
}

static void refuses_what_is_no_report(void **state)
{
    static const char *const ENTRIES[] = {
        "1",
        "null",
        "\"a\"",
        "[]",
        "{}",
        "{\"key\":\"a\"}",
        "{\"generation\":1}",
        "{\"key\":1,\"generation\":1}",
        "{\"key\":null,\"generation\":1}",
        "{\"key\":\"a\",\"generation\":1.0}",
        "{\"key\":\"a\",\"generation\":\"1\"}",
        "{\"key\":\"a\",\"generation\":9223372036854775808}",
        "{\"key\":\"a\",\"generation\":1,\"other\":1}",
        "{\"key\":\"a\",\"generation\":1,\"key\":\"a\"}",
    };

    (void)state;
    for (size_t i = 0; i < 2 * COUNT(ENTRIES); i++) {
        const char *name = i % 2 == 0 ? "\"captures\"" : "\"capture_failures\"";
        struct arena a = {0};
        struct capture_report r;
        struct str list = arena_printf(&a, "[%s]", ENTRIES[i / 2]);
        struct err e;
        bool ok = i % 2 == 0 ? field_captures(list, STR_NONE, &a, &r, &e)
                             : field_captures(STR_NONE, list, &a, &r, &e);
        CHECKF(!ok && e.code == ERR_VALIDATION, "%s %s", name, ENTRIES[i / 2]);
        CHECKF(strstr(e.message, name) != NULL, "%s", e.message);
        arena_free(&a);
    }
}

/* Neither costs the outcome: the one is reported as a failure, the other is cut. */
static void takes_what_is_too_long(void **state)
{
    struct buf captures = {0}, failures = {0};
    struct arena a = {0};
    struct capture_report r;
    struct err e;

    (void)state;
    buf_add(&captures, STR("[{\"key\":\"a\",\"generation\":7,\"checkpoint_ref\":\""));
    for (int i = 0; i <= CHECKPOINT_REF_MAX; i++)
        buf_add_byte(&captures, 'x');
    buf_add(&captures, STR("\"},{\"key\":\"b\",\"generation\":0,\"checkpoint_ref\":\"r\"}]"));
    buf_add(&failures, STR("[{\"key\":\"c\",\"generation\":0,\"error\":\"x"));
    for (int i = 0; i < 3000; i++)
        buf_add(&failures, STR("\u00e9"));
    buf_add(&failures, STR("\"}]"));
    assert_true(field_captures(buf_str(&captures), buf_str(&failures), &a, &r, &e));
    assert_int_equal(r.n_captures, 1);
    CHECK_STR(r.captures[0].key, STR("b"));
    assert_int_equal(r.n_failures, 2);
    CHECK_STR(r.failures[0].key, STR("a"));
    assert_int_equal(r.failures[0].generation, 7);
    assert_true(str_is_utf8(r.failures[1].error));
    assert_int_equal(r.failures[1].error.n, 4095);
    buf_free(&captures);
    buf_free(&failures);
    arena_free(&a);
}

static void bounds_lists(void **state)
{
    struct buf text = {0};
    struct arena a = {0};
    struct capture_report r;
    struct err e;

    (void)state;
    repeat(&text, "{\"key\":\"k", true, "\",\"generation\":1,\"error\":\"x\"}", 1000);
    assert_true(field_captures(STR_NONE, buf_str(&text), &a, &r, &e));
    assert_int_equal(r.n_failures, 1000);
    repeat(&text, "{\"key\":\"k", true, "\",\"generation\":1,\"error\":\"x\"}", 1001);
    assert_false(field_captures(STR_NONE, buf_str(&text), &a, &r, &e));
    buf_free(&text);
    arena_free(&a);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(knows_keys),
        cmocka_unit_test(reads_lists_of_keys),
        cmocka_unit_test(reads_reports),
        cmocka_unit_test(refuses_what_is_no_report),
        cmocka_unit_test(takes_what_is_too_long),
        cmocka_unit_test(bounds_lists),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
