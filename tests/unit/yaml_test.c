/* SPDX-License-Identifier: Apache-2.0
 * The YAML reader: events, places, texts, and what it refuses. */
#include "support/check.h"

#include "base/yaml.h"

static struct yaml *must_open(struct str text, struct err *e)
{
    const struct yaml_source source = {.text = text, .name = "f", .what = "a file"};
    struct yaml *y = yaml_open(&source, e);

    CHECKF(y != NULL, "%s", e->message);
    return y;
}

/* Each event as a letter with its place, scalars with their text: what the whole text comes to. */
static bool trace(struct str text, struct buf *out, struct err *e)
{
    static const char letters[] = {
        [YAML_MAPPING] = '{',  [YAML_MAPPING_END] = '}', [YAML_LIST] = '[',
        [YAML_LIST_END] = ']', [YAML_SCALAR] = '=',      [YAML_END] = '.'};
    const struct yaml_source source = {.text = text, .name = "f", .what = "a file"};
    struct yaml *y = yaml_open(&source, e);
    int depth = 0;
    bool ok = y != NULL;

    while (ok) {
        enum yaml_event event = yaml_event(y);
        struct yaml_place at = yaml_place(y);
        buf_printf(out, "%c%d:%d", letters[event], at.line, at.column);
        if (event == YAML_SCALAR)
            buf_printf(out, "%.*s", STR_ARG(yaml_source_text(y)));
        depth += (event == YAML_MAPPING || event == YAML_LIST) -
                 (event == YAML_MAPPING_END || event == YAML_LIST_END);
        if (event == YAML_END || depth == 0)
            break;
        buf_add_byte(out, ' ');
        ok = yaml_next(y);
    }
    ok = ok && (yaml_event(y) == YAML_END || yaml_finish(y));
    yaml_close(y);
    return ok;
}

static void gives_events_and_places(void **state)
{
    static const struct {
        struct str text, trace;
    } cases[] = {
        {STR_INIT(""), STR_INIT(".1:1")},
        {STR_INIT("# only a comment\n"), STR_INIT(".2:1")},
        {STR_INIT("a"), STR_INIT("=1:1a")},
        {STR_INIT("---\na\n...\n"), STR_INIT("=2:1a")},
        {STR_INIT("a: 1\nb:\n  - x\n  - 'y z'\n"),
         STR_INIT("{1:1 =1:1a =1:41 =2:1b [3:3 =3:5x =4:5y z ]5:1 }5:1")},
        {STR_INIT("{\"k\": [1, {}]}"), STR_INIT("{1:1 =1:2k [1:7 =1:81 {1:11 }1:12 ]1:13 }1:14")},
        {STR_INIT("a:\nb: c\n"), STR_INIT("{1:1 =1:1a =1:1 =2:1b =2:4c }3:1")}, /* no value: the
                                                                               key's place */
        {STR_INIT("a: |\n  x\n  y\n"), STR_INIT("{1:1 =1:1a =2:1x\ny\n }4:1")},
        {STR_INIT("a: \"x\\u00e9\\ty\"\n"), STR_INIT("{1:1 =1:1a =1:4x\xc3\xa9\ty }2:1")},
        {STR_INIT("\xef\xbb\xbf"
                  "a\r\n"),
         STR_INIT("=1:1a")}, /* a byte order mark */
    };
    struct err e = {0};

    (void)state;
    for (size_t i = 0; i < COUNT(cases); i++) {
        struct buf out = {0};

        CHECKF(trace(cases[i].text, &out, &e), "case %zu: %s", i, e.message);
        CHECK_STR(buf_str(&out), cases[i].trace);
        buf_free(&out);
    }
}

static void tells_null_from_text(void **state)
{
    static const struct {
        struct str text, value, source;
        bool plain;
    } cases[] = {
        {STR_INIT("- x"), STR_INIT("x"), STR_INIT("x"), true},
        {STR_INIT("-"), {NULL, 0}, {NULL, 0}, true},
        {STR_INIT("- ~"), {NULL, 0}, STR_INIT("~"), true},
        {STR_INIT("- null"), {NULL, 0}, STR_INIT("null"), true},
        {STR_INIT("- NULL"), {NULL, 0}, STR_INIT("NULL"), true},
        {STR_INIT("- nULL"), STR_INIT("nULL"), STR_INIT("nULL"), true},
        {STR_INIT("- ''"), STR_INIT(""), STR_INIT(""), false},
        {STR_INIT("- \"\""), STR_INIT(""), STR_INIT(""), false},
        {STR_INIT("- 'null'"), STR_INIT("null"), STR_INIT("null"), false},
        {STR_INIT("- |-\n null"), STR_INIT("null"), STR_INIT("null"), false},
        {STR_INIT("- 007"), STR_INIT("007"), STR_INIT("007"), true},
    };
    struct err e = {0};

    (void)state;
    for (size_t i = 0; i < COUNT(cases); i++) {
        struct yaml *y = must_open(cases[i].text, &e);

        assert_true(yaml_event(y) == YAML_LIST && yaml_next(y) && yaml_event(y) == YAML_SCALAR);
        CHECK_STR(yaml_text(y), cases[i].value);
        CHECKF(str_present(yaml_text(y)) == str_present(cases[i].value), "case %zu", i);
        CHECK_STR(yaml_source_text(y), cases[i].source);
        CHECKF(str_present(yaml_source_text(y)) == str_present(cases[i].source), "case %zu", i);
        CHECKF(yaml_is_plain(y) == cases[i].plain, "case %zu", i);
        yaml_close(y);
    }
}

static void skips_values(void **state)
{
    struct err e = {0};
    struct yaml *y = must_open(STR("[a, [b, {c: [d]}], {e: f}, g]"), &e);

    (void)state;
    assert_true(yaml_next(y) && yaml_skip(y)); /* a scalar is its own end */
    CHECK_STR(yaml_text(y), STR("a"));
    assert_true(yaml_next(y) && yaml_event(y) == YAML_LIST && yaml_skip(y));
    assert_int_equal(yaml_event(y), YAML_LIST_END);
    assert_true(yaml_next(y) && yaml_event(y) == YAML_MAPPING && yaml_skip(y));
    assert_int_equal(yaml_event(y), YAML_MAPPING_END);
    assert_true(yaml_next(y));
    CHECK_STR(yaml_text(y), STR("g"));
    yaml_close(y);
    y = must_open(STR("[a, [b"), &e);
    assert_true(yaml_next(y) && yaml_next(y));
    assert_false(yaml_skip(y));
    yaml_close(y);
}

static bool read_keys(struct str text, struct err *e)
{
    static const char *const names[] = {"alpha", "beta", "gamma"};
    struct yaml_keys keys = {.names = names, .n = COUNT(names)};
    struct yaml *y = must_open(text, e);
    size_t key;
    bool ok = yaml_event(y) == YAML_MAPPING;

    while (ok && (ok = yaml_next(y)) && yaml_event(y) != YAML_MAPPING_END)
        ok = yaml_read_key(y, &keys, STR("it"), &key) && yaml_next(y) &&
             str_eq(yaml_text(y), str_of(names[key])) && yaml_skip(y);
    yaml_close(y);
    return ok;
}

static void reads_keys(void **state)
{
    static const struct {
        struct str text;
        const char *message;
    } refused[] = {
        {STR_INIT("alpha: alpha\nbeat: x\n"),
         "f:2:1: it: unknown key \"beat\"; did you mean beta?"},
        {STR_INIT("omega: x\n"), "f:1:1: it: unknown key \"omega\""},
        {STR_INIT("alpha: alpha\n\"\\u0061lpha\": alpha\n"), "f:2:1: it: alpha is given twice"},
        {STR_INIT("[a]: x\n"), "f:1:1: it: a key must be plain text"},
        {STR_INIT("? {a: b}\n: x\n"), "f:1:3: it: a key must be plain text"},
        {STR_INIT("~: x\n"), "f:1:1: it: a key is missing before \":\""},
        {STR_INIT("\"a\\x1b[2Jb\\u202ec\": x\n"), "f:1:1: it: unknown key \"a\\x1b[2Jb\\u202ec\""},
    };
    struct err e = {0};

    (void)state;
    CHECKF(read_keys(STR("{gamma: gamma, 'alpha': alpha, beta: beta}"), &e), "%s", e.message);
    for (size_t i = 0; i < COUNT(refused); i++) {
        assert_false(read_keys(refused[i].text, &e));
        CHECK_STR(str_of(e.message), str_of(refused[i].message));
    }
}

static void refuses_what_files_do_not_need(void **state)
{
    static const struct {
        struct str text;
        const char *begins;
    } cases[] = {
        {STR_INIT("a: &x 1\n"), "f:1:4: anchors and aliases are not supported in a file"},
        {STR_INIT("&x a: 1\n"), "f:1:1: anchors and aliases are not supported in a file"},
        {STR_INIT("a: *x\n"), "f:1:4: anchors and aliases are not supported in a file"},
        {STR_INIT("a: !!int 1\n"), "f:1:4: tags are not supported in a file"},
        {STR_INIT("! a\n"), "f:1:1: tags are not supported in a file"},
        {STR_INIT("%YAML 1.2\n---\na\n"), "f:1:1: directives are not supported in a file"},
        {STR_INIT("a\r...\r%X\r---\rb\n"), "f:3:1: directives are not supported in a file"},
        {STR_INIT("a\n---\nb\n"), "f:2:1: a file is one document"},
        {STR_INIT("a: 1\nb: \xc3\n"), "f:2:1: this line is not valid UTF-8"},
        {STR_INIT("a: \xed\xa0\x80\n"), "f:1:1: this line is not valid UTF-8"},
        {STR_INIT("a: 1\n\nb: \0\n"), "f:3:1: this line holds a NUL byte"},
        {STR_INIT("a:\n\t- x\n"), "f:2:1: not valid YAML: "},
        {STR_INIT("{a: 1\n"), "f:2:1: not valid YAML: "},
        {STR_INIT("a: 'x\n"), "f:1:5: not valid YAML: "},
        {STR_INIT("a: b: c\n"), "f:1:5: not valid YAML: "},
        {STR_INIT("- a\nb: c\n"), "f:2:1: not valid YAML: "},
    };

    (void)state;
    for (size_t i = 0; i < COUNT(cases); i++) {
        struct buf out = {0};
        struct err e = {0};

        CHECKF(!trace(cases[i].text, &out, &e), "accepted: %.*s", STR_ARG(cases[i].text));
        assert_int_equal(e.code, ERR_VALIDATION);
        CHECKF(strncmp(e.message, cases[i].begins, strlen(cases[i].begins)) == 0, "case %zu: %s", i,
               e.message);
        buf_free(&out);
    }
}

static void fails_with_a_place(void **state)
{
    struct yaml_source source = {.text = STR("a: 1\n"), .name = "", .what = "a file"};
    struct err e = {0};
    struct yaml *y = yaml_open(&source, &e);

    (void)state;
    assert_false(yaml_fail(y, (struct yaml_place){7, 3}, "%s is wrong", "it"));
    assert_int_equal(e.code, ERR_VALIDATION);
    assert_string_equal(e.message, "line 7, column 3: it is wrong");
    yaml_close(y);
    source.name = "dir/x.yaml";
    y = yaml_open(&source, &e);
    assert_false(yaml_fail(y, (struct yaml_place){7, 3}, "%s is wrong", "it"));
    assert_string_equal(e.message, "dir/x.yaml:7:3: it is wrong");
    yaml_close(y);
    yaml_close(NULL);
}

/* ---- texts that the parser would take time by their square for ---- */

static void add_times(struct buf *b, const char *text, size_t times)
{
    for (size_t i = 0; i < times; i++)
        buf_add_z(b, text);
}

static void bounds_blank_lines(void **state)
{
    static const char *const breaks[] = {"\n", "\r\n", "\r", " \n", " \r\n"};

    (void)state;
    for (size_t i = 0; i < COUNT(breaks); i++) {
        for (size_t lines = 200; lines <= 201; lines++) {
            struct buf text = {0}, out = {0};
            struct err e = {0};

            buf_add_z(&text, "a: |\n  x\n");
            add_times(&text, breaks[i], lines);
            buf_add_z(&text, "  y\n");
            CHECKF(trace(buf_str(&text), &out, &e) == (lines == 200), "%zu, case %zu: %s", lines, i,
                   e.message);
            if (lines > 200)
                assert_string_equal(e.message, "f:203:1: more than 200 blank lines in a row");
            buf_free(&text);
            buf_free(&out);
        }
    }
}

static void bounds_escapes_of_tags(void **state)
{
    static const struct {
        const char *head, *unit;
        size_t times;
        bool ok;
    } cases[] = {
        {"- x !a", "%41", 1000, true}, /* text, though it looks like one */
        {"- x !a", "%41", 1001, false}, {"- !a", "%41", 1001, false},
        {"- x !a", "%41 ", 3000, true}, {"- x a", "%41", 3000, true},
        {"- '!", "x", 100000, true},
    };

    (void)state;
    for (size_t i = 0; i < COUNT(cases); i++) {
        struct buf text = {0}, out = {0};
        struct err e = {0};

        buf_add_z(&text, cases[i].head);
        add_times(&text, cases[i].unit, cases[i].times);
        buf_add_z(&text, cases[i].head[2] == '\'' ? "'\n" : "\n");
        CHECKF(trace(buf_str(&text), &out, &e) == cases[i].ok, "case %zu: %s", i, e.message);
        if (!cases[i].ok)
            assert_string_equal(
                e.message, "f:1:1: a word with a ! and more than 1000 % after it is not supported");
        buf_free(&text);
        buf_free(&out);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(gives_events_and_places),
        cmocka_unit_test(tells_null_from_text),
        cmocka_unit_test(skips_values),
        cmocka_unit_test(reads_keys),
        cmocka_unit_test(refuses_what_files_do_not_need),
        cmocka_unit_test(fails_with_a_place),
        cmocka_unit_test(bounds_blank_lines),
        cmocka_unit_test(bounds_escapes_of_tags),
    };

    return cmocka_run_group_tests_name("yaml", tests, NULL, NULL);
}
