/* SPDX-License-Identifier: Apache-2.0
 * Reading whole files that the command line names. */
#ifndef CLI_FILE_H
#define CLI_FILE_H

#include <stdio.h>

#include "base/buf.h"
#include "base/err.h"

/* Appends the file's bytes; out->max bounds them. Errors name the path. */
MUST_USE bool file_read(const char *path, struct buf *out, struct err *e);
/* The same from an open stream; `name` is for the message. */
MUST_USE bool file_read_stream(FILE *f, const char *name, struct buf *out, struct err *e);

#endif
