/* SPDX-License-Identifier: Apache-2.0
 * Lists, page by page. */
#include "cli/pages.h"

#include "base/json.h"

/* Where a reading stands. */
struct place {
    struct buf last;       /* text of the last item's field; empty: at the start */
    size_t limit, on_page; /* of this page */
};

/* The first page of a list that is bounded by bytes is a probe. */
enum { FIRST_PAGE = 8 };

static void note_last(struct place *at, const struct pages *p, struct str item)
{
    struct arena scratch = {0};
    struct str value = json_get(item, str_of(p->last_field), &scratch);

    if (json_type_of(value) == JSON_STRING)
        value = json_string(value, &scratch);
    buf_clear(&at->last);
    buf_add(&at->last, value);
    arena_free(&scratch);
}

static bool read_page(struct visit *v, const struct pages *p, struct place *at, struct err *e)
{
    struct buf path = {0};
    struct json_walk walk = {0};
    struct str item, last = STR_NONE;

    buf_printf(&path, "%s?limit=%zu", visit_path(v, p->route), at->limit);
    if (at->last.n > 0) {
        buf_printf(&path, "&%s=", p->after);
        client_escape(&path, buf_str(&at->last));
    }
    buf_add_byte(&path, '\0');
    bool ok = client_get(v->client, path.p, &v->answer, e);
    buf_free(&path);
    if (!ok)
        return false;
    if (json_type_of(buf_str(&v->answer)) != JSON_ARRAY)
        return err_set(e, ERR_VALIDATION, "the kernel's answer is no list");
    at->on_page = 0;
    while (json_next_item(buf_str(&v->answer), &walk, &item)) {
        at->on_page++;
        p->take(p->ctx, item);
        last = item;
    }
    if (at->on_page > 0)
        note_last(at, p, last);
    return true;
}

/* As many items as the bytes hold, if they are as large as those of the last page. */
static size_t next_limit(const struct visit *v, const struct pages *p, const struct place *at)
{
    size_t item = v->answer.n / at->on_page + 1, n = p->bytes / item;

    if (p->bytes == 0)
        return p->limit;
    return n < 1 ? 1 : n < p->limit ? n : p->limit;
}

bool pages_read(struct visit *v, const struct pages *p, struct err *e)
{
    struct place at = {.limit = p->bytes > 0 && p->limit > FIRST_PAGE ? FIRST_PAGE : p->limit};
    bool ok, more;

    do {
        ok = read_page(v, p, &at, e);
        more = ok && at.on_page >= at.limit && at.last.n > 0;
        if (more)
            at.limit = next_limit(v, p, &at);
    } while (more);
    buf_free(&at.last);
    return ok;
}
