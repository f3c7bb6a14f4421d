/* SPDX-License-Identifier: Apache-2.0
 * Covered points, against the definition read word by word. */
#include "support/check.h"

#include <stdlib.h>

#include "base/json.h"
#include "cli/coverage.h"
#include "cli/restoration.h"

enum { SEQS = 40, CHECKPOINTS = 12, RESOURCES = 4 };

struct model {
    int64_t registered[RESOURCES];
    struct {
        size_t resource;
        int64_t covered, invalidated; /* 0: open */
    } checkpoints[CHECKPOINTS];
    size_t n_resources, n_checkpoints;
};

/* A checkpoint covers seq when covered_seq <= seq < invalidated_seq (or open); a point is covered
 * when every resource registered at or before it is covered there. */
static bool model_covers(const struct model *m, int64_t seq)
{
    for (size_t r = 0; r < m->n_resources; r++) {
        bool covered = m->registered[r] > seq;

        for (size_t i = 0; i < m->n_checkpoints; i++) {
            if (m->checkpoints[i].resource == r && m->checkpoints[i].covered <= seq &&
                (m->checkpoints[i].invalidated == 0 || seq < m->checkpoints[i].invalidated))
                covered = true;
        }
        if (!covered)
            return false;
    }
    return true;
}

static void model_write(const struct model *m, struct buf *out)
{
    buf_printf(out, "{\"latest_seq\":%d,\"resources\":{", SEQS);
    for (size_t r = 0; r < m->n_resources; r++)
        buf_printf(out, "%s\"r%zu\":%lld", r == 0 ? "" : ",", r, (long long)m->registered[r]);
    buf_add_z(out, "},\"checkpoints\":[");
    for (size_t i = 0; i < m->n_checkpoints; i++) {
        buf_printf(out,
                   "%s{\"key\":\"r%zu\",\"generation\":%zu,\"checkpoint_ref\":\"c%zu\","
                   "\"covered_seq\":%lld",
                   i == 0 ? "" : ",", m->checkpoints[i].resource, i, i,
                   (long long)m->checkpoints[i].covered);
        if (m->checkpoints[i].invalidated > 0)
            buf_printf(out, ",\"invalidated_seq\":%lld", (long long)m->checkpoints[i].invalidated);
        buf_add_byte(out, '}');
    }
    buf_add_z(out, "]}");
}

static int64_t below(int64_t n)
{
    return rand() % n;
}

static void agrees_with_the_definition(void **state)
{
    (void)state;
    srand(5);
    for (size_t round = 0; round < 500; round++) {
        struct model m = {.n_resources = (size_t)below(RESOURCES + 1)};
        struct buf text = {0};
        struct arena a = {0};
        struct coverage c;

        for (size_t r = 0; r < m.n_resources; r++)
            m.registered[r] = 1 + below(SEQS);
        m.n_checkpoints = m.n_resources == 0 ? 0 : (size_t)below(CHECKPOINTS + 1);
        for (size_t i = 0; i < m.n_checkpoints; i++) {
            m.checkpoints[i].resource = (size_t)below((int64_t)m.n_resources);
            m.checkpoints[i].covered = 1 + below(SEQS);
            m.checkpoints[i].invalidated =
                below(3) == 0 ? 0 : m.checkpoints[i].covered + below(SEQS / 2);
        }
        model_write(&m, &text);
        CHECKF(coverage_read(buf_str(&text), &a, &c), "%.*s", STR_ARG(buf_str(&text)));
        for (int64_t seq = 1; seq <= SEQS; seq++)
            CHECKF(coverage_at(&c, seq) == model_covers(&m, seq), "event %lld of %.*s",
                   (long long)seq, STR_ARG(buf_str(&text)));
        for (size_t i = 1; i < c.n_ranges; i++)
            CHECKF(c.ranges[i - 1].last + 1 < c.ranges[i].first, "range %zu", i);
        buf_free(&text);
        arena_free(&a);
    }
}

static void refuses_what_is_none(void **state)
{
    static const char *const cases[] = {
        "[]",
        "{}",
        "{\"latest_seq\":\"x\",\"resources\":{},\"checkpoints\":[]}",
        "{\"latest_seq\":1,\"resources\":[],\"checkpoints\":[]}",
        "{\"latest_seq\":1,\"resources\":{\"a\":-1},\"checkpoints\":[]}",
        "{\"latest_seq\":1,\"resources\":{\"a\":1}}",
        "{\"latest_seq\":1,\"resources\":{\"a\":1},\"checkpoints\":[{\"key\":\"a\"}]}",
    };

    (void)state;
    for (size_t i = 0; i < COUNT(cases); i++) {
        struct arena a = {0};
        struct coverage c;

        CHECKF(!coverage_read(str_of(cases[i]), &a, &c), "%s", cases[i]);
        arena_free(&a);
    }
}

static void restorations_in_words(void **state)
{
    static const struct {
        const char *json, *text;
        bool covered;
    } cases[] = {
        {"{\"w\":{\"checkpoint_ref\":\"snap-3\",\"checkpoint_seq\":41,\"covered\":true}}",
         "restored from checkpoint snap-3, captured after event 41", true},
        {"{\"w\":{\"covered\":false}}", "starts from its initial environment", false},
        {"{\"w\":{\"checkpoint_ref\":\"s\\u001b\\n\",\"checkpoint_seq\":8,\"covered\":false,"
         "\"checkpoint_execution_id\":\"0199c2a4-7d10-7c4e-8abc-0123456789ab\"}}",
         "restored from checkpoint s\\x1b\\n of an earlier turn, 0199c2a4-7d10-7c4e, captured "
         "after "
         "event 8 there",
         false},
    };

    (void)state;
    for (size_t i = 0; i < COUNT(cases); i++) {
        struct arena a = {0};
        struct json_walk walk = {0};
        struct restored r;

        assert_true(restoration_next(str_of(cases[i].json), &walk, &a, &r));
        CHECK_STR(r.key, STR("w"));
        CHECKF(r.covered == cases[i].covered, "case %zu", i);
        CHECK_STR(restoration_text(&r, STR_NONE, &a), str_of(cases[i].text));
        assert_false(restoration_next(str_of(cases[i].json), &walk, &a, &r));
        arena_free(&a);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(agrees_with_the_definition),
        cmocka_unit_test(refuses_what_is_none),
        cmocka_unit_test(restorations_in_words),
    };

    return cmocka_run_group_tests_name("cli_coverage", tests, NULL, NULL);
}
