/* SPDX-License-Identifier: Apache-2.0
 * How events are written and read. A transition's body holds one line an event:
 *
 *     step.proposed\t"step_id":"5f…","step_type":"tool_call","target":"send"\n
 *     step.allowed\t&,"rule_id":"permissive"\n
 *     step.executing\t&\n
 *
 * The name, a tab, the members of its payload. A leading `&` stands for the members of the last
 * line that began without one, so that the three events of a step state it once. JSON has raw tabs
 * and line ends between its tokens, and no other control characters anywhere: they are written as
 * \001 and \002 and read back, so that an error stays the bytes that came. An execution.completed
 * ends with `"output":@`: the output stands in the execution's row, once, however large, and the
 * reader puts it there. */
#ifndef KERNEL_EVENT_H
#define KERNEL_EVENT_H

#include "kernel/working_set.h"

/* `extra` is further members of the payload, each as `,"name":value`; empty for none. */
void event_execution(struct working_set *ws, struct execution *exec, enum event_type type,
                     struct str extra);
void event_step(struct working_set *ws, const struct step *step, enum event_type type,
                struct str extra);
/* A line of its own, which no execution's log has yet. */
void event_resource_line(struct buf *out, struct str key, enum event_type type, struct str extra);
void event_resource(struct working_set *ws, struct execution *exec, struct str key,
                    enum event_type type, struct str extra);
/* With what its row says of the decision. */
void event_approval(struct working_set *ws, const struct approval *approval, enum event_type type);
void event_dispatch(struct working_set *ws, struct execution *exec, const struct dispatch *d,
                    enum event_type type);

/* One event read from a transition. */
struct event_line {
    struct str type;
    struct str payload; /* a JSON object; in the scratch buffer given to event_next */
};
struct event_reader {
    struct str body;
    struct str output; /* of the execution; needed when event_needs_output(body) */
    size_t at;
    struct str shared;
};
bool event_needs_output(struct str body);
/* One line as it is written, from *at on: `members` may begin with the `&`. False at the end. */
bool event_next_line(struct str body, size_t *at, struct str *type, struct str *members);
/* Appends the members of such a line as a JSON object, without those that an `&` stands for. */
void event_line_object(struct str members, struct buf *out);
/* False at the end of the body. `scratch` is overwritten by each call. */
bool event_next(struct event_reader *r, struct buf *scratch, struct event_line *out);

#endif
