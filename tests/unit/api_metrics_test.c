/* SPDX-License-Identifier: Apache-2.0
 * Prometheus' text: counters by route and status, histograms that add up. */
#include "support/check.h"

#include "observe/metrics.h"

#include <stdlib.h>

static bool has_line(const struct buf *out, const char *line)
{
    size_t n = strlen(line);

    for (const char *p = out->p; p != NULL; p = memchr(p, '\n', out->n - (size_t)(p - out->p))) {
        p += p != out->p;
        if ((size_t)(out->p + out->n - p) > n && memcmp(p, line, n) == 0 && p[n] == '\n')
            return true;
        if (p == out->p + out->n)
            return false;
    }
    return false;
}

static void counts_requests(void **state)
{
    static const struct str routes[] = {STR_INIT("GET /a"), STR_INIT("POST /b")};
    static const char *const lines[] = {
        "# TYPE rebuno_http_requests_total counter",
        "rebuno_http_requests_total{route=\"GET /a\",status=\"200\"} 2",
        "rebuno_http_requests_total{route=\"GET /a\",status=\"404\"} 1",
        "rebuno_http_requests_total{route=\"unmatched\",status=\"other\"} 1",
        "# TYPE rebuno_http_request_duration_seconds histogram",
        "rebuno_http_request_duration_seconds_bucket{route=\"GET /a\",le=\"0.0005\"} 1",
        "rebuno_http_request_duration_seconds_bucket{route=\"GET /a\",le=\"0.001\"} 2",
        "rebuno_http_request_duration_seconds_bucket{route=\"GET /a\",le=\"10\"} 2",
        "rebuno_http_request_duration_seconds_bucket{route=\"GET /a\",le=\"+Inf\"} 3",
        "rebuno_http_request_duration_seconds_sum{route=\"GET /a\"} 60.001500",
        "rebuno_http_request_duration_seconds_count{route=\"GET /a\"} 3",
    };
    struct metrics *m = metrics_new(routes, COUNT(routes));
    struct buf out = {0};

    (void)state;
    metrics_count_http(m, 0, 200, 500); /* a bucket's bound is in it */
    metrics_count_http(m, 0, 200, 1000);
    metrics_count_http(m, 0, 404, 60000000);
    metrics_count_http(m, 2, 599, -5);
    metrics_add_http(m, &out);
    for (size_t i = 0; i < COUNT(lines); i++)
        CHECKF(has_line(&out, lines[i]), "missing: %s", lines[i]);
    assert_null(memmem(out.p, out.n, "POST /b", 7)); /* never called: not shown */
    buf_free(&out);
    metrics_free(m);
}

static void writes_values(void **state)
{
    struct buf out = {0};

    (void)state;
    metric_begin(&out, "x_total", METRIC_COUNTER, "Things.");
    metric_value(&out, "x_total", NULL, NULL, 7);
    metric_value(&out, "x_total", "kind", "local", -1);
    metric_seconds(&out, "x_seconds_sum", 1500);
    CHECK_STR(buf_str(&out), STR("# HELP x_total Things.\n# TYPE x_total counter\nx_total "
                                 "7\nx_total{kind=\"local\"} -1\n"
                                 "x_seconds_sum 0.001500\n"));
    buf_free(&out);
}

static void tells_of_the_process(void **state)
{
    static const char *const names[] = {"process_resident_memory_bytes ", "process_open_fds ",
                                        "process_cpu_seconds_total ",
                                        "process_start_time_seconds "};
    struct buf out = {0};

    (void)state;
    metrics_add_process(&out);
    buf_add_byte(&out, '\0');
    for (size_t i = 0; i < COUNT(names); i++) {
        const char *at = strstr(out.p, names[i]);
        while (at != NULL && at != out.p && at[-1] != '\n')
            at = strstr(at + 1, names[i]);
        CHECKF(at != NULL && strtod(at + strlen(names[i]), NULL) >= 0, "%s", names[i]);
    }
    buf_free(&out);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(counts_requests),
        cmocka_unit_test(writes_values),
        cmocka_unit_test(tells_of_the_process),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
