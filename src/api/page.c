/* SPDX-License-Identifier: Apache-2.0 */
#include "api/page.h"

#include "base/clock.h"
#include "base/json.h"
#include "kernel/event.h"

enum { ROWS_MAX = 512 };

struct page_read {
    const struct uuid *execution_id;
    int64_t after, limit;
    size_t max_bytes;
    enum page_form form;
    struct str output; /* of the execution, once it was needed */
    struct buf payload;
    struct event_page *page;
};

/* JSON allows line ends between tokens, an event stream's line does not. As spaces they mean the
 * same. */
static void spaces_for_line_ends(struct buf *text, size_t from)
{
    for (size_t i = from; i < text->n; i++)
        if (text->p[i] == '\n' || text->p[i] == '\r')
            text->p[i] = ' ';
}

static void add_event(struct page_read *pr, const struct event_row *row, int64_t seq,
                      const struct event_line *line)
{
    struct buf *out = &pr->page->text;
    char id[UUID_TEXT_LEN];
    size_t start;

    uuid_format(pr->execution_id, id);
    if (pr->form == PAGE_STREAM)
        buf_printf(out, "id: %lld\ndata: ", (long long)seq);
    else if (pr->page->count > 0)
        buf_add_byte(out, ',');
    start = out->n;
    buf_add(out, STR("{\"execution_id\":\""));
    buf_add(out, str_make(id, sizeof(id)));
    buf_add(out, STR("\",\"event_seq\":"));
    buf_add_int(out, seq);
    buf_add(out, STR(",\"type\":\""));
    buf_add(out, line->type);
    buf_add(out, STR("\",\"payload\":"));
    buf_add(out, line->payload);
    buf_add(out, STR(",\"occurred_at\":\""));
    clock_format_rfc3339(out, row->occurred_at);
    buf_add(out, STR("\"}"));
    if (pr->form == PAGE_STREAM) {
        spaces_for_line_ends(out, start);
        buf_add(out, STR("\n\n"));
    }
    pr->page->count++;
    pr->page->last = seq;
}

static bool is_full(const struct page_read *pr)
{
    return pr->page->count == pr->limit ||
           (pr->page->count > 0 && pr->page->text.n >= pr->max_bytes);
}

static bool add_row(struct page_read *pr, struct store_reader *r, const struct event_row *row,
                    struct arena *a, struct err *e)
{
    struct event_reader reader = {.body = row->body};
    struct event_line line;

    if (event_needs_output(row->body) && !str_present(pr->output)) {
        struct execution_view view;
        bool found;

        if (!store_read_execution(r, pr->execution_id, a, &view, &found, e))
            return false;
        pr->output = found && str_present(view.output) ? view.output : STR("null");
    }
    reader.output = pr->output;
    for (int64_t seq = row->first_seq; event_next(&reader, &pr->payload, &line); seq++) {
        if (seq <= pr->after) /* the row began before what was asked for */
            continue;
        if (is_full(pr))
            return true;
        add_event(pr, row, seq, &line);
    }
    return true;
}

static bool read_rows(struct page_read *pr, struct store_reader *r, struct arena *a, struct err *e)
{
    struct event_row *rows;
    size_t n, limit = pr->limit < ROWS_MAX ? (size_t)pr->limit : ROWS_MAX;
    int64_t last_seq;
    bool terminal, found;

    if (!store_read_events(r, pr->execution_id, pr->after, limit, pr->max_bytes, a, &rows, &n,
                           &last_seq, &terminal, &found, e))
        return false;
    if (!found)
        return err_set(e, ERR_NOT_FOUND, "no such execution");
    for (size_t i = 0; i < n && !is_full(pr); i++)
        if (!add_row(pr, r, &rows[i], a, e))
            return false;
    pr->page->at_end = pr->page->last >= last_seq;
    pr->page->terminal = terminal;
    return true;
}

/* NOLINTNEXTLINE(readability-function-size): bounds in, a page out */
bool page_read(struct store_reader *r, const struct uuid *execution_id, int64_t after_seq,
               int64_t limit, size_t max_bytes, enum page_form form, struct event_page *out,
               struct err *e)
{
    struct page_read pr = {.execution_id = execution_id,
                           .after = after_seq,
                           .limit = limit,
                           .max_bytes = max_bytes,
                           .form = form,
                           .page = out};
    struct arena arena = {0};
    bool ok;

    *out = (struct event_page){.last = after_seq};
    ok = read_rows(&pr, r, &arena, e);
    if (ok && (out->text.failed || pr.payload.failed))
        ok = err_set(e, ERR_INTERNAL, "out of memory for a page of events");
    buf_free(&pr.payload);
    arena_free(&arena);
    if (!ok)
        page_free(out);
    return ok;
}

void page_free(struct event_page *p)
{
    buf_free(&p->text);
}
