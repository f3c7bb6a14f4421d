/* SPDX-License-Identifier: Apache-2.0
 * Retention: ended executions go (docs/operations.md). First the execution's own row, so that
 * nobody sees half of it; what was its goes later, in slices. */
#ifndef KERNEL_RETENTION_H
#define KERNEL_RETENTION_H

#include "kernel/verdict.h"

struct execution_unlinking {
    struct uuid execution_id;
    int64_t cutoff; /* wall: it must have ended before */
};
void execution_unlink_names(struct working_set *ws, const struct execution_unlinking *cmd);
/* *unlinked false: it must be kept, or is gone already. */
MUST_USE
enum verdict execution_unlink(struct working_set *ws, const struct execution_unlinking *cmd,
                              bool *unlinked, struct err *e);

#endif
