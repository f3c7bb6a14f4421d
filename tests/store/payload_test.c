/* SPDX-License-Identifier: Apache-2.0
 * Payloads come back byte for byte, whatever their size, and absent ones stay absent. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

#include "store/payload.h"
#include "support/store_both.h"
#include "support/store_fixture.h"

/* Every byte value occurs, zero bytes first. */
static struct str bytes_of(size_t n, unsigned seed)
{
    char *p = malloc(n + 1);

    assert_non_null(p);
    for (size_t i = 0; i < n; i++)
        p[i] = (char)((i * (2 * seed + 1) + i / 256) & 0xff);
    return str_make(p, n);
}

static void drop(struct str s)
{
    free((void *)(uintptr_t)s.p);
}

static void assert_same(struct str got, struct str want)
{
    assert_true(str_present(got));
    assert_int_equal(got.n, want.n);
    if (want.n > 0)
        assert_memory_equal(got.p, want.p, want.n);
}

static void check_size(struct fixture *f, size_t n)
{
    struct str input = bytes_of(n, 1), args = bytes_of(n, 2), result = bytes_of(n, 3),
               state = bytes_of(n, 4);
    struct uuid id;
    struct hash h = fixture_hash(n);
    struct execution *x;
    struct step *s;
    struct execution_view ev;
    struct step_view sv;
    struct err e = {0};
    bool found;

    fixture_load(f);
    x = fixture_execution(f, "a");
    id = x->id;
    x->input = input;
    s = fixture_step(f, x, &h, args);
    fixture_commit(f);
    ws_need_step(&f->ws, &id, &h);
    fixture_load(f);
    s = ws_step(&f->ws, &h);
    fixture_settle(f, s, result);
    s->error = state;
    s->execution->output = args;
    s->execution->state = state;
    ws_touch_execution(&f->ws, s->execution);
    fixture_commit(f);
    ws_need_step(&f->ws, &id, &h);
    fixture_load(f);
    s = ws_step(&f->ws, &h);
    assert_same(s->result, result);
    assert_same(s->error, state);
    fixture_commit(f);
    assert_true(store_read_execution(f->r, &id, &f->arena, &ev, &found, &e));
    assert_true(found);
    assert_same(ev.input, input);
    assert_same(ev.output, args);
    assert_true(store_read_step(f->r, &id, &h, &f->arena, &sv, &found, &e));
    assert_true(found);
    assert_same(sv.args, args);
    assert_same(sv.result, result);
    assert_same(sv.error, state);
    drop(input);
    drop(args);
    drop(result);
    drop(state);
    arena_free(&f->arena);
}

static void every_size(void **state)
{
    static const size_t sizes[] = {
        0,    1,    2,     255,    256,    257,    2046,   2047,        2048,
        2049, 4096, 65536, 262143, 262144, 262145, 524288, 1024 * 1024, 10 * 1024 * 1024,
    };
    struct fixture f;

    fixture_open(&f, *(enum fixture_kind *)*state);
    fixture_agent(&f, "a");
    for (size_t i = 0; i < COUNT(sizes); i++)
        check_size(&f, sizes[i]);
    fixture_close(&f);
}

static void absent_null_and_empty_differ(void **state)
{
    static const struct str values[] = {{NULL, 0}, STR_INIT(""), STR_INIT("null"), STR_INIT("\0")};
    struct fixture f;
    struct uuid id;
    struct execution *x;

    fixture_open(&f, *(enum fixture_kind *)*state);
    fixture_agent(&f, "a");
    fixture_load(&f);
    x = fixture_execution(&f, "a");
    id = x->id;
    for (size_t i = 0; i < COUNT(values); i++) {
        struct hash h = fixture_hash(i);

        fixture_settle(&f, fixture_step(&f, x, &h, values[i]), values[i]);
    }
    fixture_commit(&f);
    for (size_t i = 0; i < COUNT(values); i++) {
        struct hash h = fixture_hash(i);
        struct step_view v;
        struct err e = {0};
        bool found;

        assert_true(store_read_step(f.r, &id, &h, &f.arena, &v, &found, &e));
        assert_int_equal(str_present(v.args), str_present(values[i]));
        assert_int_equal(str_present(v.result), str_present(values[i]));
        assert_true(str_eq(v.result, values[i]));
        assert_true(str_eq(v.args, values[i]));
        assert_false(str_present(v.error));
    }
    fixture_close(&f);
}

/* Many large ones in one group, some shared by rows that are new and rows that change. */
static void group_of_large_payloads(void **state)
{
    enum { N = 40 };
    struct fixture f;
    struct uuid id;
    struct execution *x;
    struct str payloads[N];

    fixture_open(&f, *(enum fixture_kind *)*state);
    fixture_agent(&f, "a");
    fixture_load(&f);
    x = fixture_execution(&f, "a");
    id = x->id;
    for (unsigned i = 0; i < N; i++) {
        struct hash h = fixture_hash(i);

        payloads[i] = bytes_of(PAYLOAD_INLINE_MAX - 5 + i, i);
        fixture_step(&f, x, &h, payloads[i]);
    }
    fixture_commit(&f);
    for (unsigned i = 0; i < N; i++) {
        struct hash h = fixture_hash(i);

        ws_need_step(&f.ws, &id, &h);
    }
    fixture_load(&f);
    for (unsigned i = 0; i < N; i++) {
        struct hash h = fixture_hash(i);

        fixture_settle(&f, ws_step(&f.ws, &h), payloads[N - 1 - i]);
    }
    fixture_commit(&f);
    for (unsigned i = 0; i < N; i++) {
        struct hash h = fixture_hash(i);

        ws_need_step(&f.ws, &id, &h);
    }
    fixture_load(&f);
    for (unsigned i = 0; i < N; i++) {
        struct hash h = fixture_hash(i);

        assert_same(ws_step(&f.ws, &h)->result, payloads[N - 1 - i]);
    }
    for (unsigned i = 0; i < N; i++)
        drop(payloads[i]);
    fixture_close(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        ON_BOTH(every_size),
        ON_BOTH(absent_null_and_empty_differ),
        ON_BOTH(group_of_large_payloads),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
