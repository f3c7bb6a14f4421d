/* SPDX-License-Identifier: Apache-2.0
 * An approval, shown to the person who decides on it. What the agent chose (target, arguments) is
 * laid out so that it can neither hide nor look like anything else on the page. */
#ifndef CLI_APPROVAL_VIEW_H
#define CLI_APPROVAL_VIEW_H

#include "base/arena.h"
#include "cli/cli.h"

/* Of the API's object; absent fields are STR_NONE. Slices of it, or in the arena. */
struct shown_approval {
    struct str id, execution_id, status, agent_id, kind, target, message, timeout_at, created_at;
    struct str decided_at, decided_by, asserted_by, rationale;
    struct str args;      /* JSON */
    struct str approvers; /* "alice, bob" */
};
void approval_read(struct str json, struct shown_approval *out, struct arena *a);
bool approval_is_pending(const struct shown_approval *v);
/* "tool_call fs_write"; arena. */
struct str approval_step(const struct shown_approval *v, struct arena *a);

/* The whole of it, for `approval get`. */
void approval_print(struct cli *c, const struct shown_approval *v, struct arena *a);
/* A pending one between the events of a run: who asks for what until when, the beginning of the
 * arguments, and the commands that decide. */
void approval_ask(struct cli *c, const struct shown_approval *v, struct arena *a);
/* "rebuno approval grant 0199c2a4-7d10-7c4e", with this command's --url when it had one; arena. */
struct str approval_command(const struct cli *c, const char *verb, struct str id, struct arena *a);

#endif
