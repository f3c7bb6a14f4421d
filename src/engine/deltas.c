/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/deltas.h"

#include "base/clock.h"

/* Announcements are repeated with each keep-alive of the streams, every 15 s. */
static const int64_t HOLDS_US = 40 * US_PER_S;
enum { WANTS_MAX = 10000 }; /* beyond it the oldest go: they are repeated if they still matter */

static struct str id_key(const struct uuid *id)
{
    return str_make(id->b, sizeof(id->b));
}

void delta_wants_init(struct delta_wants *w)
{
    pthread_mutex_init(&w->lock, NULL);
    w->until = (struct map){0};
}

void delta_wants_free(struct delta_wants *w)
{
    map_free(&w->until);
    pthread_mutex_destroy(&w->lock);
}

static void drop_old(struct delta_wants *w, int64_t now)
{
    struct str key;
    void *until;

    for (size_t i = 0; (until = map_next_key(&w->until, &i, &key)) != NULL;)
        if ((int64_t)(intptr_t)until < now)
            map_remove(&w->until, key);
    if (w->until.count >= WANTS_MAX)
        map_clear(&w->until);
}

void delta_wants_heard(struct delta_wants *w, const struct uuid *execution_id)
{
    int64_t now = clock_mono_us();

    pthread_mutex_lock(&w->lock);
    if (w->until.count >= WANTS_MAX)
        drop_old(w, now);
    map_put(&w->until, id_key(execution_id), (void *)(intptr_t)(now + HOLDS_US));
    pthread_mutex_unlock(&w->lock);
}

bool delta_wants_has(struct delta_wants *w, const struct uuid *execution_id)
{
    int64_t until;

    pthread_mutex_lock(&w->lock);
    until = (int64_t)(intptr_t)map_get(&w->until, id_key(execution_id));
    pthread_mutex_unlock(&w->lock);
    return until > clock_mono_us();
}
