/* SPDX-License-Identifier: Apache-2.0
 * Agents' secrets as they were last read, so that checking a signature needs no database. Any
 * thread. Private to api/. */
#ifndef API_SECRETS_H
#define API_SECRETS_H

#include "domain/signature.h"
#include "store/store.h"

struct secrets;

/* What was read is looked at again after that long, where notes of changes may be lost; 0: it holds
 * until it is forgotten. */
struct secrets *secrets_new(int64_t holds_us);
void secrets_free(struct secrets *s);

enum secrets_verdict {
    SECRETS_GOOD,
    SECRETS_BAD,     /* not signed with what is known; that may be out of date */
    SECRETS_UNKNOWN, /* nothing is known of this agent, or not any more */
};
enum secrets_verdict secrets_check(struct secrets *s, struct str agent_id,
                                   const struct signed_request *req, struct str signature);
/* Reads the agent's row, keeps it, and checks against what was read: it may have been forgotten
 * again by then. While the store is away, what was read last is good enough. */
struct signed_call {
    struct str agent_id, signature;
    struct signed_request request;
};
MUST_USE bool secrets_check_anew(struct secrets *s, struct store_reader *r,
                                 const struct signed_call *call, enum secrets_verdict *verdict,
                                 struct err *e);
bool secrets_knows(struct secrets *s, struct str agent_id);
/* Reads the agent's row and keeps it. *found false: there is no such agent. */
MUST_USE bool secrets_load(struct secrets *s, struct str agent_id, struct store_reader *r,
                           bool *found, struct err *e);
void secrets_forget(struct secrets *s, struct str agent_id); /* the row has changed, or is gone */

#endif
