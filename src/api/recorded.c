/* SPDX-License-Identifier: Apache-2.0 */
#include "api/recorded.h"

#include "base/clock.h"
#include "kernel/event.h"

#include <stdlib.h>

enum { EXECUTIONS_AHEAD = 16, ROWS_MAX = 64, BYTES_MAX = 128 * 1024 };

/* One event that says what was decided of a new step. */
struct decided {
    enum policy_action action;
    struct str rule_id, policy_hash, reason; /* arena of the page */
};

struct recorded {
    char *agent_id, *session; /* owned */
    struct execution_filter filter;
    struct uuid before; /* the last execution that was listed */
    int64_t since_us, left;

    struct uuid ahead[EXECUTIONS_AHEAD]; /* executions still to be read: at … n-1 */
    size_t at, n;

    bool open; /* `execution` is being read */
    struct uuid execution;
    int64_t after_seq;
    bool at_end; /* its log has been read */

    struct arena page; /* decisions of the last page of its log, of which `done` are handed out */
    struct decided *decided;
    struct hash *steps;
    size_t n_decided, cap_decided, done;
};

/* The first id that can have been made at this time: they begin with milliseconds, and are never
 * older than what they name. */
static struct uuid first_id_at(int64_t wall_us)
{
    uint64_t ms = wall_us < 0 ? 0 : (uint64_t)(wall_us / US_PER_MS);
    struct uuid id = {{0}};

    if (ms >> 48 != 0)
        ms = (UINT64_C(1) << 48) - 1;
    for (size_t i = 0; i < 6; i++)
        id.b[i] = (uint8_t)(ms >> (40 - 8 * i));
    return id;
}

struct recorded *recorded_new(const struct recorded_query *q)
{
    struct recorded *rec = xzalloc(sizeof(*rec));

    rec->agent_id = xstrdup(q->agent_id);
    rec->filter.agent_id = str_make(rec->agent_id, q->agent_id.n);
    if (str_present(q->session)) {
        rec->session = xstrdup(q->session);
        rec->filter.session = str_make(rec->session, q->session.n);
    }
    rec->filter.low = first_id_at(q->since_us);
    memset(rec->filter.high.b, 0xff, sizeof(rec->filter.high.b));
    rec->filter.limit = EXECUTIONS_AHEAD;
    rec->filter.max_bytes = BYTES_MAX;
    rec->since_us = q->since_us;
    rec->left = q->limit;
    if (q->execution_id != NULL) {
        rec->ahead[0] = *q->execution_id;
        rec->n = 1;
        rec->left = 0;
    }
    return rec;
}

void recorded_free(struct recorded *rec)
{
    if (rec == NULL)
        return;
    arena_free(&rec->page);
    free(rec->decided);
    free(rec->steps);
    free(rec->agent_id);
    free(rec->session);
    free(rec);
}

/* ---- executions ---- */

static bool list_ahead(struct recorded *rec, struct store_reader *r, struct err *e)
{
    struct arena arena = {0};
    struct execution_view *rows;
    size_t n;
    bool ok;

    rec->at = rec->n = 0;
    ok = store_list_executions(r, &rec->filter, &arena, &rows, &n, e);
    if (!ok || n == 0)
        rec->left = 0;
    for (size_t i = 0; ok && i < n && rec->left > 0; i++) {
        rec->before = rows[i].id;
        rec->filter.before = &rec->before;
        if (rows[i].created_at < rec->since_us)
            continue;
        rec->ahead[rec->n++] = rows[i].id;
        rec->left--;
    }
    arena_free(&arena);
    return ok;
}

/* *more false: there are no further ones. */
static bool open_next(struct recorded *rec, struct store_reader *r, bool *more, struct err *e)
{
    if (rec->at == rec->n && rec->left > 0 && !list_ahead(rec, r, e))
        return false;
    *more = rec->at < rec->n || rec->left > 0;
    if (rec->at == rec->n)
        return true;
    rec->execution = rec->ahead[rec->at++];
    rec->open = true;
    rec->after_seq = 0;
    rec->at_end = false;
    return true;
}

/* ---- decisions ---- */

/* A person's word, a time-out and the end of an execution write events of these types too, but no
 * rule stands behind them. Two rules are the kernel's own, above every bundle. */
static bool is_policys(struct str rule_id)
{
    return str_present(rule_id) && !str_eq(rule_id, STR("__indeterminate_retry")) &&
           !str_eq(rule_id, STR("__fork_effect"));
}

static bool action_of(struct str type, enum policy_action *out)
{
    static const struct {
        enum event_type type;
        enum policy_action action;
    } TYPES[] = {
        {EVENT_STEP_ALLOWED, POLICY_ALLOW},
        {EVENT_STEP_DENIED, POLICY_DENY},
        {EVENT_STEP_AWAITING_APPROVAL, POLICY_REQUIRE_APPROVAL},
    };

    for (size_t i = 0; i < COUNT(TYPES); i++) {
        if (str_eq(type, event_type_name(TYPES[i].type))) {
            *out = TYPES[i].action;
            return true;
        }
    }
    return false;
}

static struct str text_member(struct str object, const char *name, struct arena *a)
{
    struct str value = json_get(object, str_of(name), a);

    return str_present(value) ? arena_str(a, json_string(value, a)) : STR_NONE;
}

static void add_decided(struct recorded *rec, const struct decided *d, const struct hash *step)
{
    if (rec->n_decided == rec->cap_decided) {
        rec->cap_decided = rec->cap_decided == 0 ? 64 : 2 * rec->cap_decided;
        rec->decided = xrealloc(rec->decided, rec->cap_decided * sizeof(*rec->decided));
        rec->steps = xrealloc(rec->steps, rec->cap_decided * sizeof(*rec->steps));
    }
    rec->decided[rec->n_decided] = *d;
    rec->steps[rec->n_decided++] = *step;
}

static void take_line(struct recorded *rec, const struct event_line *line)
{
    struct arena *a = &rec->page;
    struct decided d = {0};
    struct hash step;
    struct str error;

    if (!action_of(line->type, &d.action))
        return;
    d.rule_id = text_member(line->payload, "rule_id", a);
    if (!is_policys(d.rule_id) || !hash_parse(text_member(line->payload, "step_id", a), &step))
        return;
    d.policy_hash = text_member(line->payload, "policy_hash", a);
    error = json_get(line->payload, STR("error"), a);
    if (json_type_of(error) == JSON_OBJECT)
        d.reason = text_member(error, "reason", a);
    add_decided(rec, &d, &step);
}

static bool read_log(struct recorded *rec, struct store_reader *r, struct err *e)
{
    struct buf scratch = {0};
    struct event_row *rows;
    struct event_line line;
    size_t n;
    int64_t last_seq;
    bool terminal, found;

    arena_reset(&rec->page);
    rec->n_decided = rec->done = 0;
    if (!store_read_events(r, &rec->execution, rec->after_seq, ROWS_MAX, BYTES_MAX, &rec->page,
                           &rows, &n, &last_seq, &terminal, &found, e))
        return false;
    for (size_t i = 0; i < n; i++) {
        struct event_reader reader = {.body = rows[i].body, .output = STR("null")};
        while (event_next(&reader, &scratch, &line))
            take_line(rec, &line);
        rec->after_seq = rows[i].first_seq + rows[i].count - 1;
    }
    buf_free(&scratch);
    rec->at_end = n == 0 || rec->after_seq >= last_seq;
    return true;
}

/* ---- steps ---- */

static bool fill_step(const struct recorded *rec, size_t number, const struct step_call *call,
                      struct arena *a, struct recorded_step *out, struct err *e)
{
    const struct decided *d = &rec->decided[number];
    struct buf canonical = {0};
    bool ok;

    *out = (struct recorded_step){
        .execution_id = rec->execution,
        .step_id = rec->steps[number],
        .target = str_present(call->target) ? call->target : STR(""),
        .decision = d->action,
        .rule_id = arena_str(a, d->rule_id),
        .reason = arena_str(a, d->reason),
        .policy_hash = arena_str(a, d->policy_hash),
    };
    if (!step_kind_parse(call->kind, &out->kind))
        return err_set(e, ERR_INTERNAL, "a recorded step has no kind");
    ok = canonical_json(str_present(call->args) ? call->args : STR("null"), &canonical, e);
    if (ok) {
        out->args = arena_str(a, buf_str(&canonical));
        ok = (!canonical.failed && str_present(out->args)) ||
             err_set(e, ERR_INTERNAL, "out of memory for recorded arguments");
    }
    buf_free(&canonical);
    return ok;
}

static bool read_steps(struct recorded *rec, struct store_reader *r, struct arena *a,
                       struct recorded_step **out, size_t *n, struct err *e)
{
    struct step_call_query q = {
        .execution_id = &rec->execution,
        .ids = rec->steps + rec->done,
        .count = rec->n_decided - rec->done,
        .max_bytes = BYTES_MAX,
    };
    struct step_call *calls;
    size_t read;

    if (!store_read_calls(r, &q, a, &calls, &read, e))
        return false;
    *out = arena_array(a, struct recorded_step, read);
    for (size_t i = 0; i < read; i++) {
        if (!str_present(calls[i].kind)) /* deleted meanwhile, with its execution */
            continue;
        if (!fill_step(rec, rec->done + i, &calls[i], a, &(*out)[*n], e))
            return false;
        (*n)++;
    }
    rec->done += read;
    return true;
}

bool recorded_next(struct recorded *rec, struct store_reader *r, struct arena *a,
                   struct recorded_step **out, size_t *n, bool *more, struct err *e)
{
    *n = 0;
    *more = true;
    if (!rec->open)
        return open_next(rec, r, more, e);
    if (rec->done < rec->n_decided)
        return read_steps(rec, r, a, out, n, e);
    if (!rec->at_end)
        return read_log(rec, r, e);
    rec->open = false;
    return true;
}
