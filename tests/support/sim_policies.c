/* SPDX-License-Identifier: Apache-2.0 */
#include "support/sim.h"

/* What the agent's policy is in every fourth seed each: none, gates, limits, both. `pay` is decided
 * by a person, and `read` has a rate limit, once with patience and once without. */
const char *const SIM_POLICY[SIM_POLICIES] = {
    NULL,
    "default_action: allow\n"
    "rules:\n"
    "  - { id: gate, when: { target: pay }, then: { decision: require_approval,"
    " approval_config: { timeout: 3m } } }\n",
    "default_action: allow\n"
    "rules:\n"
    "  - { id: limit, when: { target: read }, then: { decision: allow,"
    " rate_limit: { max_calls: 2, window: 30s, per_what: agent, max_wait: 5m } } }\n",
    "default_action: allow\n"
    "rules:\n"
    "  - { id: gate, when: { target: pay }, then: { decision: require_approval,"
    " approval_config: { timeout: 3m } } }\n"
    "  - { id: limit, when: { target: read }, then: { decision: allow,"
    " rate_limit: { max_calls: 2, window: 30s, per_what: agent } } }\n",
};

static struct policy *compiled[SIM_POLICIES]; /* once for all schedules */

static void compile(void)
{
    struct err e;

    for (size_t i = 0; i < SIM_POLICIES; i++) {
        if (SIM_POLICY[i] == NULL || compiled[i] != NULL)
            continue;
        compiled[i] = policy_compile(str_of(SIM_POLICY[i]), "", &e);
        if (compiled[i] == NULL)
            fail_msg("%s", e.message);
    }
}

const struct hash *sim_policy_hash(int which)
{
    return policy_hash(compiled[which]);
}

void sim_policies_put(struct policy_cache *cache)
{
    compile();
    for (size_t i = 0; i < SIM_POLICIES; i++)
        if (compiled[i] != NULL)
            policy_cache_put(cache, policy_hash(compiled[i]), compiled[i]);
}

void sim_policies_free(void)
{
    for (size_t i = 0; i < SIM_POLICIES; i++)
        policy_unref(compiled[i]);
}
