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

/* Gives the request away. Compiles aside what the field `raw` holds and puts it into the engine's
 * cache; then *yaml and *hash are set and `then` goes on, on the thread for such work. A bundle
 * that does not compile is answered 400. */
void bundle_compile(struct request *rq, struct str raw, struct str *yaml, struct hash *hash,
                    void (*then)(struct request *rq));
/* The same for the request's command, which is then submitted as by request_submit. */
void bundle_submit(struct request *rq, struct str raw, struct str *yaml, struct hash *hash,
                   void (*answer)(struct request *rq));

#endif
