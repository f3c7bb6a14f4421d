/* SPDX-License-Identifier: Apache-2.0
 * "Did you mean": by what a word means elsewhere, then by how it is spelled. */
#include "cli/meant.h"

#include "cli/commands.h"

/* What other programs call these commands. Said without a group, the first that fits is meant. */
static const struct {
    const char *said, *group, *command;
} OTHER_WORDS[] = {
    {"run", "exec", "create"},      {"list", "exec", "ls"},
    {"ps", "exec", "ls"},           {"ls", "exec", "ls"},
    {"list", "agent", "ls"},        {"list", "approval", "ls"},
    {"get", "exec", "get"},         {"show", "exec", "get"},
    {"show", "agent", "get"},       {"show", "approval", "get"},
    {"logs", "exec", "events"},     {"log", "exec", "events"},
    {"stop", "exec", "cancel"},     {"kill", "exec", "cancel"},
    {"register", "agent", "add"},   {"create", "exec", "create"},
    {"create", "agent", "add"},     {"delete", "agent", "rm"},
    {"remove", "agent", "rm"},      {"approve", "approval", "grant"},
    {"reject", "approval", "deny"}, {"refuse", "approval", "deny"},
};

enum { WORDS_MAX = 64 };

/* By what the word means elsewhere, or as a command that goes without its group here. */
static bool meant_by_word(const char *group, const char *word, char name[MEANT_MAX])
{
    size_t n = 0;
    const struct command *table = commands_table(&n);

    for (size_t i = 0; i < COUNT(OTHER_WORDS); i++) {
        if (strcmp(OTHER_WORDS[i].said, word) == 0 &&
            (group[0] == '\0' || strcmp(OTHER_WORDS[i].group, group) == 0)) {
            snprintf(name, MEANT_MAX, "%s %s", OTHER_WORDS[i].group, OTHER_WORDS[i].command);
            return true;
        }
    }
    for (size_t i = 0; group[0] == '\0' && i < n; i++) {
        const char *space = strchr(table[i].name, ' ');

        if (space != NULL && strcmp(space + 1, word) == 0) {
            snprintf(name, MEANT_MAX, "%s", table[i].name);
            return true;
        }
    }
    return false;
}

/* By how it is spelled. `next` is the word behind it, or NULL: of a group's mistyped name the whole
 * command is named. */
static bool meant_by_spelling(const char *group, const char *word, const char *next,
                              char name[MEANT_MAX])
{
    const char *words[WORDS_MAX];
    size_t n = command_words(group, words, WORDS_MAX);

    for (size_t i = 0; group[0] == '\0' && COMMAND_GROUPS[i].word != NULL && n < WORDS_MAX; i++)
        words[n++] = COMMAND_GROUPS[i].word;
    const char *meant = suggest(word, words, n);
    if (meant == NULL)
        return false;
    snprintf(name, MEANT_MAX, "%s%s%s", group, group[0] == '\0' ? "" : " ", meant);
    if (next == NULL || !command_is_group(name))
        return true;
    if (meant_by_word(meant, next, name))
        return true;
    n = command_words(meant, words, WORDS_MAX);
    const char *second = suggest(next, words, n);
    if (second != NULL)
        snprintf(name, MEANT_MAX, "%s %s", meant, second);
    return true;
}

bool meant_command(const char *group, const char *word, const char *next, char name[MEANT_MAX])
{
    return meant_by_word(group, word, name) || meant_by_spelling(group, word, next, name);
}
