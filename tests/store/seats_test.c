/* SPDX-License-Identifier: Apache-2.0
 * Postgres: a store opens no more connections than it may, as the server counts them. */
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

#include "base/clock.h"
#include "support/postgres_cluster.h"
#include "support/store_fixture.h"

enum { MAX = 3 }; /* the listener and two readers */

struct bounded {
    char url[256];
    struct store *store;
};

static void open_bounded(struct bounded *b)
{
    struct store_options opt = {.url = b->url, .max_connections = MAX};
    struct err e = {0};

    postgres_cluster_database(b->url, sizeof(b->url));
    b->store = store_open(&opt, &e);
    if (b->store == NULL)
        fail_msg("store_open: %s", e.message);
}

static void close_bounded(struct bounded *b)
{
    store_close(b->store);
    postgres_cluster_drop(b->url);
}

static struct store_reader *open_reader(struct bounded *b)
{
    struct err e = {0};
    struct store_reader *r = store_reader_open(b->store, &e);

    if (r == NULL)
        fail_msg("store_reader_open: %s", e.message);
    return r;
}

/* The server's process for the connection that was made last. */
static pid_t newest_backend(const struct bounded *b)
{
    return (pid_t)strtol(postgres_cluster_query(b->url, "SELECT pid FROM pg_stat_activity"
                                                        " WHERE application_name = 'rebuno'"
                                                        " AND datname = current_database()"
                                                        " ORDER BY backend_start DESC LIMIT 1"),
                         NULL, 10);
}

static bool is_counted(const struct bounded *b, pid_t backend)
{
    char sql[96];

    snprintf(sql, sizeof(sql), "SELECT count(*) FROM pg_stat_activity WHERE pid = %d",
             (int)backend);
    return strcmp(postgres_cluster_query(b->url, sql), "0") != 0;
}

static void one_too_many_is_refused(void **state)
{
    struct store_reader *first, *second;
    struct err e = {0};
    struct bounded b;

    (void)state;
    open_bounded(&b);
    first = open_reader(&b);
    second = open_reader(&b);
    assert_null(store_reader_open(b.store, &e));
    assert_int_equal(e.code, ERR_UNAVAILABLE);
    assert_string_equal(e.message, "all 3 connections to the database are in use");
    store_reader_close(second);
    second = open_reader(&b);
    assert_true(store_ping(second, &e));
    store_reader_close(first);
    store_reader_close(second);
    close_bounded(&b);
}

/* As often as there are places, and more. */
static void what_fails_to_connect_leaves_its_place(void **state)
{
    struct store_reader *first, *second;
    char other[256], name[64], sql[128];
    struct err e = {0};
    struct bounded b;

    (void)state;
    open_bounded(&b);
    postgres_cluster_database(other, sizeof(other));
    snprintf(name, sizeof(name), "%s", postgres_cluster_query(b.url, "SELECT current_database()"));
    snprintf(sql, sizeof(sql), "ALTER DATABASE %s ALLOW_CONNECTIONS false", name);
    (void)postgres_cluster_query(other, sql);
    for (int i = 0; i < 3 * MAX; i++) {
        assert_null(store_reader_open(b.store, &e));
        assert_non_null(strstr(e.message, "not currently accepting connections"));
    }
    snprintf(sql, sizeof(sql), "ALTER DATABASE %s ALLOW_CONNECTIONS true", name);
    (void)postgres_cluster_query(other, sql);
    first = open_reader(&b);
    second = open_reader(&b);
    assert_null(store_reader_open(b.store, &e));
    assert_string_equal(e.message, "all 3 connections to the database are in use");
    store_reader_close(first);
    store_reader_close(second);
    close_bounded(&b);
    postgres_cluster_drop(other);
}

static void *wake_after_a_while(void *arg)
{
    struct timespec while_ = {.tv_nsec = 300 * 1000 * 1000};

    nanosleep(&while_, NULL);
    kill(*(pid_t *)arg, SIGCONT);
    return NULL;
}

/* A server that is slow to end a connection still counts it. */
static void a_place_is_free_once_the_server_has_seen_the_end(void **state)
{
    struct store_reader *first, *second;
    struct bounded b;
    pthread_t waker;
    pid_t backend;

    (void)state;
    open_bounded(&b);
    first = open_reader(&b);
    second = open_reader(&b);
    backend = newest_backend(&b);
    assert_int_equal(kill(backend, SIGSTOP), 0);
    store_reader_close(second);
    assert_true(is_counted(&b, backend));
    assert_int_equal(pthread_create(&waker, NULL, wake_after_a_while, &backend), 0);
    second = open_reader(&b);
    assert_false(is_counted(&b, backend));
    pthread_join(waker, NULL);
    store_reader_close(first);
    store_reader_close(second);
    close_bounded(&b);
}

/* It may never see it. */
static void the_wait_for_the_server_ends(void **state)
{
    struct store_reader *first, *second;
    struct err e = {0};
    int64_t began_us;
    struct bounded b;
    pid_t backend;

    (void)state;
    open_bounded(&b);
    first = open_reader(&b);
    second = open_reader(&b);
    backend = newest_backend(&b);
    assert_int_equal(kill(backend, SIGSTOP), 0);
    began_us = clock_mono_us();
    store_reader_close(second);
    assert_true(clock_mono_us() - began_us < US_PER_S); /* who closes does not wait */
    second = open_reader(&b);
    assert_true(clock_mono_us() - began_us >= US_PER_S);
    assert_true(store_ping(second, &e));
    kill(backend, SIGCONT);
    store_reader_close(first);
    store_reader_close(second);
    close_bounded(&b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(one_too_many_is_refused),
        cmocka_unit_test(what_fails_to_connect_leaves_its_place),
        cmocka_unit_test(a_place_is_free_once_the_server_has_seen_the_end),
        cmocka_unit_test(the_wait_for_the_server_ends),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
