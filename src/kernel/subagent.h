/* SPDX-License-Identifier: Apache-2.0
 * Subagents: executions that a step of another one starts, and waits for (docs/subagents.md). */
#ifndef KERNEL_SUBAGENT_H
#define KERNEL_SUBAGENT_H

#include "kernel/execution.h"

/* For kernel/execution.c. First: has this step started one? answer->existing. Then: may it? `key`
 * is the request's idempotency key. */
void subagent_create_names(struct working_set *ws, const struct execution_creation *cmd);
MUST_USE
enum verdict subagent_find(struct working_set *ws, const struct execution_creation *cmd,
                           struct execution_created *answer, struct err *e);
MUST_USE
enum verdict subagent_check(struct working_set *ws, const struct execution_creation *cmd,
                            struct str key, struct err *e);
/* It is created: the step remembers it, and it remembers the sessions above it. */
void subagent_link(struct working_set *ws, struct execution *exec,
                   const struct execution_creation *cmd);

/* A follow-up of a subagent's end: the step that started it settles, and its execution goes on if
 * nothing else waits. May come twice, and find its work done. */
struct subagent_end {
    struct uuid child, parent;
    struct hash step_id;
};
void subagent_settle_names(struct working_set *ws, const struct subagent_end *cmd);
MUST_USE
enum verdict subagent_settle(struct working_set *ws, const struct subagent_end *cmd, struct err *e);

#endif
