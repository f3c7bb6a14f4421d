/* SPDX-License-Identifier: Apache-2.0
 * The HTTP client of the commands: one connection to one kernel (--url, REBUNO_URL), with the key
 * of REBUNO_API_KEY. */
#ifndef CLI_CLIENT_H
#define CLI_CLIENT_H

#include "base/buf.h"
#include "base/err.h"

struct client;

/* `url` NULL: REBUNO_URL, else http://localhost:8080. NULL with ERR_VALIDATION: the URL or the key
 * cannot be used. */
struct client *client_new(const char *url, struct err *e);
void client_free(struct client *c);
const char *client_url(const struct client *c);

enum client_failure {
    CLIENT_OK,
    CLIENT_UNREACHABLE, /* no answer; the kernel may be away or starting */
    CLIENT_BROKEN,      /* the connection ended within an answer */
    CLIENT_BUSY,        /* 5xx or 429: asking again may help */
    CLIENT_REFUSED,     /* any other error of the server's, or an answer that is none */
};
/* Of the last call, and the HTTP status of its answer (0: none). */
enum client_failure client_failure(const struct client *c);
int client_status(const struct client *c);

/* One request. `body` absent: none. The answer's body replaces what `answer` held; a good one is
 * valid JSON or empty. The error is what a person should read: the server's message and code, or
 * why there was no answer. */
MUST_USE bool client_call(struct client *c, const char *method, const char *path, struct str body,
                          struct buf *answer, struct err *e);
MUST_USE bool client_get(struct client *c, const char *path, struct buf *answer, struct err *e);

/* Follows a server-sent stream: `take` gets its bytes as they come and returns false to stop.
 * `idle` (may be NULL) is called about once a second meanwhile; it must not use this client.
 * `last_event_id` may be NULL. True: the server ended the stream, or `take` did. */
typedef bool client_take(void *ctx, struct str bytes);
struct client_stream {
    const char *path, *last_event_id;
    client_take *take;
    void (*idle)(void *ctx);
    void *ctx;
};
MUST_USE bool client_follow(struct client *c, const struct client_stream *stream, struct err *e);

/* Appends a path segment or a query value, escaped. */
void client_escape(struct buf *out, struct str s);

#endif
