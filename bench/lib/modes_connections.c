/* SPDX-License-Identifier: Apache-2.0
 * Modes about connections: the way to a webhook, and what those cost that only wait. */
#include "lib/modes.h"

#include <stdlib.h>

enum {
    FIRST_CONNECTIONS =
        200, /* before the count begins: what the server sets up once is not a connection's */
    PAUSE_MS = 3,
    SETTLE_MS = 1000,
};

static void pause_for(struct fleet *f, int64_t ms)
{
    int64_t until = now_ns() + ms * NS_PER_MS;

    while (now_ns() < until)
        loop_turn(&f->loop, until);
}

/* ---- create to webhook ---- */

static void ended(struct client *c, const struct answer *a)
{
    (void)c;
    if (a->status / 100 != 2)
        die("complete answered %d: %.*s", a->status, STR_ARG(a->body));
}

/* Ended executions leave nothing behind that could disturb the next round. */
static void end_run(struct fleet *f, const struct run *run)
{
    struct client *c = f->clients[0];

    c->answered = ended;
    request_agent(
        f, &c->out,
        &(struct agent_request){.run = run, .action = STR("/complete"), .body = STR("{}")});
    client_send(c, now_ns());
    while (c->waiting)
        loop_turn(&f->loop, now_ns() + NS_PER_S);
}

void mode_dispatch(struct fleet *f, struct json_writer *w)
{
    struct samples all = {0};

    for (size_t i = 0; i < f->opt.count; i++) {
        int64_t from = now_ns();
        fleet_create_runs(f, 1);
        samples_add(&all, f->runs[i].delivered_ns - from);
        end_run(f, &f->runs[i]);
        pause_for(f, PAUSE_MS);
    }
    samples_write(&all, "create_to_webhook_us", w);
    samples_free(&all);
}

/* ---- memory ---- */

static void memory_write(struct json_writer *w, size_t n, struct memory before, struct memory after)
{
    double dirty = (double)(after.private_dirty - before.private_dirty);
    double resident = (double)(after.resident - before.resident);

    jw_member_int(w, "count", (int64_t)n);
    jw_member_real(w, "private_bytes_each", dirty / (double)n);
    jw_member_real(w, "resident_bytes_each", resident / (double)n);
    jw_member_int(w, "resident_before", before.resident);
    jw_member_int(w, "resident_after", after.resident);
}

void mode_memory(struct fleet *f, struct json_writer *w)
{
    pause_for(f, SETTLE_MS);
    struct memory m = process_memory(f->opt.pid);

    jw_member_int(w, "resident", m.resident);
    jw_member_int(w, "private_dirty", m.private_dirty);
    jw_member_int(w, "private_clean", m.private_clean);
}

static void healthy(struct client *c, const struct answer *a)
{
    size_t *answers = c->owner;

    (void)a;
    ++*answers;
}

void mode_idle(struct fleet *f, struct json_writer *w)
{
    size_t n = f->opt.count, answers = 0;
    struct memory before = {0};

    for (size_t i = 0; i < FIRST_CONNECTIONS + n; i++) {
        struct client *c = client_open(&f->loop, f->opt.port);
        if (i == FIRST_CONNECTIONS) {
            pause_for(f, SETTLE_MS);
            before = process_memory(f->opt.pid);
        }
        c->answered = healthy;
        c->owner = &answers;
        request_bearer(f, &c->out, "GET /v0/health", STR(""));
        client_send(c, now_ns());
        fleet_wait(f, &answers, i + 1, "answers");
    }
    pause_for(f, SETTLE_MS);
    memory_write(w, n, before, process_memory(f->opt.pid));
}

static struct client *reader_open(struct fleet *f, const struct run *run)
{
    struct client *c = client_open(&f->loop, f->opt.port);

    buf_printf(&c->out,
               "GET /v0/executions/%.*s/events HTTP/1.1\r\nHost: 127.0.0.1:%u\r\n"
               "Accept: text/event-stream\r\nAuthorization: Bearer %s\r\n\r\n",
               UUID_TEXT_LEN, run->id, f->opt.port, f->opt.token);
    c->streaming = true;
    client_send(c, now_ns());
    c->waiting = false;
    return c;
}

/* What is written to the log so far must have come to each reader: then it waits for more. */
static void readers_wait(struct fleet *f, struct client **readers, size_t from, size_t to)
{
    enum { HEAD_AND_EVENT = 300 };
    int64_t until = now_ns() + 30 * NS_PER_S;

    for (size_t i = from; i < to; i++)
        while (readers[i]->streamed < HEAD_AND_EVENT) {
            loop_turn(&f->loop, until);
            if (now_ns() > until)
                die("a reader got %zu bytes in half a minute", readers[i]->streamed);
        }
    pause_for(f, SETTLE_MS);
}

void mode_sse(struct fleet *f, struct json_writer *w)
{
    size_t n = f->opt.count, all = n + FIRST_CONNECTIONS;
    struct client **readers = xzalloc(all * sizeof(struct client *));
    struct memory before = {0};

    fleet_create_runs(f, f->opt.executions);
    for (size_t i = 0; i < all; i++) {
        if (i == FIRST_CONNECTIONS) {
            readers_wait(f, readers, 0, i);
            before = process_memory(f->opt.pid);
        }
        readers[i] = reader_open(f, &f->runs[i % f->runs_n]);
        loop_turn(&f->loop, 0);
    }
    readers_wait(f, readers, FIRST_CONNECTIONS, all);
    jw_member_int(w, "executions", (int64_t)f->runs_n);
    memory_write(w, n, before, process_memory(f->opt.pid));
    free(readers);
}
