/* SPDX-License-Identifier: Apache-2.0
 * The words exchanged with a judging model (docs/policy.md): the question, and what its answer
 * comes to. Who asks, and how long it waits, is dispatch/judge.h's. */
#ifndef POLICY_JUDGEMENT_H
#define POLICY_JUDGEMENT_H

#include "base/buf.h"
#include "policy/policy.h"

void judgement_question(struct buf *out, const struct policy_input *in, const struct judge *judge);
/* The top choice when it reaches the threshold; the fallback otherwise, also for an answer that is
 * no such JSON. Of equal scores the stricter counts: deny, require_approval, allow. */
enum policy_action judgement_read(struct str answer, const struct judge *judge);

#endif
