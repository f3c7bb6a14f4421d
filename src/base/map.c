/* SPDX-License-Identifier: Apache-2.0
 * The hash map: open addressing with linear probing, and tombstones, so that an entry may be
 * removed while iterating. */
#include "base/map.h"

#include <pthread.h>
#include <stdlib.h>

#include "base/arena.h"
#include "base/err.h"
#include "base/rand.h"
#include "base/siphash.h"

enum { CAP_FIRST = 16, KEY_INLINE = 16 }; /* 16 bytes: a UUID needs no memory of its own */

struct map_slot {
    void *value; /* NULL: free; &TOMBSTONE: deleted */
    uint64_t hash;
    size_t n;
    union {
        char small[KEY_INLINE];
        char *big; /* owned, when n > KEY_INLINE */
    } key;
};

static char TOMBSTONE;

static pthread_once_t hash_key_once = PTHREAD_ONCE_INIT;
static struct siphash_key hash_key;

static void hash_key_make(void)
{
    rand_bytes(&hash_key, sizeof hash_key);
}

uint64_t hash_bytes(struct str s)
{
    pthread_once(&hash_key_once, hash_key_make);
    return siphash(s, hash_key, 1, 3);
}

static bool slot_live(const struct map_slot *s)
{
    return s->value != NULL && s->value != &TOMBSTONE;
}

static struct str slot_key(const struct map_slot *s)
{
    return (struct str){s->n > KEY_INLINE ? s->key.big : s->key.small, s->n};
}

static void slot_drop_key(struct map_slot *s)
{
    if (s->n > KEY_INLINE)
        free(s->key.big);
    s->n = 0;
}

void map_clear(struct map *m)
{
    for (size_t i = 0; i < m->cap; i++) {
        if (slot_live(&m->slots[i]))
            slot_drop_key(&m->slots[i]);
        m->slots[i].value = NULL;
    }
    m->count = m->used = 0;
}

void map_free(struct map *m)
{
    map_clear(m);
    free(m->slots);
    *m = (struct map){0};
}

static struct map_slot *map_find(const struct map *m, struct str key, uint64_t hash)
{
    if (m->cap == 0)
        return NULL;
    for (size_t i = hash & (m->cap - 1);;
         i = (i + 1) & (m->cap - 1)) { /* ends: at least a quarter is free */
        struct map_slot *s = &m->slots[i];
        if (s->value == NULL)
            return NULL;
        if (s->hash == hash && slot_live(s) && str_eq(slot_key(s), key))
            return s;
    }
}

static struct map_slot *first_free(const struct map *m, uint64_t hash)
{
    size_t i = hash & (m->cap - 1);

    while (m->slots[i].value != NULL)
        i = (i + 1) & (m->cap - 1);
    return &m->slots[i];
}

/* Makes room for one more entry: rebuilds the table without tombstones when it is three quarters
 * used, at a size that leaves it at most half full, so that the work is paid for by the insertions
 * before it. */
static void map_make_room(struct map *m)
{
    if (m->cap != 0 && m->used + 1 <= m->cap / 4 * 3)
        return;
    size_t cap = CAP_FIRST;
    while (cap / 2 < m->count + 1)
        cap *= 2;
    struct map old = *m;
    m->slots = xzalloc(cap * sizeof *m->slots);
    m->cap = cap;
    m->used = m->count;
    for (size_t i = 0; i < old.cap; i++)
        if (slot_live(&old.slots[i]))
            *first_free(m, old.slots[i].hash) = old.slots[i];
    free(old.slots);
}

void *map_get(const struct map *m, struct str key)
{
    if (m->count == 0)
        return NULL;
    struct map_slot *s = map_find(m, key, hash_bytes(key));
    return s == NULL ? NULL : s->value;
}

void *map_put(struct map *m, struct str key, void *value)
{
    uint64_t hash = hash_bytes(key);
    struct map_slot *s = map_find(m, key, hash);

    ASSERT(value != NULL);
    if (s != NULL) {
        void *old = s->value;
        s->value = value;
        return old;
    }
    map_make_room(m);
    s = first_free(m, hash);
    s->value = value;
    s->hash = hash;
    s->n = key.n;
    if (key.n > KEY_INLINE)
        s->key.big = xmalloc(key.n);
    if (key.n > 0)
        memcpy(key.n > KEY_INLINE ? s->key.big : s->key.small, key.p, key.n);
    m->count++;
    m->used++;
    return NULL;
}

void *map_remove(struct map *m, struct str key)
{
    struct map_slot *s = m->count == 0 ? NULL : map_find(m, key, hash_bytes(key));

    if (s == NULL)
        return NULL;
    void *old = s->value;
    slot_drop_key(s);
    s->value = &TOMBSTONE;
    m->count--;
    return old;
}

void *map_next_key(const struct map *m, size_t *i, struct str *key)
{
    for (; *i < m->cap; (*i)++) {
        const struct map_slot *s = &m->slots[*i];
        if (slot_live(s)) {
            *key = slot_key(s);
            (*i)++;
            return s->value;
        }
    }
    return NULL;
}

void *map_next(const struct map *m, size_t *i)
{
    struct str key;

    return map_next_key(m, i, &key);
}
