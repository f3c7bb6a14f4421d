/* SPDX-License-Identifier: Apache-2.0
 * Resources and checkpoints: what is applied comes back; what ends a checkpoint, against a plain
 * model of the same calls; what a turn inherits; how much is read of what is large. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

#include "support/check.h"
#include "support/store_both.h"
#include "support/store_fixture.h"

static const struct uuid NIL;

static void assert_id(struct uuid got, struct uuid want)
{
    assert_memory_equal(got.b, want.b, sizeof(got.b));
}

static void assert_hash(const struct hash *got, const struct hash *want)
{
    assert_memory_equal(got->b, want->b, sizeof(got->b));
}

static void assert_resource(const struct resource *got, const struct resource *want)
{
    assert_str(got->key, want->key);
    assert_str(got->driver_id, want->driver_id);
    assert_str(got->configuration, want->configuration);
    assert_hash(&got->configuration_hash, &want->configuration_hash);
    assert_int_equal(got->coverage_reuse, want->coverage_reuse);
    assert_int_equal(got->every_steps, want->every_steps);
    assert_int_equal(got->on_completion, want->on_completion);
    assert_int_equal(got->generation, want->generation);
    assert_int_equal(got->count, want->count);
    assert_int_equal(got->registered_seq, want->registered_seq);
    assert_str(got->binding, want->binding);
    if (str_present(want->binding))
        assert_hash(&got->binding_hash, &want->binding_hash);
    assert_str(got->checkpoint_ref, want->checkpoint_ref);
    assert_int_equal(got->covered, want->covered);
    assert_int_equal(got->inherited, want->inherited);
    assert_str(got->restored_ref, want->restored_ref);
    assert_id(got->restored_from, want->restored_from);
    assert_str(got->writers, want->writers);
    assert_int_equal(got->writers_claim, want->writers_claim);
}

/* A running execution with those, in their order; the group is open. */
static struct execution *with_resources(struct fixture *f, const struct resource *rows, size_t n)
{
    struct execution *x;

    fixture_load(f);
    x = fixture_execution(f, "a");
    for (size_t i = 0; i < n; i++)
        (void)ws_new_resource(&f->ws, x, &rows[i]);
    return x;
}

static struct execution *load_resources(struct fixture *f, const struct uuid *id)
{
    struct execution *x;

    ws_need_resources(&f->ws, id);
    fixture_load(f);
    x = ws_execution(&f->ws, id);
    assert_non_null(x);
    assert_true(x->resources_known);
    return x;
}

static struct resource *read_resources(struct fixture *f, const struct uuid *id, size_t want)
{
    struct resource *rows;
    struct err e = {0};
    bool found;
    size_t n;

    assert_true(store_read_resources(f->r, id, &f->arena, &rows, &n, &found, &e));
    assert_true(found);
    assert_int_equal(n, want);
    return rows;
}

/* ---- rows ---- */

/* The order of the rows is that of their registration, whatever that of their keys and of their
 * insertion. */
static struct resource full_row(char *large, size_t size)
{
    memset(large, ' ', size);
    large[0] = '{';
    large[size - 1] = '}';
    return (struct resource){
        .key = STR("b.-_Z"),
        .driver_id = ODD,
        .configuration = str_make(large, size),
        .configuration_hash = fixture_hash(1),
        .coverage_reuse = true,
        .every_steps = 5,
        .on_completion = true,
        .generation = 1000,
        .count = 999,
        .registered_seq = 3,
        .binding = STR("{\"id\": 1.0}"),
        .binding_hash = fixture_hash(2),
        .checkpoint_ref = ODD,
        .covered = true,
        .inherited = true,
        .restored_ref = STR(""),
        .restored_from = {{1, 2, 3}},
        .writers = ODD,
        .writers_claim = 4,
    };
}

static void resource_round_trip(void **state)
{
    enum { LARGE = 64 * 1024 };
    static char large[LARGE];
    struct fixture f;
    struct uuid id, nobody = {{9}};
    struct resource rows[2], *read;
    struct execution *x;
    struct err e = {0};
    bool found;
    size_t n;

    fixture_open(&f, *(enum fixture_kind *)*state);
    rows[0] = (struct resource){
        .key = STR("c"), .driver_id = STR("d"), .registered_seq = 4, .row = ROW_NEW};
    rows[1] = full_row(large, LARGE);
    id = with_resources(&f, rows, 2)->id;
    fixture_commit(&f);
    fixture_reopen(&f);
    assert_int_equal(fixture_get(&f, &id)->n_registered, 2);
    assert_false(fixture_get(&f, &id)->resources_known);
    x = load_resources(&f, &id);
    assert_int_equal(x->n_resources, 2);
    assert_resource(&x->resources[0], &rows[1]);
    assert_resource(&x->resources[1], &rows[0]);
    fixture_commit(&f);
    read = read_resources(&f, &id, 2);
    assert_resource(&read[0], &rows[1]);
    assert_resource(&read[1], &rows[0]);
    assert_true(store_read_resources(f.r, &nobody, &f.arena, &read, &n, &found, &e));
    assert_false(found);
    assert_int_equal(n, 0);
    id = with_resources(&f, NULL, 0)->id;
    fixture_commit(&f);
    (void)read_resources(&f, &id, 0);
    fixture_close(&f);
}

static void change(struct fixture *f, struct execution *x, size_t i, struct resource *want)
{
    struct resource *r = &x->resources[i];

    r->every_steps = want->every_steps = want->every_steps + 1;
    r->on_completion = want->on_completion = !want->on_completion;
    r->generation = want->generation = want->generation + 7;
    r->count = want->count = want->count + 3;
    r->covered = want->covered = !want->covered;
    r->writers_claim = want->writers_claim = want->writers_claim + 1;
    ws_set_text(&r->checkpoint_ref, want->checkpoint_ref);
    ws_set_text(&r->writers, want->writers);
    ws_touch_resource(&f->ws, x, r);
}

/* Of several executions in one group, some of whose resources stay as they are. */
static void resources_change(void **state)
{
    enum { EXECUTIONS = 3, EACH = 4 };
    static const char *const keys[EACH] = {"a", "b", "c", "d"};
    struct fixture f;
    struct uuid ids[EXECUTIONS];
    struct resource want[EXECUTIONS][EACH] = {0};

    fixture_open(&f, *(enum fixture_kind *)*state);
    for (size_t i = 0; i < EXECUTIONS; i++) {
        for (size_t k = 0; k < EACH; k++)
            want[i][k] = (struct resource){.key = str_of(keys[k]),
                                           .driver_id = STR("d"),
                                           .registered_seq = (int64_t)k + 2,
                                           .count = (int64_t)(10 * i + k)};
        ids[i] = with_resources(&f, want[i], EACH)->id;
    }
    fixture_commit(&f);
    for (int round = 0; round < 4; round++) {
        for (size_t i = 0; i < EXECUTIONS; i++) {
            struct execution *x = load_resources(&f, &ids[i]);

            for (size_t k = 0; k < EACH; k++) {
                if (k == (size_t)round)
                    continue;
                want[i][k].checkpoint_ref = round % 2 == 0 ? ODD : STR_NONE;
                want[i][k].writers = round == 1 ? ODD : STR_NONE;
                change(&f, x, k, &want[i][k]);
            }
        }
        fixture_commit(&f);
        for (size_t i = 0; i < EXECUTIONS; i++) {
            const struct resource *read = read_resources(&f, &ids[i], EACH);

            for (size_t k = 0; k < EACH; k++)
                assert_resource(&read[k], &want[i][k]);
        }
    }
    fixture_close(&f);
}

static void a_binding_is_given_once(void **state)
{
    struct fixture f;
    struct uuid id;
    struct resource row = {.key = STR("w"), .driver_id = STR("d"), .registered_seq = 2};
    struct execution *x;

    fixture_open(&f, *(enum fixture_kind *)*state);
    id = with_resources(&f, &row, 1)->id;
    fixture_commit(&f);
    row.binding = STR("{\"id\":1}");
    row.binding_hash = fixture_hash(3);
    x = load_resources(&f, &id);
    ws_set_text(&x->resources[0].binding, row.binding);
    x->resources[0].binding_hash = row.binding_hash;
    ws_touch_resource(&f.ws, x, &x->resources[0]);
    fixture_commit(&f);
    assert_resource(read_resources(&f, &id, 1), &row);
    x = load_resources(&f, &id);
    assert_resource(&x->resources[0], &row);
    x->resources[0].generation = row.generation = 1;
    ws_touch_resource(&f.ws, x, &x->resources[0]);
    fixture_commit(&f);
    assert_resource(read_resources(&f, &id, 1), &row);
    fixture_close(&f);
}

/* One that the set has keeps it; a group registers and changes in one. */
static void registered_and_touched_in_one_group(void **state)
{
    struct fixture f;
    struct uuid id;
    struct resource row = {.key = STR("w"), .driver_id = STR("d"), .registered_seq = 2};
    struct execution *x;

    fixture_open(&f, *(enum fixture_kind *)*state);
    x = with_resources(&f, &row, 1);
    id = x->id;
    x->resources[0].generation = row.generation = 3;
    ws_touch_resource(&f.ws, x, &x->resources[0]);
    assert_int_equal(load_resources(&f, &id)->resources[0].generation, 3);
    fixture_commit(&f);
    assert_resource(read_resources(&f, &id, 1), &row);
    x = load_resources(&f, &id);
    x->resources[0].generation = row.generation = 4;
    ws_touch_resource(&f.ws, x, &x->resources[0]);
    (void)ws_new_resource(
        &f.ws, x, &(struct resource){.key = STR("v"), .driver_id = STR("d"), .registered_seq = 9});
    assert_int_equal(load_resources(&f, &id)->n_resources, 2);
    fixture_commit(&f);
    assert_int_equal(fixture_get(&f, &id)->n_registered, 2);
    assert_resource(read_resources(&f, &id, 2), &row);
    fixture_close(&f);
}

/* ---- checkpoints ---- */

enum { MODEL_EXECUTIONS = 2, MODEL_RESOURCES = 3, MODEL_ROUNDS = 60, MODEL_ROWS = 600 };
static const char *const MODEL_KEYS[MODEL_RESOURCES] = {"r", "ra", "s"};

struct model_row {
    size_t execution, resource;
    int64_t generation, covered_seq, invalidated_seq;
};
struct model {
    struct model_row rows[MODEL_ROWS];
    size_t n;
    struct uuid ids[MODEL_EXECUTIONS];
    int64_t seq;
};

static void capture(struct fixture *f, struct model *m, struct execution *x, size_t execution,
                    size_t resource)
{
    struct resource *r = &x->resources[resource];
    struct checkpoint row = {.resource = r->key,
                             .generation = r->generation,
                             .checkpoint_ref = ODD,
                             .covered_seq = ++m->seq};

    (void)ws_new_checkpoint(&f->ws, x, &row);
    r->covered = true;
    ws_touch_resource(&f->ws, x, r);
    assert_in_range(m->n, 0, MODEL_ROWS - 1);
    m->rows[m->n++] = (struct model_row){execution, resource, row.generation, row.covered_seq, 0};
}

static void touch(struct fixture *f, struct model *m, struct execution *x, size_t execution,
                  size_t resource)
{
    struct resource *r = &x->resources[resource];

    m->seq++;
    r->generation++;
    ws_touch_resource(&f->ws, x, r);
    ws_end_checkpoints(&f->ws, x, r, m->seq);
    for (size_t i = 0; i < m->n; i++)
        if (m->rows[i].execution == execution && m->rows[i].resource == resource &&
            m->rows[i].invalidated_seq == 0)
            m->rows[i].invalidated_seq = m->seq;
}

/* By age within the execution, in pages of `limit`. */
static void check_checkpoints(struct fixture *f, const struct model *m, size_t execution,
                              size_t limit)
{
    struct checkpoint_row *rows;
    struct err e = {0};
    size_t n = 0, at = 0;
    int64_t after = 0;

    for (size_t i = 0; i < m->n; i++) {
        const struct model_row *want = &m->rows[i];

        if (want->execution != execution)
            continue;
        if (at == n) {
            assert_true(store_read_checkpoints(f->r, &m->ids[execution], after, limit, &f->arena,
                                               &rows, &n, &e));
            assert_in_range(n, 1, limit);
            at = 0;
        }
        assert_true(rows[at].key > after);
        after = rows[at].key;
        assert_str(rows[at].row.resource, str_of(MODEL_KEYS[want->resource]));
        assert_int_equal(rows[at].row.generation, want->generation);
        assert_str(rows[at].row.checkpoint_ref, ODD);
        assert_int_equal(rows[at].row.covered_seq, want->covered_seq);
        assert_int_equal(rows[at].row.invalidated_seq, want->invalidated_seq);
        assert_null(rows[at].row.execution);
        at++;
    }
    assert_int_equal(at, n);
    assert_true(
        store_read_checkpoints(f->r, &m->ids[execution], after, limit, &f->arena, &rows, &n, &e));
    assert_int_equal(n, 0);
}

static void check_newest(struct fixture *f, const struct model *m, size_t execution,
                         size_t resource)
{
    const struct model_row *want = NULL;
    struct newest_checkpoint got;
    struct err e = {0};

    for (size_t i = 0; i < m->n; i++)
        if (m->rows[i].execution == execution && m->rows[i].resource == resource)
            want = &m->rows[i];
    assert_true(store_newest_checkpoint(f->r, &m->ids[execution], str_of(MODEL_KEYS[resource]),
                                        &f->arena, &got, &e));
    assert_int_equal(got.found, want != NULL);
    assert_id(got.parent, NIL);
    if (want == NULL)
        return;
    assert_id(got.execution_id, m->ids[execution]);
    assert_str(got.row.resource, str_of(MODEL_KEYS[resource]));
    assert_int_equal(got.row.generation, want->generation);
    assert_str(got.row.checkpoint_ref, ODD);
    assert_int_equal(got.row.covered_seq, want->covered_seq);
    assert_int_equal(got.row.invalidated_seq, want->invalidated_seq);
}

/* A group captures and touches in any order, of both executions. */
static void one_group(struct fixture *f, struct model *m)
{
    for (size_t i = 0; i < MODEL_EXECUTIONS; i++)
        ws_need_resources(&f->ws, &m->ids[i]);
    fixture_load(f);
    for (size_t i = 0, n = (size_t)prng_below(&f->random, 8); i < n; i++) {
        size_t execution = (size_t)prng_below(&f->random, MODEL_EXECUTIONS);
        size_t resource = (size_t)prng_below(&f->random, MODEL_RESOURCES);
        struct execution *x = ws_execution(&f->ws, &m->ids[execution]);

        if (prng_below(&f->random, 3) == 0)
            touch(f, m, x, execution, resource);
        else
            capture(f, m, x, execution, resource);
    }
    fixture_commit(f);
}

static void checkpoints_begin_and_end(void **state)
{
    struct fixture f;
    static struct model m;
    struct resource rows[MODEL_RESOURCES];

    m = (struct model){.n = 0};
    fixture_open(&f, *(enum fixture_kind *)*state);
    for (size_t i = 0; i < MODEL_RESOURCES; i++)
        rows[i] = (struct resource){
            .key = str_of(MODEL_KEYS[i]), .driver_id = STR("d"), .registered_seq = (int64_t)i + 2};
    for (size_t i = 0; i < MODEL_EXECUTIONS; i++)
        m.ids[i] = with_resources(&f, rows, MODEL_RESOURCES)->id;
    fixture_commit(&f);
    for (int round = 0; round < MODEL_ROUNDS; round++) {
        one_group(&f, &m);
        if (round == MODEL_ROUNDS / 2)
            fixture_reopen(&f);
        for (size_t i = 0; i < MODEL_EXECUTIONS; i++) {
            check_checkpoints(&f, &m, i, round % 2 == 0 ? 7 : MODEL_ROWS);
            for (size_t k = 0; k < MODEL_RESOURCES; k++)
                check_newest(&f, &m, i, k);
        }
    }
    fixture_close(&f);
}

/* With whatever end it has in the set. */
static void a_checkpoint_that_has_ended_already(void **state)
{
    struct fixture f;
    struct uuid id;
    struct resource row = {.key = STR("w"), .driver_id = STR("d"), .registered_seq = 2};
    struct checkpoint_row *rows;
    struct execution *x;
    struct err e = {0};
    size_t n;

    fixture_open(&f, *(enum fixture_kind *)*state);
    x = with_resources(&f, &row, 1);
    id = x->id;
    for (int64_t i = 0; i < 3; i++)
        (void)ws_new_checkpoint(&f.ws, x,
                                &(struct checkpoint){.resource = STR("w"),
                                                     .checkpoint_ref = STR("c"),
                                                     .covered_seq = 10 + i,
                                                     .invalidated_seq = i < 2 ? 20 + i : 0});
    fixture_commit(&f);
    assert_true(store_read_checkpoints(f.r, &id, 0, 10, &f.arena, &rows, &n, &e));
    assert_int_equal(n, 3);
    for (size_t i = 0; i < 3; i++)
        assert_int_equal(rows[i].row.invalidated_seq, i < 2 ? 20 + i : 0);
    fixture_close(&f);
}

/* ---- inheritance ---- */

static const struct inheritance *load_inheritance(struct fixture *f, const struct uuid *id)
{
    ws_need_inheritance(&f->ws, id);
    fixture_load(f);
    assert_non_null(ws_inheritance(&f->ws, id));
    return ws_inheritance(&f->ws, id);
}

static void a_turn_inherits(void **state)
{
    enum { LARGE = 5000 };
    static char large[LARGE];
    struct fixture f;
    struct uuid id, other, nobody = {{9}};
    struct resource rows[2];
    const struct inheritance *got;
    struct execution *x;

    fixture_open(&f, *(enum fixture_kind *)*state);
    rows[0] = full_row(large, LARGE);
    rows[1] = (struct resource){.key = STR("a"), .driver_id = STR("d"), .registered_seq = 4};
    x = with_resources(&f, rows, 2);
    x->status = EXECUTION_COMPLETED;
    id = x->id;
    other = with_resources(&f, NULL, 0)->id;
    fixture_commit(&f);
    ws_need_inheritance(&f.ws, &other); /* several in one load, one of them twice */
    ws_need_inheritance(&f.ws, &id);
    ws_need_inheritance(&f.ws, &id);
    ws_need_inheritance(&f.ws, &nobody);
    got = load_inheritance(&f, &id);
    assert_int_equal(got->n, 2);
    assert_resource(&got->rows[0], &rows[0]);
    assert_resource(&got->rows[1], &rows[1]);
    assert_int_equal(load_inheritance(&f, &other)->n, 0);
    assert_int_equal(load_inheritance(&f, &nobody)->n, 0);
    assert_false(ws_knows_execution(&f.ws, &id)); /* it was not locked */
    fixture_commit(&f);
    fixture_close(&f);
}

/* The database does not know yet what its last group has changed. */
static void a_turn_inherits_from_one_of_this_group(void **state)
{
    struct fixture f;
    struct uuid id;
    struct resource row = {.key = STR("w"), .driver_id = STR("d"), .registered_seq = 2};
    const struct inheritance *got;
    struct execution *x;

    fixture_open(&f, *(enum fixture_kind *)*state);
    id = with_resources(&f, &row, 1)->id;
    fixture_commit(&f);
    x = load_resources(&f, &id);
    row.binding = STR("1");
    row.binding_hash = fixture_hash(1);
    ws_set_text(&x->resources[0].binding, row.binding);
    x->resources[0].binding_hash = row.binding_hash;
    ws_touch_resource(&f.ws, x, &x->resources[0]);
    got = load_inheritance(&f, &id);
    assert_int_equal(got->n, 1);
    assert_resource(&got->rows[0], &row);
    fixture_commit(&f);
    got = load_inheritance(&f, &id);
    assert_int_equal(got->n, 1);
    assert_resource(&got->rows[0], &row);
    fixture_commit(&f);
    fixture_close(&f);
}

static void add_checkpoint(struct fixture *f, struct execution *x, const char *resource,
                           const char *ref)
{
    (void)ws_new_checkpoint(&f->ws, x,
                            &(struct checkpoint){.resource = str_of(resource),
                                                 .checkpoint_ref = str_of(ref),
                                                 .covered_seq = 10});
}

static struct newest_checkpoint newest_of(struct fixture *f, const struct uuid *id,
                                          const char *resource)
{
    struct newest_checkpoint got;
    struct err e = {0};

    assert_true(store_newest_checkpoint(f->r, id, str_of(resource), &f->arena, &got, &e));
    return got;
}

/* Its parent matters to whom did inherit it, whether there is a checkpoint or not; what a fork was
 * restored from, until it has a checkpoint of its own. */
static void newest_of_those_inherited_from(void **state)
{
    struct fixture f;
    struct uuid id, parent = {{5}}, turn = {{6}}, nobody = {{9}};
    struct resource rows[3] = {
        {.key = STR("own"), .driver_id = STR("d"), .registered_seq = 2},
        {.key = STR("was"), .driver_id = STR("d"), .registered_seq = 3, .inherited = true},
        {.key = STR("fork"),
         .driver_id = STR("d"),
         .registered_seq = 4,
         .restored_ref = ODD,
         .restored_from = turn}};
    struct newest_checkpoint got;
    struct execution *x;

    fixture_open(&f, *(enum fixture_kind *)*state);
    x = with_resources(&f, rows, 3);
    x->parent = parent;
    id = x->id;
    add_checkpoint(&f, x, "own", "c");
    fixture_commit(&f);
    got = newest_of(&f, &id, "own");
    assert_true(got.found);
    assert_id(got.parent, NIL);
    got = newest_of(&f, &id, "was");
    assert_false(got.found);
    assert_id(got.parent, parent);
    got = newest_of(&f, &id, "no");
    assert_false(got.found);
    assert_id(got.parent, NIL);
    got = newest_of(&f, &nobody, "own");
    assert_false(got.found);
    assert_id(got.parent, NIL);
    got = newest_of(&f, &id, "fork");
    assert_true(got.found);
    assert_str(got.row.checkpoint_ref, ODD);
    assert_int_equal(got.row.covered_seq, 0);
    assert_id(got.execution_id, turn);
    add_checkpoint(&f, load_resources(&f, &id), "fork", "its own");
    fixture_commit(&f);
    got = newest_of(&f, &id, "fork");
    assert_str(got.row.checkpoint_ref, STR("its own"));
    assert_int_equal(got.row.covered_seq, 10);
    assert_id(got.execution_id, id);
    fixture_close(&f);
}

/* ---- plans ---- */

static void ask_everything(struct fixture *f, const struct uuid *id)
{
    struct newest_checkpoint newest;
    struct execution *x;

    x = load_resources(f, id);
    assert_int_equal(x->n_resources, 2);
    for (size_t i = 0; i < 2; i++)
        ws_end_checkpoints(&f->ws, x, &x->resources[i], 99999);
    assert_int_equal(load_inheritance(f, id)->n, 2);
    fixture_commit(f);
    (void)read_resources(f, id, 2);
    newest = newest_of(f, id, "r1");
    assert_true(newest.found);
    assert_int_equal(newest.row.invalidated_seq, 99999);
}

/* Whatever statistics there are, in a table where one execution has nearly all checkpoints. */
static void nothing_is_scanned(void **state)
{
    struct fixture f;
    struct uuid ids[2];
    struct resource rows[2] = {
        {.key = STR("r0"), .driver_id = STR("d"), .registered_seq = 2, .covered = true},
        {.key = STR("r1"), .driver_id = STR("d"), .registered_seq = 3, .covered = true}};

    fixture_open(&f, *(enum fixture_kind *)*state);
    for (size_t i = 0; i < 2; i++)
        ids[i] = with_resources(&f, rows, 2)->id;
    fixture_commit(&f);
    (void)fixture_sql(
        &f, "INSERT INTO checkpoints (execution_key, resource, generation, checkpoint_ref,"
            " covered_seq, invalidated_seq) SELECT CASE WHEN i < 11980 THEN k.first ELSE k.last"
            " END, 'r' || i % 2, i, 'c', i, CASE WHEN i < 11990 THEN i + 1 END"
            " FROM generate_series(1, 12000) i,"
            " (SELECT min(key) AS first, max(key) AS last FROM executions) k");
    (void)fixture_sql(
        &f, "INSERT INTO resources (execution_key, resource, driver_id, configuration_hash,"
            " coverage_reuse, every_steps, on_completion, generation, count, registered_seq,"
            " covered, inherited, writers_claim) SELECT 1000 + i, 'r' || i % 2, 'd', 'h', 0, 1, 1,"
            " 1, 1, 1, 1, 0, 0 FROM generate_series(1, 12000) i");
    ask_everything(&f, &ids[1]);
    (void)fixture_sql(&f, "UPDATE resources SET covered = 1");
    (void)fixture_sql(&f, "ANALYZE");
    ask_everything(&f, &ids[1]);
    assert_in_range(fixture_rows_read(&f, "'checkpoints'"), 1, 200);
    fixture_close(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        ON_BOTH(resource_round_trip),
        ON_BOTH(resources_change),
        ON_BOTH(a_binding_is_given_once),
        ON_BOTH(registered_and_touched_in_one_group),
        ON_BOTH(checkpoints_begin_and_end),
        ON_BOTH(a_checkpoint_that_has_ended_already),
        ON_BOTH(a_turn_inherits),
        ON_BOTH(a_turn_inherits_from_one_of_this_group),
        ON_BOTH(newest_of_those_inherited_from),
        ON_POSTGRES(nothing_is_scanned),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
