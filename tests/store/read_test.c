/* SPDX-License-Identifier: Apache-2.0
 * The reads, compared with what a plain loop over the same rows says. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

#include "base/clock.h"
#include "support/store_both.h"
#include "support/store_fixture.h"

static char agent_names[8][24];

static struct str agent_name(size_t i)
{
    snprintf(agent_names[i], sizeof(agent_names[i]), "%c%zu", i % 2 == 0 ? 'B' : 'a',
             i); /* byte order is not a locale's */
    return str_of(agent_names[i]);
}

/* ---- due dispatches ---- */

enum { AGENTS = 7, ROWS = 300 };

struct queued {
    struct uuid execution, dispatch;
    size_t agent;
    int64_t due_at;
};

static int by_due(const void *a, const void *b)
{
    const struct queued *x = a, *y = b;

    if (x->due_at != y->due_at)
        return x->due_at < y->due_at ? -1 : 1;
    return memcmp(&x->dispatch, &y->dispatch, sizeof(x->dispatch));
}

/* Random queues; some rows lie in the future, one agent has nothing, one has only the future. */
static void fill_queues(struct fixture *f, struct queued *rows)
{
    int64_t now;

    fixture_load(f);
    now = f->ws.now.wall_us;
    for (size_t i = 0; i < ROWS; i++) {
        size_t agent = (size_t)prng_below(&f->random, AGENTS - 1);
        bool future = agent == 2 || prng_below(&f->random, 4) == 0;
        struct execution *x = fixture_execution(f, agent_name(agent).p);

        x->dispatch->due_at =
            future ? now + (1 + (int64_t)prng_below(&f->random, 50)) * 1000 * US_PER_S
                   : now - (int64_t)prng_below(&f->random, 40) * US_PER_S;
        rows[i] = (struct queued){x->id, x->dispatch->id, agent, x->dispatch->due_at};
        if (prng_below(&f->random, 10) == 0) {
            x->dispatch->status = DISPATCH_CLAIMED;
            rows[i].due_at = INT64_MAX; /* not queued */
        }
    }
    fixture_commit(f);
    qsort(rows, ROWS, sizeof(rows[0]), by_due);
}

static void compare_due(struct fixture *f, const struct queued *rows, const struct agent_cap *caps,
                        size_t n_caps, int64_t default_room, size_t limit)
{
    int64_t room[AGENTS], now, next, want_next = 0;
    struct due_dispatch *got;
    struct err e = {0};
    size_t n, at = 0;

    assert_true(store_due_dispatches(f->r, caps, n_caps, default_room, limit, &f->arena, &got, &n,
                                     &now, &next, &e));
    for (size_t i = 0; i < AGENTS; i++) {
        room[i] = default_room;
        for (size_t c = 0; c < n_caps; c++)
            if (str_eq(caps[c].agent_id, agent_name(i)))
                room[i] = caps[c].room;
    }
    for (size_t i = 0; i < ROWS; i++)
        if (rows[i].due_at > now && rows[i].due_at != INT64_MAX && room[rows[i].agent] > 0 &&
            (want_next == 0 || rows[i].due_at < want_next))
            want_next = rows[i].due_at;
    assert_int_equal(next, want_next);
    for (size_t i = 0; i < ROWS && at < limit; i++) { /* the rows are sorted: oldest first */
        if (rows[i].due_at > now || room[rows[i].agent] <= 0)
            continue;
        room[rows[i].agent]--;
        assert_true(at < n);
        assert_true(uuid_eq(&got[at].dispatch_id, &rows[i].dispatch));
        assert_true(uuid_eq(&got[at].execution_id, &rows[i].execution));
        assert_true(str_eq(got[at].agent_id, agent_name(rows[i].agent)));
        at++;
    }
    assert_int_equal(n, at);
}

static void due_dispatches(void **state)
{
    struct fixture f;
    struct queued rows[ROWS];

    fixture_open(&f, *(enum fixture_kind *)*state);
    fill_queues(&f, rows);
    compare_due(&f, rows, NULL, 0, 1000, 1000);
    compare_due(&f, rows, NULL, 0, 3, 1000);
    compare_due(&f, rows, NULL, 0, 1000, 5);
    compare_due(&f, rows, NULL, 0, 0, 10);
    compare_due(&f, rows, NULL, 0, 5, 0);
    for (int round = 0; round < 30; round++) {
        struct agent_cap caps[AGENTS];
        size_t n = (size_t)prng_below(&f.random, AGENTS + 1);

        for (size_t i = 0; i < n; i++)
            caps[i] = (struct agent_cap){agent_name(i), (int64_t)prng_below(&f.random, 12)};
        compare_due(&f, rows, caps, n, (int64_t)prng_below(&f.random, 10),
                    (size_t)prng_below(&f.random, 60));
    }
    fixture_close(&f);
}

static void due_dispatches_of_an_empty_queue(void **state)
{
    struct fixture f;
    struct due_dispatch *got;
    struct err e = {0};
    int64_t now, next, depth;
    size_t n;

    fixture_open(&f, *(enum fixture_kind *)*state);
    assert_true(store_due_dispatches(f.r, NULL, 0, 5, 5, &f.arena, &got, &n, &now, &next, &e));
    assert_int_equal(n, 0);
    assert_int_equal(next, 0);
    assert_true(llabs(now - clock_wall_us()) < 5 * US_PER_S);
    assert_true(store_queue_depth(f.r, &depth, &e));
    assert_int_equal(depth, 0);
    fixture_load(&f);
    fixture_execution(&f, "a");
    fixture_execution(&f, "b");
    fixture_commit(&f);
    assert_true(store_queue_depth(f.r, &depth, &e));
    assert_int_equal(depth, 2);
    assert_true(store_ping(f.r, &e));
    fixture_close(&f);
}

/* ---- lists ---- */

enum { LISTED = 200 };

struct listed {
    struct uuid id;
    size_t agent;
    enum execution_status status;
    struct str session;
};

static void compare_list(struct fixture *f, const struct listed *rows,
                         const struct execution_filter *filter)
{
    struct execution_view *got;
    struct err e = {0};
    size_t n, at = 0;

    assert_true(store_list_executions(f->r, filter, &f->arena, &got, &n, &e));
    for (size_t i = LISTED; i-- > 0 && at < filter->limit;) { /* born in the order of their ids */
        const struct listed *row = &rows[i];

        if ((str_present(filter->agent_id) && !str_eq(filter->agent_id, agent_name(row->agent))) ||
            (str_present(filter->status) &&
             !str_eq(filter->status, execution_status_name(row->status))) ||
            (str_present(filter->session) && !str_eq(filter->session, row->session)) ||
            memcmp(&row->id, &filter->low, 16) < 0 || memcmp(&row->id, &filter->high, 16) > 0 ||
            (filter->before != NULL && memcmp(&row->id, filter->before, 16) >= 0))
            continue;
        assert_true(at < n);
        assert_true(uuid_eq(&got[at].id, &row->id));
        assert_true(str_eq(got[at].status, execution_status_name(row->status)));
        assert_true(str_eq(got[at].agent_id, agent_name(row->agent)));
        assert_str(got[at].session, row->session);
        at++;
    }
    assert_int_equal(n, at);
}

static void list_filters(void **state)
{
    static const struct str sessions[] = {STR_INIT("s"), STR_INIT("sa"), STR_INIT("\xc3\xa9"), {0}};
    struct fixture f;
    struct listed rows[LISTED];

    fixture_open(&f, *(enum fixture_kind *)*state);
    fixture_load(&f);
    for (size_t i = 0; i < LISTED; i++) {
        struct execution *x;

        rows[i].agent = (size_t)prng_below(&f.random, 4);
        rows[i].session = sessions[prng_below(&f.random, COUNT(sessions))];
        x = fixture_pending(&f, agent_name(rows[i].agent).p, rows[i].session);
        rows[i].id = x->id;
        x->status = rows[i].status = (enum execution_status)prng_below(&f.random, 6);
    }
    fixture_commit(&f);
    for (int round = 0; round < 100; round++) {
        struct execution_filter filter = {.limit = 1 + (size_t)prng_below(&f.random, 60)};

        memset(&filter.high, 0xff, sizeof(filter.high));
        if (prng_below(&f.random, 2) == 0)
            filter.agent_id = agent_name((size_t)prng_below(&f.random, 5));
        if (prng_below(&f.random, 2) == 0)
            filter.status = execution_status_name((enum execution_status)prng_below(&f.random, 6));
        if (prng_below(&f.random, 3) == 0)
            filter.before = &rows[prng_below(&f.random, LISTED)].id;
        if (prng_below(&f.random, 3) == 0)
            filter.low = rows[prng_below(&f.random, LISTED)].id;
        if (prng_below(&f.random, 3) == 0)
            filter.high = rows[prng_below(&f.random, LISTED)].id;
        if (prng_below(&f.random, 2) == 0)
            filter.session = sessions[prng_below(&f.random, COUNT(sessions))];
        compare_list(&f, rows, &filter);
    }
    fixture_close(&f);
}

/* As many rows as bytes allow, but at least one; what is left is found from the last one on. */
static void lists_bounded_in_bytes(void **state)
{
    enum { N = 9 };
    static const size_t sizes[N] = {10,   5000, 10,   10, 3000,
                                    3000, 10,   9000, 1}; /* the newest last */
    static char text[9000];
    struct fixture f;
    struct execution_view *rows;
    struct err e = {0};
    size_t n, at = N;

    fixture_open(&f, *(enum fixture_kind *)*state);
    fixture_load(&f);
    memset(text, '1', sizeof(text));
    for (size_t i = 0; i < N; i++)
        fixture_execution(&f, "a")->input = str_make(text, sizes[i]);
    fixture_commit(&f);
    struct uuid before;
    struct execution_filter filter = {.limit = 100, .max_bytes = 4000};
    memset(&filter.high, 0xff, sizeof(filter.high));
    while (at > 0) {
        size_t bytes = 0, wanted = 0;

        assert_true(store_list_executions(f.r, &filter, &f.arena, &rows, &n, &e));
        for (; wanted < at && (wanted == 0 || bytes < filter.max_bytes); wanted++)
            bytes += sizes[at - 1 - wanted];
        assert_int_equal(n, wanted);
        for (size_t i = 0; i < n; i++)
            assert_int_equal(rows[i].input.n, sizes[--at]);
        before = rows[n - 1].id;
        filter.before = &before;
    }
    filter = (struct execution_filter){.high = filter.high, .limit = 100}; /* no bound */
    assert_true(store_list_executions(f.r, &filter, &f.arena, &rows, &n, &e));
    assert_int_equal(n, N);
    fixture_close(&f);
}

static void views_show_what_is_waited_for(void **state)
{
    struct fixture f;
    struct uuid id, none = {{9}};
    struct execution *x;
    struct execution_view v;
    struct err e = {0};
    bool found;

    fixture_open(&f, *(enum fixture_kind *)*state);
    fixture_load(&f);
    x = fixture_execution(&f, "a");
    id = x->id;
    x->dispatch->due_at = 777;
    fixture_commit(&f);
    assert_true(store_read_execution(f.r, &id, &f.arena, &v, &found, &e));
    assert_true(found);
    assert_true(str_eq(v.dispatch_status, STR("queued")));
    assert_int_equal(v.due_at, 777);
    assert_int_equal(v.lease_until, 0);
    x = fixture_get(&f, &id);
    fixture_claim(&f, x);
    fixture_commit(&f);
    assert_true(store_read_execution(f.r, &id, &f.arena, &v, &found, &e));
    assert_true(str_eq(v.dispatch_status, STR("acked")));
    if (store_is_sqlite(f.store))
        assert_int_equal(v.lease_until, 0);
    else
        assert_true(v.lease_until > v.created_at);
    assert_true(store_read_execution(f.r, &none, &f.arena, &v, &found, &e));
    assert_false(found);
    fixture_close(&f);
}

/* ---- events ---- */

static void events_paging(void **state)
{
    enum { N = 60 };
    struct fixture f;
    struct uuid id, none = {{9}};
    struct err e = {0};
    int64_t first[N], count[N], total = 0;
    char bodies[N][64];
    bool terminal, found;
    struct event_row *rows;
    size_t n;
    int64_t last;

    fixture_open(&f, *(enum fixture_kind *)*state);
    fixture_load(&f);
    id = fixture_uuid(&f);
    (void)ws_new_execution(&f.ws, &id, STR("a"), STR_NONE);
    ws_execution(&f.ws, &id)->status = EXECUTION_RUNNING;
    fixture_commit(&f);
    for (size_t i = 0; i < N; i++) {
        count[i] = 1 + (int64_t)prng_below(&f.random, 4);
        first[i] = total + 1;
        total += count[i];
        bodies[i][0] = '\0';
        for (int64_t k = 0; k < count[i]; k++)
            strcat(bodies[i], "e\t\"x\":1\n");
        fixture_event(&f, fixture_get(&f, &id), bodies[i]);
        fixture_commit(&f);
    }
    for (int64_t after = 0; after <= total + 1; after++) {
        size_t limit = 1 + (size_t)prng_below(&f.random, 10), at = 0;

        assert_true(store_read_events(f.r, &id, after, limit, SIZE_MAX, &f.arena, &rows, &n, &last,
                                      &terminal, &found, &e));
        assert_true(found);
        assert_false(terminal);
        assert_int_equal(last, total);
        while (at < N && first[at] + count[at] - 1 <= after)
            at++;
        assert_int_equal(n, N - at < limit ? N - at : limit);
        for (size_t i = 0; i < n; i++) {
            assert_int_equal(rows[i].first_seq, first[at + i]);
            assert_int_equal(rows[i].count, count[at + i]);
            assert_true(str_eq(rows[i].body, str_of(bodies[at + i])));
            assert_true(rows[i].occurred_at > 0);
        }
    }
    assert_true(
        store_read_events(f.r, &id, 0, 100, 1, &f.arena, &rows, &n, &last, &terminal, &found, &e));
    assert_int_equal(n, 1); /* about max_bytes, but never nothing */
    assert_true(store_read_events(f.r, &id, 0, 100, 100, &f.arena, &rows, &n, &last, &terminal,
                                  &found, &e));
    assert_in_range(n, 2, 13);
    fixture_get(&f, &id)->status = EXECUTION_COMPLETED;
    ws_touch_execution(&f.ws, fixture_get(&f, &id));
    fixture_commit(&f);
    assert_true(store_read_events(f.r, &id, total, 100, 100, &f.arena, &rows, &n, &last, &terminal,
                                  &found, &e));
    assert_int_equal(n, 0);
    assert_true(terminal);
    assert_true(store_read_events(f.r, &none, 0, 100, 100, &f.arena, &rows, &n, &last, &terminal,
                                  &found, &e));
    assert_false(found);
    fixture_close(&f);
}

/* ---- steps ---- */

static void calls_of_steps(void **state)
{
    enum { STEPS = 4, ASKED = STEPS + 2, LARGE = 5000 };
    static char large[LARGE];
    struct fixture f;
    struct uuid id, other;
    struct hash ids[ASKED], elsewhere = fixture_hash(100);
    struct step_call_query q = {.ids = ids, .count = ASKED};
    struct execution *x;
    struct step_call *got;
    struct err e = {0};
    size_t n;

    fixture_open(&f, *(enum fixture_kind *)*state);
    fixture_agent(&f, "a");
    fixture_load(&f);
    memset(large, '1', LARGE);
    x = fixture_execution(&f, "a");
    id = x->id;
    for (size_t i = 0; i < ASKED; i++)
        ids[i] = fixture_hash(i);
    for (size_t i = STEPS; i-- > 0;) /* asked for in another order than they were made */
        fixture_step(&f, x, &ids[i], str_make(large, i == 2 ? LARGE : i))->kind = (unsigned)i % 3;
    x = fixture_execution(&f, "a");
    other = x->id;
    fixture_step(&f, x, &elsewhere, STR("7"));
    fixture_commit(&f);
    ids[STEPS] = elsewhere;
    q.execution_id = &id;
    q.max_bytes = SIZE_MAX;
    assert_true(store_read_calls(f.r, &q, &f.arena, &got, &n, &e));
    assert_int_equal(n, ASKED);
    for (size_t i = 0; i < STEPS; i++) {
        assert_true(str_eq(got[i].kind, step_kind_name((enum step_kind)(i % 3))));
        assert_true(str_eq(got[i].target, STR("send")));
        assert_true(str_eq(got[i].args, str_make(large, i == 2 ? LARGE : i)));
    }
    for (size_t i = STEPS; i < ASKED; i++)
        assert_false(str_present(got[i].kind));
    q.max_bytes = LARGE;
    assert_true(store_read_calls(f.r, &q, &f.arena, &got, &n, &e));
    assert_int_equal(n, 3); /* the third exceeds it */
    q.ids = &ids[2];
    q.count = 2;
    assert_true(store_read_calls(f.r, &q, &f.arena, &got, &n, &e));
    assert_int_equal(n, 1);
    assert_int_equal(got[0].args.n, LARGE);
    q = (struct step_call_query){&other, &elsewhere, 1, 1};
    assert_true(store_read_calls(f.r, &q, &f.arena, &got, &n, &e));
    assert_int_equal(n, 1);
    assert_true(str_eq(got[0].args, STR("7")));
    fixture_close(&f);
}

static void steps_paging(void **state)
{
    enum { N = 50 };
    static const struct str filters[] = {
        {NULL, 0}, STR_INIT(""), STR_INIT("terminal"), STR_INIT("executing"), STR_INIT("denied")};
    struct fixture f;
    struct uuid id;
    struct execution *x;
    enum step_status status[N];
    struct err e = {0};
    struct step_view *rows;
    size_t n;

    fixture_open(&f, *(enum fixture_kind *)*state);
    fixture_load(&f);
    x = fixture_execution(&f, "a");
    id = x->id;
    for (unsigned i = 0; i < N; i++) {
        struct hash h = fixture_hash(i);
        struct step *s = fixture_step(&f, x, &h, STR("0123456789"));

        s->status = status[i] = (enum step_status)prng_below(&f.random, 8);
        s->occurrence = i;
        if (step_status_is_terminal(s->status))
            ws_step_left_live(s);
    }
    fixture_commit(&f);
    for (size_t k = 0; k < COUNT(filters); k++) {
        int64_t after = 0;
        unsigned i = 0;

        do {
            assert_true(store_read_steps(f.r, &id, filters[k], after, 7, SIZE_MAX, &f.arena, &rows,
                                         &n, &e));
            for (size_t r = 0; r < n; r++, i++) {
                while (
                    i < N &&
                    !(str_empty(filters[k]) || str_eq(filters[k], step_status_name(status[i])) ||
                      (str_eq(filters[k], STR("terminal")) && step_status_is_terminal(status[i]))))
                    i++;
                assert_int_equal(rows[r].occurrence, i);
                assert_true(str_eq(rows[r].status, step_status_name(status[i])));
                assert_true(str_eq(rows[r].args, STR("0123456789")));
                assert_true(rows[r].key > after);
                after = rows[r].key;
            }
        } while (n == 7);
    }
    assert_true(store_read_steps(f.r, &id, STR_NONE, 0, 100, 1, &f.arena, &rows, &n, &e));
    assert_int_equal(n, 1);
    assert_true(store_read_steps(f.r, &id, STR_NONE, 0, 100, 45, &f.arena, &rows, &n, &e));
    assert_in_range(n, 4, 6);
    fixture_close(&f);
}

/* ---- background work ---- */

static void past_deadlines(void **state)
{
    struct fixture f;
    struct uuid past, *ids;
    struct execution *x;
    struct err e = {0};
    size_t n;

    fixture_open(&f, *(enum fixture_kind *)*state);
    fixture_load(&f);
    (void)fixture_execution(&f, "a"); /* no deadline */
    fixture_execution(&f, "a")->deadline_at = f.ws.now.wall_us + 1000 * US_PER_S;
    x = fixture_execution(&f, "a");
    x->deadline_at = f.ws.now.wall_us - 1;
    past = x->id;
    x = fixture_execution(&f, "a");
    x->deadline_at = 5;
    x->status = EXECUTION_FAILED;
    fixture_commit(&f);
    assert_true(store_past_deadlines(f.r, 10, &f.arena, &ids, &n, &e));
    assert_int_equal(n, 1);
    assert_true(uuid_eq(&ids[0], &past));
    fixture_close(&f);
}

static void leased_executions(void **state)
{
    enum { N = 20 };
    struct fixture f;
    struct uuid want[N], after, *ids;
    struct err e = {0};
    size_t n, leased = 0, at = 0;

    fixture_open(&f, *(enum fixture_kind *)*state);
    fixture_load(&f);
    for (unsigned i = 0; i < N; i++) {
        struct execution *x = fixture_execution(&f, "a");

        x->dispatch->status = (enum dispatch_status)(i % 3);
        if (i % 3 == DISPATCH_QUEUED)
            continue;
        x->owner = OWNER_WORKING;
        want[leased++] = x->id;
    }
    fixture_commit(&f);
    assert_true(store_leased(f.r, NULL, 3, &f.arena, &ids, &n, &e));
    while (n > 0) {
        for (size_t i = 0; i < n; i++)
            assert_true(uuid_eq(&ids[i], &want[at++]));
        after = ids[n - 1];
        assert_true(store_leased(f.r, &after, 3, &f.arena, &ids, &n, &e));
    }
    assert_int_equal(at, leased);
    fixture_close(&f);
}

static void agents_in_byte_order(void **state)
{
    static const char *const names[] = {"b", "a", "B", "a-1", "A", "_", "\xc3\xa9"};
    static const char *const want[] = {"A", "B", "_", "a", "a-1", "b", "\xc3\xa9"};
    struct fixture f;
    struct agent_view *rows, one;
    struct err e = {0};
    size_t n;
    bool found;

    fixture_open(&f, *(enum fixture_kind *)*state);
    for (size_t i = 0; i < COUNT(names); i++)
        fixture_agent(&f, names[i]);
    assert_true(store_list_agents(f.r, &f.arena, &rows, &n, &e));
    assert_int_equal(n, COUNT(want));
    for (size_t i = 0; i < n; i++)
        assert_true(str_eq(rows[i].id, str_of(want[i])));
    assert_true(store_read_agent(f.r, STR("a-1"), &f.arena, &one, &found, &e));
    assert_true(found);
    assert_true(str_eq(one.secret, STR("secret")));
    assert_false(str_present(one.previous_secret));
    assert_true(store_read_agent(f.r, STR("zz"), &f.arena, &one, &found, &e));
    assert_false(found);
    fixture_close(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        ON_BOTH(due_dispatches),
        ON_BOTH(due_dispatches_of_an_empty_queue),
        ON_BOTH(list_filters),
        ON_BOTH(lists_bounded_in_bytes),
        ON_BOTH(views_show_what_is_waited_for),
        ON_BOTH(events_paging),
        ON_BOTH(calls_of_steps),
        ON_BOTH(steps_paging),
        ON_BOTH(past_deadlines),
        ON_BOTH(leased_executions),
        ON_BOTH(agents_in_byte_order),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
