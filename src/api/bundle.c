/* SPDX-License-Identifier: Apache-2.0
 * Compiling one may take long, so it happens aside. */
#include "api/bundle.h"

#include "api/hub.h"
#include "base/json.h"

bool bundle_decode(struct bundle_text *b, struct arena *a, struct err *e)
{
    if (!str_present(b->raw))
        return true;
    b->yaml = json_string(b->raw, a);
    return str_present(b->yaml) || err_set(e, ERR_INTERNAL, "out of memory for a bundle");
}

struct bundle_setting {
    struct bundle_text text;
    struct str *yaml;  /* where it is wanted, */
    struct hash *hash; /* like this */
    void (*then)(struct request *rq);
};

/* The cache first: the executor that finds the new hash in the agent's row then finds the bundle.
 */
static bool compile(struct request *rq, struct bundle_setting *s, struct err *e)
{
    struct policy *p;

    if (!bundle_decode(&s->text, rq->arena, e))
        return false;
    p = policy_compile(s->text.yaml, "", e);
    if (p == NULL)
        return false;
    *s->yaml = s->text.yaml;
    *s->hash = *policy_hash(p);
    policy_cache_put(engine_policies(rq->api->engine), s->hash, p);
    policy_unref(p);
    return true;
}

/* Needs no reader: a store that is away is the write's affair, which waits for it. */
static void compile_and_go_on(struct read_job *job, struct store_reader *r, const struct err *why)
{
    struct request *rq = request_of_job(job);
    struct bundle_setting *s = rq->bundle;
    struct err e;

    (void)r;
    (void)why;
    if (hub_is_draining(rq->api->hub) && http_is_gone(rq->x)) /* the kernel's end waits for us */
        request_refuse(rq, ERR_UNAVAILABLE, "the kernel is stopping");
    else if (compile(rq, s, &e))
        s->then(rq);
    else
        request_reply_error(rq, &e);
}

void bundle_compile(struct request *rq, struct str raw, struct str *yaml, struct hash *hash,
                    void (*then)(struct request *rq))
{
    struct bundle_setting *s = arena_new(rq->arena, struct bundle_setting);

    *s = (struct bundle_setting){.text.raw = raw, .yaml = yaml, .hash = hash, .then = then};
    rq->bundle = s;
    rq->job.run = compile_and_go_on;
    readers_push(rq->api->aside, &rq->job);
}

static void submit(struct request *rq)
{
    request_submit(rq, rq->answer);
}

void bundle_submit(struct request *rq, struct str raw, struct str *yaml, struct hash *hash,
                   void (*answer)(struct request *rq))
{
    rq->cmd->bytes += raw.n;
    rq->answer = answer;
    bundle_compile(rq, raw, yaml, hash, submit);
}
