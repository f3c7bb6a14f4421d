/* SPDX-License-Identifier: Apache-2.0
 * Payloads in chunks: they come back byte for byte, each chunk is stored once in its lineage, and
 * goes with the last of it. */
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

#include "base/clock.h"
#include "base/pack.h"
#include "support/check.h"
#include "support/fork_world.h"
#include "support/store_both.h"

enum { MESSAGE = 2100, TURNS = 50 }; /* over what stands in its row */

static void open_world(struct fixture *f, void **state)
{
    fixture_open(f, *(enum fixture_kind *)*state);
    fixture_agent(f, "a");
}

/* ---- what is said ---- */

static void add_message(struct buf *text, uint64_t seed)
{
    static const char *const words[] = {"the",  "order", "was",   "sent", "back", "since", "its",
                                        "box",  "had",   "been",  "left", "out",  "in",    "rain",
                                        "for",  "three", "days",  "and",  "no",   "one",   "could",
                                        "read", "a",     "label", "on",   "it",   "any",   "more"};
    size_t end = text->n + MESSAGE;

    buf_printf(text, "{\"role\":\"user\",\"content\":\"");
    while (text->n < end) {
        seed = seed * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
        buf_printf(text, "%s ", words[(seed >> 33) % COUNT(words)]);
    }
    buf_printf(text, "\"}");
}

/* What a model is asked in turn n of the conversation `seed`. */
static struct str asked(struct fixture *f, uint64_t seed, size_t n)
{
    struct buf text = {0};
    struct str out;

    buf_printf(&text, "{\"model\":\"m\",\"messages\":[");
    for (size_t i = 0; i <= n; i++) {
        if (i > 0)
            buf_add_byte(&text, ',');
        add_message(&text, seed * 1000 + i);
    }
    buf_printf(&text, "]}");
    out = arena_str(&f->arena, buf_str(&text));
    buf_free(&text);
    return out;
}

static struct str answered(struct fixture *f, uint64_t seed, size_t n)
{
    struct buf text = {0};
    struct str out;

    add_message(&text, seed * 1000 + 500 + n);
    out = arena_str(&f->arena, buf_str(&text));
    buf_free(&text);
    return out;
}

/* ---- what is stored ---- */

static struct str cut(struct fixture *f, struct str payload, bool packed)
{
    struct chunks *chunks = chunks_cut(payload, &f->arena);

    assert_non_null(chunks);
    for (size_t i = 0; i < chunks->n && packed; i++)
        chunks->at[i].packed = pack(chunks->at[i].bytes, &f->arena);
    ws_add_chunks(&f->ws, chunks);
    return payload;
}

/* Turn n of the conversation, in an execution whose steps bear `n`; committed. */
static void say(struct fixture *f, const struct uuid *id, uint64_t seed, size_t n, bool packed)
{
    struct execution *exec = fixture_get(f, id);
    struct hash step_id = world_step_id(id, n);
    struct step *step;

    step = fixture_step(f, exec, &step_id, cut(f, asked(f, seed, n), packed));
    fixture_settle(f, step, cut(f, answered(f, seed, n), packed));
    fixture_commit(f);
}

static void check_turn(struct fixture *f, const struct uuid *id, uint64_t seed, size_t n)
{
    struct hash step_id = world_step_id(id, n);
    struct step_view view;
    struct err e = {0};
    bool found;

    CHECKF(store_read_step(f->r, id, &step_id, &f->arena, &view, &found, &e), "%s", e.message);
    assert_true(found);
    assert_str(view.args, asked(f, seed, n));
    assert_str(view.result, answered(f, seed, n));
}

static void check_turns(struct fixture *f, const struct uuid *id, uint64_t seed, size_t n)
{
    for (size_t i = 0; i < n; i++)
        check_turn(f, id, seed, i);
}

static struct uuid talk(struct fixture *f, uint64_t seed, size_t n)
{
    struct uuid id = world_run(f, STR_NONE, 0, 0);

    for (size_t i = 0; i < n; i++)
        say(f, &id, seed, i, true);
    return id;
}

static void make_parent(struct fixture *f, const struct uuid *id, const struct uuid *parent)
{
    struct execution *exec = fixture_get(f, id);

    exec->parent = *parent;
    ws_touch_execution(&f->ws, exec);
    fixture_commit(f);
}

static void goes(struct fixture *f, const struct uuid *id)
{
    int64_t cutoff = clock_wall_us() + 3600 * US_PER_S;

    world_end(f, id, cutoff - 1);
    assert_true(world_unlink(f, id, cutoff));
    world_tidy(f);
}

static size_t cuts(struct fixture *f, struct str text)
{
    return chunks_cut(text, &f->arena)->n;
}

/* Chunks that turn n brings to those of the turn before: a message, perhaps in two, and an answer.
 */
static int64_t new_in(struct fixture *f, uint64_t seed, size_t n)
{
    return (int64_t)(cuts(f, asked(f, seed, n)) - cuts(f, asked(f, seed, n - 1)) +
                     cuts(f, answered(f, seed, n)));
}

/* ---- sharing ---- */

static void a_conversation_grows_by_what_is_new(void **state)
{
    struct fixture f;
    struct uuid id;
    size_t logical = 0;
    int64_t stored;

    open_world(&f, state);
    id = talk(&f, 1, TURNS);
    for (size_t i = 0; i < TURNS; i++)
        logical += asked(&f, 1, i).n + answered(&f, 1, i).n;
    check_turns(&f, &id, 1, TURNS);
    fixture_reopen(&f);
    check_turns(&f, &id, 1, TURNS);
    stored =
        strtoll(fixture_sql(&f, "SELECT sum(length(data)) FROM chunks"), NULL, 10) +
        strtoll(fixture_sql(&f, "SELECT sum(length(args) + length(result)) FROM steps"), NULL, 10);
    CHECKF(stored * 100 < (int64_t)logical * 5, "%lld of %zu bytes", (long long)stored, logical);
    /* Of each turn its message and its answer, perhaps cut in several, and what is behind the last
     * message, which is always the same. */
    assert_true(world_count(&f, "chunks") <= 4 * TURNS);
    assert_int_equal(world_count(&f, "blobs"), 0);
    fixture_close(&f);
}

static void what_is_in_a_group_twice_is_stored_once(void **state)
{
    struct fixture f;
    struct uuid id;
    struct execution *exec;
    int64_t chunks;

    open_world(&f, state);
    id = talk(&f, 1, 1);
    chunks = world_count(&f, "chunks");
    exec = fixture_get(&f, &id);
    for (size_t i = 0; i < 3; i++) {
        struct hash step_id = world_step_id(&id, 10 + i);

        (void)fixture_step(&f, exec, &step_id, cut(&f, asked(&f, 7, i), true));
    }
    fixture_commit(&f);
    assert_int_equal(world_count(&f, "chunks") - chunks,
                     cuts(&f, asked(&f, 7, 2)) - 1); /* the last one is known */
    for (size_t i = 0; i < 3; i++) {
        struct hash step_id = world_step_id(&id, 10 + i);
        struct step_view view;
        struct err e;
        bool found;

        assert_true(store_read_step(f.r, &id, &step_id, &f.arena, &view, &found, &e));
        assert_str(view.args, asked(&f, 7, i));
    }
    fixture_close(&f);
}

/* Who cuts may think that all of it is stored, and be wrong. */
static void what_is_not_packed_is_stored_as_it_is(void **state)
{
    struct fixture f;
    struct uuid id;

    open_world(&f, state);
    id = world_run(&f, STR_NONE, 0, 0);
    for (size_t i = 0; i < 4; i++)
        say(&f, &id, 1, i, i % 2 == 1);
    check_turns(&f, &id, 1, 4);
    fixture_close(&f);
}

static void a_stranger_shares_nothing(void **state)
{
    struct fixture f;
    struct uuid one, other;
    int64_t chunks;

    open_world(&f, state);
    one = talk(&f, 1, 3);
    chunks = world_count(&f, "chunks");
    other = talk(&f, 1, 3);
    assert_int_equal(world_count(&f, "chunks"), 2 * chunks);
    goes(&f, &one);
    assert_int_equal(world_count(&f, "chunks"), chunks);
    check_turns(&f, &other, 1, 3);
    fixture_close(&f);
}

static void a_fork_shares(void **state)
{
    struct fixture f;
    struct uuid source, fork, again;
    int64_t chunks;

    open_world(&f, state);
    source = talk(&f, 1, 4);
    chunks = world_count(&f, "chunks");
    fork = world_fork(&f, &source);
    again = world_fork(&f, &fork);
    check_turns(&f, &fork, 1, 4);
    check_turns(&f, &again, 1, 4);
    say(&f, &source, 1, 4, true);
    assert_int_equal(world_count(&f, "chunks"), chunks + new_in(&f, 1, 4));
    say(&f, &fork, 1, 4, true);
    say(&f, &again, 1, 4, true);
    assert_int_equal(world_count(&f, "chunks"), chunks + new_in(&f, 1, 4));
    check_turns(&f, &again, 1, 5);
    fixture_close(&f);
}

/* Whether it is born with its parent or gets it when its turn comes. */
static void what_continues_shares(void **state)
{
    struct fixture f;
    struct uuid first, turn, branch, fork;
    struct execution *exec;
    int64_t chunks;

    open_world(&f, state);
    first = talk(&f, 1, 4);
    world_end(&f, &first, 1);
    chunks = world_count(&f, "chunks");
    turn = world_run(&f, STR_NONE, 0, 0);
    make_parent(&f, &turn, &first);
    say(&f, &turn, 1, 3, true);
    fixture_load(&f);
    exec = fixture_execution(&f, "a");
    branch = exec->id;
    exec->parent = turn;
    fixture_commit(&f);
    say(&f, &branch, 1, 2, true);
    fork = world_fork(&f, &branch);
    say(&f, &fork, 1, 1, true);
    assert_int_equal(world_count(&f, "chunks"), chunks);
    exec = fixture_get(&f, &branch);
    exec->state = cut(&f, asked(&f, 1, 3), true);
    ws_touch_execution(&f.ws, exec);
    fixture_commit(&f);
    assert_int_equal(world_count(&f, "chunks"), chunks);
    check_turn(&f, &turn, 1, 3);
    check_turn(&f, &fork, 1, 1);
    fixture_close(&f);
}

static void a_state_is_read_by_the_next(void **state)
{
    struct fixture f;
    struct uuid first = {{0}}, next;
    struct execution *exec;
    struct str previous;
    struct err e;
    bool found;

    open_world(&f, state);
    first = talk(&f, 1, 2);
    exec = fixture_get(&f, &first);
    exec->state = cut(&f, asked(&f, 1, 2), true);
    ws_touch_execution(&f.ws, exec);
    fixture_commit(&f);
    world_end(&f, &first, 1);
    next = world_run(&f, STR_NONE, 0, 0);
    make_parent(&f, &next, &first);
    assert_true(store_read_previous(f.r, &next, &f.arena, &previous, &found, &e));
    assert_str(previous, asked(&f, 1, 2));
    assert_int_equal(world_count(&f, "blobs"), 0);
    fixture_close(&f);
}

/* ---- going ---- */

static void the_last_of_a_lineage_takes_its_chunks(void **state)
{
    static const int orders[6][3] = {{0, 1, 2}, {0, 2, 1}, {1, 0, 2},
                                     {1, 2, 0}, {2, 0, 1}, {2, 1, 0}};
    struct fixture f;

    open_world(&f, state);
    for (size_t o = 0; o < COUNT(orders); o++) {
        struct uuid ids[3];

        ids[0] = talk(&f, o, 3);
        ids[1] = world_fork(&f, &ids[0]);
        ids[2] = world_fork(&f, &ids[1]);
        for (int i = 0; i < 3; i++)
            say(&f, &ids[i], o, 3, true);
        for (int dead = 0; dead < 3; dead++) {
            goes(&f, &ids[orders[o][dead]]);
            for (int alive = dead + 1; alive < 3; alive++) {
                check_turns(&f, &ids[orders[o][alive]], o, 4);
                say(&f, &ids[orders[o][alive]], o, 4 + (size_t)dead, true);
            }
        }
        assert_int_equal(world_rows(&f), 0);
    }
    fixture_close(&f);
}

/* A fork of one that waited: when that one then began, it joined another lineage. */
static void what_was_forked_before_it_had_a_parent_goes(void **state)
{
    struct fixture f;
    struct uuid first, waiting, fork;

    for (int order = 0; order < 2; order++) {
        open_world(&f, state);
        first = talk(&f, 1, 2);
        world_end(&f, &first, 1);
        waiting = world_run(&f, STR_NONE, 0, 0);
        fork = world_fork(&f, &waiting);
        make_parent(&f, &waiting, &first);
        say(&f, &waiting, 1, 2, true);
        say(&f, &fork, 1, 2, true);
        goes(&f, order == 0 ? &fork : &waiting);
        if (order == 0)
            check_turn(&f, &waiting, 1, 2);
        else
            check_turn(&f, &fork, 1, 2);
        goes(&f, order == 0 ? &waiting : &fork);
        check_turns(&f, &first, 1, 2);
        goes(&f, &first);
        assert_int_equal(world_rows(&f), 0);
        fixture_close(&f);
    }
}

/* More than a slice takes, of several lineages at once, with a restart in between. */
static void slices_of_chunks_are_small(void **state)
{
    enum { LINEAGES = 3, CHUNKS = 700 };
    struct fixture f;
    struct uuid ids[LINEAGES];
    int64_t before, left, cutoff = clock_wall_us() + 3600 * US_PER_S;
    bool more = true;
    struct err e;

    open_world(&f, state);
    for (int i = 0; i < LINEAGES; i++) {
        ids[i] = talk(&f, 1, 3);
        for (size_t n = 10; world_count(&f, "chunks") < CHUNKS * (i + 1); n += 50)
            say(&f, &ids[i], n, n, true);
        world_end(&f, &ids[i], cutoff - 1);
        assert_true(world_unlink(&f, &ids[i], cutoff));
    }
    left = world_rows(&f);
    for (int slices = 0; more; slices++) {
        before = left;
        assert_true(store_tidy(f.w, &f.ws, &more, &e));
        left = world_rows(&f);
        assert_true(before - left <= 600);
        if (slices == 3)
            fixture_reopen(&f);
    }
    assert_int_equal(left, 0);
    fixture_close(&f);
}

/* However many of one lineage there are in a slice, the others' chunks go before their keys do. */
static void a_large_family_hides_no_other_lineage(void **state)
{
    enum { FAMILY = 30, EACH = 12, STRANGERS = 3 };
    struct fixture f;
    struct uuid ids[FAMILY + STRANGERS];
    int64_t cutoff = clock_wall_us() + 3600 * US_PER_S;

    open_world(&f, state);
    for (size_t i = 0; i < COUNT(ids); i++) {
        if (i == 0 || i >= FAMILY)
            ids[i] = talk(&f, i + 1, EACH);
        else
            ids[i] = world_fork(&f, &ids[0]);
    }
    assert_true(world_count(&f, "chunks") * FAMILY / (STRANGERS + 1) > 500); /* more than a slice */
    for (size_t i = 0; i < COUNT(ids); i++) {
        world_end(&f, &ids[i], cutoff - 1);
        assert_true(world_unlink(&f, &ids[i], cutoff));
    }
    world_tidy(&f);
    assert_int_equal(world_count(&f, "chunks"), 0);
    assert_int_equal(world_rows(&f), 0);
    fixture_close(&f);
}

/* ---- what may go wrong ---- */

static void a_damaged_chunk_is_an_internal_error(void **state)
{
    static const char *const damages[] = {
        "UPDATE chunks SET data = substr(data, 1, 20)",
        "UPDATE chunks SET data = data || data",
        "UPDATE chunks SET data = substr(data, 2) || substr(data, 1, 1)",
    };
    struct fixture f;

    for (size_t i = 0; i < COUNT(damages); i++) {
        struct uuid id;
        struct hash step_id;
        struct step_view view;
        struct err e = {0};
        bool found;

        open_world(&f, state);
        id = talk(&f, 1, 1);
        step_id = world_step_id(&id, 0);
        (void)fixture_sql(&f, damages[i]);
        assert_false(store_read_step(f.r, &id, &step_id, &f.arena, &view, &found, &e));
        CHECKF(e.code == ERR_INTERNAL, "case %zu: %s", i, e.message);
        fixture_close(&f);
    }
}

static void a_chunk_that_is_gone_is_told(void **state)
{
    struct fixture f;
    struct uuid id;
    struct hash step_id;
    struct step_view view;
    struct err e = {0};
    bool found;

    open_world(&f, state);
    id = talk(&f, 1, 1);
    step_id = world_step_id(&id, 0);
    (void)fixture_sql(&f, "DELETE FROM chunks");
    assert_false(store_read_step(f.r, &id, &step_id, &f.arena, &view, &found, &e));
    assert_int_equal(e.code, ERR_UNAVAILABLE); /* as if retention had passed between */
    fixture_close(&f);
}

/* A group that was lost to another kernel is decided again, with the same chunks. */
static void what_failed_is_placed_anew(void **state)
{
    struct fixture f, second;
    struct uuid id;
    struct hash step_id;
    struct execution *exec;
    struct step *step;
    struct str args;
    struct chunks *chunks;
    struct err e = {0};
    bool unknown;

    open_world(&f, state);
    id = talk(&f, 1, 1);
    step_id = world_step_id(&id, 0);
    args = asked(&f, 1, 5);
    chunks = chunks_cut(args, &f.arena);
    for (int attempt = 0; attempt < 2; attempt++) {
        struct hash next = world_step_id(&id, 9);

        ws_need_step(&f.ws, &id, &step_id);
        exec = fixture_get(&f, &id);
        ws_add_chunks(&f.ws, chunks);
        (void)fixture_step(&f, exec, &next, args);
        step = ws_step(&f.ws, &step_id);
        if (attempt == 0)
            ws_touch_step(&f.ws, step); /* it has completed: no row will change */
        if (attempt == 1) {
            fixture_commit(&f);
            break;
        }
        assert_false(store_commit(f.w, &f.ws, &unknown, &e));
        assert_int_equal(e.code, ERR_STORE_RACE);
        ws_clear(&f.ws);
        /* Meanwhile another one stores a part of it. */
        fixture_second_open(&f, &second);
        say(&second, &id, 1, 3, true);
        fixture_second_close(&second);
    }
    step_id = world_step_id(&id, 9);
    struct step_view view;
    bool found;

    assert_true(store_read_step(f.r, &id, &step_id, &f.arena, &view, &found, &e));
    assert_str(view.args, args);
    goes(&f, &id);
    assert_int_equal(world_rows(&f), 0);
    fixture_close(&f);
}

/* Two kernels that store it at once leave two rows: either will do, and both go. */
static void a_chunk_may_be_there_twice(void **state)
{
    struct fixture f;
    struct uuid one, two;
    int64_t chunks;

    open_world(&f, state);
    one = talk(&f, 1, 3);
    chunks = world_count(&f, "chunks");
    (void)fixture_sql(&f, "INSERT INTO chunks (key, lineage, hash, data)"
                          " SELECT key + 1000000, lineage, hash, data FROM chunks");
    two = world_fork(&f, &one);
    say(&f, &two, 1, 2 + 1, true);
    assert_int_equal(world_count(&f, "chunks"), 2 * chunks + new_in(&f, 1, 3));
    check_turns(&f, &two, 1, 4);
    goes(&f, &one);
    check_turns(&f, &two, 1, 4);
    goes(&f, &two);
    assert_int_equal(world_rows(&f), 0);
    fixture_close(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        ON_BOTH(a_conversation_grows_by_what_is_new),
        ON_BOTH(what_is_in_a_group_twice_is_stored_once),
        ON_BOTH(what_is_not_packed_is_stored_as_it_is),
        ON_BOTH(a_stranger_shares_nothing),
        ON_BOTH(a_fork_shares),
        ON_BOTH(what_continues_shares),
        ON_BOTH(a_state_is_read_by_the_next),
        ON_BOTH(the_last_of_a_lineage_takes_its_chunks),
        ON_BOTH(what_was_forked_before_it_had_a_parent_goes),
        ON_BOTH(slices_of_chunks_are_small),
        ON_BOTH(a_large_family_hides_no_other_lineage),
        ON_BOTH(a_damaged_chunk_is_an_internal_error),
        ON_BOTH(a_chunk_that_is_gone_is_told),
        ON_POSTGRES(what_failed_is_placed_anew),
        ON_BOTH(a_chunk_may_be_there_twice),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
