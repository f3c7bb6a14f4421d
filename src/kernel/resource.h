/* SPDX-License-Identifier: Apache-2.0
 * Resources: registered, bound, touched by steps, captured (docs/resources.md). */
#ifndef KERNEL_RESOURCE_H
#define KERNEL_RESOURCE_H

#include "kernel/verdict.h"

enum {
    RESOURCES_MAX = 100,              /* of one execution: each step may touch them all */
    RESOURCE_JSON_MAX = 64 * 1024,    /* bytes of a configuration or binding */
    RESOURCE_KEY_MAX = 128,           /* bytes */
    RESOURCE_DRIVER_MAX = 256,        /* bytes of a driver_id */
    RESOURCE_EVERY_MAX = 1000 * 1000, /* every_steps */
    CHECKPOINT_REF_MAX = 4096,        /* bytes */
};

/* ---- agents' calls ---- */

struct resource_registration {
    struct uuid execution_id;
    struct str agent_id;
    struct lease_ref lease;
    struct str key, driver_id;
    struct str configuration;       /* JSON as it came; absent: none, as for null */
    struct hash configuration_hash; /* of its canonical form; of `null` without one */
    bool coverage_reuse;
    int64_t every_steps; /* 0: no checkpoints */
    bool on_completion;  /* counts only with every_steps */
};
/* The state of a resource; texts in the set's arena. */
struct resource_answer {
    struct resource state;
};
void resource_register_names(struct working_set *ws, const struct resource_registration *cmd);
/* ERR_CONFLICT: it is registered with another driver_id, configuration or coverage_reuse. */
MUST_USE
enum verdict resource_register(struct working_set *ws, const struct resource_registration *cmd,
                               struct resource_answer *answer, struct err *e);

struct resource_binding {
    struct uuid execution_id;
    struct str agent_id;
    struct lease_ref lease;
    struct str key;
    struct str binding;       /* JSON as it came, not null */
    struct hash binding_hash; /* of its canonical form */
};
void resource_bind_names(struct working_set *ws, const struct resource_binding *cmd);
/* ERR_VALIDATION: the key is not registered. ERR_CONFLICT: it has another binding. */
MUST_USE
enum verdict resource_bind(struct working_set *ws, const struct resource_binding *cmd,
                           struct err *e);

struct capture {
    struct str key;
    int64_t generation;
    struct str checkpoint_ref; /* absent or empty: missing */
};
struct capture_failure {
    struct str key;
    int64_t generation;
    struct str error;
};
struct capture_report { /* borrowed */
    const struct capture *captures;
    size_t n_captures;
    const struct capture_failure *failures;
    size_t n_failures;
};
struct resource_capture { /* outside a step */
    struct uuid execution_id;
    struct str agent_id;
    struct lease_ref lease;
    struct capture_report report;
};
void resource_capture_names(struct working_set *ws, const struct resource_capture *cmd);
MUST_USE
enum verdict resource_capture(struct working_set *ws, const struct resource_capture *cmd,
                              struct err *e);

/* ---- for the rules of steps and executions ---- */

/* The execution's resources are in the set; else they have been named. */
MUST_USE bool resources_at_hand(struct working_set *ws, struct execution *exec);
/* NULL: not registered. They must be at hand, here and below. */
struct resource *resource_find(const struct execution *exec, struct str key);
/* The step declared this key, and is no model call. */
bool step_affects(const struct step *step, struct str key);
/* A JSON list of texts in the arena; absent when there are none. */
struct str resource_keys_json(struct working_set *ws, const struct str *keys, size_t n);

struct touched_resource {
    struct str key;
    int64_t generation;
    bool due; /* capture it when this step settles */
};
/* The step is told to proceed, by the event with this sequence: each resource that it affects, or
 * whose coverage does not outlast steps, begins a new generation. *out: those, in the group's
 * arena. Returns the members of step.executing. */
struct str resources_touch(struct working_set *ws, struct step *step, int64_t seq,
                           struct touched_resource **out, size_t *n);
/* What it touches, again, for a repeated answer: nothing changes. */
void resources_touched(struct working_set *ws, const struct step *step,
                       struct touched_resource **out, size_t *n);
/* The step has settled (succeeded or failed): it counts for what it affects; then the report, whose
 * captures cover `seq`. */
void resources_settle(struct working_set *ws, struct step *step,
                      const struct capture_report *report, int64_t seq);
/* At the start of a session's turn: what it inherits from its parent, with its events. */
void resources_inherit(struct working_set *ws, struct execution *exec, const struct resource *rows,
                       size_t n);

#endif
