/* SPDX-License-Identifier: Apache-2.0
 * Agents at work. */
#include "lib/drive.h"

#include <stdio.h>
#include <stdlib.h>

enum {
    ARGUMENT_BYTES = 200, /* the JSON value's, quotes and braces included */
    RESULT_BYTES = 500,
    STEP_ID_LEN = 64,
    BODY_MAX = 1024,
    ERRORS_SHOWN = 3,
};

struct agent {
    struct drive *drive;
    struct client *client;
    size_t index, run; /* its executions are those of its index, and every so many connections on */
    bool completing;
    bool stopped;
    int64_t due; /* paced: how many requests it has sent */
    char step_id[STEP_ID_LEN];
};

static const char FILLING[] =
    "The quick brown fox jumps over the lazy dog, and then once more, since a payload that is all "
    "one letter would say little of what hashing, copying and storing it costs. Pack my box with "
    "five dozen liquor jugs; how vexingly quick daft zebras jump; sphinx of black quartz, judge my "
    "vow; the five boxing wizards jump quickly; waltz, bad nymph, for quick jigs vex. Bright "
    "vixens "
    "jump, dozy fowl quack; jackdaws love my big sphinx of quartz. Grumpy wizards make toxic brew "
    "for the evil queen and jack, who then quietly pass it on.";

/* An object of exactly n bytes, the same for the same numbers: a replay finds the step by it. */
static int value_write(char *out, size_t n, const struct run *run)
{
    int used = snprintf(out, BODY_MAX / 2, "{\"item\":\"%zu-%lld\",\"text\":\"", run->index,
                        (long long)run->step);

    return used + snprintf(out + used, n - (size_t)used + 1, "%.*s\"}", (int)(n - (size_t)used - 2),
                           FILLING);
}

static void build_large(struct agent *g, struct run *run)
{
    char action[STEP_ID_LEN + 32] = "/steps";
    struct buf body = {0};

    if (g->completing) {
        snprintf(action, sizeof action, "/steps/%.*s/complete", STEP_ID_LEN, g->step_id);
        buf_add(&body, STR("{\"result\":"));
        g->drive->add_result(&body, run, run->step);
    } else {
        buf_add(&body, STR("{\"kind\":\"llm_call\",\"target\":\"chat\",\"idempotency\":"
                           "\"safe_to_retry\",\"args\":"));
        g->drive->add_args(&body, run, run->step);
    }
    buf_add_byte(&body, '}');
    request_agent(
        g->drive->fleet, &g->client->out,
        &(struct agent_request){.run = run, .action = str_of(action), .body = buf_str(&body)});
    buf_free(&body);
}

static void build_submit(struct agent *g, struct run *run)
{
    char body[BODY_MAX], key[64];
    const struct fleet *f = g->drive->fleet;
    int n = snprintf(body, sizeof body,
                     "{\"kind\":\"tool_call\",\"target\":\"search\",\"idempotency\":"
                     "\"safe_to_retry\",\"args\":");
    struct agent_request req = {.run = run, .action = STR("/steps")};

    n += value_write(body + n, ARGUMENT_BYTES, run);
    body[n++] = '}';
    req.body = str_make(body, (size_t)n);
    if (f->opt.keys) {
        int m = snprintf(key, sizeof key, "%s-%lld", run->attempt_text, (long long)run->step);
        req.key = str_make(key, (size_t)m);
    }
    request_agent(f, &g->client->out, &req);
}

static void build_complete(struct agent *g, struct run *run)
{
    char body[BODY_MAX], action[STEP_ID_LEN + 32];
    int n = snprintf(body, sizeof body, "{\"result\":");
    int m = snprintf(action, sizeof action, "/steps/%.*s/complete", STEP_ID_LEN, g->step_id);

    n += value_write(body + n, RESULT_BYTES, run);
    body[n++] = '}';
    request_agent(g->drive->fleet, &g->client->out,
                  &(struct agent_request){.run = run,
                                          .action = str_make(action, (size_t)m),
                                          .body = str_make(body, (size_t)n)});
}

/* The moment of the n-th request of them all; they fall due evenly, and agents take turns. */
static int64_t turn_ns(const struct drive *d, int64_t n)
{
    return d->first_due_ns + (int64_t)((double)n / d->rate * 1e9);
}

static int64_t due_ns(const struct agent *g)
{
    int64_t k = (int64_t)g->drive->fleet->opt.connections;

    return turn_ns(g->drive, g->due * k + (int64_t)g->index);
}

static void agent_send(struct agent *g)
{
    struct drive *d = g->drive;
    struct run *run = &d->fleet->runs[g->run];
    int64_t started = d->rate > 0 ? due_ns(g) : 0;

    if (d->add_args != NULL)
        build_large(g, run);
    else if (g->completing)
        build_complete(g, run);
    else
        build_submit(g, run);
    g->due++;
    client_send(g->client, d->rate > 0 ? started : now_ns());
}

static void agent_stop(struct agent *g)
{
    g->stopped = true;
    g->drive->working--;
}

/* The next request at once, later, or never again. */
static void agent_go_on(struct agent *g)
{
    struct drive *d = g->drive;

    if (d->stopping && !g->completing)
        agent_stop(g);
    else if (d->steps > 0 && d->fleet->runs[g->run].step == d->steps)
        agent_stop(g);
    else if (d->rate == 0 || due_ns(g) <= now_ns())
        agent_send(g);
}

static void step_done(struct agent *g)
{
    struct drive *d = g->drive;

    g->completing = false;
    d->fleet->runs[g->run].step++;
    d->steps_done++;
    g->run += d->fleet->opt.connections;
    if (g->run >= d->fleet->runs_n)
        g->run = g->index;
    if (d->stepped != NULL)
        d->stepped(d);
}

/* Not what was expected: the step is left alone, the next one is taken. */
static void agent_failed(struct agent *g, const struct answer *a)
{
    if (g->drive->errors++ < ERRORS_SHOWN)
        fprintf(stderr, "%s answered %d: %.*s\n", g->completing ? "complete" : "submit", a->status,
                STR_ARG(a->body));
    step_done(g);
}

static void note_record(struct drive *d, struct samples *kind, const struct answer *a)
{
    samples_add(kind, a->ended_ns - a->started_ns);
    if (!d->fleet->opt.each)
        return;
    samples_add(&d->began, a->started_ns);
    samples_add(&d->took, a->ended_ns - a->started_ns);
}

static void agent_answered(struct client *c, const struct answer *a)
{
    struct agent *g = c->owner;
    struct drive *d = g->drive;
    struct str decision = answer_field(a->body, "\"decision\"");
    struct str expected = g->completing ? STR("recorded")
                          : d->replay   ? STR("replay")
                                        : STR("proceed");
    struct str step_id = STR_NONE;

    if (!g->completing && !d->replay)
        step_id = answer_field(a->body, "\"step_id\"");
    if (d->measuring)
        note_record(d, g->completing ? &d->completes : &d->submits, a);
    d->records++;
    if (a->status != 200 || (!d->fleet->opt.hello && !str_eq(decision, expected))) {
        agent_failed(g, a);
    } else if (step_id.n == STEP_ID_LEN) {
        memcpy(g->step_id, step_id.p, STEP_ID_LEN);
        g->completing = true;
        if (d->add_args != NULL)
            buf_add(&d->fleet->runs[g->run].step_ids, step_id);
    } else {
        step_done(g);
    }
    agent_go_on(g);
}

struct usage drive_usage(const struct drive *d)
{
    struct usage u = {.at_ns = now_ns(), .records = d->records, .own_cpu_ns = own_cpu_ns()};

    u.server_cpu_ns = process_cpu_ns(d->fleet->opt.pid);
    if (d->fleet->syncs != NULL)
        u.syncs = *d->fleet->syncs;
    return u;
}

/* Sends what has fallen due, from turn *next on; returns the moment of the next. An agent that is
 * busy at its turn sends by itself when its answer comes, and may have had the answer to that, too,
 * before its turn is looked at here: then it is not its turn any more. */
static int64_t send_due(struct drive *d, int64_t *next, int64_t until)
{
    int64_t k = (int64_t)d->fleet->opt.connections;

    for (; turn_ns(d, *next) <= now_ns(); ++*next) {
        struct agent *g = &d->agents[*next % k];
        if (!g->stopped && !g->client->waiting && g->due <= *next / k)
            agent_go_on(g);
    }
    return turn_ns(d, *next) < until ? turn_ns(d, *next) : until;
}

/* Turns the loop until that moment, or until all agents have stopped. */
static void turn_until(struct drive *d, int64_t until)
{
    while (d->working > 0 && now_ns() < until)
        loop_turn(&d->fleet->loop, d->rate > 0 ? send_due(d, &d->next_turn, until) : until);
}

static void agents_start(struct drive *d)
{
    struct fleet *f = d->fleet;

    d->working = f->opt.connections;
    d->first_due_ns = now_ns();
    d->agents = xzalloc(f->opt.connections * sizeof *d->agents);
    for (size_t i = 0; i < f->opt.connections; i++) {
        struct agent *g = &d->agents[i];
        *g = (struct agent){.drive = d, .client = f->clients[i], .index = i, .run = i};
        g->client->owner = g;
        g->client->answered = agent_answered;
    }
    for (size_t i = 0; i < f->opt.connections; i++)
        agent_go_on(&d->agents[i]);
}

void drive_run(struct drive *d)
{
    int64_t start = now_ns();
    int64_t measured = start + (int64_t)(d->warmup_s * 1e9);

    if (d->steps > 0) {
        d->measuring = true;
        d->from = drive_usage(d);
    }
    agents_start(d);
    if (d->steps == 0) {
        turn_until(d, measured);
        d->measuring = true;
        d->from = drive_usage(d);
        turn_until(d, measured + (int64_t)(d->seconds * 1e9));
        d->to = drive_usage(d);
        d->measuring = false;
        d->stopping = true;
    }
    turn_until(d, INT64_MAX);
    if (d->steps > 0)
        d->to = drive_usage(d);
}

void drive_free(struct drive *d)
{
    free(d->agents);
    samples_free(&d->submits);
    samples_free(&d->completes);
    samples_free(&d->began);
    samples_free(&d->took);
}

static void write_syncs(const struct drive *d, double records, struct json_writer *w)
{
    const struct sync_counts *a = &d->from.syncs, *b = &d->to.syncs;
    double data = (double)(b->data_syncs - a->data_syncs);
    double full = (double)(b->full_syncs - a->full_syncs);

    jw_member_real(w, "data_syncs", data);
    jw_member_real(w, "full_syncs", full);
    jw_member_real(w, "records_per_sync", data + full == 0 ? 0 : records / (data + full));
    jw_member_real(w, "data_sync_mean_us",
                   data == 0 ? 0 : (double)(b->data_sync_ns - a->data_sync_ns) / data / 1e3);
}

void drive_write(const struct drive *d, struct json_writer *w)
{
    struct samples all = {0};
    double records = (double)(d->to.records - d->from.records);
    double ns = (double)(d->to.at_ns - d->from.at_ns);
    double server = (double)(d->to.server_cpu_ns - d->from.server_cpu_ns);
    double own = (double)(d->to.own_cpu_ns - d->from.own_cpu_ns);

    jw_member_int(w, "connections", (int64_t)d->fleet->opt.connections);
    jw_member_int(w, "executions", (int64_t)d->fleet->runs_n);
    jw_member_real(w, "seconds", ns / 1e9);
    jw_member_real(w, "records", records);
    jw_member_real(w, "records_per_s", records / ns * 1e9);
    jw_member_real(w, "server_cpu_us_per_record", records == 0 ? 0 : server / records / 1e3);
    jw_member_real(w, "loadgen_cpu_us_per_record", records == 0 ? 0 : own / records / 1e3);
    jw_member_real(w, "server_cores", server / ns);
    if (d->fleet->syncs != NULL)
        write_syncs(d, records, w);
    samples_append(&all, &d->submits);
    samples_append(&all, &d->completes);
    samples_write(&all, "record_us", w);
    samples_write(&d->submits, "submit_us", w);
    samples_write(&d->completes, "complete_us", w);
    samples_free(&all);
    if (d->fleet->opt.each) {
        samples_write_all(&d->began, "began_us", w);
        samples_write_all(&d->took, "took_us", w);
    }
    jw_member_int(w, "errors", d->errors);
}
