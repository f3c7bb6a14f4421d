/* SPDX-License-Identifier: Apache-2.0
 * One command's visit to a kernel: what it holds, and how it finds the execution or approval that a
 * person means. The functions that return an exit code have reported what failed. */
#ifndef CLI_VISIT_H
#define CLI_VISIT_H

#include "base/arena.h"
#include "cli/cli.h"
#include "cli/client.h"

struct visit_kind; /* what is visited */
extern const struct visit_kind VISIT_EXECUTION, VISIT_APPROVAL;

struct visit {
    struct client *client; /* owned */
    struct arena a;
    struct buf answer; /* of the last call */
    const struct visit_kind *kind;
    struct str id; /* what was found; arena */
};

/* Connects to --url or the environment's kernel. */
int visit_begin(struct cli *c, struct visit *v);
/* The same, and finds the one whose id begins with the first argument; several are listed. */
int visit_begin_found(struct cli *c, struct visit *v, const struct visit_kind *kind);
/* Finds one by the beginning of its id, after visit_begin. */
int visit_find(struct cli *c, struct visit *v, const struct visit_kind *kind, struct str given);
/* A whole command: finds one by the first argument, and prints what the kernel says of it. `print`
 * is for people: the object is in v->answer. */
int visit_show(struct cli *c, const struct visit_kind *kind,
               void (*print)(struct cli *c, struct visit *v));
/* Also after a failed begin. */
void visit_end(struct visit *v);
/* "/v0/executions/{id}{rest}", or what its kind is; arena, NUL-terminated. */
const char *visit_path(struct visit *v, const char *rest);

#endif
