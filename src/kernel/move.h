/* SPDX-License-Identifier: Apache-2.0
 * The only functions that change a status. Each asserts that the model permits the move, touches
 * the row, and keeps what belongs to the move in step with it (times, live steps, the dispatch of
 * an execution that ends). They write no events: the rule does, in the model's order. */
#ifndef KERNEL_MOVE_H
#define KERNEL_MOVE_H

#include "kernel/working_set.h"

void execution_move(struct working_set *ws, struct execution *exec, enum execution_status to);
/* To a terminal status: also ends ownership and retires the dispatch. `reason` absent: none. */
void execution_end(struct working_set *ws, struct execution *exec, enum execution_status to,
                   struct str reason);
void step_move(struct working_set *ws, struct step *step, enum step_status to);
void dispatch_move(struct working_set *ws, struct execution *exec, enum dispatch_status to);

#endif
