/* SPDX-License-Identifier: Apache-2.0
 * Modes about policies: submissions that are hard to decide, and executions that wait for a person.
 */
#include "lib/modes.h"

enum {
    FIRST_PARKED = 1000, /* before the count begins: caches fill once, for whatever number */
    SLICE = 1000,        /* executions made at a time, so that none waits long for its delivery */
    SETTLE_MS = 1000,
};

static void pause_for(struct fleet *f, int64_t ns)
{
    int64_t until = now_ns() + ns;

    while (now_ns() < until)
        loop_turn(&f->loop, until);
}

static void build_submit(struct fleet *f, struct buf *out, const struct run *run, struct str text)
{
    struct buf body = {0};

    buf_add(&body, STR("{\"kind\":\"tool_call\",\"target\":\"search\",\"args\":{\"text\":\""));
    buf_add(&body, text);
    buf_add(&body, STR("\"}}"));
    request_agent(
        f, out,
        &(struct agent_request){.run = run, .action = STR("/steps"), .body = buf_str(&body)});
    buf_free(&body);
}

/* ---- heavy ---- */

struct heavy {
    struct fleet *fleet;
    struct samples answers;
    int64_t started_ns, sent;
    size_t waiting;
};

/* Letters of which no part repeats: patterns that keep many possibilities in mind must keep them.
 */
static void add_random_letters(struct buf *out, size_t n)
{
    uint32_t state = 1;

    for (size_t i = 0; i < n; i++) {
        state = state * 1664525 + 1013904223;
        buf_add_byte(out, (state >> 24 & 1) != 0 ? 'a' : 'b');
    }
}

static void heavy_answered(struct client *c, const struct answer *a)
{
    struct heavy *h = c->owner;

    if (a->status != 200)
        die("a submission of %zu bytes answered %d: %.*s", h->fleet->opt.bytes, a->status,
            STR_ARG(a->body));
    samples_add(&h->answers, a->ended_ns - a->started_ns);
    h->waiting--;
}

static int64_t next_due(const struct heavy *h)
{
    return h->started_ns + (int64_t)((double)h->sent / h->fleet->opt.rate * 1e9);
}

/* One that has had its answer; NULL while all wait: then the rate is more than is decided. */
static struct client *free_client(struct fleet *f)
{
    for (size_t i = 0; i < f->opt.connections; i++)
        if (!f->clients[i]->waiting)
            return f->clients[i];
    return NULL;
}

/* The bytes of a submission stay the same, so they are built once: a step more each time. */
void mode_heavy(struct fleet *f, struct json_writer *w)
{
    struct heavy h = {.fleet = f};
    struct buf text = {0};

    if (f->opt.rate <= 0)
        die("heavy: --rate");
    add_random_letters(&text, f->opt.bytes);
    fleet_create_runs(f, f->opt.connections);
    for (size_t i = 0; i < f->opt.connections; i++) {
        build_submit(f, &f->clients[i]->out, &f->runs[i], buf_str(&text));
        f->clients[i]->owner = &h;
        f->clients[i]->answered = heavy_answered;
    }
    h.started_ns = now_ns();
    int64_t end = h.started_ns + (int64_t)(f->opt.seconds * 1e9);
    while (now_ns() < end) {
        struct client *c = free_client(f);
        if (c != NULL && next_due(&h) <= now_ns()) {
            client_send(c, now_ns());
            h.sent++;
            h.waiting++;
        }
        loop_turn(&f->loop, c != NULL && next_due(&h) < end ? next_due(&h) : end);
    }
    while (h.waiting > 0)
        loop_turn(&f->loop, now_ns() + NS_PER_S);
    jw_member_int(w, "bytes", (int64_t)f->opt.bytes);
    samples_write(&h.answers, "submit_us", w);
    samples_free(&h.answers);
    buf_free(&text);
}

/* ---- parked ---- */

static void build_first_step(struct fleet *f, struct buf *out, size_t i)
{
    build_submit(f, out, &f->runs[i], STR("may I?"));
}

static void must_be_blocked(struct fleet *f, const struct answer *a)
{
    (void)f;
    if (!str_eq(answer_field(a->body, "\"decision\""), STR("blocked")))
        die("not blocked: %.*s", STR_ARG(a->body));
}

static void park(struct fleet *f, size_t n)
{
    for (size_t left = n; left > 0;) {
        size_t slice = left < SLICE ? left : SLICE, from = f->runs_n;
        struct batch submits = {.fleet = f,
                                .next = from,
                                .done = from,
                                .n = from + slice,
                                .build = build_first_step,
                                .answered = must_be_blocked};
        fleet_create_runs(f, slice);
        fleet_batch(&submits);
        left -= slice;
    }
}

/* What they hold while their leases' term runs; and what as many more take when it is over
 * (--seconds later): a kernel that has forgotten the first takes it from what it had. */
void mode_parked(struct fleet *f, struct json_writer *w)
{
    size_t n = f->opt.count;
    int64_t used[3], threads;

    park(f, FIRST_PARKED);
    threads = process_threads(f->opt.pid);
    for (size_t i = 0; i < COUNT(used); i++) {
        if (i == 2)
            pause_for(f, (int64_t)(f->opt.seconds * 1e9));
        if (i > 0)
            park(f, n);
        pause_for(f, SETTLE_MS * NS_PER_MS);
        used[i] = process_memory(f->opt.pid).private_dirty;
    }
    jw_member_int(w, "count", (int64_t)n);
    jw_member_real(w, "private_bytes_each", (double)(used[1] - used[0]) / (double)n);
    jw_member_real(w, "private_bytes_each_more", (double)(used[2] - used[1]) / (double)n);
    jw_member_int(w, "threads_before", threads);
    jw_member_int(w, "threads_after", process_threads(f->opt.pid));
}
