/* SPDX-License-Identifier: Apache-2.0
 * Conversations: each model call carries all that was said so far. Then they are read back, and
 * held against what was sent. */
#include <stdio.h>

#include "lib/modes.h"

enum { MESSAGE_BYTES = 1024, STEP_ID_LEN = 64 }; /* a turn: what was asked, and the answer */

/* ---- what is said ---- */

/* Half of it everyday words, half made of syllables: about as hard to compress as prose. */
static void add_prose(struct buf *out, size_t n, uint64_t seed)
{
    static const char *const words[] = {"the",  "of",   "and",  "to", "in",   "that", "it",  "was",
                                        "for",  "on",   "are",  "as", "with", "they", "at",  "be",
                                        "this", "from", "have", "or", "by",   "one",  "had", "not"};
    static const char *const syllables[] = {"ra",  "ven", "tor", "mi",  "ca",  "sel", "du",  "pon",
                                            "ith", "gre", "lo",  "wa",  "bur", "ny",  "eck", "fa",
                                            "mor", "ze",  "qui", "hal", "ost", "ply", "cer", "um"};
    size_t end = out->n + n;

    while (out->n < end) {
        seed = seed * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
        if ((seed >> 60 & 1) != 0)
            buf_add_z(out, words[(seed >> 40) % COUNT(words)]);
        for (unsigned i = 0; (seed >> 60 & 1) == 0 && i < 2 + (seed >> 58 & 1); i++)
            buf_add_z(out, syllables[(seed >> (20 + 10 * i)) % COUNT(syllables)]);
        buf_add_byte(out, ' ');
    }
    out->n = end;
}

static void add_message(struct buf *out, const char *role, size_t run, size_t number)
{
    buf_printf(out, "{\"role\": \"%s\", \"content\": \"", role);
    add_prose(out, MESSAGE_BYTES - 40, run * 100003 + number);
    buf_add(out, STR("\"}"));
}

static void add_answer(struct buf *out, const struct run *run, int64_t turn)
{
    add_message(out, "assistant", run->index, 2 * (size_t)turn + 1);
}

static void add_question(struct buf *out, const struct run *run, int64_t turn)
{
    buf_add(out, STR("{\"model\": \"large\", \"messages\": ["));
    for (int64_t i = 0; i <= turn; i++) {
        if (i > 0) {
            buf_add(out, STR(", "));
            add_answer(out, run, i - 1);
            buf_add(out, STR(", "));
        }
        add_message(out, "user", run->index, 2 * (size_t)i);
    }
    buf_add(out, STR("], \"temperature\": 0.2}"));
}

/* ---- reading back ---- */

struct talk {
    struct fleet *fleet;
    struct client *client;
    size_t run, turn, turns;
    bool done;
    int64_t bytes;
    struct buf expected;
};

static void ask_for_step(struct talk *t)
{
    const struct run *run = &t->fleet->runs[t->run];
    char target[160];

    snprintf(target, sizeof target, "GET /v0/executions/%.*s/steps/%.*s", (int)sizeof run->id,
             run->id, STEP_ID_LEN, run->step_ids.p + STEP_ID_LEN * t->turn);
    request_bearer(t->fleet, &t->client->out, target, STR(""));
    client_send(t->client, now_ns());
}

static bool has_member(struct str body, const char *name, struct str value)
{
    const char *at = memmem(body.p, body.n, name, strlen(name));
    size_t left = at == NULL ? 0 : (size_t)(body.p + body.n - at) - strlen(name);

    return left > value.n && memcmp(at + strlen(name), value.p, value.n) == 0;
}

static void check_step(struct talk *t, const struct answer *a)
{
    const struct run *run = &t->fleet->runs[t->run];

    buf_clear(&t->expected);
    add_question(&t->expected, run, (int64_t)t->turn);
    if (a->status != 200 || !has_member(a->body, "\"args\":", buf_str(&t->expected)))
        die("turn %zu of a conversation came back otherwise: %d", t->turn, a->status);
    buf_clear(&t->expected);
    add_answer(&t->expected, run, (int64_t)t->turn);
    if (!has_member(a->body, "\"result\":", buf_str(&t->expected)))
        die("the answer of turn %zu of a conversation came back otherwise", t->turn);
}

static void step_came(struct client *c, const struct answer *a)
{
    struct talk *t = c->owner;

    check_step(t, a);
    t->bytes += (int64_t)a->body.n;
    if (++t->turn == t->turns) {
        t->turn = 0;
        t->run++;
    }
    t->done = t->run == t->fleet->runs_n;
    if (!t->done)
        ask_for_step(t);
}

static void read_back(struct fleet *f, struct json_writer *w)
{
    struct talk t = {.fleet = f, .client = f->clients[0], .turns = (size_t)f->opt.steps};
    int64_t began = now_ns(), cpu = process_cpu_ns(f->opt.pid);
    double steps = (double)f->runs_n * (double)f->opt.steps;

    t.client->owner = &t;
    t.client->answered = step_came;
    ask_for_step(&t);
    while (!t.done)
        loop_turn(&f->loop, INT64_MAX);
    jw_member_real(w, "reads_per_s", steps / (double)(now_ns() - began) * 1e9);
    jw_member_real(w, "read_cpu_us", (double)(process_cpu_ns(f->opt.pid) - cpu) / steps / 1e3);
    buf_free(&t.expected);
}

/* ---- the mode ---- */

static int64_t logical_bytes(const struct fleet *f)
{
    struct buf text = {0};
    int64_t sum = 0;

    for (int64_t turn = 0; turn < f->opt.steps; turn++) {
        buf_clear(&text);
        add_question(&text, &f->runs[0], turn);
        add_answer(&text, &f->runs[0], turn);
        sum += (int64_t)text.n;
    }
    buf_free(&text);
    return sum * (int64_t)f->runs_n;
}

void mode_talk(struct fleet *f, struct json_writer *w)
{
    struct drive d = {
        .fleet = f, .steps = f->opt.steps, .add_args = add_question, .add_result = add_answer};

    fleet_create_runs(f, f->opt.executions);
    drive_run(&d);
    if (d.errors > 0)
        die("%lld turns were not recorded", (long long)d.errors);
    drive_write(&d, w);
    jw_member_int(w, "logical_bytes", logical_bytes(f));
    read_back(f, w);
    drive_free(&d);
}
