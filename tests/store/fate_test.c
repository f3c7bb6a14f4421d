/* SPDX-License-Identifier: Apache-2.0
 * Postgres: the rows by which a writer can tell what became of its transactions. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

#include "support/postgres_cluster.h"
#include "support/store_fixture.h"

static long ask(const struct fixture *f, const char *sql)
{
    return strtol(postgres_cluster_query(f->url, sql), NULL, 10);
}

static struct uuid new_execution(struct fixture *f)
{
    struct uuid id;

    fixture_load(f);
    id = fixture_execution(f, "a")->id;
    fixture_commit(f);
    return id;
}

static void only_writes_are_marked(void **state)
{
    static const char MARK[] = "SELECT number FROM writers";
    struct fixture f;
    struct uuid id;
    long before;

    (void)state;
    fixture_open(&f, FIXTURE_POSTGRES);
    id = new_execution(&f);
    before = ask(&f, MARK);
    assert_int_equal(before % 2, 0);
    for (int i = 0; i < 3; i++) {
        assert_non_null(fixture_get(&f, &id));
        fixture_commit(&f);
    }
    assert_int_equal(ask(&f, MARK), before);
    fixture_event(&f, fixture_get(&f, &id), "one\t\n");
    fixture_commit(&f);
    assert_int_equal(ask(&f, MARK), before + 2);
    fixture_close(&f);
}

static void the_dead_are_forgotten(void **state)
{
    struct fixture f;

    (void)state;
    fixture_open(&f, FIXTURE_POSTGRES);
    (void)new_execution(&f);
    assert_int_equal(ask(&f, "SELECT count(*) FROM writers"), 1);
    (void)postgres_cluster_query(f.url, "UPDATE writers SET seen_at = seen_at - 86500000000");
    fixture_reopen(&f);
    (void)new_execution(&f);
    assert_int_equal(ask(&f, "SELECT count(*) FROM writers"), 1);
    fixture_reopen(&f);
    (void)new_execution(&f);
    assert_int_equal(ask(&f, "SELECT count(*) FROM writers"), 2);
    fixture_close(&f);
}

/* As one who slept for a day, or whose database came back from a copy. */
static void a_writer_that_was_forgotten_goes_on(void **state)
{
    struct fixture f;
    struct uuid id;
    struct err e = {0};
    bool unknown;

    (void)state;
    fixture_open(&f, FIXTURE_POSTGRES);
    id = new_execution(&f);
    (void)postgres_cluster_query(f.url, "DELETE FROM writers");
    fixture_event(&f, fixture_get(&f, &id), "one\t\n");
    assert_false(store_commit(f.w, &f.ws, &unknown, &e));
    assert_false(unknown);
    assert_int_equal(e.code, ERR_STORE_RACE); /* load and decide again */
    ws_clear(&f.ws);
    assert_int_equal(fixture_get(&f, &id)->last_seq, 1);
    fixture_event(&f, fixture_get(&f, &id), "one\t\n");
    fixture_commit(&f);
    assert_int_equal(fixture_get(&f, &id)->last_seq, 2);
    fixture_close(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(only_writes_are_marked),
        cmocka_unit_test(the_dead_are_forgotten),
        cmocka_unit_test(a_writer_that_was_forgotten_goes_on),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
