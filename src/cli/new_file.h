/* SPDX-License-Identifier: Apache-2.0
 * A file that appears whole or not at all: written aside, in the same folder, and renamed. */
#ifndef CLI_NEW_FILE_H
#define CLI_NEW_FILE_H

#include <stdio.h>

#include "base/err.h"

struct new_file; /* one at a time in a process */

/* NULL: it could not be made. What stands under the name stays until the end, and must be a regular
 * file. An interrupt removes what was written aside. */
struct new_file *new_file_open(const char *path, struct err *e);
FILE *new_file_stream(const struct new_file *f);
/* Gives it its name, if `keep` and all of it was written; else removes it. Frees it. False: it is
 * not there, and `e` says why if it was to be kept. */
MUST_USE bool new_file_close(struct new_file *f, bool keep, struct err *e);

#endif
