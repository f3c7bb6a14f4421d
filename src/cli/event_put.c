/* SPDX-License-Identifier: Apache-2.0
 * Events on paper. */
#include "cli/event_put.h"

#include "cli/text.h"
#include "cli/view.h"
#include "cli/when.h"

enum {
    TYPE_COLUMNS = 22,
    WORDS_AT = 44, /* where the words begin, without a mark */
    WORDS_MIN = 24,
    WORDS_MAX = 120, /* of the one kind, and of the other */
    GAP = 2,
    INDENT = 6, /* of what stands below */
};

static void put_dim(struct cli *c, const char *text)
{
    fprintf(c->out, "%s%s%s", paint_begin(c->out_colour, PAINT_DIM), text,
            paint_end(c->out_colour, PAINT_DIM));
}

static void put_blanks(struct cli *c, size_t n)
{
    fprintf(c->out, "%*s", (int)n, "");
}

static void fit(struct buf *out, const struct buf *text)
{
    struct buf clean = {0};

    text_clean(&clean, buf_str(text), TEXT_ONE_LINE);
    text_fit(out, buf_str(&clean), WORDS_MAX);
    buf_free(&clean);
}

/* Returns the column behind it. */
static size_t put_head(struct cli *c, const struct event *ev, enum paint type_paint)
{
    struct buf number = {0}, clock = {0}, type = {0};
    bool marked = ev->mark != NULL;

    buf_printf(&number, "%4lld  ", (long long)ev->seq);
    if (ev->at_us > 0)
        when_clock(&clock, ev->at_us);
    buf_printf(&clock, "%*s", clock.n < 12 ? (int)(12 - clock.n) : 0, "");
    buf_add_byte(&number, '\0');
    buf_add_byte(&clock, '\0');
    text_clean(&type, ev->type, TEXT_ONE_LINE);
    put_dim(c, number.p);
    if (marked)
        fprintf(c->out, "%s%s%s", paint_begin(c->out_colour, PAINT_GOOD), ev->mark,
                paint_end(c->out_colour, PAINT_GOOD));
    put_dim(c, clock.p);
    fputs("  ", c->out);
    cli_put(c, type_paint, buf_str(&type));
    size_t used = WORDS_AT - TYPE_COLUMNS - GAP + text_columns(buf_str(&type)) +
                  (marked ? text_columns(str_of(ev->mark)) : 0);
    buf_free(&number);
    buf_free(&clock);
    buf_free(&type);
    return used;
}

/* The words, with a gap between the two kinds. */
static void put_line(struct cli *c, struct str what, struct str detail, enum paint detail_paint)
{
    cli_put(c, PAINT_NONE, what);
    if (what.n > 0 && detail.n > 0)
        put_blanks(c, GAP);
    cli_put(c, detail_paint, detail);
}

static void put_wrapped(struct cli *c, size_t margin, enum paint paint, struct str words)
{
    struct buf lines = {0}, blanks = {0};

    buf_printf(&blanks, "%*s", (int)margin, "");
    text_wrap(&lines, words, c->width > margin + WORDS_MIN ? c->width - margin : WORDS_MIN,
              buf_str(&blanks));
    cli_put(c, paint, buf_str(&lines));
    buf_free(&lines);
    buf_free(&blanks);
}

static void new_line(struct cli *c, size_t margin)
{
    fputc('\n', c->out);
    put_blanks(c, margin);
}

/* What is too long for the rest of the line goes on below, under where words begin; on a narrow
 * terminal further to the left. */
static void put_words(struct cli *c, const struct event *ev, size_t used, struct str what,
                      struct str detail, enum paint detail_paint)
{
    size_t words_at = WORDS_AT + (ev->mark != NULL ? text_columns(str_of(ev->mark)) : 0);
    size_t from = used + GAP > words_at ? used + GAP : words_at;
    size_t margin = c->width >= words_at + WORDS_MIN ? words_at : INDENT;
    bool both = what.n > 0 && detail.n > 0;
    size_t columns = text_columns(what) + (both ? GAP : 0) + text_columns(detail);
    bool fits = c->width == 0 || from + columns <= c->width;

    if (fits || from == margin)
        put_blanks(c, from - used);
    else
        new_line(c, margin);
    if (fits || margin + columns <= c->width) {
        put_line(c, what, detail, detail_paint);
        return;
    }
    put_wrapped(c, margin, PAINT_NONE, what);
    if (both)
        new_line(c, margin);
    put_wrapped(c, margin, detail_paint, detail);
}

void event_put(struct cli *c, const struct event *ev, const struct event_words *words)
{
    struct buf what = {0}, detail = {0};
    size_t used = put_head(c, ev, words->type_paint);

    fit(&what, &words->what);
    fit(&detail, &words->detail);
    if (what.n + detail.n > 0)
        put_words(c, ev, used, buf_str(&what), buf_str(&detail), words->detail_paint);
    fputc('\n', c->out);
    buf_free(&what);
    buf_free(&detail);
}

void event_put_payload(struct cli *c, const struct event *ev)
{
    struct buf line = {0};

    text_json_spaced(&line, ev->payload); /* lines break at blanks */
    if (line.n > 0 && !str_eq(buf_str(&line), STR("{}")))
        view_text(c, INDENT, PAINT_DIM, buf_str(&line));
    buf_free(&line);
}

void event_put_day(struct cli *c, const struct event *ev, struct buf *day)
{
    struct buf now = {0};

    if (c->width == 0 || ev->at_us == 0)
        return;
    if (day->n == 0)
        when_date(day, clock_wall_us());
    when_date(&now, ev->at_us);
    if (!str_eq(buf_str(&now), buf_str(day)))
        view_text(c, INDENT, PAINT_DIM, buf_str(&now));
    buf_clear(day);
    buf_add(day, buf_str(&now));
    buf_free(&now);
}
