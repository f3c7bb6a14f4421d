/* SPDX-License-Identifier: Apache-2.0
 * Rows of dispatches: written, read back, and which of them lives. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

#include "base/clock.h"
#include "support/check.h"
#include "support/store_both.h"
#include "support/store_fixture.h"

static void dispatch_round_trip(void **state)
{
    struct fixture f;
    struct uuid id, first, second, unknown_id = {{1}}, got;
    struct execution *x;
    struct dispatch *d;

    fixture_open(&f, *(enum fixture_kind *)*state);
    fixture_agent(&f, "a");
    fixture_load(&f);
    x = fixture_execution(&f, "a");
    id = x->id;
    first = x->dispatch->id;
    fixture_commit(&f);
    x = fixture_get(&f, &id);
    d = x->dispatch;
    assert_true(d->key != 0);
    d->attempt = 3;
    d->charged = 2;
    d->charged_since = 11;
    d->due_at = 12;
    d->lease_us = 13;
    d->grace_until = 14;
    d->status = DISPATCH_CLAIMED;
    ws_touch_dispatch(&f.ws, x);
    ws_touch_execution(&f.ws, x);
    fixture_commit(&f);
    fixture_reopen(&f);
    x = fixture_get(&f, &id);
    d = x->dispatch;
    assert_int_equal(d->attempt, 3);
    assert_int_equal(d->charged, 2);
    assert_int_equal(d->charged_since, 11);
    assert_int_equal(d->due_at, 12);
    assert_int_equal(d->lease_us, 13);
    assert_int_equal(d->grace_until, 14);
    assert_int_equal(d->status, DISPATCH_CLAIMED);
    /* touched, retired and replaced in one group */
    ws_touch_dispatch(&f.ws, x);
    ws_retire_dispatch(&f.ws, x);
    second = fixture_uuid(&f);
    d = ws_new_dispatch(&f.ws, x, &second);
    d->status = DISPATCH_QUEUED;
    fixture_commit(&f);
    x = fixture_get(&f, &id);
    assert_true(uuid_eq(&x->dispatch->id, &second));
    ws_need_dispatch(&f.ws, &first);
    ws_need_dispatch(&f.ws, &second);
    ws_need_dispatch(&f.ws, &unknown_id);
    fixture_load(&f);
    assert_true(ws_dispatch_execution(&f.ws, &first, &got)); /* retired, yet known */
    assert_true(uuid_eq(&got, &id));
    assert_true(ws_dispatch_execution(&f.ws, &second, &got));
    assert_true(ws_knows_dispatch(&f.ws, &unknown_id));
    assert_false(ws_dispatch_execution(&f.ws, &unknown_id, &got));
    fixture_close(&f);
}

static void dispatch_born_and_retired_in_one_group(void **state)
{
    struct fixture f;
    struct uuid id;
    struct execution *x;

    fixture_open(&f, *(enum fixture_kind *)*state);
    fixture_agent(&f, "a");
    fixture_load(&f);
    x = fixture_execution(&f, "a");
    id = x->id;
    x->status = EXECUTION_CANCELLED;
    ws_retire_dispatch(&f.ws, x);
    fixture_commit(&f);
    x = fixture_get(&f, &id);
    assert_int_equal(x->status, EXECUTION_CANCELLED);
    assert_null(x->dispatch);
    fixture_close(&f);
}

/* Blocked and resumed in one group: the execution is named twice among those that changed. */
static void dispatch_retired_and_queued_in_one_group(void **state)
{
    struct fixture f;
    struct uuid id, before, after;
    struct execution *x;

    fixture_open(&f, *(enum fixture_kind *)*state);
    fixture_agent(&f, "a");
    id = fixture_claimed(&f);
    for (int round = 0; round < 2; round++) {
        x = fixture_get(&f, &id);
        before = x->dispatch->id;
        x->dispatch->attempt++;
        if (round == 0)
            ws_touch_dispatch(&f.ws, x);
        ws_retire_dispatch(&f.ws, x);
        for (int times = 0; times <= round; times++) { /* and the new one has no luck either */
            after = fixture_uuid(&f);
            ws_new_dispatch(&f.ws, x, &after)->status = DISPATCH_QUEUED;
            if (times < round)
                ws_retire_dispatch(&f.ws, x);
        }
        x->dispatch->due_at = 77;
        ws_touch_dispatch(&f.ws, x);
        fixture_commit(&f);
        fixture_reopen(&f);
        x = fixture_get(&f, &id);
        assert_true(uuid_eq(&x->dispatch->id, &after));
        assert_int_equal(x->dispatch->status, DISPATCH_QUEUED);
        assert_int_equal(x->dispatch->due_at, 77);
        ws_need_dispatch(&f.ws, &before);
        fixture_load(&f);
        assert_true(ws_dispatch_execution(&f.ws, &before, &before));
    }
    fixture_close(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        ON_BOTH(dispatch_round_trip),
        ON_BOTH(dispatch_born_and_retired_in_one_group),
        ON_BOTH(dispatch_retired_and_queued_in_one_group),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
