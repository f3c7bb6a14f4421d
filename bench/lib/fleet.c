/* SPDX-License-Identifier: Apache-2.0
 * Connections, executions and their deliveries. */
#include "lib/fleet.h"

#include <errno.h>
#include <stdio.h>

#include "base/arena.h"
#include "base/json.h"

enum { PATIENCE_S = 30 };

static const char AGENT[] = "{\"id\":\"%s\",\"secret\":\"" BENCH_SECRET "\","
                            "\"webhook_url\":\"http://127.0.0.1:%u/webhook\","
                            "\"lease_timeout_seconds\":%lld}";

void fleet_wait(struct fleet *f, const size_t *count, size_t n, const char *what)
{
    int64_t until = now_ns() + PATIENCE_S * NS_PER_S;

    while (*count < n) {
        loop_turn(&f->loop, until);
        if (now_ns() > until)
            die("%zu of %zu %s after %d s", *count, n, what, PATIENCE_S);
    }
}

static void batch_next(struct batch *b, struct client *c)
{
    if (b->next == b->n)
        return;
    b->build(b->fleet, &c->out, b->next++);
    client_send(c, now_ns());
}

static void batch_answered(struct client *c, const struct answer *a)
{
    struct batch *b = c->owner;

    if (a->status / 100 != 2)
        die("%d: %.*s", a->status, STR_ARG(a->body));
    b->done++;
    b->answered(b->fleet, a);
    batch_next(b, c);
}

void fleet_batch(struct batch *b)
{
    struct fleet *f = b->fleet;

    for (size_t i = 0; i < f->opt.connections; i++) {
        f->clients[i]->owner = b;
        f->clients[i]->answered = batch_answered;
        batch_next(b, f->clients[i]);
    }
    fleet_wait(f, &b->done, b->n, "answers");
}

static void ignore_answer(struct fleet *f, const struct answer *a)
{
    (void)f;
    (void)a;
}

/* The webhook may come before the answer that tells the execution's id; then its run is made here.
 */
static struct run *run_of(struct fleet *f, struct str id)
{
    struct run *run = map_get(&f->by_id, id);

    if (run != NULL)
        return run;
    run = &f->runs[f->runs_n];
    if (f->runs_n > f->opt.executions + f->opt.count)
        die("a webhook for an execution that nobody made");
    if (id.n != sizeof run->id)
        die("an execution's id is no UUID: %.*s", STR_ARG(id));
    *run = (struct run){.index = f->runs_n++};
    memcpy(run->id, id.p, id.n);
    (void)map_put(&f->by_id, id, run);
    return run;
}

static void run_deliver(struct run *run, const struct delivery *d)
{
    run->attempt = d->attempt;
    snprintf(run->attempt_text, sizeof run->attempt_text, "%lld", (long long)d->attempt);
    run->delivered_ns = d->first_byte_ns;
    buf_clear(&run->dispatch_id);
    buf_add(&run->dispatch_id, d->dispatch_id);
}

static void delivered(struct webhooks *w, const struct delivery *d)
{
    struct fleet *f = w->owner;

    run_deliver(run_of(f, d->execution_id), d);
    f->deliveries++;
}

static void build_agent(struct fleet *f, struct buf *out, size_t i)
{
    char body[512];
    int n =
        snprintf(body, sizeof body, AGENT, f->opt.agent, f->hooks.port, (long long)f->opt.lease_s);

    (void)i;
    if (n < 0 || (size_t)n >= sizeof body)
        die("--agent is too long");
    request_bearer(f, out, "POST /v0/agents", str_make(body, (size_t)n));
}

static void read_file(const char *path, struct buf *out)
{
    char bytes[4096];
    size_t n;
    FILE *file = fopen(path, "re");

    if (file == NULL)
        die("%s: %s", path, strerror(errno));
    while ((n = fread(bytes, 1, sizeof bytes, file)) > 0)
        buf_add(out, str_make(bytes, n));
    fclose(file);
}

static void build_policy(struct fleet *f, struct buf *out, size_t i)
{
    struct buf yaml = {0}, body = {0}, line = {0};
    struct json_writer w = {.out = &body};

    (void)i;
    read_file(f->opt.bundle_path, &yaml);
    jw_open(&w, '{');
    jw_member_str(&w, "bundle", buf_str(&yaml));
    jw_close(&w, '}');
    buf_printf(&line, "POST /v0/policies/%s", f->opt.agent);
    buf_add_byte(&line, '\0');
    request_bearer(f, out, line.p, buf_str(&body));
    buf_free(&yaml);
    buf_free(&body);
    buf_free(&line);
}

void fleet_init(struct fleet *f, const struct options *opt)
{
    *f = (struct fleet){.opt = *opt};
    loop_init(&f->loop);
    f->hooks.delivered = delivered;
    f->hooks.owner = f;
    webhooks_listen(&f->hooks, &f->loop);
    if (opt->syncs_path != NULL)
        f->syncs = sync_counts_map(opt->syncs_path);
    /* Runs keep their place: the map and the modes point at them. */
    f->runs = xzalloc((opt->executions + opt->count + 1) * sizeof *f->runs);
    f->clients = xzalloc((opt->connections + 1) * sizeof(struct client *));
    for (size_t i = 0; i < opt->connections; i++)
        f->clients[i] = client_open(&f->loop, opt->port);
    if (!opt->hello)
        fleet_batch(
            &(struct batch){.fleet = f, .n = 1, .build = build_agent, .answered = ignore_answer});
    if (opt->bundle_path != NULL)
        fleet_batch(
            &(struct batch){.fleet = f, .n = 1, .build = build_policy, .answered = ignore_answer});
}

static void fabricate_runs(struct fleet *f, size_t n)
{
    struct uuid_gen ids = {0};

    for (size_t i = 0; i < n; i++) {
        struct uuid id = uuid_next(&ids, 0);
        struct run *run = &f->runs[f->runs_n];
        struct delivery d = {.attempt = 1, .dispatch_id = str_make(run->id, sizeof run->id)};
        run->index = f->runs_n++;
        uuid_format(&id, run->id);
        run_deliver(run, &d);
    }
}

static void build_create(struct fleet *f, struct buf *out, size_t i)
{
    char body[512];
    int n = snprintf(body, sizeof body,
                     "{\"agent_id\":\"%s\",\"input\":{\"topic\":\"a run of the bench\"}}",
                     f->opt.agent);

    (void)i;
    request_bearer(f, out, "POST /v0/executions", str_make(body, (size_t)n));
}

static void created(struct fleet *f, const struct answer *a)
{
    (void)run_of(f, answer_field(a->body, "\"id\""));
}

void fleet_create_runs(struct fleet *f, size_t n)
{
    size_t want = f->deliveries + n;

    if (f->opt.hello) {
        fabricate_runs(f, n);
        return;
    }
    fleet_batch(&(struct batch){.fleet = f, .n = n, .build = build_create, .answered = created});
    fleet_wait(f, &f->deliveries, want, "deliveries");
}

static void build_release(struct fleet *f, struct buf *out, size_t i)
{
    request_agent(
        f, out,
        &(struct agent_request){.run = &f->runs[i], .action = STR("/release"), .body = STR("")});
}

void fleet_release_runs(struct fleet *f)
{
    size_t want = f->deliveries + f->runs_n;

    fleet_batch(&(struct batch){
        .fleet = f, .n = f->runs_n, .build = build_release, .answered = ignore_answer});
    fleet_wait(f, &f->deliveries, want, "deliveries");
    for (size_t i = 0; i < f->runs_n; i++)
        f->runs[i].step = 0;
}
