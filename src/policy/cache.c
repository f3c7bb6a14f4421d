/* SPDX-License-Identifier: Apache-2.0
 * The cache of compiled bundles. One mutex, held for a look-up and never while compiling. */
#include "policy/cache.h"

#include <pthread.h>
#include <stdlib.h>

#include "base/map.h"
#include "policy/rule.h"

/* Enough for the bundles that a kernel's agents use at a time; a bundle of thousands of rules takes
 * megabytes. */
enum { ENTRIES_MAX = 256 };
static const size_t BYTES_MAX = (size_t)128 * 1024 * 1024;

struct entry {
    struct hash hash;
    struct policy *policy; /* a reference; NULL: it does not compile */
    size_t bytes;
    uint64_t used; /* the cache's count when it was last asked for */
};

struct policy_cache {
    pthread_mutex_t lock;
    struct map entries; /* hash → struct entry, owned */
    size_t bytes;
    uint64_t uses;
};

static struct str key_of(const struct hash *hash)
{
    return str_make(hash->b, HASH_LEN);
}

struct policy_cache *policy_cache_new(void)
{
    struct policy_cache *c = xzalloc(sizeof *c);

    ASSERT(pthread_mutex_init(&c->lock, NULL) == 0);
    return c;
}

static void drop(struct policy_cache *c, struct entry *e)
{
    map_remove(&c->entries, key_of(&e->hash));
    c->bytes -= e->bytes;
    policy_unref(e->policy);
    free(e);
}

void policy_cache_free(struct policy_cache *c)
{
    struct entry *e;

    if (c == NULL)
        return;
    for (size_t i = 0; (e = map_next(&c->entries, &i)) != NULL;)
        drop(c, e);
    map_free(&c->entries);
    pthread_mutex_destroy(&c->lock);
    free(c);
}

struct policy *policy_cache_get(struct policy_cache *c, const struct hash *hash, bool *known)
{
    struct policy *p = NULL;

    pthread_mutex_lock(&c->lock);
    struct entry *e = map_get(&c->entries, key_of(hash));
    if (e != NULL) {
        e->used = ++c->uses;
        p = e->policy == NULL ? NULL : policy_ref(e->policy);
    }
    pthread_mutex_unlock(&c->lock);
    *known = e != NULL;
    return p;
}

/* Keeps `last`, however large it is: it is about to be used. */
static void make_room(struct policy_cache *c, const struct entry *last)
{
    while (c->entries.count > 1 && (c->entries.count > ENTRIES_MAX || c->bytes > BYTES_MAX)) {
        struct entry *oldest = NULL, *e;

        for (size_t i = 0; (e = map_next(&c->entries, &i)) != NULL;) {
            if (e != last && (oldest == NULL || e->used < oldest->used))
                oldest = e;
        }
        ASSERT(oldest != NULL);
        drop(c, oldest);
    }
}

void policy_cache_put(struct policy_cache *c, const struct hash *hash, struct policy *p)
{
    struct entry *e = xzalloc(sizeof *e);

    e->hash = *hash;
    e->policy = p == NULL ? NULL : policy_ref(p);
    e->bytes = sizeof *e + (p == NULL ? 0 : policy_bytes(p));
    pthread_mutex_lock(&c->lock);
    struct entry *before = map_get(&c->entries, key_of(hash));
    if (before != NULL)
        drop(c, before);
    e->used = ++c->uses;
    map_put(&c->entries, key_of(hash), e);
    c->bytes += e->bytes;
    make_room(c, e);
    pthread_mutex_unlock(&c->lock);
}
