/* SPDX-License-Identifier: Apache-2.0
 * Any bytes as a manifest: it is read or refused with a message, and what was read keeps the
 * manifest's promises. */
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "cli/manifest.h"

int LLVMFuzzerInitialize(int *argc, char ***argv);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

static char path[] = "/tmp/rebuno-manifest-fuzz-XXXXXX";

static void remove_file(void)
{
    unlink(path);
}

int LLVMFuzzerInitialize(int *argc, char ***argv)
{
    (void)argc, (void)argv;
    int fd = mkstemp(path);
    ASSERT(fd >= 0);
    close(fd);
    atexit(remove_file);
    setenv("FUZZ", "${FUZZ}", 1);
    return 0;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    struct arena a = {0};
    struct manifest m = {0};
    struct err e = {0};
    FILE *f = fopen(path, "wb");

    ASSERT(f != NULL);
    fwrite(data, 1, n, f);
    fclose(f);
    if (!manifest_load(path, &a, &m, &e)) {
        ASSERT(e.code == ERR_VALIDATION && e.message[0] != '\0');
        ASSERT(str_is_utf8(str_of(e.message)) && !str_has_control(str_of(e.message)));
    } else {
        for (size_t i = 0; i < m.n; i++) {
            const struct manifest_agent *agent = &m.agents[i];

            ASSERT(agent->id.n > 0 && agent->webhook_url.n > 0 && agent->secret.n > 0);
            ASSERT(str_is_utf8(agent->id) && str_is_utf8(agent->secret));
            ASSERT(agent->lease_timeout_seconds >= 0);
        }
    }
    arena_free(&a);
    return 0;
}
