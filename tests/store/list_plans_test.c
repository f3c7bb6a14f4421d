/* SPDX-License-Identifier: Apache-2.0
 * Postgres: what a page of a list costs does not grow with what is not on it, also when the page is
 * not full. (SQLite's statements find both ends of a page in the index.) */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

#include "support/store_fixture.h"

enum {
    HISTORY = 20000,
    LISTS = 6,
    STATUSES = 6,
    /* An index of that history has about 200; a look-up takes two or three and what the page
       holds. */
    PAGES_A_LOOK_UP = 8,
};

/* One agent and one session have all of it: three that live are the oldest. */
static void fill_executions(struct fixture *f)
{
    char sql[1024];

    snprintf(sql, sizeof(sql),
             "INSERT INTO executions (key, id, agent_id, status, last_seq, created_at, claim,"
             " owner, owner_attempt, owner_lease, tokens, resources, spawns, awaited, suspended,"
             " session) SELECT i, decode(lpad(to_hex(i), 32, '0'), 'hex'), 'a',"
             " CASE WHEN i <= 3 THEN 'running' WHEN i %% 2 = 0 THEN 'completed' ELSE 'cancelled'"
             " END, 1, 1, 1, 'none', 0, 0, 1, 0, 0, 0, 0, 's' FROM generate_series(1, %d) i",
             HISTORY);
    (void)fixture_sql(f, sql);
}

static struct uuid number(uint64_t n)
{
    struct uuid id = {{0}};

    for (size_t i = 16; n > 0; n >>= 8)
        id.b[--i] = (uint8_t)n;
    return id;
}

static size_t list(struct fixture *f, struct execution_filter filter)
{
    struct execution_view *rows;
    struct err e = {0};
    size_t n;

    filter.limit = 50;
    if (uuid_is_nil(&filter.high))
        memset(&filter.high, 0xff, sizeof(filter.high));
    assert_true(store_list_executions(f->r, &filter, &f->arena, &rows, &n, &e));
    return n;
}

/* The last three: from an id on that only the newest have, as a prefix asks. */
static void ask_for_lists(struct fixture *f)
{
    const struct str agent = STR("a"), session = STR("s");
    const struct uuid newest = number(HISTORY - 9);

    assert_int_equal(
        list(f, (struct execution_filter){.agent_id = agent, .status = STR("running")}), 3);
    assert_int_equal(
        list(f, (struct execution_filter){.agent_id = agent, .status = STR("pending")}), 0);
    assert_int_equal(
        list(f, (struct execution_filter){.session = session, .status = STR("running")}), 3);
    assert_int_equal(list(f, (struct execution_filter){.agent_id = agent, .low = newest}), 10);
    assert_int_equal(list(f, (struct execution_filter){.session = session, .low = newest}), 10);
    assert_int_equal(list(f, (struct execution_filter){.status = STR("completed"), .low = newest}),
                     5);
}

/* Whatever statistics there are. */
static void executions(void **state)
{
    struct fixture f;
    int64_t before;

    (void)state;
    fixture_open(&f, FIXTURE_POSTGRES);
    fill_executions(&f);
    for (int analyzed = 0; analyzed < 2; analyzed++) {
        if (analyzed)
            (void)fixture_sql(&f, "ANALYZE executions");
        before = fixture_pages_read(&f, "executions");
        ask_for_lists(&f);
        assert_in_range(fixture_pages_read(&f, "executions") - before, 1,
                        LISTS * STATUSES * PAGES_A_LOOK_UP);
    }
    fixture_close(&f);
}

/* Page after page, each after the last one's last row: what they cost together grows with them. */
static void approvals_of_an_execution(void **state)
{
    enum { PAGES = 5, LIMIT = 20 };
    struct approval_filter filter = {.limit = LIMIT};
    struct approval_view last;
    struct fixture f;
    struct uuid id;
    int64_t before;

    (void)state;
    fixture_open(&f, FIXTURE_POSTGRES);
    id = fixture_claimed(&f);
    (void)fixture_step(&f, fixture_get(&f, &id), &(struct hash){{0}}, STR("1"));
    fixture_commit(&f);
    (void)fixture_sql(
        &f, "INSERT INTO approvals (id, execution_key, step_id, status, created_at, timeout_at)"
            " SELECT decode(md5(i::text), 'hex'), s.execution_key, s.step_id, 'granted', 1, i"
            " FROM generate_series(1, 20000) i, steps s");
    filter.execution_id = &id;
    memset(&filter.high, 0xff, sizeof(filter.high));
    before = fixture_pages_read(&f, "approvals");
    for (int page = 0; page < PAGES; page++) {
        struct approval_view *rows;
        struct err e = {0};
        size_t n;

        assert_true(store_list_approvals(f.r, &filter, &f.arena, &rows, &n, &e));
        assert_int_equal(n, LIMIT);
        for (size_t i = 0; i < n; i++)
            assert_int_equal(rows[i].timeout_at, page * LIMIT + (int)i + 1);
        last = rows[n - 1];
        filter.after = &last;
    }
    /* and each row's own look-up by its key */
    assert_in_range(fixture_pages_read(&f, "approvals") - before, 1,
                    PAGES * (4 * PAGES_A_LOOK_UP + 5 * LIMIT));
    fixture_close(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(executions),
        cmocka_unit_test(approvals_of_an_execution),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
