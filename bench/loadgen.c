/* SPDX-License-Identifier: Apache-2.0
 * The load generator: agents that sign, submit and complete over keep-alive connections, on one
 * thread. It drives any server that speaks the protocol, prepares its own executions, receives
 * their webhooks, and prints one JSON object.
 *
 *   loadgen MODE --port N [--pid N] [--token T] [--option value …]
 *
 *   record    steps as fast as answers come; with --connections 1 it shows latency, with --rate N
 *             it is paced
 *   replay    --steps a run, recorded, then the same submitted again under the next attempt
 *   long      --steps in one run: the cost of each thousand
 *   talk      conversations of --steps turns, each call with all that was said; then read back
 *   dispatch  --count rounds: from sending a create to the first byte of its webhook
 *   idle      --count connections that have had one answer and wait: memory of each
 *   sse       --count readers of events over --executions: memory of each
 *   heavy     submissions with --bytes of arguments at --rate, for others to live beside
 *   parked    --count executions whose first step waits for a person: memory of each
 *
 * --hello: the server is bench/hello.c, which needs no executions. --keys: an Idempotency-Key on
 * each submission. --each: when each record began (CLOCK_MONOTONIC) and what it took, too. --agent
 * NAME, --lease SECONDS: the agent that is registered; --bundle FILE: the policy that it is given.
 * --syncs FILE: where preload/sync_count.c counts for the server. */
#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>

#include "lib/modes.h"

static const struct {
    const char *name;
    void (*run)(struct fleet *f, struct json_writer *w);
} MODES[] = {
    {"talk", mode_talk},     {"record", mode_record},     {"replay", mode_replay},
    {"long", mode_long},     {"dispatch", mode_dispatch}, {"memory", mode_memory},
    {"idle", mode_idle},     {"sse", mode_sse},           {"heavy", mode_heavy},
    {"parked", mode_parked},
};

enum option_id {
    OPT_PORT,
    OPT_PID,
    OPT_TOKEN,
    OPT_CONNECTIONS,
    OPT_EXECUTIONS,
    OPT_SECONDS,
    OPT_WARMUP,
    OPT_STEPS,
    OPT_RATE,
    OPT_COUNT,
    OPT_SYNCS,
    OPT_HELLO,
    OPT_KEYS,
    OPT_EACH,
    OPT_AGENT,
    OPT_LEASE,
    OPT_BUNDLE,
    OPT_BYTES,
};

static const struct option LONG[] = {
    {"port", required_argument, NULL, OPT_PORT},
    {"pid", required_argument, NULL, OPT_PID},
    {"token", required_argument, NULL, OPT_TOKEN},
    {"connections", required_argument, NULL, OPT_CONNECTIONS},
    {"executions", required_argument, NULL, OPT_EXECUTIONS},
    {"seconds", required_argument, NULL, OPT_SECONDS},
    {"warmup", required_argument, NULL, OPT_WARMUP},
    {"steps", required_argument, NULL, OPT_STEPS},
    {"rate", required_argument, NULL, OPT_RATE},
    {"count", required_argument, NULL, OPT_COUNT},
    {"syncs", required_argument, NULL, OPT_SYNCS},
    {"hello", no_argument, NULL, OPT_HELLO},
    {"keys", no_argument, NULL, OPT_KEYS},
    {"each", no_argument, NULL, OPT_EACH},
    {"agent", required_argument, NULL, OPT_AGENT},
    {"lease", required_argument, NULL, OPT_LEASE},
    {"bundle", required_argument, NULL, OPT_BUNDLE},
    {"bytes", required_argument, NULL, OPT_BYTES},
    {NULL, 0, NULL, 0},
};

static void option_set(struct options *o, int id)
{
    switch (id) {
    case OPT_PORT:
        o->port = (uint16_t)strtoul(optarg, NULL, 10);
        break;
    case OPT_PID:
        o->pid = (pid_t)strtol(optarg, NULL, 10);
        break;
    case OPT_TOKEN:
        o->token = optarg;
        break;
    case OPT_CONNECTIONS:
        o->connections = strtoul(optarg, NULL, 10);
        break;
    case OPT_EXECUTIONS:
        o->executions = strtoul(optarg, NULL, 10);
        break;
    case OPT_SECONDS:
        o->seconds = strtod(optarg, NULL);
        break;
    case OPT_WARMUP:
        o->warmup_s = strtod(optarg, NULL);
        break;
    case OPT_STEPS:
        o->steps = strtol(optarg, NULL, 10);
        break;
    case OPT_RATE:
        o->rate = strtod(optarg, NULL);
        break;
    case OPT_COUNT:
        o->count = strtoul(optarg, NULL, 10);
        break;
    case OPT_SYNCS:
        o->syncs_path = optarg;
        break;
    case OPT_HELLO:
        o->hello = true;
        break;
    case OPT_KEYS:
        o->keys = true;
        break;
    case OPT_EACH:
        o->each = true;
        break;
    case OPT_AGENT:
        o->agent = optarg;
        break;
    case OPT_LEASE:
        o->lease_s = strtol(optarg, NULL, 10);
        break;
    case OPT_BUNDLE:
        o->bundle_path = optarg;
        break;
    case OPT_BYTES:
        o->bytes = strtoul(optarg, NULL, 10);
        break;
    default:
        die("see the top of bench/loadgen.c for what it takes");
    }
}

int main(int argc, char **argv)
{
    struct options o = {.token = "",
                        .agent = "bench",
                        .connections = 64,
                        .seconds = 5,
                        .steps = 200,
                        .count = 100,
                        .bytes = 1 << 20,
                        .lease_s = 3600};
    struct fleet fleet;
    struct buf out = {0};
    struct json_writer w = {.out = &out};

    for (int id; (id = getopt_long(argc, argv, "", LONG, NULL)) != -1;)
        option_set(&o, id);
    if (optind != argc - 1 || o.port == 0 || o.connections == 0)
        die("loadgen MODE --port N …");
    o.mode = argv[optind];
    if (o.executions < o.connections)
        o.executions = o.connections;
    raise_file_limit();
    for (size_t i = 0; i < COUNT(MODES); i++) {
        if (strcmp(o.mode, MODES[i].name) != 0)
            continue;
        fleet_init(&fleet, &o);
        jw_open(&w, '{');
        jw_member_str(&w, "mode", str_of(o.mode));
        MODES[i].run(&fleet, &w);
        jw_close(&w, '}');
        printf("%.*s\n", STR_ARG(buf_str(&out)));
        return 0;
    }
    die("no mode is called %s", o.mode);
}
