/* SPDX-License-Identifier: Apache-2.0
 * Reading and checking what a request says: query parameters and fields of its body. Every refusal
 * is ERR_VALIDATION and names the parameter or field. Private to api/. */
#ifndef API_PARAMS_H
#define API_PARAMS_H

#include "api/request.h"
#include "base/json.h"

/* A parameter of the query, decoded; absent when missing. */
MUST_USE bool query_text(const struct request *rq, const char *name, struct str *out,
                         struct err *e);
/* Missing: *value stays as it is. Over `max` it is `max`; under `min` it is refused. */
MUST_USE bool query_int(const struct request *rq, const char *name, int64_t min, int64_t max,
                        int64_t *value, struct err *e);

#define TYPE(t) (1u << JSON_##t)
enum { SHORT_TEXT_MAX = 256 };

/* A string field's raw text, decoded into *out: `min` to `max` bytes without control characters. An
 * absent field stays absent. */
MUST_USE bool field_text(const char *name, struct str raw, size_t min, size_t max, struct arena *a,
                         struct str *out, struct err *e);
/* A number field's raw text. An absent field: *value stays as it is. Over `max` it is `max`; under
 * `min` it is refused. */
MUST_USE bool field_int(const char *name, struct str raw, int64_t min, int64_t max, int64_t *value,
                        struct err *e);
/* A body that says nothing: empty, or an object without fields. */
MUST_USE bool body_empty(struct request *rq, struct err *e);
bool is_agent_id(struct str id); /* fit for a registration */
/* The ids whose text form begins so. False: no id does. */
MUST_USE bool uuid_prefix_range(struct str prefix, struct uuid *low, struct uuid *high);
/* An Accept header that names text/event-stream outright: not by a wildcard. */
bool accepts_event_stream(struct str accept);

#endif
