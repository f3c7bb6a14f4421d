/* SPDX-License-Identifier: Apache-2.0
 * Argument parsing by table, and suggestions for words that were mistyped. */
#include "cli/args.h"

#include <stdio.h>
#include <stdlib.h>

#include "base/arena.h"

static size_t min_size(size_t a, size_t b)
{
    return a < b ? a : b;
}

/* The only flag that begins with the letter of "-l"; NULL: none or several do. */
static const char *flag_of_letter(const struct args *args, const char *given)
{
    const char *found = NULL;

    if (given[0] != '-' || given[1] == '\0' || given[1] == '-' || given[2] != '\0')
        return NULL;
    for (size_t i = 0; i < args->n_flags; i++) {
        if (args->flags[i].name[0] != given[1])
            continue;
        if (found != NULL)
            return NULL;
        found = args->flags[i].name;
    }
    return found;
}

static bool unknown_flag(const struct args *args, const char *given, struct err *e)
{
    const char *names[ARGS_MAX_FLAGS];
    char word[SUGGEST_MAX_WORD + 1];
    size_t n = strcspn(given, "=");

    for (size_t i = 0; i < args->n_flags; i++)
        names[i] = args->flags[i].name;
    snprintf(word, sizeof word, "%.*s", (int)min_size(n, SUGGEST_MAX_WORD), given);
    const char *meant = flag_of_letter(args, given);
    if (meant == NULL)
        meant = suggest(word + strspn(word, "-"), names, args->n_flags);
    if (meant != NULL)
        return err_set(e, ERR_VALIDATION, "unknown flag %s; did you mean --%s?", word, meant);
    return err_set(e, ERR_VALIDATION, "unknown flag %s", word);
}

static bool find_flag(const struct args *args, const char *name, size_t n, size_t *index)
{
    for (size_t i = 0; i < args->n_flags; i++) {
        if (strlen(args->flags[i].name) == n && memcmp(args->flags[i].name, name, n) == 0) {
            *index = i;
            return true;
        }
    }
    return false;
}

/* Takes the flag at argv[*at]; *at is left on the last argument that belongs to it. */
static bool take_flag(struct args *args, int argc, char **argv, int *at, struct err *e)
{
    char *name = argv[*at] + 2;
    size_t name_n = strcspn(name, "="), index = 0;
    char *inline_value = name[name_n] == '=' ? name + name_n + 1 : NULL;

    if (!find_flag(args, name, name_n, &index))
        return unknown_flag(args, argv[*at], e);
    const struct arg_flag *flag = &args->flags[index];
    if (args->value[index] != NULL)
        return err_set(e, ERR_VALIDATION, "--%s is given twice", flag->name);
    if (flag->value == NULL) {
        if (inline_value != NULL)
            return err_set(e, ERR_VALIDATION, "--%s takes no value", flag->name);
        args->value[index] = name + name_n; /* the empty string at its end */
        return true;
    }
    if (inline_value != NULL) {
        args->value[index] = inline_value;
        return true;
    }
    if (*at + 1 >= argc || strncmp(argv[*at + 1], "--", 2) == 0)
        return err_set(e, ERR_VALIDATION, "--%s needs a value: --%s %s", flag->name, flag->name,
                       flag->value);
    args->value[index] = argv[++*at];
    return true;
}

static bool is_positional(const char *arg)
{
    if (arg[0] != '-' || arg[1] == '\0')
        return true;
    return arg[1] >= '0' && arg[1] <= '9'; /* a negative number is JSON, not a flag */
}

static bool asks_for_help(int argc, char **argv)
{
    for (int i = 0; i < argc && strcmp(argv[i], "--") != 0; i++) {
        if (strcmp(argv[i], "--help") == 0 || strcmp(argv[i], "-h") == 0)
            return true;
    }
    return false;
}

bool args_parse(const struct arg_flag *flags, size_t n, int argc, char **argv, struct args *out,
                struct err *e)
{
    bool flags_ended = false;

    ASSERT(n <= ARGS_MAX_FLAGS);
    *out = (struct args){.flags = flags, .n_flags = n};
    out->help = asks_for_help(argc, argv);
    if (out->help || argc <= 0)
        return true;
    out->positional = xzalloc((size_t)argc * sizeof *out->positional);
    for (int i = 0; i < argc; i++) {
        if (flags_ended || is_positional(argv[i])) {
            out->positional[out->n_positional++] = argv[i];
        } else if (strcmp(argv[i], "--") == 0) {
            flags_ended = true;
        } else if (argv[i][1] != '-') {
            return unknown_flag(out, argv[i], e);
        } else if (!take_flag(out, argc, argv, &i, e)) {
            return false;
        }
    }
    return true;
}

void args_free(struct args *args)
{
    free(args->positional);
    args->positional = NULL;
    args->n_positional = 0;
}

char *args_get(const struct args *args, const char *name)
{
    size_t index = 0;
    bool known = find_flag(args, name, strlen(name), &index);

    ASSERT(known);
    return args->value[index];
}
