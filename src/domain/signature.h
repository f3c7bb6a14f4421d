/* SPDX-License-Identifier: Apache-2.0
 * HMAC-SHA256 signatures of agent requests and webhooks. Pure. Vectors in
 * tests/vectors/signature.json. */
#ifndef DOMAIN_SIGNATURE_H
#define DOMAIN_SIGNATURE_H

#include "base/str.h"

enum { SIGNATURE_HEX_LEN = 64 };

struct signed_request {
    struct str method;
    struct str target; /* exactly as received: escaped path and raw query */
    struct str timestamp;
    struct str dispatch_id; /* "" or absent when the header was not sent */
    struct str attempt;
    struct str body;
};

/* Lower-case hex, no NUL, without the "v1=" or "sha256=" before it. Cheap enough for each request
 * (no per-call algorithm fetch). Any thread. */
void signature_request(struct str secret, const struct signed_request *req,
                       char out[SIGNATURE_HEX_LEN]);
void signature_webhook(struct str secret, struct str body, char out[SIGNATURE_HEX_LEN]);
/* `header` is "v1=<hex>"; constant-time comparison. */
bool signature_request_ok(struct str secret, const struct signed_request *req, struct str header);

#endif
