/* SPDX-License-Identifier: Apache-2.0
 * Approvals: what is applied comes back; a decision is final; lists and due ones compared with what
 * a plain loop over the same rows says. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

#include "base/clock.h"
#include "support/check.h"
#include "support/store_both.h"
#include "support/store_fixture.h"

/* A step that waits, as the rule that holds it leaves it. */
static void hold_step(struct fixture *f, struct execution *x, const struct hash *id,
                      struct str args)
{
    struct step *s = fixture_step(f, x, id, args);

    s->status = STEP_AWAITING_APPROVAL;
    s->started_at = 0;
}

/* An execution with one held step; the group is open. */
static struct execution *held_execution(struct fixture *f, const struct hash *step, struct str args)
{
    struct execution *x;

    fixture_load(f);
    x = fixture_execution(f, "a");
    hold_step(f, x, step, args);
    return x;
}

static struct approval *load_approval(struct fixture *f, const struct uuid *execution,
                                      const struct uuid *id)
{
    ws_need_approval(&f->ws, execution, id);
    fixture_load(f);
    assert_true(ws_knows_approval(&f->ws, id));
    return ws_approval(&f->ws, id);
}

static struct execution *load_pending(struct fixture *f, const struct uuid *execution)
{
    ws_need_pending(&f->ws, execution);
    fixture_load(f);
    assert_true(ws_execution(&f->ws, execution)->pending_known);
    return ws_execution(&f->ws, execution);
}

static struct approval_view view_approval(struct fixture *f, const struct uuid *id)
{
    struct approval_view v = {0};
    struct err e = {0};
    bool found;

    assert_true(store_read_approval(f->r, id, &f->arena, &v, &found, &e));
    assert_true(found);
    return v;
}

static void decide(struct fixture *f, struct approval *a, enum approval_status status)
{
    a->status = status;
    a->decided_at = f->ws.now.wall_us;
    ws_touch_approval(&f->ws, a);
    ws_approval_left_pending(a);
}

/* ---- rows ---- */

static void approval_round_trip(void **state)
{
    struct fixture f;
    struct uuid execution, id;
    struct hash step = fixture_hash(1);
    struct approval *a;
    struct approval_view v;

    fixture_open(&f, *(enum fixture_kind *)*state);
    fixture_agent(&f, "a");
    a = fixture_approval(&f, held_execution(&f, &step, STR("{\"n\": 1.0}")), &step, 22);
    id = a->id;
    execution = a->execution->id;
    a->approvers = STR("[\"alice\"]");
    a->message = ODD;
    a->created_at = 11;
    fixture_commit(&f);
    fixture_reopen(&f);
    a = load_approval(&f, &execution, &id); /* brings its execution */
    assert_non_null(a);
    assert_true(a->key != 0);
    assert_ptr_equal(a->execution, ws_execution(&f.ws, &execution));
    assert_memory_equal(&a->step_id, &step, sizeof(step));
    assert_int_equal(a->status, APPROVAL_PENDING);
    assert_str(a->approvers, STR("[\"alice\"]"));
    assert_str(a->message, ODD);
    assert_str(a->decided_by, STR_NONE);
    assert_int_equal(a->created_at, 11);
    assert_int_equal(a->timeout_at, 22);
    assert_int_equal(a->decided_at, 0);
    v = view_approval(&f, &id);
    assert_str(v.status, STR("pending"));
    assert_str(v.approvers, STR("[\"alice\"]"));
    assert_str(v.decided_by, STR_NONE);
    assert_int_equal(v.decided_at, 0);
    a->status = APPROVAL_DENIED;
    a->decided_at = 33;
    a->decided_by = ODD;
    a->asserted_by = STR("");
    a->rationale = ODD;
    ws_touch_approval(&f.ws, a);
    fixture_commit(&f);
    a = load_approval(&f, &execution, &id);
    assert_int_equal(a->status, APPROVAL_DENIED);
    assert_int_equal(a->decided_at, 33);
    assert_str(a->decided_by, ODD);
    assert_str(a->asserted_by, STR(""));
    assert_str(a->rationale, ODD);
    v = view_approval(&f, &id);
    assert_true(uuid_eq(&v.id, &id));
    assert_true(uuid_eq(&v.execution_id, &execution));
    assert_memory_equal(&v.step_id, &step, sizeof(step));
    assert_str(v.status, STR("denied"));
    assert_str(v.message, ODD);
    assert_str(v.decided_by, ODD);
    assert_str(v.asserted_by, STR(""));
    assert_str(v.rationale, ODD);
    assert_int_equal(v.created_at, 11);
    assert_int_equal(v.timeout_at, 22);
    assert_int_equal(v.decided_at, 33);
    assert_str(v.agent_id, STR("a"));
    assert_str(v.kind, STR("tool_call"));
    assert_str(v.target, STR("send"));
    assert_str(v.args, STR("{\"n\": 1.0}"));
    fixture_close(&f);
}

static void absent_approvals(void **state)
{
    struct fixture f;
    struct uuid execution, other, id, nobody = {{1}};
    struct hash step = fixture_hash(1), second = fixture_hash(2);
    struct approval_view v;
    struct err e = {0};
    bool found;

    fixture_open(&f, *(enum fixture_kind *)*state);
    fixture_agent(&f, "a");
    execution = held_execution(&f, &step, STR("1"))->id;
    id = fixture_approval(&f, ws_execution(&f.ws, &execution), &step, 5)->id;
    other = held_execution(&f, &second, STR("1"))->id;
    fixture_commit(&f);
    assert_null(load_approval(&f, &execution, &nobody));
    assert_null(load_approval(&f, &nobody, &nobody));
    assert_null(load_approval(&f, &other, &id)); /* it is of another execution */
    fixture_commit(&f);
    ws_need_approval(&f.ws, &other, &id); /* one of a group is wrong about it */
    ws_need_approval(&f.ws, &execution, &id);
    ws_need_pending(&f.ws, &nobody);
    ws_need_pending(&f.ws, &other);
    fixture_load(&f);
    assert_non_null(ws_approval(&f.ws, &id));
    assert_null(ws_execution(&f.ws, &nobody));
    assert_true(ws_execution(&f.ws, &other)->pending_known);
    assert_int_equal(ws_execution(&f.ws, &other)->n_pending, 0);
    assert_true(store_read_approval(f.r, &nobody, &f.arena, &v, &found, &e));
    assert_false(found);
    fixture_close(&f);
}

static void pending_oldest_first(void **state)
{
    enum { N = 7 };
    struct fixture f;
    struct uuid execution, ids[N];
    struct hash steps[N];
    struct execution *x;

    fixture_open(&f, *(enum fixture_kind *)*state);
    fixture_agent(&f, "a");
    steps[0] = fixture_hash(0);
    execution = held_execution(&f, &steps[0], STR("1"))->id;
    for (size_t i = 0; i < N; i++) {
        x = fixture_get(&f, &execution);
        steps[i] = fixture_hash(i);
        if (i > 0)
            hold_step(&f, x, &steps[i], STR("1"));
        /* the order of their times is another one; several come in one group */
        ids[i] = fixture_approval(&f, x, &steps[i], (int64_t)(N - i))->id;
        if (i % 3 == 2)
            fixture_commit(&f);
    }
    assert_int_equal(load_pending(&f, &execution)->n_pending, N); /* the last is only in the set */
    fixture_commit(&f);
    x = load_pending(&f, &execution);
    assert_int_equal(x->n_pending, N);
    for (size_t i = 0; i < N; i++)
        assert_true(uuid_eq(&x->pending[i]->id, &ids[i]));
    decide(&f, ws_approval(&f.ws, &ids[2]), APPROVAL_GRANTED);
    decide(&f, ws_approval(&f.ws, &ids[5]), APPROVAL_EXPIRED);
    ws_need_approval(&f.ws, &execution, &ids[2]); /* the set knows better than the database */
    fixture_load(&f);
    assert_int_equal(ws_approval(&f.ws, &ids[2])->status, APPROVAL_GRANTED);
    fixture_commit(&f);
    fixture_reopen(&f);
    x = load_pending(&f, &execution);
    assert_int_equal(x->n_pending, N - 2);
    assert_true(uuid_eq(&x->pending[2]->id, &ids[3]));
    assert_true(uuid_eq(&x->pending[4]->id, &ids[6]));
    assert_int_equal(load_approval(&f, &execution, &ids[5])->status, APPROVAL_EXPIRED);
    fixture_close(&f);
}

/* Held and decided in one group, as when it is cancelled at once. */
static void born_and_decided_in_one_group(void **state)
{
    struct fixture f;
    struct uuid execution, id;
    struct hash step = fixture_hash(1);
    struct approval *a;

    fixture_open(&f, *(enum fixture_kind *)*state);
    fixture_agent(&f, "a");
    a = fixture_approval(&f, held_execution(&f, &step, STR("1")), &step, 5);
    id = a->id;
    execution = a->execution->id;
    a->decided_by = STR("bob");
    decide(&f, a, APPROVAL_EXPIRED);
    fixture_commit(&f);
    a = load_approval(&f, &execution, &id);
    assert_int_equal(a->status, APPROVAL_EXPIRED);
    assert_true(a->decided_at > 0);
    assert_str(a->decided_by, STR("bob"));
    assert_int_equal(load_pending(&f, &execution)->n_pending, 0);
    fixture_close(&f);
}

/* Whoever decides second changes nothing, and is told. */
static void a_decision_is_final(void **state)
{
    struct fixture f;
    struct uuid execution, id;
    struct hash step = fixture_hash(1);
    struct approval *a;
    struct err e = {0};
    bool unknown;

    fixture_open(&f, *(enum fixture_kind *)*state);
    fixture_agent(&f, "a");
    a = fixture_approval(&f, held_execution(&f, &step, STR("1")), &step, 5);
    id = a->id;
    execution = a->execution->id;
    fixture_commit(&f);
    a = load_approval(&f, &execution, &id);
    (void)fixture_sql(&f, "UPDATE approvals SET status = 'granted', decided_at = 1");
    decide(&f, a, APPROVAL_DENIED);
    fixture_event(&f, a->execution, "approval.denied\t\n");
    assert_false(store_commit(f.w, &f.ws, &unknown, &e));
    assert_int_equal(e.code, ERR_STORE_RACE);
    store_abandon(f.w);
    ws_clear(&f.ws);
    a = load_approval(&f, &execution, &id);
    assert_int_equal(a->status, APPROVAL_GRANTED);
    assert_int_equal(a->decided_at, 1);
    fixture_close(&f);
}

/* ---- lists ---- */

enum { ROWS = 120, EXECUTIONS = 5 };
struct row {
    struct uuid id, execution;
    enum approval_status status;
    int64_t timeout_at;
    size_t order; /* of creation */
};

static int soonest(const void *a, const void *b)
{
    const struct row *x = a, *y = b;

    if (x->timeout_at != y->timeout_at)
        return x->timeout_at < y->timeout_at ? -1 : 1;
    return x->order < y->order ? -1 : 1;
}

/* Few different times, so that many rows are told apart by their keys alone; ids spread over their
 * whole range, so that a prefix has few or many of them. */
static void fill_rows(struct fixture *f, struct row *rows)
{
    struct uuid executions[EXECUTIONS];

    fixture_agent(f, "a");
    for (size_t i = 0; i < EXECUTIONS; i++) {
        fixture_load(f);
        executions[i] = fixture_execution(f, "a")->id;
        fixture_commit(f);
    }
    for (size_t i = 0; i < ROWS; i++) {
        struct uuid execution = executions[prng_below(&f->random, EXECUTIONS)];
        struct execution *x = fixture_get(f, &execution);
        struct hash step = fixture_hash(i);
        struct approval *a;
        struct uuid id = {{0}};

        for (size_t b = 0; b < 3; b++)
            id.b[b] = (uint8_t)prng_below(&f->random, 256);
        id.b[15] = (uint8_t)i;
        hold_step(f, x, &step, STR("{}"));
        a = ws_new_approval(&f->ws, x, &id);
        a->step_id = step;
        a->timeout_at = 1000 + (int64_t)prng_below(&f->random, 9);
        rows[i] = (struct row){id, execution, APPROVAL_PENDING, a->timeout_at, i};
        rows[i].status =
            (enum approval_status)(prng_below(&f->random, 2) * prng_below(&f->random, 4));
        if (rows[i].status != APPROVAL_PENDING)
            decide(f, a, rows[i].status);
        if (prng_below(&f->random, 3) == 0)
            fixture_commit(f);
    }
    fixture_commit(f);
    qsort(rows, ROWS, sizeof(rows[0]), soonest);
}

static bool wanted(const struct row *row, const struct approval_filter *f)
{
    return (!str_present(f->status) || str_eq(f->status, approval_status_name(row->status))) &&
           (f->execution_id == NULL || uuid_eq(f->execution_id, &row->execution)) &&
           memcmp(&row->id, &f->low, sizeof(row->id)) >= 0 &&
           memcmp(&row->id, &f->high, sizeof(row->id)) <= 0;
}

/* Page by page to the end. */
static void compare_lists(struct fixture *f, const struct row *rows, struct approval_filter filter,
                          size_t which)
{
    struct approval_view *got = NULL, last;
    struct err e = {0};
    size_t at = 0, n = 0;

    for (size_t i = 0; i < ROWS; i++) {
        if (!wanted(&rows[i], &filter))
            continue;
        if (at == n) {
            if (n > 0) {
                last = got[n - 1];
                filter.after = &last;
            }
            assert_true(store_list_approvals(f->r, &filter, &f->arena, &got, &n, &e));
            CHECKF(n > 0 && n <= filter.limit, "filter %zu: %zu rows", which, n);
            at = 0;
        }
        CHECKF(uuid_eq(&got[at].id, &rows[i].id), "filter %zu: row %zu", which, i);
        CHECK_STR(got[at].status, approval_status_name(rows[i].status));
        assert_true(uuid_eq(&got[at].execution_id, &rows[i].execution));
        at++;
    }
    assert_int_equal(at, n);
    if (n > 0)
        filter.after = &got[n - 1];
    assert_true(store_list_approvals(f->r, &filter, &f->arena, &got, &n, &e));
    assert_int_equal(n, 0);
    arena_reset(&f->arena);
}

static void lists(void **state)
{
    static const struct uuid ALL_LOW;
    struct fixture f;
    struct row rows[ROWS];
    size_t which = 0;

    fixture_open(&f, *(enum fixture_kind *)*state);
    fill_rows(&f, rows);
    for (unsigned status = 0; status < 6; status++) {
        for (unsigned digits = 0; digits < 3; digits++) {
            for (int of_execution = 0; of_execution < 2; of_execution++) {
                const struct row *some = &rows[prng_below(&f.random, ROWS)];
                struct approval_filter filter = {.low = ALL_LOW};

                memset(filter.high.b, 0xff, sizeof(filter.high.b));
                filter.limit = (size_t)prng_below(&f.random, 25) + 1;
                if (status < 4)
                    filter.status = approval_status_name((enum approval_status)status);
                else if (status == 4)
                    filter.status = STR("nonsense");
                for (unsigned d = 0; d < digits; d++) { /* a prefix of so many digits */
                    uint8_t mask = d == 0 ? 0xf0 : 0x0f;

                    filter.low.b[0] |= some->id.b[0] & mask;
                    filter.high.b[0] &= (uint8_t)(some->id.b[0] | ~mask);
                }
                if (of_execution)
                    filter.execution_id = &some->execution;
                compare_lists(&f, rows, filter, which++);
            }
        }
    }
    fixture_close(&f);
}

/* More of them begin alike than are looked at one by one. */
static void lists_of_a_common_prefix(void **state)
{
    enum { N = 2100 };
    struct fixture f;
    struct uuid low = {{0x77}};
    struct approval_filter filter = {.limit = 3, .status = STR("pending"), .low = low};
    struct approval_view *got;
    struct execution *x;
    struct hash step = fixture_hash(1);
    struct err e = {0};
    size_t n;

    fixture_open(&f, *(enum fixture_kind *)*state);
    fixture_agent(&f, "a");
    x = held_execution(&f, &step, STR("1"));
    for (size_t i = 0; i < N; i++) {
        struct uuid id = {{0x77, (uint8_t)(i >> 8), (uint8_t)i}};
        struct approval *a;

        a = ws_new_approval(&f.ws, x, &id);
        a->step_id = step;
        a->timeout_at = (int64_t)(N - i);
        if (i % 2 == 0)
            decide(&f, a, APPROVAL_GRANTED);
    }
    fixture_approval(&f, x, &step, 1); /* the soonest has another prefix */
    fixture_commit(&f);
    memset(filter.high.b, 0xff, sizeof(filter.high.b));
    filter.high.b[0] = 0x77;
    for (int64_t timeout_at = 1; timeout_at < 20; timeout_at += 2 * (int64_t)filter.limit) {
        assert_true(store_list_approvals(f.r, &filter, &f.arena, &got, &n, &e));
        assert_int_equal(n, filter.limit);
        for (size_t i = 0; i < n; i++) {
            assert_int_equal(got[i].timeout_at, timeout_at + 2 * (int64_t)i);
            assert_int_equal(got[i].id.b[0], 0x77);
        }
        filter.after = &got[n - 1];
    }
    fixture_close(&f);
}

static void lists_of_large_arguments(void **state)
{
    enum { N = 6, LARGE = 100 * 1000 };
    struct fixture f;
    struct uuid execution;
    struct approval_filter filter = {.limit = 10};
    struct approval_view *got;
    struct err e = {0};
    char *args = malloc(LARGE);
    size_t n;

    memset(args, '1', LARGE);
    memset(filter.high.b, 0xff, sizeof(filter.high.b));
    fixture_open(&f, *(enum fixture_kind *)*state);
    fixture_agent(&f, "a");
    fixture_load(&f);
    execution = fixture_execution(&f, "a")->id;
    for (size_t i = 0; i < N; i++) {
        struct hash step = fixture_hash(i);

        hold_step(&f, ws_execution(&f.ws, &execution), &step, str_make(args, LARGE - i));
        fixture_approval(&f, ws_execution(&f.ws, &execution), &step, (int64_t)i + 1);
    }
    fixture_commit(&f);
    filter.max_bytes = 2 * LARGE;
    assert_true(store_list_approvals(f.r, &filter, &f.arena, &got, &n, &e));
    assert_int_equal(n, 3); /* the third exceeds it */
    for (size_t i = 0; i < n; i++)
        assert_str(got[i].args, str_make(args, LARGE - i));
    filter.max_bytes = 1; /* one at the least */
    filter.after = &got[2];
    assert_true(store_list_approvals(f.r, &filter, &f.arena, &got, &n, &e));
    assert_int_equal(n, 1);
    assert_int_equal(got[0].timeout_at, 4);
    filter.brief = true;
    filter.after = NULL;
    assert_true(store_list_approvals(f.r, &filter, &f.arena, &got, &n, &e));
    assert_int_equal(n, N);
    assert_str(got[0].args, STR_NONE);
    assert_str(got[0].target, STR("send"));
    assert_str(view_approval(&f, &got[5].id).args, str_make(args, LARGE - 5));
    free(args);
    fixture_close(&f);
}

/* ---- those whose time is over ---- */

static void due_approvals(void **state)
{
    static const int64_t times[] = {-40, 300, -10, -30, 200, -20, -50};
    static const int64_t due[] = {-50, -40, -30, -20, -10}; /* -50 is decided */
    struct fixture f;
    struct uuid ids[COUNT(times)], execution;
    struct due_approval *got;
    struct execution *x;
    struct hash step = fixture_hash(1);
    struct err e = {0};
    int64_t now, next, base;
    size_t n;

    fixture_open(&f, *(enum fixture_kind *)*state);
    assert_true(store_due_approvals(f.r, 5, &f.arena, &got, &n, &now, &next, &e));
    assert_int_equal(n, 0);
    assert_int_equal(next, 0);
    assert_true(llabs(now - clock_wall_us()) < 5 * US_PER_S);
    fixture_agent(&f, "a");
    x = held_execution(&f, &step, STR("1"));
    execution = x->id;
    base = f.ws.now.wall_us;
    for (size_t i = 0; i < COUNT(times); i++)
        ids[i] = fixture_approval(&f, x, &step, base + times[i] * US_PER_S)->id;
    decide(&f, ws_approval(&f.ws, &ids[6]), APPROVAL_GRANTED);
    fixture_commit(&f);
    for (size_t limit = 0; limit < 7; limit++) {
        assert_true(store_due_approvals(f.r, limit, &f.arena, &got, &n, &now, &next, &e));
        assert_int_equal(n, limit < 4 ? limit : 4);
        for (size_t i = 0; i < n; i++) {
            size_t which = 0;

            while (times[which] != due[i + 1])
                which++;
            assert_true(uuid_eq(&got[i].approval_id, &ids[which]));
            assert_true(uuid_eq(&got[i].execution_id, &execution));
        }
        /* what is overdue and has no room any more comes next */
        assert_int_equal(next, base + (limit < 4 ? due[limit + 1] : 200) * US_PER_S);
    }
    fixture_close(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        ON_BOTH(approval_round_trip),
        ON_BOTH(absent_approvals),
        ON_BOTH(pending_oldest_first),
        ON_BOTH(born_and_decided_in_one_group),
        ON_POSTGRES(a_decision_is_final),
        ON_BOTH(lists),
        ON_BOTH(lists_of_a_common_prefix),
        ON_BOTH(lists_of_large_arguments),
        ON_BOTH(due_approvals),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
