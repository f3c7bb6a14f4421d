/* SPDX-License-Identifier: Apache-2.0
 * What the simulation's agents do with resources, and what the specification says must come of it.
 */
#include "support/sim.h"

#include "base/json.h"

unsigned pick_declared(struct sim *s, const struct handler *h, int call)
{
    const struct shadow *sh = &s->x[h->x];
    unsigned all = 0;

    for (int k = 0; k < KEYS; k++)
        if (sh->log.resources[k].registered && (sh->program.declares[call] >> k & 1) &&
            roll(s, 4) != 0)
            all |= 1u << k;
    return all;
}

/* ---- being told to proceed ---- */

static const struct touched_resource *told_of(const struct step_answer *a, int k)
{
    for (size_t i = 0; i < a->n_resources; i++)
        if (str_eq(a->resources[i].key, str_of(RESOURCES[k].key)))
            return &a->resources[i];
    return NULL;
}

void check_told(struct sim *s, struct handler *h, int slot, const struct step_answer *a,
                bool repeat)
{
    struct shadow *sh = &s->x[h->x];
    struct log_step *step = log_step(sh, &a->step_id);
    int call = sh->program.call[h->block][slot];
    unsigned affected = PALETTE[call].kind == KIND_LLM_CALL ? 0 : h->declared[slot];
    size_t n = 0;

    GUARANTEE(s, step != NULL, "told to proceed, and nothing in the log");
    if (!repeat)
        GUARANTEE(s, step->affected == affected, "it affects something else than it declared");
    step->was_told = true;
    step->told = h->lease;
    for (int k = 0; k < KEYS; k++) {
        const struct log_resource *r = &sh->log.resources[k];
        const struct touched_resource *told = told_of(a, k);
        bool affects = step->affected >> k & 1;

        GUARANTEE(s, (told != NULL) == (r->registered && (affects || !RESOURCES[k].reuse)),
                  "%s: touched or not", RESOURCES[k].key);
        h->generations[slot][k] = told == NULL ? 0 : told->generation;
        if (told == NULL)
            continue;
        n++;
        GUARANTEE(s, told->generation == (repeat ? r->generation : step->generations[k]),
                  "%s: told another generation", RESOURCES[k].key);
        GUARANTEE(s, told->due == (affects && r->every > 0 && (r->count + 1) % r->every == 0),
                  "%s: due or not", RESOURCES[k].key);
    }
    GUARANTEE(s, n == a->n_resources, "told of something that it does not touch");
}

/* ---- reports ---- */

static bool has_writers(const struct shadow *sh, const struct handler *h, int k,
                        const struct hash *own)
{
    for (size_t i = 0; i < sh->log.steps.n; i++) {
        const struct log_step *step = &sh->log.steps.at[i];

        if (step->status == STEP_EXECUTING && (step->affected >> k & 1) && step->was_told &&
            uuid_eq(&step->told.dispatch_id, &h->lease.dispatch_id) &&
            step->told.attempt == h->lease.attempt && (own == NULL || !hash_eq(&step->id, own)))
            return true;
    }
    return false;
}

/* Why it is not accepted, by the specification's order; NULL: it is. */
static const char *why_not(const struct shadow *sh, const struct handler *h, const struct hash *own,
                           const struct report *r, size_t i)
{
    int k = resource_index(r->captures[i].key);

    if (k < 0 || !sh->log.resources[k].registered)
        return "unknown_resource";
    if (r->captures[i].checkpoint_ref.n == 0)
        return "missing_checkpoint_ref";
    for (size_t j = 0; j < i; j++)
        if (str_eq(r->captures[j].key, r->captures[i].key))
            return "duplicate_capture";
    if (r->captures[i].generation != sh->log.resources[k].generation)
        return "stale_generation";
    return has_writers(sh, h, k, own) ? "writers_active" : NULL;
}

static void add_capture(struct sim *s, struct report *r, struct str key, int64_t generation)
{
    struct str ref = roll(s, 10) == 0 ? STR("") : arena_printf(&s->arena, "c%d", ++s->names);

    if (r->n_captures < CAPTURES_MAX)
        r->captures[r->n_captures++] = (struct capture){key, generation, ref};
}

static void add_failure(struct sim *s, struct report *r, struct str key, int64_t generation)
{
    struct str error = arena_printf(&s->arena, "no room \"%d\"", ++s->names);

    if (r->n_failures < CAPTURES_MAX)
        r->failures[r->n_failures++] = (struct capture_failure){key, generation, error};
}

void fill_report(struct sim *s, const struct handler *h, int slot, const struct hash *step,
                 struct report *out)
{
    const struct shadow *sh = &s->x[h->x];

    *out = (struct report){0};
    for (int k = 0; k < KEYS && sh->program.keys != 0; k++) {
        struct str key = str_of(RESOURCES[k].key);
        int64_t generation = step == NULL || !(h->declared[slot] >> k & 1)
                                 ? sh->log.resources[k].generation
                                 : h->generations[slot][k];

        if (!sh->log.resources[k].registered && roll(s, 16) != 0)
            continue;
        if (roll(s, 3) == 0 || (step != NULL && !(h->declared[slot] >> k & 1) && roll(s, 8) != 0))
            continue;
        if (roll(s, 6) == 0)
            add_failure(s, out, key, generation);
        else
            add_capture(s, out, key, roll(s, 10) == 0 ? generation - 1 : generation);
        if (roll(s, 10) == 0)
            add_capture(s, out, key, generation);
    }
    if (sh->program.keys != 0 && roll(s, 30) == 0)
        add_capture(s, out, STR("nope"), 0);
    for (size_t i = 0; i < out->n_captures; i++)
        out->want[i] = why_not(sh, h, step, out, i);
}

static void check_line(struct sim *s, const struct log_event *e, struct str key, const char *error,
                       int64_t generation)
{
    struct str found = json_get(str_of(e->payload), STR("error"), &s->arena);

    GUARANTEE(
        s,
        str_eq(json_string(json_get(str_of(e->payload), STR("key"), &s->arena), &s->arena), key) &&
            e->generation == generation,
        "reported otherwise: %s", e->payload);
    GUARANTEE(s,
              e->type ==
                  (error == NULL ? EVENT_RESOURCE_CHECKPOINTED : EVENT_RESOURCE_CHECKPOINT_FAILED),
              "%.*s, wanted %s: %s", STR_ARG(event_type_name(e->type)),
              error == NULL ? "a checkpoint" : error, e->payload);
    if (error != NULL)
        GUARANTEE(s, str_eq(json_string(found, &s->arena), str_of(error)), "not %s: %s", error,
                  e->payload);
}

void check_report(struct sim *s, int x, const struct report *r, int64_t first, int64_t covers)
{
    const struct log *log = &s->x[x].log;
    int64_t at = first;

    GUARANTEE(s, first + (int64_t)(r->n_captures + r->n_failures) <= (int64_t)log->events.n,
              "a report that is not in the log");
    for (size_t i = 0; i < r->n_captures; i++, at++) {
        const struct log_event *e = &log->events.at[at];

        check_line(s, e, r->captures[i].key, r->want[i], r->captures[i].generation);
        if (r->want[i] == NULL)
            GUARANTEE(s,
                      e->covered_seq == covers &&
                          str_eq(json_string(
                                     json_get(str_of(e->payload), STR("checkpoint_ref"), &s->arena),
                                     &s->arena),
                                 r->captures[i].checkpoint_ref),
                      "it covers from %lld on: %s", (long long)covers, e->payload);
    }
    for (size_t i = 0; i < r->n_failures; i++, at++)
        check_line(s, &log->events.at[at], r->failures[i].key,
                   arena_printf(&s->arena, "%.*s", STR_ARG(r->failures[i].error)).p,
                   r->failures[i].generation);
    GUARANTEE(s,
              at == (int64_t)log->events.n ||
                  (log->events.at[at].type != EVENT_RESOURCE_CHECKPOINTED &&
                   log->events.at[at].type != EVENT_RESOURCE_CHECKPOINT_FAILED),
              "more than was reported");
}

/* ---- calls of their own ---- */

static int pick_key(struct sim *s, const struct handler *h)
{
    int k;

    do
        k = (int)roll(s, KEYS);
    while (!(s->x[h->x].program.keys >> k & 1));
    return k;
}

static bool all_registered(const struct shadow *sh)
{
    for (int k = 0; k < KEYS; k++)
        if ((sh->program.keys >> k & 1) && !sh->log.resources[k].registered)
            return false;
    return true;
}

static bool done(struct sim *s, struct handler *h, struct command *cmd)
{
    if (!run_one(s, cmd))
        return false;
    log_read(s, h->x);
    check_owner(s, &s->x[h->x], &h->lease, cmd);
    if (cmd->verdict == VERDICT_DONE ||
        (cmd->err.code != ERR_CONFLICT && cmd->err.code != ERR_VALIDATION))
        called(s, h, cmd);
    return cmd->verdict == VERDICT_DONE || cmd->err.code == ERR_CONFLICT ||
           cmd->err.code == ERR_VALIDATION;
}

static void fill_registration(struct sim *s, const struct handler *h, int k, int variant,
                              struct resource_registration *in)
{
    const struct sim_resource *r = &RESOURCES[k];
    struct str configuration = r->configuration == NULL ? STR_NONE : str_of(r->configuration);

    if (variant == 3)
        configuration = STR("{\"other\":2}");
    *in = (struct resource_registration){
        .execution_id = s->x[h->x].id,
        .agent_id = STR("a"),
        .lease = h->lease,
        .key = str_of(r->key),
        .driver_id = variant == 1 ? STR("other") : str_of(r->driver),
        .configuration = configuration,
        .coverage_reuse = variant == 2 ? !r->reuse : r->reuse,
        .every_steps = roll(s, 3) == 0 ? 0 : s->x[h->x].program.every[k],
        .on_completion = roll(s, 2) == 0,
    };
    hash_sha256(str_present(configuration) ? configuration : STR("null"), &in->configuration_hash);
}

static bool text_is(struct str got, const char *want)
{
    return want == NULL ? !str_present(got) : str_eq(got, str_of(want));
}

static void handler_register(struct sim *s, struct handler *h)
{
    struct command cmd = {.type = COMMAND_RESOURCE_REGISTER};
    int k = pick_key(s, h), variant = 0;
    const struct log_resource *r = &s->x[h->x].log.resources[k];
    bool was = r->registered;
    int64_t every = r->every, want;
    const struct resource *state = &cmd.out.resource.state;

    if (was && roll(s, 6) == 0)
        variant = 1 + (int)roll(s, 3); /* another driver, reuse or configuration */
    fill_registration(s, h, k, variant, &cmd.in.resource_register);
    want = every > 0 ? every : cmd.in.resource_register.every_steps;
    if (!done(s, h, &cmd))
        return;
    GUARANTEE(s, (variant != 0) == (cmd.verdict == VERDICT_REFUSED && cmd.err.code == ERR_CONFLICT),
              "registered as something else (%d), or not at all", variant);
    if (variant != 0)
        return;
    GUARANTEE(s, r->registered && r->every == want, "%s: registered, and not in the log",
              RESOURCES[k].key);
    if (every == 0)
        GUARANTEE(s, r->on_completion == (want > 0 && cmd.in.resource_register.on_completion),
                  "%s: another policy", RESOURCES[k].key);
    GUARANTEE(s,
              state->generation == r->generation && state->count == r->count &&
                  state->registered_seq == r->registered_seq && state->every_steps == r->every &&
                  state->on_completion == r->on_completion &&
                  state->covered == (log_open_checkpoint(r) != NULL) &&
                  text_is(state->binding, r->binding) && text_is(state->checkpoint_ref, r->ref),
              "%s: answered with another state", RESOURCES[k].key);
}

static void handler_bind(struct sim *s, struct handler *h)
{
    struct command cmd = {.type = COMMAND_RESOURCE_BIND};
    int k = pick_key(s, h);
    const struct log_resource *r = &s->x[h->x].log.resources[k];
    const char *was = r->binding;
    bool registered = r->registered;
    struct str binding = was != NULL && roll(s, 3) != 0
                             ? str_of(was)
                             : arena_printf(&s->keep, "{\"id\": %d}", ++s->names);

    cmd.in.resource_bind = (struct resource_binding){.execution_id = s->x[h->x].id,
                                                     .agent_id = STR("a"),
                                                     .lease = h->lease,
                                                     .key = str_of(RESOURCES[k].key),
                                                     .binding = binding};
    hash_sha256(binding, &cmd.in.resource_bind.binding_hash);
    if (!done(s, h, &cmd))
        return;
    if (!registered)
        GUARANTEE(s, cmd.verdict == VERDICT_REFUSED && cmd.err.code == ERR_VALIDATION,
                  "bound, and not registered");
    else if (was != NULL && !str_eq(binding, str_of(was)))
        GUARANTEE(s, cmd.verdict == VERDICT_REFUSED && cmd.err.code == ERR_CONFLICT,
                  "bound to something else");
    else
        GUARANTEE(s,
                  cmd.verdict == VERDICT_DONE && r->binding != NULL &&
                      str_eq(binding, str_of(r->binding)),
                  "not bound");
}

/* Outside a step: it covers the latest event before the call's own. */
static void handler_capture(struct sim *s, struct handler *h)
{
    struct command cmd = {.type = COMMAND_RESOURCE_CAPTURE};
    struct log *log = &s->x[h->x].log;
    struct report report;
    int64_t before = (int64_t)log->events.n;

    fill_report(s, h, 0, NULL, &report);
    cmd.in.resource_capture = (struct resource_capture){
        .execution_id = s->x[h->x].id,
        .agent_id = STR("a"),
        .lease = h->lease,
        .report = {report.captures, report.n_captures, report.failures, report.n_failures},
    };
    if (!done(s, h, &cmd))
        return;
    GUARANTEE(s, cmd.verdict == VERDICT_DONE, "a capture was refused: %s", cmd.err.message);
    if (before < (int64_t)log->events.n && log->events.at[before].type == EVENT_DISPATCH_ACKED)
        before++;
    check_report(s, h->x, &report, before, before);
}

void handler_resources(struct sim *s, struct handler *h)
{
    log_read(s, h->x);
    switch (all_registered(&s->x[h->x]) ? roll(s, 4) : roll(s, 8)) {
    case 1:
        handler_bind(s, h);
        return;
    case 2:
    case 3:
        handler_capture(s, h);
        return;
    default:
        handler_register(s, h);
    }
}
