/* SPDX-License-Identifier: Apache-2.0
 * The HTTP API: routes, authentication, decoding, encoding. It holds no rule: a write becomes a
 * command, a read is a row. */
#ifndef API_API_H
#define API_API_H

#include "dispatch/sender.h"
#include "engine/engine.h"
#include "http/http.h"

struct api;

struct api_options {
    struct engine *engine;                   /* borrowed */
    const struct sender_stats *sender_stats; /* for /metrics; may be NULL */
    const char *bearer_token;                /* NULL in dev mode without one */
    bool dev; /* a request without a token is let through; Origin is checked */
    const char *listen_addr;
    int64_t max_body_bytes;
};

/* Binds the address; port known at once. Serves after api_start. */
struct api *api_new(const struct api_options *opt, struct err *e);
uint16_t api_port(const struct api *api);
MUST_USE bool api_start(struct api *api, struct err *e);
/* What the engine signals: wire these into engine_signals. Any thread. */
void api_events(struct api *api, const struct uuid *execution_id, bool ended);
void api_delta(struct api *api, const struct uuid *execution_id, struct str note);
void api_agent_changed(struct api *api, struct str agent_id);
/* Stops accepting, finishes what is in flight, ends streams and long polls; returns when done or
 * soon after the deadline. False: a thread is not through with a policy that it tests or compiles;
 * what the API uses must stay. */
MUST_USE bool api_drain(struct api *api, int64_t deadline_mono_us);
void api_free(struct api *api);

#endif
