/* SPDX-License-Identifier: Apache-2.0 */
#include "store/submission.h"

#include "base/clock.h"

#include <stdlib.h>

struct past_submission {
    struct call_key call;
    bool has_key;
    uint8_t key[16];
    struct hash step_id;
};

struct past_execution {
    LIST(struct past_submission) rows; /* may be empty: then it is known that nothing was counted */
};

/* Holds every live execution that somebody worked on when the table was read and that has not been
 * loaded since. One that is loaded, is worked on and is not here was counted by this process after
 * that: then the table is read again. */
struct past_submissions {
    struct map executions; /* uuid → struct past_execution */
};

/* ---- reading ---- */

static const struct db_sql SQL_OWNED = {
    .name = "submission_owned",
    .sqlite =
        "SELECT id FROM executions WHERE owner = 'working' AND status IN " LIVE_EXECUTION_STATUSES,
};
static const struct db_sql SQL_SUBMISSION_ALL = {
    .name = "submission_all",
    .sqlite =
        "SELECT e.id, s.call, s.request_key, s.step_id FROM submissions s CROSS JOIN executions e"
        " WHERE e.key = s.execution_key AND e.claim = s.claim AND e.owner = 'working'"
        " AND e.status IN " LIVE_EXECUTION_STATUSES,
};

static struct str uuid_str(const struct uuid *id)
{
    return str_make(id->b, sizeof(id->b));
}

static bool read_row(struct db *db, int first_column, struct past_submission *out)
{
    struct str call = db_get_str(db, first_column), key = db_get_str(db, first_column + 1);

    *out = (struct past_submission){.has_key = str_present(key)};
    if (call.n != sizeof(out->call.b) || (out->has_key && key.n != sizeof(out->key)))
        return db_fail(db, ERR_INTERNAL, "the database holds a malformed submission");
    memcpy(out->call.b, call.p, sizeof(out->call.b));
    if (out->has_key) {
        memcpy(out->key, key.p, sizeof(out->key));
        db_get_hash(db, first_column + 2, &out->step_id);
    }
    return true;
}

struct past_pass {
    struct past_submissions *past;
    const struct working_set *ws;
};

static void on_owned(void *ctx, struct db *db, size_t row)
{
    struct past_pass *pass = ctx;
    struct uuid id;

    (void)row;
    if (db_get_uuid(db, 0, &id) && ws_execution(pass->ws, &id) == NULL)
        map_put(&pass->past->executions, uuid_str(&id), xzalloc(sizeof(struct past_execution)));
}

static void on_submission(void *ctx, struct db *db, size_t row)
{
    struct past_pass *pass = ctx;
    struct past_execution *pe;
    struct past_submission s;
    struct uuid id;

    (void)row;
    (void)db_get_uuid(db, 0, &id);
    pe = map_get(&pass->past->executions, uuid_str(&id));
    if (pe == NULL || !read_row(db, 1, &s)) /* NULL: the set has it, and its counts */
        return;
    list_add(pe->rows, s);
}

static void past_execution_free(struct past_execution *pe)
{
    if (pe == NULL)
        return;
    list_free(pe->rows);
    free(pe);
}

void past_submissions_free(struct past_submissions *past)
{
    struct past_execution *pe;

    if (past == NULL)
        return;
    for (size_t i = 0; (pe = map_next(&past->executions, &i)) != NULL;)
        past_execution_free(pe);
    map_free(&past->executions);
    free(past);
}

static bool read_past(struct load *ld, struct err *e)
{
    struct past_pass pass = {xzalloc(sizeof(struct past_submissions)), ld->ws};

    past_submissions_free(ld->w->past);
    ld->w->past = pass.past;
    db_call(ld->db, &SQL_OWNED, on_owned, &pass);
    db_one(ld->db);
    db_call(ld->db, &SQL_SUBMISSION_ALL, on_submission, &pass);
    db_one(ld->db);
    if (db_flush(ld->db, e))
        return true;
    past_submissions_free(ld->w->past); /* half of it would be wrong counts */
    ld->w->past = NULL;
    return false;
}

/* Nothing was counted for an execution that no attempt owns: a claim starts from 0. */
static bool was_counted(const struct loaded_execution *le)
{
    return le->found && le->row.owner == OWNER_WORKING &&
           !execution_status_is_terminal(le->row.status);
}

/* ---- ended deliveries ---- */

/* Agents that lived through a restart may still make calls under a delivery that has ended. They
 * are few: what one of them needs is looked for in the whole table, when it is asked for. */
static const struct db_sql SQL_SUBMISSION_OF = {
    .name = "submission_of",
    .sqlite = "SELECT call, request_key, step_id FROM submissions WHERE execution_key = $1 AND "
              "claim = $2",
};

static void put_one(struct execution *exec, const struct past_submission *s)
{
    ws_put_tally(exec, &s->call, ws_tally(exec, &s->call) + 1);
    if (s->has_key)
        ws_put_submission_key(exec, s->key, &s->call, &s->step_id);
}

static void on_submission_of(void *ctx, struct db *db, size_t row)
{
    struct past_submission s;

    (void)row;
    if (read_row(db, 0, &s))
        put_one(ctx, &s);
}

static bool read_ended(struct load *ld, struct err *e)
{
    const struct need *need = &ld->ws->need;

    for (size_t i = 0; i < need->tallies.n; i++) {
        struct execution *exec = ws_execution(ld->ws, &need->tallies.at[i].execution_id);

        if (exec == NULL || exec->tallies_complete)
            continue;
        db_call(ld->db, &SQL_SUBMISSION_OF, on_submission_of, exec);
        db_int(ld->db, exec->key);
        db_int(ld->db, exec->claim);
        db_one(ld->db);
        if (!db_flush(ld->db, e))
            return false;
        exec->tallies_complete = true;
    }
    return true;
}

/* ---- loading ---- */

bool sqlite_load_submissions(struct load *ld, struct err *e)
{
    for (size_t i = 0; i < ld->executions.n; i++) {
        const struct loaded_execution *le = ld->executions.at[i];

        if (was_counted(le) &&
            (ld->w->past == NULL || map_get(&ld->w->past->executions, uuid_str(&le->id)) == NULL))
            return read_past(ld, e) && read_ended(ld, e);
    }
    return read_ended(ld, e);
}

static void hand_out(struct execution *exec, const struct past_execution *pe)
{
    for (size_t i = 0; i < pe->rows.n; i++)
        put_one(exec, &pe->rows.at[i]);
}

void sqlite_put_submissions(struct load *ld)
{
    for (size_t i = 0; i < ld->executions.n; i++) {
        const struct loaded_execution *le = ld->executions.at[i];
        struct past_execution *pe = NULL;
        struct execution *exec;

        if (!le->found)
            continue;
        exec = ws_execution(ld->ws, &le->id);
        if (ld->w->past != NULL)
            pe = map_remove(&ld->w->past->executions, uuid_str(&le->id));
        if (was_counted(le)) {
            ASSERT(pe != NULL);
            hand_out(exec, pe);
        }
        /* Behind its last call's term nobody calls any more. */
        exec->counts_lost =
            le->row.owner == OWNER_ENDED && le->row.lease_until <= ld->ws->now.lease_us;
        exec->tallies_complete = le->row.owner != OWNER_ENDED || exec->counts_lost;
        past_execution_free(pe);
    }
}

/* ---- writing ---- */

static const struct db_sql SQL_SUBMISSION_INSERT = {
    .name = "submission_insert",
    .sqlite = "INSERT INTO submissions (execution_key, claim, call, request_key, step_id) VALUES "
              "($1, $2, $3, $4, $5)",
    .exact = true,
};

void sqlite_apply_submissions(struct apply *ap)
{
    const struct changes *c = ap->changes;

    if (c->submissions.n == 0)
        return;
    db_call(ap->db, &SQL_SUBMISSION_INSERT, NULL, NULL);
    for (size_t i = 0; i < c->submissions.n; i++) {
        const struct submission *s = &c->submissions.at[i];

        db_int(ap->db, s->execution->key);
        db_int(ap->db, s->claim);
        db_bytes(ap->db, str_make(s->call.b, sizeof(s->call.b)));
        db_bytes(ap->db, s->has_key ? str_make(s->key, sizeof(s->key)) : STR_NONE);
        db_bytes(ap->db, s->has_key ? str_make(s->step_id.b, sizeof(s->step_id.b)) : STR_NONE);
        db_row(ap->db);
    }
    db_end(ap->db);
}

/* ---- tidying ---- */

static const struct db_sql SQL_SLICE_END = {
    .name = "submission_slice",
    .sqlite = "SELECT count(*), max(key) FROM (SELECT key FROM submissions WHERE key > $1 ORDER BY "
              "key LIMIT $2)",
};
/* What stays is what would be read: of the claim that counts, while somebody owns it. */
static const struct db_sql SQL_SUBMISSION_SWEEP = {
    .name = "submission_sweep",
    .sqlite = "DELETE FROM submissions WHERE key > $1 AND key <= $2 AND NOT EXISTS (SELECT 1 FROM "
              "executions e"
              " WHERE e.key = submissions.execution_key AND e.claim = submissions.claim AND "
              "e.owner <> 'none'"
              " AND e.status IN " LIVE_EXECUTION_STATUSES ")",
};

struct slice {
    int64_t rows, end;
};

static void on_slice(void *ctx, struct db *db, size_t row)
{
    struct slice *slice = ctx;

    (void)row;
    slice->rows = db_get_int(db, 0);
    slice->end = db_get_int(db, 1);
}

/* What deliveries that wait have counted stays for as long as they do, so a long pass may find
 * nothing: it may take one moment in PAUSE_FACTOR. */
enum { PAUSE_FACTOR = 100 };

/* A cursor goes through the table, slice by slice; a pass ends where the table does. */
bool sqlite_tidy_submissions(struct store_writer *w, bool *more, struct err *e)
{
    struct slice slice = {0};
    int64_t began_us = clock_mono_us();
    bool unknown;

    *more = false;
    if (w->tidy_after == 0 && began_us < w->tidy_not_before)
        return true;
    db_begin(w->db);
    db_call(w->db, &SQL_SLICE_END, on_slice, &slice);
    db_int(w->db, w->tidy_after);
    db_int(w->db, TIDY_ROWS);
    db_one(w->db);
    if (slice.rows > 0) {
        db_call(w->db, &SQL_SUBMISSION_SWEEP, NULL, NULL);
        db_int(w->db, w->tidy_after);
        db_int(w->db, slice.end);
        db_one(w->db);
    }
    if (!db_commit(w->db, &unknown, e)) {
        w->broken = e->code == ERR_UNAVAILABLE;
        return false;
    }
    *more = slice.rows == TIDY_ROWS;
    w->tidy_busy_us += clock_mono_us() - began_us;
    if (!*more) {
        if (w->tidy_after > 0) /* it took several slices */
            w->tidy_not_before = clock_mono_us() + PAUSE_FACTOR * w->tidy_busy_us;
        w->tidy_busy_us = 0;
    }
    w->tidy_after = *more ? slice.end : 0;
    return true;
}
