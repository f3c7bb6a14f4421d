/* SPDX-License-Identifier: Apache-2.0
 * Bundles as objects: names, references, what they hold. */
#include "policy/policy.h"

#include <stdlib.h>

#include "policy/rule.h"

static const struct str ACTIONS[] = {
    [POLICY_ALLOW] = STR_INIT("allow"),
    [POLICY_DENY] = STR_INIT("deny"),
    [POLICY_REQUIRE_APPROVAL] = STR_INIT("require_approval"),
    [POLICY_JUDGE] = STR_INIT("judge"),
};

static const struct str SCOPES[] = {
    [SCOPE_EXECUTION] = STR_INIT("execution"),
    [SCOPE_SESSION] = STR_INIT("session"),
    [SCOPE_AGENT] = STR_INIT("agent"),
    [SCOPE_GLOBAL] = STR_INIT("global"),
};

struct str policy_action_name(enum policy_action a)
{
    return ACTIONS[a];
}

bool policy_action_parse(struct str s, enum policy_action *out)
{
    for (size_t i = 0; i < COUNT(ACTIONS); i++) {
        if (str_eq(s, ACTIONS[i])) {
            *out = (enum policy_action)i;
            return true;
        }
    }
    return false;
}

struct str policy_scope_name(enum policy_scope s)
{
    return SCOPES[s];
}

struct policy *policy_ref(struct policy *p)
{
    atomic_fetch_add_explicit(&p->references, 1, memory_order_relaxed);
    return p;
}

void policy_unref(struct policy *p)
{
    if (p == NULL || atomic_fetch_sub_explicit(&p->references, 1, memory_order_acq_rel) != 1)
        return;
    for (size_t i = 0; i < p->n_regexes; i++)
        regex_free(p->regexes[i]);
    free(p->regexes);
    free(p->rules);
    free(p->keys);
    arena_free(&p->arena);
    free(p);
}

size_t policy_bytes(const struct policy *p)
{
    enum { REGEX_BYTES = 4096, INSTRUCTION_BYTES = 16 }; /* with some states of searches */

    return sizeof *p + p->arena.total + p->n_rules * sizeof *p->rules +
           p->n_keys * sizeof *p->keys + p->n_regexes * REGEX_BYTES +
           p->instructions * INSTRUCTION_BYTES;
}

const struct hash *policy_hash(const struct policy *p)
{
    return &p->hash;
}

size_t policy_rule_count(const struct policy *p)
{
    return p->n_rules;
}

const struct rule *policy_rule(const struct policy *p, size_t index)
{
    ASSERT(index < p->n_rules);
    return &p->rules[index];
}
