/* SPDX-License-Identifier: Apache-2.0
 * Forks that are being copied: their pins, and the rows that lie under a key which no execution has
 * yet. */
#include "store/internal.h"

/* ---- load ---- */

static const struct db_sql SQL_FORK_LOAD = {
    .name = "fork_load",
    .sqlite = "SELECT f.key, f.source_key, e.id, f.touched_at FROM forks f"
              " JOIN executions e ON e.key = f.source_key WHERE f.id = $1",
    .postgres = "SELECT u.ord, f.key, f.source_key, e.id, f.touched_at"
                " FROM unnest($1::bytea[]) WITH ORDINALITY u (id, ord)"
                " JOIN forks f ON f.id = u.id JOIN executions e ON e.key = f.source_key"
                " ORDER BY f.id FOR UPDATE OF f",
    .types = "B",
};

static void on_pin(void *ctx, struct db *db, size_t row)
{
    struct load *ld = ctx;
    struct fork_pin *pin = &ld->pins[row];

    pin->id = ld->ws->need.forks.at[row];
    pin->key = db_get_int(db, 0);
    pin->source_key = db_get_int(db, 1);
    (void)db_get_uuid(db, 2, &pin->source);
    pin->touched_at = db_get_int(db, 3);
}

void fork_load(struct load *ld)
{
    const struct need *need = &ld->ws->need;

    if (need->forks.n == 0)
        return;
    ld->pins = arena_array(&ld->ws->arena, struct fork_pin, need->forks.n);
    db_call(ld->db, &SQL_FORK_LOAD, on_pin, ld);
    for (size_t i = 0; i < need->forks.n; i++) {
        db_uuid(ld->db, &need->forks.at[i]);
        db_row(ld->db);
    }
    db_end(ld->db);
}

void fork_put(struct load *ld)
{
    const struct need *need = &ld->ws->need;

    for (size_t i = 0; i < need->forks.n; i++) {
        if (ld->pins[i].key != 0)
            ws_put_fork(ld->ws, &ld->pins[i]);
        else
            ws_put_absent_fork(ld->ws, &need->forks.at[i]);
    }
}

/* ---- apply: pins ---- */

static const struct db_sql SQL_FORK_INSERT = {
    .name = "fork_insert",
    .sqlite = "INSERT INTO forks (key, id, source_key, touched_at) VALUES ($1, $2, $3, $4)",
    .postgres = "INSERT INTO forks (key, id, source_key, touched_at) SELECT * FROM"
                " unnest($1::bigint[], $2::bytea[], $3::bigint[], $4::bigint[])",
    .types = "IBII",
    .exact = true,
};
static const struct db_sql SQL_FORK_TOUCH = {
    .name = "fork_touch",
    .sqlite = "UPDATE forks SET touched_at = $2 WHERE key = $1",
    .postgres = "UPDATE forks f SET touched_at = u.touched_at"
                " FROM unnest($1::bigint[], $2::bigint[]) u (key, touched_at) WHERE f.key = u.key",
    .types = "II",
    .exact = true,
};
static const struct db_sql SQL_FORK_DELETE = {
    .name = "fork_delete",
    .sqlite = "DELETE FROM forks WHERE key = $1",
    .postgres = "DELETE FROM forks WHERE key = ANY ($1::bigint[])",
    .types = "I",
};
static const struct db_sql SQL_FORK_UNLINK = {
    .name = "fork_unlink",
    .sqlite = "INSERT INTO unlinked (key) VALUES ($1)",
    .postgres = "INSERT INTO unlinked (key) SELECT * FROM unnest($1::bigint[])",
    .types = "I",
    .exact = true,
};

static void insert_pins(struct apply *ap)
{
    db_call(ap->db, &SQL_FORK_INSERT, NULL, NULL);
    for (size_t i = 0; i < ap->changes->forks.n; i++) {
        struct fork_pin *pin = ap->changes->forks.at[i];

        ASSERT(pin->row != ROW_NEW || !pin->gone); /* its id is known behind its group alone */
        if (pin->row != ROW_NEW)
            continue;
        pin->key = db_new_key(ap->db, DB_KEYS_EXECUTION);
        db_int(ap->db, pin->key);
        db_uuid(ap->db, &pin->id);
        db_int(ap->db, pin->source_key);
        db_int(ap->db, pin->touched_at);
        db_row(ap->db);
    }
    db_end(ap->db);
}

static void touch_pins(struct apply *ap)
{
    db_call(ap->db, &SQL_FORK_TOUCH, NULL, NULL);
    for (size_t i = 0; i < ap->changes->forks.n; i++) {
        const struct fork_pin *pin = ap->changes->forks.at[i];

        if (pin->row != ROW_CHANGED || pin->gone)
            continue;
        db_int(ap->db, pin->key);
        db_int(ap->db, pin->touched_at);
        db_row(ap->db);
    }
    db_end(ap->db);
}

static void drop_pins(struct apply *ap, const struct db_sql *sql, bool abandoned)
{
    db_call(ap->db, sql, NULL, NULL);
    for (size_t i = 0; i < ap->changes->forks.n; i++) {
        const struct fork_pin *pin = ap->changes->forks.at[i];

        if (!pin->gone || (abandoned && !pin->abandoned))
            continue;
        db_int(ap->db, pin->key);
        db_row(ap->db);
    }
    db_end(ap->db);
}

/* ---- apply: copied steps. Events: event_apply. ---- */

#define STEP_COLUMNS                                                                               \
    "execution_key, step_id, kind, target, args_hash, occurrence, status, idempotency, claim, "    \
    "rule_id, affects, created_at, started_at, completed_at, input_tokens, output_tokens, "        \
    "payload_key"

static const struct db_sql SQL_STEP_COPY = {
    .name = "step_copy",
    .sqlite = "INSERT INTO steps (" STEP_COLUMNS ") VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9,"
              " $10, $11, $12, $13, $14, $15, $16, $17)",
    /* Sorted as in step_insert. */
    .postgres = "INSERT INTO steps (" STEP_COLUMNS ") SELECT " STEP_COLUMNS
                " FROM unnest($1::bigint[], $2::bytea[], $3::text[], $4::bytea[], $5::bytea[],"
                " $6::bigint[], $7::text[], $8::text[], $9::bigint[], $10::bytea[], $11::bytea[],"
                " $12::bigint[], $13::bigint[], $14::bigint[], $15::bigint[], $16::bigint[],"
                " $17::bigint[]) WITH ORDINALITY u (" STEP_COLUMNS ", ord) ORDER BY ord",
    .types = "IBTBBITTIBBIIIIII",
    .exact = true,
};
static void copy_step(struct db *db, int64_t key, const struct step_copy *step)
{
    db_int(db, key);
    db_hash(db, &step->id);
    db_text(db, step_kind_name(step->kind));
    db_bytes(db, step->target);
    db_hash(db, &step->args_hash);
    db_int(db, step->occurrence);
    db_text(db, step_status_name(step->status));
    db_text(db, idempotency_name(step->idempotency));
    db_int(db, 0); /* no claim of the fork has told it to proceed */
    db_bytes(db, step->rule_id);
    db_bytes(db, step->affects);
    db_int(db, step->created_at);
    db_int_opt(db, step->started_at);
    db_int_opt(db, step->completed_at);
    db_int_natural(db, step->usage.input_tokens);
    db_int_natural(db, step->usage.output_tokens);
    db_int(db, step->payload_key);
    db_row(db);
}

static void copy_steps(struct apply *ap)
{
    db_call(ap->db, &SQL_STEP_COPY, NULL, NULL);
    for (size_t i = 0; i < ap->changes->slices.n; i++) {
        const struct fork_slice *slice = ap->changes->slices.at[i];

        for (size_t k = 0; k < slice->n_steps; k++)
            copy_step(ap->db, slice->key, &slice->steps[k]);
    }
    db_end(ap->db);
}

void fork_apply(struct apply *ap)
{
    if (ap->changes->forks.n > 0) {
        insert_pins(ap);
        touch_pins(ap);
        drop_pins(ap, &SQL_FORK_DELETE, false);
        drop_pins(ap, &SQL_FORK_UNLINK, true);
    }
    if (ap->changes->slices.n > 0)
        copy_steps(ap);
}
