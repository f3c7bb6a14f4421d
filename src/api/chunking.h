/* SPDX-License-Identifier: Apache-2.0
 * Payloads that repeat what was said before (a model call's arguments, a turn's state) are cut into
 * chunks here, on the request's thread, and packed unless the store seems to have them. Private to
 * api/. */
#ifndef API_CHUNKING_H
#define API_CHUNKING_H

#include "api/request.h"

/* For rq->cmd, whose payload this is. A small one stays whole, and so does one for whose chunks
 * there is no memory. */
void chunking_cut(struct request *rq, struct str payload);
/* rq->cmd is done: what it has stored need not be packed again. */
void chunking_stored(struct request *rq);

#endif
