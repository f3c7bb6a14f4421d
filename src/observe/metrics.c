/* SPDX-License-Identifier: Apache-2.0 */
#include "observe/metrics.h"

#include "base/arena.h"
#include "base/clock.h"

#include <dirent.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <unistd.h>

/* Statuses that are counted apart; the last place is for others. */
static const int STATUSES[] = {200, 201, 204, 400, 401, 403, 404,
                               405, 408, 409, 413, 431, 500, 503};
enum { STATUS_COUNT = COUNT(STATUSES) + 1 };

static const struct {
    int64_t us;
    const char *text;
} BUCKETS[] = {
    {500, "0.0005"},  {1000, "0.001"},  {2500, "0.0025"}, {5000, "0.005"},  {10000, "0.01"},
    {25000, "0.025"}, {50000, "0.05"},  {100000, "0.1"},  {250000, "0.25"}, {500000, "0.5"},
    {1000000, "1"},   {2500000, "2.5"}, {5000000, "5"},   {10000000, "10"},
};
enum { BUCKET_COUNT = COUNT(BUCKETS) + 1 };

struct route_counts {
    atomic_uint_fast64_t status[STATUS_COUNT];
    atomic_uint_fast64_t bucket[BUCKET_COUNT]; /* each for itself; summed up when shown */
    atomic_uint_fast64_t sum_us;
};

struct metrics {
    struct str *names;
    size_t n; /* routes; the one after them is "unmatched" */
    struct route_counts *routes;
};

struct metrics *metrics_new(const struct str *routes, size_t n)
{
    struct metrics *m = xzalloc(sizeof(*m));

    m->n = n;
    m->names = xzalloc((n + 1) * sizeof(*m->names));
    memcpy(m->names, routes, n * sizeof(*m->names));
    m->names[n] = STR("unmatched");
    m->routes = xzalloc((n + 1) * sizeof(*m->routes));
    return m;
}

void metrics_free(struct metrics *m)
{
    if (m == NULL)
        return;
    free(m->names);
    free(m->routes);
    free(m);
}

static void bump(atomic_uint_fast64_t *counter, uint64_t by)
{
    atomic_fetch_add_explicit(counter, by, memory_order_relaxed);
}

static uint64_t get(const atomic_uint_fast64_t *counter)
{
    return atomic_load_explicit(counter, memory_order_relaxed);
}

void metrics_count_http(struct metrics *m, size_t route, int status, int64_t duration_us)
{
    struct route_counts *r = &m->routes[route];
    size_t s = 0, b = 0;

    while (s < COUNT(STATUSES) && STATUSES[s] != status)
        s++;
    while (b < COUNT(BUCKETS) && duration_us > BUCKETS[b].us)
        b++;
    bump(&r->status[s], 1);
    bump(&r->bucket[b], 1);
    bump(&r->sum_us, duration_us > 0 ? (uint64_t)duration_us : 0);
}

/* ---- the format ---- */

void metric_begin(struct buf *out, const char *name, enum metric_type type, const char *help)
{
    static const char *const names[] = {"counter", "gauge", "summary", "histogram"};

    buf_printf(out, "# HELP %s %s\n# TYPE %s %s\n", name, help, name, names[type]);
}

void metric_value(struct buf *out, const char *name, const char *label, const char *label_value,
                  int64_t v)
{
    buf_add_z(out, name);
    if (label != NULL)
        buf_printf(out, "{%s=\"%s\"}", label, label_value);
    buf_printf(out, " %lld\n", (long long)v);
}

void metric_seconds(struct buf *out, const char *name, int64_t us)
{
    buf_printf(out, "%s %lld.%06lld\n", name, (long long)(us / US_PER_S),
               (long long)(us % US_PER_S));
}

static void add_requests(const struct metrics *m, struct buf *out)
{
    metric_begin(out, "rebuno_http_requests_total", METRIC_COUNTER, "HTTP requests answered.");
    for (size_t i = 0; i <= m->n; i++) {
        for (size_t s = 0; s < STATUS_COUNT; s++) {
            uint64_t v = get(&m->routes[i].status[s]);
            if (v == 0)
                continue;
            buf_printf(out, "rebuno_http_requests_total{route=\"%.*s\",status=\"",
                       STR_ARG(m->names[i]));
            if (s < COUNT(STATUSES))
                buf_add_int(out, STATUSES[s]);
            else
                buf_add(out, STR("other"));
            buf_printf(out, "\"} %llu\n", (unsigned long long)v);
        }
    }
}

static void add_durations(struct str route, const struct route_counts *r, struct buf *out)
{
    static const char name[] = "rebuno_http_request_duration_seconds";
    uint64_t sum_us = get(&r->sum_us), total = 0;
    uint64_t counts[BUCKET_COUNT];

    for (size_t b = 0; b < BUCKET_COUNT; b++) {
        counts[b] = get(&r->bucket[b]);
        total += counts[b];
    }
    if (total == 0)
        return;
    total = 0;
    for (size_t b = 0; b < BUCKET_COUNT; b++) {
        total += counts[b];
        buf_printf(out, "%s_bucket{route=\"%.*s\",le=\"%s\"} %llu\n", name, STR_ARG(route),
                   b < COUNT(BUCKETS) ? BUCKETS[b].text : "+Inf", (unsigned long long)total);
    }
    buf_printf(out, "%s_sum{route=\"%.*s\"} %llu.%06llu\n", name, STR_ARG(route),
               (unsigned long long)(sum_us / (uint64_t)US_PER_S),
               (unsigned long long)(sum_us % (uint64_t)US_PER_S));
    buf_printf(out, "%s_count{route=\"%.*s\"} %llu\n", name, STR_ARG(route),
               (unsigned long long)total);
}

void metrics_add_http(const struct metrics *m, struct buf *out)
{
    add_requests(m, out);
    metric_begin(out, "rebuno_http_request_duration_seconds", METRIC_HISTOGRAM,
                 "From a request's first byte to its answer, by route; streams when they end.");
    for (size_t i = 0; i <= m->n; i++)
        add_durations(m->names[i], &m->routes[i], out);
}

/* ---- the process ---- */

static void add_memory(struct buf *out)
{
    FILE *f = fopen("/proc/self/statm", "re");
    long long virtual_pages = 0, resident_pages = 0, page = sysconf(_SC_PAGESIZE);

    if (f == NULL)
        return;
    if (fscanf(f, "%lld %lld", &virtual_pages, &resident_pages) == 2) {
        metric_begin(out, "process_virtual_memory_bytes", METRIC_GAUGE,
                     "Virtual memory size in bytes.");
        metric_value(out, "process_virtual_memory_bytes", NULL, NULL, virtual_pages * page);
        metric_begin(out, "process_resident_memory_bytes", METRIC_GAUGE,
                     "Resident memory size in bytes.");
        metric_value(out, "process_resident_memory_bytes", NULL, NULL, resident_pages * page);
    }
    fclose(f);
}

static void add_files(struct buf *out)
{
    DIR *dir = opendir("/proc/self/fd");
    struct rlimit limit;
    int64_t n = -3; /* itself, and the two dots */

    if (dir != NULL) {
        while (readdir(dir) != NULL)
            n++;
        closedir(dir);
        metric_begin(out, "process_open_fds", METRIC_GAUGE, "Number of open file descriptors.");
        metric_value(out, "process_open_fds", NULL, NULL, n);
    }
    if (getrlimit(RLIMIT_NOFILE, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY) {
        metric_begin(out, "process_max_fds", METRIC_GAUGE,
                     "Maximum number of open file descriptors.");
        metric_value(out, "process_max_fds", NULL, NULL, (int64_t)limit.rlim_cur);
    }
}

/* Field 22 of its stat, in ticks since the machine booted. */
static bool read_start(double *since_boot_s)
{
    char line[1024];
    FILE *f = fopen("/proc/self/stat", "re");
    const char *p = NULL;

    if (f == NULL)
        return false;
    if (fgets(line, sizeof(line), f) != NULL)
        p = strrchr(line, ')'); /* the name before it may hold anything */
    fclose(f);
    for (int field = 2; p != NULL && field < 22; field++)
        p = strchr(p + 1, ' ');
    if (p == NULL)
        return false;
    *since_boot_s = strtod(p, NULL) / (double)sysconf(_SC_CLK_TCK);
    return true;
}

static void add_times(struct buf *out)
{
    struct rusage u;
    double since_boot;

    if (getrusage(RUSAGE_SELF, &u) == 0) {
        metric_begin(out, "process_cpu_seconds_total", METRIC_COUNTER,
                     "Total user and system CPU time in seconds.");
        metric_seconds(out, "process_cpu_seconds_total",
                       (u.ru_utime.tv_sec + u.ru_stime.tv_sec) * US_PER_S + u.ru_utime.tv_usec +
                           u.ru_stime.tv_usec);
    }
    if (read_start(&since_boot)) {
        double boot = (double)(clock_wall_us() - clock_mono_us()) / (double)US_PER_S;
        metric_begin(out, "process_start_time_seconds", METRIC_GAUGE,
                     "Start time of the process since unix epoch in seconds.");
        buf_printf(out, "process_start_time_seconds %.2f\n", boot + since_boot);
    }
}

void metrics_add_process(struct buf *out)
{
    add_memory(out);
    add_files(out);
    add_times(out);
}
