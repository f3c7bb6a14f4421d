/* SPDX-License-Identifier: Apache-2.0
 * Resources, checkpoints, and what executions have to do with each other, in the store in memory.
 */
#include <stdlib.h>

#include "support/memory_store.h"

#define ADD(list, value)                                                                           \
    do {                                                                                           \
        if ((list).n == (list).cap) {                                                              \
            (list).cap = (list).cap == 0 ? 8 : (list).cap * 2;                                     \
            (list).at = xrealloc((list).at, (list).cap * sizeof((list).at[0]));                    \
        }                                                                                          \
        (list).at[(list).n++] = (value);                                                           \
    } while (0)

static char *text(struct str s)
{
    return str_present(s) ? xstrdup(s) : NULL;
}

static struct str owned(struct str s)
{
    return str_present(s) ? str_make(xstrdup(s), s.n) : STR_NONE;
}

static void free_text(struct str s)
{
    free((void *)(uintptr_t)s.p);
}

static void free_resource(struct resource *r)
{
    free_text(r->key);
    free_text(r->driver_id);
    free_text(r->configuration);
    free_text(r->binding);
    free_text(r->checkpoint_ref);
    free_text(r->restored_ref);
    free_text(r->writers);
}

void memory_resources_free(struct memory_execution *x)
{
    for (size_t i = 0; i < x->resources.n; i++)
        free_resource(&x->resources.at[i]);
    free(x->resources.at);
    for (size_t i = 0; i < x->checkpoints.n; i++) {
        free(x->checkpoints.at[i].resource);
        free(x->checkpoints.at[i].checkpoint_ref);
    }
    free(x->checkpoints.at);
    buf_free(&x->above);
    free(x->output);
    free(x->failure_reason);
    free(x->restoration);
}

/* ---- load ---- */

static void load_inheritance(struct memory_store *m, struct working_set *ws, const struct uuid *id)
{
    const struct memory_execution *x = memory_execution(m, id);
    size_t n = x == NULL ? 0 : x->resources.n;
    struct resource *rows = arena_array(&ws->arena, struct resource, n + 1);

    for (size_t i = 0; i < n; i++) {
        rows[i] = x->resources.at[i];
        rows[i].key = arena_str(&ws->arena, rows[i].key);
        rows[i].driver_id = arena_str(&ws->arena, rows[i].driver_id);
        rows[i].configuration = arena_str(&ws->arena, rows[i].configuration);
        rows[i].binding = arena_str(&ws->arena, rows[i].binding);
    }
    ws_put_inheritance(ws, id, rows, n);
}

void memory_resources_load(struct memory_store *m, struct working_set *ws)
{
    const struct need *need = &ws->need;

    for (size_t i = 0; i < need->resources.n; i++) {
        const struct memory_execution *x = memory_execution(m, &need->resources.at[i]);

        ws_put_resources(ws, ws_execution(ws, &x->id), x->resources.at, x->resources.n);
    }
    for (size_t i = 0; i < need->inheritances.n; i++)
        load_inheritance(m, ws, &need->inheritances.at[i]);
    for (size_t i = 0; i < need->endings.n; i++) {
        const struct memory_execution *x = memory_execution(m, &need->endings.at[i]);

        if (x != NULL)
            ws_put_ending(ws,
                          &(struct ending){
                              .execution_id = x->id,
                              .output = arena_str(&ws->arena, str_of(x->output)),
                              .failure_reason = arena_str(&ws->arena, str_of(x->failure_reason)),
                          });
    }
}

/* ---- sessions ---- */

static bool in_session(const struct memory_execution *x, struct str name)
{
    return x->session != NULL && str_eq(str_of(x->session), name);
}

/* All executions are in the order of their ids, which is that of their creation. */
static void load_session(struct memory_store *m, struct working_set *ws, struct str name)
{
    struct session row = {.name = name};

    for (size_t i = 0; i < m->all.n; i++) {
        const struct memory_execution *x = m->all.at[i];

        if (!in_session(x, name))
            continue;
        row.used = true;
        if (x->status == EXECUTION_RUNNING || x->status == EXECUTION_BLOCKED)
            row.holder = x->id;
        if (x->status == EXECUTION_PENDING && uuid_is_nil(&row.waiter))
            row.waiter = x->id;
    }
    ws_put_session(ws, &row);
}

static void load_parent(struct memory_store *m, struct working_set *ws,
                        const struct parent_ref *ref)
{
    struct uuid parent = {{0}};

    for (size_t i = 0; i < m->all.n; i++)
        if (in_session(m->all.at[i], ref->session) &&
            str_eq(str_of(m->all.at[i]->agent_id), ref->agent_id) &&
            m->all.at[i]->status == EXECUTION_COMPLETED)
            parent = m->all.at[i]->id;
    ws_put_parent(ws, ref->session, ref->agent_id, &parent);
}

static void load_session_tokens(struct memory_store *m, struct working_set *ws,
                                const struct uuid *id)
{
    const struct memory_execution *own = memory_execution(m, id);
    int64_t sum = 0;

    for (size_t i = 0; i < m->all.n; i++)
        if (own->session != NULL && m->all.at[i] != own &&
            in_session(m->all.at[i], str_of(own->session)))
            sum += m->all.at[i]->tokens;
    ws_put_session_tokens(ws, ws_execution(ws, id), sum);
}

void memory_sessions_load(struct memory_store *m, struct working_set *ws)
{
    const struct need *need = &ws->need;

    for (size_t i = 0; i < need->sessions.n; i++)
        load_session(m, ws, need->sessions.at[i]);
    for (size_t i = 0; i < need->parents.n; i++)
        load_parent(m, ws, &need->parents.at[i]);
    for (size_t i = 0; i < need->session_tokens.n; i++)
        load_session_tokens(m, ws, &need->session_tokens.at[i]);
}

/* ---- apply ---- */

static void apply_execution(struct memory_store *m, const struct execution *exec)
{
    struct memory_execution *x = memory_execution(m, &exec->id);

    if (exec->row == ROW_CLEAN)
        return;
    if (exec->row == ROW_NEW) {
        x->spawned_by = exec->spawned_by;
        x->spawned_step = exec->spawned_step;
        buf_add(&x->above, exec->above);
        x->forked = exec->forked;
        x->has_policy = exec->has_policy;
        x->policy_hash = exec->has_policy ? exec->bundle.hash : (struct hash){{0}};
    }
    if (exec->forking != NULL) {
        x->forked_from = exec->forking->source;
        x->fork_seq = exec->forking->at_seq;
        x->restoration = text(exec->forking->restoration);
    }
    x->awaited = exec->awaited;
    x->spawns = exec->spawns;
    x->suspended = exec->suspended;
    x->owes = exec->owes;
    if (str_present(exec->output)) {
        free(x->output);
        x->output = text(exec->output);
    }
    if (str_present(exec->failure_reason)) {
        free(x->failure_reason);
        x->failure_reason = text(exec->failure_reason);
    }
}

/* The whole row anew; what it had open ends first. */
static void apply_resource(struct memory_store *m, const struct resource_change *change)
{
    const struct resource *r = &change->execution->resources[change->index];
    struct memory_execution *x = memory_execution(m, &change->execution->id);
    struct resource row = *r;

    row.key = owned(r->key);
    row.driver_id = owned(r->driver_id);
    row.configuration = owned(r->configuration);
    row.binding = owned(r->binding);
    row.checkpoint_ref = owned(r->checkpoint_ref);
    row.restored_ref = owned(r->restored_ref);
    row.writers = owned(r->writers);
    if (change->index < x->resources.n) {
        free_resource(&x->resources.at[change->index]);
        x->resources.at[change->index] = row;
    } else {
        ASSERT(change->index == x->resources.n);
        ADD(x->resources, row);
    }
    for (size_t i = 0; r->ended_seq > 0 && i < x->checkpoints.n; i++) {
        struct memory_checkpoint *c = &x->checkpoints.at[i];

        if (c->invalidated_seq == 0 && str_eq(str_of(c->resource), r->key))
            c->invalidated_seq = r->ended_seq;
    }
}

void memory_resources_apply(struct memory_store *m, struct working_set *ws)
{
    const struct changes *c = &ws->changes;

    for (size_t i = 0; i < c->executions.n; i++)
        apply_execution(m, c->executions.at[i]);
    for (size_t i = 0; i < c->resources.n; i++)
        apply_resource(m, &c->resources.at[i]);
    for (size_t i = 0; i < c->checkpoints.n; i++) {
        const struct checkpoint *cp = c->checkpoints.at[i];
        struct memory_execution *x = memory_execution(m, &cp->execution->id);
        struct memory_checkpoint row = {text(cp->resource), text(cp->checkpoint_ref),
                                        cp->generation, cp->covered_seq, cp->invalidated_seq};

        ADD(x->checkpoints, row);
    }
}
