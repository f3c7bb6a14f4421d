/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/retention.h"

#include "base/clock.h"
#include "base/log.h"
#include "engine/executor.h"

/* The store's clock is asked for by the rules: a cutoff by this one's only chooses what to look at,
 * and errs by what the two differ. */
static void begin_sweep(struct retention_sweep *s)
{
    if (s->begun)
        return;
    s->begun = true;
    s->cutoff = clock_wall_us() - s->engine->retention_us;
    s->before = (struct uuid){{0}};
    s->in_pass = s->removed = 0;
}

static void end_sweep(struct retention_sweep *s)
{
    s->begun = false;
    s->at = clock_mono_us() + s->engine->cleanup_interval_us;
    if (s->removed > 0)
        log_event(LOG_INFO, "retention.removed", {"executions", log_int(s->removed)});
}

/* False: the store does not take it now. */
static bool unlink_page(struct retention_sweep *s, const struct uuid *ids, size_t n, struct err *e)
{
    memset(s->batch, 0, n * sizeof(struct command));
    for (size_t i = 0; i < n; i++) {
        s->batch[i].type = COMMAND_UNLINK;
        s->batch[i].in.unlink = (struct execution_unlinking){ids[i], s->cutoff};
    }
    engine_run_all(s->engine, s->batch, n);
    for (size_t i = 0; i < n; i++) {
        if (s->batch[i].verdict == VERDICT_REFUSED) {
            *e = s->batch[i].err;
            return false;
        }
        s->in_pass += s->batch[i].out.unlinked;
    }
    return true;
}

static bool take_page(struct retention_sweep *s, struct arena *a, struct err *e)
{
    const struct uuid *before = uuid_is_nil(&s->before) ? NULL : &s->before;
    struct uuid *ids;
    size_t n;

    return store_retired_executions(s->reader, s->cutoff, before, RETENTION_PAGE, a, &ids, &n,
                                    &s->before, e) &&
           (n == 0 || unlink_page(s, ids, n, e));
}

bool retention_page(struct retention_sweep *s, struct arena *a, struct err *e)
{
    begin_sweep(s);
    if (!take_page(s, a, e)) {
        s->removed += s->in_pass;
        end_sweep(s);
        return false;
    }
    s->at = 0;
    if (!uuid_is_nil(&s->before))
        return true;
    s->removed += s->in_pass;
    if (s->in_pass == 0)
        end_sweep(s);
    s->in_pass = 0;
    return true;
}

bool retention_stale_forks(struct retention_sweep *s, struct arena *a, struct err *e)
{
    int64_t older_than = clock_wall_us() - FORK_PATIENCE_S * US_PER_S;
    struct uuid *ids;
    size_t n;

    if (!store_stale_forks(s->reader, older_than, RETENTION_PAGE, a, &ids, &n, e))
        return false;
    memset(s->batch, 0, n * sizeof(struct command));
    for (size_t i = 0; i < n; i++) {
        s->batch[i].type = COMMAND_FORK_ABANDON;
        s->batch[i].in.fork_abandon.fork_id = ids[i];
    }
    if (n > 0)
        engine_run_all(s->engine, s->batch, n);
    return true;
}
