/* SPDX-License-Identifier: Apache-2.0 */
#include "dispatch/webhook.h"

#include "base/clock.h"
#include "dispatch/address.h"
#include "domain/signature.h"

#include <stdio.h>

/* Published agents close a connection after 5 s of idleness; one about to close must not be used.
 */
enum { IDLE_CONNECTION_S = 4 };

/* A line of the answer's head; an empty one ends it. Then the answer has been heard, and a body
 * that trickles must not hold the slot: the transfer is broken off, unless it is over anyway. */
static size_t on_head(char *p, size_t size, size_t n, void *ctx)
{
    struct webhook *w = ctx;
    struct str line = str_make(p, size * n);
    long status = 0;

    while (line.n > 0 && (line.p[line.n - 1] == '\r' || line.p[line.n - 1] == '\n'))
        line.n--;
    if (str_starts(line, STR("HTTP/")))
        w->has_body = true;
    if (str_eq_nocase(line, STR("content-length: 0")))
        w->has_body = false;
    if (line.n > 0)
        return size * n;
    curl_easy_getinfo(w->easy, CURLINFO_RESPONSE_CODE, &status);
    if (status < 200) /* an interim answer */
        return size * n;
    w->status = status;
    return w->has_body && status != 204 ? 0 : size * n;
}

static size_t on_body(char *p, size_t size, size_t n, void *ctx)
{
    (void)p;
    (void)size;
    (void)n;
    (void)ctx;
    return 0; /* nobody reads it */
}

static curl_socket_t on_socket(void *ctx, curlsocktype purpose, struct curl_sockaddr *address)
{
    struct webhook *w = ctx;
    int fd;

    (void)purpose;
    if (!address_allowed(&address->addr, w->private_ranges))
        return CURL_SOCKET_BAD;
    fd = socket(address->family, address->socktype | SOCK_CLOEXEC, address->protocol);
    w->no_socket = fd < 0;
    return fd < 0 ? CURL_SOCKET_BAD : fd;
}

static bool add_header(struct webhook *w, const char *line)
{
    struct curl_slist *longer = curl_slist_append(w->headers, line);

    if (longer == NULL)
        return false;
    w->headers = longer;
    return true;
}

static bool add_headers(struct webhook *w, const struct webhook_target *target)
{
    char signature[SIGNATURE_HEX_LEN], line[128];

    signature_webhook(target->secret, target->body, signature);
    snprintf(line, sizeof(line), "Rebuno-Signature: sha256=%.*s", SIGNATURE_HEX_LEN, signature);
    return add_header(w, "Content-Type: application/json") && add_header(w, line) &&
           add_header(w, "User-Agent: rebuno") && add_header(w, "Expect:");
}

bool webhook_begin(struct webhook *w, CURLM *multi, const struct webhook_target *target,
                   void *owner)
{
    CURL *easy = curl_easy_init();

    *w = (struct webhook){.easy = easy, .private_ranges = target->private_ranges};
    if (easy == NULL || !add_headers(w, target))
        return false;
    curl_easy_setopt(easy, CURLOPT_URL, target->url.p);
    curl_easy_setopt(easy, CURLOPT_PROTOCOLS_STR, "http,https");
    curl_easy_setopt(easy, CURLOPT_FOLLOWLOCATION, 0L);
    curl_easy_setopt(easy, CURLOPT_PROXY, "");
    curl_easy_setopt(easy, CURLOPT_NOSIGNAL, 1L);
    curl_easy_setopt(easy, CURLOPT_HTTP_VERSION, (long)CURL_HTTP_VERSION_1_1);
    curl_easy_setopt(easy, CURLOPT_MAXAGE_CONN, (long)IDLE_CONNECTION_S);
    curl_easy_setopt(easy, CURLOPT_TIMEOUT_MS, (long)(target->timeout_us / US_PER_MS));
    curl_easy_setopt(easy, CURLOPT_POSTFIELDSIZE, (long)target->body.n);
    curl_easy_setopt(easy, CURLOPT_POSTFIELDS, target->body.p);
    curl_easy_setopt(easy, CURLOPT_HTTPHEADER, w->headers);
    curl_easy_setopt(easy, CURLOPT_HEADERFUNCTION, on_head);
    curl_easy_setopt(easy, CURLOPT_HEADERDATA, w);
    curl_easy_setopt(easy, CURLOPT_WRITEFUNCTION, on_body);
    curl_easy_setopt(easy, CURLOPT_OPENSOCKETFUNCTION, on_socket);
    curl_easy_setopt(easy, CURLOPT_OPENSOCKETDATA, w);
    curl_easy_setopt(easy, CURLOPT_PRIVATE, owner);
    return curl_multi_add_handle(multi, easy) == CURLM_OK;
}

void webhook_free(struct webhook *w, CURLM *multi)
{
    if (w->easy != NULL) {
        curl_multi_remove_handle(multi, w->easy); /* harmless when it was never added */
        curl_easy_cleanup(w->easy);
    }
    curl_slist_free_all(w->headers);
    w->easy = NULL;
    w->headers = NULL;
}
