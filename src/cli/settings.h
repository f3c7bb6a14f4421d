/* SPDX-License-Identifier: Apache-2.0
 * The table behind config_load, for those who describe it: the help, and the check of the
 * documentation. */
#ifndef CLI_SETTINGS_H
#define CLI_SETTINGS_H

#include "cli/args.h"

enum setting_kind {
    SETTING_TEXT,
    SETTING_SECRET, /* text without white space, never repeated in a message, scrubbed from the
                       process title */
    SETTING_ADDRESS,
    SETTING_DB_URL, /* may hold a password: scrubbed as well */
    SETTING_HTTP_URL,
    SETTING_COUNT,
    SETTING_DURATION,
    SETTING_DURATION_OR_NONE, /* "none" and 0 are zero */
    SETTING_LOG_LEVEL,
    SETTING_LOG_FORMAT,
    SETTING_ON_OFF,
    SETTING_SWITCH,
};

enum { SETTING_IN_SERVER = 1, SETTING_IN_DEV = 2, SETTING_IN_BOTH = 3 };

struct setting {
    const char *flag;  /* NULL: only the environment */
    const char *env;   /* NULL: only the flag */
    const char *value; /* what the help calls it */
    enum setting_kind kind;
    unsigned modes;
    size_t offset;             /* in struct config */
    int64_t min, max;          /* of a count */
    const char *fallback;      /* as it would be written; NULL: none */
    const char *fallback_dev;  /* NULL: the same */
    const char *fallback_text; /* the help's words where the value does not say it */
    const char *fallback_text_dev;
    const char *help;
};

const struct setting *settings_table(size_t *n);
/* The flags of `rebuno dev` or `rebuno server`; static. */
const struct arg_flag *settings_flags(bool dev, size_t *n);

#endif
