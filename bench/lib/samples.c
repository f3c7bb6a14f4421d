/* SPDX-License-Identifier: Apache-2.0
 * Durations and their percentiles. */
#include "lib/samples.h"

#include <stdio.h>
#include <stdlib.h>

enum { FIRST_CAP = 4096 };

void samples_add(struct samples *s, int64_t ns)
{
    if (s->n == s->cap) {
        s->cap = s->cap == 0 ? FIRST_CAP : s->cap * 2;
        s->ns = xrealloc(s->ns, s->cap * sizeof *s->ns);
    }
    s->ns[s->n++] = ns;
}

void samples_append(struct samples *s, const struct samples *more)
{
    for (size_t i = 0; i < more->n; i++)
        samples_add(s, more->ns[i]);
}

void samples_free(struct samples *s)
{
    free(s->ns);
    *s = (struct samples){0};
}

static int compare(const void *a, const void *b)
{
    const int64_t *x = a, *y = b;

    return (*x > *y) - (*x < *y);
}

static int64_t *sorted(const struct samples *s, size_t from, size_t to)
{
    int64_t *copy = xmalloc((to - from) * sizeof *copy);

    memcpy(copy, s->ns + from, (to - from) * sizeof *copy);
    qsort(copy, to - from, sizeof *copy, compare);
    return copy;
}

static int64_t at_percentile(const int64_t *ns, size_t n, double percentile)
{
    return ns[(size_t)(percentile / 100.0 * (double)(n - 1) + 0.5)];
}

int64_t samples_percentile(const struct samples *s, size_t from, size_t to, double percentile)
{
    if (to > s->n)
        to = s->n;
    if (from >= to)
        return 0;
    int64_t *ns = sorted(s, from, to);
    int64_t value = at_percentile(ns, to - from, percentile);

    free(ns);
    return value;
}

void jw_member_real(struct json_writer *w, const char *key, double v)
{
    char text[64];
    int n = snprintf(text, sizeof text, "%.3f", v);

    jw_key(w, key);
    jw_raw(w, str_make(text, (size_t)n));
}

void samples_write(const struct samples *s, const char *name, struct json_writer *w)
{
    static const struct {
        const char *name;
        double percentile;
    } SHOWN[] = {{"p50", 50}, {"p90", 90}, {"p99", 99}, {"max", 100}};

    jw_key(w, name);
    jw_open(w, '{');
    jw_member_int(w, "n", (int64_t)s->n);
    if (s->n > 0) {
        int64_t *ns = sorted(s, 0, s->n);
        double sum = 0;
        for (size_t i = 0; i < s->n; i++)
            sum += (double)ns[i];
        jw_member_real(w, "mean", sum / (double)s->n / 1e3);
        for (size_t i = 0; i < COUNT(SHOWN); i++)
            jw_member_real(w, SHOWN[i].name,
                           (double)at_percentile(ns, s->n, SHOWN[i].percentile) / 1e3);
        free(ns);
    }
    jw_close(w, '}');
}

void samples_write_all(const struct samples *s, const char *name, struct json_writer *w)
{
    jw_key(w, name);
    jw_open(w, '[');
    for (size_t i = 0; i < s->n; i++)
        jw_int(w, s->ns[i] / 1000);
    jw_close(w, ']');
}
