/* SPDX-License-Identifier: Apache-2.0
 * The one argument parser of all commands, driven by a table of flags: `--flag value`,
 * `--flag=value`, switches, and positional arguments anywhere between them. `--` ends the flags;
 * `-` and negative numbers are positional. Knows no command. */
#ifndef CLI_ARGS_H
#define CLI_ARGS_H

#include "base/err.h"
#include "base/suggest.h"

struct arg_flag {
    const char *name;  /* without the dashes */
    const char *value; /* what the help calls its value; NULL: a switch */
    const char *help;
};

enum { ARGS_MAX_FLAGS = 32 };

struct args {
    const struct arg_flag *flags; /* borrowed */
    size_t n_flags;
    char *value[ARGS_MAX_FLAGS]; /* by index of the table, pointing into argv; NULL: not given; a
                                    switch: "" */
    char **positional;           /* owned, the strings are argv's */
    size_t n_positional;
    bool help; /* --help or -h was there */
};

/* argv is left as it is. Errors name the flag: unknown (with a suggestion), given twice, without a
 * value, or a switch with one. After --help nothing else is an error. */
MUST_USE bool args_parse(const struct arg_flag *flags, size_t n, int argc, char **argv,
                         struct args *out, struct err *e);
void args_free(struct args *args);

/* The value of a flag of the table, NULL when it was not given. A name that is not in the table is
 * a bug. */
char *args_get(const struct args *args, const char *name);

#endif
