/* SPDX-License-Identifier: Apache-2.0
 * What a rule asks of one argument's text. Knows neither JSON nor rules. */
#ifndef POLICY_PREDICATE_H
#define POLICY_PREDICATE_H

#include "base/str.h"
#include "policy/regex.h"

/* All that are given must hold. */
struct predicate {
    struct str equals, contains; /* absent: not given */
    const struct str *one_of;
    size_t n_one_of;
    const struct regex *regex; /* NULL: not given */
};

/* *no_memory is set, and nothing else said, when a regex could not be searched for. */
bool predicate_holds(const struct predicate *p, struct str text, bool *no_memory);
/* What predicate_holds may take at worst, about, in nanoseconds: in all, and for each byte. */
int64_t predicate_cost(const struct predicate *p);
int64_t predicate_cost_per_byte(const struct predicate *p);

#endif
