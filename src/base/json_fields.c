/* SPDX-License-Identifier: Apache-2.0
 * Decoding a request's own fields out of its body. */
#include "base/json.h"

#include "base/json_scan.h"

enum { FIELDS_MAX = 64 }; /* one bit each in `seen` */

static const struct {
    enum json_type type;
    const char *name;
} TYPE_NAMES[] = {
    {JSON_BOOL, "a boolean"}, {JSON_NUMBER, "a number"},  {JSON_STRING, "a string"},
    {JSON_ARRAY, "an array"}, {JSON_OBJECT, "an object"}, {JSON_NULL, "null"},
};

static bool refuse_type(const struct json_field *f, struct err *e)
{
    char names[96];
    size_t n = 0;

    names[0] = '\0';
    for (size_t i = 0; i < COUNT(TYPE_NAMES); i++) {
        if ((f->types & 1u << TYPE_NAMES[i].type) == 0)
            continue;
        const char *parts[] = {n == 0 ? "" : " or ", TYPE_NAMES[i].name};
        for (size_t j = 0; j < COUNT(parts); j++) {
            size_t len = strlen(parts[j]);
            ASSERT(n + len < sizeof names);
            memcpy(names + n, parts[j], len + 1);
            n += len;
        }
    }
    return err_set(e, ERR_VALIDATION, "field \"%s\" must be %s", f->name, names);
}

/* False with e set when the value is of a type the field does not take. *value becomes STR_NONE for
 * a null that only says "missing". */
static bool take_value(const struct json_field *f, struct str *value, struct err *e)
{
    unsigned type = 1u << json_type_of(*value);

    if (type == 1u << JSON_NULL) {
        if (!f->keep_null || (f->types != 0 && (f->types & type) == 0))
            *value = STR_NONE;
        return true;
    }
    return f->types == 0 || (f->types & type) != 0 || refuse_type(f, e);
}

struct reader {
    const struct json_field *fields;
    size_t n;
    struct str found[FIELDS_MAX];
    uint64_t seen;
};

/* Which field the scanner's key is; n when none of them. */
static bool read_key(struct reader *r, const struct json_scan *s, struct arena *a, size_t *index,
                     struct err *e)
{
    struct str key = {s->token, (size_t)(s->token_end - s->token)};

    if (s->escaped) {
        char *plain = arena_alloc(a, key.n);
        if (plain == NULL)
            return err_set(e, ERR_INTERNAL, "out of memory");
        key = (struct str){plain, json_decode(key.p, key.n, plain)};
    }
    for (*index = 0; *index < r->n; (*index)++)
        if (str_eq(key, str_of(r->fields[*index].name)))
            break;
    if (*index == r->n)
        return err_set(e, ERR_VALIDATION, "unknown field \"%.*s\"", STR_ARG(key));
    if ((r->seen >> *index & 1) != 0)
        return err_set(e, ERR_VALIDATION, "duplicate field \"%s\"", r->fields[*index].name);
    r->seen |= UINT64_C(1) << *index;
    return true;
}

/* One pass checks the grammar and finds the members: those of the body are the keys at depth 1, and
 * such a member's value lasts until the scanner is back there. */
static bool read_body(struct reader *r, struct str body, struct arena *a, struct err *e)
{
    struct json_scan s;
    const char *from = NULL;
    size_t index = 0;

    json_scan_start(&s, body);
    for (;;) {
        enum json_token t = json_scan_next(&s);
        if (t == JSON_TOKEN_ERROR)
            return json_scan_error(&s, body, e);
        if (t == JSON_TOKEN_END)
            return json_type_of(body) == JSON_OBJECT ||
                   err_set(e, ERR_VALIDATION, "the body must be a JSON object");
        if (s.depth != 1 || t == JSON_TOKEN_OPEN_OBJECT || t == JSON_TOKEN_OPEN_ARRAY)
            continue;
        if (t == JSON_TOKEN_KEY) {
            if (!read_key(r, &s, a, &index, e))
                return false;
            from = json_skip_space(s.p, s.end);
        } else if (from != NULL) { /* NULL: an array's item, which END will refuse */
            r->found[index] = (struct str){from, (size_t)(s.p - from)};
            if (!take_value(&r->fields[index], &r->found[index], e))
                return false;
        }
    }
}

bool json_fields(struct str body, bool allow_empty, const struct json_field *fields, size_t n,
                 struct arena *a, struct err *e)
{
    struct reader r; /* not zeroed: `found` is, as far as it is used */

    ASSERT(n <= FIELDS_MAX);
    r.fields = fields;
    r.n = n;
    r.seen = 0;
    for (size_t i = 0; i < n; i++)
        r.found[i] = STR_NONE;
    if (!(allow_empty && body.n == 0) && !read_body(&r, body, a, e))
        return false;
    for (size_t i = 0; i < n; i++)
        if (fields[i].required && !str_present(r.found[i]))
            return err_set(e, ERR_VALIDATION, "missing field \"%s\"", fields[i].name);
    for (size_t i = 0; i < n; i++)
        *fields[i].value = r.found[i];
    return true;
}
