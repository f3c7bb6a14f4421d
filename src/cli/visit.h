/* SPDX-License-Identifier: Apache-2.0
 * One command's visit to a kernel: what it holds, and how it finds the execution that a person
 * means. The functions that return an exit code have reported what failed. */
#ifndef CLI_VISIT_H
#define CLI_VISIT_H

#include "base/arena.h"
#include "cli/cli.h"
#include "cli/client.h"

struct visit {
    struct client *client; /* owned */
    struct arena a;
    struct buf answer; /* of the last call */
    struct str id;     /* the execution; arena */
};

/* Connects to --url or the environment's kernel. */
int visit_begin(struct cli *c, struct visit *v);
/* The same, and finds the execution whose id begins with the first argument; several are listed. */
int visit_begin_execution(struct cli *c, struct visit *v);
/* Also after a failed begin. */
void visit_end(struct visit *v);
/* "/v0/executions/{id}{rest}"; arena, NUL-terminated. */
const char *visit_path(struct visit *v, const char *rest);

#endif
