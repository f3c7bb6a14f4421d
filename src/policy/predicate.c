/* SPDX-License-Identifier: Apache-2.0 */
#include "policy/predicate.h"

static bool is_one_of(const struct predicate *p, struct str text)
{
    for (size_t i = 0; i < p->n_one_of; i++) {
        if (str_eq(text, p->one_of[i]))
            return true;
    }
    return false;
}

/* The cheap ones first. */
bool predicate_holds(const struct predicate *p, struct str text, bool *no_memory)
{
    if (str_present(p->equals) && !str_eq(text, p->equals))
        return false;
    if (p->n_one_of > 0 && !is_one_of(p, text))
        return false;
    if (str_present(p->contains) && memmem(text.p, text.n, p->contains.p, p->contains.n) == NULL)
        return false;
    return p->regex == NULL || regex_found(p->regex, text.p, text.n, no_memory);
}

int64_t predicate_cost(const struct predicate *p)
{
    enum { ONE_OF_NS = 3 };

    return (int64_t)p->n_one_of * ONE_OF_NS;
}

/* A small pattern has few states, and searching is a look-up a byte. A large one may meet a new
 * state at each byte: then its instructions are walked. */
int64_t predicate_cost_per_byte(const struct predicate *p)
{
    enum { SMALL = 16, LOOKUP_NS = 2, INSTRUCTION_NS = 4, CONTAINS_NS = 1 };
    int64_t ns = str_present(p->contains) ? CONTAINS_NS : 0;

    if (p->regex != NULL && regex_size(p->regex) <= SMALL)
        ns += LOOKUP_NS;
    else if (p->regex != NULL)
        ns += (int64_t)regex_size(p->regex) * INSTRUCTION_NS;
    return ns;
}
