/* SPDX-License-Identifier: Apache-2.0
 * Asks the judging model (docs/policy.md, "Judge"): one thread, one curl multi handle. However it
 * answers, or whether it does, each submission goes back to the engine within the time that a
 * question has, counted from when it was asked; what is not an answer counts as the rule's
 * fallback. So a judge that hangs delays the steps that ask it, and nothing else. */
#ifndef DISPATCH_JUDGE_H
#define DISPATCH_JUDGE_H

#include "engine/engine.h"

struct judge_caller;

struct judge_options {
    struct engine *engine; /* borrowed */
    const char *url;       /* borrowed; http or https */
    const char *api_key;   /* borrowed; NULL: none */
};

struct judge_caller *judge_new(const struct judge_options *opt, struct err *e);
MUST_USE bool judge_start(struct judge_caller *j, struct err *e);
/* engine_signals.judge. Takes the command over until engine_submit. Any thread, also while and
 * after it is stopped: then the fallback counts at once. */
void judge_ask(struct judge_caller *j, struct command *cmd);
/* What is open gets the fallback. Before engine_stop, which waits for it. */
void judge_stop(struct judge_caller *j);
void judge_free(struct judge_caller *j); /* after engine_stop */

#endif
