/* SPDX-License-Identifier: Apache-2.0
 * RE2 runs out of memory, at each of its allocations: C callers are told so, and nothing is allowed
 * because of it. This program's operator new fails when told to. */
#include "support/policy.h"

#include <stdlib.h>

#include "policy/regex.h"

/* ---- operator new and delete, by their names in the C++ ABI ---- */

_Noreturn void _ZSt17__throw_bad_allocv(void); /* std::__throw_bad_alloc, of libstdc++ */
void *_Znwm(size_t n);
void *_Znam(size_t n);
void _ZdlPv(void *p);
void _ZdlPvm(void *p, size_t n);
void _ZdaPv(void *p);
void _ZdaPvm(void *p, size_t n);

enum { NEVER = -1 };
static int left = NEVER; /* allocations until all fail */
static bool failed;

/* What RE2 had when it was broken off is lost. So that no leak is reported, it comes from here
 * while something is to fail. */
static _Alignas(max_align_t) char pool[16 * 1024 * 1024];
static size_t pool_used;

void *_Znwm(size_t n)
{
    size_t size = (n + sizeof(max_align_t) - 1) / sizeof(max_align_t) * sizeof(max_align_t);
    char *p = pool + pool_used;

    if (left == NEVER)
        return xmalloc(n);
    if (left == 0 || size > sizeof pool - pool_used) {
        failed = true;
        _ZSt17__throw_bad_allocv();
    }
    left--;
    pool_used += size;
    return p;
}

void *_Znam(size_t n)
{
    return _Znwm(n);
}

void _ZdlPv(void *p)
{
    if ((char *)p < pool || (char *)p >= pool + sizeof pool)
        free(p);
}

void _ZdlPvm(void *p, size_t n)
{
    (void)n;
    _ZdlPv(p);
}

void _ZdaPv(void *p)
{
    _ZdlPv(p);
}

void _ZdaPvm(void *p, size_t n)
{
    (void)n;
    _ZdlPv(p);
}

static void fail_after(int allocations)
{
    left = allocations;
    failed = false;
}

/* Whether anything failed meanwhile. */
static bool end_failing(void)
{
    left = NEVER;
    return failed;
}

/* ---- the tests ---- */

/* ThreadSanitizer's pthread_once, unlike glibc's, is stuck for ever once an exception left it; RE2
 * makes its states within one. */
#ifdef __SANITIZE_THREAD__
#define SKIP_IF_STUCK() skip()
#else
#define SKIP_IF_STUCK() ((void)0)
#endif

enum { ROUNDS_MAX = 100000 };
static const char PATTERN[] = "^(a|b)*a(a|b){6}c|[0-9]{3}x";
static const char TEXT[] = "abbabaabbbababbbabaaabbabc";

static struct regex *compile(char *why, size_t why_n)
{
    return regex_new(PATTERN, sizeof PATTERN - 1, why, why_n);
}

static bool found(const struct regex *re, bool *no_memory)
{
    *no_memory = false;
    return regex_found(re, TEXT, sizeof TEXT - 1, no_memory);
}

static void what_re2_keeps_for_ever(void **state)
{
    bool no_memory;
    char why[64];
    struct regex *re = compile(why, sizeof why);

    (void)state;
    assert_true(found(re, &no_memory));
    assert_false(no_memory);
    regex_free(re);
}

static void no_pattern_is_made(void **state)
{
    int n = 0;

    (void)state;
    for (; n < ROUNDS_MAX; n++) {
        char why[64] = "";
        struct regex *re;

        pool_used = 0;
        fail_after(n);
        re = compile(why, sizeof why);
        if (!end_failing()) {
            assert_non_null(re);
            regex_free(re);
            break;
        }
        CHECKF(re == NULL, "after %d allocations", n);
        CHECKF(strcmp(why, "out of memory") == 0, "after %d allocations: %s", n, why);
    }
    print_error("\n"); /* after what RE2 said, which has no end */
    CHECKF(n > 50 && n < ROUNDS_MAX, "%d allocations", n);
}

/* And with memory again, the same pattern finds what it should. */
static void no_search_is_made(void **state)
{
    int n = 0, told = 0;

    (void)state;
    SKIP_IF_STUCK();
    for (; n < ROUNDS_MAX; n++) {
        bool no_memory, is_found, any;
        char why[64];
        struct regex *re;

        pool_used = 0;
        fail_after(ROUNDS_MAX); /* the pattern is made, from the pool */
        re = compile(why, sizeof why);
        assert_false(end_failing());
        fail_after(n);
        is_found = found(re, &no_memory);
        any = end_failing();
        CHECKF(is_found == !no_memory, "after %d allocations", n);
        CHECKF(any || !no_memory, "after %d allocations", n);
        told += no_memory;
        fail_after(ROUNDS_MAX);
        CHECKF(found(re, &no_memory) && !no_memory, "after %d allocations", n);
        assert_false(end_failing());
        regex_free(re);
        if (!any)
            break;
    }
    CHECKF(told > 5 && n < ROUNDS_MAX, "%d times of %d", told, n);
}

/* An allow rule does not hold then, and any other one does. */
static void it_counts_against_the_step(void **state)
{
    static const struct {
        const char *otherwise, *regex, *decision;
        enum policy_action with_memory, without;
    } cases[] = {
        {"deny", "(a|b)*a(a|b){6}c", "allow", POLICY_ALLOW, POLICY_DENY},
        {"allow", "(a|b)*a(a|b){6}d", "deny", POLICY_ALLOW, POLICY_DENY},
        {"allow", "(a|b)*a(a|b){6}d", "require_approval", POLICY_ALLOW, POLICY_REQUIRE_APPROVAL},
    };
    struct str args = STR("{\"a\":\"abbabaabbbababbbabaaabbabc\"}");

    (void)state;
    SKIP_IF_STUCK();
    for (size_t i = 0; i < COUNT(cases); i++) {
        struct buf yaml = {0};
        struct policy *p;
        struct policy_match m;

        buf_printf(
            &yaml,
            "default_action: %s\n"
            "rules: [{id: r, when: {arguments: {a: {regex: '%s'}}}, then: {decision: %s}}]\n",
            cases[i].otherwise, cases[i].regex, cases[i].decision);
        pool_used = 0;
        fail_after(ROUNDS_MAX);
        p = must_load(buf_str(&yaml));
        fail_after(0);
        m = evaluate(p, KIND_TOOL_CALL, STR("t"), args);
        CHECKF(end_failing() && m.action == cases[i].without, "case %zu", i);
        fail_after(ROUNDS_MAX);
        m = evaluate(p, KIND_TOOL_CALL, STR("t"), args);
        CHECKF(!end_failing() && m.action == cases[i].with_memory, "case %zu", i);
        policy_unref(p);
        buf_free(&yaml);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_re2_keeps_for_ever), /* the first */
        cmocka_unit_test(no_pattern_is_made),
        cmocka_unit_test(no_search_is_made),
        cmocka_unit_test(it_counts_against_the_step),
    };

    return cmocka_run_group_tests_name("policy_memory", tests, NULL, NULL);
}
