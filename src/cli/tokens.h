/* SPDX-License-Identifier: Apache-2.0
 * The tokens of model calls, added up over a run. */
#ifndef CLI_TOKENS_H
#define CLI_TOKENS_H

#include "base/json.h"
#include "cli/visit.h"

/* Zero it; -1 stands for a count that an answer lacked. */
struct tokens {
    int64_t input, output;
    bool known; /* some answer carried a count */
};

/* Of an API object's `usage`; absent: none. */
struct tokens tokens_of(struct str usage);
/* Adds what is known; stops at the largest number. */
void tokens_add(struct tokens *sum, struct tokens more);
/* The sum over the visited execution's steps. It is read from the log, which has the counts without
 * the models' answers: a page is held, whatever the number of steps. v->answer is used. */
MUST_USE bool tokens_read(struct visit *v, struct tokens *sum, struct err *e);
/* {"input_tokens":1,"output_tokens":2} */
void tokens_write(struct json_writer *w, struct tokens t);

#endif
