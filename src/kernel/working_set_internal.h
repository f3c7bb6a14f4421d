/* SPDX-License-Identifier: Apache-2.0
 * What the files of the working set share. Private to them. */
#ifndef KERNEL_WORKING_SET_INTERNAL_H
#define KERNEL_WORKING_SET_INTERNAL_H

#include "kernel/working_set.h"

/* "Looked for, and not there": the value of a key in an identity map. */
extern char ws_absent_marker;
#define ABSENT ((void *)&ws_absent_marker)

#define LIST_ADD(list, value)                                                                      \
    do {                                                                                           \
        if ((list).n == (list).cap) {                                                              \
            (list).cap = (list).cap == 0 ? 16 : (list).cap * 2;                                    \
            (list).at = xrealloc((list).at, (list).cap * sizeof((list).at[0]));                    \
        }                                                                                          \
        (list).at[(list).n++] = (value);                                                           \
    } while (0)

static inline struct str uuid_key(const struct uuid *id)
{
    return str_make(id->b, sizeof(id->b));
}

static inline struct str hash_key(const struct hash *h)
{
    return str_make(h->b, sizeof(h->b));
}

static inline struct str call_str(const struct call_key *call)
{
    return str_make(call->b, sizeof(call->b));
}

static inline void *present(void *value)
{
    return value == ABSENT ? NULL : value;
}

/* Key of the request_keys map: agent id, NUL (neither may hold one), idempotency key. */
static inline struct str request_map_key(struct str agent_id, struct str key, struct buf *scratch)
{
    buf_clear(scratch);
    buf_add(scratch, agent_id);
    buf_add_byte(scratch, '\0');
    buf_add(scratch, key);
    return buf_str(scratch);
}

static inline void ws_join_group(struct working_set *ws, struct execution *exec)
{
    if (exec->in_group)
        return;
    exec->in_group = true;
    LIST_ADD(ws->group_executions, exec);
}

static inline void ws_step_join_group(struct working_set *ws, struct step *step)
{
    if (step->in_group)
        return;
    step->in_group = true;
    LIST_ADD(ws->group_steps, step);
}

void ws_tallies_free(struct execution *exec);
void ws_resources_free(struct execution *exec);
void ws_resources_end_group(struct execution *exec);

#endif
