/* SPDX-License-Identifier: Apache-2.0 */
#include "support/memory_store.h"

#include <stdlib.h>

#define ADD(list, value)                                                                           \
    do {                                                                                           \
        if ((list).n == (list).cap) {                                                              \
            (list).cap = (list).cap == 0 ? 8 : (list).cap * 2;                                     \
            (list).at = xrealloc((list).at, (list).cap * sizeof((list).at[0]));                    \
        }                                                                                          \
        (list).at[(list).n++] = (value);                                                           \
    } while (0)

static struct str uuid_str(const struct uuid *id)
{
    return str_make(id->b, sizeof(id->b));
}

static struct str hash_str(const struct hash *h)
{
    return str_make(h->b, sizeof(h->b));
}

void memory_store_init(struct memory_store *m, bool leases_in_set)
{
    *m = (struct memory_store){.leases_in_set = leases_in_set, .next_key = 1, .next_execution = 1};
    m->wall_us = INT64_C(1800000000000000);
    m->mono_us = m->set_since = INT64_C(5000000);
}

static void agent_free(struct agent *agent)
{
    free((void *)(uintptr_t)agent->id.p);
    free((void *)(uintptr_t)agent->webhook_url.p);
    free((void *)(uintptr_t)agent->secret.p);
    free(agent);
}

void memory_step_free(struct memory_step *step)
{
    free(step->target);
    free(step->result);
    free(step->error);
    free(step->rule_id);
    free(step->affects);
    free(step);
}

void memory_store_free(struct memory_store *m)
{
    void *v;

    for (size_t i = 0; i < m->all.n; i++) {
        struct memory_execution *x = m->all.at[i];

        for (size_t j = 0; j < x->events.n; j++)
            free(x->events.at[j].body);
        free(x->events.at);
        free(x->submissions.at);
        free(x->old_dispatches.at);
        free(x->agent_id);
        free(x->session);
        buf_free(&x->indeterminate);
        buf_free(&x->parked);
        memory_resources_free(x);
        free(x);
    }
    for (size_t i = 0; i < m->all_steps.n; i++)
        memory_step_free(m->all_steps.at[i]);
    memory_forks_free(m);
    for (size_t i = 0; i < m->approvals.n; i++) {
        struct memory_approval *a = m->approvals.at[i];

        free(a->approvers);
        free(a->message);
        free(a->decided_by);
        free(a->asserted_by);
        free(a->rationale);
        free(a);
    }
    free(m->approvals.at);
    for (size_t i = 0; (v = map_next(&m->buckets, &i)) != NULL;)
        free(v);
    map_free(&m->buckets);
    for (size_t i = 0; (v = map_next(&m->request_keys, &i)) != NULL;)
        free(v);
    for (size_t i = 0; (v = map_next(&m->agents, &i)) != NULL;)
        agent_free(v);
    free(m->all.at);
    free(m->all_steps.at);
    map_free(&m->executions);
    map_free(&m->steps);
    map_free(&m->request_keys);
    map_free(&m->agents);
}

struct memory_execution *memory_execution(struct memory_store *m, const struct uuid *id)
{
    return map_get(&m->executions, uuid_str(id));
}

struct memory_step *memory_step(struct memory_store *m, const struct hash *id)
{
    return map_get(&m->steps, hash_str(id));
}

struct memory_approval *memory_approval(struct memory_store *m, const struct uuid *id)
{
    for (size_t i = 0; i < m->approvals.n; i++)
        if (uuid_eq(&m->approvals.at[i]->id, id))
            return m->approvals.at[i];
    return NULL;
}

void memory_store_forget(struct memory_store *m, struct working_set *ws)
{
    ws_clear(ws);
    m->set_since = m->mono_us;
}

/* ---- load ---- */

/* Like SQLite's: of an ended delivery whose row has left the set, the counts are gone. */
static void load_counts(struct execution *exec, const struct memory_execution *x)
{
    exec->counts_lost = x->owner == OWNER_ENDED;
    if (exec->counts_lost)
        return;
    for (size_t i = 0; i < x->submissions.n; i++) {
        const struct submission *s = &x->submissions.at[i];

        if (s->claim != x->claim)
            continue;
        ws_put_tally(exec, &s->call, s->count);
        if (s->has_key)
            ws_put_submission_key(exec, s->key, &s->call, &s->step_id);
    }
}

static void load_execution(struct memory_store *m, struct working_set *ws, const struct uuid *id)
{
    const struct memory_execution *x = memory_execution(m, id);
    struct execution row = {0};
    struct execution *exec;

    if (x == NULL) {
        ws_put_absent_execution(ws, id);
        return;
    }
    if (ws_execution(ws, id) != NULL)
        return;
    row.key = x->key;
    row.id = x->id;
    row.agent_id = str_of(x->agent_id);
    row.session = str_of(x->session);
    row.parent = x->parent;
    row.status = x->status;
    row.last_seq = x->last_seq;
    row.created_at = x->created_at;
    row.deadline_at = x->deadline_at;
    row.claim = x->claim;
    row.owner = x->owner;
    row.owner_dispatch = x->owner_dispatch;
    row.owner_attempt = x->owner_attempt;
    row.owner_lease_us = x->owner_lease_us;
    row.tokens = x->tokens;
    row.lease_until = x->lease_until;
    if (m->leases_in_set)
        row.lease_until = (x->owner == OWNER_ENDED ? m->set_since : m->mono_us) + x->owner_lease_us;
    row.indeterminate = x->indeterminate;
    row.parked = x->parked;
    row.awaited = x->awaited;
    row.spawns = x->spawns;
    row.suspended = x->suspended;
    row.owes = x->owes;
    row.forked = x->forked;
    row.has_policy = x->has_policy;
    row.bundle.hash = x->policy_hash;
    row.spawned_by = x->spawned_by;
    row.spawned_step = x->spawned_step;
    row.above = x->above.n > 0 ? buf_str(&x->above) : STR_NONE;
    row.n_registered = (int64_t)x->resources.n;
    row.tallies_complete = m->leases_in_set;
    exec = ws_put_execution(ws, &row, x->has_dispatch ? &x->dispatch : NULL);
    if (m->leases_in_set)
        load_counts(exec, x);
}

static void load_step(struct memory_store *m, struct working_set *ws, const struct memory_step *s)
{
    struct step row = {0};

    (void)m;
    row.key = s->key;
    row.id = s->id;
    row.execution = ws_execution(ws, &s->execution_id);
    row.kind = s->kind;
    row.target = str_of(s->target);
    row.args_hash = s->args_hash;
    row.occurrence = s->occurrence;
    row.status = s->status;
    row.idempotency = s->idempotency;
    row.claim = s->claim;
    row.affects = str_of(s->affects);
    row.subagent = s->subagent;
    row.usage = s->usage;
    row.result = arena_str(&ws->arena, str_of(s->result));
    row.error = arena_str(&ws->arena, str_of(s->error));
    row.rule_id = arena_str(&ws->arena, str_of(s->rule_id));
    ws_put_step(ws, &row);
}

static void load_tally(struct memory_store *m, struct working_set *ws, const struct tally_ref *ref)
{
    const struct memory_execution *x = memory_execution(m, &ref->execution_id);
    struct execution *exec = ws_execution(ws, &ref->execution_id);
    int64_t count = 0;
    bool keyed = false;

    if (x == NULL || ws_knows_tally(exec, ref))
        return;
    for (size_t i = 0; i < x->submissions.n; i++) {
        const struct submission *s = &x->submissions.at[i];

        if (s->claim != x->claim)
            continue;
        if (memcmp(s->call.b, ref->call.b, sizeof(s->call.b)) == 0 && s->count > count)
            count = s->count;
        if (ref->has_key && s->has_key && memcmp(s->key, ref->key, sizeof(s->key)) == 0) {
            ws_put_submission_key(exec, s->key, &s->call, &s->step_id);
            keyed = true;
        }
    }
    ws_put_tally(exec, &ref->call, count);
    if (ref->has_key && !keyed)
        ws_put_absent_submission_key(exec, ref->key);
}

static void load_live(struct memory_store *m, struct working_set *ws, const struct uuid *id)
{
    struct execution *exec = ws_execution(ws, id);

    for (size_t i = 0; i < m->all_steps.n; i++)
        if (uuid_eq(&m->all_steps.at[i]->execution_id, id) &&
            !step_status_is_terminal(m->all_steps.at[i]->status))
            load_step(m, ws, m->all_steps.at[i]);
    exec->live_known = true;
}

static void load_dispatch(struct memory_store *m, struct working_set *ws, const struct uuid *id)
{
    for (size_t i = 0; i < m->all.n; i++) {
        const struct memory_execution *x = m->all.at[i];
        bool here = x->has_dispatch && uuid_eq(&x->dispatch.id, id);

        for (size_t j = 0; j < x->old_dispatches.n; j++)
            here |= uuid_eq(&x->old_dispatches.at[j], id);
        if (here) {
            ws_put_dispatch(ws, id, &x->id);
            return;
        }
    }
    ws_put_dispatch(ws, id, NULL);
}

static void load_agent(struct memory_store *m, struct working_set *ws, const struct agent_ref *ref)
{
    const struct agent *agent = map_get(&m->agents, ref->id);
    struct agent row;

    if (agent == NULL) {
        ws_put_absent_agent(ws, ref->id);
        return;
    }
    row = *agent;
    row.live_known = row.kept = true;
    row.has_live = false;
    for (size_t i = 0; i < m->all.n; i++)
        row.has_live |= str_eq(str_of(m->all.at[i]->agent_id), ref->id) &&
                        !execution_status_is_terminal(m->all.at[i]->status);
    ws_put_agent(ws, &row);
}

static void load_approval(struct working_set *ws, const struct memory_approval *a)
{
    const struct approval row = {.key = a->key,
                                 .id = a->id,
                                 .execution = ws_execution(ws, &a->execution_id),
                                 .step_id = a->step_id,
                                 .status = a->status,
                                 .approvers = str_of(a->approvers),
                                 .message = str_of(a->message),
                                 .decided_by = str_of(a->decided_by),
                                 .asserted_by = str_of(a->asserted_by),
                                 .rationale = str_of(a->rationale),
                                 .created_at = a->created_at,
                                 .timeout_at = a->timeout_at,
                                 .decided_at = a->decided_at};

    ws_put_approval(ws, &row);
}

static void load_gates(struct memory_store *m, struct working_set *ws)
{
    const struct need *need = &ws->need;

    for (size_t i = 0; i < need->approvals.n; i++) {
        const struct memory_approval *a = memory_approval(m, &need->approvals.at[i].id);

        if (a != NULL && uuid_eq(&a->execution_id, &need->approvals.at[i].execution_id))
            load_approval(ws, a);
        else
            ws_put_absent_approval(ws, &need->approvals.at[i].id);
    }
    for (size_t i = 0; i < need->pending.n; i++) {
        for (size_t j = 0; j < m->approvals.n; j++)
            if (uuid_eq(&m->approvals.at[j]->execution_id, &need->pending.at[i]) &&
                m->approvals.at[j]->status == APPROVAL_PENDING)
                load_approval(ws, m->approvals.at[j]);
        if (ws_execution(ws, &need->pending.at[i]) != NULL)
            ws_put_pending_known(ws, ws_execution(ws, &need->pending.at[i]));
    }
    for (size_t i = 0; i < need->buckets.n; i++) {
        const struct memory_bucket *b = map_get(&m->buckets, need->buckets.at[i]);
        struct bucket row = {.full_at = b == NULL ? 0 : b->full_at,
                             .unreadable = b != NULL && b->unreadable};

        ws_put_bucket(ws, need->buckets.at[i], b == NULL ? NULL : &row);
    }
}

void memory_store_load(struct memory_store *m, struct working_set *ws)
{
    struct need *need = &ws->need;
    struct buf key = {0};

    ws->now = (struct now){m->wall_us, m->leases_in_set ? m->mono_us : m->wall_us};
    for (size_t i = 0; i < need->agents.n; i++)
        load_agent(m, ws, &need->agents.at[i]);
    for (size_t i = 0; i < need->executions.n; i++)
        load_execution(m, ws, &need->executions.at[i]);
    for (size_t i = 0; i < need->request_keys.n; i++) {
        const struct request_key_ref *ref = &need->request_keys.at[i];

        buf_clear(&key);
        buf_printf(&key, "%.*s/%.*s", STR_ARG(ref->agent_id), STR_ARG(ref->idempotency_key));
        ws_put_request_key(ws, ref->agent_id, ref->idempotency_key,
                           map_get(&m->request_keys, buf_str(&key)));
    }
    for (size_t i = 0; i < need->tallies.n; i++)
        load_tally(m, ws, &need->tallies.at[i]);
    for (size_t i = 0; i < need->steps.n; i++) {
        const struct memory_step *s = memory_step(m, &need->steps.at[i].step_id);

        if (s == NULL || !uuid_eq(&s->execution_id, &need->steps.at[i].execution_id))
            ws_put_absent_step(ws, &need->steps.at[i].step_id);
        else
            load_step(m, ws, s);
    }
    for (size_t i = 0; i < need->live_steps.n; i++)
        load_live(m, ws, &need->live_steps.at[i]);
    for (size_t i = 0; i < need->dispatches.n; i++)
        load_dispatch(m, ws, &need->dispatches.at[i]);
    load_gates(m, ws);
    memory_sessions_load(m, ws);
    memory_resources_load(m, ws);
    memory_forks_load(m, ws);
    ws_clear_needs(ws);
    buf_free(&key);
}

/* ---- apply ---- */

static char *text(struct str s)
{
    return str_present(s) ? xstrdup(s) : NULL;
}

static void apply_agent(struct memory_store *m, const struct agent *agent)
{
    struct agent *old = map_remove(&m->agents, agent->id);
    struct agent *row;

    if (old != NULL)
        agent_free(old);
    if (agent->removed)
        return;
    row = xzalloc(sizeof(*row));
    row->id = str_of(xstrdup(agent->id));
    row->webhook_url = str_of(xstrdup(agent->webhook_url));
    row->secret = str_of(xstrdup(agent->secret));
    row->lease_timeout_us = agent->lease_timeout_us;
    row->has_policy = agent->has_policy;
    row->policy_hash = agent->policy_hash;
    map_put(&m->agents, row->id, row);
}

static void apply_execution(struct memory_store *m, struct execution *exec)
{
    struct memory_execution *x = memory_execution(m, &exec->id);
    struct buf key = {0};

    if (x == NULL) {
        x = xzalloc(sizeof(*x));
        if (exec->key == 0) /* a fork brings that of its pin */
            exec->key = m->next_execution++;
        x->key = exec->key;
        x->id = exec->id;
        x->agent_id = xstrdup(exec->agent_id);
        x->session = text(exec->session);
        x->created_at = exec->created_at;
        x->deadline_at = exec->deadline_at;
        map_put(&m->executions, uuid_str(&x->id), x);
        ADD(m->all, x);
        if (str_present(exec->idempotency_key)) {
            struct uuid *id = xmalloc(sizeof(*id));

            *id = exec->id;
            buf_printf(&key, "%.*s/%.*s", STR_ARG(exec->agent_id), STR_ARG(exec->idempotency_key));
            map_put(&m->request_keys, buf_str(&key), id);
            buf_free(&key);
        }
    }
    x->lease_until = exec->lease_until;
    if (exec->row == ROW_CLEAN)
        return; /* only the lease was renewed */
    x->status = exec->status;
    x->claim = exec->claim;
    x->parent = exec->parent;
    x->owner = exec->owner;
    x->owner_dispatch = exec->owner_dispatch;
    x->owner_attempt = exec->owner_attempt;
    x->owner_lease_us = exec->owner_lease_us;
    x->tokens = exec->tokens;
    buf_clear(&x->parked);
    buf_add(&x->parked, buf_str(&exec->parked));
    buf_clear(&x->indeterminate);
    buf_add(&x->indeterminate, buf_str(&exec->indeterminate));
}

static void apply_step(struct memory_store *m, struct step *step)
{
    struct memory_step *s = memory_step(m, &step->id);

    if (s == NULL) {
        s = xzalloc(sizeof(*s));
        s->key = step->key = m->next_key++;
        s->id = step->id;
        s->execution_id = step->execution->id;
        s->kind = step->kind;
        s->target = xstrdup(step->target);
        s->args_hash = step->args_hash;
        s->occurrence = step->occurrence;
        s->idempotency = step->idempotency;
        s->created_at = step->created_at;
        map_put(&m->steps, hash_str(&s->id), s);
        ADD(m->all_steps, s);
    }
    s->status = step->status;
    s->claim = step->claim;
    s->started_at = step->started_at;
    s->completed_at = step->completed_at;
    s->subagent = step->subagent;
    s->usage = step->usage;
    free(s->affects);
    s->affects = text(step->affects);
    if (str_present(step->rule_id)) {
        free(s->rule_id);
        s->rule_id = text(step->rule_id);
    }
    if (step_status_is_terminal(step->status)) {
        free(s->result);
        free(s->error);
        s->result = text(step->result);
        s->error = text(step->error);
    }
}

static void replace(char **at, struct str value)
{
    free(*at);
    *at = text(value);
}

static void apply_approval(struct memory_store *m, struct approval *approval)
{
    struct memory_approval *a = memory_approval(m, &approval->id);

    if (a == NULL) {
        a = xzalloc(sizeof(*a));
        a->key = approval->key = m->next_key++;
        a->id = approval->id;
        a->execution_id = approval->execution->id;
        a->step_id = approval->step_id;
        a->created_at = approval->created_at;
        a->timeout_at = approval->timeout_at;
        ADD(m->approvals, a);
    }
    a->status = approval->status;
    a->decided_at = approval->decided_at;
    replace(&a->approvers, approval->approvers);
    replace(&a->message, approval->message);
    replace(&a->decided_by, approval->decided_by);
    replace(&a->asserted_by, approval->asserted_by);
    replace(&a->rationale, approval->rationale);
}

static void apply_bucket(struct memory_store *m, const struct bucket *bucket)
{
    struct memory_bucket *b = map_get(&m->buckets, bucket->key);

    if (b == NULL) {
        b = xzalloc(sizeof(*b));
        map_put(&m->buckets, bucket->key, b);
    }
    b->full_at = bucket->full_at;
}

void memory_store_apply(struct memory_store *m, struct working_set *ws)
{
    struct changes *c = &ws->changes;

    for (size_t i = 0; i < c->agents.n; i++)
        apply_agent(m, c->agents.at[i]);
    for (size_t i = 0; i < c->executions.n; i++)
        apply_execution(m, c->executions.at[i]);
    for (size_t i = 0; i < c->retired.n; i++)
        for (size_t j = 0; j < m->all.n; j++)
            if (m->all.at[j]->has_dispatch &&
                uuid_eq(&m->all.at[j]->dispatch.id, &c->retired.at[i]->id)) {
                ADD(m->all.at[j]->old_dispatches, c->retired.at[i]->id);
                m->all.at[j]->has_dispatch = false;
            }
    for (size_t i = 0; i < c->dispatches.n; i++) {
        struct memory_execution *x = memory_execution(m, &c->dispatches.at[i]->id);

        if (c->dispatches.at[i]->dispatch == NULL)
            continue;
        x->has_dispatch = true;
        x->dispatch = *c->dispatches.at[i]->dispatch;
    }
    for (size_t i = 0; i < c->steps.n; i++)
        apply_step(m, c->steps.at[i]);
    for (size_t i = 0; i < c->approvals.n; i++)
        apply_approval(m, c->approvals.at[i]);
    for (size_t i = 0; i < c->buckets.n; i++)
        apply_bucket(m, c->buckets.at[i]);
    for (size_t i = 0; i < c->transitions.n; i++) {
        const struct transition *t = c->transitions.at[i];
        struct memory_execution *x = memory_execution(m, &t->execution->id);
        struct memory_event_row row = {t->first_seq, t->count, t->occurred_at, xmalloc(t->body.n),
                                       t->body.n};

        memcpy(row.body, t->body.p, t->body.n);
        ADD(x->events, row);
        x->last_seq = t->first_seq + t->count - 1;
    }
    memory_resources_apply(m, ws);
    memory_forks_apply(m, ws);
    for (size_t i = 0; i < c->submissions.n; i++) {
        struct memory_execution *x = memory_execution(m, &c->submissions.at[i].execution->id);
        struct submission row = c->submissions.at[i];

        row.execution = NULL;
        ADD(x->submissions, row);
    }
}
