/* SPDX-License-Identifier: Apache-2.0
 * What requests say of resources: their keys, and what was captured of them. Private to api/. */
#ifndef API_RESOURCE_FIELDS_H
#define API_RESOURCE_FIELDS_H

#include "api/request.h"
#include "kernel/resource.h"

/* Letters, digits, `_`, `.` and `-`; but `.` and `..` would not survive as a segment of a path. */
bool is_resource_key(struct str key);
/* A list of keys, each once in the answer however often it was named. Absent: none. */
MUST_USE bool field_resource_keys(const char *name, struct str raw, struct arena *a,
                                  const struct str **out, size_t *n, struct err *e);
/* The fields `captures` and `capture_failures`, raw. What is wrong with a checkpoint_ref is for the
 * report to say: it must not cost the outcome that comes with it. */
MUST_USE bool field_captures(struct str captures, struct str failures, struct arena *a,
                             struct capture_report *out, struct err *e);
/* JSON to be stored: of bounded size. */
MUST_USE bool field_resource_json(const char *name, struct str raw, struct err *e);

#endif
