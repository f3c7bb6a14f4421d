/* SPDX-License-Identifier: Apache-2.0
 * The parts of the working set that gate steps: approvals and token buckets. Their rows live in the
 * group's arena: they are asked for seldom, and never outlive a group. */
#include "kernel/working_set_internal.h"

/* ---- naming ---- */

void ws_need_approval(struct working_set *ws, const struct uuid *execution_id,
                      const struct uuid *id)
{
    struct approval_ref ref = {*execution_id, *id};

    if (!ws_knows_approval(ws, id))
        LIST_ADD(ws->need.approvals, ref);
}

void ws_need_pending(struct working_set *ws, const struct uuid *execution_id)
{
    const struct execution *exec = ws_execution(ws, execution_id);

    if (exec == NULL || !exec->pending_known)
        LIST_ADD(ws->need.pending, *execution_id);
}

void ws_need_bucket(struct working_set *ws, struct str key)
{
    struct str copy = arena_str(&ws->arena, key);

    if (!ws_knows_bucket(ws, key))
        LIST_ADD(ws->need.buckets, copy);
}

/* ---- reading ---- */

bool ws_knows_approval(const struct working_set *ws, const struct uuid *id)
{
    return map_get(&ws->approvals, uuid_key(id)) != NULL;
}

struct approval *ws_approval(const struct working_set *ws, const struct uuid *id)
{
    return present(map_get(&ws->approvals, uuid_key(id)));
}

bool ws_knows_bucket(const struct working_set *ws, struct str key)
{
    return map_get(&ws->buckets, key) != NULL;
}

struct bucket *ws_bucket(const struct working_set *ws, struct str key)
{
    return map_get(&ws->buckets, key);
}

/* ---- filling ---- */

static void pending_add(struct working_set *ws, struct approval *approval)
{
    struct execution *exec = approval->execution;
    size_t at = exec->n_pending;

    if (exec->n_pending == exec->cap_pending) {
        size_t cap = exec->cap_pending == 0 ? 4 : exec->cap_pending * 2;
        struct approval **grown = arena_array(&ws->arena, struct approval *, cap);

        if (at > 0)
            memcpy(grown, exec->pending, at * sizeof(grown[0]));
        exec->pending = grown;
        exec->cap_pending = cap;
    }
    /* New rows (key 0) are the youngest. */
    while (approval->key != 0 && at > 0 &&
           (exec->pending[at - 1]->key == 0 || exec->pending[at - 1]->key > approval->key)) {
        exec->pending[at] = exec->pending[at - 1];
        at--;
    }
    exec->pending[at] = approval;
    exec->n_pending++;
}

struct approval *ws_put_approval(struct working_set *ws, const struct approval *row)
{
    struct approval *approval = ws_approval(ws, &row->id);

    if (approval != NULL)
        return approval;
    approval = arena_new(&ws->arena, struct approval);
    *approval = *row;
    approval->approvers = arena_str(&ws->arena, row->approvers);
    approval->message = arena_str(&ws->arena, row->message);
    approval->decided_by = arena_str(&ws->arena, row->decided_by);
    approval->asserted_by = arena_str(&ws->arena, row->asserted_by);
    approval->rationale = arena_str(&ws->arena, row->rationale);
    approval->row = ROW_CLEAN;
    map_put(&ws->approvals, uuid_key(&approval->id), approval);
    ws_join_group(ws, approval->execution); /* whose `pending` must not outlive this arena */
    if (approval->status == APPROVAL_PENDING)
        pending_add(ws, approval);
    return approval;
}

void ws_put_absent_approval(struct working_set *ws, const struct uuid *id)
{
    if (map_get(&ws->approvals, uuid_key(id)) == NULL)
        map_put(&ws->approvals, uuid_key(id), ABSENT);
}

void ws_put_pending_known(struct working_set *ws, struct execution *exec)
{
    exec->pending_known = true;
    ws_join_group(ws, exec);
}

void ws_put_bucket(struct working_set *ws, struct str key, const struct bucket *row)
{
    struct bucket *bucket;

    if (ws_knows_bucket(ws, key))
        return;
    bucket = arena_new(&ws->arena, struct bucket);
    if (row != NULL)
        *bucket = *row;
    bucket->key = arena_str(&ws->arena, key);
    bucket->row = row == NULL ? ROW_NEW : ROW_CLEAN;
    map_put(&ws->buckets, bucket->key, bucket);
}

/* ---- changing ---- */

struct approval *ws_new_approval(struct working_set *ws, struct execution *exec,
                                 const struct uuid *id)
{
    struct approval row = {.id = *id, .execution = exec, .status = APPROVAL_PENDING};
    struct approval *approval = ws_put_approval(ws, &row);

    approval->row = ROW_NEW;
    LIST_ADD(ws->changes.approvals, approval);
    return approval;
}

void ws_touch_approval(struct working_set *ws, struct approval *approval)
{
    ws_join_group(ws, approval->execution);
    if (approval->row != ROW_CLEAN)
        return;
    approval->row = ROW_CHANGED;
    LIST_ADD(ws->changes.approvals, approval);
}

/* A bucket without a row is new from the start; it is written once it has changed. */
void ws_touch_bucket(struct working_set *ws, struct bucket *bucket)
{
    if (bucket->changed)
        return;
    bucket->changed = true;
    if (bucket->row == ROW_CLEAN)
        bucket->row = ROW_CHANGED;
    LIST_ADD(ws->changes.buckets, bucket);
}

void ws_approval_left_pending(struct approval *approval)
{
    struct execution *exec = approval->execution;

    for (size_t i = 0; i < exec->n_pending; i++) {
        if (exec->pending[i] != approval)
            continue;
        memmove(&exec->pending[i], &exec->pending[i + 1],
                (exec->n_pending - i - 1) * sizeof(exec->pending[0]));
        exec->n_pending--;
        return;
    }
}
