/* SPDX-License-Identifier: Apache-2.0
 * Reading what the path names, with the checks of existence and of whose it is. Private to api/. */
#ifndef API_VIEW_H
#define API_VIEW_H

#include "api/request.h"

/* The request's execution. ERR_NOT_FOUND, ERR_FORBIDDEN (another agent's), or the store's error.
 * Its arena. */
MUST_USE bool view_execution(struct request *rq, struct store_reader *r, struct execution_view *v,
                             struct err *e);
/* Answers with the request's execution. False: as above, and nothing is answered. */
MUST_USE bool reply_execution(struct request *rq, struct store_reader *r, int status,
                              struct err *e);

#endif
