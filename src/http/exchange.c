/* SPDX-License-Identifier: Apache-2.0
 * What users see of a request, and how its answer finds the way back to the loop. */
#include "http/exchange.h"

#include "http/conn.h"

#include "base/clock.h"

#include <inttypes.h>
#include <stdlib.h>

enum {
    POOL_MAX = 64
}; /* exchanges kept for reuse: about what is in flight when the loop is busy */

struct http_exchange *exchange_new(struct loop *l, struct conn *c)
{
    struct http_exchange *x = l->pool;

    if (x != NULL) {
        struct arena arena = x->arena;
        l->pool = x->pool_next;
        l->pooled--;
        memset(x, 0, sizeof(*x));
        x->arena = arena;
    } else {
        x = xzalloc(sizeof(*x));
    }
    x->loop = l;
    x->conn = c;
    x->mail.kind = MAIL_ANSWER;
    x->budget_mail.kind = MAIL_BUDGET;
    x->resume.mail.kind = MAIL_RESUME;
    x->head.fields = arena_alloc(&x->arena, sizeof(*x->head.fields) * HEAD_FIELDS_MAX);
    return x;
}

void exchange_release_request(struct http_exchange *x)
{
    budget_give(x->loop->server->budget, &x->claim);
    body_free(&x->body_memory);
    buf_free(&x->answer);
    arena_free(&x->arena);
    x->bytes = NULL;
    x->body = STR("");
    x->head = (struct head){.minor = x->head.minor};
    x->content_type = x->headers = STR_NONE;
}

void exchange_drop(struct http_exchange *x)
{
    struct loop *l = x->loop;

    budget_give(l->server->budget, &x->claim);
    body_free(&x->body_memory);
    buf_free(&x->answer);
    if (l->pooled == POOL_MAX) {
        arena_free(&x->arena);
        free(x);
        return;
    }
    arena_reset(&x->arena);
    x->pool_next = l->pool;
    l->pool = x;
    l->pooled++;
}

void exchange_finish(struct http_exchange *x)
{
    const struct http_options *opt = &x->loop->server->opt;

    if (opt->on_done != NULL)
        opt->on_done(x, x->status, clock_mono_us() - x->started_us, opt->ctx);
    exchange_drop(x);
}

void exchange_pool_free(struct loop *l)
{
    while (l->pool != NULL) {
        struct http_exchange *x = l->pool;
        l->pool = x->pool_next;
        arena_free(&x->arena);
        free(x);
    }
    l->pooled = 0;
}

static struct str slice(const struct http_exchange *x, struct span s)
{
    return x->bytes == NULL ? STR_NONE : str_make(x->bytes + s.at, s.n);
}

struct str http_method(const struct http_exchange *x)
{
    return slice(x, x->head.method);
}

struct str http_target(const struct http_exchange *x)
{
    return x->head.target.n == 0 ? STR_NONE : slice(x, x->head.target);
}

struct str http_path(const struct http_exchange *x)
{
    struct span s = x->head.target;

    if (s.n > 0 && x->head.query_at != 0)
        s.n = (uint16_t)(x->head.query_at - s.at);
    return s.n == 0 ? STR_NONE : slice(x, s);
}

struct str http_query(const struct http_exchange *x)
{
    if (x->head.target.n == 0 || x->head.query_at == 0)
        return STR_NONE;
    struct str target = http_target(x);
    return str_slice(target, (size_t)(x->head.query_at - x->head.target.at) + 1, target.n);
}

struct str http_header(const struct http_exchange *x, const char *name)
{
    struct str wanted = str_of(name);

    for (size_t i = 0; i < x->head.field_count; i++) {
        const struct head_field *f = &x->head.fields[i];
        if (f->name.n == wanted.n && str_eq_nocase(slice(x, f->name), wanted))
            return slice(x, f->value);
    }
    return STR_NONE;
}

bool http_header_repeated(const struct http_exchange *x, const char *name)
{
    struct str wanted = str_of(name);
    size_t found = 0;

    for (size_t i = 0; i < x->head.field_count; i++)
        found += str_eq_nocase(slice(x, x->head.fields[i].name), wanted);
    return found > 1;
}

struct str http_body(const struct http_exchange *x)
{
    return x->body;
}

bool http_body_too_large(const struct http_exchange *x)
{
    return x->head.content_length > x->loop->server->opt.max_body_bytes;
}

const char *http_too_large_message(struct http_exchange *x)
{
    size_t limit_bytes = x->loop->server->opt.max_body_bytes;
    uint64_t length_bytes = x->head.content_length;
    /* Neither chunked nor beyond counting. */
    bool is_known = length_bytes > 0 && length_bytes < UINT64_MAX / 10;
    struct str size =
        is_known ? arena_printf(&x->arena, " of %" PRIu64 " bytes", length_bytes) : STR("");
    struct str message = arena_printf(&x->arena, "the body%.*s is over the limit of %zu bytes",
                                      STR_ARG(size), limit_bytes);

    return message.p != NULL ? message.p : "the body is too large";
}

struct arena *http_arena(struct http_exchange *x)
{
    return &x->arena;
}

void http_set_user(struct http_exchange *x, void *user)
{
    x->user = user;
}

void *http_user(const struct http_exchange *x)
{
    return x->user;
}

bool http_is_gone(const struct http_exchange *x)
{
    return atomic_load_explicit(&x->gone, memory_order_relaxed);
}

void http_reply(struct http_exchange *x, const struct http_answer *answer)
{
    struct loop *l = x->loop;

    ASSERT(atomic_exchange(&x->owed, false)); /* one answer an exchange */
    x->status = answer->status;
    x->close |= answer->close;
    x->content_type = arena_str(&x->arena, answer->content_type);
    x->headers = arena_str(&x->arena, answer->headers);
    if (answer->body != NULL) {
        x->answer = *answer->body;
        *answer->body = (struct buf){0};
    }
    /* Straight on when the loop is just running this connection, unless that would overtake a
     * resume. */
    if (loop_is_here(l) && l->running == x->conn && atomic_load(&x->resumes) == 0)
        x->answered = true;
    else
        loop_post(l, &x->mail);
}

void http_resume(struct http_exchange *x, void (*fn)(struct http_exchange *x, void *ctx), void *ctx)
{
    struct resume *r = &x->resume;

    atomic_fetch_add(&x->resumes, 1);
    if (atomic_exchange(&x->resume_busy, true)) {
        r = xzalloc(sizeof(*r));
        r->mail.kind = MAIL_RESUME;
        r->owned = true;
    }
    r->x = x;
    r->fn = fn;
    r->ctx = ctx;
    loop_post(x->loop, &r->mail);
}

void exchange_resume(struct resume *r)
{
    struct http_exchange *x = r->x;
    struct loop *l = x->loop;
    void (*fn)(struct http_exchange * x, void *ctx) = r->fn;
    void *ctx = r->ctx;

    if (r->owned)
        free(r);
    else
        atomic_store(&x->resume_busy, false);
    atomic_fetch_sub(&x->resumes, 1);
    l->running = x->conn;
    fn(x, ctx);
    l->running = NULL;
    if (x->answered) /* x is still here: an answer from another thread is only opened by the loop,
                        later */
        conn_mail(x->conn, MAIL_ANSWER);
}
