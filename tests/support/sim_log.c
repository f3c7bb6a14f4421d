/* SPDX-License-Identifier: Apache-2.0
 * An independent reading of logs: what steps and resources must be by the specification's words,
 * from the events alone. */
#include "support/sim.h"

#include "base/json.h"
#include "kernel/event.h"

int resource_index(struct str key)
{
    for (int i = 0; i < KEYS; i++)
        if (str_eq(key, str_of(RESOURCES[i].key)))
            return i;
    return -1;
}

struct log_step *log_step(struct shadow *sh, const struct hash *id)
{
    for (size_t i = 0; i < sh->log.steps.n; i++)
        if (hash_eq(&sh->log.steps.at[i].id, id))
            return &sh->log.steps.at[i];
    return NULL;
}

void log_free(struct log *log)
{
    list_free(log->events);
    list_free(log->steps);
    for (int k = 0; k < KEYS; k++)
        list_free(log->resources[k].checkpoints);
}

const struct log_checkpoint *log_open_checkpoint(const struct log_resource *r)
{
    for (size_t i = r->checkpoints.n; i-- > 0;)
        if (r->checkpoints.at[i].invalidated_seq == 0)
            return &r->checkpoints.at[i];
    return NULL;
}

int64_t log_awaited(const struct log *log)
{
    int64_t n = 0;

    for (size_t i = 0; i < log->steps.n; i++)
        n += log->steps.at[i].status == STEP_EXECUTING && log->steps.at[i].child >= 0;
    return n;
}

/* ---- payloads ---- */

static char *keep(struct sim *s, struct str text)
{
    return str_present(text) ? (char *)(uintptr_t)arena_printf(&s->keep, "%.*s", STR_ARG(text)).p
                             : NULL;
}

static struct str member(struct sim *s, const struct log_event *e, const char *name)
{
    return json_get(str_of(e->payload), str_of(name), &s->arena);
}

static int64_t number(struct sim *s, const struct log_event *e, const char *name)
{
    struct str value = member(s, e, name);
    int64_t n = 0;

    if (str_present(value))
        GUARANTEE(s, json_int64(value, &n), "%s is not a number in %s", name, e->payload);
    return n;
}

static struct str text_member(struct sim *s, const struct log_event *e, const char *name)
{
    struct str value = member(s, e, name);

    return str_present(value) ? json_string(value, &s->arena) : STR_NONE;
}

static void read_touched(struct sim *s, struct log_event *e)
{
    struct str keys = member(s, e, "resources"), map = member(s, e, "generations"), item;
    struct json_walk walk = {0};
    struct json_member m;
    int k;

    GUARANTEE(s, str_present(keys) == str_present(map), "resources without generations");
    while (str_present(keys) && json_next_item(keys, &walk, &item)) {
        k = resource_index(json_string(item, &s->arena));
        GUARANTEE(s, k >= 0 && (e->affected >> k & 1) == 0, "affected: %s", e->payload);
        e->affected |= 1u << k;
    }
    walk = (struct json_walk){0};
    while (str_present(map) && json_next_member(map, &walk, &s->arena, &m)) {
        k = resource_index(m.key);
        GUARANTEE(s, k >= 0 && json_int64(m.value, &e->generations[k]), "touched: %s", e->payload);
    }
}

static struct log_event parse(struct sim *s, const struct event_line *line, int64_t occurred_at)
{
    struct log_event e = {.payload = keep(s, line->payload), .occurred_at = occurred_at};
    struct str step, usage;
    struct err err;
    int64_t n;

    GUARANTEE(s, json_check(line->payload, &err), "payload is not JSON: %s", e.payload);
    GUARANTEE(s, event_type_parse(line->type, &e.type), "an event %.*s", STR_ARG(line->type));
    step = text_member(s, &e, "step_id");
    e.has_step = str_present(step) && str_starts(line->type, STR("step."));
    if (e.has_step)
        GUARANTEE(s, hash_parse(step, &e.step), "step_id: %s", e.payload);
    e.key = resource_index(text_member(s, &e, "key"));
    if (e.type == EVENT_STEP_EXECUTING)
        read_touched(s, &e);
    if (!str_starts(line->type, STR("resource.")) && e.type != EVENT_STEP_SUCCEEDED)
        return e;
    e.generation = number(s, &e, "generation");
    e.covered_seq = number(s, &e, "covered_seq");
    usage = member(s, &e, "usage");
    if (str_present(usage) && json_int64(json_get(usage, STR("input_tokens"), &s->arena), &n))
        e.tokens += n;
    if (str_present(usage) && json_int64(json_get(usage, STR("output_tokens"), &s->arena), &n))
        e.tokens += n;
    return e;
}

/* ---- steps ---- */

/* The status a step's events lead to, by the model's table alone. */
static int step_after(struct sim *s, int from, enum event_type type)
{
    static const struct {
        enum event_type type;
        int from, to;
    } MOVES[] = {
        {EVENT_STEP_PROPOSED, -1, STEP_PROPOSED},
        {EVENT_STEP_ALLOWED, STEP_PROPOSED, STEP_ALLOWED},
        {EVENT_STEP_DENIED, STEP_PROPOSED, STEP_DENIED},
        {EVENT_STEP_EXECUTING, STEP_ALLOWED, STEP_EXECUTING},
        {EVENT_STEP_EXECUTING, STEP_EXECUTING, STEP_EXECUTING},
        {EVENT_STEP_SUCCEEDED, STEP_EXECUTING, STEP_SUCCEEDED},
        {EVENT_STEP_FAILED, STEP_EXECUTING, STEP_FAILED},
        {EVENT_STEP_CANCELLED, STEP_EXECUTING, STEP_CANCELLED},
        {EVENT_STEP_CANCELLED, STEP_ALLOWED, STEP_CANCELLED},
        {EVENT_STEP_AWAITING_APPROVAL, STEP_PROPOSED, STEP_AWAITING_APPROVAL},
        {EVENT_STEP_ALLOWED, STEP_AWAITING_APPROVAL, STEP_ALLOWED},
        {EVENT_STEP_DENIED, STEP_AWAITING_APPROVAL, STEP_DENIED},
    };

    for (size_t i = 0; i < COUNT(MOVES); i++)
        if (type == MOVES[i].type && MOVES[i].from == from)
            return MOVES[i].to;
    GUARANTEE(s, false, "event %.*s of a step in state %d", STR_ARG(event_type_name(type)), from);
    return 0;
}

/* Every touched resource gets the next generation, and its open checkpoints end. */
static void touch(struct sim *s, struct log *log, const struct log_event *e, int64_t seq)
{
    for (int k = 0; k < KEYS; k++) {
        struct log_resource *r = &log->resources[k];
        bool affected = e->affected >> k & 1;
        bool touched = r->registered && (affected || !RESOURCES[k].reuse);

        GUARANTEE(s, !affected || r->registered, "%s is affected and not registered: %s",
                  RESOURCES[k].key, e->payload);
        GUARANTEE(s, e->generations[k] == (touched ? r->generation + 1 : 0),
                  "%s is at generation %lld: %s", RESOURCES[k].key, (long long)r->generation,
                  e->payload);
        if (!touched)
            continue;
        r->generation++;
        for (size_t i = 0; i < r->checkpoints.n; i++)
            if (r->checkpoints.at[i].invalidated_seq == 0)
                r->checkpoints.at[i].invalidated_seq = seq;
    }
}

static void step_event(struct sim *s, int x, const struct log_event *e, int64_t seq)
{
    struct shadow *sh = &s->x[x];
    struct log_step *step = log_step(sh, &e->step);
    bool live = sh->forked_from < 0 || sh->log.started; /* not one of a fork's copies */

    if (step == NULL) {
        list_add(sh->log.steps, ((struct log_step){.id = e->step, .status = -1, .child = -1}));
        step = &sh->log.steps.at[sh->log.steps.n - 1];
    }
    step->status = step_after(s, step->status, e->type);
    if (e->type == EVENT_STEP_EXECUTING) {
        step->affected = e->affected;
        memcpy(step->generations, e->generations, sizeof(step->generations));
        if (live)
            touch(s, &sh->log, e, seq);
    }
    if (live && e->type == EVENT_STEP_FAILED && step->child >= 0)
        GUARANTEE(s, strstr(e->payload, "\"indeterminate\"") == NULL,
                  "its subagent is to settle it, and it is called unknown");
    sh->log.tokens += e->tokens;
    if (!step_status_is_terminal((enum step_status)step->status))
        return;
    step->settled_seq = seq;
    note_terminal(s, memory_step(&s->m, &e->step));
    for (int k = 0; k < KEYS && live; k++)
        sh->log.resources[k].count +=
            (step->affected >> k & 1) != 0 &&
            (step->status == STEP_SUCCEEDED || step->status == STEP_FAILED);
}

/* ---- resources ---- */

static void registered(struct sim *s, struct log *log, const struct log_event *e, int64_t seq)
{
    struct log_resource *r = &log->resources[e->key];
    const struct sim_resource *fixed = &RESOURCES[e->key];
    int64_t every = number(s, e, "every_steps");
    struct str configuration = member(s, e, "configuration");

    GUARANTEE(s, !r->registered || (r->every == 0 && every > 0), "registered again: %s",
              e->payload);
    GUARANTEE(
        s,
        str_eq(text_member(s, e, "driver_id"), str_of(fixed->driver)) &&
            str_present(configuration) == (fixed->configuration != NULL) &&
            (!str_present(configuration) || str_eq(configuration, str_of(fixed->configuration))) &&
            str_eq(member(s, e, "coverage_reuse"), fixed->reuse ? STR("true") : STR("false")),
        "registered as something else: %s", e->payload);
    r->every = every;
    r->on_completion = str_eq(member(s, e, "on_completion"), STR("true"));
    GUARANTEE(s, every > 0 || !r->on_completion, "on_completion without a policy");
    if (r->registered)
        return;
    r->registered = true;
    r->registered_seq = seq;
    r->inherited = !log->started;
}

static void resource_event(struct sim *s, struct log *log, const struct log_event *e, int64_t seq)
{
    struct log_resource *r = &log->resources[e->key];
    struct log_checkpoint c = {.generation = e->generation, .covered_seq = e->covered_seq};

    switch ((int)e->type) {
    case EVENT_RESOURCE_REGISTERED:
        registered(s, log, e, seq);
        return;
    case EVENT_RESOURCE_BOUND:
        GUARANTEE(s, r->registered && r->binding == NULL, "bound twice: %s", e->payload);
        r->binding = keep(s, member(s, e, "binding"));
        return;
    case EVENT_RESOURCE_CHECKPOINTED:
        GUARANTEE(s, r->registered && c.generation == r->generation && c.covered_seq < seq,
                  "captured at generation %lld: %s", (long long)r->generation, e->payload);
        c.ref = r->ref = keep(s, text_member(s, e, "checkpoint_ref"));
        GUARANTEE(s, c.ref != NULL && c.ref[0] != '\0', "a checkpoint of nothing");
        list_add(r->checkpoints, c);
        return;
    default:
        GUARANTEE(s, e->type == EVENT_RESOURCE_CHECKPOINT_FAILED, "%s in a log that is no fork's",
                  e->payload);
    }
}

/* ---- executions ---- */

/* What a turn inherits: all that its parent had registered, by key, each with its binding. */
static void check_inherited(struct sim *s, int x, const struct log_event *started)
{
    const struct log *log = &s->x[x].log;
    const struct memory_execution *own = memory_execution(&s->m, &s->x[x].id), *parent = NULL;
    struct str id = text_member(s, started, "parent_execution_id");
    size_t at = 1; /* behind execution.created */
    static const int BY_KEY[KEYS] = {2, 1, 0};

    if (str_present(id) && !s->x[x].branch && own->session != NULL) {
        struct uuid parent_id;

        assert_true(uuid_parse(id, &parent_id));
        parent = memory_execution(&s->m, &parent_id);
        log_read(s, sim_index(s, &parent_id));
        if (parent->session == NULL || strcmp(parent->session, own->session) != 0)
            parent = NULL;
    }
    for (int i = 0; i < KEYS && parent != NULL; i++) {
        int k = BY_KEY[i];
        const struct log_resource *was = &s->x[sim_index(s, &parent->id)].log.resources[k];
        const struct log_resource *is = &log->resources[k];

        GUARANTEE(s, is->registered == was->registered, "%s: inherited or not", RESOURCES[k].key);
        if (!was->registered)
            continue;
        GUARANTEE(s,
                  is->every == was->every && is->on_completion == was->on_completion &&
                      (is->binding == NULL) == (was->binding == NULL) &&
                      (is->binding == NULL || strcmp(is->binding, was->binding) == 0),
                  "%s: inherited with another policy or binding", RESOURCES[k].key);
        GUARANTEE(
            s,
            log->events.at[at].type == EVENT_RESOURCE_REGISTERED && log->events.at[at].key == k &&
                (was->binding == NULL || (log->events.at[at + 1].key == k &&
                                          log->events.at[at + 1].type == EVENT_RESOURCE_BOUND)),
            "%s: not in the order of keys", RESOURCES[k].key);
        at += was->binding == NULL ? 1 : 2;
    }
    GUARANTEE(s, at + 1 == log->events.n, "more than what is inherited stands before the start");
}

static void execution_event(struct sim *s, int x, const struct log_event *e)
{
    struct log *log = &s->x[x].log;

    switch ((int)e->type) {
    case EVENT_EXECUTION_STARTED:
        if (s->x[x].forked_from < 0)
            check_inherited(s, x, e);
        log->started = true;
        return;
    case EVENT_EXECUTION_BLOCKED:
        log->suspended = str_eq(text_member(s, e, "reason"), STR("awaiting_steps"));
        GUARANTEE(s, log->suspended ? log_awaited(log) > 0 : log->approvals > 0,
                  "blocked, and nothing to wait for");
        return;
    case EVENT_EXECUTION_RESUMED:
        GUARANTEE(s, log->approvals == 0 && (!log->suspended || log_awaited(log) == 0),
                  "resumed, and something still waits");
        log->suspended = false;
        return;
    case EVENT_APPROVAL_REQUESTED:
        log->approvals++;
        return;
    case EVENT_APPROVAL_GRANTED:
    case EVENT_APPROVAL_DENIED:
    case EVENT_APPROVAL_EXPIRED:
        log->approvals--;
        return;
    case EVENT_EXECUTION_FAILED:
    case EVENT_EXECUTION_CANCELLED:
        log->end_reason = keep(s, text_member(s, e, "reason"));
        return;
    default:
        return;
    }
}

/* ---- reading ---- */

static bool is_end(enum event_type type)
{
    return type == EVENT_EXECUTION_COMPLETED || type == EVENT_EXECUTION_FAILED ||
           type == EVENT_EXECUTION_CANCELLED;
}

static void take_event(struct sim *s, int x, const struct log_event *e, int64_t row)
{
    struct log *log = &s->x[x].log;
    int64_t seq = (int64_t)log->events.n + 1;

    GUARANTEE(s, log->end_row < 0 || log->end_row == row || e->type == EVENT_DISPATCH_DISCARDED,
              "%.*s after the end", STR_ARG(event_type_name(e->type)));
    if (is_end(e->type))
        log->end_row = row;
    list_add(log->events, *e);
    if (e->has_step && e->type != EVENT_STEP_RATE_LIMITED) /* which leaves no row */
        step_event(s, x, e, seq);
    else if (e->key >= 0 && (s->x[x].forked_from < 0 || log->started))
        resource_event(s, log, e, seq);
    else
        execution_event(s, x, e);
}

void log_read(struct sim *s, int x)
{
    struct log *log = &s->x[x].log;
    const struct memory_execution *row = memory_execution(&s->m, &s->x[x].id);
    struct buf scratch = {0};

    for (; log->rows < row->events.n; log->rows++) {
        const struct memory_event_row *r = &row->events.at[log->rows];
        struct event_reader reader = {.body = str_make(r->body, r->n),
                                      .output = str_of(row->output)};
        struct event_line line;

        GUARANTEE(s, r->first_seq == (int64_t)log->events.n + 1, "a gap in the log");
        while (event_next(&reader, &scratch, &line)) {
            struct log_event e = parse(s, &line, r->occurred_at);

            take_event(s, x, &e, (int64_t)log->rows);
        }
        GUARANTEE(s, (int64_t)log->events.n == r->first_seq + r->count - 1,
                  "a transition miscounts its events");
    }
    buf_free(&scratch);
}

/* ---- rows ---- */

static bool same_text(struct str row, const char *want)
{
    return want == NULL ? !str_present(row) : str_eq(row, str_of(want));
}

static void check_checkpoints(struct sim *s, const struct memory_execution *row, int k,
                              const struct log_resource *r)
{
    size_t n = 0;

    for (size_t i = 0; i < row->checkpoints.n; i++) {
        const struct memory_checkpoint *c = &row->checkpoints.at[i];

        if (strcmp(c->resource, RESOURCES[k].key) != 0)
            continue;
        GUARANTEE(s, n < r->checkpoints.n, "a checkpoint that no event tells of");
        GUARANTEE(s,
                  c->generation == r->checkpoints.at[n].generation &&
                      c->covered_seq == r->checkpoints.at[n].covered_seq &&
                      c->invalidated_seq == r->checkpoints.at[n].invalidated_seq &&
                      strcmp(c->checkpoint_ref, r->checkpoints.at[n].ref) == 0,
                  "checkpoint %zu of %s covers [%lld, %lld), by the log [%lld, %lld)", n,
                  RESOURCES[k].key, (long long)c->covered_seq, (long long)c->invalidated_seq,
                  (long long)r->checkpoints.at[n].covered_seq,
                  (long long)r->checkpoints.at[n].invalidated_seq);
        n++;
    }
    GUARANTEE(s, n == r->checkpoints.n, "a checkpoint without a row");
}

static void check_resource(struct sim *s, const struct memory_execution *row, int k,
                           const struct log_resource *r)
{
    const struct resource *found = NULL;

    for (size_t i = 0; i < row->resources.n; i++)
        if (str_eq(row->resources.at[i].key, str_of(RESOURCES[k].key)))
            found = &row->resources.at[i];
    GUARANTEE(s, (found != NULL) == r->registered, "%s: registered or not", RESOURCES[k].key);
    check_checkpoints(s, row, k, r);
    if (found == NULL)
        return;
    GUARANTEE(s, found->generation == r->generation && found->count == r->count,
              "%s: generation %lld, count %lld; by the log %lld, %lld", RESOURCES[k].key,
              (long long)found->generation, (long long)found->count, (long long)r->generation,
              (long long)r->count);
    GUARANTEE(s,
              found->registered_seq == r->registered_seq && found->every_steps == r->every &&
                  found->on_completion == r->on_completion && found->inherited == r->inherited,
              "%s: registered differently", RESOURCES[k].key);
    GUARANTEE(s, found->covered == (log_open_checkpoint(r) != NULL), "%s: covered or not",
              RESOURCES[k].key);
    GUARANTEE(s, same_text(found->binding, r->binding) && same_text(found->checkpoint_ref, r->ref),
              "%s: another binding or reference", RESOURCES[k].key);
}

void check_rows_agree(struct sim *s, int x)
{
    const struct shadow *sh = &s->x[x];
    const struct memory_execution *row = memory_execution(&s->m, &sh->id);

    GUARANTEE(s, (int64_t)sh->log.events.n == row->last_seq, "last_seq");
    GUARANTEE(s, (sh->log.end_row >= 0) == execution_status_is_terminal(row->status),
              "the log and the row disagree on the end");
    GUARANTEE(s, row->tokens == sh->log.tokens, "tokens");
    GUARANTEE(s, row->awaited == log_awaited(&sh->log), "awaited");
    for (size_t i = 0; i < sh->log.steps.n; i++) {
        const struct memory_step *step = memory_step(&s->m, &sh->log.steps.at[i].id);

        GUARANTEE(s, step != NULL && (int)step->status == sh->log.steps.at[i].status,
                  "a step and its events disagree");
    }
    for (int k = 0; k < KEYS; k++)
        check_resource(s, row, k, &sh->log.resources[k]);
}
