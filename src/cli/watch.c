/* SPDX-License-Identifier: Apache-2.0
 * Follows an execution's event stream across lost connections: each new one goes on behind the last
 * event that was printed, so nothing is missed or shown twice. */
#include "cli/watch.h"

#include <signal.h>
#include <time.h>
#include <unistd.h>

#include "cli/approval_view.h"
#include "cli/event_line.h"
#include "cli/model_answer.h"
#include "cli/sse.h"
#include "cli/text.h"
#include "cli/view.h"
#include "cli/waiting.h"
#include "cli/when.h"

enum { RETRY_MIN_MS = 200, RETRY_MAX_MS = 3000, QUIET_S = 5 };

struct watch {
    struct cli *c;
    struct event_log log;
    struct sse sse;
    int64_t last_seq;
    bool heard;    /* an event came over this connection */
    bool no_event; /* what came was none */
    struct visit *v;
    int64_t quiet_since_us; /* monotonic: the last event, or the connection's start */
    bool advised;           /* what this silence waits for has been said */
};

/* Every line has been flushed, so nothing is lost by leaving at once. */
static void on_interrupt(int signal_number)
{
    (void)signal_number;
    _exit(EXIT_INTERRUPTED);
}

static void catch_interrupt(void)
{
    struct sigaction action = {.sa_handler = on_interrupt}, before;

    sigaction(SIGINT, &action, &before);
    if (before.sa_handler == SIG_IGN) /* started in the background by a script */
        sigaction(SIGINT, &before, NULL);
}

static bool take_event(void *ctx, struct str id, struct str data)
{
    struct watch *w = ctx;
    struct arena a = {0};
    struct event event;

    (void)id; /* the event says it itself */
    w->no_event = !event_read(data, &a, &event);
    if (!w->no_event && (event.seq == 0 || event.seq > w->last_seq)) {
        w->heard = true;
        w->advised = false;
        w->quiet_since_us = clock_mono_us();
        if (event.seq > w->last_seq)
            w->last_seq = event.seq;
        event_print(&w->log, &event, cli_json(w->c) ? NULL : w->c);
        if (cli_json(w->c)) {
            struct buf line = {0};

            text_json_line(&line, data);
            cli_line(w->c, buf_str(&line));
            buf_free(&line);
        }
        fflush(w->c->out);
    }
    arena_free(&a);
    return !w->no_event;
}

/* A client of its own, for the stream's is in use. NULL: the stream will tell what is wrong. */
static struct client *second_client(const struct watch *w)
{
    struct err ignored;

    return client_new(client_url(w->v->client), &ignored);
}

/* False: it cannot be read now, but later perhaps. */
static bool ask(struct watch *w, struct client *client, struct str id)
{
    struct buf answer = {0};
    struct arena a = {0};
    struct shown_approval approval;
    struct err ignored;
    const char *path = arena_printf(&a, "/v0/approvals/%.*s", STR_ARG(id)).p;
    bool read = client_get(client, path, &answer, &ignored);

    if (read) {
        approval_read(buf_str(&answer), &approval, &a);
        if (approval_is_pending(&approval)) /* what has been decided since, the stream will say */
            approval_ask(w->c, &approval, &a);
    } else if (client_failure(client) ==
               CLIENT_REFUSED) { /* who may follow may not see approvals */
        cli_remark(w->c, "%.*s", STR_ARG(approval_command(w->c, "get", id, &a)));
        read = true;
    }
    fflush(w->c->out);
    buf_free(&answer);
    arena_free(&a);
    return read;
}

static int64_t failed_status(void *ctx, struct str step_id)
{
    struct watch *w = ctx;
    struct client *client = second_client(w);
    int64_t status = client == NULL ? 0 : model_answer_fetch(w->v, client, step_id);

    client_free(client);
    return status;
}

/* Shows the approvals that wait, once all that has come has been taken: a log that is caught up
 * with has old ones in it, whose decision may follow in the same breath. */
static void ask_for_open(struct watch *w)
{
    struct client *client = NULL;

    for (struct event_approval *at = w->log.open; at != NULL; at = at->next) {
        if (at->asked)
            continue;
        if (client == NULL && (client = second_client(w)) == NULL)
            return;
        at->asked = ask(w, client, at->id);
    }
    client_free(client);
}

static bool take_bytes(void *ctx, struct str bytes)
{
    struct watch *w = ctx;
    bool more = sse_feed(&w->sse, bytes);

    if (!cli_json(w->c) && !w->log.ended)
        ask_for_open(w);
    return more;
}

/* Whatever fails is left unsaid: the stream will tell. */
static void advise(struct watch *w)
{
    struct err ignored;
    struct client *client = second_client(w);
    struct buf answer = {0};
    struct str waiting = STR_NONE;
    const struct view_field fields[] = {{"waiting_on", false, &waiting}};

    if (client != NULL && client_get(client, visit_path(w->v, ""), &answer, &ignored)) {
        view_read(buf_str(&answer), fields, COUNT(fields), &w->v->a);
        waiting = waiting_advice(waiting, clock_wall_us(), &w->v->a);
        if (str_present(waiting))
            cli_remark(w->c, "%.*s", STR_ARG(waiting));
    }
    buf_free(&answer);
    client_free(client);
}

static void on_idle(void *ctx)
{
    struct watch *w = ctx;

    if (w->advised || clock_mono_us() - w->quiet_since_us < QUIET_S * US_PER_S)
        return;
    w->advised = true;
    if (w->log.open == NULL || cli_json(w->c)) /* else that has just been shown */
        advise(w);
}

/* One connection. True: it ended as streams do. */
static bool follow_once(struct watch *w, struct visit *v, const char *path, struct err *e)
{
    char last[24];
    const struct client_stream stream = {.path = path,
                                         .last_event_id = w->last_seq > 0 ? last : NULL,
                                         .take = take_bytes,
                                         .idle = w->c->err_terminal ? on_idle : NULL,
                                         .ctx = w};

    snprintf(last, sizeof last, "%lld", (long long)w->last_seq);
    sse_restart(&w->sse);
    w->heard = w->no_event = false;
    w->quiet_since_us = clock_mono_us();
    return client_follow(v->client, &stream, e);
}

static void sleep_ms(int64_t ms)
{
    struct timespec t = {.tv_sec = ms / 1000, .tv_nsec = ms % 1000 * 1000000};

    nanosleep(&t, NULL);
}

/* A kernel that was never reached is an error; one that goes away comes back. */
static bool worth_retrying(const struct watch *w, const struct visit *v)
{
    switch (client_failure(v->client)) {
    case CLIENT_OK:
    case CLIENT_BROKEN:
    case CLIENT_BUSY:
        return true;
    case CLIENT_UNREACHABLE:
        return w->last_seq > 0;
    case CLIENT_REFUSED:
        return false;
    }
    return false;
}

/* Until the execution has ended. False: the error says why it cannot be followed. */
static bool follow(struct watch *w, struct visit *v, struct err *e)
{
    const char *path = visit_path(v, "/events");
    int64_t retry_ms = RETRY_MIN_MS;
    bool told = false;

    for (;;) {
        bool ok = follow_once(w, v, path, e);

        if (w->log.ended)
            return true;
        if (w->no_event)
            return err_set(e, ERR_VALIDATION, "what %.200s sends are no events",
                           client_url(v->client));
        if (!ok && !worth_retrying(w, v))
            return false;
        if (w->heard) {
            told = false;
            retry_ms = RETRY_MIN_MS;
        }
        if (!told)
            cli_remark(w->c, "the connection to %s is lost; waiting for the kernel",
                       client_url(v->client));
        told = true;
        sleep_ms(retry_ms);
        retry_ms = retry_ms * 2 < RETRY_MAX_MS ? retry_ms * 2 : RETRY_MAX_MS;
    }
}

static void print_outcome(struct watch *w)
{
    struct cli *c = w->c;
    struct buf took = {0};
    struct str outcome = buf_str(&w->log.outcome);

    if (w->log.took_us > 0) {
        buf_add(&took, STR(" after "));
        when_duration(&took, w->log.took_us);
    }
    cli_put(c, w->log.completed ? PAINT_GOOD : PAINT_BAD, buf_str(&w->log.status));
    cli_put(c, PAINT_DIM, buf_str(&took));
    fputs(": ", c->out);
    cli_put(c, PAINT_NONE, outcome.n == 0 ? STR("no reason given") : outcome);
    fputc('\n', c->out);
    buf_free(&took);
}

int watch_execution(struct cli *c, struct visit *v)
{
    struct watch w = {.c = c, .v = v};
    struct err e;
    int code;

    w.sse.on_event = take_event;
    w.sse.ctx = &w;
    if (!cli_json(c))
        w.log = (struct event_log){.failed_status = failed_status, .ctx = &w};
    catch_interrupt();
    fflush(c->out);
    if (!follow(&w, v, &e)) {
        code = cli_fail(c, &e);
    } else {
        if (!cli_json(c))
            print_outcome(&w);
        code = w.log.completed ? EXIT_OK : EXIT_FAILED;
    }
    sse_free(&w.sse);
    event_log_free(&w.log);
    return code;
}
