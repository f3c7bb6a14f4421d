/* SPDX-License-Identifier: Apache-2.0
 * YAML as a stream of events with places, for files that people write: manifests, policy bundles,
 * cases. Nothing is built up, so neither nesting nor aliases of a hostile text cost memory; what
 * such files do not need (anchors, aliases, tags, directives, several documents) is refused, and so
 * are bytes that are not UTF-8. Knows no key of any file. One owner at a time. */
#ifndef BASE_YAML_H
#define BASE_YAML_H

#include "base/arena.h"
#include "base/err.h"

struct yaml_source {
    struct str text; /* borrowed while the reader lives */
    const char
        *name; /* what messages begin with: "rebuno.yaml:2:5: …"; "": "line 2, column 5: …" */
    const char *what; /* "a manifest" */
};

struct yaml_place {
    int line, column; /* from 1 */
};

enum yaml_event {
    YAML_MAPPING, /* keys and values in turn until its end */
    YAML_MAPPING_END,
    YAML_LIST,
    YAML_LIST_END,
    YAML_SCALAR,
    YAML_END, /* of the text */
};

struct yaml;

/* At the first event of the document; YAML_END when the text has none. Errors of this and of all
 * other functions are ERR_VALIDATION and go to `e`; after one, only yaml_close may be called. NULL:
 * there is no memory, or the text's bytes are refused. */
struct yaml *yaml_open(const struct yaml_source *source, struct err *e);
void yaml_close(struct yaml *y); /* NULL is fine */

/* Moves on. False: the text is not YAML, ends early, or uses what is refused. */
MUST_USE bool yaml_next(struct yaml *y);
/* Moves behind the value that begins at the current event: to its last event. */
MUST_USE bool yaml_skip(struct yaml *y);
/* At the last event of the document's value: nothing may follow. */
MUST_USE bool yaml_finish(struct yaml *y);

enum yaml_event yaml_event(const struct yaml *y);
/* Of the current event; a missing value has none, and the last one's remains. */
struct yaml_place yaml_place(const struct yaml *y);

/* The current scalar. Texts live until the reader is closed. */
struct str yaml_text(struct yaml *y); /* absent for null: no value, ~, null */
struct str
yaml_source_text(struct yaml *y);         /* as it is written: null is a word; absent: no value */
bool yaml_is_plain(const struct yaml *y); /* not quoted, not a block */

/* The keys of one mapping. Zero `seen` at its start. */
struct yaml_keys {
    const char *const *names;
    size_t n;      /* at most 32 */
    unsigned seen; /* bit by index */
};
/* Which key the current event is. Refuses one that is not a key of the list (suggesting one) or
 * that was there before. `who` goes before the message, with a colon: `agent "coder"`. */
MUST_USE bool yaml_read_key(struct yaml *y, struct yaml_keys *keys, struct str who, size_t *index);

/* Sets the error and returns false. */
bool yaml_fail(struct yaml *y, struct yaml_place at, const char *fmt, ...) PRINTF_LIKE(3, 4);
/* Part of the text as a message shows it: one short, clean line. Until the reader is closed. */
struct str yaml_shown(struct yaml *y, struct str s);
/* Freed with the reader. */
struct arena *yaml_scratch(struct yaml *y);

#endif
