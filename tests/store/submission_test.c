/* SPDX-License-Identifier: Apache-2.0
 * Counted submissions outlive the kernel and end with their claim; leases as each database keeps
 * them. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

#include "base/clock.h"
#include "support/store_both.h"
#include "support/store_fixture.h"

static struct tally_ref ref_of(const struct uuid *id, uint64_t call, const char *key)
{
    struct tally_ref ref = {
        .execution_id = *id, .call = fixture_call(call), .has_key = key != NULL};

    if (key != NULL)
        memcpy(ref.key, key, strnlen(key, sizeof(ref.key)));
    return ref;
}

/* As a submission's command does: names what it needs, then counts. */
static void count(struct fixture *f, const struct uuid *id, uint64_t call, const char *key,
                  uint64_t step)
{
    struct tally_ref ref = ref_of(id, call, key);
    struct hash h = fixture_hash(step);

    ws_need_tally(&f->ws, &ref);
    fixture_load(f);
    fixture_count(f, ws_execution(&f->ws, id), call, key, &h);
}

static int64_t tally(struct fixture *f, const struct uuid *id, uint64_t call, const char *key)
{
    struct tally_ref ref = ref_of(id, call, key);
    struct execution *x = ws_execution(&f->ws, id);

    if (x == NULL || !ws_knows_tally(x, &ref)) {
        ws_need_tally(&f->ws, &ref);
        fixture_load(f);
        x = ws_execution(&f->ws, id);
    }
    assert_true(ws_knows_tally(x, &ref));
    return ws_tally(x, &ref.call);
}

static const struct submission_key *key_row(struct fixture *f, const struct uuid *id,
                                            const char *key)
{
    struct tally_ref ref = ref_of(id, 0, key);

    (void)tally(f, id, 0, key);
    return ws_submission_key(ws_execution(&f->ws, id), ref.key);
}

static void counts_survive_a_restart(void **state)
{
    struct fixture f;
    struct uuid id, other;
    struct hash h = fixture_hash(77);
    struct call_key call = fixture_call(1);

    fixture_open(&f, *(enum fixture_kind *)*state);
    fixture_agent(&f, "a");
    id = fixture_claimed(&f);
    other = fixture_claimed(&f);
    count(&f, &id, 1, "key-1", 77);
    count(&f, &id, 1, NULL, 78); /* twice in one group */
    count(&f, &id, 2, NULL, 79);
    fixture_commit(&f);
    count(&f, &id, 1, NULL, 80);
    fixture_commit(&f);
    for (int round = 0; round < 2; round++) {
        fixture_reopen(&f);
        assert_int_equal(tally(&f, &id, 1, NULL), 3);
        assert_int_equal(tally(&f, &id, 2, NULL), 1);
        assert_int_equal(tally(&f, &id, 3, NULL), 0);
        assert_int_equal(tally(&f, &other, 1, NULL), 0);
        assert_non_null(key_row(&f, &id, "key-1"));
        assert_memory_equal(&key_row(&f, &id, "key-1")->step_id, &h, sizeof(h));
        assert_memory_equal(&key_row(&f, &id, "key-1")->call, &call, sizeof(call));
        assert_null(key_row(&f, &id, "key-2"));
        assert_null(key_row(&f, &other, "key-1"));
        fixture_commit(&f);
    }
    fixture_close(&f);
}

static void a_claim_starts_from_zero(void **state)
{
    struct fixture f;
    struct uuid id;
    struct execution *x;

    fixture_open(&f, *(enum fixture_kind *)*state);
    fixture_agent(&f, "a");
    id = fixture_claimed(&f);
    count(&f, &id, 1, "k", 1);
    fixture_commit(&f);
    x = fixture_get(&f, &id);
    x->dispatch->status = DISPATCH_QUEUED; /* reclaimed */
    x->owner = OWNER_NONE;
    ws_touch_execution(&f.ws, x);
    ws_touch_dispatch(&f.ws, x);
    fixture_commit(&f);
    assert_true(fixture_get(&f, &id)->tallies_complete); /* nobody owns it: nothing is counted */
    assert_int_equal(tally(&f, &id, 1, "k"), 0);
    fixture_claim(&f, ws_execution(&f.ws, &id));
    fixture_commit(&f);
    fixture_reopen(&f);
    assert_int_equal(tally(&f, &id, 1, "k"), 0);
    assert_null(key_row(&f, &id, "k"));
    count(&f, &id, 1, "k", 2);
    fixture_commit(&f);
    fixture_reopen(&f);
    assert_int_equal(tally(&f, &id, 1, "k"), 1);
    fixture_close(&f);
}

/* The delivery ends; its attempt goes on to own the execution. */
static void end_delivery(struct fixture *f, const struct uuid *id, bool retire)
{
    struct execution *x = fixture_get(f, id);

    x->owner = OWNER_ENDED;
    x->lease_until = f->ws.now.lease_us + x->owner_lease_us;
    ws_touch_execution(&f->ws, x);
    ws_touch_lease(&f->ws, x);
    if (retire) {
        ws_retire_dispatch(&f->ws, x);
    } else {
        x->dispatch->status = DISPATCH_QUEUED;
        ws_touch_dispatch(&f->ws, x);
    }
    fixture_commit(f);
}

/* Calls of it may still run, so its counts go on for as long as they can be asked for: for a
 * lease's term after a restart too. */
static void counts_of_an_ended_delivery(void **state)
{
    struct fixture f;
    struct uuid id;

    for (int retire = 0; retire < 2; retire++) {
        fixture_open(&f, *(enum fixture_kind *)*state);
        fixture_agent(&f, "a");
        id = fixture_claimed(&f);
        count(&f, &id, 5, "k", 1);
        fixture_commit(&f);
        end_delivery(&f, &id, retire);
        for (int i = 1; i < 3; i++) {
            assert_int_equal(tally(&f, &id, 5, NULL), i);
            assert_false(ws_execution(&f.ws, &id)->counts_lost);
            count(&f, &id, 5, NULL, 1);
            fixture_commit(&f);
        }
        fixture_reopen(&f);
        assert_false(fixture_get(&f, &id)->counts_lost);
        assert_int_equal(tally(&f, &id, 5, "k"), 3);
        assert_non_null(key_row(&f, &id, "k"));
        count(&f, &id, 5, NULL, 1);
        fixture_get(&f, &id)->owner_lease_us = 1; /* that long ago */
        ws_touch_execution(&f.ws, ws_execution(&f.ws, &id));
        fixture_commit(&f);
        fixture_reopen(&f);
        assert_true(fixture_get(&f, &id)->counts_lost == store_is_sqlite(f.store));
        fixture_commit(&f);
        fixture_close(&f);
    }
}

static void counts_after_an_error(void **state)
{
    struct fixture f;
    struct uuid id, second;

    fixture_open(&f, *(enum fixture_kind *)*state);
    fixture_agent(&f, "a");
    id = fixture_claimed(&f);
    second = fixture_claimed(&f);
    count(&f, &id, 1, NULL, 1);
    count(&f, &second, 1, NULL, 1);
    fixture_commit(&f);
    count(&f, &id, 1, NULL, 2); /* is not committed */
    store_abandon(f.w);
    ws_clear(&f.ws);
    assert_int_equal(tally(&f, &id, 1, NULL), 1);
    count(&f, &id, 1, NULL, 2);
    fixture_commit(&f);
    assert_int_equal(tally(&f, &second, 1, NULL), 1);
    assert_int_equal(tally(&f, &id, 1, NULL), 2);
    fixture_close(&f);
}

static int tidy_all(struct fixture *f)
{
    struct err e = {0};
    bool more = true;
    int slices = 0;

    for (; more; slices++)
        assert_true(store_tidy(f->w, &f->ws, &more, &e));
    return slices;
}

static void tidy_keeps_what_counts(void **state)
{
    enum { CALLS = 1200 };
    struct fixture f;
    struct uuid live, over;
    struct execution *x;

    fixture_open(&f, *(enum fixture_kind *)*state);
    fixture_agent(&f, "a");
    live = fixture_claimed(&f);
    over = fixture_claimed(&f);
    for (uint64_t i = 0; i < CALLS; i++) {
        count(&f, &live, i, NULL, i);
        count(&f, &over, i, NULL, i);
    }
    fixture_commit(&f);
    x = fixture_get(&f, &over);
    x->status = EXECUTION_COMPLETED;
    x->owner = OWNER_NONE;
    ws_touch_execution(&f.ws, x);
    ws_retire_dispatch(&f.ws, x);
    fixture_commit(&f);
    assert_in_range(tidy_all(&f), 1, 10);
    fixture_reopen(&f);
    for (uint64_t i = 0; i < CALLS; i += 100)
        assert_int_equal(tally(&f, &live, i, NULL), 1);
    fixture_close(&f);
}

/* What nobody will read is swept, and what the set holds is right all the same. */
static void tidy_after_a_delivery_has_ended(void **state)
{
    struct fixture f;
    struct uuid ended, working;

    fixture_open(&f, *(enum fixture_kind *)*state);
    fixture_agent(&f, "a");
    ended = fixture_claimed(&f);
    working = fixture_claimed(&f);
    count(&f, &ended, 1, "k", 1);
    count(&f, &working, 1, "k", 1);
    fixture_commit(&f);
    end_delivery(&f, &ended, false);
    (void)tidy_all(&f);
    assert_string_equal(fixture_sql(&f, "SELECT count(*) FROM submissions"), "2");
    assert_int_equal(tally(&f, &ended, 1, "k"), 1);
    assert_non_null(key_row(&f, &ended, "k"));
    store_abandon(f.w);
    ws_clear(&f.ws);
    (void)fixture_get(&f, &ended);
    assert_int_equal(tally(&f, &ended, 1, "k"), 1); /* a call of it may still come */
    assert_non_null(key_row(&f, &ended, "k"));
    assert_int_equal(tally(&f, &working, 1, "k"), 1);
    fixture_close(&f);
}

/* ---- leases ---- */

static void leases_after_a_start(void **state)
{
    struct fixture f;
    struct uuid id, waiting;
    struct execution *x;
    int64_t term, stored;

    fixture_open(&f, *(enum fixture_kind *)*state);
    fixture_agent(&f, "a");
    id = fixture_claimed(&f);
    waiting = fixture_claimed(&f);
    x = fixture_get(&f, &id);
    stored = x->lease_until;
    x = fixture_get(&f, &waiting);
    x->dispatch->status = DISPATCH_CLAIMED;
    x->dispatch->lease_us = US_PER_S; /* shorter than the dispatch timeout */
    ws_touch_dispatch(&f.ws, x);
    fixture_commit(&f);
    fixture_reopen(&f);
    x = fixture_get(&f, &id);
    term = f.settings.lease_timeout_us;
    if (store_is_sqlite(f.store))
        assert_int_equal(x->lease_until, f.ws.now.lease_us + term); /* a fresh full term */
    else
        assert_int_equal(x->lease_until, stored); /* runs on by the database's clock */
    x = fixture_get(&f, &waiting);
    if (store_is_sqlite(f.store))
        assert_int_equal(x->lease_until, f.ws.now.lease_us + f.settings.dispatch_timeout_us);
    fixture_close(&f);
}

/* A delivery that has ended holds the next one back for a term after its last call. That term is
 * not begun anew by whoever looks at the row. */
static void leases_of_ended_deliveries(void **state)
{
    struct fixture f;
    struct uuid id, other;
    struct execution *x;
    int64_t term, before, stored;

    fixture_open(&f, *(enum fixture_kind *)*state);
    f.settings.lease_timeout_us = term = 50 * US_PER_MS;
    fixture_agent(&f, "a");
    id = fixture_claimed(&f);
    other = fixture_claimed(&f);
    end_delivery(&f, &id, true);
    stored = fixture_get(&f, &id)->lease_until;
    assert_int_equal(fixture_get(&f, &id)->owner_lease_us, term);
    fixture_commit(&f);
    fixture_load(&f);
    before = f.ws.now.lease_us;
    fixture_reopen(&f);
    x = fixture_get(&f, &id);
    if (store_is_sqlite(f.store)) { /* nobody could call while it was stopped */
        assert_in_range(x->lease_until, before + term, f.ws.now.lease_us + term);
        stored = x->lease_until;
    }
    assert_int_equal(x->lease_until, stored);
    while (f.ws.now.lease_us <= stored) /* its time passes, and it leaves the set */
        fixture_load(&f);
    fixture_commit(&f);
    assert_null(ws_execution(&f.ws, &id));
    end_delivery(&f, &other, false); /* groups come and go */
    assert_int_equal(fixture_get(&f, &id)->lease_until, stored);
    store_abandon(f.w); /* of calls since then the set knows nothing any more */
    ws_clear(&f.ws);
    x = fixture_get(&f, &id);
    if (store_is_sqlite(f.store))
        assert_true(x->lease_until > stored);
    else
        assert_int_equal(x->lease_until, stored);
    fixture_close(&f);
}

static void renewals_are_written_when_they_matter(void **state)
{
    struct fixture f;
    struct uuid id;
    struct execution *x;
    int64_t start, term;

    fixture_open(&f, *(enum fixture_kind *)*state);
    fixture_agent(&f, "a");
    id = fixture_claimed(&f);
    end_delivery(&f, &id, true); /* with a dispatch or without one */
    term = f.settings.lease_timeout_us;
    x = fixture_get(&f, &id);
    start = x->lease_until;
    x->lease_until = start + term / 21;
    ws_touch_lease(&f.ws, x);
    fixture_commit(&f);
    x = fixture_get(&f, &id);
    assert_int_equal(x->lease_until, start);
    x->lease_until = start + term / 19;
    ws_touch_lease(&f.ws, x);
    fixture_commit(&f);
    x = fixture_get(&f, &id);
    assert_int_equal(x->lease_until, start + term / 19);
    x->lease_until = start + term / 19 + 1; /* with any other change it goes along */
    ws_touch_execution(&f.ws, x);
    fixture_commit(&f);
    assert_int_equal(fixture_get(&f, &id)->lease_until, start + term / 19 + 1);
    fixture_close(&f);
}

/* Those of ended deliveries matter to the set alone, which they leave. */
static void expired_leases_are_found(void **state)
{
    enum { WORKING, ENDED, ENDED_WITHOUT_DISPATCH, KINDS };
    struct fixture f;
    struct uuid passed[KINDS], *found;
    struct err e = {0};
    bool seen[KINDS] = {false};
    size_t n, want;

    fixture_open(&f, *(enum fixture_kind *)*state);
    fixture_agent(&f, "a");
    for (size_t i = 0; i < 2 * KINDS; i++) {
        struct uuid id = fixture_claimed(&f);
        struct execution *x = fixture_get(&f, &id);

        x->owner = i % KINDS == WORKING ? OWNER_WORKING : OWNER_ENDED;
        x->lease_until = f.ws.now.lease_us + (i < KINDS ? 1 : 100 * US_PER_S);
        if (i % KINDS == ENDED_WITHOUT_DISPATCH)
            ws_retire_dispatch(&f.ws, x);
        ws_touch_execution(&f.ws, x);
        fixture_commit(&f);
        if (i < KINDS)
            passed[i] = id;
    }
    want = store_is_sqlite(f.store) ? KINDS : 1;
    assert_true(store_expired_leases(f.w, &f.ws, 10, &f.arena, &found, &n, &e));
    assert_int_equal(n, want);
    for (size_t i = 0; i < n; i++)
        for (size_t k = 0; k < KINDS; k++)
            seen[k] |= uuid_eq(&found[i], &passed[k]);
    for (size_t k = 0; k < want; k++)
        assert_true(seen[k]);
    assert_true(store_expired_leases(f.w, &f.ws, 1, &f.arena, &found, &n, &e));
    assert_int_equal(n, 1);
    fixture_close(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        ON_BOTH(counts_survive_a_restart),
        ON_BOTH(a_claim_starts_from_zero),
        ON_BOTH(counts_of_an_ended_delivery),
        ON_BOTH(counts_after_an_error),
        ON_BOTH(tidy_keeps_what_counts),
        ON_SQLITE(tidy_after_a_delivery_has_ended),
        ON_BOTH(leases_after_a_start),
        ON_BOTH(leases_of_ended_deliveries),
        ON_POSTGRES(renewals_are_written_when_they_matter),
        ON_BOTH(expired_leases_are_found),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
