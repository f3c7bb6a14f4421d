/* SPDX-License-Identifier: Apache-2.0
 * The manifest: what it gives, and where its errors point. */
#include "support/check.h"

#include <stdlib.h>
#include <unistd.h>

#include "cli/manifest.h"

static char path[] = "/tmp/rebuno-manifest-XXXXXX";

static int make_file(void **state)
{
    (void)state;
    int fd = mkstemp(path);
    return fd < 0 ? -1 : close(fd);
}

static int remove_file(void **state)
{
    (void)state;
    return unlink(path);
}

static bool load_bytes(struct str text, struct arena *a, struct manifest *m, struct err *e)
{
    FILE *f = fopen(path, "wb");

    assert_non_null(f);
    assert_int_equal(fwrite(text.p, 1, text.n, f), text.n);
    fclose(f);
    *e = (struct err){0};
    return manifest_load(path, a, m, e);
}

/* The message must be the file's name and what is expected behind it. */
static void check_refused(struct str text, const char *expected)
{
    struct arena a = {0};
    struct manifest m;
    struct err e;

    CHECKF(!load_bytes(text, &a, &m, &e), "accepted: %.*s", STR_ARG(text));
    assert_int_equal(e.code, ERR_VALIDATION);
    CHECKF(strncmp(e.message, path, strlen(path)) == 0, "%s", e.message);
    CHECK_STR(str_of(e.message + strlen(path)), str_of(expected));
    arena_free(&a);
}

#define AGENT                                                                                      \
    "agents:\n  - id: coder\n    webhook_url: http://localhost:5000/webhook\n    secret: s\n"

static void reads_agents(void **state)
{
    struct arena a = {0};
    struct manifest m;
    struct err e;

    (void)state;
    setenv("CODER_SECRET", "from ${env}", 1);
    setenv("PORT", "5001", 1);
    setenv("LEASE", "600", 1);
    assert_true(
        load_bytes(STR("# two agents\n"
                       "agents:\n"
                       "  - id: coder\n"
                       "    webhook_url: http://localhost:${PORT}/webhook\n"
                       "    secret: ${CODER_SECRET}\n"
                       "    lease_timeout_seconds: ${LEASE}\n"
                       "  - {secret: \"a\\u00e9$x$\", id: 'writer', webhook_url: \"https://w\"}\n"),
                   &a, &m, &e));
    assert_int_equal(m.n, 2);
    CHECK_STR(m.agents[0].id, STR("coder"));
    CHECK_STR(m.agents[0].webhook_url, STR("http://localhost:5001/webhook"));
    CHECK_STR(m.agents[0].secret, STR("from ${env}")); /* a variable's text is no template */
    assert_int_equal(m.agents[0].lease_timeout_seconds, 600);
    CHECK_STR(m.agents[1].id, STR("writer"));
    CHECK_STR(m.agents[1].secret, STR("a\xc3\xa9$x$"));
    assert_int_equal(m.agents[1].lease_timeout_seconds, 0);
    arena_free(&a);
}

static void reads_an_empty_list(void **state)
{
    struct arena a = {0};
    struct manifest m;
    struct err e;

    (void)state;
    CHECKF(load_bytes(STR("---\nagents: []\n...\n"), &a, &m, &e), "%s", e.message);
    assert_int_equal(m.n, 0);
    arena_free(&a);
}

static const struct {
    struct str text;
    const char *message;
} REFUSED[] = {
    {STR_INIT(""), ":1:1: the manifest is empty; it needs the key agents"},
    {STR_INIT("# nothing\n"), ":2:1: the manifest is empty; it needs the key agents"},
    {STR_INIT("- a\n"), ":1:1: the manifest must be a mapping with the key agents"},
    {STR_INIT("{}\n"), ":1:1: the key agents is missing"},
    {STR_INIT("agent: []\n"), ":1:1: manifest: unknown key \"agent\"; did you mean agents?"},
    {STR_INIT("agents: []\nwebhooks: 1\n"), ":2:1: manifest: unknown key \"webhooks\""},
    {STR_INIT("agents: []\nagents: []\n"), ":2:1: manifest: agents is given twice"},
    {STR_INIT("agents: yes\n"), ":1:9: agents must be a list"},
    {STR_INIT("agents:\n"), ":1:1: agents must be a list"},
    {STR_INIT("agents:\n  - coder\n"),
     ":2:5: agent 1 must be a mapping with id, webhook_url and secret"},
    {STR_INIT("agents:\n  - id: a\n"), ":2:5: agent \"a\": webhook_url is missing"},
    {STR_INIT("agents:\n  - secret: a\n"), ":2:5: agent 1: id is missing"},
    {STR_INIT(AGENT "    webhok_url: x\n"),
     ":5:5: agent \"coder\": unknown key \"webhok_url\"; did you mean webhook_url?"},
    {STR_INIT(AGENT "    secret: x\n"), ":5:5: agent \"coder\": secret is given twice"},
    {STR_INIT(AGENT "    policy: |\n      rules:\n      - id: a\n        than: 1\n"),
     ":6:1: agent \"coder\": policy: line 3, column 3: rule \"a\": unknown key \"than\"; did you "
     "mean then?"},
    {STR_INIT(AGENT "    policy: x\n"),
     ":5:13: agent \"coder\": policy: line 1, column 1: policy: it must be a mapping with the keys "
     "default_action and rules"},
    {STR_INIT(AGENT "    policy: {rules: []}\n"),
     ":5:13: agent \"coder\": policy must be a block of YAML: \"policy: |\""},
    {STR_INIT(AGENT "    policy:\n"), ":5:5: agent \"coder\": policy has no value"},
    {STR_INIT(AGENT "    policy_file:\n"), ":5:5: agent \"coder\": policy_file has no value"},
    {STR_INIT(AGENT "    policy_file: nothing-here.yaml\n"),
     ":5:18: agent \"coder\": policy_file: cannot read /tmp/nothing-here.yaml: No such file or "
     "directory"},
    {STR_INIT(AGENT "    policy_file: \"p\\x03.yaml\"\n"),
     ":5:18: agent \"coder\": policy_file must not have control characters"},
    {STR_INIT(AGENT "    policy: 'rules: []'\n    policy_file: p.yaml\n"),
     ":6:5: agent \"coder\": policy and policy_file exclude each other"},
    {STR_INIT(AGENT "    lease_timeout_seconds: 1.5\n"),
     ":5:28: agent \"coder\": lease_timeout_seconds must be a whole number of seconds above "
     "zero"},
    {STR_INIT(AGENT "    lease_timeout_seconds: 0\n"),
     ":5:28: agent \"coder\": lease_timeout_seconds must be a whole number of seconds above "
     "zero"},
    {STR_INIT(AGENT "    lease_timeout_seconds: [1]\n"),
     ":5:28: agent \"coder\": lease_timeout_seconds must be a single value"},
    {STR_INIT(AGENT "  - id: coder\n"), ":5:9: the agent \"coder\" is already in line 2"},
    {STR_INIT(AGENT "  - id: a/b\n"), ":5:9: agent 2: id \"a/b\" must not have / ? # %, white "
                                      "space or control characters, nor be "
                                      "just dots"},
    {STR_INIT(AGENT "  - id: ..\n"), ":5:9: agent 2: id \"..\" must not have / ? # %, white "
                                     "space or control characters, nor be "
                                     "just dots"},
    {STR_INIT("agents:\n  - id: a\n    webhook_url: localhost:80\n"),
     ":3:18: agent \"a\": webhook_url must begin with http:// or https://"},
    {STR_INIT("agents:\n  - id:\n"), ":2:5: agent 1: id has no value"},
    {STR_INIT("agents:\n  - id: ~\n"), ":2:9: agent 1: id has no value"},
    {STR_INIT("agents:\n  - id: a\n    secret: \"\"\n"), ":3:13: agent \"a\": secret is empty"},
    {STR_INIT("agents:\n  - id: a\n    secret: x${NOT_SET_HERE}\n"),
     ":3:13: agent \"a\": secret: the environment variable NOT_SET_HERE is not set"},
    {STR_INIT("agents:\n  - id: a\n    secret: ${1A}\n"),
     ":3:13: agent \"a\": secret: \"${\" must be followed by a variable's name and \"}\""},
    {STR_INIT("agents:\n  - id: a\n    secret: x${HOME\n"),
     ":3:13: agent \"a\": secret: \"${\" must be followed by a variable's name and \"}\""},
    {STR_INIT("agents:\n  - ? [x]\n    : 1\n"), ":2:7: agent 1: a key must be plain text"},
    {STR_INIT("agents:\n  - id: a\n    \"se\\x1b[31m\": x\n"),
     ":3:5: agent \"a\": unknown key \"se\\x1b[31m\""},
    {STR_INIT("agents: &x []\n"), ":1:9: anchors and aliases are not supported in a manifest"},
    {STR_INIT("agents: *x\n"), ":1:9: anchors and aliases are not supported in a manifest"},
    {STR_INIT("agents: !!seq []\n"), ":1:9: tags are not supported in a manifest"},
    {STR_INIT("agents:\n  - id: !!str a\n"), ":2:9: tags are not supported in a manifest"},
    {STR_INIT("%YAML 1.2\n---\nagents: []\n"), ":1:1: directives are not supported in a manifest"},
    {STR_INIT("agents: []\n---\nagents: []\n"), ":2:1: a manifest is one document"},
    {STR_INIT("agents:\n  - id: \xff\n"), ":2:1: this line is not valid UTF-8"},
    {STR_INIT("agents:\n  - id: a\0b\n"), ":2:1: this line holds a NUL byte"},
};

static void refuses_with_the_place(void **state)
{
    (void)state;
    unsetenv("NOT_SET_HERE");
    for (size_t i = 0; i < COUNT(REFUSED); i++)
        check_refused(REFUSED[i].text, REFUSED[i].message);
}

/* ---- policies ---- */

#define BUNDLE                                                                                     \
    "rules:\n- id: a\n  when: {arguments: {path: {regex: '^${HOME}/$'}}}\n  then: {decision: "     \
    "allow}\n"

static void reads_a_policy_in_place(void **state)
{
    struct arena a = {0};
    struct manifest m;
    struct hash hash;
    struct err e;

    (void)state;
    CHECKF(load_bytes(STR(AGENT "    policy: |\n"
                                "      rules:\n"
                                "      - id: a\n"
                                "        when: {arguments: {path: {regex: '^${HOME}/$'}}}\n"
                                "        then: {decision: allow}\n"
                                "  - {id: b, webhook_url: \"http://b\", secret: s}\n"),
                      &a, &m, &e),
           "%s", e.message);
    CHECK_STR(m.agents[0].policy_bundle, STR(BUNDLE)); /* nothing is replaced in it */
    hash_sha256(STR(BUNDLE), &hash);
    assert_true(hash_eq(&m.agents[0].policy_hash, &hash));
    assert_false(str_present(m.agents[1].policy_bundle));
    arena_free(&a);
}

/* Another file beside the manifest, while it stands. */
struct beside {
    char path[64];
    const char *name;
};

static void write_beside(struct beside *b, struct str text)
{
    snprintf(b->path, sizeof b->path, "%s.policy", path);
    b->name = strrchr(b->path, '/') + 1;
    FILE *f = fopen(b->path, "wb");
    assert_non_null(f);
    assert_int_equal(fwrite(text.p, 1, text.n, f), text.n);
    fclose(f);
}

static bool load_with_policy_file(const char *name, struct arena *a, struct manifest *m,
                                  struct err *e)
{
    struct buf text = {0};

    buf_printf(&text, AGENT "    policy_file: %s\n", name);
    bool ok = load_bytes(buf_str(&text), a, m, e);
    buf_free(&text);
    return ok;
}

static void reads_a_policy_file(void **state)
{
    struct arena a = {0};
    struct manifest m;
    struct beside b;
    struct hash hash;
    struct err e;

    (void)state;
    write_beside(&b, STR(BUNDLE));
    hash_sha256(STR(BUNDLE), &hash);
    CHECKF(load_with_policy_file(b.name, &a, &m, &e), "%s", e.message); /* beside the manifest */
    CHECK_STR(m.agents[0].policy_bundle, STR(BUNDLE));
    assert_true(hash_eq(&m.agents[0].policy_hash, &hash));
    CHECKF(load_with_policy_file(b.path, &a, &m, &e), "%s", e.message); /* absolute */
    CHECK_STR(m.agents[0].policy_bundle, STR(BUNDLE));
    setenv("POLICY", b.name, 1);
    CHECKF(load_with_policy_file("${POLICY}", &a, &m, &e), "%s", e.message);
    arena_free(&a);
    unlink(b.path);
}

static void refuses_a_bad_policy_file(void **state)
{
    struct arena a = {0};
    struct buf expected = {0}, huge = {0};
    struct manifest m;
    struct beside b;
    struct err e;

    (void)state;
    write_beside(&b, STR("rules:\n- id: a\n  then: {decision: maybe}\n"));
    assert_false(load_with_policy_file(b.name, &a, &m, &e));
    assert_int_equal(e.code, ERR_VALIDATION);
    buf_printf(&expected,
               "%s:3:20: rule \"a\": decision must be allow, deny, require_approval or judge",
               b.path);
    CHECK_STR(str_of(e.message), buf_str(&expected));
    for (int i = 0; i < 5 * 1024; i++)
        buf_printf(&huge, "#%1023s", "\n");
    write_beside(&b, buf_str(&huge));
    assert_false(load_with_policy_file(b.name, &a, &m, &e));
    CHECKF(strstr(e.message, b.path) != NULL, "%s", e.message);
    unlink(b.path);
    assert_false(load_with_policy_file("/", &a, &m, &e));
    CHECKF(strstr(e.message, "policy_file: cannot read /: ") != NULL, "%s", e.message);
    buf_free(&expected);
    buf_free(&huge);
    arena_free(&a);
}

/* The parser's own words are not ours to fix; the place and the beginning are. */
static void refuses_bad_syntax(void **state)
{
    static const struct {
        struct str text;
        const char *begins;
    } cases[] = {
        {STR_INIT("agents: [\n"), ":2:1: not valid YAML: "},
        {STR_INIT("agents:\n  - id: \"x\n"), ":2:10: not valid YAML: "},
        {STR_INIT("agents:\n\t- id: x\n"), ":2:1: not valid YAML: "},
        {STR_INIT("agents:\n  - id: a\n    secret: @x\n"), ":3:13: not valid YAML: "},
    };
    struct arena a = {0};
    struct manifest m;
    struct err e;

    (void)state;
    for (size_t i = 0; i < COUNT(cases); i++) {
        CHECKF(!load_bytes(cases[i].text, &a, &m, &e), "%.*s", STR_ARG(cases[i].text));
        const char *rest = e.message + strlen(path);
        CHECKF(strncmp(rest, cases[i].begins, strlen(cases[i].begins)) == 0, "case %zu: %s", i,
               rest);
    }
    arena_free(&a);
}

/* ---- files made to hurt ---- */

static void add_times(struct buf *b, const char *text, size_t times)
{
    for (size_t i = 0; i < times; i++)
        buf_add_z(b, text);
}

static void survives_hostile_files(void **state)
{
    static const struct {
        const char *head, *unit;
        size_t times;
    } cases[] = {
        {"", "[", 1000000},
        {"agents: ", "[", 1000000},
        {"agents: ", "{a: ", 500000},
        {"", "- ", 1000000},
        {"", "? ", 1000000},
        {"", "a", 10 * 1024 * 1024},
        {"agents: [{id: ", "x", 3000000},
        {"agents: \"", "\\n", 1500000},
        {"", "#\n", 1500000},
        {"%", "x", 3000000},
        {"agents: !", "x", 3000000},
        {"agents: |", "9", 3000000},
        {"a: &a [", "*a, ", 700000},
        {"agents:\n - id: \"", "${A}", 700000},
    };
    struct manifest m;
    struct err e;

    (void)state;
    setenv("A", "a long value that is repeated", 1);
    for (size_t i = 0; i < COUNT(cases); i++) {
        struct arena a = {0};
        struct buf text = {0};

        buf_add_z(&text, cases[i].head);
        add_times(&text, cases[i].unit, cases[i].times);
        CHECKF(!load_bytes(buf_str(&text), &a, &m, &e), "case %zu", i);
        CHECKF(e.message[0] != '\0', "case %zu", i);
        buf_free(&text);
        arena_free(&a);
    }
}

static void reads_many_agents(void **state)
{
    enum { AGENTS = 5000 };
    struct arena a = {0};
    struct buf text = {0};
    struct manifest m;
    struct err e;

    (void)state;
    buf_add_z(&text, "agents:\n");
    for (int i = 0; i < AGENTS; i++)
        buf_printf(&text, "  - id: agent-%d\n    webhook_url: http://h/%d\n    secret: s%d\n", i, i,
                   i);
    CHECKF(load_bytes(buf_str(&text), &a, &m, &e), "%s", e.message);
    assert_int_equal(m.n, AGENTS);
    CHECK_STR(m.agents[AGENTS - 1].id, STR("agent-4999"));
    buf_free(&text);
    arena_free(&a);
}

static void names_the_file_that_is_not_there(void **state)
{
    struct arena a = {0};
    struct manifest m;
    struct err e;

    (void)state;
    assert_false(manifest_load("/no/such/file.yaml", &a, &m, &e));
    CHECK_STR(str_of(e.message), STR("cannot read /no/such/file.yaml: No such file or directory; "
                                     "expected a manifest, which lists agents"));
    assert_false(manifest_load("/", &a, &m, &e));
    CHECKF(strstr(e.message, "Is a directory") != NULL, "%s", e.message);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(reads_agents),
        cmocka_unit_test(reads_an_empty_list),
        cmocka_unit_test(refuses_with_the_place),
        cmocka_unit_test(reads_a_policy_in_place),
        cmocka_unit_test(reads_a_policy_file),
        cmocka_unit_test(refuses_a_bad_policy_file),
        cmocka_unit_test(refuses_bad_syntax),
        cmocka_unit_test(survives_hostile_files),
        cmocka_unit_test(reads_many_agents),
        cmocka_unit_test(names_the_file_that_is_not_there),
    };

    return cmocka_run_group_tests_name("manifest", tests, make_file, remove_file);
}
