/* SPDX-License-Identifier: Apache-2.0
 * Reads the manifest from the YAML parser's events rather than from a document: the first thing
 * that does not belong ends the reading, so neither nesting nor aliases of a hostile file are ever
 * built up. */
#include "cli/manifest.h"

#include <libfyaml.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/map.h"
#include "cli/args.h"
#include "cli/file.h"
#include "cli/text.h"

enum {
    MANIFEST_MAX_BYTES = 4 * 1024 * 1024,
    LEASE_MAX_SECONDS = 365 * 24 * 3600,
    SHOWN_MAX = 64 /* columns of a name of the file's that a message repeats */
};

struct place {
    int line, column; /* from 1 */
};

struct reader {
    const char *path;
    struct arena *a; /* the manifest's */
    struct err *e;
    struct fy_diag *diag;
    struct fy_parser *parser;
    struct fy_event *event; /* the current one; owned by the parser until the next */
    struct place at;        /* of the current event, or of the last one that had a place */
    struct arena scratch;
    struct manifest_agent *agents; /* malloc, grows */
    size_t n, cap;
    struct map ids; /* id → struct place */
};

/* What a message says of an agent: its id once that is known, else its number. */
struct agent_draft {
    struct manifest_agent agent;
    size_t number;
    struct place start, id_at;
    unsigned seen; /* bit for each key of AGENT_KEYS */
};

enum agent_key {
    KEY_ID,
    KEY_WEBHOOK_URL,
    KEY_SECRET,
    KEY_LEASE_TIMEOUT,
    KEY_POLICY,
    KEY_POLICY_FILE
};
static const char *const AGENT_KEYS[] = {
    [KEY_ID] = "id",         [KEY_WEBHOOK_URL] = "webhook_url",
    [KEY_SECRET] = "secret", [KEY_LEASE_TIMEOUT] = "lease_timeout_seconds",
    [KEY_POLICY] = "policy", [KEY_POLICY_FILE] = "policy_file",
};

/* ---- messages ---- */

/* A name of the file's as a message shows it: clean, short, in the scratch arena. */
static struct str shown(struct reader *r, struct str s)
{
    struct buf clean = {0}, cut = {0};

    text_clean(&clean, s, TEXT_ONE_LINE);
    text_fit(&cut, buf_str(&clean), SHOWN_MAX);
    struct str out = arena_str(&r->scratch, buf_str(&cut));
    buf_free(&clean);
    buf_free(&cut);
    return out;
}

static bool fail(struct reader *r, struct place at, const char *fmt, ...) PRINTF_LIKE(3, 4);
static bool fail(struct reader *r, struct place at, const char *fmt, ...)
{
    char text[ERR_MESSAGE_MAX];
    va_list args;

    va_start(args, fmt);
    vsnprintf(text, sizeof text, fmt, args);
    va_end(args);
    return err_set(r->e, ERR_VALIDATION, "%s:%d:%d: %s", r->path, at.line, at.column, text);
}

static struct str draft_name(struct reader *r, const struct agent_draft *d)
{
    if (d->agent.id.p == NULL)
        return arena_printf(&r->scratch, "agent %zu", d->number);
    return arena_printf(&r->scratch, "agent \"%.*s\"", STR_ARG(shown(r, d->agent.id)));
}

/* ---- events ---- */

static void note_mark(struct reader *r, const struct fy_mark *mark)
{
    if (mark != NULL)
        r->at = (struct place){mark->line + 1, mark->column + 1};
}

static bool fail_syntax(struct reader *r)
{
    void *iter = NULL;
    struct fy_diag_error *error = fy_diag_errors_iterate(r->diag, &iter);

    if (error == NULL || error->msg == NULL)
        return fail(r, r->at, "this is not YAML that can be read");
    struct place at = {error->line > 0 ? error->line : r->at.line,
                       error->column > 0 ? error->column : r->at.column};
    return fail(r, at, "not valid YAML: %.*s", STR_ARG(shown(r, str_of(error->msg))));
}

/* Where the current event stands; the last place remains for a missing value, which has none. */
static void note_place(struct reader *r)
{
    const struct fy_mark *mark = fy_event_start_mark(r->event);

    note_mark(r, mark);
    if (mark == NULL || r->event->type != FYET_SCALAR)
        return;
    enum fy_scalar_style style = fy_token_scalar_style(r->event->scalar.value);
    if ((style == FYSS_SINGLE_QUOTED || style == FYSS_DOUBLE_QUOTED) && r->at.column > 1)
        r->at.column--; /* the mark is behind the quote */
}

/* Moves on. False: the file is not YAML, ends early, or uses what no manifest needs. */
static bool next(struct reader *r)
{
    if (r->event != NULL)
        fy_parser_event_free(r->parser, r->event);
    r->event = fy_parser_parse(r->parser);
    if (r->event == NULL)
        return fail_syntax(r);
    note_place(r);
    struct fy_token *anchor = r->event->type == FYET_ALIAS ? fy_event_get_token(r->event)
                                                           : fy_event_get_anchor_token(r->event);
    if (anchor != NULL) {
        note_mark(r, fy_token_start_mark(anchor));
        r->at.column--; /* the mark is behind the & or * */
        return fail(r, r->at, "anchors and aliases are not supported in a manifest");
    }
    if (fy_event_get_tag_token(r->event) != NULL) {
        note_mark(r, fy_token_start_mark(fy_event_get_tag_token(r->event)));
        return fail(r, r->at, "tags are not supported in a manifest");
    }
    return true;
}

/* The current scalar's text, in the scratch arena; absent for null. */
static struct str scalar_text(struct reader *r)
{
    static const char *const nulls[] = {"", "~", "null", "Null", "NULL"};
    struct fy_token *token = r->event->scalar.value;
    size_t n = 0;
    const char *p = token == NULL ? NULL : fy_token_get_text(token, &n);

    if (p == NULL)
        return STR_NONE;
    if (fy_token_scalar_style(token) == FYSS_PLAIN) {
        for (size_t i = 0; i < COUNT(nulls); i++) {
            if (str_eq(str_make(p, n), str_of(nulls[i])))
                return STR_NONE;
        }
    }
    return arena_str(&r->scratch, str_make(p, n));
}

/* ---- ${NAME} ---- */

static size_t name_length(struct str s)
{
    size_t n = 0;

    while (n < s.n &&
           (s.p[n] == '_' || (s.p[n] >= 'A' && s.p[n] <= 'Z') || (s.p[n] >= 'a' && s.p[n] <= 'z') ||
            (n > 0 && s.p[n] >= '0' && s.p[n] <= '9')))
        n++;
    return n;
}

/* Replaces each ${NAME} once: what a variable holds is text, not a template. */
static bool substitute(struct reader *r, struct str who, const char *key, struct str text,
                       struct str *out)
{
    struct buf b = {.max = MANIFEST_MAX_BYTES};
    bool ok = false;

    for (size_t i = 0; i < text.n;) {
        if (text.p[i] != '$' || i + 1 >= text.n || text.p[i + 1] != '{') {
            buf_add_byte(&b, text.p[i++]);
            continue;
        }
        struct str rest = str_slice(text, i + 2, text.n);
        size_t n = name_length(rest);
        if (n == 0 || n >= rest.n || rest.p[n] != '}') {
            fail(r, r->at, "%.*s: %s: \"${\" must be followed by a variable's name and \"}\"",
                 STR_ARG(who), key);
            goto done;
        }
        struct str name = arena_str(&r->scratch, str_slice(rest, 0, n));
        const char *value = getenv(name.p);
        if (value == NULL) {
            fail(r, r->at, "%.*s: %s: the environment variable %.*s is not set", STR_ARG(who), key,
                 STR_ARG(shown(r, name)));
            goto done;
        }
        buf_add_z(&b, value);
        i += 2 + n + 1;
    }
    if (b.failed) {
        fail(r, r->at, "%.*s: %s is too long", STR_ARG(who), key);
        goto done;
    }
    *out = arena_str(r->a, buf_str(&b));
    ok = out->p != NULL || err_set(r->e, ERR_INTERNAL, "out of memory");
done:
    buf_free(&b);
    return ok;
}

/* ---- one agent ---- */

static bool read_text(struct reader *r, struct agent_draft *d, enum agent_key key, struct str *out)
{
    struct str who = draft_name(r, d);

    if (r->event->type != FYET_SCALAR)
        return fail(r, r->at, "%.*s: %s must be a single value", STR_ARG(who), AGENT_KEYS[key]);
    struct str text = scalar_text(r);
    if (text.p == NULL)
        return fail(r, r->at, "%.*s: %s has no value", STR_ARG(who), AGENT_KEYS[key]);
    if (!substitute(r, who, AGENT_KEYS[key], text, out))
        return false;
    if (out->n == 0)
        return fail(r, r->at, "%.*s: %s is empty", STR_ARG(who), AGENT_KEYS[key]);
    if (!str_is_utf8(*out))
        return fail(r, r->at, "%.*s: %s is not valid UTF-8", STR_ARG(who), AGENT_KEYS[key]);
    return true;
}

static bool read_lease(struct reader *r, struct agent_draft *d)
{
    struct str text;

    if (!read_text(r, d, KEY_LEASE_TIMEOUT, &text))
        return false;
    if (str_to_int64(text, &d->agent.lease_timeout_seconds) && d->agent.lease_timeout_seconds > 0 &&
        d->agent.lease_timeout_seconds <= LEASE_MAX_SECONDS)
        return true;
    return fail(r, r->at,
                "%.*s: lease_timeout_seconds must be a whole number of seconds above zero",
                STR_ARG(draft_name(r, d)));
}

/* One folder level of a URL must be able to hold it; dots alone would be resolved away. */
static bool is_agent_id(struct str id)
{
    size_t dots = 0;

    if (str_has_control(id))
        return false;
    for (size_t i = 0; i < id.n; i++) {
        if (memchr("/?#% ", id.p[i], 5) != NULL)
            return false;
        dots += id.p[i] == '.';
    }
    return dots < id.n;
}

static bool read_id(struct reader *r, struct agent_draft *d)
{
    struct str id = STR_NONE;

    if (!read_text(r, d, KEY_ID, &id))
        return false;
    if (!is_agent_id(id))
        return fail(
            r, r->at,
            "agent %zu: id \"%.*s\" must not have / ? # %%, white space or control characters, "
            "nor be just dots",
            d->number, STR_ARG(shown(r, id)));
    struct place *first = map_get(&r->ids, id);
    if (first != NULL)
        return fail(r, r->at, "the agent \"%.*s\" is already in line %d", STR_ARG(shown(r, id)),
                    first->line);
    struct place *at = arena_new(&r->scratch, struct place);
    *at = r->at;
    map_put(&r->ids, id, at);
    d->agent.id = id;
    return true;
}

static bool read_webhook_url(struct reader *r, struct agent_draft *d)
{
    if (!read_text(r, d, KEY_WEBHOOK_URL, &d->agent.webhook_url))
        return false;
    if (str_starts(d->agent.webhook_url, STR("http://")) ||
        str_starts(d->agent.webhook_url, STR("https://")))
        return true;
    return fail(r, r->at, "%.*s: webhook_url must begin with http:// or https://",
                STR_ARG(draft_name(r, d)));
}

static bool unknown_key(struct reader *r, struct str where, struct str key, const char *meant)
{
    if (meant != NULL)
        return fail(r, r->at, "%.*s: unknown key \"%.*s\"; did you mean %s?", STR_ARG(where),
                    STR_ARG(shown(r, key)), meant);
    return fail(r, r->at, "%.*s: unknown key \"%.*s\"", STR_ARG(where), STR_ARG(shown(r, key)));
}

/* The key at the current event, once; its place stays the reader's. */
static bool read_agent_key(struct reader *r, struct agent_draft *d, enum agent_key *key)
{
    struct str who = draft_name(r, d);

    if (r->event->type != FYET_SCALAR)
        return fail(r, r->at, "%.*s: a key must be plain text", STR_ARG(who));
    struct str text = scalar_text(r);
    if (text.p == NULL)
        return fail(r, r->at, "%.*s: a key is missing before \":\"", STR_ARG(who));
    for (size_t i = 0; i < COUNT(AGENT_KEYS); i++) {
        if (!str_eq(text, str_of(AGENT_KEYS[i])))
            continue;
        if ((d->seen & 1u << i) != 0)
            return fail(r, r->at, "%.*s: %s is given twice", STR_ARG(who), AGENT_KEYS[i]);
        d->seen |= 1u << i;
        *key = (enum agent_key)i;
        return true;
    }
    return unknown_key(r, who, text, suggest(text.p, AGENT_KEYS, KEY_POLICY));
}

static bool read_agent_value(struct reader *r, struct agent_draft *d, enum agent_key key)
{
    switch (key) {
    case KEY_ID:
        return read_id(r, d);
    case KEY_WEBHOOK_URL:
        return read_webhook_url(r, d);
    case KEY_SECRET:
        return read_text(r, d, key, &d->agent.secret);
    case KEY_LEASE_TIMEOUT:
        return read_lease(r, d);
    case KEY_POLICY:
    case KEY_POLICY_FILE:
        break; /* refused with the key: a file that asks for a policy must not run without it */
    }
    return false;
}

static bool add_agent(struct reader *r, const struct agent_draft *d)
{
    static const enum agent_key required[] = {KEY_ID, KEY_WEBHOOK_URL, KEY_SECRET};

    for (size_t i = 0; i < COUNT(required); i++) {
        if ((d->seen & 1u << required[i]) == 0)
            return fail(r, d->start, "%.*s: %s is missing", STR_ARG(draft_name(r, d)),
                        AGENT_KEYS[required[i]]);
    }
    if (r->n == r->cap) {
        r->cap = r->cap == 0 ? 8 : r->cap * 2;
        r->agents = xrealloc(r->agents, r->cap * sizeof *r->agents);
    }
    r->agents[r->n++] = d->agent;
    return true;
}

/* At a list's item. */
static bool read_agent(struct reader *r)
{
    struct agent_draft d = {.number = r->n + 1, .start = r->at};
    enum agent_key key = KEY_ID;

    if (r->event->type != FYET_MAPPING_START)
        return fail(r, r->at, "agent %zu must be a mapping with id, webhook_url and secret",
                    d.number);
    while (next(r)) {
        if (r->event->type == FYET_MAPPING_END)
            return add_agent(r, &d);
        if (!read_agent_key(r, &d, &key))
            return false;
        if (key == KEY_POLICY || key == KEY_POLICY_FILE)
            return fail(r, r->at, "%.*s: %s is not available in this version",
                        STR_ARG(draft_name(r, &d)), AGENT_KEYS[key]);
        if (!next(r) || !read_agent_value(r, &d, key))
            return false;
    }
    return false;
}

/* ---- the whole ---- */

static bool read_agents(struct reader *r)
{
    if (r->event->type != FYET_SEQUENCE_START)
        return fail(r, r->at, "agents must be a list");
    while (next(r)) {
        if (r->event->type == FYET_SEQUENCE_END)
            return true;
        if (!read_agent(r))
            return false;
    }
    return false;
}

static bool read_root(struct reader *r)
{
    static const char *const keys[] = {"agents"};
    struct place start = r->at;
    bool seen = false;

    if (r->event->type != FYET_MAPPING_START)
        return fail(r, r->at, "the manifest must be a mapping with the key agents");
    while (next(r)) {
        if (r->event->type == FYET_MAPPING_END)
            return seen || fail(r, start, "the key agents is missing");
        if (r->event->type != FYET_SCALAR)
            return fail(r, r->at, "a key must be plain text");
        struct str key = scalar_text(r);
        if (key.p == NULL || !str_eq(key, STR("agents")))
            return unknown_key(r, STR("manifest"), key,
                               suggest(key.p == NULL ? "" : key.p, keys, 1));
        if (seen)
            return fail(r, r->at, "agents is given twice");
        seen = true;
        if (!next(r) || !read_agents(r))
            return false;
    }
    return false;
}

static bool read_stream(struct reader *r)
{
    if (!next(r) || !next(r)) /* the stream's start, then the document's */
        return false;
    if (r->event->type != FYET_DOCUMENT_START)
        return fail(r, r->at, "the manifest is empty; it needs the key agents");
    if (!next(r) || !read_root(r))
        return false;
    if (!next(r) || !next(r)) /* the document's end, then the stream's */
        return false;
    if (r->event->type != FYET_STREAM_END)
        return fail(r, r->at, "a manifest is one document");
    return true;
}

/* The parser reports bad bytes as syntax; this names them. And it takes time by the square of a
 * directive's length. */
static bool check_bytes(struct reader *r, struct str text)
{
    struct place at = {1, 1};

    for (size_t from = 0; from < text.n;) {
        const char *feed = memchr(text.p + from, '\n', text.n - from);
        size_t to = feed == NULL ? text.n : (size_t)(feed - text.p) + 1;

        if (!str_is_utf8(str_slice(text, from, to)))
            return fail(r, at, "this line is not valid UTF-8");
        if (memchr(text.p + from, '\0', to - from) != NULL)
            return fail(r, at, "this line holds a NUL byte");
        if (text.p[from] == '%')
            return fail(r, at, "directives are not supported in a manifest");
        from = to;
        at.line++;
    }
    return true;
}

static void drop_output(struct fy_diag *diag, void *user, const char *text, size_t n)
{
    (void)diag, (void)user, (void)text, (void)n;
}

static bool open_parser(struct reader *r, struct str text)
{
    struct fy_diag_cfg diag_cfg;
    struct fy_parse_cfg cfg = {.flags = FYPCF_JSON_NONE};

    fy_diag_cfg_default(&diag_cfg);
    diag_cfg.fp = NULL; /* the default writes to the error stream */
    diag_cfg.output_fn = drop_output;
    r->diag = fy_diag_create(&diag_cfg);
    if (r->diag != NULL) {
        fy_diag_set_collect_errors(r->diag, true);
        cfg.diag = r->diag;
        r->parser = fy_parser_create(&cfg);
    }
    if (r->parser != NULL && fy_parser_set_string(r->parser, text.p, text.n) == 0)
        return true;
    return err_set(r->e, ERR_INTERNAL, "out of memory");
}

static void close_parser(struct reader *r)
{
    if (r->event != NULL)
        fy_parser_event_free(r->parser, r->event);
    if (r->parser != NULL)
        fy_parser_destroy(r->parser);
    if (r->diag != NULL)
        fy_diag_destroy(r->diag);
}

bool manifest_load(const char *path, struct arena *a, struct manifest *out, struct err *e)
{
    struct reader r = {.path = path, .a = a, .e = e, .at = {1, 1}};
    struct buf text = {.max = MANIFEST_MAX_BYTES};
    bool ok = false;

    if (!file_read(path, &text, e))
        goto done;
    if (!check_bytes(&r, buf_str(&text)) || !open_parser(&r, buf_str(&text)) || !read_stream(&r))
        goto done;
    out->n = r.n;
    out->agents = arena_array(a, struct manifest_agent, r.n + 1);
    if (out->agents == NULL) {
        err_set(e, ERR_INTERNAL, "out of memory");
        goto done;
    }
    if (r.n > 0)
        memcpy(out->agents, r.agents, r.n * sizeof *r.agents);
    ok = true;
done:
    close_parser(&r);
    free(r.agents);
    map_free(&r.ids);
    arena_free(&r.scratch);
    buf_free(&text);
    return ok;
}
