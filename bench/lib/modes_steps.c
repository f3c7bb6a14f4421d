/* SPDX-License-Identifier: Apache-2.0
 * Modes that take steps: as fast as they come, at a rate, again under a later attempt, many in one
 * execution. */
#include "lib/modes.h"

enum { THOUSAND = 1000 };

void mode_record(struct fleet *f, struct json_writer *w)
{
    struct drive d = {
        .fleet = f, .seconds = f->opt.seconds, .warmup_s = f->opt.warmup_s, .rate = f->opt.rate};

    fleet_create_runs(f, f->opt.executions);
    drive_run(&d);
    drive_write(&d, w);
    drive_free(&d);
}

static double rate_of(const struct drive *d)
{
    return (double)(d->to.records - d->from.records) / (double)(d->to.at_ns - d->from.at_ns) * 1e9;
}

void mode_replay(struct fleet *f, struct json_writer *w)
{
    struct drive recorded = {.fleet = f, .steps = f->opt.steps};
    struct drive replayed = {.fleet = f, .steps = f->opt.steps, .replay = true};

    fleet_create_runs(f, f->opt.executions);
    drive_run(&recorded);
    if (!f->opt.hello)
        fleet_release_runs(f);
    drive_run(&replayed);
    jw_key(w, "recorded");
    jw_open(w, '{');
    drive_write(&recorded, w);
    jw_close(w, '}');
    jw_key(w, "replayed");
    jw_open(w, '{');
    drive_write(&replayed, w);
    jw_close(w, '}');
    jw_member_real(w, "ratio", rate_of(&replayed) / rate_of(&recorded));
    drive_free(&recorded);
    drive_free(&replayed);
}

struct marks { /* counters after each thousand steps */
    struct usage *at;
    size_t n;
};

static void mark(struct drive *d)
{
    struct marks *m = d->owner;

    if (d->steps_done % THOUSAND == 0)
        m->at[m->n++] = drive_usage(d);
}

struct thousand { /* microseconds a step */
    double wall, cpu, submit_p50, complete_p50;
};

/* The i-th thousand, from 1. */
static struct thousand thousand_of(const struct drive *d, const struct marks *m, size_t i)
{
    const struct usage *a = &m->at[i - 1], *b = &m->at[i];
    size_t from = (i - 1) * THOUSAND, to = i * THOUSAND;

    return (struct thousand){
        .wall = (double)(b->at_ns - a->at_ns) / THOUSAND / 1e3,
        .cpu = (double)(b->server_cpu_ns - a->server_cpu_ns) / THOUSAND / 1e3,
        .submit_p50 = (double)samples_percentile(&d->submits, from, to, 50) / 1e3,
        .complete_p50 = (double)samples_percentile(&d->completes, from, to, 50) / 1e3,
    };
}

static void thousand_write(const char *name, struct thousand t, struct json_writer *w)
{
    jw_key(w, name);
    jw_open(w, '{');
    jw_member_real(w, "wall_us_per_step", t.wall);
    jw_member_real(w, "server_cpu_us_per_step", t.cpu);
    jw_member_real(w, "submit_p50_us", t.submit_p50);
    jw_member_real(w, "complete_p50_us", t.complete_p50);
    jw_close(w, '}');
}

/* A thousand steps of another execution: else the first thousand would pay for a cold server, and
 * the last look cheap. */
static void warm_up(struct fleet *f)
{
    struct drive d = {.fleet = f, .steps = THOUSAND};

    fleet_create_runs(f, 1);
    drive_run(&d);
    drive_free(&d);
}

void mode_long(struct fleet *f, struct json_writer *w)
{
    struct marks marks = {0};
    struct drive d = {.fleet = f, .steps = f->opt.steps, .stepped = mark, .owner = &marks};
    size_t thousands = (size_t)f->opt.steps / THOUSAND;

    if (thousands < 2 || f->opt.connections != 1 || f->opt.executions != 1)
        die("long: one connection, one execution, two thousand steps at least");
    warm_up(f);
    fleet_create_runs(f, 1);
    f->runs[0] = f->runs[f->runs_n - 1]; /* the only agent works on the first */
    f->runs_n = 1;
    marks.at = xzalloc((thousands + 1) * sizeof *marks.at);
    marks.at[marks.n++] = drive_usage(&d);
    drive_run(&d);
    struct thousand first = thousand_of(&d, &marks, 1), last = thousand_of(&d, &marks, thousands);
    thousand_write("first", first, w);
    thousand_write("last", last, w);
    jw_member_real(w, "wall_ratio", last.wall / first.wall);
    jw_member_real(w, "median_ratio",
                   (last.submit_p50 + last.complete_p50) / (first.submit_p50 + first.complete_p50));
    jw_member_real(w, "cpu_ratio", first.cpu > 0 ? last.cpu / first.cpu : 0);
    jw_key(w, "thousands_cpu_us");
    jw_open(w, '[');
    for (size_t i = 1; i <= thousands; i++)
        jw_int(w, (int64_t)(thousand_of(&d, &marks, i).cpu + 0.5));
    jw_close(w, ']');
    drive_write(&d, w);
    drive_free(&d);
}
