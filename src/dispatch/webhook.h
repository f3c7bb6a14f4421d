/* SPDX-License-Identifier: Apache-2.0
 * One signed POST to an agent, as a transfer of a curl multi handle. */
#ifndef DISPATCH_WEBHOOK_H
#define DISPATCH_WEBHOOK_H

#include "base/str.h"

#include <curl/curl.h>

struct webhook_target {
    struct str url; /* with a NUL behind it; like the others it lives as long as the transfer */
    struct str secret, body;
    int64_t timeout_us;
    bool private_ranges;
};

struct webhook { /* zeroed: none */
    CURL *easy;
    struct curl_slist *headers;
    bool private_ranges;
    long status;    /* of the answer, once its head is complete; 0: not heard */
    bool has_body;  /* the answer announces one */
    bool no_socket; /* this process had none to give: not the agent's fault */
};

/* `owner` comes back as CURLINFO_PRIVATE. False: out of memory. */
MUST_USE bool webhook_begin(struct webhook *w, CURLM *multi, const struct webhook_target *target,
                            void *owner);
/* Ends the transfer, whatever its state; status and no_socket stay readable. */
void webhook_free(struct webhook *w, CURLM *multi);

#endif
