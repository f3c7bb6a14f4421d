/* SPDX-License-Identifier: Apache-2.0 */
#include "api/resource_fields.h"

#include "api/params.h"
#include "base/utf8.h"

enum {
    ENTRIES_MAX = 1000,     /* of a list, whatever they say */
    CAPTURE_KEY_MAX = 1024, /* bytes; one that no resource can have is reported as it came */
    CAPTURE_ERROR_MAX = 4096,
};

bool is_resource_key(struct str key)
{
    if (key.n == 0 || key.n > RESOURCE_KEY_MAX || str_eq(key, STR(".")) || str_eq(key, STR("..")))
        return false;
    for (size_t i = 0; i < key.n; i++) {
        char c = key.p[i];
        bool letter = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
        if (!letter && !(c >= '0' && c <= '9') && c != '_' && c != '.' && c != '-')
            return false;
    }
    return true;
}

/* Entries of a list of this type, of which there must not be too many. */
static bool count_entries(const char *name, struct str list, enum json_type type, size_t *n,
                          struct err *e)
{
    struct json_walk walk = {0};
    struct str item;

    *n = 0;
    if (!str_present(list))
        return true;
    while (json_next_item(list, &walk, &item)) {
        if (json_type_of(item) != type)
            return err_set(e, ERR_VALIDATION, "field \"%s\" must be a list of %s", name,
                           type == JSON_STRING ? "strings" : "objects");
        if (++*n > ENTRIES_MAX)
            return err_set(e, ERR_VALIDATION, "field \"%s\" must have at most %d entries", name,
                           ENTRIES_MAX);
    }
    return true;
}

/* ---- keys ---- */

static bool has_key(const struct str *keys, size_t n, struct str key)
{
    for (size_t i = 0; i < n; i++)
        if (str_eq(keys[i], key))
            return true;
    return false;
}

bool field_resource_keys(const char *name, struct str raw, struct arena *a, const struct str **out,
                         size_t *n, struct err *e)
{
    struct json_walk walk = {0};
    struct str item, *keys;
    size_t entries;

    *n = 0;
    if (!count_entries(name, raw, JSON_STRING, &entries, e))
        return false;
    if (entries == 0)
        return true;
    *out = keys = arena_array(a, struct str, entries < RESOURCES_MAX ? entries : RESOURCES_MAX);
    while (json_next_item(raw, &walk, &item)) {
        struct str key = json_string(item, a);

        if (!is_resource_key(key))
            return err_set(e, ERR_VALIDATION, "field \"%s\": \"%.*s\" is no resource's key", name,
                           STR_ARG(key));
        if (has_key(keys, *n, key))
            continue;
        if (*n == RESOURCES_MAX)
            return err_set(e, ERR_VALIDATION, "field \"%s\" must name at most %d resources", name,
                           RESOURCES_MAX);
        keys[(*n)++] = key;
    }
    return true;
}

/* ---- captures ---- */

static bool refuse_entry(const char *name, struct err *e)
{
    struct err inner = *e;

    return err_set(e, inner.code, "field \"%s\": %s", name, inner.message);
}

static bool decode_generation(struct str raw, int64_t *out, struct err *e)
{
    return json_int64(raw, out) ||
           err_set(e, ERR_VALIDATION, "field \"generation\" must be an integer");
}

static bool decode_key(struct str raw, struct arena *a, struct str *out, struct err *e)
{
    *out = json_string(raw, a);
    if (!str_present(*out))
        return err_set(e, ERR_INTERNAL, "out of memory");
    return out->n <= CAPTURE_KEY_MAX ||
           err_set(e, ERR_VALIDATION, "field \"key\" must be at most %d bytes of UTF-8",
                   CAPTURE_KEY_MAX);
}

static bool decode_capture(struct str item, struct arena *a, struct capture *out, struct err *e)
{
    struct str key, generation, ref;
    const struct json_field fields[] = {
        {.name = "key", .required = true, .types = TYPE(STRING), .value = &key},
        {.name = "generation", .required = true, .types = TYPE(NUMBER), .value = &generation},
        {.name = "checkpoint_ref", .value = &ref},
    };

    if (!json_fields(item, false, fields, COUNT(fields), a, e) ||
        !decode_key(key, a, &out->key, e) || !decode_generation(generation, &out->generation, e))
        return false;
    if (json_type_of(ref) == JSON_STRING) /* else absent: the report says that it is missing */
        out->checkpoint_ref = json_string(ref, a);
    return true;
}

static bool decode_failure(struct str item, struct arena *a, struct capture_failure *out,
                           struct err *e)
{
    struct str key, generation, error;
    const struct json_field fields[] = {
        {.name = "key", .required = true, .types = TYPE(STRING), .value = &key},
        {.name = "generation", .required = true, .types = TYPE(NUMBER), .value = &generation},
        {.name = "error", .required = true, .types = TYPE(STRING), .value = &error},
    };

    if (!json_fields(item, false, fields, COUNT(fields), a, e) ||
        !decode_key(key, a, &out->key, e) || !decode_generation(generation, &out->generation, e))
        return false;
    out->error = json_string(error, a);
    if (!str_present(out->error))
        return err_set(e, ERR_INTERNAL, "out of memory");
    out->error.n = utf8_cut(out->error.p, out->error.n, CAPTURE_ERROR_MAX);
    return true;
}

/* A reference that cannot be stored is a capture that failed, and says so. */
static struct capture_failure too_long(const struct capture *capture, struct arena *a)
{
    return (struct capture_failure){
        .key = capture->key,
        .generation = capture->generation,
        .error = arena_printf(a, "the checkpoint_ref is longer than %d bytes", CHECKPOINT_REF_MAX),
    };
}

bool field_captures(struct str captures, struct str failures, struct arena *a,
                    struct capture_report *out, struct err *e)
{
    struct json_walk walk = {0};
    struct capture *taken, one;
    struct capture_failure *failed;
    size_t n_captures, n_failures;
    struct str item;

    *out = (struct capture_report){0};
    if (!count_entries("captures", captures, JSON_OBJECT, &n_captures, e) ||
        !count_entries("capture_failures", failures, JSON_OBJECT, &n_failures, e))
        return false;
    if (n_captures + n_failures == 0)
        return true;
    out->captures = taken = arena_array(a, struct capture, n_captures);
    out->failures = failed = arena_array(a, struct capture_failure, n_captures + n_failures);
    if (taken == NULL || failed == NULL)
        return err_set(e, ERR_INTERNAL, "out of memory");
    while (n_captures > 0 && json_next_item(captures, &walk, &item)) {
        one = (struct capture){0};
        if (!decode_capture(item, a, &one, e))
            return refuse_entry("captures", e);
        if (one.checkpoint_ref.n > CHECKPOINT_REF_MAX)
            failed[out->n_failures++] = too_long(&one, a);
        else
            taken[out->n_captures++] = one;
    }
    walk = (struct json_walk){0};
    while (n_failures > 0 && json_next_item(failures, &walk, &item))
        if (!decode_failure(item, a, &failed[out->n_failures++], e))
            return refuse_entry("capture_failures", e);
    return true;
}

/* ---- JSON ---- */

bool field_resource_json(const char *name, struct str raw, struct err *e)
{
    return raw.n <= RESOURCE_JSON_MAX ||
           err_set(e, ERR_VALIDATION, "field \"%s\" must be at most %d bytes", name,
                   RESOURCE_JSON_MAX);
}
