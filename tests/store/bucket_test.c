/* SPDX-License-Identifier: Apache-2.0
 * Token buckets: what is applied comes back; writers that share one wait for each other and lose
 * nothing; what cannot be read is said to be so; the full ones go. */
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

#include "base/clock.h"
#include "support/store_both.h"
#include "support/store_fixture.h"

static struct bucket *load_bucket(struct fixture *f, struct str key)
{
    ws_need_bucket(&f->ws, key);
    fixture_load(f);
    assert_true(ws_knows_bucket(&f->ws, key));
    return ws_bucket(&f->ws, key);
}

static void put_bucket(struct fixture *f, struct str key, int64_t full_at)
{
    struct bucket *b = load_bucket(f, key);

    b->full_at = full_at;
    ws_touch_bucket(&f->ws, b);
}

static void bucket_round_trip(void **state)
{
    struct fixture f;
    struct str keys[] = {ODD, STR("rule\0global\0"), STR("rule\0agent\0a"), STR("r")};
    struct bucket *b;

    fixture_open(&f, *(enum fixture_kind *)*state);
    for (size_t i = 0; i < COUNT(keys); i++) {
        ws_need_bucket(&f.ws, keys[i]);
        ws_need_bucket(&f.ws, keys[COUNT(keys) - 1 - i]); /* named by several of a group */
    }
    fixture_load(&f);
    for (size_t i = 0; i < COUNT(keys); i++) {
        b = ws_bucket(&f.ws, keys[i]);
        assert_str(b->key, keys[i]);
        assert_int_equal(b->full_at, 0); /* full since ever */
        assert_false(b->unreadable);
        b->full_at = (int64_t)i; /* 0 is a time like any other */
        if (i != 3)
            ws_touch_bucket(&f.ws, b);
    }
    fixture_commit(&f);
    fixture_reopen(&f);
    for (size_t i = 0; i < 3; i++) {
        b = load_bucket(&f, keys[i]);
        assert_int_equal(b->full_at, i);
        assert_false(b->unreadable);
    }
    b->full_at = clock_wall_us() + 3600 * US_PER_S; /* an update beside an insert */
    ws_touch_bucket(&f.ws, b);
    put_bucket(&f, keys[3], 7);
    fixture_commit(&f);
    assert_true(load_bucket(&f, keys[2])->full_at > clock_wall_us());
    assert_int_equal(load_bucket(&f, keys[3])->full_at, 7);
    assert_int_equal(load_bucket(&f, keys[1])->full_at, 1);
    fixture_commit(&f);
    assert_string_equal(fixture_sql(&f, "SELECT count(*) FROM buckets"), "4");
    fixture_close(&f);
}

/* Then the rule says what happens (on_limiter_error); nothing else of the group suffers. */
static void unreadable_buckets(void **state)
{
    static const char *const values[] = {
        "NULL", "-1", "-9223372036854775808", "9223372036854775807", "'soon'", "1.5"};
    struct fixture f;
    char sql[128];

    fixture_open(&f, *(enum fixture_kind *)*state);
    put_bucket(&f, STR("k"), 5);
    fixture_commit(&f);
    for (size_t i = 0; i < COUNT(values); i++) {
        if (f.kind == FIXTURE_POSTGRES && i >= 4)
            continue; /* its column holds no other type */
        snprintf(sql, sizeof(sql), "UPDATE buckets SET full_at = %s", values[i]);
        (void)fixture_sql(&f, sql);
        assert_true(load_bucket(&f, STR("k"))->unreadable);
        assert_false(load_bucket(&f, STR("other"))->unreadable);
        fixture_commit(&f);
    }
    put_bucket(&f, STR("k"), 6); /* and it can be mended */
    fixture_commit(&f);
    assert_false(load_bucket(&f, STR("k"))->unreadable);
    assert_int_equal(load_bucket(&f, STR("k"))->full_at, 6);
    fixture_close(&f);
}

/* ---- several writers ---- */

static void created_by_two_at_once(void **state)
{
    struct fixture f, second;
    struct err e = {0};
    bool unknown;

    fixture_open(&f, *(enum fixture_kind *)*state);
    fixture_second_open(&f, &second);
    put_bucket(&f, STR("k"), 1);
    put_bucket(&second, STR("k"), 2);
    fixture_commit(&f);
    assert_false(store_commit(second.w, &second.ws, &unknown, &e));
    assert_int_equal(e.code, ERR_STORE_RACE);
    store_abandon(second.w);
    ws_clear(&second.ws);
    assert_int_equal(load_bucket(&second, STR("k"))->full_at, 1);
    fixture_commit(&second);
    fixture_second_close(&second);
    fixture_close(&f);
}

/* Each takes tokens of random buckets, two a group, named in any order. */
enum { WRITERS = 3, ROUNDS = 60, BUCKETS = 4 };
struct taker {
    struct fixture *f;
    uint64_t seed;
    int64_t taken[BUCKETS];
    bool failed;
};

static void name_of(size_t i, char out[16])
{
    snprintf(out, 16, "bucket-%zu", i);
}

static bool take_two(struct fixture *own, size_t first, size_t other, struct err *e)
{
    size_t both[] = {first, other};
    char names[2][16];
    bool unknown;

    for (size_t i = 0; i < 2; i++) {
        name_of(both[i], names[i]);
        ws_need_bucket(&own->ws, str_of(names[i]));
    }
    if (!store_load(own->w, &own->ws, e))
        return false;
    for (size_t i = 0; i < 2; i++) {
        struct bucket *b = ws_bucket(&own->ws, str_of(names[i]));

        b->full_at++;
        ws_touch_bucket(&own->ws, b);
    }
    return store_commit(own->w, &own->ws, &unknown, e);
}

static void *take_often(void *arg)
{
    struct taker *t = arg;
    struct fixture own;

    fixture_second_open(t->f, &own);
    prng_seed(&own.random, t->seed);
    for (int round = 0; round < ROUNDS && !t->failed;) {
        size_t first = (size_t)prng_below(&own.random, BUCKETS);
        size_t other = (size_t)prng_below(&own.random, BUCKETS);
        struct err e = {0};

        if (take_two(&own, first, other, &e)) {
            ws_end_group(&own.ws);
            t->taken[first]++;
            t->taken[other]++;
            round++;
            continue;
        }
        t->failed = e.code != ERR_STORE_RACE; /* two created the same one */
        store_abandon(own.w);
        ws_clear(&own.ws);
    }
    fixture_second_close(&own);
    return NULL;
}

static void writers_lose_no_token(void **state)
{
    struct fixture f;
    struct taker takers[WRITERS];
    pthread_t threads[WRITERS];

    fixture_open(&f, *(enum fixture_kind *)*state);
    for (size_t t = 0; t < WRITERS; t++) {
        takers[t] = (struct taker){.f = &f, .seed = t + 1};
        assert_int_equal(pthread_create(&threads[t], NULL, take_often, &takers[t]), 0);
    }
    for (size_t t = 0; t < WRITERS; t++) {
        pthread_join(threads[t], NULL);
        assert_false(takers[t].failed);
    }
    for (size_t i = 0; i < BUCKETS; i++) {
        int64_t want = 0;
        char name[16];

        for (size_t t = 0; t < WRITERS; t++)
            want += takers[t].taken[i];
        name_of(i, name);
        assert_int_equal(load_bucket(&f, str_of(name))->full_at, want);
    }
    fixture_close(&f);
}

/* ---- tidying ---- */

static void tidy_all(struct fixture *f)
{
    struct err e = {0};
    bool more = true;

    for (int slices = 0; more; slices++) {
        assert_in_range(slices, 0, 20);
        assert_true(store_tidy(f->w, &f->ws, &more, &e));
    }
}

/* More stay than a slice has, so that each one must go on where the last one ended. */
static void full_buckets_go(void **state)
{
    enum { N = 1300, UNREADABLE = 3 };
    struct fixture f;
    int64_t now, full_at[] = {-61, -30, 100, 100}; /* seconds; only the first is long over */
    char name[16], kept[16];

    fixture_open(&f, *(enum fixture_kind *)*state);
    for (size_t i = 0; i < N; i++) {
        name_of(i, name);
        ws_need_bucket(&f.ws, str_of(name));
    }
    fixture_load(&f);
    now = f.ws.now.wall_us;
    for (size_t i = 0; i < N; i++) {
        struct bucket *b;

        name_of(i, name);
        b = ws_bucket(&f.ws, str_of(name));
        b->full_at = now + full_at[i % COUNT(full_at)] * US_PER_S;
        ws_touch_bucket(&f.ws, b);
    }
    fixture_commit(&f);
    (void)fixture_sql(&f, "UPDATE buckets SET full_at = NULL WHERE key IN (SELECT key FROM buckets "
                          "WHERE full_at = (SELECT min(full_at) FROM buckets) LIMIT 3)");
    snprintf(kept, sizeof(kept), "%d", N - N / (int)COUNT(full_at) + UNREADABLE);
    for (int pass = 0; pass < 2; pass++) { /* a second pass begins at the front again */
        tidy_all(&f);
        assert_string_equal(fixture_sql(&f, "SELECT count(*) FROM buckets"), kept);
    }
    assert_int_equal(load_bucket(&f, STR("bucket-1299"))->full_at, now + 100 * US_PER_S);
    assert_int_equal(load_bucket(&f, STR("bucket-1297"))->full_at, now - 30 * US_PER_S);
    fixture_commit(&f);
    assert_string_equal(
        fixture_sql(&f, "SELECT count(*) FROM buckets WHERE full_at IS NULL"), /* for a person */
        "3");
    fixture_close(&f);
}

/* Somebody is at work with it: it is left alone, and not waited for. */
static void held_buckets_stay(void **state)
{
    struct fixture f, second;

    fixture_open(&f, *(enum fixture_kind *)*state);
    put_bucket(&f, STR("held"), 1);
    put_bucket(&f, STR("idle"), 1);
    fixture_commit(&f);
    fixture_second_open(&f, &second);
    put_bucket(&second, STR("held"), 2);
    tidy_all(&f);
    fixture_commit(&second);
    assert_int_equal(load_bucket(&f, STR("held"))->full_at, 2);
    fixture_commit(&f);
    assert_string_equal(fixture_sql(&f, "SELECT count(*) FROM buckets"), "1");
    fixture_second_close(&second);
    fixture_close(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        ON_BOTH(bucket_round_trip),
        ON_BOTH(unreadable_buckets),
        ON_POSTGRES(created_by_two_at_once),
        ON_POSTGRES(writers_lose_no_token),
        ON_BOTH(full_buckets_go),
        ON_POSTGRES(held_buckets_stay),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
