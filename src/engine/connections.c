/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/connections.h"

#include <unistd.h>

#include "base/err.h"

static unsigned executors_by_cores(unsigned cores)
{
    unsigned n = cores < 4 ? 2 : cores > 16 ? 8 : cores / 2;

    return n + 1; /* that of forks */
}

/* One goes to the kind that has the smallest part of what it wants, and among equals to the first.
 * What is beyond all wants goes to executors and readers in the same way. */
struct connections connections_divide(unsigned max, unsigned cores)
{
    const struct connections want = {executors_by_cores(cores), 4, FORKS_MAX, FORKS_MAX};
    const unsigned wanted[] = {want.executors, want.readers, want.small_forks, want.large_forks};
    struct connections c = {1, 1, 1, 1};
    unsigned *const has[] = {&c.executors, &c.readers, &c.small_forks, &c.large_forks};

    if (max == 0)
        return want;
    ASSERT(max >= CONNECTIONS_LEAST);
    for (unsigned left = max - CONNECTIONS_LEAST; left > 0; left--) {
        size_t least = 0;

        for (size_t i = 1; i < COUNT(has); i++)
            if ((has[i] == &c.readers || *has[i] < wanted[i]) &&
                *has[i] * wanted[least] < *has[least] * wanted[i])
                least = i;
        ++*has[least];
    }
    return c;
}

struct connections connections_for(unsigned max)
{
    long cores = sysconf(_SC_NPROCESSORS_ONLN);

    return connections_divide(max, cores < 1 ? 1 : (unsigned)cores);
}

unsigned connections_total(const struct connections *c)
{
    return CONNECTIONS_SINGLE + c->executors + c->readers + c->small_forks + c->large_forks;
}
