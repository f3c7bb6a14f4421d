/* SPDX-License-Identifier: Apache-2.0
 * The manifest (--config): the agents of a kernel, as YAML. */
#ifndef CLI_MANIFEST_H
#define CLI_MANIFEST_H

#include "base/arena.h"
#include "base/err.h"

struct manifest_agent {
    struct str id, webhook_url, secret;
    int64_t lease_timeout_seconds; /* 0: not set */
};

struct manifest {
    struct manifest_agent *agents; /* arena, in the order of the file */
    size_t n;
};

/* Refuses unknown keys, missing or repeated ids, wrong types, and ${NAME} of an unset variable: the
 * message has file, line and column. `policy` and `policy_file` are refused as not available yet.
 */
MUST_USE bool manifest_load(const char *path, struct arena *a, struct manifest *out, struct err *e);

#endif
