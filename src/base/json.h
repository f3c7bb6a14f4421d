/* SPDX-License-Identifier: Apache-2.0
 * JSON by RFC 8259, strict: valid UTF-8, no trailing bytes, no NaN, bounded depth without
 * recursion. Values that the kernel only carries stay the bytes that came: readers hand out slices
 * of the source text. Only base/json* and domain/canonical.c know the grammar. */
#ifndef BASE_JSON_H
#define BASE_JSON_H

#include "base/arena.h"
#include "base/buf.h"
#include "base/err.h"

enum {
    JSON_MAX_DEPTH = 1000
}; /* arrays and objects inside each other; deeper text is refused with ERR_VALIDATION */

enum json_type {
    JSON_INVALID,
    JSON_NULL,
    JSON_BOOL,
    JSON_NUMBER,
    JSON_STRING,
    JSON_ARRAY,
    JSON_OBJECT
};

/* Whole text is exactly one valid value. Errors are ERR_VALIDATION: "invalid JSON at byte 17 (line
 * 1, column 18): …". Duplicate keys are not looked at here. */
MUST_USE bool json_check(struct str text, struct err *e);

/* The type of a valid value (its first byte decides); JSON_INVALID for an empty slice. Leading
 * white space is skipped. */
enum json_type json_type_of(struct str value);
struct str json_trim(struct str value); /* without surrounding JSON white space */

/* One member of an object: the decoded key and the raw text of the value (trimmed). */
struct json_member {
    struct str key;   /* slice of the source when it has no escape, else arena */
    struct str value; /* slice of the source */
};
/* Walks an object or array that json_check has accepted. Zero the walker, then call until it
 * returns false. */
struct json_walk {
    size_t at;
    bool started;
};
bool json_next_member(struct str object, struct json_walk *w, struct arena *a,
                      struct json_member *out);
bool json_next_item(struct str array, struct json_walk *w, struct str *item);
/* First member with this decoded key; STR_NONE when absent. For small objects. */
struct str json_get(struct str object, struct str key, struct arena *a);

/* Decodes a string value's text (quotes included) into UTF-8. A lone surrogate escape becomes
 * U+FFFD. arena or source. STR_NONE when it is no string, or there is no memory for a long one. */
struct str json_string(struct str value, struct arena *a);
/* An integer within int64_t written as one (no fraction, no exponent). */
MUST_USE bool json_int64(struct str value, int64_t *out);

/* A request's own fields: checks the whole text, requires an object, refuses duplicates among its
 * own keys (compared as decoded) and unknown ones, and points each field at its raw value. A null
 * value counts as missing unless keep_null. */
struct json_field {
    const char *name;
    bool required;
    bool keep_null; /* JSON of the user's: null is a value */
    unsigned types; /* bits 1u << enum json_type that are accepted; 0: any. Null is always accepted
                       as "missing". */
    struct str *value; /* out: raw text, or STR_NONE */
};
/* Errors name the field: "unknown field \"foo\"", "missing field \"kind\"", "field \"target\" must
 * be a string". An empty body counts as {} when allow_empty. */
MUST_USE bool json_fields(struct str body, bool allow_empty, const struct json_field *fields,
                          size_t n, struct arena *a, struct err *e);

/* ---- writing ---- */
/* Appends text as a JSON string with quotes; escapes what JSON requires. Invalid UTF-8 becomes
 * U+FFFD. */
void json_add_string(struct buf *out, struct str s);

/* A writer that puts the commas: members and items in order, nesting by open/close. Sticky like the
 * buffer under it. */
struct json_writer {
    struct buf *out;
    bool comma;
};
void jw_open(struct json_writer *w, char bracket);   /* '{' or '[' as a value */
void jw_close(struct json_writer *w, char bracket);  /* '}' or ']' */
void jw_key(struct json_writer *w, const char *key); /* key is a plain literal */
void jw_str(struct json_writer *w, struct str s);
void jw_raw(struct json_writer *w, struct str json); /* a valid value's text */
void jw_int(struct json_writer *w, int64_t v);
void jw_bool(struct json_writer *w, bool v);
void jw_null(struct json_writer *w);
/* Key and value in one; the _opt form leaves the member out when the value is absent (p NULL). */
void jw_member_str(struct json_writer *w, const char *key, struct str s);
void jw_member_str_opt(struct json_writer *w, const char *key, struct str s);
void jw_member_raw_opt(struct json_writer *w, const char *key, struct str json);
void jw_member_int(struct json_writer *w, const char *key, int64_t v);

#endif
