/* SPDX-License-Identifier: Apache-2.0
 * What the rules may be told by configuration. Filled once at start by cli/config.c; constant
 * afterwards. */
#ifndef KERNEL_SETTINGS_H
#define KERNEL_SETTINGS_H

#include "base/str.h"

struct kernel_settings {
    int64_t dispatch_max_attempts;      /* REBUNO_DISPATCH_MAX_ATTEMPTS, default 5 */
    bool dispatch_max_attempts_by_hand; /* it was set: then no ten-minute minimum holds
                                           (docs/protocol.md) */
    int64_t dispatch_timeout_us;        /* a delivery's answer, default 30 s */
    int64_t lease_timeout_us;           /* for agents without one of their own, default 2 min */
    int64_t deadline_timeout_us;        /* 0: executions have no deadline */
    int64_t approval_timeout_us;        /* of approvals whose rule names none, default 15 min */
    bool judge_configured;              /* REBUNO_JUDGE_URL is set */
};

#endif
