/* SPDX-License-Identifier: Apache-2.0
 * Forks that are being copied, in the working set. Group arena: other kernels may be at them. */
#include "kernel/working_set_internal.h"

void ws_need_fork(struct working_set *ws, const struct uuid *fork_id)
{
    if (!ws_knows_fork(ws, fork_id))
        LIST_ADD(ws->need.forks, *fork_id);
}

bool ws_knows_fork(const struct working_set *ws, const struct uuid *fork_id)
{
    return map_get(&ws->forks, uuid_key(fork_id)) != NULL;
}

struct fork_pin *ws_fork(const struct working_set *ws, const struct uuid *fork_id)
{
    struct fork_pin *pin = present(map_get(&ws->forks, uuid_key(fork_id)));

    return pin == NULL || pin->gone ? NULL : pin;
}

static struct fork_pin *put(struct working_set *ws, const struct fork_pin *row)
{
    struct fork_pin *pin = arena_new(&ws->arena, struct fork_pin);

    *pin = *row;
    map_put(&ws->forks, uuid_key(&pin->id), pin);
    return pin;
}

void ws_put_fork(struct working_set *ws, const struct fork_pin *row)
{
    if (!ws_knows_fork(ws, &row->id))
        put(ws, row)->row = ROW_CLEAN;
}

void ws_put_absent_fork(struct working_set *ws, const struct uuid *fork_id)
{
    if (!ws_knows_fork(ws, fork_id))
        map_put(&ws->forks, uuid_key(fork_id), ABSENT);
}

struct fork_pin *ws_new_fork(struct working_set *ws, const struct uuid *id)
{
    struct fork_pin *pin = put(ws, &(struct fork_pin){.id = *id, .row = ROW_NEW});

    LIST_ADD(ws->changes.forks, pin);
    return pin;
}

void ws_touch_fork(struct working_set *ws, struct fork_pin *pin)
{
    if (pin->row != ROW_CLEAN)
        return;
    pin->row = ROW_CHANGED;
    LIST_ADD(ws->changes.forks, pin);
}

void ws_add_slice(struct working_set *ws, const struct fork_slice *slice)
{
    if (slice->n_steps + slice->n_events + slice->n_checkpoints > 0)
        LIST_ADD(ws->changes.slices, slice);
}
