/* SPDX-License-Identifier: Apache-2.0
 * What the files of a step's rules share. Private to them. */
#ifndef KERNEL_STEP_INTERNAL_H
#define KERNEL_STEP_INTERNAL_H

#include "kernel/step.h"

/* `,"error":<json>` */
struct str step_error_member(struct working_set *ws, struct str error);
/* The recorded outcome of a step that has one. */
void step_answer_replay(struct step_answer *answer, const struct step *step);

#endif
