/* SPDX-License-Identifier: Apache-2.0
 * Compiled bundles by the hash of their YAML, so that each is compiled once. Any thread. Bounded:
 * what has not been used for longest goes first. */
#ifndef POLICY_CACHE_H
#define POLICY_CACHE_H

#include "policy/policy.h"

struct policy_cache;

struct policy_cache *policy_cache_new(void);
void policy_cache_free(struct policy_cache *c);
/* The bundle, referenced: unref it. *known is set when the hash is in the cache; NULL with *known
 * set: the bundle does not compile. */
struct policy *policy_cache_get(struct policy_cache *c, const struct hash *hash, bool *known);
/* `p` NULL: it does not compile. The cache takes a reference of its own. */
void policy_cache_put(struct policy_cache *c, const struct hash *hash, struct policy *p);

#endif
