/* SPDX-License-Identifier: Apache-2.0
 * SHA-256 and HMAC through EVP. HMAC (RFC 2104) is put together from two digests: EVP_MAC would
 * copy its contexts with several allocations a call, which costs more than hashing the two key
 * blocks anew. */
#include "base/digest.h"

#include <openssl/evp.h>
#include <pthread.h>

#include "base/err.h"

enum { BLOCK_LEN = 64, GATHER_LEN = 1024 };

static pthread_once_t setup_once = PTHREAD_ONCE_INIT;
static pthread_key_t context_key; /* frees a thread's context when the thread ends */
static EVP_MD *sha256;            /* fetched once, kept for the life of the process */
static _Thread_local EVP_MD_CTX *thread_context;

static void context_free(void *context)
{
    thread_context = NULL;
    EVP_MD_CTX_free(context);
}

static void setup(void)
{
    sha256 = EVP_MD_fetch(NULL, "SHA256", NULL);
    ASSERT(sha256 != NULL);
    ASSERT(pthread_key_create(&context_key, context_free) == 0);
}

static EVP_MD_CTX *context_get(void)
{
    if (thread_context == NULL) {
        pthread_once(&setup_once, setup);
        thread_context = EVP_MD_CTX_new();
        ASSERT(thread_context != NULL);
        ASSERT(EVP_DigestInit_ex(thread_context, sha256, NULL) == 1);
        ASSERT(pthread_setspecific(context_key, thread_context) == 0);
    }
    return thread_context;
}

/* A message on its way into the digest. Small parts are gathered, since a call into libcrypto costs
 * more than hashing a few bytes. */
struct message {
    EVP_MD_CTX *context;
    size_t n;
    char gathered[GATHER_LEN];
};

static void message_start(struct message *m)
{
    m->context = context_get();
    m->n = 0;
    ASSERT(EVP_DigestInit_ex(m->context, NULL, NULL) == 1);
}

static void message_add(struct message *m, struct str part)
{
    if (part.n > sizeof m->gathered - m->n) {
        ASSERT(EVP_DigestUpdate(m->context, m->gathered, m->n) == 1);
        m->n = 0;
        if (part.n > sizeof m->gathered) {
            ASSERT(EVP_DigestUpdate(m->context, part.p, part.n) == 1);
            return;
        }
    }
    if (part.n > 0)
        memcpy(m->gathered + m->n, part.p, part.n);
    m->n += part.n;
}

static void message_end(struct message *m, uint8_t out[DIGEST_LEN])
{
    if (m->n > 0)
        ASSERT(EVP_DigestUpdate(m->context, m->gathered, m->n) == 1);
    ASSERT(EVP_DigestFinal_ex(m->context, out, NULL) == 1);
}

void digest_sha256(const struct str *parts, size_t n, uint8_t out[DIGEST_LEN])
{
    struct message m;

    message_start(&m);
    for (size_t i = 0; i < n; i++)
        message_add(&m, parts[i]);
    message_end(&m, out);
}

void digest_hmac_sha256(struct str key, const struct str *parts, size_t n, uint8_t out[DIGEST_LEN])
{
    struct message m;
    uint8_t block[BLOCK_LEN] = {0}, pad[BLOCK_LEN], inner[DIGEST_LEN];

    if (key.n > BLOCK_LEN)
        digest_sha256(&key, 1, block);
    else if (key.n > 0)
        memcpy(block, key.p, key.n);
    for (size_t i = 0; i < BLOCK_LEN; i++)
        pad[i] = block[i] ^ 0x36;
    message_start(&m);
    message_add(&m, str_make(pad, sizeof pad));
    for (size_t i = 0; i < n; i++)
        message_add(&m, parts[i]);
    message_end(&m, inner);
    for (size_t i = 0; i < BLOCK_LEN; i++)
        pad[i] = block[i] ^ 0x5c;
    message_start(&m);
    message_add(&m, str_make(pad, sizeof pad));
    message_add(&m, str_make(inner, sizeof inner));
    message_end(&m, out);
}
