/* SPDX-License-Identifier: Apache-2.0
 * Reads on their way through the readers: those whose client has gone, and those that show what was
 * committed. */
#include "api/request.h"
#include "support/store_fixture.h"
#include "unit/http_peer.h"

#define GET(target) "GET " target " HTTP/1.1\r\nHost: test\r\n\r\n"

static struct api api;
static atomic_int reads, gone, status_done;

/* ---- what the routes do ---- */

static void read_row(struct request *rq, struct store_reader *r)
{
    assert_non_null(r);
    atomic_fetch_add(&reads, 1);
    request_reply_empty(rq);
}

/* The store is away twice. */
static bool read_third_time(struct request *rq, struct store_reader *r, struct err *e)
{
    assert_non_null(r);
    if (atomic_fetch_add(&reads, 1) < 2)
        return err_set(e, ERR_UNAVAILABLE, "away");
    request_reply_empty(rq);
    return true;
}

static bool read_never(struct request *rq, struct store_reader *r, struct err *e)
{
    (void)rq, (void)r;
    atomic_fetch_add(&reads, 1);
    return err_set(e, ERR_INTERNAL, "broken");
}

static void on_request(struct http_exchange *x, void *ctx)
{
    struct request *rq = arena_new(http_arena(x), struct request);

    (void)ctx;
    rq->api = &api;
    rq->x = x;
    rq->arena = http_arena(x);
    rq->visit = visit_new(&api, STR("id"), rq->arena);
    if (str_eq(http_path(x), STR("/large")))
        request_read_large(rq, read_row);
    else if (str_eq(http_path(x), STR("/back")))
        request_read_back(rq, read_third_time);
    else
        request_read_back(rq, read_never);
}

static void on_gone(struct http_exchange *x, void *ctx)
{
    (void)x, (void)ctx;
    atomic_fetch_add(&gone, 1);
}

static void on_done(struct http_exchange *x, int status, int64_t duration_us, void *ctx)
{
    (void)x, (void)duration_us, (void)ctx;
    atomic_store(&status_done, status);
}

/* ---- the world ---- */

static struct fixture fixture;

static int start(void **state)
{
    const struct http_options http = {.listen_addr = "127.0.0.1:0",
                                      .threads = 1,
                                      .on_request = on_request,
                                      .on_gone = on_gone,
                                      .on_done = on_done};
    struct err e;

    (void)state;
    reads = gone = status_done = 0;
    fixture_open(&fixture, FIXTURE_MEMORY);
    api = (struct api){.store = fixture.store, .readers = readers_new(fixture.store, 1)};
    assert_true(readers_start(api.readers, &e));
    api.server = http_server_new(&http, &e);
    assert_non_null(api.server);
    assert_true(http_server_start(api.server, &e));
    return 0;
}

static int stop(void **state)
{
    (void)state;
    http_server_stop(api.server, clock_mono_us());
    readers_stop(api.readers);
    http_server_free(api.server);
    readers_free(api.readers);
    fixture_close(&fixture);
    return 0;
}

/* Keeps every reader thread until it is let go. */
struct blocker {
    struct read_job job; /* first */
    atomic_bool runs, let_go;
};

static void block(struct read_job *job, struct store_reader *r, const struct err *why)
{
    struct blocker *b = (struct blocker *)job;

    (void)r, (void)why;
    atomic_store(&b->runs, true);
    WAIT_FOR(atomic_load(&b->let_go));
    atomic_store(&b->runs, false);
}

/* ---- tests ---- */

static void nothing_is_read_for_who_has_gone(void **state)
{
    struct blocker b[2] = {{.job.run = block}, {.job.run = block}};
    struct peer left = peer_connect(http_server_port(api.server));

    (void)state;
    for (size_t i = 0; i < COUNT(b); i++) {
        readers_push(api.readers, &b[i].job);
        WAIT_FOR(atomic_load(&b[i].runs));
    }
    SEND(&left, GET("/large"));
    struct http_stats stats;
    WAIT_FOR((http_server_stats(api.server, &stats), stats.requests == 1));
    peer_close(&left);
    WAIT_FOR(atomic_load(&gone) == 1);
    for (size_t i = 0; i < COUNT(b); i++)
        atomic_store(&b[i].let_go, true);
    WAIT_FOR(atomic_load(&status_done) == 503);
    assert_int_equal(atomic_load(&reads), 0);
    peer_once(http_server_port(api.server), STR(GET("/large")), 204, NULL);
    assert_int_equal(atomic_load(&reads), 1);
    for (size_t i = 0; i < COUNT(b); i++)
        WAIT_FOR(!atomic_load(&b[i].runs));
}

static void what_is_committed_is_read_until_it_can_be(void **state)
{
    (void)state;
    peer_once(http_server_port(api.server), STR(GET("/back")), 204, NULL);
    assert_int_equal(atomic_load(&reads), 3);
}

static void what_cannot_be_read_may_still_be_there(void **state)
{
    struct peer p = peer_connect(http_server_port(api.server));
    struct answer a = {0};

    (void)state;
    SEND(&p, GET("/broken"));
    peer_answer(&p, &a, false);
    assert_int_equal(a.status, 500);
    assert_non_null(memmem(a.body.p, a.body.n, "\"outcome\":\"unknown\"", 19));
    assert_int_equal(atomic_load(&reads), 1); /* a fault does not go away */
    answer_free(&a);
    peer_close(&p);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(nothing_is_read_for_who_has_gone, start, stop),
        cmocka_unit_test_setup_teardown(what_is_committed_is_read_until_it_can_be, start, stop),
        cmocka_unit_test_setup_teardown(what_cannot_be_read_may_still_be_there, start, stop),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
