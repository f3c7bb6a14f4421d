/* SPDX-License-Identifier: Apache-2.0
 * Error codes on the wire. Private to api/. */
#ifndef API_ERROR_H
#define API_ERROR_H

#include "base/buf.h"
#include "base/err.h"

int error_status(enum err_code code);
/* The envelope {"code","message","details"?}. What a client must not see of our own faults is
 * replaced. */
void error_encode(const struct err *e, struct buf *out);
/* What the HTTP server refused by itself: the code for it, and the envelope with its message. */
enum err_code error_of_status(int status);
void error_encode_refusal(int status, const char *message, struct buf *out);

#endif
