/* SPDX-License-Identifier: Apache-2.0
 * The recorded result of a model call over HTTP: {"status":…, "headers":…, "body":…}. The step has
 * succeeded whatever the status is, since the answer is what its replays get; people want to see
 * that it was none. */
#ifndef CLI_MODEL_ANSWER_H
#define CLI_MODEL_ANSWER_H

#include "cli/visit.h"

/* The status of such a result if it says that the call failed, 400 or above; else 0. *body: the
 * beginning of its text on one line, absent when that is no text; NULL: not wanted. */
int64_t model_answer_failure(struct str result, struct str *body, struct arena *a);
/* The same of a step of the execution that is visited, asked for over this client; 0 also when it
 * cannot be had. */
int64_t model_answer_fetch(struct visit *v, struct client *client, struct str step_id);

#endif
