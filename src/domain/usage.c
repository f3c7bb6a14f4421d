/* SPDX-License-Identifier: Apache-2.0 */
#include "domain/usage.h"

#include <stdlib.h>

static const struct str INPUT_NAMES[] = {
    STR_INIT("prompt_tokens"),    STR_INIT("input_tokens"),      STR_INIT("inputTokens"),
    STR_INIT("promptTokenCount"), STR_INIT("prompt_eval_count"),
};
static const struct str OUTPUT_NAMES[] = {
    STR_INIT("completion_tokens"),    STR_INIT("output_tokens"), STR_INIT("outputTokens"),
    STR_INIT("candidatesTokenCount"), STR_INIT("eval_count"),
};

static bool is_one_of(struct str name, const struct str *names, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (str_eq(name, names[i]))
            return true;
    return false;
}

static size_t skip_space(struct str s, size_t at)
{
    while (at < s.n && memchr(" \t\n\r", s.p[at], 4) != NULL)
        at++;
    return at;
}

/* The index of the quote that ends the string beginning at `at` (its own quote). */
static size_t string_end(struct str s, size_t at)
{
    for (at++; at < s.n && s.p[at] != '"'; at++)
        if (s.p[at] == '\\')
            at++;
    return at;
}

/* Whole numbers, in whatever notation: 12, 12.0 and 1.2e1. */
static bool whole_number(struct str json, size_t at, int64_t *out)
{
    static const double MOST = 9007199254740992.0; /* beyond it doubles have gaps */
    size_t end = at;
    double value;

    while (end < json.n && json.p[end] >= '0' && json.p[end] <= '9')
        end++;
    if (end == at)
        return false;
    if (end == json.n || memchr(".eE", json.p[end], 3) == NULL)
        return str_to_int64(str_slice(json, at, end), out);
    value = strtod(json.p + at, NULL); /* a member's value: something stands behind it */
    if (value > MOST || value != (double)(int64_t)value)
        return false;
    *out = (int64_t)value;
    return true;
}

static void take(int64_t *most, struct str json, size_t at)
{
    int64_t n;

    if (whole_number(json, at, &n) && n > *most) /* else it is no count of ours */
        *most = n;
}

/* In valid JSON a string that a colon follows is a key, so one pass without nesting finds all of
 * them. */
static void search(struct str json, struct usage *u)
{
    for (size_t at = 0; at < json.n; at++) {
        size_t end, next;
        struct str name;

        if (json.p[at] != '"')
            continue;
        end = string_end(json, at);
        next = skip_space(json, end + 1);
        if (next < json.n && json.p[next] == ':') {
            name = str_slice(json, at + 1, end);
            next = skip_space(json, next + 1);
            if (is_one_of(name, INPUT_NAMES, COUNT(INPUT_NAMES)))
                take(&u->input_tokens, json, next);
            else if (is_one_of(name, OUTPUT_NAMES, COUNT(OUTPUT_NAMES)))
                take(&u->output_tokens, json, next);
        }
        at = end;
    }
}

/* Events carry JSON behind `data:`; Ollama's own streams are JSON line by line. */
static void search_lines(struct str body, struct usage *u)
{
    struct err e;

    for (size_t at = 0; at < body.n;) {
        const char *nl = memchr(body.p + at, '\n', body.n - at);
        size_t end = nl == NULL ? body.n : (size_t)(nl - body.p);
        struct str line = str_slice(body, at, end);

        at = end + 1;
        if (str_starts(line, STR("data:")))
            line = str_slice(line, 5, line.n);
        if (json_check(line, &e))
            search(line, u);
    }
}

/* Most results carry no counts; none is decoded to find that out. */
static bool may_carry(struct str result)
{
    return memmem(result.p, result.n, "oken", 4) != NULL ||
           memmem(result.p, result.n, "eval_count", 10) != NULL;
}

void usage_write(struct json_writer *w, struct usage u)
{
    jw_open(w, '{');
    if (u.input_tokens >= 0)
        jw_member_int(w, "input_tokens", u.input_tokens);
    if (u.output_tokens >= 0)
        jw_member_int(w, "output_tokens", u.output_tokens);
    jw_close(w, '}');
}

int64_t usage_add(int64_t sum, struct usage u)
{
    const int64_t counts[] = {u.input_tokens, u.output_tokens};

    for (size_t i = 0; i < COUNT(counts); i++)
        if (counts[i] > 0 && __builtin_add_overflow(sum, counts[i], &sum))
            sum = INT64_MAX;
    return sum;
}

struct usage usage_read(struct str result, struct arena *a)
{
    struct usage u = USAGE_NONE;
    struct str body = STR_NONE;
    struct err e;

    if (!may_carry(result))
        return u;
    if (json_type_of(result) == JSON_OBJECT)
        body = json_get(result, STR("body"), a);
    if (!str_present(body) || json_type_of(body) != JSON_STRING) {
        search(result, &u);
        return u;
    }
    body = json_string(body, a);
    if (json_check(body, &e))
        search(body, &u);
    else
        search_lines(body, &u);
    return u;
}
