/* SPDX-License-Identifier: Apache-2.0
 * Patterns for targets (docs/policy.md, "Globs"): `*` any run of characters, `?` any one, `[a-z]`,
 * `[^a-z]`, `\` takes the next one as it is. Characters are Unicode's. Knows no rule. */
#ifndef POLICY_GLOB_H
#define POLICY_GLOB_H

#include "base/str.h"

struct glob {
    struct str pattern; /* borrowed */
    size_t head;        /* bytes at its beginning that stand for themselves */
    bool goes_back;     /* it has a `*` before its end: time may be by pattern times target */
};

/* NULL: *out is ready. Otherwise what is wrong with the pattern (static). */
const char *glob_parse(struct str pattern, struct glob *out);
/* A pattern that equals the target matches too. */
bool glob_matches(const struct glob *g, struct str target);

#endif
