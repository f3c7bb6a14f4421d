/* SPDX-License-Identifier: Apache-2.0
 * The one table of a kernel's settings, and how a flag, a variable or a default becomes a value. It
 * opens nothing but the token's file: whether an address or a database can be used is found out by
 * who uses it. */
#include "cli/config.h"

#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/arena.h"
#include "base/buf.h"
#include "base/clock.h"
#include "cli/file.h"
#include "cli/settings.h"
#include "engine/connections.h"

#define AT(member) offsetof(struct config, member)

static const char TOKEN_FILE_FLAG[] = "bearer-token-file";
enum { TOKEN_FILE_MAX = 64 * 1024, COUNT_MAX = 1000000 };

static const struct setting SETTINGS[] = {
    {.flag = "listen-addr",
     .env = "REBUNO_LISTEN_ADDR",
     .value = "ADDR",
     .kind = SETTING_ADDRESS,
     .modes = SETTING_IN_BOTH,
     .offset = AT(listen_addr),
     .fallback = ":8080",
     .fallback_dev = "127.0.0.1:8080",
     .help = "where to listen, host:port"},
    {.flag = "db-url",
     .env = "REBUNO_DB_URL",
     .value = "URL",
     .kind = SETTING_DB_URL,
     .modes = SETTING_IN_SERVER,
     .offset = AT(db_url),
     .fallback_text = "required",
     .help = "postgres://user:password@host/name or sqlite:///path"},
    {.flag = "db",
     .value = "PATH",
     .kind = SETTING_TEXT,
     .modes = SETTING_IN_DEV,
     .offset = AT(db_path),
     .fallback = "./.rebuno/dev.db",
     .help = "the database file"},
    {.flag = "memory",
     .kind = SETTING_SWITCH,
     .modes = SETTING_IN_DEV,
     .offset = AT(memory),
     .help = "keep nothing: all is gone when the kernel stops"},
    {.flag = "bearer-token",
     .env = "REBUNO_BEARER_TOKEN",
     .value = "TOKEN",
     .kind = SETTING_SECRET,
     .modes = SETTING_IN_BOTH,
     .offset = AT(bearer_token),
     .fallback_text = "required",
     .fallback_text_dev = "none",
     .help = "the token that gives full access"},
    {.flag = TOKEN_FILE_FLAG,
     .value = "PATH",
     .kind = SETTING_SECRET,
     .modes = SETTING_IN_BOTH,
     .offset = AT(bearer_token),
     .help = "a file that holds the token"},
    {.flag = "config",
     .value = "MANIFEST",
     .kind = SETTING_TEXT,
     .modes = SETTING_IN_BOTH,
     .offset = AT(manifest_path),
     .help = "agents to register at start, YAML"},
    {.flag = "db-max-conns",
     .env = "REBUNO_DB_MAX_CONNS",
     .value = "N",
     .kind = SETTING_COUNT,
     .modes = SETTING_IN_BOTH,
     .offset = AT(db_max_conns),
     .min = 1,
     .max = 1000,
     .fallback_text = "by cores",
     .help = "the most connections to a PostgreSQL database"},
    {.flag = "log-level",
     .env = "REBUNO_LOG_LEVEL",
     .value = "LEVEL",
     .kind = SETTING_LOG_LEVEL,
     .modes = SETTING_IN_BOTH,
     .offset = AT(log_level),
     .fallback = "info",
     .help = "debug, info, warn or error"},
    {.flag = "log-format",
     .env = "REBUNO_LOG_FORMAT",
     .value = "FORMAT",
     .kind = SETTING_LOG_FORMAT,
     .modes = SETTING_IN_BOTH,
     .offset = AT(log_format),
     .fallback = "text",
     .help = "text or json"},
    {.env = "REBUNO_DISPATCH_MAX_ATTEMPTS",
     .value = "N",
     .kind = SETTING_COUNT,
     .modes = SETTING_IN_BOTH,
     .offset = AT(kernel.dispatch_max_attempts),
     .min = 1,
     .max = COUNT_MAX,
     .fallback = "5",
     .fallback_text = "5, over at least ten minutes",
     .help = "deliveries without progress before a run fails"},
    {.env = "REBUNO_DISPATCH_TIMEOUT",
     .value = "DURATION",
     .kind = SETTING_DURATION,
     .modes = SETTING_IN_BOTH,
     .offset = AT(kernel.dispatch_timeout_us),
     .fallback = "30s",
     .help = "how long a webhook may take to answer"},
    {.env = "REBUNO_DISPATCH_CONCURRENCY",
     .value = "N",
     .kind = SETTING_COUNT,
     .modes = SETTING_IN_BOTH,
     .offset = AT(dispatch_concurrency),
     .min = 1,
     .max = 100000,
     .fallback = "64",
     .help = "deliveries in flight at once"},
    {.env = "REBUNO_DISPATCH_LEASE_TIMEOUT",
     .value = "DURATION",
     .kind = SETTING_DURATION,
     .modes = SETTING_IN_BOTH,
     .offset = AT(kernel.lease_timeout_us),
     .fallback = "2m",
     .help = "lease of agents without one of their own"},
    {.env = "REBUNO_DEADLINE_TIMEOUT",
     .value = "DURATION",
     .kind = SETTING_DURATION_OR_NONE,
     .modes = SETTING_IN_BOTH,
     .offset = AT(kernel.deadline_timeout_us),
     .fallback = "none",
     .help = "runs are cancelled this long after their creation"},
    {.env = "REBUNO_DEADLINE_CHECK_INTERVAL",
     .value = "DURATION",
     .kind = SETTING_DURATION,
     .modes = SETTING_IN_BOTH,
     .offset = AT(deadline_check_interval_us),
     .fallback = "30s",
     .help = "how often deadlines are looked at"},
    {.env = "REBUNO_APPROVAL_TIMEOUT",
     .value = "DURATION",
     .kind = SETTING_DURATION,
     .modes = SETTING_IN_BOTH,
     .offset = AT(kernel.approval_timeout_us),
     .fallback = "15m",
     .help = "how long approvals wait whose rule does not say it"},
    {.env = "REBUNO_JUDGE_URL",
     .value = "URL",
     .kind = SETTING_HTTP_URL,
     .modes = SETTING_IN_BOTH,
     .offset = AT(judge_url),
     .fallback_text = "none: judge rules deny",
     .help = "the judging model of judge rules"},
    {.env = "REBUNO_JUDGE_API_KEY",
     .value = "KEY",
     .kind = SETTING_SECRET,
     .modes = SETTING_IN_BOTH,
     .offset = AT(judge_api_key),
     .fallback_text = "none",
     .help = "the bearer token that it is called with"},
    {.env = "REBUNO_RETENTION",
     .value = "DURATION",
     .kind = SETTING_DURATION_OR_NONE,
     .modes = SETTING_IN_BOTH,
     .offset = AT(retention_us),
     .fallback = "720h",
     .fallback_dev = "none",
     .help = "runs are deleted this long after their end"},
    {.env = "REBUNO_CLEANUP_INTERVAL",
     .value = "DURATION",
     .kind = SETTING_DURATION,
     .modes = SETTING_IN_BOTH,
     .offset = AT(cleanup_interval_us),
     .fallback = "10m",
     .help = "how often ended runs are looked through"},
    {.env = "REBUNO_LEADER_LOCK_KEY",
     .value = "NAME",
     .kind = SETTING_TEXT,
     .modes = SETTING_IN_BOTH,
     .offset = AT(leader_lock_key),
     .fallback = "rebuno_scheduler_leader",
     .help = "the lock of the kernel that does the background work"},
    {.env = "REBUNO_MAX_BODY_BYTES",
     .value = "N",
     .kind = SETTING_COUNT,
     .modes = SETTING_IN_BOTH,
     .offset = AT(max_body_bytes),
     .min = 1024,
     .max = INT64_C(1) << 30,
     .fallback = "10485760",
     .help = "the largest request body"},
    {.env = "REBUNO_WEBHOOK_PRIVATE",
     .value = "on|off",
     .kind = SETTING_ON_OFF,
     .modes = SETTING_IN_BOTH,
     .offset = AT(webhook_private),
     .fallback = "on",
     .help = "whether webhooks may be on loopback and private addresses"},
};

const struct setting *settings_table(size_t *n)
{
    *n = COUNT(SETTINGS);
    return SETTINGS;
}

const struct arg_flag *settings_flags(bool dev, size_t *n)
{
    static struct arg_flag flags[2][COUNT(SETTINGS)];
    struct arg_flag *out = flags[dev];

    *n = 0;
    for (size_t i = 0; i < COUNT(SETTINGS); i++) {
        const struct setting *s = &SETTINGS[i];

        if (s->flag != NULL && (s->modes & (dev ? SETTING_IN_DEV : SETTING_IN_SERVER)) != 0)
            out[(*n)++] = (struct arg_flag){s->flag, s->value, s->help};
    }
    return out;
}

/* ---- values ---- */

static void store_text(struct config *out, const struct setting *s, const char *text)
{
    memcpy((char *)out + s->offset, &text, sizeof text);
}

static void store_int(struct config *out, const struct setting *s, int64_t v)
{
    memcpy((char *)out + s->offset, &v, sizeof v);
}

static void store_bool(struct config *out, const struct setting *s, bool v)
{
    memcpy((char *)out + s->offset, &v, sizeof v);
}

static bool refuse(struct err *e, const char *name, const char *expected, const char *given)
{
    return err_set(e, ERR_VALIDATION, "%s: expected %s, not \"%.80s\"", name, expected, given);
}

/* host:port, with the host in brackets when it has colons; the host may be missing. */
static bool is_address(const char *text)
{
    const char *colon = strrchr(text, ':');
    int64_t port = 0;

    if (colon == NULL || !str_to_int64(str_of(colon + 1), &port) || port > 65535)
        return false;
    struct str host = str_make(text, (size_t)(colon - text));
    if (str_has_control(host) || memchr(host.p, ' ', host.n) != NULL)
        return false;
    if (host.n > 0 && host.p[0] == '[')
        return host.n > 2 && host.p[host.n - 1] == ']';
    return memchr(host.p, ':', host.n) == NULL;
}

static bool is_postgres(const char *url)
{
    return str_starts(str_of(url), STR("postgres://")) ||
           str_starts(str_of(url), STR("postgresql://"));
}

static bool is_db_url(const char *text)
{
    struct str url = str_of(text);

    if (str_starts(url, STR("sqlite:///")))
        return url.n > STR("sqlite:///").n;
    return is_postgres(text);
}

/* Whether somebody answers there is found out by who asks. */
static bool is_http_url(const char *text)
{
    struct str url = str_of(text);
    size_t scheme = str_starts(url, STR("http://"))    ? STR("http://").n
                    : str_starts(url, STR("https://")) ? STR("https://").n
                                                       : 0;

    return scheme > 0 && url.n > scheme && strchr("/?#:", url.p[scheme]) == NULL &&
           !str_has_control(url) && memchr(url.p, ' ', url.n) == NULL;
}

static bool is_token(struct str token)
{
    return token.n > 0 && !str_has_control(token) && memchr(token.p, ' ', token.n) == NULL;
}

static bool set_count(struct config *out, const struct setting *s, const char *name,
                      const char *text, struct err *e)
{
    int64_t v = 0;

    if (!str_to_int64(str_of(text), &v) || v < s->min || v > s->max)
        return err_set(e, ERR_VALIDATION,
                       "%s: expected a whole number from %lld to %lld, not \"%.80s\"", name,
                       (long long)s->min, (long long)s->max, text);
    store_int(out, s, v);
    return true;
}

static bool set_duration(struct config *out, const struct setting *s, const char *name,
                         const char *text, struct err *e)
{
    bool may_be_none = s->kind == SETTING_DURATION_OR_NONE;
    int64_t us = 0;

    if (!(may_be_none && strcmp(text, "none") == 0)) {
        if (!duration_parse(str_of(text), &us))
            return refuse(e, name,
                          may_be_none ? "a duration such as 90s, 15m or 2h30m, or none"
                                      : "a duration such as 90s, 15m or 2h30m",
                          text);
        if (us == 0 && !may_be_none)
            return refuse(e, name, "a duration above zero", text);
    }
    store_int(out, s, us);
    return true;
}

static bool set_log_level(struct config *out, const char *name, const char *text, struct err *e)
{
    static const char *const names[] = {
        [LOG_DEBUG] = "debug", [LOG_INFO] = "info", [LOG_WARN] = "warn", [LOG_ERROR] = "error"};

    for (size_t i = 0; i < COUNT(names); i++) {
        if (strcmp(text, names[i]) == 0) {
            out->log_level = (enum log_level)i;
            return true;
        }
    }
    return refuse(e, name, "debug, info, warn or error", text);
}

static bool set_log_format(struct config *out, const char *name, const char *text, struct err *e)
{
    if (strcmp(text, "text") != 0 && strcmp(text, "json") != 0)
        return refuse(e, name, "text or json", text);
    out->log_format = strcmp(text, "json") == 0 ? LOG_JSON : LOG_TEXT;
    return true;
}

/* The bytes of `text` must outlive the process's use of the configuration. */
static bool set_value(struct config *out, const struct setting *s, const char *name,
                      const char *text, struct err *e)
{
    switch (s->kind) {
    case SETTING_TEXT:
        if (text[0] == '\0')
            return err_set(e, ERR_VALIDATION, "%s is empty", name);
        store_text(out, s, text);
        return true;
    case SETTING_SECRET:
        if (!is_token(str_of(text)))
            return err_set(e, ERR_VALIDATION,
                           "%s: expected a token without white space or control "
                           "characters",
                           name);
        store_text(out, s, text);
        return true;
    case SETTING_ADDRESS:
        if (!is_address(text))
            return refuse(e, name, "an address such as :8080, 127.0.0.1:8080 or [::1]:8080", text);
        store_text(out, s, text);
        return true;
    case SETTING_DB_URL: /* not repeated: it may hold a password */
        if (!is_db_url(text))
            return err_set(e, ERR_VALIDATION,
                           "%s: expected postgres://user:password@host/name or sqlite:///path",
                           name);
        store_text(out, s, text);
        return true;
    case SETTING_HTTP_URL: /* nor this */
        if (!is_http_url(text))
            return err_set(e, ERR_VALIDATION, "%s: expected an http:// or https:// URL", name);
        store_text(out, s, text);
        return true;
    case SETTING_COUNT:
        return set_count(out, s, name, text, e);
    case SETTING_DURATION:
    case SETTING_DURATION_OR_NONE:
        return set_duration(out, s, name, text, e);
    case SETTING_LOG_LEVEL:
        return set_log_level(out, name, text, e);
    case SETTING_LOG_FORMAT:
        return set_log_format(out, name, text, e);
    case SETTING_ON_OFF:
        if (strcmp(text, "on") != 0 && strcmp(text, "off") != 0)
            return refuse(e, name, "on or off", text);
        store_bool(out, s, strcmp(text, "on") == 0);
        return true;
    case SETTING_SWITCH:
        store_bool(out, s, true);
        return true;
    }
    return true;
}

/* ---- sources ---- */

/* The token in the file, without the line feed that editors put behind it. Owned. */
static const char *read_token_file(const char *path, struct err *e)
{
    struct buf text = {.max = TOKEN_FILE_MAX};
    const char *token = NULL;

    if (!file_read(path, &text, e))
        goto done;
    struct str s = buf_str(&text);
    while (s.n > 0 && (s.p[s.n - 1] == '\n' || s.p[s.n - 1] == '\r'))
        s.n--;
    if (is_token(s))
        token = xstrdup(s);
    else
        err_set(e, ERR_VALIDATION, "%s: expected one line with a token without white space", path);
done:
    buf_free(&text);
    return token;
}

/* The value of a secret flag, moved out of the process title, where everybody on the machine could
 * read it. */
static const char *take_secret(char *in_argv)
{
    /* They live to the end of the process; held here, no leak checker takes them for lost. */
    static char *held[8];
    static size_t n;
    size_t length = strlen(in_argv);
    char *kept = xstrdup(str_make(in_argv, length));

    if (n < COUNT(held))
        held[n++] = kept;
    memset(in_argv, '*', length);
    return kept;
}

static bool load_setting(struct config *out, const struct setting *s, const struct args *args,
                         struct err *e)
{
    char *flag = s->flag == NULL ? NULL : args_get(args, s->flag);
    const char *env = s->env == NULL ? NULL : getenv(s->env);
    const char *fallback = out->dev && s->fallback_dev != NULL ? s->fallback_dev : s->fallback;
    char name[64];

    if (flag != NULL) {
        bool secret = s->kind == SETTING_SECRET || s->kind == SETTING_DB_URL;

        snprintf(name, sizeof name, "--%s", s->flag);
        return set_value(out, s, name, secret ? take_secret(flag) : flag, e);
    }
    if (env != NULL && env[0] != '\0') /* empty is how compose files say "not set" */
        return set_value(out, s, s->env, env, e);
    if (fallback == NULL)
        return true;
    bool valid = set_value(out, s, s->flag != NULL ? s->flag : s->env, fallback, e);
    ASSERT(valid);
    return true;
}

static bool load_token_file(struct config *out, const struct args *args, struct err *e)
{
    const char *path = args_get(args, TOKEN_FILE_FLAG);

    if (path == NULL)
        return true;
    if (args_get(args, "bearer-token") != NULL)
        return err_set(e, ERR_VALIDATION, "--bearer-token and --%s exclude each other",
                       TOKEN_FILE_FLAG);
    out->bearer_token = read_token_file(path, e);
    return out->bearer_token != NULL;
}

unsigned config_max_connections(const struct config *c)
{
    return c->db_url != NULL && is_postgres(c->db_url) ? (unsigned)c->db_max_conns : 0;
}

static bool check_connections(const struct config *c, const struct args *args, struct err *e)
{
    unsigned max = config_max_connections(c);

    if (max == 0 || max >= CONNECTIONS_LEAST)
        return true;
    return err_set(
        e, ERR_VALIDATION, "%s: a kernel on PostgreSQL needs at least %d connections, not %u",
        args_get(args, "db-max-conns") != NULL ? "--db-max-conns" : "REBUNO_DB_MAX_CONNS",
        CONNECTIONS_LEAST, max);
}

static bool check_together(const struct config *c, const struct args *args, struct err *e)
{
    if (c->dev && c->memory && args_get(args, "db") != NULL)
        return err_set(e, ERR_VALIDATION, "--db and --memory exclude each other");
    if (c->dev || (c->db_url != NULL && c->bearer_token != NULL))
        return true;
    const char *database =
        "a database: --db-url URL or REBUNO_DB_URL (postgres://… or sqlite:///path)";
    const char *token =
        "a token: --bearer-token TOKEN, --bearer-token-file PATH or REBUNO_BEARER_TOKEN";
    if (c->db_url == NULL && c->bearer_token == NULL)
        return err_set(e, ERR_VALIDATION, "the server needs %s; and %s", database, token);
    return err_set(e, ERR_VALIDATION, "the server needs %s", c->db_url == NULL ? database : token);
}

bool config_load(bool dev, int argc, char **argv, struct config *out, struct err *e)
{
    size_t n_flags = 0;
    const struct arg_flag *flags = settings_flags(dev, &n_flags);
    struct args args;
    bool ok = false;

    *out = (struct config){.dev = dev};
    if (!args_parse(flags, n_flags, argc, argv, &args, e))
        goto done;
    if (args.n_positional > 0) {
        err_set(e, ERR_VALIDATION, "unexpected argument \"%.80s\"", args.positional[0]);
        goto done;
    }
    for (size_t i = 0; i < COUNT(SETTINGS); i++) {
        const struct setting *s = &SETTINGS[i];

        if ((s->modes & (dev ? SETTING_IN_DEV : SETTING_IN_SERVER)) == 0 ||
            s->flag == TOKEN_FILE_FLAG)
            continue;
        if (!load_setting(out, s, &args, e))
            goto done;
    }
    const char *attempts = getenv("REBUNO_DISPATCH_MAX_ATTEMPTS");
    out->kernel.dispatch_max_attempts_by_hand = attempts != NULL && attempts[0] != '\0';
    out->kernel.judge_configured = out->judge_url != NULL;
    ok = load_token_file(out, &args, e) && check_together(out, &args, e) &&
         check_connections(out, &args, e);
done:
    args_free(&args);
    return ok;
}
