/* SPDX-License-Identifier: Apache-2.0
 * Token counts in a model's answer (docs/protocol.md, "Usage"). Pure. */
#ifndef DOMAIN_USAGE_H
#define DOMAIN_USAGE_H

#include "base/json.h"

struct usage {
    int64_t input_tokens, output_tokens; /* -1: the answer carried none */
};

#define USAGE_NONE ((struct usage){-1, -1})

static inline bool usage_known(struct usage u)
{
    return u.input_tokens >= 0 || u.output_tokens >= 0;
}

/* `sum` and what was used, input and output together; INT64_MAX when that is more. */
int64_t usage_add(int64_t sum, struct usage u);

/* Reads a recorded result: its `body` (JSON, the `data:` lines of an event stream, or lines of
 * JSON) when that is a string, else the value itself. The names that the providers use are searched
 * at any depth; the largest of each counts. `result` is valid JSON. Linear in its length; `a` takes
 * the decoded body.
 */
struct usage usage_read(struct str result, struct arena *a);

/* {"input_tokens":1,"output_tokens":2}, without what is not known. */
void usage_write(struct json_writer *w, struct usage u);

#endif
