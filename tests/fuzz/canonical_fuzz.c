/* SPDX-License-Identifier: Apache-2.0
 * Canonical JSON against a plain second implementation; and it is valid, and its own canonical
 * form. */
#include "domain/identity.h"

#include <stdio.h>
#include <stdlib.h>

#include "support/naive_json.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#define MUST(expr)                                                                                 \
    do {                                                                                           \
        if (!(expr)) {                                                                             \
            fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #expr);                             \
            abort();                                                                               \
        }                                                                                          \
    } while (0)

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct str text = str_make(data, size);
    struct buf got = {0}, want = {0}, again = {0};
    struct hash h, direct;
    struct err e;

    enum naive_verdict verdict = naive_canonical(text, &want);
    bool ok = canonical_json(text, &got, &e);
    MUST(ok == (verdict == NAIVE_OK));
    MUST(ok || e.code == ERR_VALIDATION);
    MUST(ok == args_hash(text, &h, &e));
    if (ok) {
        MUST(str_eq(buf_str(&got), buf_str(&want)));
        MUST(json_check(buf_str(&got), &e));
        MUST(canonical_json(buf_str(&got), &again, &e));
        MUST(str_eq(buf_str(&again), buf_str(&got)));
        hash_sha256(buf_str(&got), &direct);
        MUST(hash_eq(&h, &direct));
    }
    buf_free(&got);
    buf_free(&want);
    buf_free(&again);
    return 0;
}
