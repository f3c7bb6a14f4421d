/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/lease_board.h"

void lease_board_init(struct lease_board *b)
{
    pthread_mutex_init(&b->lock, NULL);
    b->ends = (struct map){0};
}

void lease_board_free(struct lease_board *b)
{
    map_free(&b->ends);
    pthread_mutex_destroy(&b->lock);
}

static bool is_leased(const struct execution *exec)
{
    return exec->owner == OWNER_WORKING && exec->dispatch != NULL &&
           !execution_status_is_terminal(exec->status);
}

/* The rows themselves remember what is shown of them, so that an unchanged one costs no lock. */
static bool is_shown(const struct execution *exec, int64_t end)
{
    int64_t moved = end - exec->lease_shown;

    if (!is_leased(exec))
        return exec->lease_shown == 0;
    return exec->lease_shown != 0 && moved >= 0 && moved <= exec->dispatch->lease_us / 20;
}

void lease_board_update(struct lease_board *b, struct working_set *ws)
{
    bool locked = false;

    for (size_t i = 0; i < ws->changes.executions.n; i++) {
        struct execution *exec = ws->changes.executions.at[i];
        int64_t end = ws->now.wall_us + (exec->lease_until - ws->now.lease_us);
        struct str key = str_make(exec->id.b, sizeof(exec->id.b));

        if (is_shown(exec, end))
            continue;
        if (!locked)
            pthread_mutex_lock(&b->lock);
        locked = true;
        if (is_leased(exec)) {
            exec->lease_shown = end;
            map_put(&b->ends, key, (void *)(intptr_t)end);
        } else {
            exec->lease_shown = 0;
            map_remove(&b->ends, key);
        }
    }
    if (locked)
        pthread_mutex_unlock(&b->lock);
}

int64_t lease_board_end(struct lease_board *b, const struct uuid *execution_id)
{
    int64_t end;

    pthread_mutex_lock(&b->lock);
    end = (int64_t)(intptr_t)map_get(&b->ends, str_make(execution_id->b, sizeof(execution_id->b)));
    pthread_mutex_unlock(&b->lock);
    return end;
}
