/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/follow_up.h"

#include "engine/executor.h"
#include "engine/orphans.h"

#include <stdlib.h>

struct ticket {
    struct engine *engine;
    struct command *first; /* whose answer waits; NULL: nobody's */
    atomic_uint left;
};

static struct ticket *ticket_new(struct engine *en, struct command *first)
{
    struct ticket *t = xzalloc(sizeof(*t));

    t->engine = en;
    t->first = first;
    atomic_init(&t->left, 1); /* while things are being added */
    return t;
}

void ticket_done(struct ticket *t)
{
    struct command *first = t->first;

    if (atomic_fetch_sub(&t->left, 1) > 1)
        return;
    if (first != NULL)
        engine_answered(t->engine);
    free(t);
    if (first != NULL)
        first->done(first);
}

struct follow_up {
    struct command cmd; /* first */
    struct ticket *ticket;
    char session[];
};

static void followed(struct command *cmd)
{
    struct follow_up *f = (struct follow_up *)cmd;
    struct ticket *ticket = f->ticket;

    free(f);
    ticket_done(ticket);
}

static struct follow_up *next(struct ticket *t, enum command_type type, size_t text)
{
    struct follow_up *f = xzalloc(sizeof(*f) + text);

    f->cmd.type = type;
    f->cmd.done = followed;
    f->cmd.follow_up = true;
    f->ticket = t;
    atomic_fetch_add(&t->left, 1);
    return f;
}

static void admit(struct ticket *t, struct str session)
{
    struct follow_up *f = next(t, COMMAND_ADMIT, session.n);

    memcpy(f->session, session.p, session.n);
    f->cmd.in.admit = str_make(f->session, session.n);
    engine_submit(t->engine, &f->cmd);
}

static void settle(struct ticket *t, const struct owed *owed)
{
    struct follow_up *f = next(t, COMMAND_SUBAGENT_SETTLE, 0);

    f->cmd.in.subagent_settle = (struct subagent_end){owed->child, owed->parent, owed->step_id};
    engine_submit(t->engine, &f->cmd);
}

void follow_up(struct engine *en, struct command *first, const struct changes *changes)
{
    bool waits = !first->follow_up;
    struct ticket *t = ticket_new(en, waits ? first : NULL);
    size_t frees = first->frees, owes = first->owes, orphans = first->orphans;

    if (frees > 0)
        admit(t, changes->freed.at[frees - 1]);
    if (owes > 0)
        settle(t, &changes->owed.at[owes - 1]);
    if (orphans > 0) {
        atomic_fetch_add(&t->left, 1);
        orphans_cancel(en->orphans, &changes->orphaned.at[orphans - 1], t);
    }
    /* Last: an engine that stops takes itself for quiet when the one was answered and the others
     * are not counted yet. */
    if (!waits) {
        engine_answered(en);
        first->done(first); /* may free it */
    }
    ticket_done(t);
}
