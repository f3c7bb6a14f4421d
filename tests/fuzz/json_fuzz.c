/* SPDX-License-Identifier: Apache-2.0
 * The reader against itself: what json_check accepts is what the plain second reader accepts, all
 * that the walkers hand out is valid and inside, and strings survive a round trip. */
#include "base/json.h"

#include <stdio.h>
#include <stdlib.h>

#include "support/naive_json.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#define MUST(expr)                                                                                 \
    do {                                                                                           \
        if (!(expr)) {                                                                             \
            fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #expr);                             \
            abort();                                                                               \
        }                                                                                          \
    } while (0)

enum { WALK_MAX_DEPTH = 50 }; /* each level checks its text again */

static bool inside(struct str part, struct str whole)
{
    return part.p >= whole.p && part.p + part.n <= whole.p + whole.n;
}

static void walk(struct str value, unsigned depth, struct arena *a)
{
    struct json_walk members = {0}, items = {0};
    struct json_member m;
    struct str item, first;
    struct err e;
    int64_t n;

    MUST(json_check(value, &e));
    MUST(str_eq(json_trim(value), value));
    MUST(json_type_of(value) != JSON_INVALID);
    MUST(str_present(json_string(value, a)) == (json_type_of(value) == JSON_STRING));
    MUST(!json_int64(value, &n) || json_type_of(value) == JSON_NUMBER);
    if (depth == WALK_MAX_DEPTH)
        return;
    while (json_next_member(value, &members, a, &m)) {
        MUST(json_type_of(value) == JSON_OBJECT && inside(m.value, value) && str_is_utf8(m.key));
        first = json_get(value, m.key, a);
        MUST(first.p <= m.value.p); /* the first one of that name */
        walk(m.value, depth + 1, a);
    }
    while (json_next_item(value, &items, &item)) {
        MUST(json_type_of(value) == JSON_ARRAY && inside(item, value));
        walk(item, depth + 1, a);
    }
}

static void round_trip(struct str bytes, struct arena *a)
{
    struct buf json = {0};
    struct err e;

    json_add_string(&json, bytes);
    MUST(!json.failed && json_check(buf_str(&json), &e));
    struct str back = json_string(buf_str(&json), a);
    MUST(str_is_utf8(back));
    MUST(!str_is_utf8(bytes) || str_eq(back, bytes));
    buf_free(&json);
}

static void fields(struct str text, bool valid, struct arena *a)
{
    struct str kind = STR_NONE, args = STR_NONE;
    const struct json_field wanted[] = {{"a", false, false, 1u << JSON_STRING, &kind},
                                        {"b", false, true, 0, &args}};
    struct err e;

    if (!json_fields(text, false, wanted, 2, a, &e)) {
        MUST(e.code == ERR_VALIDATION);
        return;
    }
    MUST(valid && json_type_of(text) == JSON_OBJECT);
    struct str got = json_get(text, STR("b"), a);
    MUST(got.p == args.p && got.n == args.n);
    MUST(!str_present(kind) || json_type_of(kind) == JSON_STRING);
}

/* The walkers may be handed what nobody checked: they must end, inside the text. */
static void walk_unchecked(struct str text, struct arena *a)
{
    struct json_walk members = {0}, items = {0};
    struct json_member m;
    struct str item;

    for (size_t n = 0; json_next_member(text, &members, a, &m); n++)
        MUST(n <= text.n && inside(m.value, text));
    for (size_t n = 0; json_next_item(text, &items, &item); n++)
        MUST(n <= text.n && inside(item, text));
    (void)json_string(text, a);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct str text = str_make(data, size);
    struct buf canonical = {0};
    struct arena a = {0};
    struct err e;

    bool valid = json_check(text, &e);
    MUST(valid == (naive_canonical(text, &canonical) != NAIVE_INVALID));
    MUST(valid || (e.code == ERR_VALIDATION && e.message[0] != '\0'));
    if (valid)
        walk(json_trim(text), 0, &a);
    fields(text, valid, &a);
    walk_unchecked(text, &a);
    round_trip(text, &a);
    arena_free(&a);
    buf_free(&canonical);
    return 0;
}
