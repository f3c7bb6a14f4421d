/* SPDX-License-Identifier: Apache-2.0
 * What every command is given, and how commands speak: data on `out`, errors and remarks on `err`,
 * colour where a terminal reads. */
#ifndef CLI_CLI_H
#define CLI_CLI_H

#include <stdio.h>

#include "base/buf.h"
#include "cli/args.h"

enum exit_code { EXIT_OK = 0, EXIT_FAILED = 1, EXIT_USAGE = 2, EXIT_INTERRUPTED = 130 };

struct command;

struct cli {
    const struct command *command;
    int argc; /* what follows the command */
    char **argv;
    struct args args;
    FILE *out, *err;
    bool out_colour, err_colour;
    bool err_terminal; /* also without colour */
    size_t width;      /* of the terminal behind `out`; 0: none, so cut nothing */
};

enum paint { PAINT_NONE, PAINT_BOLD, PAINT_DIM, PAINT_GOOD, PAINT_BAD, PAINT_BUSY };

/* Finds out what stands behind out and err. NO_COLOR and TERM=dumb turn colour off. */
void cli_look_at_terminal(struct cli *c);
/* The escape that begins a colour, or ends all; "" without colour. Static. */
const char *paint_begin(bool colour, enum paint paint);
const char *paint_end(bool colour, enum paint paint);
/* Writes text from elsewhere to `out`: cleaned, painted. */
void cli_put(struct cli *c, enum paint paint, struct str text);

bool cli_json(const struct cli *c);                       /* --json was given */
const char *cli_flag(const struct cli *c, const char *n); /* its value, NULL when not given */
struct str cli_arg(const struct cli *c, size_t i);        /* STR_NONE when not given */

/* `error: …` on err, cleaned. Returns EXIT_FAILED. */
int cli_fail(struct cli *c, const struct err *e);
/* The same and a pointer to the command's help. Returns EXIT_USAGE. */
int cli_fail_usage(struct cli *c, const struct err *e);
/* A remark on err, for people only. */
void cli_remark(struct cli *c, const char *fmt, ...) PRINTF_LIKE(2, 3);
/* `warning: …` on err: it was done, and there is something to know. */
void cli_warn(struct cli *c, const char *fmt, ...) PRINTF_LIKE(2, 3);
/* Writes bytes and a line feed to `out`. */
void cli_line(struct cli *c, struct str bytes);

#endif
