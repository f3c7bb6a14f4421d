/* SPDX-License-Identifier: Apache-2.0
 * The manifest (--config): the agents of a kernel, as YAML. */
#ifndef CLI_MANIFEST_H
#define CLI_MANIFEST_H

#include "base/arena.h"
#include "base/err.h"
#include "domain/identity.h"

struct manifest_agent {
    struct str id, webhook_url, secret;
    int64_t lease_timeout_seconds; /* 0: not set */
    struct str policy_bundle;      /* YAML that compiles; absent: none is named */
    struct hash policy_hash;
};

struct manifest {
    struct manifest_agent *agents; /* arena, in the order of the file */
    size_t n;
};

/* Refuses unknown keys, missing or repeated ids, wrong types, ${NAME} of an unset variable, and
 * policies that do not compile: the message has file, line and column. A `policy_file` is found
 * beside the manifest. */
MUST_USE bool manifest_load(const char *path, struct arena *a, struct manifest *out, struct err *e);

#endif
