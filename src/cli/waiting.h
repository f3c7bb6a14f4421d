/* SPDX-License-Identifier: Apache-2.0
 * What a live execution waits for (`waiting_on`), in words. The texts live in the arena. */
#ifndef CLI_WAITING_H
#define CLI_WAITING_H

#include "base/arena.h"

/* "the agent (lease ends in 58s)", "approval 0199c2a4-7d10-7c4e (expires in 14m59s)"; absent when
 * it waits for nothing. */
struct str waiting_text(struct str waiting_on, int64_t now_us, struct arena *a);
/* A sentence for who has watched nothing happen, and what will happen if nobody acts; absent when
 * it waits for nothing. */
struct str waiting_advice(struct str waiting_on, int64_t now_us, struct arena *a);
/* The ids of the approvals among it, at most `max`; how many. */
size_t waiting_approvals(struct str waiting_on, struct str *ids, size_t max, struct arena *a);

#endif
