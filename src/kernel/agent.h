/* SPDX-License-Identifier: Apache-2.0
 * Agents: registered by an administrator, described by themselves, removed. */
#ifndef KERNEL_AGENT_H
#define KERNEL_AGENT_H

#include "kernel/verdict.h"

/* A lease that its agent could hardly keep by heartbeats is ignored. */
enum { AGENT_LEASE_MIN_S = 10 };

struct agent_registration { /* an upsert that keeps policy and metadata */
    struct str id, webhook_url, secret;
    int64_t lease_timeout_us; /* 0, or less than the shortest: the kernel's default */
    /* Absent: keep the policy. It compiles: whoever registers it has seen to that. */
    struct str policy_bundle;
    struct hash policy_hash;
};
MUST_USE
enum verdict agent_register(struct working_set *ws, const struct agent_registration *cmd,
                            struct err *e);

struct agent_description { /* replaces all three; absent clears */
    struct str id;
    struct str description, input_schema, output_schema;
};
MUST_USE
enum verdict agent_describe(struct working_set *ws, const struct agent_description *cmd,
                            struct err *e);

struct policy_setting { /* a bundle that compiles, and the sha256 of its bytes */
    struct str agent_id, bundle;
    struct hash hash;
};
MUST_USE
enum verdict agent_set_policy(struct working_set *ws, const struct policy_setting *cmd,
                              struct err *e);

MUST_USE
enum verdict agent_remove(struct working_set *ws, struct str id, struct err *e);

#endif
