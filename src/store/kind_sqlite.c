/* SPDX-License-Identifier: Apache-2.0
 * How the store uses SQLite: one writer, whose working set keeps what only the living process
 * needs. */
#include "store/sqlite_home.h"
#include "store/submission.h"

static struct db *connect_sqlite(struct store *s, bool writer, struct err *e)
{
    return db_sqlite_open(s->home, writer, e);
}

static void no_session_locks(struct load *ld)
{
    ld->sessions_locked = ld->sessions.n;
}

static void no_session_rows(struct apply *ap)
{
    (void)ap;
}

/* Leases are not written. An agent that lived through a restart gets a fresh full term; a delivery
 * whose answer nobody waits for any more runs out after the dispatch timeout at the earliest.
 *
 * An ended delivery's row stays in the set for a term after its owner's last call. If it is not in
 * the set, that call came before the set was last empty, or the term is over: a term from when it
 * was empty is the end in both cases, however often the row is loaded. Else each look at it would
 * hold the next delivery back for another term. */
static void settle_lease(struct load *ld, struct execution *row)
{
    const struct dispatch *d = row->dispatch;
    int64_t term;

    row->lease_until = 0;
    if (row->owner == OWNER_ENDED)
        row->lease_until = ld->w->set_since + row->owner_lease_us;
    if (row->owner != OWNER_WORKING || d == NULL)
        return;
    term = d->lease_us;
    if (d->status == DISPATCH_CLAIMED && term < ld->ws->settings->dispatch_timeout_us)
        term = ld->ws->settings->dispatch_timeout_us;
    row->lease_until = ld->ws->now.lease_us + term;
}

static void no_leases(struct apply *ap)
{
    (void)ap;
}

static bool has_run_out(const struct execution *exec, int64_t now_us)
{
    bool leased =
        exec->owner == OWNER_ENDED || (exec->owner == OWNER_WORKING && exec->dispatch != NULL);

    return leased && !execution_status_is_terminal(exec->status) && exec->lease_until <= now_us;
}

/* The leases that count are those of the rows in the set: every execution that is worked on is in
 * it, from the claim on or since the start loaded it. Ended deliveries are named so that they leave
 * it: the group that looks at one lets it go. */
static bool sqlite_expired_leases(struct store_writer *w, struct working_set *ws, size_t limit,
                                  struct arena *a, struct uuid **out, size_t *n, struct err *e)
{
    LIST(struct uuid) ids = {0};
    struct now now;
    struct str key;

    if (!sqlite_home_look(w->store->home, e)) /* an idle store notices too */
        return false;
    db_now(w->db, &now);
    for (size_t i = 0; ids.n < limit && map_next_key(&ws->executions, &i, &key) != NULL;) {
        const struct execution *exec;
        struct uuid id;

        memcpy(id.b, key.p, sizeof(id.b));
        exec = ws_execution(ws, &id);
        if (exec != NULL && has_run_out(exec, now.lease_us))
            list_add(ids, id);
    }
    list_to_arena(ids, a, out, n);
    return true;
}

/* One after the other, so that a pass has an end. */
static bool tidy_next(struct store_writer *w, bool *more, struct err *e)
{
    switch (w->tidying) {
    case TIDY_SUBMISSIONS:
        return sqlite_tidy_submissions(w, more, e);
    case TIDY_BUCKETS:
        return bucket_tidy(w, more, e);
    case TIDY_UNLINKED:
        return unlinked_tidy(w, more, e);
    }
    return true;
}

static bool tidy(struct store_writer *w, struct working_set *ws, bool *more, struct err *e)
{
    (void)ws;
    *more = false;
    if (w->broken)
        return err_set(e, ERR_UNAVAILABLE, "the store is not writable at the moment");
    if (!tidy_next(w, more, e))
        return false;
    if (*more)
        return true;
    *more = w->tidying != TIDY_UNLINKED;
    w->tidying = *more ? w->tidying + 1 : TIDY_SUBMISSIONS;
    return true;
}

const struct store_kind SQLITE_KIND = {
    .sqlite = true,
    .connect = connect_sqlite,
    .lock_sessions = no_session_locks,
    .drop_sessions = no_session_rows,
    .settle_execution = settle_lease,
    .load_submissions = sqlite_load_submissions,
    .put_submissions = sqlite_put_submissions,
    .apply_submissions = sqlite_apply_submissions,
    .apply_leases = no_leases,
    .expired_leases = sqlite_expired_leases,
    .tidy = tidy,
};
