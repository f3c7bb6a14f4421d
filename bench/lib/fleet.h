/* SPDX-License-Identifier: Apache-2.0
 * What a run of the generator works with: connections to one server, executions and the deliveries
 * under which they may be worked on. */
#ifndef BENCH_FLEET_H
#define BENCH_FLEET_H

#include <sys/types.h>

#include "base/map.h"
#include "base/uuid.h"
#include "lib/client.h"
#include "lib/process.h"
#include "lib/webhook.h"

#define BENCH_SECRET "bench-secret-0123456789abcdef"

struct options {
    const char *mode;
    const char *token;
    const char *syncs_path;  /* NULL: syncs are not counted */
    const char *agent;       /* whose executions; registered with this process as its webhook */
    const char *bundle_path; /* NULL: its policy is left as it is */
    uint16_t port;
    pid_t pid;  /* the server's; 0: its CPU is not measured */
    bool hello; /* bench/hello.c: no executions are made, any id will do */
    bool keys;  /* an Idempotency-Key on each submission */
    bool each;  /* the records one by one, beside what comes of them all */
    size_t connections;
    size_t executions;
    double seconds, warmup_s;
    int64_t steps;   /* an execution's, where a mode goes by steps */
    double rate;     /* records/s, where a mode is paced */
    size_t count;    /* connections, readers or rounds of a mode that counts them */
    size_t bytes;    /* of arguments, where a mode sends large ones */
    int64_t lease_s; /* the agent's */
};

struct run { /* one execution */
    size_t index;
    char id[UUID_TEXT_LEN];
    struct buf dispatch_id;
    char attempt_text[16];
    int64_t attempt; /* 0: not delivered yet */
    int64_t delivered_ns;
    int64_t step;        /* how many it has had in this pass */
    struct buf step_ids; /* one behind the other, where a drive says what its steps carry */
};

struct fleet {
    struct options opt;
    struct loop loop;
    struct webhooks hooks;
    struct client **clients; /* opt.connections of them */
    struct run *runs;
    size_t runs_n;
    struct map by_id;
    size_t deliveries;               /* so far */
    const struct sync_counts *syncs; /* NULL when not counted */
};

/* Connects and, unless against hello, registers the agent, whose webhook is this process. */
void fleet_init(struct fleet *f, const struct options *opt);
/* Makes executions and waits until each has been delivered. */
void fleet_create_runs(struct fleet *f, size_t n);
/* Gives all of them back and waits for the next attempt of each. */
void fleet_release_runs(struct fleet *f);

/* Spreads n requests over the connections and waits for all answers. Each step of it is a callback.
 */
struct batch {
    struct fleet *fleet;
    size_t n, next, done;
    void (*build)(struct fleet *f, struct buf *out, size_t i); /* the i-th request */
    void (*answered)(struct fleet *f, const struct answer *a);
};
void fleet_batch(struct batch *b);
/* Turns the loop until *count is at least n, or dies after half a minute. */
void fleet_wait(struct fleet *f, const size_t *count, size_t n, const char *what);

/* Requests, put into `out` in place of what it held. */
void request_bearer(const struct fleet *f, struct buf *out, const char *method_and_target,
                    struct str body);
struct agent_request {
    const struct run *run;
    struct str action; /* what follows /v0/executions/{id} */
    struct str body;
    struct str key; /* Idempotency-Key, or absent */
};
void request_agent(const struct fleet *f, struct buf *out, const struct agent_request *req);
/* The value of a string member, found by its text: for answers whose shape is known. Absent when it
 * is not there. */
struct str answer_field(struct str body, const char *quoted_name);

#endif
