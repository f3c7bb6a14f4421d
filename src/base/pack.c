/* SPDX-License-Identifier: Apache-2.0 */
#include "base/pack.h"

#include <pthread.h>
#include <stdlib.h>
#include <zstd.h>

#include "base/err.h"

enum {
    LEVEL = 1,
    WORTH_A_TRY = 64, /* bytes: a frame's own take a part of what it saves */
};

static pthread_once_t setup_once = PTHREAD_ONCE_INIT;
static pthread_key_t packer_key, unpacker_key; /* free a thread's contexts when the thread ends */
static _Thread_local ZSTD_CCtx *packer;
static _Thread_local ZSTD_DCtx *unpacker;

static void free_packer(void *context)
{
    packer = NULL;
    ZSTD_freeCCtx(context);
}

static void free_unpacker(void *context)
{
    unpacker = NULL;
    ZSTD_freeDCtx(context);
}

static void setup(void)
{
    ASSERT(pthread_key_create(&packer_key, free_packer) == 0);
    ASSERT(pthread_key_create(&unpacker_key, free_unpacker) == 0);
}

struct str pack(struct str plain, struct arena *a)
{
    struct str packed = STR_NONE;
    char *to;
    size_t n;

    if (plain.n < WORTH_A_TRY)
        return STR_NONE;
    if (packer == NULL) {
        pthread_once(&setup_once, setup);
        packer = ZSTD_createCCtx();
        if (packer == NULL)
            return STR_NONE;
        ASSERT(pthread_setspecific(packer_key, packer) == 0);
    }
    to = malloc(plain.n);
    if (to == NULL)
        return STR_NONE;
    n = ZSTD_compressCCtx(packer, to, plain.n - 1, plain.p, plain.n, LEVEL);
    if (!ZSTD_isError(n))
        packed = arena_str(a, str_make(to, n));
    free(to);
    return packed;
}

bool unpack(struct str packed, char *to, size_t n)
{
    if (unpacker == NULL) {
        pthread_once(&setup_once, setup);
        unpacker = ZSTD_createDCtx();
        if (unpacker == NULL)
            return false;
        ASSERT(pthread_setspecific(unpacker_key, unpacker) == 0);
    }
    return ZSTD_decompressDCtx(unpacker, to, n, packed.p, packed.n) == n;
}
