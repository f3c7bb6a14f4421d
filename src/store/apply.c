/* SPDX-License-Identifier: Apache-2.0
 * Applying a group and ending its transaction. */
#include "store/internal.h"

/* Parents before children; retired dispatches before the ones that take their place
 * (dispatch_apply). */
static void apply_rows(struct store_writer *w, struct working_set *ws)
{
    struct apply ap = {.db = w->db, .ws = ws, .changes = &ws->changes};

    ap.payloads = (struct payload_writer){.db = w->db, .arena = &ws->arena};
    agent_apply(&ap);
    execution_apply(&ap);
    w->store->kind->apply_leases(&ap);
    dispatch_apply(&ap);
    step_apply(&ap);
    event_apply(&ap);
    w->store->kind->apply_submissions(&ap);
    payloads_write(&ap.payloads);
    payload_writer_free(&ap.payloads);
}

bool store_commit(struct store_writer *w, struct working_set *ws, bool *unknown, struct err *e)
{
    *unknown = false;
    if (w->broken) {
        store_abandon(w);
        return err_set(e, ERR_UNAVAILABLE, "the store is not writable at the moment");
    }
    if (!ws_has_changes(ws)) { /* the locks alone would make Postgres sync a commit */
        store_abandon(w);
        return true;
    }
    if (!w->db->in_transaction)
        db_begin(w->db);
    apply_rows(w, ws);
    if (db_commit(w->db, unknown, e))
        return true;
    if (e->code == ERR_UNAVAILABLE)
        w->broken = true;
    return false;
}

void store_abandon(struct store_writer *w)
{
    if (w->db->in_transaction)
        db_rollback(w->db);
}
