/* SPDX-License-Identifier: Apache-2.0 */
#include "api/chunking.h"

#include "base/pack.h"
#include "base/seen.h"

struct seen_key {
    struct uuid execution_id;
    uint8_t hash[CHUNK_HASH];
};

static struct seen_key key_of(const struct request *rq, const struct content_chunk *chunk)
{
    struct seen_key key = {.execution_id = rq->execution_id};

    memcpy(key.hash, chunk->hash, sizeof(key.hash));
    return key;
}

void chunking_cut(struct request *rq, struct str payload)
{
    struct chunks *chunks;

    if (payload.n <= STORE_INLINE_MAX)
        return;
    chunks = chunks_cut(payload, rq->arena);
    rq->cmd->chunks = chunks;
    for (size_t i = 0; chunks != NULL && i < chunks->n; i++) {
        struct content_chunk *chunk = &chunks->at[i];
        struct seen_key key = key_of(rq, chunk);

        if (!seen_has(rq->api->stored, str_make(&key, sizeof(key))))
            chunk->packed = pack(chunk->bytes, rq->arena);
    }
}

/* A submission to which the answer is to come again has recorded nothing. */
static bool was_recorded(const struct command *cmd)
{
    return cmd->verdict == VERDICT_DONE &&
           (cmd->type == COMMAND_FINISH || cmd->out.step.has_step_id);
}

void chunking_stored(struct request *rq)
{
    const struct chunks *chunks = rq->cmd->chunks;

    if (chunks == NULL || !was_recorded(rq->cmd))
        return;
    for (size_t i = 0; i < chunks->n; i++) {
        struct seen_key key = key_of(rq, &chunks->at[i]);

        seen_add(rq->api->stored, str_make(&key, sizeof(key)));
    }
}
