/* SPDX-License-Identifier: Apache-2.0
 * Resources, checkpoints, and what outlives an execution's end, in the working set. Resources and
 * their texts are malloc'ed with their execution; all else is the group arena's. */
#include "kernel/working_set_internal.h"

#include <stdlib.h>

/* ---- naming ---- */

void ws_need_resources(struct working_set *ws, const struct uuid *execution_id)
{
    LIST_ADD(ws->need.resources, *execution_id);
}

void ws_need_inheritance(struct working_set *ws, const struct uuid *execution_id)
{
    if (ws_inheritance(ws, execution_id) == NULL)
        LIST_ADD(ws->need.inheritances, *execution_id);
}

void ws_need_ending(struct working_set *ws, const struct uuid *execution_id)
{
    if (ws_ending(ws, execution_id) == NULL)
        LIST_ADD(ws->need.endings, *execution_id);
}

void ws_need_keepers(struct working_set *ws, const struct uuid *execution_id, int64_t cutoff)
{
    struct keepers_ref ref = {*execution_id, cutoff};

    if (ws_keepers(ws, execution_id) == NULL)
        LIST_ADD(ws->need.keepers, ref);
}

/* ---- reading ---- */

const struct inheritance *ws_inheritance(const struct working_set *ws,
                                         const struct uuid *execution_id)
{
    return map_get(&ws->inheritances, uuid_key(execution_id));
}

const struct ending *ws_ending(const struct working_set *ws, const struct uuid *execution_id)
{
    return map_get(&ws->endings, uuid_key(execution_id));
}

const struct keepers *ws_keepers(const struct working_set *ws, const struct uuid *execution_id)
{
    return map_get(&ws->keepers, uuid_key(execution_id));
}

/* ---- filling ---- */

static struct str owned(struct str s)
{
    return str_present(s) ? str_make(xstrdup(s), s.n) : STR_NONE;
}

static void own_texts(struct resource *r)
{
    r->key = owned(r->key);
    r->driver_id = owned(r->driver_id);
    r->configuration = owned(r->configuration);
    r->binding = owned(r->binding);
    r->checkpoint_ref = owned(r->checkpoint_ref);
    r->restored_ref = owned(r->restored_ref);
    r->writers = owned(r->writers);
}

static struct resource *append(struct execution *exec, const struct resource *row)
{
    struct resource *r;

    exec->resources =
        xrealloc(exec->resources, (exec->n_resources + 1) * sizeof(exec->resources[0]));
    r = &exec->resources[exec->n_resources++];
    *r = *row;
    own_texts(r);
    r->ended_seq = 0;
    return r;
}

void ws_put_resources(struct working_set *ws, struct execution *exec, const struct resource *rows,
                      size_t n)
{
    if (exec->resources_known)
        return;
    ASSERT(exec->n_resources == 0);
    for (size_t i = 0; i < n; i++) {
        struct resource *r = append(exec, &rows[i]);

        r->row = ROW_CLEAN;
        r->stored_open = r->covered;
    }
    exec->resources_known = true;
    ws_join_group(ws, exec);
}

void ws_put_inheritance(struct working_set *ws, const struct uuid *execution_id,
                        const struct resource *rows, size_t n)
{
    struct inheritance *found;

    if (ws_inheritance(ws, execution_id) != NULL)
        return;
    found = arena_new(&ws->arena, struct inheritance);
    *found = (struct inheritance){rows, n};
    map_put(&ws->inheritances, uuid_key(execution_id), found);
}

void ws_put_ending(struct working_set *ws, const struct ending *row)
{
    struct ending *copy;

    if (ws_ending(ws, &row->execution_id) != NULL)
        return;
    copy = arena_new(&ws->arena, struct ending);
    *copy = *row;
    map_put(&ws->endings, uuid_key(&copy->execution_id), copy);
}

void ws_put_keepers(struct working_set *ws, const struct keepers *row)
{
    struct keepers *copy;

    if (ws_keepers(ws, &row->execution_id) != NULL)
        return;
    copy = arena_new(&ws->arena, struct keepers);
    *copy = *row;
    map_put(&ws->keepers, uuid_key(&copy->execution_id), copy);
}

/* ---- changing ---- */

void ws_set_text(struct str *text, struct str value)
{
    struct str copy = owned(value);

    free((void *)(uintptr_t)text->p);
    *text = copy;
}

static void list_change(struct working_set *ws, struct execution *exec, struct resource *resource)
{
    struct resource_change change = {exec, (size_t)(resource - exec->resources)};

    ws_join_group(ws, exec);
    LIST_ADD(ws->changes.resources, change);
}

struct resource *ws_new_resource(struct working_set *ws, struct execution *exec,
                                 const struct resource *row)
{
    struct resource *r;

    ASSERT(exec->resources_known);
    r = append(exec, row);
    r->row = ROW_NEW;
    r->stored_open = false;
    exec->n_registered++;
    ws_touch_execution(ws, exec);
    list_change(ws, exec, r);
    return r;
}

void ws_touch_resource(struct working_set *ws, struct execution *exec, struct resource *resource)
{
    if (resource->row != ROW_CLEAN)
        return;
    resource->row = ROW_CHANGED;
    list_change(ws, exec, resource);
}

struct checkpoint *ws_new_checkpoint(struct working_set *ws, struct execution *exec,
                                     const struct checkpoint *row)
{
    struct checkpoint *copy = arena_new(&ws->arena, struct checkpoint);

    *copy = *row;
    copy->execution = exec;
    copy->resource = arena_str(&ws->arena, row->resource);
    copy->checkpoint_ref = arena_str(&ws->arena, row->checkpoint_ref);
    LIST_ADD(ws->changes.checkpoints, copy);
    return copy;
}

void ws_end_checkpoints(struct working_set *ws, struct execution *exec, struct resource *resource,
                        int64_t seq)
{
    for (size_t i = 0; i < ws->changes.checkpoints.n; i++) {
        struct checkpoint *c = ws->changes.checkpoints.at[i];

        if (c->execution == exec && c->invalidated_seq == 0 && str_eq(c->resource, resource->key))
            c->invalidated_seq = seq;
    }
    if (resource->stored_open) {
        resource->stored_open = false;
        resource->ended_seq = seq;
    }
    resource->covered = false;
    ws_touch_resource(ws, exec, resource);
}

void ws_resources_free(struct execution *exec)
{
    for (size_t i = 0; i < exec->n_resources; i++) {
        struct resource *r = &exec->resources[i];

        free((void *)(uintptr_t)r->key.p);
        free((void *)(uintptr_t)r->driver_id.p);
        free((void *)(uintptr_t)r->configuration.p);
        free((void *)(uintptr_t)r->binding.p);
        free((void *)(uintptr_t)r->checkpoint_ref.p);
        free((void *)(uintptr_t)r->restored_ref.p);
        free((void *)(uintptr_t)r->writers.p);
    }
    free(exec->resources);
    exec->resources = NULL;
    exec->n_resources = 0;
}

void ws_resources_end_group(struct execution *exec)
{
    for (size_t i = 0; i < exec->n_resources; i++) {
        struct resource *r = &exec->resources[i];

        r->row = ROW_CLEAN;
        r->ended_seq = 0;
        r->stored_open = r->covered;
    }
}

/* ---- what follows an end ---- */

void ws_unlink(struct working_set *ws, struct execution *exec)
{
    ws_join_group(ws, exec);
    LIST_ADD(ws->changes.unlinked, exec);
}

void ws_add_chunks(struct working_set *ws, struct chunks *chunks)
{
    LIST_ADD(ws->changes.chunks, chunks);
}

void ws_owe(struct working_set *ws, const struct execution *child)
{
    struct owed row = {child->id, child->spawned_by, child->spawned_step};

    LIST_ADD(ws->changes.owed, row);
}

void ws_orphan(struct working_set *ws, const struct execution *exec)
{
    LIST_ADD(ws->changes.orphaned, exec->id);
}
