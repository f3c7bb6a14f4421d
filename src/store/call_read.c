/* SPDX-License-Identifier: Apache-2.0
 * What steps ask for, as a policy sees it. */
#include "store/internal.h"

static const struct db_sql SQL_CALL_READ = {
    .name = "call_read",
    .sqlite = "SELECT s.kind, s.target, " STEP_PAYLOAD(
        "args") " FROM steps s"
                " WHERE s.execution_key = (SELECT key FROM executions WHERE id = $2)"
                " AND substr(s.step_id, 1, 8) = substr($1, 1, 8) AND s.step_id = $1",
    .postgres =
        "SELECT u.ord, s.kind, s.target, s.args FROM unnest($1::bytea[]) WITH ORDINALITY u (id, "
        "ord)"
        " JOIN LATERAL (SELECT s.kind, s.target, " STEP_PAYLOAD(
            "args") " AS args FROM steps s"
                    " WHERE s.execution_key = (SELECT key FROM executions WHERE id = $2)"
                    " AND substr(s.step_id, 1, 8) = substr(u.id, 1, 8) AND s.step_id = u.id OFFSET "
                    "0) s ON true"
                    " ORDER BY u.ord",
    .types = "Bb",
};

struct calls {
    struct arena *arena;
    struct payload_reader payloads;
    struct step_call *at;
    size_t bytes, max_bytes, n;
};

static void on_call(void *ctx, struct db *db, size_t row)
{
    struct calls *calls = ctx;
    struct step_call *call = &calls->at[row];

    if (row >= calls->n)
        return;
    if (row > 0 && calls->bytes >= calls->max_bytes) {
        calls->n = row;
        return;
    }
    calls->bytes += payload_size(db, 2);
    call->kind = db_get_copy(db, 0, calls->arena);
    call->target = db_get_copy(db, 1, calls->arena);
    payload_get(&calls->payloads, 2, &call->args);
}

bool store_read_calls(struct store_reader *r, const struct step_call_query *q, struct arena *a,
                      struct step_call **out, size_t *n, struct err *e)
{
    struct calls calls = {
        .arena = a,
        .payloads = {.db = r->db, .arena = a},
        .at = arena_array(a, struct step_call, q->count),
        .max_bytes = q->max_bytes,
        .n = q->count,
    };
    bool ok;

    db_call(r->db, &SQL_CALL_READ, on_call, &calls);
    for (size_t i = 0; i < q->count; i++) {
        db_hash(r->db, &q->ids[i]);
        db_uuid(r->db, q->execution_id);
        db_row(r->db);
    }
    db_end(r->db);
    ok = payloads_read(&calls.payloads, e);
    *out = calls.at;
    *n = ok ? calls.n : 0;
    payload_reader_free(&calls.payloads);
    return ok;
}
