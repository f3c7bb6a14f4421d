/* SPDX-License-Identifier: Apache-2.0
 * Differences for people. Every line belongs to both runs or is a pair of what each has there, so
 * that one text serves both forms: side by side, with a sign in the middle, or one below the other
 * with `-` and `+`. */
#include "cli/diff_view.h"

#include "base/json.h"
#include "cli/json_diff.h"
#include "cli/text.h"
#include "cli/view.h"

enum {
    WIDE_MIN = 120,      /* columns from which on there is room for two sides */
    PLAIN_COLUMNS = 200, /* of a line where no terminal reads: payloads can be megabytes */
    NAME_COLUMNS = 8,
    PLACES_SHOWN = 8, /* in one payload */
    STEPS_SHOWN = 20, /* with what differs in their payloads: two requests each */
};
#define BAR "\xe2\x94\x82"

struct sheet {
    struct cli *c;
    struct comparison *d;
    size_t width, half; /* half 0: one below the other */
    const char *indent; /* of named values */
    size_t shown;       /* steps */
    struct arena a;     /* of the step that is shown */
};

/* ---- lines ---- */

static void put_cut(struct cli *c, enum paint paint, struct str clean, size_t columns, bool pad)
{
    struct buf cut = {0};

    if (clean.n == 0)
        paint = PAINT_NONE;
    text_fit(&cut, clean, columns);
    size_t used = text_columns(buf_str(&cut));
    fputs(paint_begin(c->out_colour, paint), c->out);
    fwrite(buf_str(&cut).p, 1, cut.n, c->out);
    fputs(paint_end(c->out_colour, paint), c->out);
    if (pad)
        fprintf(c->out, "%*s", (int)(columns - used), "");
    buf_free(&cut);
}

static void put_side(struct sheet *s, enum paint paint, struct str text, size_t columns, bool pad)
{
    struct buf clean = {0};

    text_clean(&clean, text, TEXT_ONE_LINE);
    put_cut(s->c, paint, buf_str(&clean), columns, pad);
    buf_free(&clean);
}

/* A line of both. */
static void put_both(struct sheet *s, enum paint paint, struct str text)
{
    fputs("  ", s->c->out);
    put_side(s, paint, text, s->width - 2, false);
    fputc('\n', s->c->out);
}

static void put_signed(struct sheet *s, const char *sign, enum paint paint, struct str text)
{
    fprintf(s->c->out, "%s%s%s ", paint_begin(s->c->out_colour, paint), sign,
            paint_end(s->c->out_colour, paint));
    put_side(s, paint, text, s->width - strlen(sign) - 1, false);
    fputc('\n', s->c->out);
}

/* What each has there; absent: nothing. */
static void put_pair(struct sheet *s, struct str a, struct str b)
{
    FILE *out = s->c->out;
    bool in_a = str_present(a), in_b = str_present(b);

    if (s->half == 0) {
        if (in_a)
            put_signed(s, "-", PAINT_BAD, a);
        if (in_b)
            put_signed(s, "+", PAINT_GOOD, b);
        return;
    }
    fputs("  ", out);
    put_side(s, PAINT_BAD, in_a ? a : STR(""), s->half, in_b || in_a);
    fprintf(out, " %s%s%s%s", paint_begin(s->c->out_colour, PAINT_DIM),
            !in_b ? "<" : (in_a ? BAR : ">"), paint_end(s->c->out_colour, PAINT_DIM),
            in_b ? " " : "");
    if (in_b)
        put_side(s, PAINT_GOOD, b, s->half, false);
    fputc('\n', out);
}

static struct str named(struct sheet *s, const char *name, struct str value)
{
    if (!str_present(value))
        return STR_NONE;
    return arena_printf(&s->a, "%s%-*s  %.*s", s->indent, NAME_COLUMNS, name, STR_ARG(value));
}

static void put_named(struct sheet *s, const char *name, struct str a, struct str b)
{
    put_pair(s, named(s, name, a), named(s, name, b));
}

/* ---- payloads ---- */

/* To the beginning of the character there. */
static size_t character_at(struct str text, size_t at)
{
    while (at > 0 && at < text.n && ((unsigned char)text.p[at] & 0xC0) == 0x80)
        at--;
    return at;
}

static size_t common_beginning(struct str a, struct str b)
{
    size_t n = 0;

    while (n < a.n && n < b.n && a.p[n] == b.p[n])
        n++;
    return character_at(a, n);
}

/* A long text from shortly before what differs, on one line that is not too long to clean. */
static struct str excerpt(struct sheet *s, struct str text, size_t differs_at, size_t columns)
{
    size_t from = 0, most = 4 * columns;

    if (differs_at > columns / 2 && text.n > columns) {
        from = differs_at - columns / 4;
        if (from > text.n - columns + 1)
            from = text.n - columns + 1;
    }
    from = character_at(text, from);
    struct str part = str_slice(text, from, text.n - from > most ? from + most : text.n);
    return from == 0 ? arena_str(&s->a, part) : arena_printf(&s->a, "…%.*s", STR_ARG(part));
}

/* The payload's name and the path in it; of a long one the end, so that there is room for values.
 */
static const char *place_name(struct sheet *s, const char *name, struct str path, size_t columns)
{
    struct str whole = arena_printf(&s->a, "%s%.*s", name, STR_ARG(path));

    if (whole.n <= columns)
        return whole.p;
    size_t from = character_at(whole, whole.n - columns + 1);
    return arena_printf(&s->a, "…%.*s", STR_ARG(str_slice(whole, from, whole.n))).p;
}

/* A string with the characters that it means, whatever escapes its author chose. */
static void add_value(struct sheet *s, struct buf *out, struct str json)
{
    struct str text = json_type_of(json) == JSON_STRING ? json_string(json, &s->a) : STR_NONE;

    if (str_present(text))
        json_add_string(out, text);
    else
        text_json_line(out, json);
}

struct place {
    struct sheet *sheet;
    const char *name; /* of the payload */
};

static void put_place(void *ctx, struct str path, struct str a, struct str b)
{
    const struct place *at = ctx;
    struct sheet *s = at->sheet;
    struct buf line_a = {0}, line_b = {0};
    size_t columns = s->half > 0 ? s->half : s->width - 2; /* of a side */
    const char *name = place_name(s, at->name, path, columns / 2);
    size_t used =
        strlen(s->indent) + 2 + (strlen(name) > NAME_COLUMNS ? strlen(name) : NAME_COLUMNS);

    add_value(s, &line_a, a);
    add_value(s, &line_b, b);
    size_t differs_at = common_beginning(buf_str(&line_a), buf_str(&line_b));
    columns -= used;
    put_named(s, name,
              str_present(a) ? excerpt(s, buf_str(&line_a), differs_at, columns) : STR_NONE,
              str_present(b) ? excerpt(s, buf_str(&line_b), differs_at, columns) : STR_NONE);
    buf_free(&line_a);
    buf_free(&line_b);
}

static void put_payload(struct sheet *s, const char *name, struct str a, struct str b)
{
    struct place at = {s, name};

    if (json_diff(a, b, PLACES_SHOWN, put_place, &at) > PLACES_SHOWN)
        put_both(s, PAINT_DIM, arena_printf(&s->a, "%s%s differs in more places", s->indent, name));
}

/* ---- steps ---- */

static struct str step_text(struct sheet *s, const struct run_step *step, bool with_args)
{
    struct str target = view_target(step->target, step->occurrence, &s->a);

    return arena_printf(&s->a, "step %zu  %.*s %.*s%s%.*s", step->place, STR_ARG(step->kind),
                        STR_ARG(target), with_args && str_present(step->args) ? "  " : "",
                        with_args ? (int)step->args.n : 0,
                        with_args && str_present(step->args) ? step->args.p : "");
}

/* "  allowed by rule x; failed: no luck" */
static struct str state_text(struct sheet *s, const struct run_step *step)
{
    return arena_printf(&s->a, "  %.*s; %.*s%s%.*s", STR_ARG(run_decision_text(step, &s->a)),
                        STR_ARG(step->status), str_present(step->outcome) ? ": " : "",
                        STR_ARG(step->outcome));
}

struct whole_step {
    struct buf answer;
    struct str args, result, error;
};

static bool fetch_whole(struct sheet *s, struct run *r, const struct run_step *step,
                        struct whole_step *out)
{
    const struct view_field fields[] = {{"args", false, &out->args},
                                        {"result", false, &out->result},
                                        {"error", false, &out->error}};
    struct err ignored;

    if (!run_fetch_step(r, step, &out->answer, &ignored))
        return false;
    view_read(buf_str(&out->answer), fields, COUNT(fields), &s->a);
    return true;
}

/* False: they cannot be had. */
static bool put_payloads(struct sheet *s, const struct pair *p)
{
    struct whole_step a = {0}, b = {0};
    bool ok = fetch_whole(s, &s->d->a, p->a, &a) && fetch_whole(s, &s->d->b, p->b, &b);

    if (ok) {
        put_payload(s, "args", a.args, b.args);
        put_payload(s, "result", a.result, b.result);
        put_payload(s, "error", a.error, b.error);
    }
    buf_free(&a.answer);
    buf_free(&b.answer);
    return ok;
}

/* ": other arguments, result" */
static struct str in_short(struct sheet *s, unsigned differs)
{
    bool args = (differs & DIFFERS_ARGS) != 0, result = (differs & DIFFERS_RESULT) != 0,
         error = (differs & DIFFERS_ERROR) != 0;

    return arena_printf(&s->a, ": other %s%s%s%s%s", args ? "arguments" : "",
                        args && result ? ", " : "", result ? "result" : "",
                        (args || result) && error ? ", " : "", error ? "error" : "");
}

static void put_changed(struct sheet *s, const struct pair *p)
{
    bool args = (p->differs & DIFFERS_ARGS) != 0;
    bool payloads = (p->differs & (DIFFERS_ARGS | DIFFERS_RESULT | DIFFERS_ERROR)) != 0;
    bool in_full = payloads && s->shown++ < STEPS_SHOWN;
    struct str text = step_text(s, p->a, !args);

    if (payloads && !in_full)
        text = arena_printf(&s->a, "%.*s%.*s", STR_ARG(step_text(s, p->a, false)),
                            STR_ARG(in_short(s, p->differs)));
    put_both(s, PAINT_BOLD, text);
    if (p->a->place != p->b->place)
        put_named(s, "place", arena_printf(&s->a, "step %zu", p->a->place),
                  arena_printf(&s->a, "step %zu", p->b->place));
    if (in_full && !put_payloads(s, p))
        put_both(s, PAINT_DIM, STR("  its payloads cannot be had"));
    if ((p->differs & DIFFERS_DECISION) != 0)
        put_named(s, "decision", run_decision_text(p->a, &s->a), run_decision_text(p->b, &s->a));
    if ((p->differs & DIFFERS_STATUS) != 0)
        put_named(s, "status", p->a->status, p->b->status);
}

static void put_only(struct sheet *s, const struct pair *p)
{
    const struct run_step *step = p->a != NULL ? p->a : p->b;
    struct str text = step_text(s, step, true), state = state_text(s, step);

    put_pair(s, p->a != NULL ? text : STR_NONE, p->b != NULL ? text : STR_NONE);
    put_pair(s, p->a != NULL ? state : STR_NONE, p->b != NULL ? state : STR_NONE);
}

static void put_same(struct sheet *s, size_t n)
{
    if (n > 0)
        put_both(s, PAINT_DIM,
                 arena_printf(&s->a, "%zu step%s the same", n, n == 1 ? " is" : "s are"));
}

static void put_steps(struct sheet *s)
{
    const struct alignment *steps = &s->d->steps;
    size_t same = 0;

    s->indent = "  ";
    for (size_t i = 0; i < steps->n; i++) {
        const struct pair *p = &steps->pairs[i];

        if (p->kind == PAIR_SAME) {
            same++;
            continue;
        }
        put_same(s, same);
        same = 0;
        if (p->kind == PAIR_ONLY_A || p->kind == PAIR_ONLY_B)
            put_only(s, p);
        else
            put_changed(s, p);
        arena_reset(&s->a);
    }
    put_same(s, same);
    s->indent = "";
}

/* ---- the runs themselves ---- */

static struct str title(struct sheet *s, const struct run *r, const struct run *other)
{
    struct str fork = STR("");

    if (str_present(r->forked_from) && str_eq(r->forked_from, other->v.id))
        fork = arena_printf(&s->a, ", a fork of the other at event %.*s", STR_ARG(r->fork_seq));
    else if (str_present(r->forked_from))
        fork = arena_printf(&s->a, ", a fork of %.*s at event %.*s",
                            STR_ARG(view_short_id(r->forked_from)), STR_ARG(r->fork_seq));
    return arena_printf(&s->a, "%.*s  %.*s, %.*s%.*s", STR_ARG(view_short_id(r->v.id)),
                        STR_ARG(r->agent), STR_ARG(r->status), STR_ARG(fork));
}

static void put_titles(struct sheet *s)
{
    struct str a = title(s, &s->d->a, &s->d->b), b = title(s, &s->d->b, &s->d->a);

    if (s->half > 0) {
        put_pair(s, a, b);
        return;
    }
    put_signed(s, "---", PAINT_BAD, a);
    put_signed(s, "+++", PAINT_GOOD, b);
}

static void put_start(struct sheet *s)
{
    const struct run *a = &s->d->a, *b = &s->d->b;

    if (!str_eq(a->agent, b->agent))
        put_named(s, "agent", a->agent, b->agent);
    put_payload(s, "input", a->input, b->input);
}

static struct str outcome(struct sheet *s, const struct run *r)
{
    if (str_present(r->failure))
        return arena_printf(&s->a, "%.*s: %.*s", STR_ARG(r->status), STR_ARG(r->failure));
    if (str_present(r->output))
        return arena_printf(&s->a, "%.*s: %.*s", STR_ARG(r->status),
                            STR_ARG(view_json_short(r->output, s->width, &s->a)));
    return r->status;
}

static void put_end(struct sheet *s)
{
    const struct run *a = &s->d->a, *b = &s->d->b;

    if (comparison_same_end(s->d))
        put_both(s, view_status_paint(a->status),
                 arena_printf(&s->a, "both %.*s", STR_ARG(outcome(s, a))));
    else if (str_eq(a->status, b->status) && str_eq(a->failure, b->failure))
        put_payload(s, "output", a->output, b->output);
    else
        put_named(s, "outcome", outcome(s, a), outcome(s, b));
}

static void add_count(struct buf *out, size_t n, const char *one, const char *many)
{
    if (n > 0)
        buf_printf(out, "%s%zu %s", out->n > 0 ? ", " : "", n, n == 1 ? one : many);
}

static void put_summary(struct sheet *s)
{
    const size_t *n = s->d->steps.counts;
    struct buf text = {0};
    bool same = comparison_same(s->d);

    add_count(&text, n[PAIR_SAME], "step is the same", "steps are the same");
    add_count(&text, n[PAIR_CHANGED], "has another outcome", "have another outcome");
    add_count(&text, n[PAIR_ARGS], "has other arguments", "have other arguments");
    add_count(&text, n[PAIR_MOVED], "is in another order", "are in another order");
    add_count(&text, n[PAIR_ONLY_A], "is only in the first run", "are only in the first run");
    add_count(&text, n[PAIR_ONLY_B], "is only in the second run", "are only in the second run");
    if (s->d->steps.n == 0)
        buf_add(&text, STR("no steps"));
    view_text(
        s->c, 0, same ? PAINT_GOOD : PAINT_BOLD,
        arena_printf(&s->a, "%s%.*s", same ? "nothing differs: " : "", STR_ARG(buf_str(&text))));
    buf_free(&text);
}

void diff_print(struct cli *c, struct comparison *d)
{
    struct sheet s = {
        .c = c, .d = d, .indent = "", .width = c->width > 0 ? c->width : PLAIN_COLUMNS};

    if (s.width < 24)
        s.width = 24;
    if (c->width >= WIDE_MIN)
        s.half = (c->width - 5) / 2;
    put_titles(&s);
    put_start(&s);
    put_steps(&s);
    put_end(&s);
    put_summary(&s);
    arena_free(&s.a);
}
