/* SPDX-License-Identifier: Apache-2.0
 * Approvals for people. */
#include "cli/approval_view.h"

#include "base/clock.h"
#include "cli/layout.h"
#include "cli/text.h"
#include "cli/view.h"

enum {
    ASK_INDENT = 6,     /* under the type of an event's line */
    ASK_LINES_MAX = 24, /* of arguments; a longer one shows its first lines and says so */
    ASK_LINES_CUT = 20,
};

void approval_read(struct str json, struct shown_approval *out, struct arena *a)
{
    struct str approvers;
    const struct view_field fields[] = {
        {"id", true, &out->id},
        {"execution_id", true, &out->execution_id},
        {"status", true, &out->status},
        {"agent_id", true, &out->agent_id},
        {"kind", true, &out->kind},
        {"target", true, &out->target},
        {"args", false, &out->args},
        {"message", true, &out->message},
        {"approvers", false, &approvers},
        {"timeout_at", true, &out->timeout_at},
        {"created_at", true, &out->created_at},
        {"decided_at", true, &out->decided_at},
        {"decided_by", true, &out->decided_by},
        {"asserted_by", true, &out->asserted_by},
        {"rationale", true, &out->rationale},
    };

    view_read(json, fields, COUNT(fields), a);
    out->approvers = view_names(approvers, a);
}

bool approval_is_pending(const struct shown_approval *v)
{
    return str_eq(v->status, STR("pending"));
}

struct str approval_step(const struct shown_approval *v, struct arena *a)
{
    return arena_printf(a, "%.*s%s%.*s", STR_ARG(v->kind), v->target.n > 0 ? " " : "",
                        STR_ARG(v->target));
}

struct str approval_command(const struct cli *c, const char *verb, struct str id, struct arena *a)
{
    const char *url = cli_flag(c, "url");

    return arena_printf(a, "rebuno approval %s %.*s%s%s", verb, STR_ARG(view_short_id(id)),
                        url == NULL ? "" : " --url ", url == NULL ? "" : url);
}

/* ---- the page ---- */

static void print_decision(struct cli *c, const struct shown_approval *v, int64_t now,
                           struct arena *a)
{
    struct str by = v->decided_by;

    if (str_present(v->asserted_by))
        by = arena_printf(a, "%.*s, as stated by %.*s", STR_ARG(by), STR_ARG(v->asserted_by));
    view_pair(c, "decided", view_when(v->decided_at, now, a));
    view_pair(c, "decided by", by);
    view_pair(c, "reason", v->rationale);
}

static void print_args(struct cli *c, struct str args)
{
    struct buf lines = {0};

    if (!str_present(args)) {
        view_pair(c, "arguments", STR("none"));
        return;
    }
    view_text(c, 0, PAINT_DIM, STR("arguments"));
    layout_json(&lines, args, 2, c->width);
    cli_put(c, PAINT_NONE, buf_str(&lines));
    buf_free(&lines);
}

void approval_print(struct cli *c, const struct shown_approval *v, struct arena *a)
{
    int64_t now = clock_wall_us();
    bool pending = approval_is_pending(v);

    view_pair_painted(c, "id", PAINT_BOLD, v->id);
    view_pair_painted(c, "status", view_status_paint(v->status), v->status);
    view_pair(c, "agent", v->agent_id);
    view_pair(c, "execution", v->execution_id);
    view_pair_painted(c, "asks for", PAINT_BOLD, approval_step(v, a));
    view_pair(c, "message", v->message);
    view_pair(c, "approvers", v->approvers);
    view_pair(c, "requested", view_when(v->created_at, now, a));
    if (pending)
        view_pair(c, "expires", view_when(v->timeout_at, now, a));
    else
        print_decision(c, v, now, a);
    print_args(c, v->args);
    if (!pending)
        return;
    fputc('\n', c->out);
    view_pair(c, "to grant it", approval_command(c, "grant", v->id, a));
    view_pair(
        c, "to deny it",
        arena_printf(a, "%.*s --reason TEXT", STR_ARG(approval_command(c, "deny", v->id, a))));
}

/* ---- between events ---- */

static size_t count_lines(struct str lines, size_t at_most, size_t *bytes)
{
    size_t n = 0;

    for (size_t i = 0; i < lines.n; i++) {
        if (lines.p[i] == '\n' && n++ < at_most)
            *bytes = i + 1;
    }
    return n;
}

static void ask_args(struct cli *c, const struct shown_approval *v, struct arena *a)
{
    struct buf lines = {0};
    size_t kept = 0;

    if (!str_present(v->args))
        return;
    layout_json(&lines, v->args, ASK_INDENT + 2, c->width);
    size_t n = count_lines(buf_str(&lines), ASK_LINES_CUT, &kept);
    if (n <= ASK_LINES_MAX) {
        cli_put(c, PAINT_NONE, buf_str(&lines));
    } else {
        cli_put(c, PAINT_NONE, str_slice(buf_str(&lines), 0, kept));
        view_text(c, ASK_INDENT + 2, PAINT_BUSY,
                  arena_printf(a, "… and %zu more lines: %.*s", n - ASK_LINES_CUT,
                               STR_ARG(approval_command(c, "get", v->id, a))));
    }
    buf_free(&lines);
}

void approval_ask(struct cli *c, const struct shown_approval *v, struct arena *a)
{
    struct str step = approval_step(v, a), until = view_when(v->timeout_at, clock_wall_us(), a);

    view_text(c, ASK_INDENT, PAINT_BOLD,
              arena_printf(a, "%.*s asks for %.*s until %.*s", STR_ARG(v->agent_id), STR_ARG(step),
                           STR_ARG(until)));
    if (str_present(v->message))
        view_text(c, ASK_INDENT, PAINT_NONE, v->message);
    if (str_present(v->approvers))
        view_text(c, ASK_INDENT, PAINT_NONE,
                  arena_printf(a, "only these may decide: %.*s", STR_ARG(v->approvers)));
    ask_args(c, v, a);
    view_text(c, ASK_INDENT, PAINT_BUSY, approval_command(c, "grant", v->id, a));
    view_text(c, ASK_INDENT, PAINT_BUSY, approval_command(c, "deny", v->id, a));
}
