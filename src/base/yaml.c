/* SPDX-License-Identifier: Apache-2.0
 * Over libfyaml's events. */
#include "base/yaml.h"

#include <libfyaml.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/suggest.h"
#include "base/text.h"

enum {
    SHOWN_MAX = 64, /* columns */
    BLANK_LINES_MAX = 200,
    TAG_ESCAPES_MAX = 1000,
};

struct yaml {
    struct yaml_source source;
    struct err *e;
    struct fy_diag *diag;
    struct fy_parser *parser;
    struct fy_event *current; /* owned by the parser until the next */
    struct fy_token_iter *iter;
    struct buf text; /* of the scalar that is being read */
    enum yaml_event event;
    struct yaml_place at;
    struct arena scratch;
};

/* ---- messages ---- */

struct str yaml_shown(struct yaml *y, struct str s)
{
    struct buf clean = {0}, cut = {0};

    text_clean(&clean, s, TEXT_ONE_LINE);
    text_fit(&cut, buf_str(&clean), SHOWN_MAX);
    struct str out = arena_str(&y->scratch, buf_str(&cut));
    buf_free(&clean);
    buf_free(&cut);
    return out;
}

bool yaml_fail(struct yaml *y, struct yaml_place at, const char *fmt, ...)
{
    char text[ERR_MESSAGE_MAX];
    va_list args;

    va_start(args, fmt);
    vsnprintf(text, sizeof text, fmt, args);
    va_end(args);
    if (y->source.name[0] == '\0')
        return err_set(y->e, ERR_VALIDATION, "line %d, column %d: %s", at.line, at.column, text);
    return err_set(y->e, ERR_VALIDATION, "%s:%d:%d: %s", y->source.name, at.line, at.column, text);
}

static bool fail_syntax(struct yaml *y)
{
    void *iter = NULL;
    struct fy_diag_error *error = fy_diag_errors_iterate(y->diag, &iter);

    if (error == NULL || error->msg == NULL)
        return yaml_fail(y, y->at, "this is not YAML that can be read");
    struct yaml_place at = {error->line > 0 ? error->line : y->at.line,
                            error->column > 0 ? error->column : y->at.column};
    return yaml_fail(y, at, "not valid YAML: %.*s", STR_ARG(yaml_shown(y, str_of(error->msg))));
}

/* ---- events ---- */

static void note_mark(struct yaml *y, const struct fy_mark *mark)
{
    if (mark != NULL)
        y->at = (struct yaml_place){mark->line + 1, mark->column + 1};
}

static void note_place(struct yaml *y)
{
    const struct fy_mark *mark = fy_event_start_mark(y->current);

    note_mark(y, mark);
    if (mark == NULL || y->current->type != FYET_SCALAR)
        return;
    enum fy_scalar_style style = fy_token_scalar_style(y->current->scalar.value);
    if ((style == FYSS_SINGLE_QUOTED || style == FYSS_DOUBLE_QUOTED) && y->at.column > 1)
        y->at.column--; /* the mark is behind the quote */
}

static bool refuse_extras(struct yaml *y)
{
    struct fy_token *anchor = y->current->type == FYET_ALIAS
                                  ? fy_event_get_token(y->current)
                                  : fy_event_get_anchor_token(y->current);
    struct fy_token *tag = fy_event_get_tag_token(y->current);

    if (anchor != NULL) {
        note_mark(y, fy_token_start_mark(anchor));
        y->at.column--; /* the mark is behind the & or * */
        return yaml_fail(y, y->at, "anchors and aliases are not supported in %s", y->source.what);
    }
    if (tag != NULL) {
        note_mark(y, fy_token_start_mark(tag));
        return yaml_fail(y, y->at, "tags are not supported in %s", y->source.what);
    }
    return true;
}

static bool take_event(struct yaml *y)
{
    if (y->current != NULL)
        fy_parser_event_free(y->parser, y->current);
    y->current = fy_parser_parse(y->parser);
    if (y->current == NULL)
        return fail_syntax(y);
    note_place(y);
    return refuse_extras(y);
}

static enum yaml_event event_of(enum fy_event_type type)
{
    switch ((int)type) {
    case FYET_MAPPING_START:
        return YAML_MAPPING;
    case FYET_MAPPING_END:
        return YAML_MAPPING_END;
    case FYET_SEQUENCE_START:
        return YAML_LIST;
    case FYET_SEQUENCE_END:
        return YAML_LIST_END;
    case FYET_SCALAR:
        return YAML_SCALAR;
    default:
        return YAML_END;
    }
}

bool yaml_next(struct yaml *y)
{
    if (!take_event(y))
        return false;
    y->event = event_of(y->current->type);
    return true;
}

bool yaml_skip(struct yaml *y)
{
    size_t depth = 0;

    for (;;) {
        if (y->event == YAML_MAPPING || y->event == YAML_LIST)
            depth++;
        else if (y->event == YAML_MAPPING_END || y->event == YAML_LIST_END)
            depth--;
        if (depth == 0)
            return true;
        if (!yaml_next(y))
            return false;
    }
}

bool yaml_finish(struct yaml *y)
{
    if (!take_event(y) || !take_event(y)) /* the document's end, then the stream's */
        return false;
    return y->current->type == FYET_STREAM_END ||
           yaml_fail(y, y->at, "%s is one document", y->source.what);
}

enum yaml_event yaml_event(const struct yaml *y)
{
    return y->event;
}

struct yaml_place yaml_place(const struct yaml *y)
{
    return y->at;
}

struct arena *yaml_scratch(struct yaml *y)
{
    return &y->scratch;
}

/* ---- scalars and keys ---- */

bool yaml_is_plain(const struct yaml *y)
{
    return fy_token_scalar_style(y->current->scalar.value) == FYSS_PLAIN;
}

/* By an iterator: fy_token_get_text of libfyaml 0.7.12 loses a buffer when a text has many quotes.
 */
struct str yaml_source_text(struct yaml *y)
{
    struct fy_token *token = y->current->scalar.value;
    const struct fy_iter_chunk *chunk = NULL;
    int failed = 0;

    if (token == NULL)
        return STR_NONE;
    buf_clear(&y->text);
    fy_token_iter_start(token, y->iter);
    while ((chunk = fy_token_iter_chunk_next(y->iter, chunk, &failed)) != NULL)
        buf_add(&y->text, str_make(chunk->str, chunk->len));
    fy_token_iter_finish(y->iter);
    if (failed != 0 || y->text.failed || (y->text.n == 0 && yaml_is_plain(y)))
        return STR_NONE;
    return arena_str(&y->scratch, buf_str(&y->text));
}

struct str yaml_text(struct yaml *y)
{
    static const char *const nulls[] = {"~", "null", "Null", "NULL"};
    struct str text = yaml_source_text(y);

    for (size_t i = 0; str_present(text) && yaml_is_plain(y) && i < COUNT(nulls); i++) {
        if (str_eq(text, str_of(nulls[i])))
            return STR_NONE;
    }
    return text;
}

static bool unknown_key(struct yaml *y, const struct yaml_keys *keys, struct str who,
                        struct str key)
{
    const char *meant = suggest(key.p, keys->names, keys->n);
    struct str shown = yaml_shown(y, key);

    if (meant != NULL)
        return yaml_fail(y, y->at, "%.*s: unknown key \"%.*s\"; did you mean %s?", STR_ARG(who),
                         STR_ARG(shown), meant);
    return yaml_fail(y, y->at, "%.*s: unknown key \"%.*s\"", STR_ARG(who), STR_ARG(shown));
}

bool yaml_read_key(struct yaml *y, struct yaml_keys *keys, struct str who, size_t *index)
{
    if (y->event != YAML_SCALAR)
        return yaml_fail(y, y->at, "%.*s: a key must be plain text", STR_ARG(who));
    struct str text = yaml_text(y);
    if (text.p == NULL)
        return yaml_fail(y, y->at, "%.*s: a key is missing before \":\"", STR_ARG(who));
    for (size_t i = 0; i < keys->n; i++) {
        if (!str_eq(text, str_of(keys->names[i])))
            continue;
        if ((keys->seen & 1u << i) != 0)
            return yaml_fail(y, y->at, "%.*s: %s is given twice", STR_ARG(who), keys->names[i]);
        keys->seen |= 1u << i;
        *index = i;
        return true;
    }
    return unknown_key(y, keys, who, text);
}

/* ---- opening ---- */

/* The parser reports bad bytes as syntax; this names them. */
static bool check_bytes(struct yaml *y)
{
    struct str text = y->source.text;
    struct yaml_place at = {1, 1};

    for (size_t from = 0; from < text.n;) {
        const char *feed = memchr(text.p + from, '\n', text.n - from);
        size_t to = feed == NULL ? text.n : (size_t)(feed - text.p) + 1;

        if (!str_is_utf8(str_slice(text, from, to)))
            return yaml_fail(y, at, "this line is not valid UTF-8");
        if (memchr(text.p + from, '\0', to - from) != NULL)
            return yaml_fail(y, at, "this line holds a NUL byte");
        from = to;
        at.line++;
    }
    return true;
}

static bool is_blank(char c)
{
    return c == ' ' || c == '\t' || c == '\r';
}

static bool ends_line(struct str text, size_t i) /* a line feed or a lone carriage return */
{
    return text.p[i] == '\n' || (text.p[i] == '\r' && (i + 1 == text.n || text.p[i + 1] != '\n'));
}

/* The parser takes time by the square of a directive's length, and of the number of blank lines in
 * a row. */
static bool check_lines(struct yaml *y)
{
    struct str text = y->source.text;
    struct yaml_place at = {1, 1};
    int ends = 0; /* of lines, with nothing between them */

    for (size_t i = 0; i < text.n; i++) {
        if (text.p[i] == '%' && (i == 0 || ends_line(text, i - 1)))
            return yaml_fail(y, at, "directives are not supported in %s", y->source.what);
        if (!ends_line(text, i)) {
            ends = is_blank(text.p[i]) ? ends : 0;
            continue;
        }
        if (++ends > BLANK_LINES_MAX + 1) /* the first one is of a line with something */
            return yaml_fail(y, at, "more than %d blank lines in a row", BLANK_LINES_MAX);
        at.line++;
    }
    return true;
}

/* Nor are escapes in a tag for it. Tags are refused, but it reads them first. */
static bool check_words(struct yaml *y)
{
    struct str text = y->source.text;
    struct yaml_place at = {1, 1};
    bool marked = false; /* this word has had a ! */
    int escapes = 0;

    for (size_t i = 0; i < text.n; i++) {
        char c = text.p[i];
        if (is_blank(c) || c == '\n') {
            marked = false;
            escapes = 0;
        }
        at.line += ends_line(text, i);
        marked = marked || c == '!';
        escapes += marked && c == '%';
        if (escapes > TAG_ESCAPES_MAX)
            return yaml_fail(y, at, "a word with a ! and more than %d %% after it is not supported",
                             TAG_ESCAPES_MAX);
    }
    return true;
}

static void drop_output(struct fy_diag *diag, void *user, const char *text, size_t n)
{
    (void)diag, (void)user, (void)text, (void)n;
}

static bool open_parser(struct yaml *y)
{
    struct fy_diag_cfg diag_cfg;
    struct fy_parse_cfg cfg = {.flags = FYPCF_JSON_NONE};
    struct str text = str_present(y->source.text) ? y->source.text : STR("");

    fy_diag_cfg_default(&diag_cfg);
    diag_cfg.fp = NULL; /* the default writes to the error stream */
    diag_cfg.output_fn = drop_output;
    y->diag = fy_diag_create(&diag_cfg);
    if (y->diag != NULL) {
        fy_diag_set_collect_errors(y->diag, true);
        cfg.diag = y->diag;
        y->parser = fy_parser_create(&cfg);
    }
    y->iter = fy_token_iter_create(NULL);
    if (y->iter != NULL && y->parser != NULL &&
        fy_parser_set_string(y->parser, text.p, text.n) == 0)
        return true;
    return err_set(y->e, ERR_INTERNAL, "out of memory");
}

static bool begin(struct yaml *y)
{
    if (!take_event(y) || !take_event(y)) /* the stream's start, then the document's */
        return false;
    if (y->current->type == FYET_DOCUMENT_START)
        return yaml_next(y);
    y->event = YAML_END;
    return true;
}

struct yaml *yaml_open(const struct yaml_source *source, struct err *e)
{
    struct yaml *y = xzalloc(sizeof *y);

    *y = (struct yaml){.source = *source, .e = e, .at = {1, 1}};
    if (check_bytes(y) && check_lines(y) && check_words(y) && open_parser(y) && begin(y))
        return y;
    yaml_close(y);
    return NULL;
}

void yaml_close(struct yaml *y)
{
    if (y == NULL)
        return;
    if (y->current != NULL)
        fy_parser_event_free(y->parser, y->current);
    if (y->iter != NULL)
        fy_token_iter_destroy(y->iter);
    if (y->parser != NULL)
        fy_parser_destroy(y->parser);
    if (y->diag != NULL)
        fy_diag_destroy(y->diag);
    arena_free(&y->scratch);
    buf_free(&y->text);
    free(y);
}
