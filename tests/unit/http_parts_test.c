/* SPDX-License-Identifier: Apache-2.0
 * The server's small parts on their own: timers, the budget of bodies, escapes, headers. */
#include "http/budget.h"
#include "http/exchange.h"
#include "http/timer.h"

#include "base/rand.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>

#include <cmocka.h>

/* ---- timers, against a plain list ---- */

enum { TIMERS = 200 };

static void timers_like_a_list(void **state)
{
    (void)state;
    struct timers ts = {0};
    struct timer t[TIMERS] = {0};
    struct prng r;
    int64_t now = 0;

    prng_seed(&r, 7);
    for (size_t i = 0; i < TIMERS; i++)
        t[i].at_us = TIMER_OFF;
    for (int round = 0; round < 50000; round++) {
        size_t i = (size_t)prng_below(&r, TIMERS);
        uint64_t what = prng_below(&r, 10);
        if (what == 0)
            timer_set(&ts, &t[i], TIMER_OFF);
        else if (what == 1)
            timer_remove(&ts, &t[i]);
        else if (what < 8)
            timer_set(&ts, &t[i], now + (int64_t)prng_below(&r, 1000));
        else
            now += (int64_t)prng_below(&r, 100);
        int64_t first = TIMER_OFF;
        size_t due = 0;
        for (size_t k = 0; k < TIMERS; k++) {
            first = t[k].at_us < first ? t[k].at_us : first;
            due += t[k].at_us <= now;
        }
        assert_true(timers_next(&ts) <= first);
        struct timer *got;
        for (; (got = timers_take(&ts, now)) != NULL; due--)
            assert_true(got->at_us == TIMER_OFF);
        assert_int_equal(due, 0);
        assert_true(timers_next(&ts) > now);
    }
    timers_free(&ts);
}

static void timers_that_move_later_cost_no_place(void **state)
{
    (void)state;
    struct timers ts = {0};
    struct timer t = {0};

    for (int64_t i = 1; i < 100000; i++)
        timer_set(&ts, &t, i);
    assert_int_equal(ts.n, 1);
    assert_null(timers_take(&ts, 99998));
    assert_ptr_equal(timers_take(&ts, 99999), &t);
    assert_int_equal(timers_next(&ts), TIMER_OFF);
    timers_free(&ts);
}

/* ---- the budget ---- */

static unsigned granted;

static void on_granted(struct claim *c)
{
    (void)c;
    granted++;
}

static void budget_is_first_come_first_served(void **state)
{
    (void)state;
    struct budget *b = budget_new(100, 60, on_granted);
    struct claim c[4] = {0};

    granted = 0;
    assert_true(budget_take(b, &c[0], 60, false));
    assert_false(budget_take(b, &c[1], 50, false));
    assert_false(budget_take(b, &c[2], 10, false)); /* would fit, but c[1] came first */
    assert_int_equal(budget_used(b), 60);
    budget_give(b, &c[0]);
    assert_int_equal(granted, 2);
    assert_int_equal(budget_used(b), 60);
    budget_taken(b, &c[1]);
    budget_taken(b, &c[2]);
    assert_false(budget_take(b, &c[0], 1000,
                             false)); /* cut to the whole budget, or it would wait for ever */
    assert_false(budget_take(b, &c[3], 1, false));
    assert_true(budget_cancel(b, &c[0])); /* who leaves the line lets the next one up */
    assert_int_equal(granted, 3);
    assert_false(budget_cancel(b, &c[3])); /* too late: it was granted */
    budget_taken(b, &c[3]);
    for (size_t i = 1; i < 4; i++)
        budget_give(b, &c[i]);
    assert_int_equal(budget_used(b), 0);
    assert_true(budget_take(b, &c[0], 1000, false));
    assert_int_equal(budget_used(b), 100);
    budget_give(b, &c[0]);
    budget_free(b);
}

static void growing_bodies_do_not_lock_each_other_out(void **state)
{
    (void)state;
    struct budget *b = budget_new(100, 60, on_granted);
    struct claim c[3] = {0};

    granted = 0;
    assert_true(budget_take(b, &c[0], 30, true));
    assert_true(budget_take(b, &c[1], 30, true));
    assert_true(budget_take(b, &c[0], 40, true));
    assert_true(budget_take(b, &c[1], 40, true));
    assert_false(budget_take(b, &c[2], 10, true)); /* 10 would be left, and no one could reach 60 */
    assert_true(budget_take(
        b, &c[0], 50, true)); /* growth goes before newcomers: 10 are left, just enough for c[0] */
    assert_false(budget_take(b, &c[1], 45, true)); /* 5 would be left, and neither could end */
    assert_true(budget_take(b, &c[0], 60, true));  /* the fullest always can, past those who wait */
    assert_int_equal(budget_used(b), 100);
    assert_int_equal(granted, 0);
    budget_give(b, &c[0]);
    assert_int_equal(granted, 2);
    assert_int_equal(budget_used(b), 55);
    for (size_t i = 1; i < 3; i++) {
        budget_taken(b, &c[i]);
        budget_give(b, &c[i]);
    }
    assert_int_equal(budget_used(b), 0);
    budget_free(b);
}

/* Many bodies of both kinds that come, grow, leave and wait at random: the limit holds at every
 * moment, and whenever all that hold something are waiting, somebody is let on. */
enum { ACTORS = 40, LIMIT = 800, LARGEST = 100 };

struct actor {
    struct claim claim;
    size_t target; /* how large its body will be; 0: between two bodies */
    size_t step;
    bool growing, waits;
};

static void actor_ask(struct budget *b, struct actor *a)
{
    size_t to = a->growing ? a->claim.held + a->step : a->target;

    if (to > a->target)
        to = a->target;
    a->waits = !budget_take(b, &a->claim, to, a->growing);
}

static void actor_move(struct budget *b, struct actor *a, struct prng *r)
{
    if (a->target == 0) {
        a->target = 1 + (size_t)prng_below(r, LARGEST);
        a->step = 1 + (size_t)prng_below(r, 30);
        a->growing = prng_below(r, 2) == 0;
        actor_ask(b, a);
    } else if (a->waits) {
        if (a->claim.state == CLAIM_GRANTED) {
            budget_taken(b, &a->claim);
            a->waits = false;
        } else if (prng_below(r, 200) == 0) { /* the client left */
            assert_true(budget_cancel(b, &a->claim));
            budget_give(b, &a->claim);
            a->waits = false;
            a->target = 0;
        }
    } else if (a->claim.held >= a->target) {
        if (a->growing && prng_below(r, 2) == 0)
            budget_settle(b, &a->claim, a->claim.held / 2 + 1);
        budget_give(b, &a->claim);
        a->target = 0;
    } else {
        actor_ask(b, a);
    }
}

static void budget_never_overdrawn_never_stuck(void **state)
{
    (void)state;
    for (uint64_t seed = 1; seed <= 40; seed++) {
        struct budget *b = budget_new(seed % 2 == 0 ? LIMIT : LARGEST + seed, LARGEST, on_granted);
        struct actor actors[ACTORS] = {0};
        struct prng r;

        prng_seed(&r, seed);
        for (int round = 0; round < 20000; round++) {
            actor_move(b, &actors[prng_below(&r, ACTORS)], &r);
            size_t held = 0, free_to_go = 0;
            for (size_t i = 0; i < ACTORS; i++) {
                held += actors[i].claim.held;
                free_to_go += !actors[i].waits || actors[i].claim.state == CLAIM_GRANTED;
            }
            assert_int_equal(held, budget_used(b));
            assert_true(held <= (seed % 2 == 0 ? LIMIT : LARGEST + seed));
            assert_true(free_to_go > 0); /* else nobody would ever move again */
        }
        for (bool busy = true; busy;) { /* no newcomers: all must come to an end */
            busy = false;
            for (size_t i = 0; i < ACTORS; i++)
                if (actors[i].target != 0) {
                    actor_move(b, &actors[i], &r);
                    busy = true;
                }
        }
        assert_int_equal(budget_used(b), 0);
        budget_free(b);
    }
}

/* ---- escapes ---- */

static void unescape(void **state)
{
    (void)state;
    static const struct {
        const char *in;
        bool form;
        const char *out; /* NULL: refused */
    } cases[] = {
        {"", false, ""},
        {"abc", false, "abc"},
        {"a%20b", false, "a b"},
        {"a+b", false, "a+b"},
        {"a+b", true, "a b"},
        {"%2B+", true, "+ "},
        {"%c3%A4", false, "\xc3\xa4"},
        {"%", false, NULL},
        {"%2", false, NULL},
        {"a%2", false, NULL},
        {"%2g", false, NULL},
        {"%g2", false, NULL},
        {"%%20", false, NULL},
        {"%25", false, "%"},
        {"%2520", false, "%20"},
        {"x%", true, NULL},
        {"%41%42%43", true, "ABC"},
    };
    struct arena a = {0};

    for (size_t i = 0; i < COUNT(cases); i++) {
        struct str out = STR_NONE;
        bool ok = http_unescape(str_of(cases[i].in), cases[i].form, &a, &out);
        assert_int_equal(ok, cases[i].out != NULL);
        if (ok)
            assert_true(str_present(out) && str_eq(out, str_of(cases[i].out)));
    }
    struct str nul;
    assert_true(http_unescape(STR("a%00b"), false, &a, &nul));
    assert_true(str_eq(nul, STR("a\0b")));
    arena_free(&a);
}

static void query(void **state)
{
    (void)state;
    static const struct {
        const char *query, *name, *value; /* value NULL: absent */
        bool bad;
    } cases[] = {
        {NULL, "a", NULL, false},
        {"", "a", NULL, false},
        {"a=1", "a", "1", false},
        {"a=1&b=2", "b", "2", false},
        {"ab=1&a=2", "a", "2", false},
        {"a", "a", "", false},
        {"a=", "a", "", false},
        {"a=b=c", "a", "b=c", false},
        {"&&a=1&&", "a", "1", false},
        {"=1", "", "1", false},
        {"%61=x+y%26", "a", "x y&", false},
        {"a=1&a=1", "a", NULL, true},
        {"a=1&%61=2", "a", NULL, true},
        {"a=%", "a", NULL, true},
        {"b=%zz", "a", NULL, false}, /* whoever asks for b will be told */
        {"%zz=1", "a", NULL, true},
        {"A=1", "a", NULL, false},
    };
    struct arena a = {0};

    for (size_t i = 0; i < COUNT(cases); i++) {
        bool bad = false;
        struct str v = http_query_get(str_of(cases[i].query), cases[i].name, &a, &bad);
        assert_int_equal(bad, cases[i].bad);
        assert_int_equal(str_present(v), cases[i].value != NULL);
        if (cases[i].value != NULL)
            assert_true(str_eq(v, str_of(cases[i].value)));
    }
    arena_free(&a);
}

/* ---- headers ---- */

static void repeated_headers_are_known(void **state)
{
    static const char text[] = "A: 1\r\nBb: 2\r\na: 3\r\n";
    struct head_field fields[] = {{{0, 1}, {3, 1}}, {{6, 2}, {10, 1}}, {{13, 1}, {16, 1}}};
    struct http_exchange x = {.bytes = text, .head = {.fields = fields, .field_count = 3}};

    (void)state;
    assert_true(http_header_repeated(&x, "A"));
    assert_true(http_header_repeated(&x, "a"));
    assert_false(http_header_repeated(&x, "bb"));
    assert_false(http_header_repeated(&x, "c"));
    assert_true(str_eq(http_header(&x, "A"), STR("1")));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(timers_like_a_list),
        cmocka_unit_test(timers_that_move_later_cost_no_place),
        cmocka_unit_test(budget_is_first_come_first_served),
        cmocka_unit_test(growing_bodies_do_not_lock_each_other_out),
        cmocka_unit_test(budget_never_overdrawn_never_stuck),
        cmocka_unit_test(unescape),
        cmocka_unit_test(query),
        cmocka_unit_test(repeated_headers_are_known),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
