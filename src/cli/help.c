/* SPDX-License-Identifier: Apache-2.0
 * Help texts. Everything a text says of flags and defaults comes from the tables. */
#include "cli/help.h"

#include "cli/settings.h"

enum { COLUMN = 26, ENV_COLUMN = 32, INDENT = 2, WIDTH = 80 };

/* Bytes of the next line of a text, which breaks at a blank if it can. */
static size_t line_length(const char *text, size_t columns)
{
    size_t n = strlen(text);

    if (n <= columns)
        return n;
    for (size_t i = columns; i > 0; i--) {
        if (text[i] == ' ')
            return i;
    }
    return strcspn(text, " ");
}

static void add_row_at(FILE *out, int column, const char *left, const char *text)
{
    bool beside = (int)strlen(left) < column;
    int margin = INDENT + column;

    fprintf(out, "%*s%-*s", INDENT, "", beside ? column : 0, left);
    if (!beside)
        fprintf(out, "\n%*s", margin, "");
    for (;;) {
        size_t n = line_length(text, (size_t)(WIDTH - margin));

        fprintf(out, "%.*s\n", (int)n, text);
        text += n;
        text += strspn(text, " ");
        if (*text == '\0')
            return;
        fprintf(out, "%*s", margin, "");
    }
}

static void add_row(FILE *out, const char *left, const char *text)
{
    add_row_at(out, COLUMN, left, text);
}

static void add_command_rows(FILE *out, const char *group)
{
    size_t n = 0, group_n = strlen(group);
    const struct command *table = commands_table(&n);

    for (size_t i = 0; i < n; i++) {
        const char *name = table[i].name;
        bool in_group = group_n == 0 ? strchr(name, ' ') == NULL
                                     : strncmp(name, group, group_n) == 0 && name[group_n] == ' ';
        char left[80];

        if (!in_group)
            continue;
        snprintf(left, sizeof left, "%s%s%s", name, table[i].synopsis[0] == '\0' ? "" : " ",
                 table[i].synopsis);
        add_row(out, left, table[i].summary);
    }
}

void help_overview(FILE *out)
{
    fputs("rebuno " REBUNO_VERSION ": durable execution for AI agents\n\n"
          "usage: rebuno COMMAND [ARGUMENTS]\n\n",
          out);
    add_command_rows(out, "");
    for (const struct command_group *g = COMMAND_GROUPS; g->word != NULL; g++) {
        fprintf(out, "\n%s\n", g->heading);
        add_command_rows(out, g->word);
    }
    fputs("\nenvironment\n", out);
    add_row(out, "REBUNO_URL", "the kernel to talk to (else http://localhost:8080)");
    add_row(out, "REBUNO_API_KEY", "the token or key that they send");
    add_row(out, "NO_COLOR", "set: no colours");
    fputs("\n'rebuno COMMAND --help' tells more. Exit codes: 0 done, 1 failed, 2 wrong usage.\n",
          out);
}

void help_group(FILE *out, const char *group)
{
    fprintf(out, "usage: rebuno %s COMMAND [ARGUMENTS]\n\n", group);
    add_command_rows(out, group);
    fprintf(out, "\n'rebuno %s COMMAND --help' tells more.\n", group);
}

/* "default 30s", "required"; "" when there is nothing to say. */
static void default_text(const struct setting *s, bool dev, char *out, size_t size)
{
    const char *text = s->fallback_text != NULL ? s->fallback_text : s->fallback;

    if (dev && (s->fallback_text_dev != NULL || s->fallback_dev != NULL))
        text = s->fallback_text_dev != NULL ? s->fallback_text_dev : s->fallback_dev;
    bool is_word = text == NULL || strcmp(text, "required") == 0;
    snprintf(out, size, "%s%s", is_word ? "" : "default ", text == NULL ? "" : text);
}

static void add_setting_row(FILE *out, const struct setting *s, bool dev)
{
    char left[80], fallback[96], text[256];
    const char *env = s->flag != NULL && s->env != NULL ? s->env : "";

    default_text(s, dev, fallback, sizeof fallback);
    bool notes = env[0] != '\0' || fallback[0] != '\0';
    snprintf(text, sizeof text, "%s%s%s%s%s%s", s->help, notes ? " (" : "", env,
             env[0] != '\0' && fallback[0] != '\0' ? "; " : "", fallback, notes ? ")" : "");
    if (s->flag == NULL)
        snprintf(left, sizeof left, "%s", s->env);
    else
        snprintf(left, sizeof left, "--%s%s%s", s->flag, s->value == NULL ? "" : " ",
                 s->value == NULL ? "" : s->value);
    add_row_at(out, s->flag == NULL ? ENV_COLUMN : COLUMN, left, text);
}

static void add_settings(FILE *out, bool dev, bool with_flag)
{
    size_t n = 0;
    const struct setting *table = settings_table(&n);

    for (size_t i = 0; i < n; i++) {
        if ((table[i].modes & (dev ? SETTING_IN_DEV : SETTING_IN_SERVER)) != 0 &&
            (table[i].flag != NULL) == with_flag)
            add_setting_row(out, &table[i], dev);
    }
}

static void add_kernel_flags(FILE *out, bool dev)
{
    fputs("\nflags (a flag wins over its variable)\n", out);
    add_settings(out, dev, true);
    fputs("\nenvironment\n", out);
    add_settings(out, dev, false);
}

static void add_flags(FILE *out, const struct command *cmd)
{
    char left[80];

    if (cmd->n_flags > 0)
        fputs("\nflags\n", out);
    for (size_t i = 0; i < cmd->n_flags; i++) {
        const struct arg_flag *f = &cmd->flags[i];

        snprintf(left, sizeof left, "--%s%s%s", f->name, f->value == NULL ? "" : " ",
                 f->value == NULL ? "" : f->value);
        add_row(out, left, f->help);
    }
}

void help_command(FILE *out, const struct command *cmd)
{
    fprintf(out, "usage: rebuno %s%s%s%s\n\n%s", cmd->name, cmd->synopsis[0] == '\0' ? "" : " ",
            cmd->synopsis, cmd->flags == NULL || cmd->n_flags > 0 ? " [FLAGS]" : "", cmd->text);
    if (cmd->flags == NULL)
        add_kernel_flags(out, strcmp(cmd->name, "dev") == 0);
    else
        add_flags(out, cmd);
}
