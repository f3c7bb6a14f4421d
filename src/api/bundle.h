/* SPDX-License-Identifier: Apache-2.0
 * A bundle that a request brings for an agent: it compiles, or the request changes nothing. Private
 * to api/. */
#ifndef API_BUNDLE_H
#define API_BUNDLE_H

#include "api/request.h"

struct bundle_text {
    struct str raw, yaml; /* the field as it came, and decoded; absent: not given */
};
MUST_USE bool bundle_decode(struct bundle_text *b, struct arena *a, struct err *e);

/* Gives the request away. Compiles aside what the field `raw` holds; then *yaml and *hash, which
 * are the request's command's, are set and it is submitted as by request_submit. A bundle that does
 * not compile is answered 400. Uses rq->state. */
void bundle_submit(struct request *rq, struct str raw, struct str *yaml, struct hash *hash,
                   void (*answer)(struct request *rq));

#endif
