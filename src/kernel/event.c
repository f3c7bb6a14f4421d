/* SPDX-License-Identifier: Apache-2.0 */
#include "kernel/event.h"

#include "base/clock.h"
#include "base/json.h"

/* Starts a line and takes the next sequence number. */
static struct transition *line_begin(struct working_set *ws, struct execution *exec,
                                     enum event_type type)
{
    struct transition *t = ws_transition(ws, exec);

    exec->last_seq++;
    t->count++;
    buf_add(&t->body, event_type_name(type));
    buf_add_byte(&t->body, '\t');
    return t;
}

enum { TAB_MARK = '\001', LINE_MARK = '\002' };

static void replace(char *p, size_t n, char from, char to)
{
    for (char *end = p + n; (p = memchr(p, from, (size_t)(end - p))) != NULL; p++)
        *p = to;
}

static void add_members(struct buf *out, struct str members)
{
    size_t start = out->n;

    buf_add(out, members);
    if (out->failed || out->n == start)
        return;
    replace(out->p + start, out->n - start, '\t', TAB_MARK);
    replace(out->p + start, out->n - start, '\n', LINE_MARK);
}

static void add_id(struct buf *out, const struct uuid *id)
{
    char text[UUID_TEXT_LEN];

    uuid_format(id, text);
    buf_add(out, str_make(text, sizeof(text)));
}

void event_execution(struct working_set *ws, struct execution *exec, enum event_type type,
                     struct str extra)
{
    struct buf *out = &line_begin(ws, exec, type)->body;

    buf_add(out, STR("\"execution_id\":\""));
    add_id(out, &exec->id);
    buf_add(out, STR("\",\"status\":\""));
    buf_add(out, execution_status_name(exec->status));
    buf_add_byte(out, '"');
    if (str_present(exec->session)) {
        buf_add(out, STR(",\"session\":"));
        json_add_string(out, exec->session);
    }
    if (exec->deadline_at != 0) {
        buf_add(out, STR(",\"deadline_at\":\""));
        clock_format_rfc3339(out, exec->deadline_at);
        buf_add_byte(out, '"');
    }
    add_members(out, extra);
    buf_add_byte(out, '\n');
}

/* The members of this step's events are already the last full ones of the body: they can be
 * referred to. */
static bool shares(struct str body, struct str members)
{
    size_t at = body.n;

    while (at > 0) { /* lines backwards, to the last one without '&' */
        size_t end = at - 1;
        const char *nl = memrchr(body.p, '\n', end);
        size_t start = nl == NULL ? 0 : (size_t)(nl - body.p) + 1;
        const char *tab = memchr(body.p + start, '\t', end - start);
        struct str line = str_slice(body, (size_t)(tab - body.p) + 1, end);

        if (!str_starts(line, STR("&")))
            return str_eq(line, members);
        at = start;
    }
    return false;
}

void event_step(struct working_set *ws, const struct step *step, enum event_type type,
                struct str extra)
{
    struct transition *t = ws_transition(ws, step->execution);
    struct buf members = {0};

    buf_add(&members, STR("\"step_id\":\""));
    buf_add_hex(&members, step->id.b, sizeof(step->id.b));
    buf_add(&members, STR("\",\"step_type\":\""));
    buf_add(&members, step_kind_name(step->kind));
    buf_add(&members, STR("\",\"target\":"));
    json_add_string(&members, step->target);
    if (t->count > 0 && shares(buf_str(&t->body), buf_str(&members))) {
        buf_clear(&members);
        buf_add_byte(&members, '&');
    }
    t = line_begin(ws, step->execution, type);
    buf_add(&t->body, buf_str(&members));
    add_members(&t->body, extra);
    buf_add_byte(&t->body, '\n');
    buf_free(&members);
}

/* The status an event shows is the one it brought about. */
static struct str dispatch_event_status(enum event_type type)
{
    struct str name = event_type_name(type);

    return str_slice(name, sizeof("dispatch.") - 1, name.n);
}

void event_dispatch(struct working_set *ws, struct execution *exec, const struct dispatch *d,
                    enum event_type type)
{
    struct buf *out = &line_begin(ws, exec, type)->body;

    buf_add(out, STR("\"dispatch_id\":\""));
    add_id(out, &d->id);
    buf_add(out, STR("\",\"execution_id\":\""));
    add_id(out, &exec->id);
    buf_add(out, STR("\",\"status\":\""));
    buf_add(out, dispatch_event_status(type));
    buf_add(out, STR("\",\"attempt\":"));
    buf_add_int(out, d->attempt);
    buf_add_byte(out, '\n');
}

static void add_resource(struct buf *out, struct str key, struct str extra)
{
    buf_add(out, STR("\"key\":"));
    json_add_string(out, key);
    add_members(out, extra);
    buf_add_byte(out, '\n');
}

void event_resource_line(struct buf *out, struct str key, enum event_type type, struct str extra)
{
    buf_add(out, event_type_name(type));
    buf_add_byte(out, '\t');
    add_resource(out, key, extra);
}

void event_resource(struct working_set *ws, struct execution *exec, struct str key,
                    enum event_type type, struct str extra)
{
    add_resource(&line_begin(ws, exec, type)->body, key, extra);
}

static void add_name(struct buf *out, const char *name, struct str value)
{
    if (!str_present(value))
        return;
    buf_printf(out, ",\"%s\":", name);
    json_add_string(out, value);
}

void event_approval(struct working_set *ws, const struct approval *approval, enum event_type type)
{
    struct buf *out = &line_begin(ws, approval->execution, type)->body;

    buf_add(out, STR("\"approval_id\":\""));
    add_id(out, &approval->id);
    buf_add(out, STR("\",\"step_id\":\""));
    buf_add_hex(out, approval->step_id.b, sizeof(approval->step_id.b));
    buf_add(out, STR("\",\"execution_id\":\""));
    add_id(out, &approval->execution->id);
    buf_add(out, STR("\",\"status\":\""));
    buf_add(out, approval_status_name(approval->status));
    buf_add_byte(out, '"');
    add_name(out, "decided_by", approval->decided_by);
    add_name(out, "asserted_by", approval->asserted_by);
    add_name(out, "rationale", approval->rationale);
    buf_add_byte(out, '\n');
}

static const struct str OUTPUT_MARK = STR_INIT("\"output\":@");

bool event_needs_output(struct str body)
{
    return memmem(body.p, body.n, ":@\n", 3) != NULL;
}

bool event_next_line(struct str body, size_t *at, struct str *type, struct str *members)
{
    const char *p = body.p + *at, *tab, *nl;

    if (*at >= body.n)
        return false;
    nl = memchr(p, '\n', body.n - *at);
    tab = memchr(p, '\t', body.n - *at);
    if (nl == NULL || tab == NULL || tab > nl)
        return false;
    *at = (size_t)(nl - body.p) + 1;
    *type = str_make(p, (size_t)(tab - p));
    *members = str_make(tab + 1, (size_t)(nl - tab - 1));
    return true;
}

void event_line_object(struct str members, struct buf *out)
{
    size_t start = out->n;

    if (str_starts(members, STR("&")))
        members = str_slice(members, 1, members.n);
    if (str_starts(members, STR(",")))
        members = str_slice(members, 1, members.n);
    buf_add_byte(out, '{');
    buf_add(out, members);
    buf_add_byte(out, '}');
    if (out->failed)
        return;
    replace(out->p + start, out->n - start, TAB_MARK, '\t');
    replace(out->p + start, out->n - start, LINE_MARK, '\n');
}

bool event_next(struct event_reader *r, struct buf *scratch, struct event_line *out)
{
    struct str members;

    if (!event_next_line(r->body, &r->at, &out->type, &members))
        return false;
    buf_clear(scratch);
    buf_add_byte(scratch, '{');
    if (str_starts(members, STR("&"))) {
        buf_add(scratch, r->shared);
        members = str_slice(members, 1, members.n);
    } else {
        r->shared = members;
    }
    buf_add(scratch, members);
    if (members.n >= OUTPUT_MARK.n &&
        str_eq(str_slice(members, members.n - OUTPUT_MARK.n, members.n), OUTPUT_MARK)) {
        scratch->n--;
        buf_add(scratch, str_present(r->output) ? r->output : STR("null"));
    }
    buf_add_byte(scratch, '}');
    if (!scratch->failed) {
        replace(scratch->p, scratch->n, TAB_MARK, '\t');
        replace(scratch->p, scratch->n, LINE_MARK, '\n');
    }
    out->payload = buf_str(scratch);
    return true;
}
