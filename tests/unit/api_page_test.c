/* SPDX-License-Identifier: Apache-2.0
 * Pages of a log: cut anywhere inside transitions, they join without gap or repetition, in both
 * forms. */
#include "support/check.h"

#include "api/page.h"
#include "base/json.h"
#include "support/store_fixture.h"

enum { ALL = 1000 };

static struct event_page page(struct fixture *f, const struct uuid *id, int64_t after,
                              int64_t limit, size_t max_bytes, enum page_form form)
{
    struct event_page p;
    struct err e;

    CHECKF(page_read(f->r, id, after, limit, max_bytes, form, &p, &e), "%s", e.message);
    return p;
}

/* A log of seven events in four transitions. */
static struct uuid make_log(struct fixture *f, bool end)
{
    static const char *const lines[] = {"step.proposed\t\"n\":2\n", "step.allowed\t&,\"x\":3\n",
                                        "step.executing\t&\n", "step.succeeded\t\"n\":5\n"};
    struct execution *x;
    struct uuid id;

    fixture_load(f);
    x = fixture_execution(f, "a");
    id = x->id;
    fixture_commit(f);
    x = fixture_get(f, &id);
    for (size_t i = 0; i < 3; i++)
        fixture_event(f, x, lines[i]);
    fixture_commit(f);
    x = fixture_get(f, &id);
    fixture_event(f, x, lines[3]);
    fixture_commit(f);
    if (!end)
        return id;
    x = fixture_get(f, &id);
    x->status = EXECUTION_COMPLETED;
    x->output = STR("[1,\r\n 2]");
    ws_retire_dispatch(&f->ws, x);
    ws_touch_execution(&f->ws, x);
    fixture_event(f, x, "execution.completed\t\"output\":@\n");
    fixture_event(f, x, "step.cancelled\t\"n\":7\n");
    fixture_commit(f);
    return id;
}

static void counts_and_ends(void **state)
{
    struct fixture f;

    (void)state;
    fixture_open(&f, FIXTURE_MEMORY);
    struct uuid live = make_log(&f, false), ended = make_log(&f, true);
    struct event_page p = page(&f, &live, 0, ALL, ALL * ALL, PAGE_ITEMS);
    CHECKF(p.count == 5 && p.last == 5 && p.at_end && !p.terminal, "%lld", (long long)p.count);
    page_free(&p);
    p = page(&f, &ended, 0, ALL, ALL * ALL, PAGE_ITEMS);
    CHECKF(p.count == 7 && p.last == 7 && p.at_end && p.terminal, "%lld", (long long)p.count);
    page_free(&p);
    p = page(&f, &ended, 0, 6, ALL * ALL, PAGE_ITEMS); /* inside the transition that ended it */
    CHECKF(p.count == 6 && !p.at_end, "%lld", (long long)p.count);
    page_free(&p);
    p = page(&f, &ended, 7, ALL, ALL * ALL, PAGE_ITEMS);
    CHECKF(p.count == 0 && p.last == 7 && p.at_end && p.terminal && p.text.n == 0, "past the end");
    page_free(&p);
    p = page(&f, &live, INT64_MAX, 1, 1, PAGE_ITEMS); /* from the future */
    CHECKF(p.count == 0 && p.last == INT64_MAX && p.at_end && !p.terminal, "future");
    page_free(&p);
    fixture_close(&f);
}

static void knows_no_other_execution(void **state)
{
    struct fixture f;
    struct event_page p;
    struct err e;

    (void)state;
    fixture_open(&f, FIXTURE_MEMORY);
    (void)make_log(&f, false);
    struct uuid other = fixture_uuid(&f);
    assert_false(page_read(f.r, &other, 0, ALL, ALL, PAGE_ITEMS, &p, &e));
    assert_int_equal(e.code, ERR_NOT_FOUND);
    fixture_close(&f);
}

/* What whole pages say, said again in pieces. */
static void joins(struct fixture *f, const struct uuid *id, int64_t limit, size_t max_bytes,
                  enum page_form form)
{
    struct event_page whole = page(f, id, 0, ALL, ALL * ALL, form);
    struct buf joined = {0};
    int64_t after = 0, turns = 0;

    for (;;) {
        struct event_page p = page(f, id, after, limit, max_bytes, form);
        if (form == PAGE_ITEMS && joined.n > 0 && p.count > 0)
            buf_add_byte(&joined, ',');
        buf_add(&joined, buf_str(&p.text));
        CHECKF(p.last == after + p.count && p.count <= limit, "after %lld", (long long)after);
        after = p.last;
        bool done = p.at_end;
        page_free(&p);
        if (done)
            break;
        CHECKF(++turns < 100, "no progress");
    }
    CHECK_STR(buf_str(&joined), buf_str(&whole.text));
    buf_free(&joined);
    page_free(&whole);
}

static void pieces_join(void **state)
{
    struct fixture f;

    (void)state;
    fixture_open(&f, FIXTURE_MEMORY);
    struct uuid id = make_log(&f, true);
    for (int64_t limit = 1; limit < 9; limit++) {
        joins(&f, &id, limit, ALL * ALL, PAGE_ITEMS);
        joins(&f, &id, limit, ALL * ALL, PAGE_STREAM);
    }
    for (size_t bytes = 1; bytes < 2000; bytes += 37) {
        joins(&f, &id, ALL, bytes, PAGE_ITEMS);
        joins(&f, &id, ALL, bytes, PAGE_STREAM);
    }
    fixture_close(&f);
}

/* The output is the user's, line ends included; a stream's line must not break. */
static void carries_the_output(void **state)
{
    struct fixture f;
    struct arena arena = {0};

    (void)state;
    fixture_open(&f, FIXTURE_MEMORY);
    struct uuid id = make_log(&f, true);
    struct event_page p = page(&f, &id, 5, 1, ALL * ALL, PAGE_ITEMS);
    struct str payload = json_get(buf_str(&p.text), STR("payload"), &arena);
    CHECK_STR(payload, STR("{\"output\":[1,\r\n 2]}"));
    CHECK_STR(json_get(buf_str(&p.text), STR("event_seq"), &arena), STR("6"));
    page_free(&p);
    p = page(&f, &id, 5, 1, ALL * ALL, PAGE_STREAM);
    CHECKF(str_starts(buf_str(&p.text), STR("id: 6\ndata: {")), "%.*s", STR_ARG(buf_str(&p.text)));
    assert_non_null(memmem(p.text.p, p.text.n, "[1,   2]", 8));
    CHECK_STR(str_slice(buf_str(&p.text), p.text.n - 3, p.text.n), STR("}\n\n"));
    page_free(&p);
    arena_free(&arena);
    fixture_close(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(counts_and_ends),
        cmocka_unit_test(knows_no_other_execution),
        cmocka_unit_test(pieces_join),
        cmocka_unit_test(carries_the_output),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
