/* SPDX-License-Identifier: Apache-2.0
 * `rebuno dev` and `rebuno server`: the configuration is read here, the kernel is serve.c's. */
#include "cli/commands.h"
#include "cli/config.h"
#include "cli/serve.h"

static int run_kernel(struct cli *c, bool dev)
{
    struct config config;
    struct err e;

    if (!config_load(dev, c->argc, c->argv, &config, &e))
        return cli_fail_usage(c, &e);
    return serve_run(&config);
}

int cmd_dev(struct cli *c)
{
    return run_kernel(c, true);
}

int cmd_server(struct cli *c)
{
    return run_kernel(c, false);
}
