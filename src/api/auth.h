/* SPDX-License-Identifier: Apache-2.0
 * Who asks. Private to api/. */
#ifndef API_AUTH_H
#define API_AUTH_H

#include "api/router.h"

/* What can be said before the body is read: no header that says who asks was repeated; a token is
 * right; a signature's headers are there, in time, and of a known agent as far as this can be told
 * without waiting. False with e set. */
MUST_USE bool auth_check_head(struct request *rq, struct err *e);
/* The signature over the whole request; a bearer was checked by its head. Gives the request away:
 * `next` runs when all is well, else it is answered. */
void auth_check_request(struct request *rq, void (*next)(struct request *rq));

#endif
