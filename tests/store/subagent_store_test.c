/* SPDX-License-Identifier: Apache-2.0
 * Subagents in the store: what an execution began as and what its steps have started comes back;
 * how one ended; what background work and readers look for, compared with what a plain loop over
 * the same rows says. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

#include "support/check.h"
#include "support/store_both.h"
#include "support/store_fixture.h"

static const struct uuid NIL;

static void assert_id(struct uuid got, struct uuid want)
{
    assert_memory_equal(got.b, want.b, sizeof(got.b));
}

static void assert_hash(struct hash got, struct hash want)
{
    assert_memory_equal(got.b, want.b, sizeof(got.b));
}

static struct execution_view view(struct fixture *f, const struct uuid *id)
{
    struct execution_view v = {0};
    struct err e = {0};
    bool found;

    assert_true(store_read_execution(f->r, id, &f->arena, &v, &found, &e));
    assert_true(found);
    return v;
}

/* ---- rows ---- */

static void a_subagent_comes_back(void **state)
{
    struct fixture f;
    struct uuid id, other, spawner = {{0xff, 1}};
    struct hash step = fixture_hash(1);
    struct str above = STR("s\0\xff ' \\\0\0");
    struct execution *x;

    fixture_open(&f, *(enum fixture_kind *)*state);
    fixture_load(&f);
    other = fixture_execution(&f, "a")->id;
    x = fixture_execution(&f, "a");
    id = x->id;
    x->spawned_by = spawner;
    x->spawned_step = step;
    x->owes = true;
    ws_set_text(&x->above, above);
    fixture_commit(&f);
    fixture_reopen(&f);
    x = fixture_get(&f, &id);
    assert_id(x->spawned_by, spawner);
    assert_hash(x->spawned_step, step);
    assert_true(x->owes);
    assert_str(x->above, above);
    assert_false(x->forked || x->has_policy || x->suspended);
    assert_int_equal(x->spawns + x->awaited + x->n_registered, 0);
    assert_id(view(&f, &id).spawned_by, spawner);
    assert_hash(view(&f, &id).spawned_step, step);
    x->status = EXECUTION_COMPLETED; /* it ends, and then its end is told */
    x->ended_at = 77;
    ws_touch_execution(&f.ws, x);
    fixture_commit(&f);
    x = fixture_get(&f, &id);
    assert_true(x->owes);
    assert_int_equal(x->ended_at, 77);
    x->owes = false;
    ws_touch_execution(&f.ws, x);
    fixture_commit(&f);
    x = fixture_get(&f, &id);
    assert_false(x->owes);
    assert_int_equal(x->status, EXECUTION_COMPLETED);
    assert_int_equal(x->ended_at, 77);
    assert_id(x->spawned_by, spawner);
    assert_hash(x->spawned_step, step);
    assert_str(x->above, above);
    x = fixture_get(&f, &other);
    assert_id(x->spawned_by, NIL);
    assert_false(x->owes);
    assert_false(str_present(x->above));
    assert_id(view(&f, &other).spawned_by, NIL);
    fixture_close(&f);
}

static void a_spawner_comes_back(void **state)
{
    struct fixture f;
    struct uuid id;
    struct execution *x;

    fixture_open(&f, *(enum fixture_kind *)*state);
    fixture_load(&f);
    x = fixture_execution(&f, "a");
    id = x->id;
    x->spawns = 3;
    x->awaited = 2;
    fixture_commit(&f);
    fixture_reopen(&f);
    for (int round = 0; round < 2; round++) {
        x = fixture_get(&f, &id);
        assert_int_equal(x->spawns, 3 + round);
        assert_int_equal(x->awaited, 2 - round);
        assert_int_equal(x->suspended, round == 1);
        x->spawns++;
        x->awaited--;
        x->suspended = true;
        ws_touch_execution(&f.ws, x);
        fixture_commit(&f);
    }
    fixture_close(&f);
}

static void a_fork_comes_back(void **state)
{
    enum { LARGE = 300 * 1000 };
    static char large[LARGE];
    struct fixture f;
    struct uuid id, plain, source = {{3, 4}};
    struct hash policy = fixture_hash(5);
    struct execution *x;
    struct execution_view v;

    memset(large, ' ', LARGE);
    fixture_open(&f, *(enum fixture_kind *)*state);
    fixture_load(&f);
    plain = fixture_execution(&f, "a")->id;
    x = fixture_execution(&f, "a");
    id = x->id;
    x->forked = true;
    x->forking = &(const struct forking){.source = source,
                                         .at_seq = 12,
                                         .restoration = str_make(large, LARGE),
                                         .policy_bundle = STR("rules: []\n")};
    x->has_policy = true;
    x->bundle.hash = policy;
    fixture_commit(&f);
    fixture_reopen(&f);
    x = fixture_get(&f, &id);
    assert_true(x->forked);
    assert_true(x->has_policy);
    assert_hash(x->bundle.hash, policy);
    assert_null(x->forking);
    x->tokens = 9;
    ws_touch_execution(&f.ws, x);
    fixture_commit(&f);
    assert_true(fixture_get(&f, &id)->forked);
    assert_true(fixture_get(&f, &id)->has_policy);
    v = view(&f, &id);
    assert_id(v.forked_from, source);
    assert_int_equal(v.fork_seq, 12);
    assert_str(v.restoration, str_make(large, LARGE));
    v = view(&f, &plain);
    assert_id(v.forked_from, NIL);
    assert_int_equal(v.fork_seq, 0);
    assert_str(v.restoration, STR_NONE);
    assert_false(fixture_get(&f, &plain)->forked);
    assert_false(fixture_get(&f, &plain)->has_policy);
    assert_string_equal(
        fixture_sql(&f, "SELECT count(*) FROM executions WHERE policy_bundle IS NOT NULL"), "1");
    fixture_close(&f);
}

static struct step *get_step(struct fixture *f, const struct uuid *execution, const struct hash *id)
{
    ws_need_step(&f->ws, execution, id);
    fixture_load(f);
    assert_non_null(ws_step(&f->ws, id));
    return ws_step(&f->ws, id);
}

static struct str shown_affects(struct fixture *f, const struct uuid *execution,
                                const struct hash *id)
{
    struct step_view v;
    struct err e = {0};
    bool found;

    assert_true(store_read_step(f->r, execution, id, &f->arena, &v, &found, &e));
    assert_true(found);
    return v.affects;
}

static void a_step_comes_back(void **state)
{
    struct fixture f;
    struct uuid execution = NIL, child = {{0xff, 9}};
    struct hash ids[2] = {fixture_hash(1), fixture_hash(2)};
    struct step *s;

    fixture_open(&f, *(enum fixture_kind *)*state);
    execution = fixture_claimed(&f);
    s = fixture_step(&f, fixture_get(&f, &execution), &ids[0], STR("1"));
    ws_set_text(&s->affects, STR("[\"a\",\"b\"]"));
    (void)fixture_step(&f, fixture_get(&f, &execution), &ids[1], STR("2"));
    fixture_commit(&f);
    fixture_reopen(&f);
    s = get_step(&f, &execution, &ids[0]);
    assert_str(s->affects, STR("[\"a\",\"b\"]"));
    assert_id(s->subagent, NIL);
    assert_str(shown_affects(&f, &execution, &ids[0]), STR("[\"a\",\"b\"]"));
    assert_str(shown_affects(&f, &execution, &ids[1]), STR_NONE);
    s->subagent = child;
    ws_set_text(&s->affects, STR_NONE); /* run again, it declares none */
    ws_touch_step(&f.ws, s);
    s = get_step(&f, &execution, &ids[1]);
    assert_str(s->affects, STR_NONE);
    ws_set_text(&s->affects, STR("[\"c\"]"));
    ws_touch_step(&f.ws, s);
    fixture_commit(&f);
    s = get_step(&f, &execution, &ids[0]);
    assert_str(s->affects, STR_NONE);
    assert_id(s->subagent, child);
    fixture_settle(&f, s, STR("null"));
    fixture_commit(&f);
    assert_id(get_step(&f, &execution, &ids[0])->subagent, child);
    assert_str(get_step(&f, &execution, &ids[1])->affects, STR("[\"c\"]"));
    assert_str(shown_affects(&f, &execution, &ids[1]), STR("[\"c\"]"));
    fixture_close(&f);
}

/* ---- endings ---- */

static void endings(void **state)
{
    enum { LARGE = 700 * 1000 };
    static char large[LARGE];
    struct fixture f;
    const struct {
        struct str output, failure_reason;
    } cases[] = {
        {STR("1e2"), STR_NONE},
        {STR_NONE, STR_NONE},
        {str_make(large, LARGE), STR_NONE},
        {STR_NONE, ODD},
        {str_make(large, LARGE), STR("")},
    };
    struct uuid ids[COUNT(cases)], nobody = {{9}};

    memset(large, '1', LARGE);
    fixture_open(&f, *(enum fixture_kind *)*state);
    fixture_load(&f);
    for (size_t i = 0; i < COUNT(cases); i++) {
        struct execution *x = fixture_pending(&f, "a", STR_NONE);

        ids[i] = x->id;
        x->status = EXECUTION_COMPLETED;
        x->output = cases[i].output;
        x->failure_reason = cases[i].failure_reason;
    }
    fixture_commit(&f);
    for (size_t i = 0; i < COUNT(cases); i++)
        ws_need_ending(&f.ws, &ids[i]);
    ws_need_ending(&f.ws, &nobody);
    fixture_load(&f);
    for (size_t i = 0; i < COUNT(cases); i++) {
        const struct ending *ending = ws_ending(&f.ws, &ids[i]);

        assert_non_null(ending);
        assert_id(ending->execution_id, ids[i]);
        assert_str(ending->output, cases[i].output);
        assert_str(ending->failure_reason, cases[i].failure_reason);
        assert_false(ws_knows_execution(&f.ws, &ids[i])); /* it was not locked */
    }
    assert_non_null(ws_ending(&f.ws, &nobody)); /* known, or a rule would ask for ever */
    assert_str(ws_ending(&f.ws, &nobody)->output, STR_NONE);
    fixture_commit(&f);
    fixture_close(&f);
}

/* ---- what is looked for ---- */

enum { ROWS = 160, SPAWNERS = 8 };

struct row {
    struct uuid id, spawned_by;
    struct hash step;
    enum execution_status status;
    const char *agent, *session;
    bool owes;
    bool waits; /* its step is there, and executes */
};

/* Each was spawned by one of those that were born first, or by one that is not there, or by
 * nobody. */
static void spawn(struct fixture *f, struct row *rows, size_t i)
{
    struct row *row = &rows[i];
    size_t by = (size_t)prng_below(&f->random, SPAWNERS + 2);
    struct execution *x;

    row->status = (enum execution_status)prng_below(&f->random, 6);
    row->agent = prng_below(&f->random, 2) == 0 ? "a" : "b";
    row->session = prng_below(&f->random, 3) == 0 ? "s" : NULL;
    x = fixture_pending(f, row->agent, str_of(row->session));
    row->id = x->id;
    x->status = row->status;
    if (i < SPAWNERS || by == SPAWNERS)
        return;
    row->spawned_by = by < SPAWNERS ? rows[by].id : (struct uuid){{0xee}};
    row->step = fixture_hash(i);
    row->owes = !execution_status_is_terminal(row->status) || prng_below(&f->random, 2) == 0;
    x->spawned_by = row->spawned_by;
    x->spawned_step = row->step;
    x->owes = row->owes;
}

static void start_step(struct fixture *f, struct row *row)
{
    struct execution *spawner = ws_execution(&f->ws, &row->spawned_by);
    struct step *s;

    if (spawner == NULL || uuid_is_nil(&row->spawned_by))
        return;
    s = fixture_step(f, spawner, &row->step, STR("1"));
    s->subagent = row->id;
    row->waits = row->owes && prng_below(&f->random, 3) > 0;
    if (!row->waits) {
        s->status = STEP_CANCELLED;
        s->completed_at = 1;
    }
}

static void fill_rows(struct fixture *f, struct row *rows)
{
    fixture_load(f);
    for (size_t i = 0; i < ROWS; i++)
        spawn(f, rows, i);
    for (size_t i = 0; i < ROWS; i++)
        start_step(f, &rows[i]);
    fixture_commit(f);
}

static const struct row *row_of(const struct row *rows, const struct uuid *id)
{
    for (size_t i = 0; i < ROWS; i++)
        if (uuid_eq(&rows[i].id, id))
            return &rows[i];
    return NULL;
}

static bool is_orphan(const struct row *rows, const struct row *row)
{
    const struct row *spawner = row_of(rows, &row->spawned_by);

    return !uuid_is_nil(&row->spawned_by) && !execution_status_is_terminal(row->status) &&
           (spawner == NULL || execution_status_is_terminal(spawner->status));
}

static void check_owed(struct fixture *f, const struct row *rows, size_t limit)
{
    const struct uuid *after = NULL;
    struct owed *owed = NULL;
    struct err e = {0};
    size_t n = 0, at = 0;

    for (size_t i = 0; i < ROWS; i++) {
        if (!rows[i].owes || !execution_status_is_terminal(rows[i].status))
            continue;
        if (at == n) {
            assert_true(store_owed(f->r, after, limit, &f->arena, &owed, &n, &e));
            assert_in_range(n, 1, limit);
            at = 0;
        }
        assert_id(owed[at].child, rows[i].id);
        assert_id(owed[at].parent, rows[i].spawned_by);
        assert_hash(owed[at].step_id, rows[i].step);
        after = &rows[i].id;
        at++;
    }
    assert_int_equal(at, n);
    assert_true(store_owed(f->r, after, limit, &f->arena, &owed, &n, &e));
    assert_int_equal(n, 0);
}

static void check_orphans(struct fixture *f, const struct row *rows, size_t limit)
{
    const struct uuid *after = NULL;
    struct uuid *ids = NULL;
    struct err e = {0};
    size_t n = 0, at = 0;

    for (size_t i = 0; i < ROWS; i++) {
        if (!is_orphan(rows, &rows[i]))
            continue;
        if (at == n) {
            assert_true(store_orphans(f->r, after, limit, &f->arena, &ids, &n, &e));
            assert_in_range(n, 1, limit);
            at = 0;
        }
        assert_id(ids[at++], rows[i].id);
        after = &rows[i].id;
    }
    assert_int_equal(at, n);
    assert_true(store_orphans(f->r, after, limit, &f->arena, &ids, &n, &e));
    assert_int_equal(n, 0);
}

static void check_live(struct fixture *f, const struct row *rows, const struct uuid *spawner,
                       size_t limit)
{
    const struct uuid *after = NULL;
    struct uuid *ids = NULL;
    struct err e = {0};
    size_t n = 0, at = 0;

    for (size_t i = 0; i < ROWS; i++) {
        if (!uuid_eq(&rows[i].spawned_by, spawner) || execution_status_is_terminal(rows[i].status))
            continue;
        if (at == n) {
            assert_true(store_live_subagents(f->r, spawner, after, limit, &f->arena, &ids, &n, &e));
            assert_in_range(n, 1, limit);
            at = 0;
        }
        assert_id(ids[at++], rows[i].id);
        after = &rows[i].id;
    }
    assert_int_equal(at, n);
    assert_true(store_live_subagents(f->r, spawner, after, limit, &f->arena, &ids, &n, &e));
    assert_int_equal(n, 0);
}

static void check_awaited(struct fixture *f, const struct row *rows, const struct uuid *spawner,
                          size_t limit)
{
    struct uuid *ids;
    struct err e = {0};
    size_t n, at = 0;

    assert_true(store_awaited_subagents(f->r, spawner, limit, &f->arena, &ids, &n, &e));
    for (size_t i = 0; i < ROWS && at < limit; i++)
        if (uuid_eq(&rows[i].spawned_by, spawner) && rows[i].waits)
            assert_id(ids[at++], rows[i].id);
    assert_int_equal(at, n);
}

static void what_is_looked_for(void **state)
{
    struct fixture f;
    static struct row rows[ROWS];
    struct uuid nobody = {{9}};

    memset(rows, 0, sizeof(rows));
    fixture_open(&f, *(enum fixture_kind *)*state);
    fill_rows(&f, rows);
    for (size_t limit = 1; limit <= ROWS; limit = limit * 5 + 2) {
        check_owed(&f, rows, limit);
        check_orphans(&f, rows, limit);
        for (size_t i = 0; i <= SPAWNERS; i++) { /* one of them has spawned none */
            check_live(&f, rows, &rows[i].id, limit);
            check_awaited(&f, rows, &rows[i].id, limit);
        }
        check_live(&f, rows, &nobody, limit);
        check_awaited(&f, rows, &nobody, limit);
    }
    fixture_close(&f);
}

/* ---- lists ---- */

static bool matches(const struct row *row, const struct execution_filter *filter)
{
    return uuid_eq(&row->spawned_by, filter->spawned_by) &&
           (!str_present(filter->agent_id) || str_eq(filter->agent_id, str_of(row->agent))) &&
           (!str_present(filter->status) ||
            str_eq(filter->status, execution_status_name(row->status))) &&
           (!str_present(filter->session) ||
            (row->session != NULL && str_eq(filter->session, str_of(row->session)))) &&
           memcmp(row->id.b, filter->low.b, sizeof(row->id.b)) >= 0 &&
           memcmp(row->id.b, filter->high.b, sizeof(row->id.b)) <= 0;
}

/* Newest first, page by page. */
static void check_list(struct fixture *f, const struct row *rows, struct execution_filter filter)
{
    struct execution_view *got = NULL;
    struct err e = {0};
    size_t n = 0, at = 0;

    filter.before = NULL;
    for (size_t i = ROWS; i-- > 0;) {
        if (!matches(&rows[i], &filter))
            continue;
        if (at == n) {
            assert_true(store_list_executions(f->r, &filter, &f->arena, &got, &n, &e));
            assert_in_range(n, 1, filter.limit);
            at = 0;
        }
        assert_id(got[at].id, rows[i].id);
        assert_id(got[at].spawned_by, rows[i].spawned_by);
        assert_hash(got[at].spawned_step, rows[i].step);
        filter.before = &rows[i].id;
        at++;
    }
    assert_int_equal(at, n);
    assert_true(store_list_executions(f->r, &filter, &f->arena, &got, &n, &e));
    assert_int_equal(n, 0);
}

static void lists_of_what_one_spawned(void **state)
{
    struct fixture f;
    static struct row rows[ROWS];

    memset(rows, 0, sizeof(rows));
    fixture_open(&f, *(enum fixture_kind *)*state);
    fill_rows(&f, rows);
    for (unsigned bits = 0; bits < 32; bits++) {
        struct execution_filter filter = {.spawned_by = &rows[bits % SPAWNERS].id,
                                          .limit = bits % 2 == 0 ? 3 : ROWS};

        memset(&filter.high, 0xff, sizeof(filter.high));
        if (bits & 2)
            filter.agent_id = STR("b");
        if (bits & 4)
            filter.status = STR("running");
        if (bits & 8)
            filter.session = STR("s");
        if (bits & 16) {
            filter.low = rows[ROWS / 4].id;
            filter.high = rows[ROWS - ROWS / 4].id;
        }
        check_list(&f, rows, filter);
    }
    fixture_close(&f);
}

/* ---- plans ---- */

static void ask_everything(struct fixture *f)
{
    struct uuid spawner = {.b = {[15] = 1}}, *ids;
    struct execution_filter filter = {.spawned_by = &spawner, .limit = 10};
    struct execution_view *views;
    struct owed *owed;
    struct err e = {0};
    size_t n;

    memset(&filter.high, 0xff, sizeof(filter.high));
    assert_true(store_owed(f->r, NULL, 10, &f->arena, &owed, &n, &e));
    assert_int_equal(n, 5);
    assert_true(store_orphans(f->r, NULL, 10, &f->arena, &ids, &n, &e));
    assert_int_equal(n, 5);
    assert_true(store_live_subagents(f->r, &spawner, NULL, 10, &f->arena, &ids, &n, &e));
    assert_int_equal(n, 10);
    assert_true(store_awaited_subagents(f->r, &spawner, 10, &f->arena, &ids, &n, &e));
    assert_int_equal(n, 0);
    assert_true(store_list_executions(f->r, &filter, &f->arena, &views, &n, &e));
    assert_int_equal(n, 10);
}

/* Whatever statistics there are: one that has spawned twenty, among thousands that live, and
 * thousands that were spawned. (SQLite's statements name their indexes.) */
static void nothing_is_scanned(void **state)
{
    struct fixture f;

    fixture_open(&f, *(enum fixture_kind *)*state);
    (void)fixture_sql(
        &f, "INSERT INTO executions (key, id, agent_id, status, last_seq, created_at, claim, owner,"
            " owner_attempt, owner_lease, tokens, resources, spawns, awaited, suspended,"
            " spawned_by, spawned_step, owes) SELECT i, decode(lpad(to_hex(i), 32, '0'), 'hex'),"
            " 'a', CASE WHEN i = 1 OR i BETWEEN 101 AND 105 OR i > 6000 THEN 'completed' ELSE"
            " 'running' END, 1, 1, 1, 'none', 0, 0, 1, 0, 0, 0, 0, decode(lpad(to_hex(CASE WHEN i"
            " BETWEEN 101 AND 120 THEN 1 WHEN i > 6000 THEN 2 END), 32, '0'), 'hex'),"
            " CASE WHEN i BETWEEN 101 AND 120 OR i > 6000 THEN sha256('x') END,"
            " CASE WHEN i BETWEEN 101 AND 110 THEN 1 END FROM generate_series(1, 12000) i");
    ask_everything(&f);
    (void)fixture_sql(&f, "ANALYZE executions");
    ask_everything(&f);
    assert_in_range(fixture_rows_read(&f, "'executions'"), 1, 500);
    fixture_close(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        ON_BOTH(a_subagent_comes_back),
        ON_BOTH(a_spawner_comes_back),
        ON_BOTH(a_fork_comes_back),
        ON_BOTH(a_step_comes_back),
        ON_BOTH(endings),
        ON_BOTH(what_is_looked_for),
        ON_BOTH(lists_of_what_one_spawned),
        ON_POSTGRES(nothing_is_scanned),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
