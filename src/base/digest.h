/* SPDX-License-Identifier: Apache-2.0
 * SHA-256 and HMAC-SHA256 (libcrypto) over a message given in parts. Any thread; contexts are kept
 * per thread, so that a call costs neither an allocation nor a look-up of the algorithm. Aborts if
 * libcrypto has no SHA-256. */
#ifndef BASE_DIGEST_H
#define BASE_DIGEST_H

#include "base/str.h"

enum { DIGEST_LEN = 32 };

void digest_sha256(const struct str *parts, size_t n, uint8_t out[DIGEST_LEN]);
void digest_hmac_sha256(struct str key, const struct str *parts, size_t n, uint8_t out[DIGEST_LEN]);

#endif
