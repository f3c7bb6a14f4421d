/* SPDX-License-Identifier: Apache-2.0
 * Applying a group and ending its transaction. */
#include "base/clock.h"
#include "base/fault.h"
#include "store/chunks.h"
#include "store/internal.h"

/* Parents before children; retired dispatches before the ones that take their place
 * (dispatch_apply). */
static void apply_rows(struct apply *ap, const struct store_kind *kind)
{
    agent_apply(ap);
    execution_apply(ap);
    kind->apply_leases(ap);
    dispatch_apply(ap);
    step_apply(ap);
    approval_apply(ap);
    resource_apply(ap);
    event_apply(ap);
    kind->apply_submissions(ap);
    fork_apply(ap);
    unlink_apply(ap);
    kind->drop_sessions(ap);
    bucket_apply(ap);
    payloads_write(&ap->payloads);
}

static bool apply_all(struct store_writer *w, struct working_set *ws, struct err *e)
{
    struct apply ap = {.db = w->db,
                       .ws = ws,
                       .changes = &ws->changes,
                       .payloads = {.db = w->db, .arena = &ws->arena}};
    bool ok = chunks_place(&ap.payloads, &ws->changes, e);

    if (ok)
        apply_rows(&ap, w->store->kind);
    payload_writer_free(&ap.payloads);
    return ok;
}

static void end_transaction(struct store_writer *w)
{
    if (w->db->in_transaction)
        db_rollback(w->db);
}

void store_abandon(struct store_writer *w)
{
    end_transaction(w);
    w->set_since = clock_mono_us();
}

bool store_commit(struct store_writer *w, struct working_set *ws, bool *unknown, struct err *e)
{
    bool ok;

    *unknown = false;
    if (w->broken) {
        store_abandon(w);
        return err_set(e, ERR_UNAVAILABLE, "the store is not writable at the moment");
    }
    if (!ws_has_changes(ws)) { /* the locks alone would make Postgres sync a commit */
        end_transaction(w);
        return true;
    }
    if (!w->db->in_transaction)
        db_begin(w->db);
    FAULT("store.apply.before");
    ok = apply_all(w, ws, e);
    if (FAULT_FAILS("store.commit.before"))
        db_fail(w->db, ERR_UNAVAILABLE, "disk I/O error");
    if (ok && db_commit(w->db, unknown, e)) {
        FAULT("store.commit.after");
        return true;
    }
    if (e->code == ERR_UNAVAILABLE)
        w->broken = true;
    store_abandon(w);
    return false;
}
