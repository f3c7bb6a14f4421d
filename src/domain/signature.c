/* SPDX-License-Identifier: Apache-2.0
 * Signatures of agent requests and of webhooks. */
#include "domain/signature.h"

#include "base/digest.h"
#include "base/hex.h"

void signature_request(struct str secret, const struct signed_request *req,
                       char out[SIGNATURE_HEX_LEN])
{
    const struct str lf = STR("\n");
    const struct str parts[] = {STR("rebuno-request-v1\n"),
                                req->method,
                                lf,
                                req->target,
                                lf,
                                req->timestamp,
                                lf,
                                req->dispatch_id,
                                lf,
                                req->attempt,
                                lf,
                                req->body};
    uint8_t mac[DIGEST_LEN];

    digest_hmac_sha256(secret, parts, COUNT(parts), mac);
    hex_encode(mac, sizeof mac, out);
}

void signature_webhook(struct str secret, struct str body, char out[SIGNATURE_HEX_LEN])
{
    uint8_t mac[DIGEST_LEN];

    digest_hmac_sha256(secret, &body, 1, mac);
    hex_encode(mac, sizeof mac, out);
}

bool signature_request_ok(struct str secret, const struct signed_request *req, struct str header)
{
    static const struct str VERSION = STR_INIT("v1=");
    char expected[SIGNATURE_HEX_LEN];

    if (!str_starts(header, VERSION))
        return false;
    signature_request(secret, req, expected);
    return str_eq_secret(str_slice(header, VERSION.n, header.n),
                         str_make(expected, sizeof expected));
}
