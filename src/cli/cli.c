/* SPDX-License-Identifier: Apache-2.0
 * How commands speak. */
#include "cli/cli.h"

#include <stdarg.h>
#include <stdlib.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "cli/commands.h"
#include "cli/text.h"

static bool wants_colour(FILE *f)
{
    const char *no_color = getenv("NO_COLOR"), *term = getenv("TERM");

    if (no_color != NULL && no_color[0] != '\0')
        return false;
    return isatty(fileno(f)) == 1 && (term == NULL || strcmp(term, "dumb") != 0);
}

void cli_look_at_terminal(struct cli *c)
{
    struct winsize size = {0};

    c->out_colour = wants_colour(c->out);
    c->err_colour = wants_colour(c->err);
    c->err_terminal = isatty(fileno(c->err)) == 1;
    c->width = 0;
    if (isatty(fileno(c->out)) == 1)
        c->width =
            ioctl(fileno(c->out), TIOCGWINSZ, &size) == 0 && size.ws_col > 0 ? size.ws_col : 80;
}

const char *paint_begin(bool colour, enum paint paint)
{
    static const char *const escapes[] = {
        [PAINT_NONE] = "",         [PAINT_BOLD] = "\x1b[1m", [PAINT_DIM] = "\x1b[2m",
        [PAINT_GOOD] = "\x1b[32m", [PAINT_BAD] = "\x1b[31m", [PAINT_BUSY] = "\x1b[33m",
    };

    return colour ? escapes[paint] : "";
}

const char *paint_end(bool colour, enum paint paint)
{
    return colour && paint != PAINT_NONE ? "\x1b[0m" : "";
}

void cli_put(struct cli *c, enum paint paint, struct str text)
{
    struct buf clean = {0};

    text_clean(&clean, text, TEXT_LINES);
    fputs(paint_begin(c->out_colour, paint), c->out);
    fwrite(buf_str(&clean).p, 1, clean.n, c->out);
    fputs(paint_end(c->out_colour, paint), c->out);
    buf_free(&clean);
}

bool cli_json(const struct cli *c)
{
    return args_get(&c->args, "json") != NULL;
}

const char *cli_flag(const struct cli *c, const char *name)
{
    return args_get(&c->args, name);
}

struct str cli_arg(const struct cli *c, size_t i)
{
    return i < c->args.n_positional ? str_of(c->args.positional[i]) : STR_NONE;
}

int cli_fail(struct cli *c, const struct err *e)
{
    struct buf clean = {0};

    fflush(c->out); /* in order, when both go to one place */
    text_clean(&clean, str_of(e->message), TEXT_LINES);
    fprintf(c->err, "%serror:%s %.*s\n", paint_begin(c->err_colour, PAINT_BAD),
            paint_end(c->err_colour, PAINT_BAD), STR_ARG(buf_str(&clean)));
    buf_free(&clean);
    return EXIT_FAILED;
}

int cli_fail_usage(struct cli *c, const struct err *e)
{
    cli_fail(c, e);
    if (c->command != NULL)
        fprintf(c->err, "see 'rebuno %s --help'\n", c->command->name);
    else
        fputs("see 'rebuno help'\n", c->err);
    return EXIT_USAGE;
}

/* A line on err; one that begins with nothing is a remark. */
PRINTF_LIKE(3, 0)
static void tell(struct cli *c, const char *begin, const char *fmt, va_list args)
{
    char text[ERR_MESSAGE_MAX];
    struct buf clean = {0};
    bool remark = begin[0] == '\0';
    enum paint first = remark ? PAINT_NONE : PAINT_BUSY, rest = remark ? PAINT_DIM : PAINT_NONE;

    vsnprintf(text, sizeof text, fmt, args);
    fflush(c->out);
    text_clean(&clean, str_of(text), TEXT_LINES);
    fprintf(c->err, "%s%s%s%s%.*s%s\n", paint_begin(c->err_colour, first), begin,
            paint_end(c->err_colour, first), paint_begin(c->err_colour, rest),
            STR_ARG(buf_str(&clean)), paint_end(c->err_colour, rest));
    fflush(c->err);
    buf_free(&clean);
}

void cli_remark(struct cli *c, const char *fmt, ...)
{
    va_list args;

    va_start(args, fmt);
    tell(c, "", fmt, args);
    va_end(args);
}

void cli_warn(struct cli *c, const char *fmt, ...)
{
    va_list args;

    va_start(args, fmt);
    tell(c, "warning: ", fmt, args);
    va_end(args);
}

void cli_line(struct cli *c, struct str bytes)
{
    if (bytes.n > 0)
        fwrite(bytes.p, 1, bytes.n, c->out);
    fputc('\n', c->out);
}
