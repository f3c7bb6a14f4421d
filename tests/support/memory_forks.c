/* SPDX-License-Identifier: Apache-2.0
 * Forks that are being copied, in the store in memory: what pins their sources, and rows under keys
 * that no execution has yet. */
#include <stdlib.h>

#include "support/memory_store.h"

#include "store/list.h"

const struct fork_pin *memory_pin(const struct memory_store *m, const struct uuid *fork_id)
{
    for (size_t i = 0; i < m->pins.n; i++)
        if (uuid_eq(&m->pins.at[i].id, fork_id))
            return &m->pins.at[i];
    return NULL;
}

static struct memory_slice *find_slice(const struct memory_store *m, int64_t key)
{
    for (size_t i = 0; i < m->slices.n; i++)
        if (m->slices.at[i].key == key)
            return &m->slices.at[i];
    return NULL;
}

const struct memory_slice *memory_slice(const struct memory_store *m, int64_t key)
{
    return find_slice(m, key);
}

static void slice_free(struct memory_store *m, struct memory_slice *slice)
{
    for (size_t i = 0; i < slice->steps.n; i++)
        memory_step_free(slice->steps.at[i]);
    for (size_t i = 0; i < slice->events.n; i++)
        free(slice->events.at[i].body);
    free(slice->steps.at);
    free(slice->events.at);
    *slice = m->slices.at[--m->slices.n];
}

void memory_forks_free(struct memory_store *m)
{
    while (m->slices.n > 0)
        slice_free(m, &m->slices.at[0]);
    free(m->slices.at);
    free(m->pins.at);
}

void memory_forks_load(struct memory_store *m, struct working_set *ws)
{
    for (size_t i = 0; i < ws->need.forks.n; i++) {
        const struct fork_pin *pin = memory_pin(m, &ws->need.forks.at[i]);

        if (pin == NULL)
            ws_put_absent_fork(ws, &ws->need.forks.at[i]);
        else
            ws_put_fork(ws, pin);
    }
}

/* ---- apply ---- */

static char *text(struct str s)
{
    return str_present(s) ? xstrdup(s) : NULL;
}

static const struct memory_step *by_key(const struct memory_store *m, int64_t key)
{
    for (size_t i = 0; i < m->all_steps.n; i++)
        if (m->all_steps.at[i]->key == key)
            return m->all_steps.at[i];
    return NULL;
}

static struct memory_step *copied_step(struct memory_store *m, const struct step_copy *copy)
{
    const struct memory_step *from = by_key(m, copy->payload_key);
    struct memory_step *s = xzalloc(sizeof(*s));

    ASSERT(from != NULL && from->payload_key == 0); /* forks of forks refer to the same row */
    s->key = m->next_key++;
    s->id = copy->id;
    s->kind = copy->kind;
    s->target = xstrdup(copy->target);
    s->args_hash = copy->args_hash;
    s->occurrence = copy->occurrence;
    s->status = copy->status;
    s->idempotency = copy->idempotency;
    s->rule_id = text(copy->rule_id);
    s->affects = text(copy->affects);
    s->usage = copy->usage;
    s->created_at = copy->created_at;
    s->started_at = copy->started_at;
    s->completed_at = copy->completed_at;
    s->payload_key = copy->payload_key;
    s->result = text(str_of(from->result));
    s->error = text(str_of(from->error));
    return s;
}

static void apply_slice(struct memory_store *m, const struct fork_slice *rows)
{
    struct memory_slice *slice = find_slice(m, rows->key);

    if (slice == NULL) {
        list_add(m->slices, (struct memory_slice){.key = rows->key});
        slice = find_slice(m, rows->key);
    }
    for (size_t i = 0; i < rows->n_steps; i++)
        list_add(slice->steps, copied_step(m, &rows->steps[i]));
    for (size_t i = 0; i < rows->n_events; i++) {
        const struct event_copy *e = &rows->events[i];
        struct memory_event_row row = {e->first_seq, e->count, e->occurred_at, xstrdup(e->body),
                                       e->body.n};

        list_add(slice->events, row);
    }
}

static int by_seq(const void *a, const void *b)
{
    const struct memory_event_row *x = a, *y = b;

    return x->first_seq < y->first_seq ? -1 : x->first_seq > y->first_seq;
}

/* What lies under its key is its own from now on. */
static void appear(struct memory_store *m, const struct execution *exec)
{
    struct memory_execution *x = memory_execution(m, &exec->id);
    struct memory_slice *slice = find_slice(m, exec->key);

    if (slice == NULL)
        return;
    for (size_t i = 0; i < slice->steps.n; i++) {
        struct memory_step *s = slice->steps.at[i];

        s->execution_id = x->id;
        map_put(&m->steps, str_make(s->id.b, sizeof(s->id.b)), s);
        list_add(m->all_steps, s);
    }
    for (size_t i = 0; i < slice->events.n; i++)
        list_add(x->events, slice->events.at[i]);
    qsort(x->events.at, x->events.n, sizeof(x->events.at[0]), by_seq);
    slice->steps.n = slice->events.n = 0;
    slice_free(m, slice);
}

static void apply_pin(struct memory_store *m, struct fork_pin *pin)
{
    size_t i = 0;

    while (i < m->pins.n && !uuid_eq(&m->pins.at[i].id, &pin->id))
        i++;
    if (i == m->pins.n) {
        pin->key = m->next_execution++;
        list_add(m->pins, *pin);
    }
    m->pins.at[i].touched_at = pin->touched_at;
    if (pin->gone)
        m->pins.at[i] = m->pins.at[--m->pins.n];
    if (pin->abandoned && find_slice(m, pin->key) != NULL)
        slice_free(m, find_slice(m, pin->key));
}

void memory_forks_apply(struct memory_store *m, struct working_set *ws)
{
    const struct changes *c = &ws->changes;

    for (size_t i = 0; i < c->slices.n; i++)
        apply_slice(m, c->slices.at[i]);
    for (size_t i = 0; i < c->executions.n; i++)
        if (c->executions.at[i]->row == ROW_NEW && c->executions.at[i]->forked)
            appear(m, c->executions.at[i]);
    for (size_t i = 0; i < c->forks.n; i++)
        apply_pin(m, c->forks.at[i]);
}
