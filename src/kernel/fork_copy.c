/* SPDX-License-Identifier: Apache-2.0
 * Works on the lines of transitions as they are written: a copied step's event is the source's,
 * with another id in front. */
#include "kernel/fork_copy.h"

#include <stdlib.h>

#include "base/json.h"
#include "kernel/event.h"
#include "kernel/step.h"

enum { FIRST_COPIED_SEQ = 3 }; /* behind execution.created and execution.forked */

struct copied_step {
    struct hash old_id, id;
};

struct copied_event {
    int64_t old_seq, seq;
};

/* What the copied events and steps say of one resource. */
struct key_state {
    struct str key;
    int64_t generation, count;
    int64_t registered_seq; /* in the fork; 0: not yet */
    int64_t every_steps;
    bool on_completion;
};

struct fork_copy {
    struct uuid fork_id;
    int64_t at_seq, next_seq, tokens;
    struct arena arena;
    struct map steps; /* old id → struct copied_step; settled by the fork point */
    struct map keys;  /* key → struct key_state */
    struct buf indeterminate;
    LIST(struct copied_event) events;
    LIST(struct checkpoint) source_checkpoints; /* up to the fork point, by age */
    LIST(struct checkpoint) checkpoints;
    LIST(struct resource) resources;
    struct str restoration;
};

#define ADD(list, value)                                                                           \
    do {                                                                                           \
        if ((list).n == (list).cap) {                                                              \
            (list).cap = (list).cap == 0 ? 64 : (list).cap * 2;                                    \
            (list).at = xrealloc((list).at, (list).cap * sizeof((list).at[0]));                    \
        }                                                                                          \
        (list).at[(list).n++] = (value);                                                           \
    } while (0)

struct fork_copy *fork_copy_new(const struct uuid *fork_id, int64_t at_seq)
{
    struct fork_copy *c = xzalloc(sizeof(*c));

    c->fork_id = *fork_id;
    c->at_seq = at_seq;
    c->next_seq = FIRST_COPIED_SEQ;
    return c;
}

void fork_copy_free(struct fork_copy *c)
{
    if (c == NULL)
        return;
    map_free(&c->steps);
    map_free(&c->keys);
    buf_free(&c->indeterminate);
    free(c->events.at);
    free(c->source_checkpoints.at);
    free(c->checkpoints.at);
    free(c->resources.at);
    arena_free(&c->arena);
    free(c);
}

/* ---- lines ---- */

static const struct str STEP_PREFIX = STR_INIT("\"step_id\":\"");

/* The lines of one transition, up to the fork point. */
struct lines {
    struct str body;
    size_t at;
    int64_t seq, at_seq;
    /* the current one */
    enum event_type type;
    struct str members;
    bool shared; /* it begins with `&` */
    bool has_step;
    struct hash step_id; /* of the last full line, if that was a step's */
};

static bool next_line(struct lines *l)
{
    struct str name;

    while (event_next_line(l->body, &l->at, &name, &l->members)) {
        bool known = event_type_parse(name, &l->type);

        if (++l->seq > l->at_seq)
            return false;
        l->shared = str_starts(l->members, STR("&"));
        if (!l->shared)
            l->has_step =
                str_starts(l->members, STEP_PREFIX) &&
                l->members.n > STEP_PREFIX.n + HASH_HEX_LEN &&
                hash_parse(str_slice(l->members, STEP_PREFIX.n, STEP_PREFIX.n + HASH_HEX_LEN),
                           &l->step_id);
        if (known)
            return true;
    }
    return false;
}

static bool is_step_event(enum event_type type)
{
    return type >= EVENT_STEP_PROPOSED && type <= EVENT_STEP_CANCELLED;
}

static struct str hash_str(const struct hash *h)
{
    return str_make(h->b, sizeof(h->b));
}

void fork_copy_survey(struct fork_copy *c, int64_t first_seq, struct str body)
{
    struct lines l = {.body = body, .seq = first_seq - 1, .at_seq = c->at_seq};

    while (next_line(&l)) {
        struct copied_step *step;

        if (!l.has_step || (l.type != EVENT_STEP_SUCCEEDED && l.type != EVENT_STEP_FAILED &&
                            l.type != EVENT_STEP_DENIED))
            continue;
        step = arena_new(&c->arena, struct copied_step);
        step->old_id = l.step_id;
        map_put(&c->steps, hash_str(&step->old_id), step);
    }
}

/* ---- steps ---- */

static struct key_state *state_of(struct fork_copy *c, struct str key)
{
    struct key_state *state = map_get(&c->keys, key);

    if (state == NULL) {
        state = arena_new(&c->arena, struct key_state);
        state->key = arena_str(&c->arena, key);
        map_put(&c->keys, state->key, state);
    }
    return state;
}

static void count_step(struct fork_copy *c, const struct step *step, const struct call *call)
{
    struct json_walk walk = {0};
    struct arena scratch = {0};
    struct str item;
    struct call_key key;

    c->tokens = usage_add(c->tokens, step->usage);
    if (step->status == STEP_FAILED && step_error_is_indeterminate(step->error)) {
        call_key(call, &key);
        buf_add(&c->indeterminate, str_make(key.b, sizeof(key.b)));
    }
    if (step->kind == KIND_LLM_CALL || step->status == STEP_DENIED || !str_present(step->affects))
        return;
    while (json_next_item(step->affects, &walk, &item))
        state_of(c, json_string(item, &scratch))->count++;
    arena_free(&scratch);
}

bool fork_copy_step(struct fork_copy *c, const struct step *step, struct step_copy *out)
{
    struct copied_step *copied = map_get(&c->steps, hash_str(&step->id));
    struct call call = {step_kind_name(step->kind), step->target, step->args_hash};

    if (copied == NULL)
        return false;
    step_id(&c->fork_id, &call, step->occurrence, &copied->id);
    *out = (struct step_copy){
        .id = copied->id,
        .kind = step->kind,
        .target = step->target,
        .args_hash = step->args_hash,
        .occurrence = step->occurrence,
        .status = step->status,
        .idempotency = step->idempotency,
        .rule_id = step->rule_id,
        .affects = step->affects,
        .usage = step->usage,
        .created_at = step->created_at,
        .started_at = step->started_at,
        .completed_at = step->completed_at,
        .payload_key = step->key,
    };
    count_step(c, step, &call);
    return true;
}

/* ---- events ---- */

static void raise_generation(struct fork_copy *c, struct str key, struct str value)
{
    struct key_state *state = state_of(c, key);
    int64_t generation;

    if (json_int64(value, &generation) && generation > state->generation)
        state->generation = generation;
}

static void note_generations(struct fork_copy *c, struct str members)
{
    struct buf object = {0};
    struct arena scratch = {0};
    struct json_walk walk = {0};
    struct json_member m;
    struct str map;

    event_line_object(members, &object);
    map = json_get(buf_str(&object), STR("generations"), &scratch);
    while (str_present(map) && json_next_member(map, &walk, &scratch, &m))
        raise_generation(c, m.key, m.value);
    arena_free(&scratch);
    buf_free(&object);
}

static void note_resource(struct fork_copy *c, enum event_type type, struct str members,
                          int64_t seq)
{
    struct buf object = {0};
    struct arena scratch = {0};
    struct key_state *state;
    struct str text, key;

    event_line_object(members, &object);
    text = buf_str(&object);
    key = json_string(json_get(text, STR("key"), &scratch), &scratch);
    state = state_of(c, key);
    if (type == EVENT_RESOURCE_INITIALIZED) {
        raise_generation(c, key, json_get(text, STR("generation"), &scratch));
    } else {
        if (state->registered_seq == 0)
            state->registered_seq = seq;
        if (!json_int64(json_get(text, STR("every_steps"), &scratch), &state->every_steps))
            state->every_steps = 0;
        state->on_completion = str_eq(json_get(text, STR("on_completion"), &scratch), STR("true"));
    }
    arena_free(&scratch);
    buf_free(&object);
}

static void add_line(struct buf *body, const struct lines *l, const struct hash *new_id)
{
    buf_add(body, event_type_name(l->type));
    buf_add_byte(body, '\t');
    if (new_id == NULL || l->shared) {
        buf_add(body, l->members);
    } else {
        buf_add(body, STEP_PREFIX);
        buf_add_hex(body, new_id->b, sizeof(new_id->b));
        buf_add(body, str_slice(l->members, STEP_PREFIX.n + HASH_HEX_LEN, l->members.n));
    }
    buf_add_byte(body, '\n');
}

/* Is this line copied, and under which id? */
static bool is_copied(const struct fork_copy *c, const struct lines *l, const struct hash **new_id)
{
    const struct copied_step *step;

    *new_id = NULL;
    if (l->type == EVENT_RESOURCE_REGISTERED || l->type == EVENT_RESOURCE_INITIALIZED)
        return true;
    if (!is_step_event(l->type) || !l->has_step)
        return false;
    step = map_get(&c->steps, hash_str(&l->step_id));
    if (step == NULL)
        return false;
    *new_id = &step->id;
    return true;
}

int64_t fork_copy_events(struct fork_copy *c, int64_t source_first_seq, struct str source_body,
                         int64_t *first_seq, struct buf *body)
{
    struct lines l = {.body = source_body, .seq = source_first_seq - 1, .at_seq = c->at_seq};
    const struct hash *new_id;

    *first_seq = c->next_seq;
    while (next_line(&l)) {
        struct copied_event event = {l.seq, c->next_seq};

        if (!is_copied(c, &l, &new_id))
            continue;
        if (new_id == NULL)
            note_resource(c, l.type, l.members, event.seq);
        else if (l.type == EVENT_STEP_EXECUTING)
            note_generations(c, l.members);
        add_line(body, &l, new_id);
        ADD(c->events, event);
        c->next_seq++;
    }
    return c->next_seq - *first_seq;
}

/* ---- checkpoints ---- */

void fork_copy_checkpoint(struct fork_copy *c, const struct checkpoint *checkpoint)
{
    struct checkpoint copy = *checkpoint;

    if (checkpoint->covered_seq > c->at_seq)
        return;
    copy.execution = NULL;
    copy.resource = arena_str(&c->arena, checkpoint->resource);
    copy.checkpoint_ref = arena_str(&c->arena, checkpoint->checkpoint_ref);
    ADD(c->source_checkpoints, copy);
}

static bool covers(const struct checkpoint *checkpoint, int64_t seq)
{
    return checkpoint->covered_seq <= seq &&
           (checkpoint->invalidated_seq == 0 || checkpoint->invalidated_seq > seq);
}

/* The newest that covers the fork point, else the newest by then; NULL: none. */
static const struct checkpoint *best_checkpoint(const struct fork_copy *c, struct str key)
{
    const struct checkpoint *newest = NULL;

    for (size_t i = c->source_checkpoints.n; i-- > 0;) {
        const struct checkpoint *checkpoint = &c->source_checkpoints.at[i];

        if (!str_eq(checkpoint->resource, key))
            continue;
        if (covers(checkpoint, c->at_seq))
            return checkpoint;
        if (newest == NULL)
            newest = checkpoint;
    }
    return newest;
}

/* The place of the first copied event that stood at or behind `old_seq`; events.n: there is none.
 */
static size_t first_copied_from(const struct fork_copy *c, int64_t old_seq)
{
    size_t low = 0, high = c->events.n;

    while (low < high) {
        size_t mid = low + (high - low) / 2;

        if (c->events.at[mid].old_seq < old_seq)
            low = mid + 1;
        else
            high = mid;
    }
    return low;
}

/* In the fork's sequences. What was invalidated behind the fork point is open again. */
static struct checkpoint mapped(const struct fork_copy *c, const struct checkpoint *checkpoint)
{
    struct checkpoint out = *checkpoint;
    size_t covered = first_copied_from(c, checkpoint->covered_seq + 1);
    size_t invalidated = first_copied_from(c, checkpoint->invalidated_seq);

    ASSERT(covered > 0); /* its resource was registered before, and that was copied */
    out.covered_seq = c->events.at[covered - 1].seq;
    if (checkpoint->invalidated_seq == 0 || checkpoint->invalidated_seq > c->at_seq)
        out.invalidated_seq = 0;
    else
        out.invalidated_seq = invalidated < c->events.n ? c->events.at[invalidated].seq : -1;
    return out;
}

static void copy_checkpoints(struct fork_copy *c, struct str key)
{
    size_t first = c->checkpoints.n;

    for (size_t i = 0; i < c->source_checkpoints.n; i++) {
        struct checkpoint out;

        if (!str_eq(c->source_checkpoints.at[i].resource, key))
            continue;
        out = mapped(c, &c->source_checkpoints.at[i]);
        if (c->checkpoints.n > first &&
            c->checkpoints.at[c->checkpoints.n - 1].covered_seq == out.covered_seq)
            c->checkpoints.at[c->checkpoints.n - 1] = out; /* the newest of those on one event */
        else
            ADD(c->checkpoints, out);
    }
}

/* ---- resources ---- */

bool fork_copy_wants_inherited(const struct fork_copy *c, const struct resource *row)
{
    return row->inherited && row->registered_seq <= c->at_seq &&
           best_checkpoint(c, row->key) == NULL;
}

/* What one resource is restored from. */
struct restored {
    struct str checkpoint_ref; /* absent: nothing, its driver's initial environment */
    int64_t checkpoint_seq;    /* 0: not known */
    int64_t generation;        /* of a checkpoint that covers the point; else 0 */
    bool covered;
    struct uuid execution_id; /* whose checkpoint it is, if not the source's; else nil */
};

static struct restored restore(const struct fork_copy *c, const struct resource *row,
                               const struct inherited_checkpoint *inherited, size_t n)
{
    const struct checkpoint *own = best_checkpoint(c, row->key);

    if (own != NULL) {
        bool covered = covers(own, c->at_seq);

        return (struct restored){.checkpoint_ref = own->checkpoint_ref,
                                 .checkpoint_seq = own->covered_seq,
                                 .generation = covered ? own->generation : 0,
                                 .covered = covered};
    }
    for (size_t i = 0; i < n; i++)
        if (str_eq(inherited[i].resource, row->key) && str_present(inherited[i].checkpoint_ref))
            return (struct restored){.checkpoint_ref = inherited[i].checkpoint_ref,
                                     .checkpoint_seq = inherited[i].covered_seq,
                                     .execution_id = inherited[i].execution_id};
    /* A fork that has no checkpoint yet was itself restored from this. */
    return (struct restored){.checkpoint_ref = row->restored_ref,
                             .execution_id = row->restored_from};
}

static void add_restoration(struct json_writer *w, struct str key, const struct restored *from)
{
    char id[UUID_TEXT_LEN];

    if (w->comma)
        buf_add_byte(w->out, ',');
    json_add_string(w->out, key);
    buf_add_byte(w->out, ':');
    w->comma = false;
    jw_open(w, '{');
    jw_member_str_opt(w, "checkpoint_ref", from->checkpoint_ref);
    if (from->checkpoint_seq > 0)
        jw_member_int(w, "checkpoint_seq", from->checkpoint_seq);
    jw_key(w, "covered");
    jw_bool(w, from->covered);
    if (!uuid_is_nil(&from->execution_id)) {
        uuid_format(&from->execution_id, id);
        jw_member_str(w, "checkpoint_execution_id", str_make(id, sizeof(id)));
    }
    jw_close(w, '}');
}

static struct resource begun(struct fork_copy *c, const struct resource *row,
                             const struct restored *from)
{
    const struct key_state *state = state_of(c, row->key);
    int64_t highest = state->generation > from->generation ? state->generation : from->generation;

    return (struct resource){
        .key = arena_str(&c->arena, row->key),
        .driver_id = arena_str(&c->arena, row->driver_id),
        .configuration = arena_str(&c->arena, row->configuration),
        .configuration_hash = row->configuration_hash,
        .coverage_reuse = row->coverage_reuse,
        .every_steps = state->every_steps,
        .on_completion = state->on_completion,
        .generation = from->covered ? highest : highest + 1,
        .count = state->count,
        .registered_seq = state->registered_seq,
        .checkpoint_ref = arena_str(&c->arena, from->checkpoint_ref),
        .covered = from->covered,
        /* Forked again, that of an earlier turn is still older than any event. A checkpoint of its
         * own is copied, and counts from its event on. */
        .restored_ref = uuid_is_nil(&from->execution_id)
                            ? STR_NONE
                            : arena_str(&c->arena, from->checkpoint_ref),
        .restored_from = from->execution_id,
    };
}

void fork_copy_resources(struct fork_copy *c, const struct resource *rows, size_t n,
                         const struct inherited_checkpoint *inherited, size_t n_inherited)
{
    struct buf text = {0};
    struct json_writer w = {.out = &text};

    jw_open(&w, '{');
    for (size_t i = 0; i < n; i++) {
        struct restored from;
        struct resource row;

        if (rows[i].registered_seq > c->at_seq)
            continue;
        from = restore(c, &rows[i], inherited, n_inherited);
        row = begun(c, &rows[i], &from);
        ADD(c->resources, row);
        copy_checkpoints(c, rows[i].key);
        add_restoration(&w, rows[i].key, &from);
    }
    jw_close(&w, '}');
    if (c->resources.n > 0)
        c->restoration = arena_str(&c->arena, buf_str(&text));
    buf_free(&text);
}

struct fork_copied fork_copy_result(const struct fork_copy *c)
{
    return (struct fork_copied){
        .next_seq = c->next_seq,
        .tokens = c->tokens,
        .indeterminate = buf_str(&c->indeterminate),
        .resources = c->resources.at,
        .n_resources = c->resources.n,
        .checkpoints = c->checkpoints.at,
        .n_checkpoints = c->checkpoints.n,
        .restoration = c->restoration,
    };
}
