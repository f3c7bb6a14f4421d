/* SPDX-License-Identifier: Apache-2.0
 * The requests of clients and agents, as text. */
#include <stdio.h>

#include "base/clock.h"
#include "domain/signature.h"
#include "lib/fleet.h"

static const struct str SECRET = STR_INIT(BENCH_SECRET);

static void add_common(const struct fleet *f, struct buf *out, size_t length)
{
    buf_add(out, STR(" HTTP/1.1\r\nHost: 127.0.0.1:"));
    buf_add_int(out, f->opt.port);
    buf_add(out, STR("\r\nAccept: */*\r\nUser-Agent: rebuno-bench\r\nConnection: keep-alive\r\n"
                     "Content-Type: application/json\r\nContent-Length: "));
    buf_add_int(out, (int64_t)length);
}

void request_bearer(const struct fleet *f, struct buf *out, const char *method_and_target,
                    struct str body)
{
    buf_clear(out);
    buf_add_z(out, method_and_target);
    add_common(f, out, body.n);
    buf_add(out, STR("\r\nAuthorization: Bearer "));
    buf_add_z(out, f->opt.token);
    buf_add(out, STR("\r\n\r\n"));
    buf_add(out, body);
}

static struct str timestamp_write(char text[24])
{
    int n = snprintf(text, 24, "%lld", (long long)(clock_wall_us() / US_PER_S));

    return str_make(text, (size_t)n);
}

void request_agent(const struct fleet *f, struct buf *out, const struct agent_request *req)
{
    static const struct str POST = STR_INIT("POST ");
    char mac[SIGNATURE_HEX_LEN], stamp[24];
    const struct run *run = req->run;

    buf_clear(out);
    buf_add(out, POST);
    buf_add(out, STR("/v0/executions/"));
    buf_add(out, str_make(run->id, sizeof run->id));
    buf_add(out, req->action);
    size_t target_end = out->n;
    add_common(f, out, req->body.n);
    struct signed_request sign = {
        .method = STR("POST"),
        .target = str_make(out->p + POST.n, target_end - POST.n),
        .timestamp = timestamp_write(stamp),
        .dispatch_id = buf_str(&run->dispatch_id),
        .attempt = str_of(run->attempt_text),
        .body = req->body,
    };
    signature_request(SECRET, &sign, mac);
    buf_add(out, STR("\r\nRebuno-Agent-Id: "));
    buf_add_z(out, f->opt.agent);
    buf_add(out, STR("\r\nRebuno-Timestamp: "));
    buf_add(out, sign.timestamp);
    buf_add(out, STR("\r\nRebuno-Dispatch-Id: "));
    buf_add(out, sign.dispatch_id);
    buf_add(out, STR("\r\nRebuno-Dispatch-Attempt: "));
    buf_add(out, sign.attempt);
    if (str_present(req->key)) {
        buf_add(out, STR("\r\nIdempotency-Key: "));
        buf_add(out, req->key);
    }
    buf_add(out, STR("\r\nRebuno-Signature: v1="));
    buf_add(out, str_make(mac, sizeof mac));
    buf_add(out, STR("\r\n\r\n"));
    buf_add(out, req->body);
}

struct str answer_field(struct str body, const char *quoted_name)
{
    size_t n = strlen(quoted_name);
    const char *end = body.p + body.n, *at = memmem(body.p, body.n, quoted_name, n);

    if (at == NULL)
        return STR_NONE;
    const char *from = at + n;
    while (from < end && (*from == ':' || *from == ' '))
        from++;
    if (from == end || *from != '"')
        return STR_NONE;
    const char *to = memchr(from + 1, '"', (size_t)(end - from - 1));
    return to == NULL ? STR_NONE : str_make(from + 1, (size_t)(to - from - 1));
}
