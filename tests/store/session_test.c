/* SPDX-License-Identifier: Apache-2.0
 * Sessions: what is told of one, compared with what a plain loop over the same rows says; kernels
 * that meet in one start one execution; what a run continues; what an interrupted admission left.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

#include "kernel/move.h"
#include "support/check.h"
#include "support/store_both.h"
#include "support/store_fixture.h"

#define SESSION STR("s")

static const struct uuid NIL;

static void assert_id(struct uuid got, struct uuid want)
{
    assert_memory_equal(got.b, want.b, sizeof(got.b));
}

static struct session *load_session(struct fixture *f, struct str name)
{
    ws_need_session(&f->ws, name);
    fixture_load(f);
    assert_non_null(ws_session(&f->ws, name));
    return ws_session(&f->ws, name);
}

static struct uuid load_parent(struct fixture *f, struct str session, const char *agent_id)
{
    ws_need_parent(&f->ws, session, str_of(agent_id));
    fixture_load(f);
    assert_true(ws_knows_parent(&f->ws, session, str_of(agent_id)));
    return ws_parent(&f->ws, session, str_of(agent_id));
}

static int64_t load_tokens(struct fixture *f, const struct uuid *id)
{
    ws_need_session_tokens(&f->ws, id);
    fixture_load(f);
    assert_true(ws_execution(&f->ws, id)->session_tokens_known);
    return ws_execution(&f->ws, id)->session_tokens;
}

static struct execution *ended(struct fixture *f, const char *agent_id,
                               enum execution_status status)
{
    struct execution *x = fixture_pending(f, agent_id, SESSION);

    x->status = status;
    x->ended_at = 1;
    return x;
}

/* ---- rows ---- */

static struct execution_view view(struct fixture *f, const struct uuid *id)
{
    struct execution_view v = {0};
    struct err e = {0};
    bool found;

    assert_true(store_read_execution(f->r, id, &f->arena, &v, &found, &e));
    assert_true(found);
    return v;
}

static void session_and_parent_round_trip(void **state)
{
    struct fixture f;
    struct uuid ids[3], parent = {{7, 7}};
    struct str name = STR("\xe2\x82\xac ' \" \\ %");
    struct execution *x;

    fixture_open(&f, *(enum fixture_kind *)*state);
    fixture_agent(&f, "a");
    fixture_load(&f);
    ids[0] = fixture_pending(&f, "a", name)->id;
    ids[1] = fixture_pending(&f, "a", STR_NONE)->id;
    x = fixture_pending(&f, "a", SESSION);
    ids[2] = x->id;
    x->parent = parent; /* a branch has it from the first */
    fixture_commit(&f);
    fixture_reopen(&f);
    assert_str(fixture_get(&f, &ids[0])->session, name);
    assert_true(uuid_is_nil(&fixture_get(&f, &ids[0])->parent));
    assert_str(fixture_get(&f, &ids[1])->session, STR_NONE);
    assert_id(fixture_get(&f, &ids[2])->parent, parent);
    assert_str(view(&f, &ids[0]).session, name);
    assert_id(view(&f, &ids[0]).parent, NIL);
    assert_str(view(&f, &ids[1]).session, STR_NONE);
    assert_id(view(&f, &ids[2]).parent, parent);
    x = fixture_get(&f, &ids[0]); /* it starts, and then it ends */
    x->status = EXECUTION_RUNNING;
    x->parent = ids[2];
    ws_touch_execution(&f.ws, x);
    fixture_commit(&f);
    assert_id(view(&f, &ids[0]).parent, ids[2]);
    x = fixture_get(&f, &ids[0]);
    assert_id(x->parent, ids[2]);
    x->status = EXECUTION_FAILED;
    ws_touch_execution(&f.ws, x);
    fixture_commit(&f);
    assert_id(fixture_get(&f, &ids[0])->parent, ids[2]);
    assert_str(fixture_get(&f, &ids[0])->session, name);
    fixture_close(&f);
}

/* ---- facts ---- */

enum { ROWS = 150, SESSIONS = 6, AGENTS = 4 };
static const char *const SESSION_NAMES[SESSIONS] = {"s", "sa", "S", "", "t", "nobody"};
static const char *const AGENT_NAMES[AGENTS] = {"a", "B", "b", "nobody"};

struct row {
    struct uuid id;
    const char *session; /* NULL: none */
    const char *agent;
    enum execution_status status;
    int64_t tokens;
};

/* At most one of a session is at work, and it may be in the first or in the last of its rows. */
static void fill_rows(struct fixture *f, struct row *rows)
{
    bool held[SESSIONS] = {0};

    fixture_load(f);
    for (size_t i = 0; i < ROWS; i++) {
        size_t session = (size_t)prng_below(&f->random, SESSIONS);
        struct row *row = &rows[i];
        struct execution *x;

        row->session = session == SESSIONS - 1 ? NULL : SESSION_NAMES[session];
        row->agent = AGENT_NAMES[prng_below(&f->random, AGENTS - 1)];
        row->status = (enum execution_status)prng_below(&f->random, 6);
        row->tokens = (int64_t)prng_below(&f->random, 1000);
        if (row->status == EXECUTION_RUNNING || row->status == EXECUTION_BLOCKED) {
            if (row->session != NULL && held[session])
                row->status = EXECUTION_COMPLETED;
            held[session] = true;
        }
        if (session == 1 && row->status == EXECUTION_PENDING)
            row->status = EXECUTION_CANCELLED; /* a session in which nothing waits */
        x = fixture_pending(f, row->agent, str_of(row->session));
        row->id = x->id;
        x->status = row->status;
        x->tokens = row->tokens;
    }
    fixture_commit(f);
}

static bool is_of(const struct row *row, const char *session)
{
    return row->session != NULL && strcmp(row->session, session) == 0;
}

static void check_session(struct fixture *f, const struct row *rows, const char *name)
{
    const struct session *got = load_session(f, str_of(name));
    struct session want = {0};

    for (size_t i = ROWS; i-- > 0;) { /* they were born in the order of their ids */
        if (!is_of(&rows[i], name))
            continue;
        want.used = true;
        if (rows[i].status == EXECUTION_PENDING)
            want.waiter = rows[i].id;
        if (rows[i].status == EXECUTION_RUNNING || rows[i].status == EXECUTION_BLOCKED)
            want.holder = rows[i].id;
    }
    assert_str(got->name, str_of(name));
    assert_int_equal(got->used, want.used);
    assert_id(got->holder, want.holder);
    assert_id(got->waiter, want.waiter);
}

static void check_parent(struct fixture *f, const struct row *rows, const char *session,
                         const char *agent)
{
    struct uuid want = {{0}};

    for (size_t i = 0; i < ROWS; i++)
        if (is_of(&rows[i], session) && strcmp(rows[i].agent, agent) == 0 &&
            rows[i].status == EXECUTION_COMPLETED)
            want = rows[i].id;
    assert_id(load_parent(f, str_of(session), agent), want);
}

static void check_tokens(struct fixture *f, const struct row *rows, size_t of)
{
    int64_t want = 0;

    for (size_t i = 0; i < ROWS; i++)
        if (i != of && rows[of].session != NULL && is_of(&rows[i], rows[of].session))
            want += rows[i].tokens;
    assert_int_equal(load_tokens(f, &rows[of].id), want);
}

static void facts(void **state)
{
    struct fixture f;
    static struct row rows[ROWS];

    fixture_open(&f, *(enum fixture_kind *)*state);
    fill_rows(&f, rows);
    for (int alone = 0; alone < 2; alone++) { /* one by one, and then all from one load */
        for (size_t s = 0; s < SESSIONS && !alone; s++) {
            ws_need_session(&f.ws, str_of(SESSION_NAMES[s]));
            ws_need_session(&f.ws, str_of(SESSION_NAMES[SESSIONS - 1 - s]));
            for (size_t a = 0; a < 2 * AGENTS; a++)
                ws_need_parent(&f.ws, str_of(SESSION_NAMES[s]), str_of(AGENT_NAMES[a / 2]));
        }
        if (!alone)
            fixture_load(&f);
        for (size_t s = 0; s < SESSIONS; s++) {
            check_session(&f, rows, SESSION_NAMES[s]);
            for (size_t a = 0; a < AGENTS; a++)
                check_parent(&f, rows, SESSION_NAMES[s], AGENT_NAMES[a]);
        }
        fixture_commit(&f);
    }
    for (size_t i = 0; i < ROWS; i += 7)
        ws_need_session_tokens(&f.ws, &rows[i].id);
    fixture_load(&f);
    for (size_t i = 0; i < ROWS; i += 7)
        check_tokens(&f, rows, i);
    for (size_t i = 1; i < ROWS; i += 7) {
        check_tokens(&f, rows, i);
        fixture_commit(&f); /* without it a row says what it said */
    }
    fixture_close(&f);
}

static void tokens_beyond_the_largest_number(void **state)
{
    struct fixture f;
    struct uuid id, nobody = {{1}};

    fixture_open(&f, *(enum fixture_kind *)*state);
    fixture_load(&f);
    id = fixture_pending(&f, "a", SESSION)->id;
    for (int i = 0; i < 3; i++)
        ended(&f, "a", EXECUTION_FAILED)->tokens = INT64_MAX - 5;
    fixture_commit(&f);
    assert_int_equal(load_tokens(&f, &id), INT64_MAX);
    ws_need_session_tokens(&f.ws, &nobody);
    fixture_load(&f);
    assert_null(ws_execution(&f.ws, &nobody));
    fixture_close(&f);
}

/* A group that completes one and then asks what the next continues: the database does not know yet.
 */
static void a_parent_of_this_group(void **state)
{
    struct fixture f;
    struct uuid newer, other;

    fixture_open(&f, *(enum fixture_kind *)*state);
    fixture_load(&f);
    (void)ended(&f, "a", EXECUTION_COMPLETED);
    newer = ended(&f, "a", EXECUTION_RUNNING)->id;
    other = ended(&f, "b", EXECUTION_BLOCKED)->id;
    fixture_commit(&f);
    (void)fixture_get(&f, &other);
    execution_end(&f.ws, fixture_get(&f, &newer), EXECUTION_COMPLETED, STR_NONE);
    execution_end(&f.ws, fixture_get(&f, &other), EXECUTION_FAILED, STR_NONE);
    assert_id(load_parent(&f, SESSION, "a"), newer);
    assert_id(load_parent(&f, SESSION, "b"), NIL);
    assert_id(load_parent(&f, STR("t"), "a"), NIL);
    fixture_commit(&f);
    assert_id(load_parent(&f, SESSION, "a"), newer);
    fixture_close(&f);
}

/* ---- reads ---- */

static void previous_of_each(void **state)
{
    enum { LARGE = 700 * 1000 };
    static char large[LARGE];
    struct fixture f;
    struct uuid nobody = {{1}}, id;
    struct str got;
    struct err e = {0};
    bool found;
    const struct {
        struct str state, output, want;
    } cases[] = {
        {STR("{\"s\":1}"), STR("2"), STR("{\"s\":1}")},
        {STR_NONE, STR("2"), STR("2")},
        {STR("null"), STR("2"), STR("null")},
        {STR_NONE, STR_NONE, STR_NONE},
        {STR_NONE, str_make(large, LARGE), str_make(large, LARGE)},
        {str_make(large, LARGE), STR("2"), str_make(large, LARGE)},
    };

    memset(large, '1', LARGE);
    fixture_open(&f, *(enum fixture_kind *)*state);
    fixture_load(&f);
    for (size_t i = 0; i < COUNT(cases); i++) {
        struct execution *parent = ended(&f, "a", EXECUTION_COMPLETED);
        struct execution *x = fixture_pending(&f, "a", SESSION);

        parent->state = cases[i].state;
        parent->output = cases[i].output;
        x->parent = parent->id;
        id = x->id;
        fixture_commit(&f);
        assert_true(store_read_previous(f.r, &id, &f.arena, &got, &found, &e));
        assert_true(found);
        assert_str(got, cases[i].want);
        fixture_load(&f);
    }
    id = fixture_pending(&f, "a", SESSION)->id;
    fixture_commit(&f);
    assert_true(store_read_previous(f.r, &id, &f.arena, &got, &found, &e));
    assert_true(found);
    assert_str(got, STR_NONE);
    assert_true(store_read_previous(f.r, &nobody, &f.arena, &got, &found, &e));
    assert_false(found);
    fixture_close(&f);
}

static int by_bytes(const void *a, const void *b)
{
    return str_cmp(*(const struct str *)a, *(const struct str *)b);
}

static void check_waiting(struct fixture *f, size_t limit, const char *const *want)
{
    struct err e = {0};
    struct str *names;
    size_t n, at = 0;

    assert_true(store_waiting_sessions(f->r, limit, &f->arena, &names, &n, &e));
    if (n > 1)
        qsort(names, n, sizeof(names[0]), by_bytes);
    for (; want[at] != NULL && at < limit; at++)
        assert_str(names[at], str_of(want[at]));
    assert_int_equal(n, at);
}

static void waiting_sessions(void **state)
{
    static const struct {
        const char *session;
        enum execution_status status;
    } rows[] = {
        {"ended", EXECUTION_COMPLETED}, {"ended", EXECUTION_CANCELLED},
        {"held", EXECUTION_RUNNING},    {"held", EXECUTION_PENDING},
        {"held", EXECUTION_PENDING},    {"stuck", EXECUTION_FAILED},
        {"stuck", EXECUTION_PENDING},   {"stuck", EXECUTION_PENDING},
        {"", EXECUTION_PENDING},        {"blocked", EXECUTION_BLOCKED},
        {"blocked", EXECUTION_PENDING}, {"stucl", EXECUTION_PENDING},
        {NULL, EXECUTION_PENDING},      {NULL, EXECUTION_RUNNING},
    };
    static const char *const want[] = {"", "stuck", "stucl", NULL}, *const nothing[] = {NULL};
    struct fixture f;

    fixture_open(&f, *(enum fixture_kind *)*state);
    check_waiting(&f, 10, nothing);
    fixture_load(&f);
    for (size_t i = 0; i < COUNT(rows); i++)
        fixture_pending(&f, "a", str_of(rows[i].session))->status = rows[i].status;
    fixture_commit(&f);
    for (size_t limit = 0; limit < 5; limit++)
        check_waiting(&f, limit, want);
    fixture_close(&f);
}

/* ---- plans ---- */

/* What the store asks of a session, though it and the table are large. */
static void ask_everything(struct fixture *f)
{
    struct execution_filter filter = {.session = SESSION, .agent_id = STR("a"), .limit = 10};
    struct execution_view *rows;
    struct str *names;
    struct err e = {0};
    size_t n;

    memset(&filter.high, 0xff, sizeof(filter.high));
    assert_true(load_session(f, SESSION)->used);
    assert_id(load_parent(f, SESSION, "nobody"), NIL);
    assert_id(load_parent(f, STR("t"), "a"), NIL);
    fixture_commit(f);
    assert_true(store_waiting_sessions(f->r, 10, &f->arena, &names, &n, &e));
    assert_int_equal(n, 0);
    assert_true(store_list_executions(f->r, &filter, &f->arena, &rows, &n, &e));
    assert_int_equal(n, 10);
}

/* Whatever statistics there are. (SQLite's statements name their indexes.) */
static void nothing_is_scanned(void **state)
{
    struct fixture f;

    fixture_open(&f, *(enum fixture_kind *)*state);
    (void)fixture_sql(
        &f, "INSERT INTO executions (key, id, agent_id, status, last_seq, created_at, claim, owner,"
            " owner_attempt, owner_lease, tokens, resources, spawns, awaited, suspended, session)"
            " SELECT i, decode(lpad(to_hex(i), 32, '0'), 'hex'), CASE i % 2 WHEN 0 THEN 'a' ELSE"
            " 'b' END, CASE WHEN i = 9000 THEN 'running' WHEN i > 9000 THEN 'pending' ELSE"
            " 'completed' END, 1, 1, 1, 'none', 0, 0, 1, 0, 0, 0, 0, CASE WHEN i < 4000"
            " THEN convert_to('x' || i, 'UTF8') ELSE 's' END FROM generate_series(1, 12000) i");
    ask_everything(&f);
    (void)fixture_sql(&f, "ANALYZE executions");
    ask_everything(&f);
    assert_in_range(fixture_rows_read(&f, "'executions'"), 1, 400);
    fixture_close(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        ON_BOTH(session_and_parent_round_trip),
        ON_BOTH(facts),
        ON_BOTH(tokens_beyond_the_largest_number),
        ON_BOTH(a_parent_of_this_group),
        ON_BOTH(previous_of_each),
        ON_BOTH(waiting_sessions),
        ON_POSTGRES(nothing_is_scanned),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
