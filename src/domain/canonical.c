/* SPDX-License-Identifier: Apache-2.0
 * Canonical JSON (docs/protocol.md). Two passes, neither recursive: the first checks the text and
 * notes each object's members, sorted by key; the second copies the text out in their order. So a
 * value is copied once however deep it lies, and an object inside another costs nothing for the
 * moves of its parents. */
#include "domain/identity.h"

#include <stdlib.h>

#include "base/json_scan.h"

/* Offsets and ordinals are 32 bits to halve what a text of a million members needs; longer texts
 * are refused. */
#define TEXT_MAX ((size_t)UINT32_MAX)

struct member {
    uint64_t
        prefix; /* the key's first eight bytes as a big-endian number: decides most comparisons */
    const char *key; /* decoded: in the text, or in plan.keys */
    uint32_t key_n;
    uint32_t value_at; /* where the value (or space before it) begins */
    uint32_t ordinal;  /* of the first object that opens at or after value_at */
};

/* Objects are numbered in the order in which they open. */
struct object {
    uint32_t first,
        count;       /* its members in plan.members; until it closes, `first` counts plan.pending */
    uint32_t end_at; /* behind its closing brace */
    uint32_t ordinal_after; /* of the first object that opens after end_at */
};

enum { MEMBERS_LOCAL = 48, OBJECTS_LOCAL = 16, RUN = 8 };

/* Arrays begin in the plan itself, so that a usual text allocates nothing. */
struct plan {
    struct member *pending; /* of the objects that are open, the innermost one's last */
    struct member *members; /* of the objects that have closed, sorted within each */
    struct object *objects;
    size_t pending_n, pending_cap, members_n, members_cap, objects_n, objects_cap;
    struct arena keys; /* those that had an escape */
    uint32_t open[JSON_MAX_DEPTH];
    struct member pending_local[MEMBERS_LOCAL], members_local[MEMBERS_LOCAL];
    struct object objects_local[OBJECTS_LOCAL];
};

static void plan_start(struct plan *pl)
{
    pl->pending = pl->pending_local;
    pl->members = pl->members_local;
    pl->objects = pl->objects_local;
    pl->pending_cap = pl->members_cap = MEMBERS_LOCAL;
    pl->objects_cap = OBJECTS_LOCAL;
    pl->pending_n = pl->members_n = pl->objects_n = 0;
    pl->keys = (struct arena){0};
}

static void plan_end(struct plan *pl)
{
    if (pl->pending != pl->pending_local)
        free(pl->pending);
    if (pl->members != pl->members_local)
        free(pl->members);
    if (pl->objects != pl->objects_local)
        free(pl->objects);
    arena_free(&pl->keys);
}

/* A larger copy of the array, or NULL. The old one is freed unless it is `local`. */
static void *grown(void *old, const void *local, size_t used_bytes, size_t want_bytes)
{
    void *p = old == local ? malloc(want_bytes) : realloc(old, want_bytes);

    if (p != NULL && old == local)
        memcpy(p, old, used_bytes);
    return p;
}

static bool members_reserve(struct member **p, const struct member *local, size_t n, size_t *cap,
                            size_t more)
{
    if (n + more <= *cap)
        return true;
    size_t want = *cap * 2 > n + more ? *cap * 2 : n + more;
    struct member *q = grown(*p, local, n * sizeof *q, want * sizeof *q);
    if (q == NULL)
        return false;
    *p = q;
    *cap = want;
    return true;
}

static bool objects_reserve(struct plan *pl)
{
    if (pl->objects_n < pl->objects_cap)
        return true;
    size_t want = pl->objects_cap * 2;
    struct object *q =
        grown(pl->objects, pl->objects_local, pl->objects_n * sizeof *q, want * sizeof *q);
    if (q == NULL)
        return false;
    pl->objects = q;
    pl->objects_cap = want;
    return true;
}

/* ---- order ---- */

/* `readable` bytes may be looked at from key on. */
static uint64_t key_prefix(const char *key, size_t n, size_t readable)
{
    uint64_t v = 0;

#if __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
    if (readable >= sizeof v) {
        memcpy(&v, key, sizeof v);
        v = __builtin_bswap64(v);
        return n == 0 ? 0 : n >= sizeof v ? v : v & ~(UINT64_MAX >> (8 * n));
    }
#else
    (void)readable;
#endif
    for (size_t i = 0; i < sizeof v; i++)
        v = v << 8 | (i < n ? (unsigned char)key[i] : 0);
    return v;
}

static int member_cmp(const struct member *a, const struct member *b)
{
    if (a->prefix != b->prefix) /* NOLINT: the analyzer does not follow sort_members */
        return a->prefix < b->prefix ? -1 : 1;
    return str_cmp((struct str){a->key, a->key_n},
                   (struct str){b->key, b->key_n}); /* "a" and "a\0" share a prefix */
}

static void sort_run(struct member *m, size_t n)
{
    for (size_t i = 1; i < n; i++) {
        if (member_cmp(&m[i - 1], &m[i]) <= 0)
            continue;
        struct member x = m[i];
        size_t j = i;
        for (; j > 0 && member_cmp(&m[j - 1], &x) > 0; j--)
            m[j] = m[j - 1];
        m[j] = x;
    }
}

static void merge(const struct member *a, size_t na, const struct member *b, size_t nb,
                  struct member *out)
{
    while (na > 0 && nb > 0) {
        if (member_cmp(a, b) <= 0) {
            *out++ = *a++;
            na--;
        } else {
            *out++ = *b++;
            nb--;
        }
    }
    memcpy(out, a, na * sizeof *a);
    memcpy(out + na, b, nb * sizeof *b);
}

/* Sorts m[0..n) into out, using m as the other half of the merges. A merge sort, because its worst
 * case is its usual one: clients choose the keys. */
static void sort_members(struct member *m, size_t n, struct member *out)
{
    struct member *from = m, *to = out;

    for (size_t i = 0; i < n; i += RUN)
        sort_run(m + i, n - i < RUN ? n - i : RUN);
    for (size_t width = RUN; width < n; width *= 2) {
        for (size_t i = 0; i < n; i += 2 * width) {
            size_t na = n - i < width ? n - i : width;
            size_t nb = n - i - na < width ? n - i - na : width;
            merge(from + i, na, from + i + na, nb, to + i);
        }
        struct member *swap = from;
        from = to;
        to = swap;
    }
    if (from != out)
        memcpy(out, from, n * sizeof *out);
}

/* ---- the first pass ---- */

static bool out_of_memory(struct err *e)
{
    return err_set(e, ERR_INTERNAL, "out of memory");
}

static bool plan_key(struct plan *pl, const struct json_scan *s, struct str text, struct err *e)
{
    size_t n = (size_t)(s->token_end - s->token);
    const char *key = s->token;
    size_t readable = (size_t)(s->end - key);

    if (!members_reserve(&pl->pending, pl->pending_local, pl->pending_n, &pl->pending_cap, 1))
        return out_of_memory(e);
    if (s->escaped) {
        char *plain = arena_alloc(&pl->keys, n);
        if (plain == NULL)
            return out_of_memory(e);
        n = json_decode(s->token, n, plain);
        key = plain;
        readable = n;
    }
    pl->pending[pl->pending_n++] = (struct member){
        .prefix = key_prefix(key, n, readable),
        .key = key,
        .key_n = (uint32_t)n,
        .value_at = (uint32_t)(s->p - text.p),
        .ordinal = (uint32_t)pl->objects_n,
    };
    return true;
}

static bool plan_open(struct plan *pl, size_t depth, struct err *e)
{
    if (!objects_reserve(pl))
        return out_of_memory(e);
    pl->open[depth - 1] = (uint32_t)pl->objects_n;
    pl->objects[pl->objects_n++].first = (uint32_t)pl->pending_n;
    return true;
}

static bool plan_close(struct plan *pl, size_t depth, size_t end_at, struct err *e)
{
    struct object *o = &pl->objects[pl->open[depth]];
    size_t first = o->first, count = pl->pending_n - first;

    if (!members_reserve(&pl->members, pl->members_local, pl->members_n, &pl->members_cap, count))
        return out_of_memory(e);
    struct member *sorted = pl->members + pl->members_n;
    sort_members(pl->pending + first, count, sorted);
    for (size_t i = 1; i < count; i++) {
        if (member_cmp(&sorted[i - 1], &sorted[i]) == 0)
            return err_set(e, ERR_VALIDATION, "duplicate key \"%.*s\" in one JSON object",
                           STR_ARG(((struct str){sorted[i].key, sorted[i].key_n})));
    }
    *o = (struct object){
        .first = (uint32_t)pl->members_n,
        .count = (uint32_t)count,
        .end_at = (uint32_t)end_at,
        .ordinal_after = (uint32_t)pl->objects_n,
    };
    pl->members_n += count;
    pl->pending_n = first;
    return true;
}

static bool plan_text(struct plan *pl, struct str text, struct err *e)
{
    struct json_scan s;

    json_scan_start(&s, text);
    for (;;) {
        switch (json_scan_next(&s)) {
        case JSON_TOKEN_ERROR:
            return json_scan_error(&s, text, e);
        case JSON_TOKEN_END:
            return true;
        case JSON_TOKEN_KEY:
            if (!plan_key(pl, &s, text, e))
                return false;
            break;
        case JSON_TOKEN_OPEN_OBJECT:
            if (!plan_open(pl, s.depth, e))
                return false;
            break;
        case JSON_TOKEN_CLOSE_OBJECT:
            if (!plan_close(pl, s.depth, (size_t)(s.p - text.p), e))
                return false;
            break;
        case JSON_TOKEN_OPEN_ARRAY:
        case JSON_TOKEN_CLOSE_ARRAY:
        case JSON_TOKEN_STRING:
        case JSON_TOKEN_SCALAR:
            break;
        }
    }
}

/* ---- the second pass ---- */

static inline void put(struct buf *out, const char *p, size_t n)
{
    if (n > out->cap - out->n || out->failed)
        if (!buf_reserve(out, n))
            return;
    memcpy(out->p + out->n, p, n);
    out->n += n;
}

static void put_unicode_escape(struct buf *out, uint32_t c)
{
    char text[] = "\\u0000";
    const uint8_t unit[] = {(uint8_t)(c >> 8), (uint8_t)c};

    hex_encode(unit, sizeof unit, text + 2);
    put(out, text, sizeof text - 1);
}

static void put_char(struct buf *out, uint32_t c)
{
    static const char SHORT[] = {
        ['"'] = '"',  ['\\'] = '\\', ['\n'] = 'n', ['\r'] = 'r',
        ['\t'] = 't', ['\b'] = 'b',  ['\f'] = 'f',
    };
    char utf8[4];

    if (c < sizeof SHORT && SHORT[c] != 0)
        put(out, (const char[]){'\\', SHORT[c]}, 2);
    else if (c < 0x20 || c == '<' || c == '>' || c == '&' || c == 0x2028 || c == 0x2029)
        put_unicode_escape(out, c);
    else
        put(out, utf8, utf8_encode(c, utf8));
}

/* Skips what stands for itself: all but quote, backslash, controls, < > & and the byte 0xe2, with
 * which U+2028 begins. */
static const char *skip_literal(const char *p, const char *end)
{
    uint64_t w;

    while (end - p >= (ptrdiff_t)sizeof w) {
        memcpy(&w, p, sizeof w);
        uint64_t marks = json_control_bytes(w) | json_equal_bytes(w, '\\') |
                         json_equal_bytes(w, 0xe2) |
                         json_equal_bytes(w | JSON_ONES * 0x04, '"' | 0x04) | /* and '&' */
                         json_equal_bytes(w | JSON_ONES * 0x02, '<' | 0x02);  /* and '>' */
        if (marks != 0) {
            size_t i = json_first_mark(marks);
            if (i < sizeof w)
                return p + i;
            break;
        }
        p += sizeof w;
    }
    while (p != end && (unsigned char)*p >= 0x20 && *p != '"' && *p != '\\' && *p != '<' &&
           *p != '>' && *p != '&' && (unsigned char)*p != 0xe2)
        p++;
    return p;
}

/* One character at which skip_literal stopped, other than a quote or backslash of the source's
 * syntax. */
static const char *put_special(struct buf *out, const char *p)
{
    if ((unsigned char)*p != 0xe2) {
        put_char(out, (unsigned char)*p);
        return p + 1;
    }
    if ((unsigned char)p[1] == 0x80 && ((unsigned char)p[2] | 1) == 0xa9)
        put_unicode_escape(out, 0x2000u | ((unsigned char)p[2] & 0x3fu));
    else
        put(out, p, 3);
    return p + 3;
}

static void put_key(struct buf *out, const struct member *m)
{
    const char *p = m->key, *end = p + m->key_n;

    put(out, "\"", 1);
    while (p != end) {
        const char *run = p;
        p = skip_literal(p, end);
        put(out, run, (size_t)(p - run));
        if (p != end)
            p = put_special(out, p);
    }
    put(out, "\":", 2);
}

/* p behind the opening quote of a string of the source; returns what follows the closing one. */
static const char *put_string(struct buf *out, const char *p, const char *end)
{
    put(out, "\"", 1);
    for (;;) {
        const char *run = p;
        p = skip_literal(p, end);
        if (*p == '"') { /* the text is valid, so it is found before the end */
            put(out, run, (size_t)(p + 1 - run));
            return p + 1;
        }
        put(out, run, (size_t)(p - run));
        if (*p == '\\')
            put_char(out, json_unescape(&p, end));
        else
            p = put_special(out, p);
    }
}

static const char *put_scalar(struct buf *out, const char *p, const char *end)
{
    const char *from = p;

    while (p != end && *p != ',' && *p != '}' && *p != ']' && !json_is_space(*p))
        p++;
    put(out, from, (size_t)(p - from));
    return p;
}

/* Where the second pass is: at p in the text, with the frames of the containers that are open in
 * the output. */
struct emitter {
    const struct plan *plan;
    struct str text;
    const char *p, *end;
    struct buf *out;
    uint32_t ordinal; /* of the next object that opens */
    size_t depth;
    struct frame {
        bool array;
        uint32_t object,
            next; /* of objects: the ordinal, and the next member of it in plan->members */
    } frames[JSON_MAX_DEPTH];
};

static void emit_member(struct emitter *em, struct frame *f)
{
    const struct member *m = &em->plan->members[f->next++];

    put_key(em->out, m);
    em->p = em->text.p + m->value_at;
    em->ordinal = m->ordinal;
}

/* Begins the container at em->p. False when it was empty and is complete already. */
static bool emit_open(struct emitter *em)
{
    struct frame *f = &em->frames[em->depth];

    if (*em->p == '[') {
        em->p = json_skip_space(em->p + 1, em->end);
        if (*em->p == ']') {
            put(em->out, "[]", 2);
            em->p++;
            return false;
        }
        put(em->out, "[", 1);
        f->array = true;
        em->depth++;
        return true;
    }
    const struct object *o = &em->plan->objects[em->ordinal];
    if (o->count == 0) { /* NOLINT: plan_text has filled one for each '{' of the text */
        put(em->out, "{}", 2);
        em->p = em->text.p + o->end_at;
        em->ordinal = o->ordinal_after;
        return false;
    }
    put(em->out, "{", 1);
    *f = (struct frame){.object = em->ordinal, .next = o->first};
    em->depth++;
    emit_member(em, f);
    return true;
}

/* After a value: closes what ends with it and moves to the next value. False when there is none. */
static bool emit_next(struct emitter *em)
{
    while (em->depth > 0) {
        struct frame *f = &em->frames[em->depth - 1];
        if (f->array) {
            em->p = json_skip_space(em->p, em->end);
            put(em->out, em->p, 1); /* comma or bracket */
            if (*em->p++ == ',')
                return true;
            em->depth--;
            continue;
        }
        const struct object *o = &em->plan->objects[f->object];
        if (f->next != o->first + o->count) {
            put(em->out, ",", 1);
            emit_member(em, f);
            return true;
        }
        put(em->out, "}", 1);
        em->p = em->text.p + o->end_at;
        em->ordinal = o->ordinal_after;
        em->depth--;
    }
    return false;
}

static void emit_text(const struct plan *pl, struct str text, struct buf *out)
{
    struct emitter em; /* not zeroed: 12 KB of frames, of which few are used */

    em.plan = pl;
    em.text = text;
    em.p = text.p;
    em.end = text.p + text.n;
    em.out = out;
    em.ordinal = 0;
    em.depth = 0;
    for (;;) {
        em.p = json_skip_space(em.p, em.end);
        if (*em.p == '{' || *em.p == '[') {
            if (emit_open(&em))
                continue;
        } else if (*em.p == '"')
            em.p = put_string(out, em.p + 1, em.end);
        else
            em.p = put_scalar(out, em.p, em.end);
        if (!emit_next(&em))
            return;
    }
}

bool canonical_json(struct str text, struct buf *out, struct err *e)
{
    struct plan pl;

    if (!str_present(text))
        text = STR("null");
    if (text.n > TEXT_MAX)
        return err_set(e, ERR_PAYLOAD_TOO_LARGE, "JSON text is too long");
    plan_start(&pl);
    bool ok = plan_text(&pl, text, e);
    if (ok) {
        if (out->max == 0) /* the usual result is no longer than its source */
            buf_reserve(out, text.n);
        emit_text(&pl, text, out);
        if (out->failed)
            ok = out->max == 0 ? out_of_memory(e)
                               : err_set(e, ERR_PAYLOAD_TOO_LARGE,
                                         "canonical JSON is longer than %zu bytes", out->max);
    }
    plan_end(&pl);
    return ok;
}
