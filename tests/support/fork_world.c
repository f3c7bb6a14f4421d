/* SPDX-License-Identifier: Apache-2.0 */
#include "support/fork_world.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

#include "base/clock.h"
#include "kernel/retention.h"
#include "support/check.h"

/* ---- executions ---- */

void world_end(struct fixture *f, const struct uuid *id, int64_t at)
{
    struct execution *exec = fixture_get(f, id);

    assert_non_null(exec);
    exec->status = EXECUTION_COMPLETED;
    exec->ended_at = at;
    exec->owner = OWNER_NONE;
    if (exec->dispatch != NULL)
        ws_retire_dispatch(&f->ws, exec);
    ws_touch_execution(&f->ws, exec);
    fixture_event(f, exec, "execution.completed\t\"execution_id\":1,\"output\":@\n");
    fixture_commit(f);
}

struct hash world_step_id(const struct uuid *execution_id, size_t i)
{
    struct hash h = {{0}};

    memcpy(h.b, &i, sizeof(i)); /* what the index looks at comes first */
    memcpy(h.b + sizeof(i), execution_id->b, sizeof(execution_id->b));
    return h;
}

bool world_failed(size_t i)
{
    return i % 4 == 3;
}

static struct str text_of(struct fixture *f, char first, size_t i, size_t size)
{
    char head[32];
    int n = snprintf(head, sizeof(head), "\"%c%zu:", first, i);
    struct buf text = {0};
    struct str out;

    assert_true(size > (size_t)n + 1);
    buf_add_z(&text, head);
    while (text.n < size - 1)
        buf_add_byte(&text, (char)('a' + (text.n + i) % 26));
    buf_add_byte(&text, '"');
    out = arena_str(&f->arena, buf_str(&text));
    buf_free(&text);
    return out;
}

struct str world_args(struct fixture *f, size_t i, size_t args_size)
{
    return text_of(f, 'a', i, args_size);
}

struct str world_outcome(struct fixture *f, size_t i, size_t args_size)
{
    return text_of(f, 'o', i, 2 * args_size);
}

struct uuid world_run(struct fixture *f, struct str session, size_t n, size_t args_size)
{
    struct execution *exec;
    struct uuid id, dispatch = fixture_uuid(f);

    if (str_present(session))
        ws_need_session(&f->ws, session);
    fixture_load(f);
    exec = fixture_pending(f, "a", session);
    id = exec->id;
    exec->status = EXECUTION_RUNNING;
    ws_new_dispatch(&f->ws, exec, &dispatch);
    exec->dispatch->status = DISPATCH_QUEUED;
    for (size_t i = 0; i < n; i++) {
        struct hash step_id = world_step_id(&id, i);
        struct step *step = fixture_step(f, exec, &step_id, world_args(f, i, args_size));

        fixture_settle(f, step, STR_NONE);
        if (world_failed(i)) {
            step->status = STEP_FAILED;
            step->error = world_outcome(f, i, args_size);
        } else {
            step->result = world_outcome(f, i, args_size);
        }
    }
    fixture_commit(f);
    return id;
}

/* ---- forks ---- */

struct uuid world_pin(struct fixture *f, const struct uuid *source)
{
    const struct execution *exec = fixture_get(f, source);
    struct uuid id = fixture_uuid(f);
    struct fork_pin *pin;

    assert_non_null(exec);
    pin = ws_new_fork(&f->ws, &id);
    pin->source = *source;
    pin->source_key = exec->key;
    pin->touched_at = f->ws.now.wall_us;
    fixture_commit(f);
    return id;
}

static struct fork_pin *pin_of(struct fixture *f, const struct uuid *fork)
{
    struct fork_pin *pin;

    ws_need_fork(&f->ws, fork);
    fixture_load(f);
    pin = ws_fork(&f->ws, fork);
    assert_non_null(pin);
    return pin;
}

void world_copy(struct fixture *f, const struct uuid *fork, const struct uuid *source)
{
    struct fork_slice *slice = arena_new(&f->arena, struct fork_slice);
    struct event_copy *event = arena_new(&f->arena, struct event_copy);
    struct step_copy *copies;
    struct step *steps;
    struct fork_pin *pin = pin_of(f, fork);
    int64_t last_key;
    size_t n;
    struct err e;

    assert_true(
        store_read_fork_steps(f->r, source, 0, 100000, &f->arena, &steps, &n, &last_key, &e));
    copies = arena_array(&f->arena, struct step_copy, n);
    for (size_t i = 0; i < n; i++) {
        copies[i] = (struct step_copy){
            .id = world_step_id(fork, i),
            .kind = steps[i].kind,
            .target = steps[i].target,
            .args_hash = steps[i].args_hash,
            .occurrence = steps[i].occurrence,
            .status = steps[i].status,
            .idempotency = steps[i].idempotency,
            .rule_id = steps[i].rule_id,
            .affects = steps[i].affects,
            .usage = steps[i].usage,
            .created_at = steps[i].created_at,
            .started_at = steps[i].started_at,
            .completed_at = steps[i].completed_at,
            .payload_key = steps[i].key,
        };
    }
    *event = (struct event_copy){3, 2, 77, STR("step.proposed\t\"step_id\":1\nstep.allowed\t&\n")};
    *slice = (struct fork_slice){
        .key = pin->key, .steps = copies, .n_steps = n, .events = event, .n_events = 1};
    pin->touched_at = f->ws.now.wall_us;
    ws_touch_fork(&f->ws, pin);
    ws_add_slice(&f->ws, slice);
    fixture_commit(f);
}

void world_appear(struct fixture *f, const struct uuid *fork, const struct uuid *source)
{
    struct fork_pin *pin = pin_of(f, fork);
    struct execution *exec = ws_new_execution(&f->ws, fork, STR("a"), STR_NONE);
    const struct forking forking = {.source = *source};
    struct uuid dispatch = fixture_uuid(f);

    exec->key = pin->key;
    exec->forked = true;
    exec->forking = &forking;
    exec->status = EXECUTION_RUNNING;
    exec->created_at = f->ws.now.wall_us;
    exec->input = STR("{}");
    fixture_event(f, exec, "execution.created\t\nexecution.forked\t\n");
    exec->last_seq = 4;
    ws_new_dispatch(&f->ws, exec, &dispatch);
    exec->dispatch->status = DISPATCH_QUEUED;
    pin->gone = true;
    ws_touch_fork(&f->ws, pin);
    fixture_commit(f);
}

void world_abandon(struct fixture *f, const struct uuid *fork)
{
    struct fork_pin *pin = pin_of(f, fork);

    pin->gone = pin->abandoned = true;
    ws_touch_fork(&f->ws, pin);
    fixture_commit(f);
}

struct uuid world_fork(struct fixture *f, const struct uuid *source)
{
    struct uuid id = world_pin(f, source);

    world_copy(f, &id, source);
    world_appear(f, &id, source);
    return id;
}

/* ---- retention ---- */

bool world_unlink(struct fixture *f, const struct uuid *id, int64_t cutoff)
{
    const struct execution_unlinking cmd = {*id, cutoff};
    bool goes;
    struct err e;

    execution_unlink_names(&f->ws, &cmd);
    fixture_load(f);
    assert_non_null(ws_execution(&f->ws, id));
    assert_int_equal(execution_unlink(&f->ws, &cmd, &goes, &e), VERDICT_DONE);
    fixture_commit(f);
    return goes;
}

size_t world_tidy(struct fixture *f)
{
    bool more = true;
    struct err e = {0};
    size_t slices = 0;

    for (; more; slices++)
        if (!store_tidy(f->w, &f->ws, &more, &e))
            fail_msg("store_tidy: %s", e.message);
    return slices;
}

int64_t world_count(struct fixture *f, const char *table)
{
    char sql[64];

    snprintf(sql, sizeof(sql), "SELECT count(*) FROM %s", table);
    return strtoll(fixture_sql(f, sql), NULL, 10);
}

int64_t world_rows(struct fixture *f)
{
    static const char *const tables[] = {"executions", "steps",       "events", "dispatches",
                                         "approvals",  "submissions", "blobs",  "chunks",
                                         "resources",  "checkpoints", "forks"};
    int64_t n = 0;

    for (size_t i = 0; i < COUNT(tables); i++)
        n += world_count(f, tables[i]);
    if (f->kind == FIXTURE_POSTGRES)
        n += world_count(f, "submission_keys") + world_count(f, "sessions") +
             world_count(f, "unlinked");
    return n;
}
