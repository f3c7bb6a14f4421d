/* SPDX-License-Identifier: Apache-2.0 */
#include "api/secrets.h"

#include "base/clock.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>

/* Beyond it everything is forgotten: a thousand agents fit, and nobody can make it grow by asking
 * for unknown ones. */
enum { ENTRIES_MAX = 8192 };

struct entry {
    atomic_uint refs;            /* the map's and those of checks that are under way */
    struct str secret, previous; /* in `bytes` */
    int64_t previous_until;      /* wall */
    int64_t read_us;             /* monotonic */
    char bytes[];
};

struct secrets {
    pthread_mutex_t lock;
    struct map entries;
    int64_t holds_us; /* 0: until it is forgotten */
    uint64_t changes; /* how often something was forgotten: a row read before that must not come in
                         after it */
};

struct secrets *secrets_new(int64_t holds_us)
{
    struct secrets *s = xzalloc(sizeof(*s));

    s->holds_us = holds_us;
    pthread_mutex_init(&s->lock, NULL);
    return s;
}

static void entry_release(struct entry *en)
{
    if (en != NULL && atomic_fetch_sub(&en->refs, 1) == 1)
        free(en);
}

static void forget_all(struct secrets *s)
{
    struct entry *en;

    for (size_t i = 0; (en = map_next(&s->entries, &i)) != NULL;)
        entry_release(en);
    map_clear(&s->entries);
}

void secrets_free(struct secrets *s)
{
    if (s == NULL)
        return;
    forget_all(s);
    map_free(&s->entries);
    pthread_mutex_destroy(&s->lock);
    free(s);
}

static struct entry *acquire_of_any_age(struct secrets *s, struct str agent_id)
{
    struct entry *en;

    pthread_mutex_lock(&s->lock);
    en = map_get(&s->entries, agent_id);
    if (en != NULL)
        atomic_fetch_add(&en->refs, 1);
    pthread_mutex_unlock(&s->lock);
    return en;
}

static struct entry *acquire(struct secrets *s, struct str agent_id)
{
    struct entry *en = acquire_of_any_age(s, agent_id);

    if (en == NULL || s->holds_us == 0 || clock_mono_us() - en->read_us < s->holds_us)
        return en;
    entry_release(en);
    return NULL;
}

/* Takes the reference. */
static enum secrets_verdict check_entry(struct entry *en, const struct signed_request *req,
                                        struct str signature)
{
    bool good;

    if (en == NULL)
        return SECRETS_UNKNOWN;
    good = signature_request_ok(en->secret, req, signature) ||
           (str_present(en->previous) && clock_wall_us() < en->previous_until &&
            signature_request_ok(en->previous, req, signature));
    entry_release(en);
    return good ? SECRETS_GOOD : SECRETS_BAD;
}

enum secrets_verdict secrets_check(struct secrets *s, struct str agent_id,
                                   const struct signed_request *req, struct str signature)
{
    return check_entry(acquire(s, agent_id), req, signature);
}

bool secrets_knows(struct secrets *s, struct str agent_id)
{
    struct entry *en = acquire(s, agent_id);

    entry_release(en);
    return en != NULL;
}

static void put(struct secrets *s, struct str agent_id, struct entry *en, uint64_t changes)
{
    struct entry *old = NULL;

    pthread_mutex_lock(&s->lock);
    if (s->changes == changes) {
        if (s->entries.count >= ENTRIES_MAX)
            forget_all(s);
        atomic_fetch_add(&en->refs, 1);
        old = map_put(&s->entries, agent_id, en);
    }
    pthread_mutex_unlock(&s->lock);
    entry_release(old);
}

static struct entry *entry_new(const struct agent_view *row, int64_t read_us)
{
    struct str secret = row->secret, previous = row->previous_secret;
    struct entry *en = xmalloc(sizeof(*en) + secret.n + previous.n);

    atomic_init(&en->refs, 1);
    en->read_us = read_us;
    en->secret = str_make(en->bytes, secret.n);
    memcpy(en->bytes, secret.p, secret.n);
    en->previous = STR_NONE;
    if (str_present(previous)) {
        en->previous = str_make(en->bytes + secret.n, previous.n);
        memcpy(en->bytes + secret.n, previous.p, previous.n);
    }
    en->previous_until = row->previous_secret_until;
    return en;
}

/* *out: a reference; NULL: there is no such agent. */
static bool load(struct secrets *s, struct str agent_id, struct store_reader *r, struct entry **out,
                 struct err *e)
{
    struct arena arena = {0};
    int64_t read_us = clock_mono_us();
    struct agent_view row;
    uint64_t changes;
    bool ok, found;

    pthread_mutex_lock(&s->lock);
    changes = s->changes;
    pthread_mutex_unlock(&s->lock);
    *out = NULL;
    ok = store_read_agent(r, agent_id, &arena, &row, &found, e);
    if (ok && found) {
        *out = entry_new(&row, read_us);
        put(s, agent_id, *out, changes);
    } else if (ok) {
        secrets_forget(s, agent_id);
    }
    arena_free(&arena);
    return ok;
}

bool secrets_load(struct secrets *s, struct str agent_id, struct store_reader *r, bool *found,
                  struct err *e)
{
    struct entry *en;
    bool ok = load(s, agent_id, r, &en, e);

    *found = ok && en != NULL;
    entry_release(en);
    return ok;
}

bool secrets_check_anew(struct secrets *s, struct store_reader *r, const struct signed_call *call,
                        enum secrets_verdict *verdict, struct err *e)
{
    struct entry *en;

    if (!load(s, call->agent_id, r, &en, e)) { /* what follows waits for the store, too */
        en = acquire_of_any_age(s, call->agent_id);
        *verdict = check_entry(en, &call->request, call->signature);
        return *verdict == SECRETS_GOOD;
    }
    *verdict = check_entry(en, &call->request, call->signature);
    return true;
}

void secrets_forget(struct secrets *s, struct str agent_id)
{
    pthread_mutex_lock(&s->lock);
    s->changes++;
    entry_release(map_remove(&s->entries, agent_id));
    pthread_mutex_unlock(&s->lock);
}
