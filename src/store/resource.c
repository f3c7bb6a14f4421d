/* SPDX-License-Identifier: Apache-2.0
 * Rows of resources and of their checkpoints: load, apply, read. They belong to an execution and
 * are read under its lock, but for those of an ended one that a turn inherits: nobody writes
 * those. */
#include "store/internal.h"

/* ---- rows ---- */

#define COLUMNS                                                                                    \
    "r.resource, r.driver_id, r.configuration, r.configuration_hash, r.coverage_reuse, "           \
    "r.every_steps, r.on_completion, r.generation, r.count, r.registered_seq, r.binding, "         \
    "r.binding_hash, r.checkpoint_ref, r.covered, r.inherited, r.restored_ref, "                   \
    "r.restored_from, r.writers, r.writers_claim"

static struct resource read_resource(struct db *db, struct arena *a)
{
    struct resource row = {
        .key = db_get_copy(db, 0, a),
        .driver_id = db_get_copy(db, 1, a),
        .configuration = db_get_copy(db, 2, a),
        .coverage_reuse = db_get_int(db, 4) != 0,
        .every_steps = db_get_int(db, 5),
        .on_completion = db_get_int(db, 6) != 0,
        .generation = db_get_int(db, 7),
        .count = db_get_int(db, 8),
        .registered_seq = db_get_int(db, 9),
        .binding = db_get_copy(db, 10, a),
        .checkpoint_ref = db_get_copy(db, 12, a),
        .covered = db_get_int(db, 13) != 0,
        .inherited = db_get_int(db, 14) != 0,
        .restored_ref = db_get_copy(db, 15, a),
        .writers = db_get_copy(db, 17, a),
        .writers_claim = db_get_int(db, 18),
    };

    db_get_hash(db, 3, &row.configuration_hash);
    if (str_present(row.binding))
        db_get_hash(db, 11, &row.binding_hash);
    (void)db_get_uuid(db, 16, &row.restored_from);
    return row;
}

static const struct db_sql SQL_RESOURCE_LOAD = {
    .name = "resource_load",
    .sqlite = "SELECT " COLUMNS " FROM resources r"
              " WHERE r.execution_key = (SELECT key FROM executions WHERE id = $1)"
              " ORDER BY r.registered_seq",
    .postgres = "SELECT u.ord, l.* FROM unnest($1::bytea[]) WITH ORDINALITY u (id, ord)"
                " JOIN executions e ON e.id = u.id CROSS JOIN LATERAL (SELECT " COLUMNS
                " FROM resources r WHERE r.execution_key = e.key OFFSET 0) l"
                " ORDER BY u.ord, l.registered_seq",
    .types = "B",
};

/* The rows of one execution come together. */
static void add_row(struct load *ld, struct loaded_resources *of, struct db *db)
{
    struct resource row = read_resource(db, &ld->ws->arena);

    if (of->n++ == 0)
        of->first = ld->resource_rows.n;
    list_add(ld->resource_rows, row);
}

static void on_resource(void *ctx, struct db *db, size_t row)
{
    struct load *ld = ctx;

    add_row(ld, &ld->resources[row], db);
}

static void on_inheritance(void *ctx, struct db *db, size_t row)
{
    struct load *ld = ctx;

    add_row(ld, &ld->inheritances[row], db);
}

static void call_for(struct load *ld, const struct uuid *ids, size_t n, db_row_fn *on_row)
{
    db_call(ld->db, &SQL_RESOURCE_LOAD, on_row, ld);
    for (size_t i = 0; i < n; i++) {
        db_uuid(ld->db, &ids[i]);
        db_row(ld->db);
    }
    db_end(ld->db);
}

void resource_load(struct load *ld)
{
    const struct need *need = &ld->ws->need;
    struct arena *a = &ld->ws->arena;

    if (need->resources.n > 0) {
        ld->resources = arena_array(a, struct loaded_resources, need->resources.n);
        call_for(ld, need->resources.at, need->resources.n, on_resource);
    }
    if (need->inheritances.n > 0) {
        ld->inheritances = arena_array(a, struct loaded_resources, need->inheritances.n);
        call_for(ld, need->inheritances.at, need->inheritances.n, on_inheritance);
    }
}

/* One that has ended in this group: what it has changed is in the set alone as yet. */
static bool look_in_group(struct load *ld, const struct uuid *id)
{
    const struct execution *exec = ws_execution(ld->ws, id);
    struct resource *rows;

    if (exec == NULL || !exec->resources_known)
        return false;
    rows = arena_array(&ld->ws->arena, struct resource, exec->n_resources);
    for (size_t i = 0; i < exec->n_resources; i++)
        rows[i] = exec->resources[i];
    ws_put_inheritance(ld->ws, id, rows, exec->n_resources);
    return true;
}

static void put_inheritance(struct load *ld, const struct uuid *id,
                            const struct loaded_resources *loaded)
{
    struct resource *rows;

    if (look_in_group(ld, id))
        return;
    rows = arena_array(&ld->ws->arena, struct resource, loaded->n);
    for (size_t i = 0; i < loaded->n; i++)
        rows[i] = ld->resource_rows.at[loaded->first + i];
    ws_put_inheritance(ld->ws, id, rows, loaded->n);
}

void resource_put(struct load *ld)
{
    const struct need *need = &ld->ws->need;

    for (size_t i = 0; i < need->resources.n; i++) {
        struct execution *exec = ws_execution(ld->ws, &need->resources.at[i]);

        if (exec != NULL)
            ws_put_resources(ld->ws, exec, ld->resource_rows.at + ld->resources[i].first,
                             ld->resources[i].n);
    }
    for (size_t i = 0; i < need->inheritances.n; i++)
        put_inheritance(ld, &need->inheritances.at[i], &ld->inheritances[i]);
}

/* ---- apply ---- */

#define INSERT_COLUMNS                                                                             \
    "execution_key, resource, driver_id, configuration, configuration_hash, coverage_reuse, "      \
    "every_steps, on_completion, generation, count, registered_seq, binding, binding_hash, "       \
    "checkpoint_ref, covered, inherited, restored_ref, restored_from, writers, writers_claim"

static const struct db_sql SQL_RESOURCE_INSERT = {
    .name = "resource_insert",
    .sqlite = "INSERT INTO resources (" INSERT_COLUMNS ") VALUES ($1, $2, $3, $4, $5, $6, $7, $8,"
              " $9, $10, $11, $12, $13, $14, $15, $16, $17, $18, $19, $20)",
    .postgres = "INSERT INTO resources (" INSERT_COLUMNS ") SELECT * FROM unnest($1::bigint[],"
                " $2::text[], $3::bytea[], $4::bytea[], $5::bytea[], $6::bigint[], $7::bigint[],"
                " $8::bigint[], $9::bigint[], $10::bigint[], $11::bigint[], $12::bytea[],"
                " $13::bytea[], $14::bytea[], $15::bigint[], $16::bigint[], $17::bytea[],"
                " $18::bytea[], $19::bytea[], $20::bigint[])",
    .types = "ITBBBIIIIIIBBBIIBBBI",
    .exact = true,
};
/* A binding is given once. Were it given anew with each step, Postgres would write a large one each
 * time. */
static const struct db_sql SQL_RESOURCE_UPDATE = {
    .name = "resource_update",
    .sqlite = "UPDATE resources SET every_steps = $3, on_completion = $4, generation = $5,"
              " count = $6, binding = coalesce(binding, $7),"
              " binding_hash = coalesce(binding_hash, $8), checkpoint_ref = $9, covered = $10,"
              " writers = $11, writers_claim = $12"
              " WHERE execution_key = $1 AND resource = $2",
    .postgres =
        "UPDATE resources r SET every_steps = u.every_steps, on_completion = u.on_completion,"
        " generation = u.generation, count = u.count, binding = coalesce(r.binding, u.binding),"
        " binding_hash = coalesce(r.binding_hash, u.binding_hash),"
        " checkpoint_ref = u.checkpoint_ref, covered = u.covered, writers = u.writers,"
        " writers_claim = u.writers_claim"
        " FROM unnest($1::bigint[], $2::text[], $3::bigint[], $4::bigint[], $5::bigint[],"
        " $6::bigint[], $7::bytea[], $8::bytea[], $9::bytea[], $10::bigint[], $11::bytea[],"
        " $12::bigint[])"
        " u (execution_key, resource, every_steps, on_completion, generation, count, binding,"
        " binding_hash, checkpoint_ref, covered, writers, writers_claim)"
        " WHERE r.execution_key = u.execution_key AND r.resource = u.resource",
    .types = "ITIIIIBBBIBI",
    .exact = true,
};

static void bind_hash_of(struct db *db, struct str value, const struct hash *hash)
{
    if (str_present(value))
        db_hash(db, hash);
    else
        db_bytes(db, STR_NONE);
}

static void bind_writers(struct db *db, const struct resource *row)
{
    db_bytes(db, row->writers);
    db_int(db, row->writers_claim);
}

static void insert_row(struct db *db, int64_t execution_key, const struct resource *row)
{
    db_int(db, execution_key);
    db_text(db, row->key);
    db_bytes(db, row->driver_id);
    db_bytes(db, row->configuration);
    db_hash(db, &row->configuration_hash);
    db_int(db, row->coverage_reuse);
    db_int(db, row->every_steps);
    db_int(db, row->on_completion);
    db_int(db, row->generation);
    db_int(db, row->count);
    db_int(db, row->registered_seq);
    db_bytes(db, row->binding);
    bind_hash_of(db, row->binding, &row->binding_hash);
    db_bytes(db, row->checkpoint_ref);
    db_int(db, row->covered);
    db_int(db, row->inherited);
    db_bytes(db, row->restored_ref);
    db_uuid_opt(db, &row->restored_from);
    bind_writers(db, row);
    db_row(db);
}

static void update_row(struct db *db, int64_t execution_key, const struct resource *row)
{
    db_int(db, execution_key);
    db_text(db, row->key);
    db_int(db, row->every_steps);
    db_int(db, row->on_completion);
    db_int(db, row->generation);
    db_int(db, row->count);
    db_bytes(db, row->binding);
    bind_hash_of(db, row->binding, &row->binding_hash);
    db_bytes(db, row->checkpoint_ref);
    db_int(db, row->covered);
    bind_writers(db, row);
    db_row(db);
}

static void apply_pass(struct apply *ap, unsigned row)
{
    const struct changes *c = ap->changes;

    db_call(ap->db, row == ROW_NEW ? &SQL_RESOURCE_INSERT : &SQL_RESOURCE_UPDATE, NULL, NULL);
    for (size_t i = 0; i < c->resources.n; i++) {
        const struct execution *exec = c->resources.at[i].execution;
        const struct resource *resource = &exec->resources[c->resources.at[i].index];

        if (resource->row != row)
            continue;
        if (row == ROW_NEW)
            insert_row(ap->db, exec->key, resource);
        else
            update_row(ap->db, exec->key, resource);
    }
    db_end(ap->db);
}

/* The open ones are the newest: what ends one ends them all. So they are looked for from the newest
 * back to the first that has ended, however many have. */
#define NEWEST_ENDED(execution_key, resource)                                                      \
    "coalesce((SELECT o.key FROM checkpoints o WHERE o.execution_key = " execution_key             \
    " AND o.resource = " resource                                                                  \
    " AND o.invalidated_seq IS NOT NULL ORDER BY o.key DESC LIMIT 1), 0)"
static const struct db_sql SQL_CHECKPOINTS_END = {
    .name = "checkpoints_end",
    .sqlite = "UPDATE checkpoints SET invalidated_seq = $3 WHERE execution_key = $1"
              " AND resource = $2 AND invalidated_seq IS NULL"
              " AND key > " NEWEST_ENDED("$1", "$2"),
    .postgres =
        "UPDATE checkpoints c SET invalidated_seq = o.seq FROM (SELECT l.*, u.seq"
        " FROM unnest($1::bigint[], $2::text[], $3::bigint[]) u (execution_key, resource, seq)"
        " CROSS JOIN LATERAL (SELECT k.execution_key, k.resource, k.key FROM checkpoints k"
        " WHERE k.execution_key = u.execution_key AND k.resource = u.resource"
        " AND k.invalidated_seq IS NULL"
        " AND k.key > " NEWEST_ENDED("u.execution_key",
                                     "u.resource") " OFFSET 0) l) o"
                                                   " WHERE c.execution_key = o.execution_key AND "
                                                   "c.resource = o.resource AND c.key = o.key",
    .types = "ITI",
};
static const struct db_sql SQL_CHECKPOINT_INSERT = {
    .name = "checkpoint_insert",
    .sqlite = "INSERT INTO checkpoints (execution_key, resource, generation, checkpoint_ref,"
              " covered_seq, invalidated_seq) VALUES ($1, $2, $3, $4, $5, $6)",
    /* Sorted, so that the keys of one execution's checkpoints rise with their age. */
    .postgres = "INSERT INTO checkpoints (execution_key, resource, generation, checkpoint_ref,"
                " covered_seq, invalidated_seq) SELECT execution_key, resource, generation,"
                " checkpoint_ref, covered_seq, invalidated_seq FROM unnest($1::bigint[],"
                " $2::text[], $3::bigint[], $4::bytea[], $5::bigint[], $6::bigint[])"
                " WITH ORDINALITY u (execution_key, resource, generation, checkpoint_ref,"
                " covered_seq, invalidated_seq, ord) ORDER BY ord",
    .types = "ITIBII",
    .exact = true,
};

static void end_checkpoints(struct apply *ap)
{
    const struct changes *c = ap->changes;

    db_call(ap->db, &SQL_CHECKPOINTS_END, NULL, NULL);
    for (size_t i = 0; i < c->resources.n; i++) {
        const struct execution *exec = c->resources.at[i].execution;
        const struct resource *resource = &exec->resources[c->resources.at[i].index];

        if (resource->row == ROW_NEW || resource->ended_seq == 0)
            continue;
        db_int(ap->db, exec->key);
        db_text(ap->db, resource->key);
        db_int(ap->db, resource->ended_seq);
        db_row(ap->db);
    }
    db_end(ap->db);
}

static void insert_checkpoint(struct db *db, int64_t execution_key, const struct checkpoint *row)
{
    db_int(db, execution_key);
    db_text(db, row->resource);
    db_int(db, row->generation);
    db_bytes(db, row->checkpoint_ref);
    db_int(db, row->covered_seq);
    db_int_opt(db, row->invalidated_seq);
    db_row(db);
}

/* Also those that a fork copies. */
static void insert_checkpoints(struct apply *ap)
{
    const struct changes *c = ap->changes;

    db_call(ap->db, &SQL_CHECKPOINT_INSERT, NULL, NULL);
    for (size_t i = 0; i < c->checkpoints.n; i++) {
        const struct checkpoint *row = c->checkpoints.at[i];

        insert_checkpoint(ap->db, row->execution->key, row);
    }
    for (size_t i = 0; i < c->slices.n; i++)
        for (size_t k = 0; k < c->slices.at[i]->n_checkpoints; k++)
            insert_checkpoint(ap->db, c->slices.at[i]->key, &c->slices.at[i]->checkpoints[k]);
    db_end(ap->db);
}

void resource_apply(struct apply *ap)
{
    if (ap->changes->resources.n > 0) {
        apply_pass(ap, ROW_NEW);
        apply_pass(ap, ROW_CHANGED);
        end_checkpoints(ap);
    }
    if (ap->changes->checkpoints.n + ap->changes->slices.n > 0)
        insert_checkpoints(ap);
}

/* ---- read ---- */

static const struct db_sql SQL_RESOURCES_READ = {
    .name = "resources_read",
    .sqlite = "SELECT " COLUMNS " FROM executions e LEFT JOIN resources r"
              " ON r.execution_key = e.key WHERE e.id = $1 ORDER BY r.registered_seq",
    .types = "b",
};

struct resource_rows {
    struct arena *arena;
    LIST(struct resource) rows;
    bool found;
};

static void on_read(void *ctx, struct db *db, size_t row)
{
    struct resource_rows *list = ctx;
    struct resource resource = read_resource(db, list->arena);

    (void)row;
    list->found = true;
    if (str_present(resource.key))
        list_add(list->rows, resource);
}

bool store_read_resources(struct store_reader *r, const struct uuid *execution_id, struct arena *a,
                          struct resource **out, size_t *n, bool *found, struct err *e)
{
    struct resource_rows list = {.arena = a};
    bool ok;

    db_call(r->db, &SQL_RESOURCES_READ, on_read, &list);
    db_uuid(r->db, execution_id);
    db_one(r->db);
    ok = db_flush(r->db, e);
    *found = ok && list.found;
    list_to_arena(list.rows, a, out, n);
    return ok;
}

/* By key, which is the order of age; the index is by resource too, so a page looks at all the
 * execution's entries, and fetches only its own rows. */
static const struct db_sql SQL_CHECKPOINTS_READ = {
    .name = "checkpoints_read",
    .sqlite = "SELECT c.key, c.resource, c.generation, c.checkpoint_ref, c.covered_seq,"
              " c.invalidated_seq FROM (SELECT k.execution_key, k.resource, k.key"
              " FROM checkpoints k WHERE k.execution_key ="
              " (SELECT key FROM executions WHERE id = $1) AND k.key + 0 > $2"
              " ORDER BY k.key + 0 LIMIT $3) p JOIN checkpoints c ON c.key = p.key"
              " AND c.execution_key = p.execution_key AND c.resource = p.resource ORDER BY c.key",
    .types = "bii",
};

struct checkpoint_rows {
    struct arena *arena;
    LIST(struct checkpoint_row) rows;
};

static void on_checkpoint(void *ctx, struct db *db, size_t row)
{
    struct checkpoint_rows *list = ctx;
    struct checkpoint_row c = {.key = db_get_int(db, 0)};

    (void)row;
    c.row.resource = db_get_copy(db, 1, list->arena);
    c.row.generation = db_get_int(db, 2);
    c.row.checkpoint_ref = db_get_copy(db, 3, list->arena);
    c.row.covered_seq = db_get_int(db, 4);
    c.row.invalidated_seq = db_get_int(db, 5);
    list_add(list->rows, c);
}

/* NOLINTNEXTLINE(readability-function-size): bounds in, a page out */
bool store_read_checkpoints(struct store_reader *r, const struct uuid *execution_id,
                            int64_t after_key, size_t limit, struct arena *a,
                            struct checkpoint_row **out, size_t *n, struct err *e)
{
    struct checkpoint_rows list = {.arena = a};
    bool ok;

    db_call(r->db, &SQL_CHECKPOINTS_READ, on_checkpoint, &list);
    db_uuid(r->db, execution_id);
    db_int(r->db, after_key);
    db_int(r->db, (int64_t)limit);
    db_one(r->db);
    ok = db_flush(r->db, e);
    list_to_arena(list.rows, a, out, n);
    return ok;
}

static const struct db_sql SQL_CHECKPOINT_NEWEST = {
    .name = "checkpoint_newest",
    .sqlite = "SELECT CASE WHEN r.inherited = 1 THEN e.parent END, c.generation,"
              " coalesce(c.checkpoint_ref, r.restored_ref), c.covered_seq, c.invalidated_seq,"
              " CASE WHEN c.key IS NULL THEN r.restored_from END FROM executions e"
              " LEFT JOIN resources r ON r.execution_key = e.key AND r.resource = $2"
              " LEFT JOIN checkpoints c ON c.key = (SELECT max(k.key) FROM checkpoints k"
              " WHERE k.execution_key = e.key AND k.resource = $2) WHERE e.id = $1",
    .postgres = "SELECT CASE WHEN r.inherited = 1 THEN e.parent END, c.generation,"
                " coalesce(c.checkpoint_ref, r.restored_ref), c.covered_seq, c.invalidated_seq,"
                " CASE WHEN c.key IS NULL THEN r.restored_from END FROM executions e"
                " LEFT JOIN LATERAL (SELECT q.inherited, q.restored_ref, q.restored_from"
                " FROM resources q WHERE q.execution_key = e.key AND q.resource = $2 OFFSET 0) r"
                " ON true"
                " LEFT JOIN LATERAL (SELECT k.* FROM checkpoints k"
                " WHERE k.execution_key = e.key AND k.resource = $2"
                " ORDER BY k.key DESC LIMIT 1) c ON true WHERE e.id = $1",
    .types = "bt",
};

struct newest {
    struct arena *arena;
    struct newest_checkpoint *out;
};

static void on_newest(void *ctx, struct db *db, size_t row)
{
    const struct newest *newest = ctx;
    struct newest_checkpoint *out = newest->out;
    struct uuid restored_from = {{0}};

    (void)row;
    (void)db_get_uuid(db, 0, &out->parent);
    out->row.generation = db_get_int(db, 1);
    out->row.checkpoint_ref = db_get_copy(db, 2, newest->arena);
    out->row.covered_seq = db_get_int(db, 3);
    out->row.invalidated_seq = db_get_int(db, 4);
    if (db_get_uuid(db, 5, &restored_from))
        out->execution_id = restored_from;
    out->found = str_present(out->row.checkpoint_ref);
}

bool store_newest_checkpoint(struct store_reader *r, const struct uuid *execution_id,
                             struct str resource, struct arena *a, struct newest_checkpoint *out,
                             struct err *e)
{
    struct newest newest = {.arena = a, .out = out};

    *out = (struct newest_checkpoint){.row.resource = resource, .execution_id = *execution_id};
    db_call(r->db, &SQL_CHECKPOINT_NEWEST, on_newest, &newest);
    db_uuid(r->db, execution_id);
    db_text(r->db, resource);
    db_one(r->db);
    return db_flush(r->db, e);
}
