/* SPDX-License-Identifier: Apache-2.0
 * Rows as the wire shows them. What has no value is left out. Private to api/. */
#ifndef API_ENCODE_H
#define API_ENCODE_H

#include "api/waits.h"
#include "base/json.h"
#include "kernel/resource.h"
#include "kernel/step.h"
#include "store/store.h"

/* `now_us` is the wall clock: a delivery that is due already waits for nothing but its turn. */
void encode_execution(struct json_writer *w, const struct execution_view *v,
                      const struct waits *waits, int64_t now_us);
void encode_step(struct json_writer *w, const struct uuid *execution_id, const struct step_view *v);
void encode_agent(struct json_writer *w, const struct agent_view *v);
void encode_approval(struct json_writer *w, const struct approval_view *v);
void encode_decision(struct json_writer *w, const struct step_answer *answer);
void encode_resource(struct json_writer *w, const struct resource *row);
void encode_checkpoint(struct json_writer *w, const struct checkpoint *row);

#endif
