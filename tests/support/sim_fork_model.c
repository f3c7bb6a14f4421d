/* SPDX-License-Identifier: Apache-2.0
 * What a fork must be, by the specification's words, worked out from the source's log anew: what is
 * copied, what its resources are restored from, and which events their checkpoints cover there. */
#include "support/sim.h"

#include "base/json.h"

/* The fork's log as it must be, and where the source's events went. */
struct model {
    struct sim *s;
    int source, fork;
    int64_t at_seq;
    int64_t at;           /* events of the fork's log checked so far */
    LIST(int64_t) copied; /* their sequences in the source; the first stands at 3 in the fork */
    int order[KEYS];      /* resources registered by then, by order of registration */
    int n_resources;
    struct log_resource resources[KEYS]; /* as they begin */
    bool covered[KEYS];
    int64_t checkpoint_seq[KEYS]; /* in whose log; 0: none */
};

static const struct log_event *next_event(struct model *m, enum event_type type)
{
    const struct log *log = &m->s->x[m->fork].log;
    const struct log_event *e = &log->events.at[m->at];

    GUARANTEE(m->s, m->at < (int64_t)log->events.n && e->type == type,
              "event %lld of the fork is %.*s, not %.*s", (long long)m->at + 1,
              STR_ARG(event_type_name(e->type)), STR_ARG(event_type_name(type)));
    m->at++;
    return e;
}

/* ---- steps and events ---- */

static bool is_settled(const struct log_step *step, int64_t at_seq)
{
    return step->settled_seq != 0 && step->settled_seq <= at_seq && step->status != STEP_CANCELLED;
}

static struct hash new_id(const struct model *m, const struct memory_step *row)
{
    struct call call = {step_kind_name(row->kind), str_of(row->target), row->args_hash};
    struct hash id;

    step_id(&m->s->x[m->fork].id, &call, row->occurrence, &id);
    return id;
}

static bool same(const char *a, const char *b)
{
    return a == b || (a != NULL && b != NULL && strcmp(a, b) == 0);
}

static void check_step(struct model *m, const struct log_step *step)
{
    const struct memory_step *row = memory_step(&m->s->m, &step->id), *copy;
    struct hash id = new_id(m, row);

    copy = memory_step(&m->s->m, &id);
    GUARANTEE(m->s, copy != NULL && uuid_eq(&copy->execution_id, &m->s->x[m->fork].id),
              "a settled step was not copied");
    GUARANTEE(m->s,
              copy->status == row->status && copy->idempotency == row->idempotency &&
                  same(copy->result, row->result) && same(copy->error, row->error) &&
                  same(copy->rule_id, row->rule_id) && same(copy->affects, row->affects) &&
                  copy->usage.input_tokens == row->usage.input_tokens &&
                  copy->usage.output_tokens == row->usage.output_tokens &&
                  uuid_is_nil(&copy->subagent),
              "a copied step is another one");
}

static void check_steps(struct model *m)
{
    const struct shadow *source = &m->s->x[m->source];
    size_t want = 0, found = 0;

    for (size_t i = 0; i < source->log.steps.n; i++) {
        if (!is_settled(&source->log.steps.at[i], m->at_seq))
            continue;
        check_step(m, &source->log.steps.at[i]);
        want++;
    }
    for (size_t i = 0; i < m->s->m.all_steps.n; i++)
        found += uuid_eq(&m->s->m.all_steps.at[i]->execution_id, &m->s->x[m->fork].id);
    GUARANTEE(m->s, want == found, "%zu steps were copied, not %zu", found, want);
}

static bool is_copied(struct model *m, const struct log_event *e)
{
    struct shadow *source = &m->s->x[m->source];
    const struct log_step *step = e->has_step ? log_step(source, &e->step) : NULL;

    return e->type == EVENT_RESOURCE_REGISTERED || e->type == EVENT_RESOURCE_INITIALIZED ||
           (step != NULL && is_settled(step, m->at_seq));
}

static void check_copy(struct model *m, const struct log_event *from)
{
    const struct log_event *to = next_event(m, from->type);
    char *want = xstrdup(str_of(from->payload));
    struct hash id;
    char was[HASH_HEX_LEN], is[HASH_HEX_LEN];
    char *place;

    if (from->has_step) {
        id = new_id(m, memory_step(&m->s->m, &from->step));
        hash_hex(&from->step, was);
        hash_hex(&id, is);
        place = memmem(want, strlen(want), was, sizeof(was));
        GUARANTEE(m->s, place != NULL, "an event without its step: %s", want);
        memcpy(place, is, sizeof(is));
    }
    GUARANTEE(m->s, strcmp(to->payload, want) == 0, "copied as %s, not %s", to->payload, want);
    GUARANTEE(m->s, to->occurred_at == from->occurred_at, "copied with another time");
    free(want);
}

static void check_events(struct model *m)
{
    const struct log *log = &m->s->x[m->source].log;

    for (int64_t seq = 1; seq <= m->at_seq; seq++) {
        const struct log_event *e = &log->events.at[seq - 1];

        if (!is_copied(m, e))
            continue;
        check_copy(m, e);
        list_add(m->copied, seq);
    }
}

/* ---- where checkpoints land ---- */

static int64_t fork_seq(size_t nth)
{
    return (int64_t)nth + 3;
}

/* The last copied event at or before it. */
static int64_t map_covered(const struct model *m, int64_t seq)
{
    size_t n = 0;

    while (n < m->copied.n && m->copied.at[n] <= seq)
        n++;
    GUARANTEE(m->s, n > 0, "a checkpoint before anything was copied");
    return fork_seq(n - 1);
}

/* The first copied event at or after it; -1: the start. 0: it is open. */
static int64_t map_invalidated(const struct model *m, int64_t seq)
{
    if (seq == 0 || seq > m->at_seq)
        return 0;
    for (size_t n = 0; n < m->copied.n; n++)
        if (m->copied.at[n] >= seq)
            return fork_seq(n);
    return -1;
}

static void map_checkpoints(struct model *m, int k)
{
    const struct log_resource *from = &m->s->x[m->source].log.resources[k];
    struct log_resource *to = &m->resources[k];

    for (size_t i = 0; i < from->checkpoints.n; i++) {
        struct log_checkpoint c = from->checkpoints.at[i];

        if (c.covered_seq > m->at_seq)
            continue;
        c.covered_seq = map_covered(m, c.covered_seq);
        c.invalidated_seq = map_invalidated(m, c.invalidated_seq);
        if (to->checkpoints.n > 0 &&
            to->checkpoints.at[to->checkpoints.n - 1].covered_seq == c.covered_seq)
            to->checkpoints.at[to->checkpoints.n - 1] = c;
        else
            list_add(to->checkpoints, c);
    }
}

/* ---- restoring ---- */

static const struct log_checkpoint *pick(const struct log_resource *r, int64_t at_seq,
                                         bool *covered)
{
    const struct log_checkpoint *older = NULL, *covering = NULL;

    for (size_t i = 0; i < r->checkpoints.n; i++) {
        const struct log_checkpoint *c = &r->checkpoints.at[i];

        if (c->covered_seq > at_seq)
            continue;
        older = c;
        if (c->invalidated_seq == 0 || c->invalidated_seq > at_seq)
            covering = c;
    }
    *covered = covering != NULL;
    return covering != NULL ? covering : older;
}

/* Of what a turn inherited and did not capture itself: the newest of the turns before. */
static void restore_from_turns(struct model *m, int k)
{
    struct sim *s = m->s;
    struct log_resource *to = &m->resources[k];
    struct uuid at = memory_execution(&s->m, &s->x[m->source].id)->parent;

    while (!uuid_is_nil(&at)) {
        int turn = sim_index(s, &at);
        const struct log_resource *r = &s->x[turn].log.resources[k];

        if (r->checkpoints.n > 0) {
            to->restored_from = turn;
            to->restored_ref = to->ref = r->checkpoints.at[r->checkpoints.n - 1].ref;
            m->checkpoint_seq[k] = r->checkpoints.at[r->checkpoints.n - 1].covered_seq;
            return;
        }
        at = memory_execution(&s->m, &at)->parent;
    }
}

static void restore(struct model *m, int k)
{
    const struct log_resource *from = &m->s->x[m->source].log.resources[k];
    struct log_resource *to = &m->resources[k];
    const struct log_checkpoint *c = pick(from, m->at_seq, &m->covered[k]);
    int64_t highest = 0;

    if (c != NULL) {
        to->ref = c->ref;
        m->checkpoint_seq[k] = c->covered_seq;
        highest = m->covered[k] ? c->generation : 0;
    } else if (from->inherited) {
        restore_from_turns(m, k);
    } else if (from->restored_ref != NULL) { /* a fork, and so its source was restored from */
        to->ref = to->restored_ref = from->restored_ref;
        to->restored_from = from->restored_from;
    }
    for (size_t i = 0; i < m->copied.n; i++) {
        const struct log_event *e = &m->s->x[m->source].log.events.at[m->copied.at[i] - 1];
        int64_t at = e->type == EVENT_STEP_EXECUTING                        ? e->generations[k]
                     : e->type == EVENT_RESOURCE_INITIALIZED && e->key == k ? e->generation
                                                                            : 0;

        highest = at > highest ? at : highest;
    }
    to->generation = m->covered[k] ? highest : highest + 1;
}

/* Of the copied steps, those that have settled and affect it. */
static int64_t count(const struct model *m, int k)
{
    const struct log *log = &m->s->x[m->source].log;
    int64_t n = 0;

    for (size_t i = 0; i < log->steps.n; i++)
        n += is_settled(&log->steps.at[i], m->at_seq) && log->steps.at[i].status != STEP_DENIED &&
             (log->steps.at[i].affected >> k & 1);
    return n;
}

/* As the copied events say. */
static void note_registration(struct model *m, int k)
{
    struct sim *s = m->s;
    struct log_resource *to = &m->resources[k];

    to->restored_from = -1;
    for (size_t i = 0; i < m->copied.n; i++) {
        const struct log_event *e = &s->x[m->source].log.events.at[m->copied.at[i] - 1];
        struct str text = str_of(e->payload);

        if (e->type != EVENT_RESOURCE_REGISTERED || e->key != k)
            continue;
        if (!to->registered)
            to->registered_seq = fork_seq(i);
        to->registered = true;
        assert_true(json_int64(json_get(text, STR("every_steps"), &s->arena), &to->every));
        to->on_completion = str_eq(json_get(text, STR("on_completion"), &s->arena), STR("true"));
    }
}

static void work_out_resources(struct model *m)
{
    for (int k = 0; k < KEYS; k++) {
        int at;

        note_registration(m, k);
        GUARANTEE(m->s,
                  m->resources[k].registered ==
                      (m->s->x[m->source].log.resources[k].registered &&
                       m->s->x[m->source].log.resources[k].registered_seq <= m->at_seq),
                  "%s: registered by then or not", RESOURCES[k].key);
        if (!m->resources[k].registered)
            continue;
        restore(m, k);
        m->resources[k].count = count(m, k);
        map_checkpoints(m, k);
        for (at = m->n_resources++; at > 0 && m->resources[m->order[at - 1]].registered_seq >
                                                  m->resources[k].registered_seq;
             at--)
            m->order[at] = m->order[at - 1];
        m->order[at] = k;
    }
}

/* ---- what the fork's log begins with ---- */

static struct str get(struct model *m, const struct log_event *e, const char *name)
{
    return json_get(str_of(e->payload), str_of(name), &m->s->arena);
}

static bool is_text(struct model *m, struct str json, const char *want)
{
    if (want == NULL)
        return !str_present(json);
    return str_present(json) && str_eq(json_string(json, &m->s->arena), str_of(want));
}

static bool is_number(struct str json, int64_t want)
{
    int64_t n = 0;

    return want == 0 ? !str_present(json) : json_int64(json, &n) && n == want;
}

static void check_restoration(struct model *m, struct str all)
{
    struct json_walk walk = {0};
    struct json_member one;
    int n = 0;

    while (str_present(all) && json_next_member(all, &walk, &m->s->arena, &one)) {
        int k = resource_index(one.key);
        const struct log_resource *r = &m->resources[k];
        char from[UUID_TEXT_LEN + 1] = "";

        n++;
        if (r->restored_from >= 0)
            uuid_format(&m->s->x[r->restored_from].id, from);
        GUARANTEE(m->s,
                  is_text(m, json_get(one.value, STR("checkpoint_ref"), &m->s->arena), r->ref) &&
                      is_number(json_get(one.value, STR("checkpoint_seq"), &m->s->arena),
                                m->checkpoint_seq[k]) &&
                      str_eq(json_get(one.value, STR("covered"), &m->s->arena),
                             m->covered[k] ? STR("true") : STR("false")) &&
                      is_text(m, json_get(one.value, STR("checkpoint_execution_id"), &m->s->arena),
                              from[0] == '\0' ? NULL : from),
                  "%s restored from %.*s, not %s at %lld", RESOURCES[k].key, STR_ARG(one.value),
                  r->ref == NULL ? "nothing" : r->ref, (long long)m->checkpoint_seq[k]);
    }
    GUARANTEE(m->s, n == m->n_resources, "%d resources restored, not %d", n, m->n_resources);
}

static void check_head(struct model *m)
{
    const struct memory_execution *source = memory_execution(&m->s->m, &m->s->x[m->source].id);
    const struct log_event *e;
    char id[UUID_TEXT_LEN + 1] = "";

    (void)next_event(m, EVENT_EXECUTION_CREATED);
    e = next_event(m, EVENT_EXECUTION_FORKED);
    uuid_format(&source->id, id);
    GUARANTEE(m->s,
              is_text(m, get(m, e, "source_execution_id"), id) &&
                  is_number(get(m, e, "fork_seq"), m->at_seq),
              "forked from something else: %s", e->payload);
}

static void check_own_resources(struct model *m)
{
    int64_t start = m->at + m->n_resources + 1;

    for (int i = 0; i < m->n_resources; i++)
        start += (int64_t)m->resources[m->order[i]].checkpoints.n;
    for (int i = 0; i < m->n_resources; i++) {
        const struct log_resource *r = &m->resources[m->order[i]];
        const struct log_event *e = next_event(m, EVENT_RESOURCE_INITIALIZED);

        GUARANTEE(m->s,
                  e->key == m->order[i] && e->generation == r->generation &&
                      is_text(m, get(m, e, "checkpoint_ref"), r->ref),
                  "initialized as %s, not at generation %lld from %s", e->payload,
                  (long long)r->generation, r->ref == NULL ? "nothing" : r->ref);
    }
    for (int i = 0; i < m->n_resources; i++) {
        struct log_resource *r = &m->resources[m->order[i]];

        for (size_t j = 0; j < r->checkpoints.n; j++) {
            const struct log_event *e = next_event(m, EVENT_RESOURCE_CHECKPOINTED);
            struct log_checkpoint *c = &r->checkpoints.at[j];

            if (c->invalidated_seq < 0)
                c->invalidated_seq = start;
            GUARANTEE(m->s,
                      e->key == m->order[i] && e->generation == c->generation &&
                          e->covered_seq == c->covered_seq &&
                          is_text(m, get(m, e, "checkpoint_ref"), c->ref),
                      "copied checkpoint %s, not %s over %lld", e->payload, c->ref,
                      (long long)c->covered_seq);
        }
    }
    GUARANTEE(m->s, m->at + 1 == start, "it starts at %lld, not %lld", (long long)m->at + 1,
              (long long)start);
}

static void check_row(struct model *m, bool own_policy)
{
    const struct memory_execution *x = memory_execution(&m->s->m, &m->s->x[m->fork].id);
    const struct memory_execution *source = memory_execution(&m->s->m, &m->s->x[m->source].id);

    GUARANTEE(m->s, x->forked && uuid_eq(&x->forked_from, &source->id) && x->fork_seq == m->at_seq,
              "a fork of something else");
    GUARANTEE(m->s,
              uuid_eq(&x->parent, &source->parent) && strcmp(x->agent_id, source->agent_id) == 0,
              "another parent or agent than the source's");
    GUARANTEE(m->s, uuid_is_nil(&x->spawned_by) && !x->owes, "a fork settles nobody's step");
    GUARANTEE(m->s, x->has_policy == (own_policy || source->has_policy), "whose policy?");
    GUARANTEE(m->s, memory_pin(&m->s->m, &x->id) == NULL, "it has appeared, and pins its source");
}

void check_fork(struct sim *s, int fork, int64_t at_seq, bool own_policy)
{
    struct shadow *sh = &s->x[fork];
    struct model m = {.s = s, .source = sh->forked_from, .fork = fork, .at_seq = at_seq};
    struct str restoration;

    log_read(s, m.source);
    log_read(s, fork);
    check_row(&m, own_policy);
    check_head(&m);
    check_events(&m);
    check_steps(&m);
    work_out_resources(&m);
    restoration = get(&m, &sh->log.events.at[1], "restoration");
    check_restoration(&m, restoration);
    check_own_resources(&m);
    (void)next_event(&m, EVENT_EXECUTION_STARTED);
    (void)next_event(&m, EVENT_DISPATCH_QUEUED);
    GUARANTEE(s, m.at == (int64_t)sh->log.events.n, "more than a fork begins with");
    memcpy(sh->log.resources, m.resources, sizeof(m.resources)); /* its log goes on from here */
    check_rows_agree(s, fork);
    list_free(m.copied);
}
