/* SPDX-License-Identifier: Apache-2.0
 * Live deltas across kernels on one Postgres. A kernel announces the executions whose live stream
 * somebody reads there; the others send it those deltas, and no others. An announcement holds for a
 * while and is repeated. Deltas may be lost. */
#ifndef ENGINE_DELTAS_H
#define ENGINE_DELTAS_H

#include "base/map.h"
#include "base/uuid.h"

#include <pthread.h>

struct delta_wants {
    pthread_mutex_t lock;
    struct map until; /* execution id → monotonic time, kept in the pointer itself */
};

void delta_wants_init(struct delta_wants *w);
void delta_wants_free(struct delta_wants *w);
void delta_wants_heard(struct delta_wants *w,
                       const struct uuid *execution_id); /* another kernel announced it */
bool delta_wants_has(struct delta_wants *w, const struct uuid *execution_id);

#endif
