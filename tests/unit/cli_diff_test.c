/* SPDX-License-Identifier: Apache-2.0
 * Where two JSON values differ, and how two runs are laid beside each other. */
#include "support/check.h"

#include <stdlib.h>

#include "cli/align.h"
#include "cli/json_diff.h"

/* ---- values ---- */

static void note_place(void *ctx, struct str path, struct str a, struct str b)
{
    buf_printf(ctx, "%.*s: %.*s|%.*s\n", STR_ARG(path), STR_ARG(a), STR_ARG(b));
}

static void finds_places(void **state)
{
    static const struct {
        const char *a, *b, *places;
        size_t n;
    } cases[] = {
        {"1", "1", "", 0},
        {"1", "1.0", ": 1|1.0\n", 1}, /* numbers keep their source text */
        {"\"\\u00e9\"", "\"\xc3\xa9\"", "", 0},
        {"{\"a\":1,\"b\":[1,2]}", " { \"b\" : [1, 2], \"a\":1 }", "", 0},
        {"{\"a\":1}", "{\"a\":2}", ".a: 1|2\n", 1},
        {"{\"a\":{\"b\":[{\"c\":null}]}}", "{\"a\":{\"b\":[{\"c\":0}]}}", ".a.b[0].c: null|0\n", 1},
        {"{\"a\":1,\"x y\":2}", "{\"b\":3,\"x y\":4}", ".a: 1|\n[\"x y\"]: 2|4\n.b: |3\n", 3},
        {"[1,2,3]", "[1,5]", "[1]: 2|5\n[2]: 3|\n", 2},
        {"[1]", "{\"0\":1}", ": [1]|{\"0\":1}\n", 1},
        {"[1,2,3,4,5,6]", "[]", "[0]: 1|\n[1]: 2|\n[2]: 3|\n", 4}, /* the first three, and more */
        /* inside of strings that hold JSON: the body of an answer */
        {"{\"b\":\"{\\\"t\\\":[1,\\\"x\\\"]}\"}", "{\"b\":\"{\\\"t\\\": [1, \\\"y\\\"]}\"}",
         ".b.t[1]: \"x\"|\"y\"\n", 1},
        {"\"[1]\"", "\"[ 1]\"", ": \"[1]\"|\"[ 1]\"\n", 1}, /* only the texts differ */
        {"\"[1]\"", "\"[2\"", ": \"[1]\"|\"[2\"\n", 1},
        {"\"[1]\"", "\"{}\"", ": \"[1]\"|\"{}\"\n", 1},
        {"\"1\"", "\"2\"", ": \"1\"|\"2\"\n", 1},
        {NULL, "1", ": |1\n", 1},
        {"1", NULL, ": 1|\n", 1},
        {NULL, NULL, "", 0},
    };

    (void)state;
    for (size_t i = 0; i < COUNT(cases); i++) {
        struct buf got = {0};
        size_t n = json_diff(str_of(cases[i].a), str_of(cases[i].b), 3, note_place, &got);

        CHECKF(n == cases[i].n, "case %zu: %zu places", i, n);
        CHECK_STR(buf_str(&got), str_of(cases[i].places));
        buf_free(&got);
    }
}

/* ---- runs ---- */

static void add(struct run *r, const char *target, int args, const char *more)
{
    struct buf json = {0};

    buf_printf(&json,
               "{\"step_id\":\"%s%zu\",\"kind\":\"tool_call\",\"target\":\"%s\",\"args\":%d,"
               "\"occurrence\":0,\"status\":\"succeeded\"%s}",
               target, r->n, target, args, more);
    run_take_step(r, buf_str(&json));
    buf_free(&json);
}

/* A step a letter: "a" and "b1" are calls; `!` after one: its result is another. */
static void fill(struct run *r, const char *calls)
{
    for (const char *at = calls; *at != '\0'; at++) {
        char target[2] = {*at, '\0'};
        int args = at[1] >= '0' && at[1] <= '9' ? *++at - '0' : 0;
        bool other = at[1] == '!';

        at += other ? 1 : 0;
        add(r, target, args, other ? ",\"result\":1" : ",\"result\":2");
    }
}

static char sign(enum pair_kind kind)
{
    return "=!~@<>"[kind];
}

static void lays_runs_side_by_side(void **state)
{
    static const struct {
        const char *a, *b, *pairs;
        size_t same_before;
    } cases[] = {
        {"", "", "", 0},
        {"abc", "abc", "=a=b=c", 3},
        {"abc", "ab!c", "=a!b=c", 1},
        {"ab1c", "ab2c", "=a~b=c", 1}, /* other arguments */
        {"abc", "abxc", "=a=b>x=c", 2},
        {"abxc", "abc", "=a=b<x=c", 2},
        {"abc", "axyc", "=a<b>x>y=c", 1},
        {"ab1cd1", "axb2d2", "=a>x~b<c~d", 1},
        {"abcd", "acbd", "=a@b=c=d", 1}, /* one of the two moved; either will do */
        {"a", "b", "<a>b", 0},
        {"", "ab", ">a>b", 0},
        {"ab!", "b", "<a!b", 0},
    };

    (void)state;
    for (size_t i = 0; i < COUNT(cases); i++) {
        struct run a = {0}, b = {0};
        struct alignment al;
        struct buf got = {0};

        fill(&a, cases[i].a);
        fill(&b, cases[i].b);
        align_runs(&a, &b, &al);
        for (size_t k = 0; k < al.n; k++) {
            const struct run_step *one = al.pairs[k].a != NULL ? al.pairs[k].a : al.pairs[k].b;

            buf_printf(&got, "%c%.*s", sign(al.pairs[k].kind), STR_ARG(one->target));
        }
        if (i == 8) /* the longest common order has two answers */
            CHECKF(str_eq(buf_str(&got), STR("=a@b=c=d")) || str_eq(buf_str(&got), STR("=a=b@c=d")),
                   "%.*s", STR_ARG(buf_str(&got)));
        else
            CHECK_STR(buf_str(&got), str_of(cases[i].pairs));
        CHECKF(i == 8 || al.same_before == cases[i].same_before, "case %zu: %zu", i,
               al.same_before);
        buf_free(&got);
        alignment_free(&al);
        run_free(&a);
        run_free(&b);
    }
}

/* Of all orders that two runs share, how long the longest is: by trying each end. */
static size_t longest_shared(const int *a, size_t n_a, const int *b, size_t n_b)
{
    size_t best[40] = {0}, longest = 0;

    for (size_t i = 0; i < n_a; i++) {
        size_t row = 0;

        for (size_t j = 0; j < n_b; j++) {
            size_t before = best[j];

            if (a[i] == b[j] && row + 1 > best[j])
                best[j] = row + 1;
            if (before > row)
                row = before;
        }
    }
    for (size_t j = 0; j < n_b; j++)
        longest = best[j] > longest ? best[j] : longest;
    return longest;
}

static size_t shuffled(int *out, size_t n)
{
    size_t kept = 0;

    for (size_t i = 0; i < n; i++)
        out[i] = (int)i;
    for (size_t i = n; i > 1; i--) {
        size_t j = (size_t)rand() % i;
        int was = out[i - 1];

        out[i - 1] = out[j];
        out[j] = was;
    }
    for (size_t i = 0; i < n; i++) {
        if (rand() % 4 != 0)
            out[kept++] = out[i];
    }
    return kept;
}

static void keeps_as_much_as_can_be(void **state)
{
    (void)state;
    srand(7);
    for (size_t round = 0; round < 300; round++) {
        int calls_a[32], calls_b[32];
        size_t n_a = shuffled(calls_a, 1 + (size_t)rand() % 30);
        size_t n_b = shuffled(calls_b, 1 + (size_t)rand() % 30), of_a = 0, of_b = 0;
        struct run a = {0}, b = {0};
        struct alignment al;

        for (size_t i = 0; i < n_a; i++)
            add(&a, "t", calls_a[i], "");
        for (size_t i = 0; i < n_b; i++)
            add(&b, "t", calls_b[i], "");
        align_runs(&a, &b, &al);
        CHECKF(al.counts[PAIR_SAME] == longest_shared(calls_a, n_a, calls_b, n_b), "round %zu: %zu",
               round, al.counts[PAIR_SAME]);
        for (size_t k = 0; k < al.n; k++) {
            of_a += al.pairs[k].a != NULL;
            of_b += al.pairs[k].b != NULL;
        }
        CHECKF(of_a == n_a && of_b == n_b, "round %zu: each step once", round);
        alignment_free(&al);
        run_free(&a);
        run_free(&b);
    }
}

/* ---- decisions ---- */

#define EVENT(type, rest) "{\"type\":\"" type "\",\"payload\":{\"step_id\":\"t0\"" rest "}}"

static void tells_decisions(void **state)
{
    static const struct {
        const char *events[4];
        const char *text;
    } cases[] = {
        {{NULL}, "not decided"},
        {{EVENT("step.allowed", ",\"rule_id\":\"r\"")}, "allowed by rule r"},
        {{EVENT("step.allowed", ",\"rule_id\":\"permissive\"")}, "allowed, no policy"},
        {{EVENT("step.denied", ",\"rule_id\":\"r\"")}, "denied by rule r"},
        {{EVENT("step.awaiting_approval", ",\"rule_id\":\"r\"")}, "held by rule r"},
        {{EVENT("step.awaiting_approval", ",\"rule_id\":\"r\""),
          EVENT("approval.granted", ",\"decided_by\":\"ada\""), EVENT("step.allowed", "")},
         "held by rule r, granted by ada"},
        {{EVENT("step.awaiting_approval", ",\"rule_id\":\"r\""), EVENT("step.allowed", "")},
         "held by rule r, granted"}, /* as a fork has it */
        {{EVENT("step.awaiting_approval", ",\"rule_id\":\"r\""), EVENT("approval.expired", ""),
          EVENT("step.denied", ",\"error\":{}")},
         "held by rule r, refused"},
    };

    (void)state;
    for (size_t i = 0; i < COUNT(cases); i++) {
        struct run r = {0};

        add(&r, "t", 1, "");
        for (size_t k = 0; k < COUNT(cases[i].events) && cases[i].events[k] != NULL; k++)
            run_take_event(&r, str_of(cases[i].events[k]));
        CHECK_STR(run_decision_text(r.steps[0], &r.a), str_of(cases[i].text));
        run_free(&r);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(finds_places),
        cmocka_unit_test(lays_runs_side_by_side),
        cmocka_unit_test(keeps_as_much_as_can_be),
        cmocka_unit_test(tells_decisions),
    };

    return cmocka_run_group_tests_name("cli_diff", tests, NULL, NULL);
}
