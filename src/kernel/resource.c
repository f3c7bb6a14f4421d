/* SPDX-License-Identifier: Apache-2.0
 * The rules of resources. A checkpoint covers the events from the one it was captured behind up to
 * the next step that touches its resource. */
#include "kernel/resource.h"

#include "base/json.h"
#include "kernel/event.h"

/* ---- finding ---- */

bool resources_at_hand(struct working_set *ws, struct execution *exec)
{
    if (exec->resources_known)
        return true;
    ws_need_resources(ws, &exec->id);
    return false;
}

struct resource *resource_find(const struct execution *exec, struct str key)
{
    for (size_t i = 0; i < exec->n_resources; i++)
        if (str_eq(exec->resources[i].key, key))
            return &exec->resources[i];
    return NULL;
}

static void name_resources(struct working_set *ws, const struct uuid *execution_id)
{
    const struct execution *exec = ws_execution(ws, execution_id);

    ws_need_execution(ws, execution_id);
    if (exec != NULL && !exec->resources_known)
        ws_need_resources(ws, execution_id);
}

/* ---- members of events ---- */

static struct str finish_members(struct working_set *ws, struct buf *text)
{
    struct str members = arena_str(&ws->arena, buf_str(text));

    buf_free(text);
    return members;
}

static struct str registered_members(struct working_set *ws, const struct resource *r)
{
    struct buf text = {0};
    struct json_writer w = {.out = &text, .comma = true};

    jw_member_str(&w, "driver_id", r->driver_id);
    jw_member_raw_opt(&w, "configuration", r->configuration);
    jw_key(&w, "coverage_reuse");
    jw_bool(&w, r->coverage_reuse);
    jw_member_int(&w, "every_steps", r->every_steps);
    jw_key(&w, "on_completion");
    jw_bool(&w, r->on_completion);
    return finish_members(ws, &text);
}

static void event_registered(struct working_set *ws, struct execution *exec,
                             const struct resource *r)
{
    event_resource(ws, exec, r->key, EVENT_RESOURCE_REGISTERED, registered_members(ws, r));
}

static void event_bound(struct working_set *ws, struct execution *exec, const struct resource *r)
{
    event_resource(ws, exec, r->key, EVENT_RESOURCE_BOUND,
                   arena_printf(&ws->arena, ",\"binding\":%.*s", STR_ARG(r->binding)));
}

/* ---- registering ---- */

static struct resource copy_in_arena(struct working_set *ws, const struct resource *r)
{
    struct resource copy = *r;

    copy.key = arena_str(&ws->arena, r->key);
    copy.driver_id = arena_str(&ws->arena, r->driver_id);
    copy.configuration = arena_str(&ws->arena, r->configuration);
    copy.binding = arena_str(&ws->arena, r->binding);
    copy.checkpoint_ref = arena_str(&ws->arena, r->checkpoint_ref);
    copy.restored_ref = copy.writers = STR_NONE;
    return copy;
}

void resource_register_names(struct working_set *ws, const struct resource_registration *cmd)
{
    name_resources(ws, &cmd->execution_id);
}

/* What identifies it must not change: a driver could not open what another one made. */
static enum verdict check_same(const struct resource *r, const struct resource_registration *cmd,
                               struct err *e)
{
    if (!str_eq(r->driver_id, cmd->driver_id))
        return REFUSE(e, ERR_CONFLICT,
                      "the resource %.*s is registered with another driver_id, %.*s",
                      STR_ARG(r->key), STR_ARG(r->driver_id));
    if (!hash_eq(&r->configuration_hash, &cmd->configuration_hash))
        return REFUSE(e, ERR_CONFLICT,
                      "the resource %.*s is registered with another configuration; keep it stable, "
                      "or use another key",
                      STR_ARG(r->key));
    if (r->coverage_reuse != cmd->coverage_reuse)
        return REFUSE(e, ERR_CONFLICT, "the resource %.*s is registered with coverage_reuse %s",
                      STR_ARG(r->key), r->coverage_reuse ? "true" : "false");
    return VERDICT_DONE;
}

static struct resource *register_new(struct working_set *ws, struct execution *exec,
                                     const struct resource_registration *cmd)
{
    struct resource *r =
        ws_new_resource(ws, exec,
                        &(struct resource){
                            .key = cmd->key,
                            .driver_id = cmd->driver_id,
                            .configuration = cmd->configuration,
                            .configuration_hash = cmd->configuration_hash,
                            .coverage_reuse = cmd->coverage_reuse,
                            .every_steps = cmd->every_steps,
                            .on_completion = cmd->every_steps > 0 && cmd->on_completion,
                        });

    event_registered(ws, exec, r);
    r->registered_seq = exec->last_seq;
    return r;
}

enum verdict resource_register(struct working_set *ws, const struct resource_registration *cmd,
                               struct resource_answer *answer, struct err *e)
{
    struct execution *exec;
    struct resource *r;
    enum verdict v = agent_owns_live(ws, &cmd->execution_id, cmd->agent_id, &cmd->lease, &exec, e);

    if (v != VERDICT_DONE)
        return v;
    if (!resources_at_hand(ws, exec))
        return VERDICT_NEED;
    r = resource_find(exec, cmd->key);
    if (r != NULL && check_same(r, cmd, e) != VERDICT_DONE)
        return VERDICT_REFUSED;
    if (r == NULL && exec->n_resources >= RESOURCES_MAX)
        return REFUSE(e, ERR_CONFLICT, "an execution has at most %d resources", RESOURCES_MAX);
    lease_renew(ws, exec);
    if (r == NULL) {
        r = register_new(ws, exec, cmd);
    } else if (r->every_steps == 0 && cmd->every_steps > 0) {
        r->every_steps = cmd->every_steps;
        r->on_completion = cmd->on_completion;
        ws_touch_resource(ws, exec, r);
        event_registered(ws, exec, r);
    }
    answer->state = copy_in_arena(ws, r);
    return VERDICT_DONE;
}

/* ---- binding ---- */

void resource_bind_names(struct working_set *ws, const struct resource_binding *cmd)
{
    name_resources(ws, &cmd->execution_id);
}

enum verdict resource_bind(struct working_set *ws, const struct resource_binding *cmd,
                           struct err *e)
{
    struct execution *exec;
    struct resource *r;
    enum verdict v = agent_owns_live(ws, &cmd->execution_id, cmd->agent_id, &cmd->lease, &exec, e);

    if (v != VERDICT_DONE)
        return v;
    if (!resources_at_hand(ws, exec))
        return VERDICT_NEED;
    r = resource_find(exec, cmd->key);
    if (r == NULL)
        return REFUSE(e, ERR_VALIDATION, "no resource %.*s is registered in this execution",
                      STR_ARG(cmd->key));
    if (str_present(r->binding) && !hash_eq(&r->binding_hash, &cmd->binding_hash))
        return REFUSE(e, ERR_CONFLICT, "the resource %.*s has another binding already",
                      STR_ARG(cmd->key));
    lease_renew(ws, exec);
    if (str_present(r->binding))
        return VERDICT_DONE;
    ws_set_text(&r->binding, cmd->binding);
    r->binding_hash = cmd->binding_hash;
    ws_touch_resource(ws, exec, r);
    event_bound(ws, exec, r);
    return VERDICT_DONE;
}

void resources_inherit(struct working_set *ws, struct execution *exec, const struct resource *rows,
                       size_t n)
{
    size_t done = 0;
    struct str last = STR("");

    /* By key, whatever the order in which they were registered. */
    while (done < n) {
        const struct resource *next = NULL;
        struct resource *r;

        for (size_t i = 0; i < n; i++)
            if ((done == 0 || str_cmp(rows[i].key, last) > 0) &&
                (next == NULL || str_cmp(rows[i].key, next->key) < 0))
                next = &rows[i];
        ASSERT(next != NULL);
        last = next->key;
        r = ws_new_resource(ws, exec,
                            &(struct resource){
                                .key = next->key,
                                .driver_id = next->driver_id,
                                .configuration = next->configuration,
                                .configuration_hash = next->configuration_hash,
                                .coverage_reuse = next->coverage_reuse,
                                .every_steps = next->every_steps,
                                .on_completion = next->on_completion,
                                .binding = next->binding,
                                .binding_hash = next->binding_hash,
                                .inherited = true,
                            });
        event_registered(ws, exec, r);
        r->registered_seq = exec->last_seq;
        if (str_present(r->binding))
            event_bound(ws, exec, r);
        done++;
    }
}

/* ---- touching ---- */

static bool names_key(struct str json_list, struct str key)
{
    struct arena scratch = {0};
    struct json_walk walk = {0};
    struct str item;
    bool found = false;

    while (!found && str_present(json_list) && json_next_item(json_list, &walk, &item))
        found = str_eq(json_string(item, &scratch), key);
    arena_free(&scratch);
    return found;
}

bool step_affects(const struct step *step, struct str key)
{
    return step->kind != KIND_LLM_CALL && names_key(step->affects, key);
}

struct str resource_keys_json(struct working_set *ws, const struct str *keys, size_t n)
{
    struct buf text = {0};
    struct json_writer w = {.out = &text};

    if (n == 0)
        return STR_NONE;
    jw_open(&w, '[');
    for (size_t i = 0; i < n; i++)
        jw_str(&w, keys[i]);
    jw_close(&w, ']');
    return finish_members(ws, &text);
}

/* ---- who is changing it ---- */

static bool find_writer(const struct resource *r, const struct hash *id, size_t *at)
{
    for (*at = 0; *at < r->writers.n; *at += sizeof(id->b))
        if (memcmp(r->writers.p + *at, id->b, sizeof(id->b)) == 0)
            return true;
    return false;
}

static void writer_came(const struct execution *exec, struct resource *r, const struct hash *id)
{
    struct buf all = {0};
    size_t at;

    if (r->writers_claim == exec->claim && find_writer(r, id, &at))
        return;
    if (r->writers_claim == exec->claim)
        buf_add(&all, r->writers);
    buf_add(&all, str_make(id->b, sizeof(id->b)));
    ws_set_text(&r->writers, buf_str(&all));
    r->writers_claim = exec->claim;
    buf_free(&all);
}

static void writer_left(struct resource *r, const struct hash *id)
{
    struct buf rest = {0};
    size_t at;

    if (!find_writer(r, id, &at))
        return;
    buf_add(&rest, str_slice(r->writers, 0, at));
    buf_add(&rest, str_slice(r->writers, at + sizeof(id->b), r->writers.n));
    ws_set_text(&r->writers, rest.n == 0 ? STR_NONE : buf_str(&rest));
    buf_free(&rest);
}

/* ---- who touches it ---- */

static bool touches(const struct step *step, const struct resource *r)
{
    return !r->coverage_reuse || step_affects(step, r->key);
}

void resources_touched(struct working_set *ws, const struct step *step,
                       struct touched_resource **out, size_t *n)
{
    const struct execution *exec = step->execution;

    *n = 0;
    *out = exec->n_resources == 0
               ? NULL
               : arena_array(&ws->arena, struct touched_resource, exec->n_resources);
    for (size_t i = 0; i < exec->n_resources; i++) {
        const struct resource *r = &exec->resources[i];

        if (!touches(step, r))
            continue;
        (*out)[(*n)++] = (struct touched_resource){
            .key = arena_str(&ws->arena, r->key),
            .generation = r->generation,
            .due = r->every_steps > 0 && (r->count + 1) % r->every_steps == 0 &&
                   step_affects(step, r->key),
        };
    }
}

static struct str touched_members(struct working_set *ws, const struct step *step,
                                  const struct touched_resource *rows, size_t n)
{
    struct buf text = {0};
    struct json_writer w = {.out = &text, .comma = true};

    if (rows == NULL || n == 0)
        return STR("");
    jw_key(&w, "resources");
    jw_open(&w, '[');
    for (size_t i = 0; i < n; i++)
        if (step_affects(step, rows[i].key))
            jw_str(&w, rows[i].key);
    jw_close(&w, ']');
    jw_key(&w, "generations");
    jw_open(&w, '{');
    for (size_t i = 0; i < n; i++) {
        if (i > 0)
            buf_add_byte(&text, ',');
        json_add_string(&text, rows[i].key);
        buf_add_byte(&text, ':');
        buf_add_int(&text, rows[i].generation);
    }
    w.comma = true;
    jw_close(&w, '}');
    return finish_members(ws, &text);
}

struct str resources_touch(struct working_set *ws, struct step *step, int64_t seq,
                           struct touched_resource **out, size_t *n)
{
    struct execution *exec = step->execution;

    for (size_t i = 0; i < exec->n_resources; i++) {
        struct resource *r = &exec->resources[i];

        if (!touches(step, r))
            continue;
        r->generation++;
        if (step_affects(step, r->key))
            writer_came(exec, r, &step->id);
        ws_touch_resource(ws, exec, r);
        if (r->covered)
            ws_end_checkpoints(ws, exec, r, seq);
    }
    resources_touched(ws, step, out, n);
    return touched_members(ws, step, *out, *n);
}

/* ---- capturing ---- */

static void event_failed(struct working_set *ws, struct execution *exec, struct str key,
                         int64_t generation, struct str error)
{
    struct buf text = {0};
    struct json_writer w = {.out = &text, .comma = true};

    jw_member_int(&w, "generation", generation);
    jw_member_str(&w, "error", error);
    event_resource(ws, exec, key, EVENT_RESOURCE_CHECKPOINT_FAILED, finish_members(ws, &text));
}

/* Another step that this attempt has under way may be changing it at this moment. (An orphan of a
 * dead attempt writes no more.) */
static bool has_writers(const struct execution *exec, const struct resource *r)
{
    return r->writers_claim == exec->claim && r->writers.n > 0;
}

static bool seen_before(const struct capture *captures, size_t i)
{
    for (size_t j = 0; j < i; j++)
        if (str_eq(captures[j].key, captures[i].key))
            return true;
    return false;
}

/* Why a capture is refused, by the first reason that applies; absent: it is good. */
static struct str refusal(const struct execution *exec, const struct capture_report *report,
                          size_t i)
{
    const struct capture *c = &report->captures[i];
    const struct resource *r = resource_find(exec, c->key);

    if (r == NULL)
        return STR("unknown_resource");
    if (c->checkpoint_ref.n == 0)
        return STR("missing_checkpoint_ref");
    if (seen_before(report->captures, i))
        return STR("duplicate_capture");
    if (c->generation != r->generation)
        return STR("stale_generation");
    if (has_writers(exec, r))
        return STR("writers_active");
    return STR_NONE;
}

static void accept_capture(struct working_set *ws, struct execution *exec, const struct capture *c,
                           int64_t seq)
{
    struct resource *r = resource_find(exec, c->key);
    struct buf text = {0};
    struct json_writer w = {.out = &text, .comma = true};

    ASSERT(r != NULL); /* else it was refused */
    (void)ws_new_checkpoint(ws, exec,
                            &(struct checkpoint){.resource = c->key,
                                                 .generation = c->generation,
                                                 .checkpoint_ref = c->checkpoint_ref,
                                                 .covered_seq = seq});
    ws_set_text(&r->checkpoint_ref, c->checkpoint_ref);
    r->covered = true;
    ws_touch_resource(ws, exec, r);
    jw_member_int(&w, "generation", c->generation);
    jw_member_str(&w, "checkpoint_ref", c->checkpoint_ref);
    jw_member_int(&w, "covered_seq", seq);
    event_resource(ws, exec, c->key, EVENT_RESOURCE_CHECKPOINTED, finish_members(ws, &text));
}

/* Captures that cover `seq`, then failures. */
static void take_report(struct working_set *ws, struct execution *exec,
                        const struct capture_report *report, int64_t seq)
{
    for (size_t i = 0; i < report->n_captures; i++) {
        const struct capture *c = &report->captures[i];
        struct str why = refusal(exec, report, i);

        if (str_present(why))
            event_failed(ws, exec, c->key, c->generation, why);
        else
            accept_capture(ws, exec, c, seq);
    }
    for (size_t i = 0; i < report->n_failures; i++) {
        const struct capture_failure *f = &report->failures[i];

        event_failed(ws, exec, f->key, f->generation, f->error);
    }
}

void resources_settle(struct working_set *ws, struct step *step,
                      const struct capture_report *report, int64_t seq)
{
    struct execution *exec = step->execution;

    for (size_t i = 0; i < exec->n_resources; i++) {
        struct resource *r = &exec->resources[i];

        if (!step_affects(step, r->key))
            continue;
        r->count++;
        writer_left(r, &step->id);
        ws_touch_resource(ws, exec, r);
    }
    if (report != NULL)
        take_report(ws, exec, report, seq);
}

void resource_capture_names(struct working_set *ws, const struct resource_capture *cmd)
{
    name_resources(ws, &cmd->execution_id);
}

enum verdict resource_capture(struct working_set *ws, const struct resource_capture *cmd,
                              struct err *e)
{
    struct execution *exec;
    enum verdict v = agent_owns_live(ws, &cmd->execution_id, cmd->agent_id, &cmd->lease, &exec, e);

    if (v != VERDICT_DONE)
        return v;
    if (!resources_at_hand(ws, exec))
        return VERDICT_NEED;
    lease_renew(ws, exec);
    take_report(ws, exec, &cmd->report, exec->last_seq);
    return VERDICT_DONE;
}
