/* SPDX-License-Identifier: Apache-2.0
 * The one place where a new step is decided. Without a bundle everything is allowed. */
#ifndef KERNEL_POLICY_SEAM_H
#define KERNEL_POLICY_SEAM_H

#include "kernel/working_set.h"

struct policy_question {
    const struct execution *execution;
    enum step_kind kind;
    struct str target;
    struct str args; /* canonical */
};

enum policy_action { POLICY_ALLOW, POLICY_DENY };

struct policy_answer {
    enum policy_action action;
    struct str rule_id;     /* static or the working set's arena */
    struct str policy_hash; /* hex; absent without a bundle */
    struct str reason;      /* of a denial; absent otherwise */
};

void policy_decide(struct working_set *ws, const struct policy_question *q,
                   struct policy_answer *out);

#endif
