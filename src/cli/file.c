/* SPDX-License-Identifier: Apache-2.0
 * Reading whole files. */
#include "cli/file.h"

#include <errno.h>

bool file_read_stream(FILE *f, const char *name, struct buf *out, struct err *e)
{
    char chunk[16 * 1024];
    size_t n;

    while ((n = fread(chunk, 1, sizeof chunk, f)) > 0) {
        buf_add(out, str_make(chunk, n));
        if (out->failed)
            return err_set(e, ERR_VALIDATION, "%s is too large (over %zu bytes)", name, out->max);
    }
    if (ferror(f))
        return err_set(e, ERR_VALIDATION, "cannot read %s: %s", name, strerror(errno));
    return true;
}

bool file_read(const char *path, struct buf *out, struct err *e)
{
    FILE *f = fopen(path, "re");

    if (f == NULL)
        return err_set(e, ERR_VALIDATION, "cannot read %s: %s", path, strerror(errno));
    bool ok = file_read_stream(f, path, out, e);
    fclose(f);
    return ok;
}
