/* SPDX-License-Identifier: Apache-2.0 */
#include "api/waits.h"

enum { SHOWN_MAX = 1000, TRIES_MAX = 8 };

static bool is_in(const struct execution_view *v, enum execution_status status)
{
    return str_eq(v->status, execution_status_name(status));
}

static bool read_pending(struct store_reader *r, const struct execution_view *v, struct arena *a,
                         struct waits *out, struct err *e)
{
    struct approval_filter f = {
        .status = approval_status_name(APPROVAL_PENDING),
        .execution_id = &v->id,
        .limit = SHOWN_MAX,
        .brief = true,
    };

    memset(f.high.b, 0xff, sizeof(f.high.b));
    return store_list_approvals(r, &f, a, &out->approvals, &out->n, e);
}

static bool read_subagents(struct store_reader *r, const struct execution_view *v, struct arena *a,
                           struct waits *out, struct err *e)
{
    return v->awaited == 0 ||
           store_awaited_subagents(r, &v->id, SHOWN_MAX, a, &out->subagents, &out->n_subagents, e);
}

bool waits_read(struct store_reader *r, struct execution_view *v, struct arena *a,
                struct waits *out, struct err *e)
{
    bool found;

    *out = (struct waits){0};
    for (int tries = 0; is_in(v, EXECUTION_BLOCKED) && tries < TRIES_MAX; tries++) {
        struct uuid id = v->id;

        if (!read_pending(r, v, a, out, e) || !read_subagents(r, v, a, out, e))
            return false;
        if (out->n + out->n_subagents > 0)
            return true;
        if (!store_read_execution(r, &id, a, v, &found, e))
            return false;
        if (!found)
            return err_set(e, ERR_NOT_FOUND, "no such execution");
    }
    return !is_in(v, EXECUTION_RUNNING) || read_subagents(r, v, a, out, e);
}
