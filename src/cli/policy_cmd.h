/* SPDX-License-Identifier: Apache-2.0
 * What the commands that handle bundles share. */
#ifndef CLI_POLICY_CMD_H
#define CLI_POLICY_CMD_H

#include "cli/visit.h"
#include "policy/policy.h"

struct bundle {
    struct buf yaml;
    struct policy *policy; /* owned */
};

/* Compiles it before anything else happens. False: it cannot be read, or not be compiled: the error
 * has file, line and column. Free it either way. */
MUST_USE bool bundle_load(const char *path, struct bundle *out, struct err *e);
void bundle_free(struct bundle *b);

#endif
