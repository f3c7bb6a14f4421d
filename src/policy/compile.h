/* SPDX-License-Identifier: Apache-2.0
 * Inside the loading of a bundle: what its parts (compile.c, compile_when.c, compile_then.c) share.
 * Functions return false with the error set: place, rule and what is wrong. */
#ifndef POLICY_COMPILE_H
#define POLICY_COMPILE_H

#include "base/map.h"
#include "base/yaml.h"
#include "policy/rule.h"

struct texts {
    struct str *p; /* malloc, used again for each list */
    size_t n, cap;
};

struct argument_key {
    size_t index;     /* in policy.keys */
    size_t last_rule; /* number of the last rule that had it */
};

struct compile {
    struct yaml *y;
    struct policy *p; /* being filled */
    struct err *e;
    size_t rules_cap, keys_cap, regexes_cap;
    struct map ids;  /* id → struct yaml_place in the scratch arena */
    struct map keys; /* argument → struct argument_key in the scratch arena */
    struct texts texts;
    struct argument *arguments; /* malloc, of the current rule */
    size_t n_arguments, arguments_cap;
    size_t number; /* of the current rule, from 1; 0: outside of the rules */
    struct str id; /* absent: not read yet */
    bool at_id;    /* it is being read: what is wrong is the id itself */
    /* When a rule was refused whose id stands behind what is wrong: found by a second look. */
    size_t hint_number;
    struct str hint_id;
    struct str who; /* `rule "id"`, or `rule 3`; what messages begin with */
};

/* p with room for one more than n. */
void *compile_grow(void *p, size_t n, size_t *cap, size_t size);
/* A copy in the policy's arena. NULL: there is no memory, and the error is set. */
void *compile_keep_array(struct compile *c, const void *p, size_t n, size_t size);

/* About the value at the current event. */
bool compile_fail(struct compile *c, const char *fmt, ...) PRINTF_LIKE(2, 3);
MUST_USE bool compile_scalar(struct compile *c, const char *name);

/* Values, at the current event. They are kept in the policy's arena. */
/* Refuses an absent one ("has no value"). */
MUST_USE bool compile_keep_text(struct compile *c, const char *name, struct str text,
                                struct str *out);
/* Not empty. What it says is repeated in events and answers, and a rule's id is part of keys: none
 * is longer than what its name permits (compile.c). */
MUST_USE bool compile_text(struct compile *c, const char *name, struct str *out);
typedef bool compile_item(struct compile *c, const char *name, struct str *out);
/* A list with at least one item, in c->texts. */
MUST_USE bool compile_list(struct compile *c, const char *name, compile_item *read_item);
/* The index of the value among the names. */
MUST_USE bool compile_choice(struct compile *c, const char *name, const struct str *names, size_t n,
                             size_t *out);

MUST_USE bool compile_when(struct compile *c, struct rule_when *out);
MUST_USE bool compile_then(struct compile *c, struct rule *out);

#endif
