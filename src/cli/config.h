/* SPDX-License-Identifier: Apache-2.0
 * The configuration of a kernel: flag, else environment, else default. One table in config.c names
 * every flag, variable and default; docs/configuration.md is checked against it. */
#ifndef CLI_CONFIG_H
#define CLI_CONFIG_H

#include "base/err.h"
#include "base/log.h"
#include "kernel/settings.h"

struct config {
    bool dev; /* `rebuno dev`: no token asked for, no set-up */
    struct kernel_settings kernel;
    const char *listen_addr;
    const char
        *db_url; /* server: sqlite:///path or postgres://…; dev: NULL (see db_path, memory) */
    const char *db_path;      /* dev: the database file */
    bool memory;              /* dev --memory */
    const char *bearer_token; /* NULL in dev without one */
    int64_t db_max_conns;     /* 0: by cores */
    enum log_level log_level;
    enum log_format log_format;
    int64_t dispatch_concurrency;       /* default 64 */
    int64_t deadline_check_interval_us; /* default 30 s */
    int64_t cleanup_interval_us;        /* default 10 min */
    int64_t retention_us;               /* 0: keep for ever */
    const char *leader_lock_key;        /* rebuno_scheduler_leader */
    const char *judge_url;              /* NULL: none */
    const char *judge_api_key;          /* NULL: none */
    int64_t max_body_bytes;             /* 10485760 */
    bool webhook_private;               /* loopback and private ranges may be called */
    const char *manifest_path;          /* --config, NULL: none */
};

/* Strings in *out are owned by the process (argv, environ or malloc) and live to its end. argv
 * excludes the command itself. False with the usage error in `e` (it names the flag or variable).
 */
MUST_USE bool config_load(bool dev, int argc, char **argv, struct config *out, struct err *e);

/* To the database, at most; 0: by cores. SQLite's are not counted: 0. */
unsigned config_max_connections(const struct config *c);

#endif
