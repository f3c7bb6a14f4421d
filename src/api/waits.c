/* SPDX-License-Identifier: Apache-2.0 */
#include "api/waits.h"

enum { SHOWN_MAX = 1000, TRIES_MAX = 8 };

static bool is_blocked(const struct execution_view *v)
{
    return str_eq(v->status, execution_status_name(EXECUTION_BLOCKED));
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

bool waits_read(struct store_reader *r, struct execution_view *v, struct arena *a,
                struct waits *out, struct err *e)
{
    bool found;

    *out = (struct waits){0};
    for (int tries = 0; is_blocked(v) && tries < TRIES_MAX; tries++) {
        struct uuid id = v->id;

        if (!read_pending(r, v, a, out, e))
            return false;
        if (out->n > 0)
            return true;
        if (!store_read_execution(r, &id, a, v, &found, e))
            return false;
        if (!found)
            return err_set(e, ERR_NOT_FOUND, "no such execution");
    }
    return true;
}
