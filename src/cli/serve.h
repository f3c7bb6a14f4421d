/* SPDX-License-Identifier: Apache-2.0
 * Boots and runs a kernel: store, engine, dispatcher, HTTP, until a signal asks it to leave. */
#ifndef CLI_SERVE_H
#define CLI_SERVE_H

#include "cli/config.h"

/* The exit code of the process: 0 after an orderly stop, 1 when it could not start (the reason is
 * on stderr). */
int serve_run(const struct config *config);

#endif
